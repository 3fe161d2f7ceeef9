//! A gate stands between recovery and a dependency that is away.
//!
//! One belongs to each (subscription, reason code). It closes when [`TRIP`] different messages have
//! failed with the code and none of the subscription has succeeded between. While it is closed the
//! messages that failed so wait at it, nobody spends a recovery, and one probe at a time goes, each
//! a different message. Any success of the subscription, live traffic included, lets 1, 2, 4 …
//! waiting messages through, and then all.
//!
//! Pure decisions; the stores keep the rows.

use std::time::Duration;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::outcome::Code;

/// So many different messages close a gate.
pub const TRIP: u32 = 5;
/// Codes of one subscription that have a gate of their own; the rest share [`OTHER_CODES`].
pub const GATES_MAX: u32 = 64;
/// The gate of every code beyond [`GATES_MAX`].
pub const OTHER_CODES: Code = Code::new("other_codes");
/// When so many may go at once there is nothing left to hold back.
const FULLY_OPEN: u32 = 64;

/// Where a gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// Open; the failures since the last success are counted.
    Counting,
    /// Closed: only probes go. Left by any success of the subscription, or by an operator.
    Closed,
    /// Opening: as many successes as were let through let twice as many through. Left when all may
    /// go, or when the failures reach [`TRIP`] again.
    Opening,
}

impl GateState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Counting, Self::Closed, Self::Opening];

    /// The stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counting => "counting",
            Self::Closed => "closed",
            Self::Opening => "opening",
        }
    }

    /// The state with that name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// One gate as it is on disk, apart from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Where it stands.
    pub state: GateState,
    /// Since when.
    pub since: Timestamp,
    /// An operator holds it closed: no probes, and no success opens it.
    pub held: bool,
    /// Different messages that failed since the last success.
    pub failures: u32,
    /// How many were let through last.
    pub let_through: u32,
    /// Successes until twice as many are.
    pub awaited: u32,
    /// When the next message may be let through without a success.
    pub next_probe_at: Option<Timestamp>,
}

/// What a success does to a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It stays as it is.
    Unchanged,
    /// It is this now, and so many waiting messages may go.
    Partly(Gate, u32),
    /// It is no more, and all waiting messages may go.
    Wholly,
}

impl Gate {
    /// The gate before its first failure.
    #[must_use]
    pub fn fresh(now: Timestamp) -> Self {
        Self {
            state: GateState::Counting,
            since: now,
            held: false,
            failures: 0,
            let_through: 0,
            awaited: 0,
            next_probe_at: None,
        }
    }

    /// Whether a run that fails with its code now is spared: it is closed, or this failure closes
    /// it. `counted` says that the message is among the failures already.
    #[must_use]
    pub fn spares(&self, counted: bool) -> bool {
        self.state == GateState::Closed || self.failures + u32::from(!counted) >= TRIP
    }

    /// The gate after a failure with its code.
    #[must_use]
    pub fn failed(self, counted: bool, probe_every: Duration, now: Timestamp) -> Self {
        let failures = self.failures + u32::from(!counted);
        if self.state == GateState::Closed || failures < TRIP {
            return Self { failures: failures.min(TRIP), ..self };
        }
        Self {
            state: GateState::Closed,
            since: now,
            failures: TRIP,
            let_through: 0,
            awaited: 0,
            next_probe_at: Some(now.plus(probe_every)),
            ..self
        }
    }

    /// What a success of the subscription does to it.
    #[must_use]
    pub fn succeeded(self, probe_every: Duration, now: Timestamp) -> Opened {
        match self.state {
            _ if self.held => Opened::Unchanged,
            GateState::Counting => Opened::Wholly,
            GateState::Closed => {
                Opened::Partly(Self { since: now, ..self }.opening(1, 1, probe_every, now), 1)
            }
            GateState::Opening if self.awaited > 1 => {
                let (let_through, awaited) = (self.let_through, self.awaited - 1);
                Opened::Partly(self.opening(let_through, awaited, probe_every, now), 0)
            }
            GateState::Opening if self.let_through >= FULLY_OPEN => Opened::Wholly,
            GateState::Opening => {
                let more = self.let_through * 2;
                Opened::Partly(self.opening(more, more, probe_every, now), more)
            }
        }
    }

