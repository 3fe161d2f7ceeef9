//! Which groups there are, and how often everybody takes part.

use super::{Contestant, Direct, Drain, Group, HEADLINE_ROUNDS, Parked, Rate, Work};
use crate::database::Kind;
use crate::peer::Peer;

/// Events in a backlog: a few seconds of whoever works it off.
const BACKLOG: u64 = 15_000;
const BACKLOG_FAST: u64 = 30_000;
const BACKLOG_SLOW: u64 = 4_000;

/// One database with one fsync delay.
struct Setting {
    store: Kind,
    delay_us: u32,
    /// Its part of a group's name.
    name: String,
}

impl Setting {
    fn all() -> impl Iterator<Item = Self> {
        [(Kind::Postgres, "pg"), (Kind::Sqlite, "sqlite")].into_iter().flat_map(|(store, name)| {
            [(0, "0"), (1000, "1ms")].map(|(delay_us, text)| Self {
                store,
                delay_us,
                name: format!("{name}.{text}"),
            })
        })
    }

    fn group(&self, what: &str, about: &str, contestants: Vec<Contestant>) -> Group {
        Group {
            name: format!("{what}.{}", self.name),
            about: about.to_owned(),
            store: self.store,
            delay_us: self.delay_us,
            contestants,
            default: true,
        }
    }

    fn on_postgres(&self) -> bool {
        self.store == Kind::Postgres
    }
}

fn one(label: &str, peer: Peer, rounds: u32, work: Work) -> Contestant {
    Contestant { label: label.to_owned(), peer, work, rounds }
}

fn named(peer: Peer, rounds: u32, work: Work) -> Contestant {
    one(peer.name(), peer, rounds, work)
}

/// The two whose ratio is the headline.
fn pair(rounds: u32, work: &Work) -> Vec<Contestant> {
    [Peer::GoTx, Peer::Backstop].map(|peer| named(peer, rounds, work.clone())).into()
}

/// Every group there is, in the order in which they run: what matters most comes first.
pub fn all() -> Vec<Group> {
    let mut groups = vec![noise()];
    groups.extend(Setting::all().map(|setting| direct_64(&setting)));
    groups.extend(Setting::all().map(|setting| daprd(&setting)));
    groups.extend(Setting::all().flat_map(|setting| special(&setting)));
    groups.extend(Setting::all().flat_map(|setting| [1, 10, 256].map(|n| direct(&setting, n))));
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
            one("go-tx", Peer::GoTx, HEADLINE_ROUNDS, work.clone()),
            one("go-tx again", Peer::GoTx, HEADLINE_ROUNDS, work),
        ],
        default: true,
    }
}

fn direct_64(setting: &Setting) -> Group {
    let work = || Work::Direct(Direct::closed(64));
    let bulk = |calls, events| Work::Direct(Direct::bulk(calls, events));
    let rounds = if setting.on_postgres() { HEADLINE_ROUNDS } else { 3 };
    let mut contestants = vec![named(Peer::GoTx, rounds, work())];
    if setting.on_postgres() {
        contestants.push(named(Peer::GoCte, rounds, work()));
    }
    contestants.push(named(Peer::Backstop, rounds, work()));
    contestants.push(one("backstop, bulk 4 x 16", Peer::Backstop, rounds, bulk(4, 16)));
    contestants.push(one("backstop, bulk 1 x 100", Peer::Backstop, 1, bulk(1, 100)));
    contestants.push(one("backstop, bulk 4 x 100", Peer::Backstop, 1, bulk(4, 100)));
    contestants.push(named(Peer::RustSqlx, 1, work()));
    if setting.on_postgres() {
        contestants.push(named(Peer::NodePg, 1, work()));
    }
    contestants.push(named(Peer::Nothing, 1, work()));
    let about = "direct gRPC, 64 events in flight (a bulk row says how many calls of how many \
                 events); nobody but Backstop takes bulk deliveries";
    Group { name: format!("direct.{}.64", setting.name), ..setting.group("", about, contestants) }
}

fn direct(setting: &Setting, in_flight: usize) -> Group {
    let about = format!("direct gRPC, {in_flight} in flight");
    let contestants = pair(1, &Work::Direct(Direct::closed(in_flight)));
    Group {
        name: format!("direct.{}.{in_flight}", setting.name),
        ..setting.group("", &about, contestants)
    }
}

