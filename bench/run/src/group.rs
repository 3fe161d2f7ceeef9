//! What can be measured: groups of cells that are compared with one another. In a group everybody
//! works on the same database with the same fsync delay, and the first is what the others are
//! divided by.

use serde::Serialize;

use crate::database::Kind;
use crate::peer::Peer;

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
    /// Whether it belongs to the smoke run.
    pub smoke: bool,
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
}

/// What a cell does.
#[derive(Clone, Debug, Serialize)]
pub enum Work {
    /// Deliveries straight into the consumer.
    Direct(Direct),
    /// A backlog through a real sidecar and Redis streams.
    Drain,
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
}

/// See [`Work::Direct`].
#[derive(Clone, Debug, Serialize)]
pub struct Direct {
    /// Calls in flight.
    pub in_flight: usize,
    /// Events in one call.
    pub bulk: u64,
    /// An open loop at this rate instead of calls kept in flight.
    pub per_sec: Option<f64>,
    /// With poison, transient failures and duplicates.
    pub dirty: bool,
    /// Rows in the inbox before.
    pub preload: u64,
    /// Each event's row by a statement of its own, which is never merged with others (Backstop).
    pub own_statement: bool,
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
        Self { in_flight, bulk: 1, per_sec: None, dirty: false, preload: 0, own_statement: false }
    }
}

fn each(peers: &[Peer], work: &Work) -> Vec<Contestant> {
    let one =
        |peer: &Peer| Contestant { label: peer.name().to_owned(), peer: *peer, work: work.clone() };
    peers.iter().map(one).collect()
}

fn labelled(label: impl Into<String>, peer: Peer, work: Work) -> Contestant {
    Contestant { label: label.into(), peer, work }
}

/// Everyone who can use this database; the tuned Go peer first.
fn peers(store: Kind) -> &'static [Peer] {
    match store {
        Kind::Postgres => &[Peer::GoTx, Peer::GoCte, Peer::RustSqlx, Peer::NodePg, Peer::Backstop],
        Kind::Sqlite => &[Peer::GoTx, Peer::RustSqlx, Peer::Backstop],
    }
}

/// The two whose ratio is the headline.
const HEADLINE: [Peer; 2] = [Peer::GoTx, Peer::Backstop];

/// Database and delay, with their short name.
fn settings() -> impl Iterator<Item = (Kind, u32, String)> {
    [(Kind::Postgres, "pg"), (Kind::Sqlite, "sqlite")].into_iter().flat_map(|(store, name)| {
        [(0, "0"), (1000, "1ms")].map(|(delay, text)| (store, delay, format!("{name}.{text}")))
    })
}

/// Every group there is.
pub fn all() -> Vec<Group> {
    let mut groups = vec![noise()];
    for (store, delay_us, setting) in settings() {
        groups.push(direct_64(store, delay_us, &setting));
    }
    for (store, delay_us, setting) in settings() {
        for in_flight in [1, 10, 256] {
            groups.push(Group {
                name: format!("direct.{setting}.{in_flight}"),
                about: format!("direct gRPC, {in_flight} in flight"),
                store,
                delay_us,
                contestants: each(&HEADLINE, &Work::Direct(Direct::closed(in_flight))),
                default: delay_us == 1000,
                smoke: false,
            });
        }
    }
    for (store, delay_us, setting) in settings() {
        groups.push(Group {
            name: format!("daprd.{setting}"),
            about: "through a real daprd and Redis streams, concurrency 64, all relaying"
                .to_owned(),
            store,
            delay_us,
            contestants: each(peers(store), &Work::Drain),
            default: true,
            smoke: delay_us == 1000,
        });
    }
    for (store, delay_us, setting) in settings() {
        groups.extend(special(store, delay_us, &setting));
    }
    groups
}

