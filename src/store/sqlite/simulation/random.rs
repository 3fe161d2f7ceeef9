//! Chance from one seed (SplitMix64), so that a history repeats exactly.

use std::time::Duration;

pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..bound`; 0 when there is none.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % bound).unwrap_or(0)
    }

    /// One of `low..=high`.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        let span = usize::try_from(high - low).unwrap_or(0) + 1;
        low + u32::try_from(self.below(span)).unwrap_or(0)
    }

    pub(super) fn percent(&mut self, chance: u32) -> bool {
        self.between(1, 100) <= chance
    }

    pub(super) fn secs(&mut self, low: u32, high: u32) -> Duration {
        Duration::from_secs(self.between(low, high).into())
    }
}