fn daprd(setting: &Setting) -> Group {
    let work = |backlog| Work::Drain(Drain { bulk: false, backlog });
    let bulk = || Work::Drain(Drain { bulk: true, backlog: BACKLOG_FAST });
    let slow = setting.store == Kind::Sqlite && setting.delay_us > 0;
    let peers = if slow { BACKLOG_SLOW } else { BACKLOG };
    // SQLite is measured against this ceiling, so it takes part more often there.
    let ceiling = if setting.on_postgres() { 1 } else { 3 };
    let mut contestants = vec![named(Peer::GoTx, HEADLINE_ROUNDS, work(peers))];
    if setting.on_postgres() {
        contestants.push(named(Peer::GoCte, HEADLINE_ROUNDS, work(peers)));
    }
    contestants.push(named(Peer::Backstop, HEADLINE_ROUNDS, work(BACKLOG_FAST)));
    contestants.push(one("backstop, bulk", Peer::Backstop, HEADLINE_ROUNDS, bulk()));
    contestants.push(named(Peer::RustSqlx, 1, work(peers)));
    if setting.on_postgres() {
        contestants.push(named(Peer::NodePg, 1, work(BACKLOG_SLOW)));
    }
    contestants.push(named(Peer::Nothing, ceiling, work(BACKLOG_FAST)));
    contestants.push(one("nothing, bulk", Peer::Nothing, 1, bulk()));
    let about = "through a real daprd and Redis streams, concurrency 64, all relaying; `nothing` \
                 acknowledges and has no database: the ceiling";
    setting.group("daprd", about, contestants)
}

/// Workloads that are measured for the headline pair or for Backstop alone.
fn special(setting: &Setting) -> Vec<Group> {
    let mut groups = vec![dirty(setting), open(setting)];
    if setting.delay_us > 0 {
        return groups;
    }
    let rows = [(1_000, 3), (100_000, 1), (1_000_000, 1), (10_000_000, 3)].map(|(rows, rounds)| {
        let work = Work::Direct(Direct { preload: rows, ..Direct::closed(64) });
        one(&format!("backstop, {rows} rows"), Peer::Backstop, rounds, work)
    });
    groups.push(setting.group("growth", "rows in the dedup memory", rows.into()));
    groups.push(merge(setting));
    let parked = Work::Parked(Parked { in_flight: 10_000, park_ms: 5000 });
    groups.push(setting.group("parked", "10,000 deliveries in flight: memory", pair(1, &parked)));
    let recovery = named(Peer::Backstop, 1, Work::Recovery { count: 10_000 });
    let about = "10,000 dead letters that were never attempted";
    groups.push(setting.group("recovery", about, vec![recovery]));
    groups.push(relay(setting));
    if setting.on_postgres() {
        groups.push(outbox(setting));
    }
    groups
}

fn dirty(setting: &Setting) -> Group {
    let dirty = Work::Direct(Direct { dirty: true, ..Direct::closed(64) });
    let mut contestants = pair(1, &dirty);
    let clean = Work::Direct(Direct::closed(64));
    contestants.push(one("backstop, clean", Peer::Backstop, 1, clean));
    let about = "10 % duplicates, 1 % poison, 1 % that fail twice; 64 in flight";
    setting.group("dirty", about, contestants)
}

fn open(setting: &Setting) -> Group {
    let slow = setting.store == Kind::Sqlite && setting.delay_us > 0;
    let rate = Rate {
        half_of: format!("direct.{}.64", setting.name),
        else_per_sec: if slow { 400.0 } else { 2000.0 },
    };
    let work = Work::Direct(Direct { rate: Some(rate), ..Direct::closed(64) });
    let about = "latency at a fixed rate, the same for both: half of what the Go peer can do";
    setting.group("open", about, pair(2, &work))
}

fn merge(setting: &Setting) -> Group {
    let own = Work::Direct(Direct { own_statement: true, ..Direct::closed(64) });
    let typed = Work::Direct(Direct::closed(64));
    let about =
        "typed rows, merged into set statements, against a statement and savepoint an event";
    let contestants = vec![
        one("own statements", Peer::Backstop, 2, own),
        one("typed rows", Peer::Backstop, 2, typed),
    ];
    setting.group("merge", about, contestants)
}

fn relay(setting: &Setting) -> Group {
    let about = if setting.on_postgres() {
        "200,000 messages published while an old snapshot is open; a broker that takes all"
    } else {
        "200,000 messages published; a broker that takes all"
    };
    let work = Work::Relay { count: 200_000 };
    Group { default: setting.on_postgres(), ..setting.group("relay", about, pair(1, &work)) }
}

fn outbox(setting: &Setting) -> Group {
    let contestants = vec![
        named(Peer::DaprOutbox, 2, Work::Outbox { count: 500 }),
        named(Peer::Backstop, 2, Work::Outbox { count: 20_000 }),
    ];
    let about = "from an effect to its message on the broker: Dapr's own outbox (state in Redis) \
                 against Backstop's";
    setting.group("outbox", about, contestants)
}
