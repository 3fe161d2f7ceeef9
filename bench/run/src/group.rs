//! What can be measured: groups of cells that are compared with one another. In a group everybody
//! works on the same database with the same fsync delay, and the first is what the others are
//! divided by. Which groups there are: `group/list.rs`.

mod list;

use serde::Serialize;

use crate::database::Kind;
use crate::peer::Peer;

pub use list::all;

/// Rounds of a comparison that the headline rests on.
pub const HEADLINE_ROUNDS: u32 = 5;

/// Cells to be compared.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name, for `--only`: parts joined by dots.
    pub name: String,
    /// What it asks.
    pub about: String,
    /// Which database.
    pub store: Kind,
    /// Sleep before each fsync, in microseconds.
    pub delay_us: u32,
    /// Who is compared; ratios are to the first.
    pub contestants: Vec<Contestant>,
    /// Whether it runs when nothing is chosen.
    pub default: bool,
}

/// One who is compared.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// Its name in the group.
    pub label: String,
    /// The program.
    pub peer: Peer,
    /// What it does.
    pub work: Work,
    /// In how many rounds it takes part: the first ones.
    pub rounds: u32,
}

/// What a cell does.
#[derive(Clone, Debug, Serialize)]
pub enum Work {
    /// Deliveries straight into the consumer.
    Direct(Direct),
    /// A backlog through a real sidecar and Redis streams.
    Drain(Drain),
    /// Many deliveries in flight whose handlers wait.
    Parked(Parked),
    /// Dead letters that recover by themselves.
    Recovery {
        /// How many.
        count: u64,
    },
    /// A backlog of the outbox, published under an old snapshot.
    Relay {
        /// How many messages.
        count: u64,
    },
    /// From an effect to its message on the broker: how many a second, and how late.
    Outbox {
        /// How many at once, for the rate.
        count: u64,
    },
}

/// See [`Work::Direct`].
#[derive(Clone, Debug, Serialize)]
pub struct Direct {
    /// Calls in flight.
    pub in_flight: usize,
    /// Events in one call.
    pub bulk: u64,
    /// An open loop instead of calls kept in flight.
    pub rate: Option<Rate>,
    /// With poison, transient failures and duplicates.
    pub dirty: bool,
    /// Rows in the inbox before.
    pub preload: u64,
    /// Each event's row by a statement of its own, which is never merged with others (Backstop).
    pub own_statement: bool,
}

/// How many events a second an open loop sends: the same for everybody in the group.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Half of what the first contestant of this group reached, where that was measured.
    pub half_of: String,
    /// Otherwise so many.
    pub else_per_sec: f64,
}

/// See [`Work::Drain`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Drain {
    /// Whether the consumer asks for bulk delivery.
    pub bulk: bool,
    /// Events in the backlog.
    pub backlog: u64,
}

/// See [`Work::Parked`].
#[derive(Clone, Debug, Serialize)]
pub struct Parked {
    /// Deliveries at once.
    pub in_flight: usize,
    /// How long each handler waits, in milliseconds.
    pub park_ms: u32,
}

impl Direct {
    fn closed(in_flight: usize) -> Self {
        Self { in_flight, bulk: 1, rate: None, dirty: false, preload: 0, own_statement: false }
    }

    fn bulk(calls: usize, events: u64) -> Self {
        Self { bulk: events, ..Self::closed(calls) }
    }
}

impl Group {
    /// Rounds of the contestant that takes part in most.
    pub fn rounds(&self) -> u32 {
        self.contestants.iter().map(|contestant| contestant.rounds).max().unwrap_or(0)
    }

    /// Who runs in this round, in turn: every other round the other way round.
    pub fn order(&self, round: u32) -> Vec<&Contestant> {
        let takes_part = |contestant: &&Contestant| round < contestant.rounds;
        let mut order: Vec<_> = self.contestants.iter().filter(takes_part).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_name_of_its_own_and_somebody_in_it() {
        let groups = all();
        let names: std::collections::HashSet<_> = groups.iter().map(|group| &group.name).collect();
        assert_eq!(names.len(), groups.len());
        assert!(groups.iter().all(|group| !group.contestants.is_empty()));
    }

    #[test]
    fn every_label_is_there_once_and_the_first_takes_part_in_every_round() {
        for group in all() {
            let labels: std::collections::HashSet<_> =
                group.contestants.iter().map(|contestant| &contestant.label).collect();
            assert_eq!(labels.len(), group.contestants.len(), "{}", group.name);
            assert_eq!(group.contestants[0].rounds, group.rounds(), "{}", group.name);
        }
    }

    #[test]
    fn turns_are_taken_in_the_other_order_in_every_other_round() {
        let group = all().into_iter().find(|group| group.name == "direct.pg.0.64").unwrap();
        let labels =
            |round| group.order(round).iter().map(|one| one.label.clone()).collect::<Vec<_>>();
        let turned: Vec<_> = labels(0).into_iter().rev().collect();
        assert_eq!(turned, labels(1));
        assert!(labels(4).len() < labels(0).len(), "not everybody takes part in the last round");
    }
}