    fn opening(
        self,
        let_through: u32,
        awaited: u32,
        probe_every: Duration,
        now: Timestamp,
    ) -> Self {
        Self {
            state: GateState::Opening,
            failures: 0,
            let_through,
            awaited,
            next_probe_at: Some(now.plus(probe_every)),
            ..self
        }
    }

    /// Whether one waiting message may be let through now without a success: as a probe while it
    /// is closed; and while it opens, so that an opening with nothing left to succeed goes on.
    #[must_use]
    pub fn may_probe(&self, now: Timestamp) -> bool {
        !self.held && self.next_probe_at.is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVERY: Duration = Duration::from_secs(10);
    const NOW: Timestamp = Timestamp(1_000_000);

    fn after_failures(gate: Gate, failures: u32) -> Gate {
        (0..failures).fold(gate, |gate, _| gate.failed(false, EVERY, NOW))
    }

    #[test]
    fn the_fifth_different_message_closes_it_and_is_spared_itself() {
        let four = after_failures(Gate::fresh(NOW), 4);
        assert_eq!(four.state, GateState::Counting);
        assert!(!four.spares(true), "the same message again is no fifth");
        assert_eq!(four.failed(true, EVERY, NOW).state, GateState::Counting);
        assert!(four.spares(false));
        let closed = four.failed(false, EVERY, NOW);
        assert_eq!(
            (closed.state, closed.next_probe_at),
            (GateState::Closed, Some(NOW.plus(EVERY)))
        );
    }

    #[test]
    fn a_success_before_the_fifth_forgets_the_failures() {
        assert_eq!(after_failures(Gate::fresh(NOW), 4).succeeded(EVERY, NOW), Opened::Wholly);
    }

    #[test]
    fn successes_open_it_to_1_2_4_and_so_on_and_then_to_all() {
        let mut gate = after_failures(Gate::fresh(NOW), 5);
        let mut through = Vec::new();
        while let Opened::Partly(next, count) = gate.succeeded(EVERY, NOW) {
            through.push(count);
            gate = next;
        }
        through.retain(|count| *count > 0);
        assert_eq!(through, [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn five_more_failures_while_it_opens_close_it_again() {
        let closed = after_failures(Gate::fresh(NOW), 5);
        let Opened::Partly(opening, _) = closed.succeeded(EVERY, NOW) else {
            panic!("it was closed")
        };
        assert!(!opening.spares(false), "a failure while it is open spends");
        assert_eq!(after_failures(opening, 4).state, GateState::Opening);
        assert_eq!(after_failures(opening, 5).state, GateState::Closed);
    }

    #[test]
    fn a_held_gate_lets_nothing_through() {
        let held = Gate { held: true, ..after_failures(Gate::fresh(NOW), 5) };
        assert_eq!(held.succeeded(EVERY, NOW), Opened::Unchanged);
        assert!(!held.may_probe(NOW.plus(EVERY)));
        assert!(Gate { held: false, ..held }.may_probe(NOW.plus(EVERY)));
    }

    proptest! {
        #[test]
        fn every_count_stays_bounded(steps in proptest::collection::vec(0_u8..3, 0..200)) {
            let mut gate = Gate::fresh(NOW);
            for step in steps {
                gate = match step {
                    0 => gate.failed(false, EVERY, NOW),
                    1 => gate.failed(true, EVERY, NOW),
                    _ => match gate.succeeded(EVERY, NOW) {
                        Opened::Unchanged => gate,
                        Opened::Partly(next, _) => next,
                        Opened::Wholly => Gate::fresh(NOW),
                    },
                };
                prop_assert!(gate.failures <= TRIP && gate.let_through <= FULLY_OPEN && gate.awaited <= FULLY_OPEN);
                prop_assert_eq!(gate.state == GateState::Counting, gate.next_probe_at.is_none());
            }
        }
    }
}