fn noise() -> Group {
    let work = Work::Direct(Direct::closed(64));
    Group {
        name: "noise".to_owned(),
        about: "the same peer twice: what differs here is noise".to_owned(),
        store: Kind::Postgres,
        delay_us: 1000,
        contestants: vec![
            labelled("go-tx", Peer::GoTx, work.clone()),
            labelled("go-tx again", Peer::GoTx, work),
        ],
        default: true,
        smoke: false,
    }
}

fn direct_64(store: Kind, delay_us: u32, setting: &str) -> Group {
    let mut contestants = each(peers(store), &Work::Direct(Direct::closed(64)));
    let bulk = Direct { bulk: 16, ..Direct::closed(4) };
    contestants.push(labelled("backstop, bulk 4 x 16", Peer::Backstop, Work::Direct(bulk)));
    Group {
        name: format!("direct.{setting}.64"),
        about: "direct gRPC, 64 events in flight; nobody but Backstop takes bulk deliveries"
            .to_owned(),
        store,
        delay_us,
        contestants,
        default: true,
        smoke: delay_us == 1000,
    }
}

/// Workloads that are measured for the headline pair or for Backstop alone.
fn special(store: Kind, delay_us: u32, setting: &str) -> Vec<Group> {
    let group = |what: &str, about: &str, contestants: Vec<Contestant>| Group {
        name: format!("{what}.{setting}"),
        about: about.to_owned(),
        store,
        delay_us,
        contestants,
        default: false,
        smoke: false,
    };
    let dirty = Work::Direct(Direct { dirty: true, ..Direct::closed(64) });
    let clean = Work::Direct(Direct::closed(64));
    let mut dirty = each(&HEADLINE, &dirty);
    dirty.push(labelled("backstop, clean", Peer::Backstop, clean.clone()));
    let mut groups = vec![Group {
        default: delay_us == 1000,
        smoke: delay_us == 1000,
        ..group("dirty", "10 % duplicates, 1 % poison, 1 % that fail twice; 64 in flight", dirty)
    }];
    let half = |per_sec| Work::Direct(Direct { per_sec: Some(per_sec), ..Direct::closed(64) });
    let rate = if store == Kind::Sqlite && delay_us > 0 { 400.0 } else { 2000.0 };
    groups.push(group(
        "open",
        "latency at a fixed rate, about half of what the Go peer can do",
        each(&HEADLINE, &half(rate)),
    ));
    if delay_us > 0 {
        return groups;
    }
    let rows = [1_000, 100_000, 1_000_000, 10_000_000].map(|rows| {
        let work = Work::Direct(Direct { preload: rows, ..Direct::closed(64) });
        labelled(format!("backstop, {rows} rows"), Peer::Backstop, work)
    });
    groups.push(group("growth", "rows in the dedup memory", rows.into()));
    let own = Work::Direct(Direct { own_statement: true, ..Direct::closed(64) });
    groups.push(Group {
        smoke: true,
        ..group(
            "merge",
            "typed rows, merged into set statements, against a statement and savepoint an event",
            vec![
                labelled("own statements", Peer::Backstop, own),
                labelled("typed rows", Peer::Backstop, clean),
            ],
        )
    });
    let parked = Work::Parked(Parked { in_flight: 10_000, park_ms: 5000 });
    groups.push(Group {
        smoke: store == Kind::Sqlite,
        ..group("parked", "10,000 deliveries in flight: memory", each(&HEADLINE, &parked))
    });
    groups.push(Group {
        smoke: store == Kind::Sqlite,
        ..group(
            "recovery",
            "10,000 dead letters that were never attempted",
            vec![labelled("backstop", Peer::Backstop, Work::Recovery { count: 10_000 })],
        )
    });
    groups.push(Group {
        smoke: store == Kind::Postgres,
        ..group(
            "relay",
            "100,000 messages published while an old snapshot is open; a broker that takes all",
            each(&HEADLINE, &Work::Relay { count: 100_000 }),
        )
    });
    groups
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
}
