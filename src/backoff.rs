//! How long to wait before the next try: exponential, bounded, jittered; a pure function.

use std::time::Duration;

/// Doubles from `first` to `max`, with ±25 % of jitter drawn from a seed, so that a plan repeats
/// exactly and many messages that failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait before the first repetition.
    pub first: Duration,
    /// The longest wait, before jitter.
    pub max: Duration,
}

impl Backoff {
    /// The wait before repetition `n`, counted from 0.
    #[must_use]
    pub fn delay(self, n: u32, seed: u64) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(n).unwrap_or(u32::MAX));
        let base = doubled.min(self.max);
        // SplitMix64's finisher: neighbouring seeds and counts give unrelated jitter.
        let mut mixed = seed ^ u64::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let thousandths = 750 + u32::try_from(mixed % 501).unwrap_or(250);
        base.saturating_mul(thousandths) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_recovery_plan_lasts_more_than_an_hour() {
        let plan = Backoff { first: Duration::from_secs(10), max: Duration::from_secs(600) };
        let shortest: Duration = (0..14).map(|n| plan.delay(n, 0).mul_f64(0.75 / 1.25)).sum();
        assert!(shortest > Duration::from_secs(3000), "{shortest:?}");
        let usual: Duration = (0..14).map(|n| plan.delay(n, 7)).sum();
        assert!(usual > Duration::from_secs(3600), "{usual:?}");
    }

    proptest! {
        #[test]
        fn every_delay_stays_within_a_quarter_of_its_step(n in 0_u32..200, seed: u64, first_ms in 1_u64..100_000, factor in 1_u32..1000) {
            let first = Duration::from_millis(first_ms);
            let plan = Backoff { first, max: first * factor };
            let step = first.saturating_mul(1_u32.checked_shl(n).unwrap_or(u32::MAX)).min(plan.max);
            let delay = plan.delay(n, seed);
            prop_assert!(delay >= step.mul_f64(0.7499) && delay <= step.mul_f64(1.2501), "{delay:?} of {step:?}");
        }
    }
}
