//! Two tables in Markdown, made by what a real sidecar does: how it retries and cools down with the
//! shipped policies (README.md shows that one), and what the usual configuration loses.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use crate::harness::{
    DEAD, LATER, SOON, Setup, UNREADABLE, World, becomes, event_id, eventually, placed, secs,
};
use crate::inventory::Rule;

// What the shipped resiliency.yaml says; `shipped` looks that it still does.
const RETRIES: usize = 5;
const WAIT_FIRST_SECS: f64 = 0.5;
const WAIT_GROWS: f64 = 1.5;
const WAIT_JITTER: f64 = 0.5;
const WAIT_MAX_SECS: f64 = 10.0;
const TRIP: usize = 15;
const OPEN_SECS: f64 = 10.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_breaker_cools_down_as_the_readme_says() {
    let policies = read("resiliency.yaml");
    for shipped in [
        format!("maxInterval: {WAIT_MAX_SECS:.0}s"),
        format!("maxRetries: {RETRIES}\n"),
        format!("timeout: {OPEN_SECS:.0}s # open"),
        format!("trip: consecutiveFailures >= {TRIP}\n"),
        "maxRequests: 1 ".to_owned(),
    ] {
        assert!(
            policies.contains(&shipped),
            "resiliency.yaml has no {shipped:?}: change this test"
        );
    }
    let (mut table, breaker) = tokio::join!(waits_between_retries(), what_an_open_breaker_does());
    table.0.extend(breaker.0);
    table.show();
    let readme = read("README.md");
    if readme.contains(HEAD) {
        for Row { what, policy, .. } in &table.0 {
            let fixed = format!("| {what} | {policy} |");
            assert!(readme.contains(&fixed), "README.md has the table, but no row {fixed}");
        }
    }
}

/// Orders that always fail, each a little after the last, with good ones between: those reset the
/// breaker's count, so it stays out of this.
async fn waits_between_retries() -> Table {
    const BAD: usize = 30;
    const GOOD_FOR_EACH: usize = 5;
    const EVERY: Duration = Duration::from_millis(30);
    let world = Setup::redis().start().await;
    let bad: Vec<String> = (0..BAD).map(|n| format!("bad-{n:02}")).collect();
    for order in &bad {
        world.inventory.set(order, Rule::FailAlways);
    }
    let mut good = 0;
    let mut last_bad = bad.iter();
    eventually(LATER, "every order has had its run of retries", async || {
        if let Some(order) = last_bad.next() {
            world.publish(&placed(order)).await;
        }
        for _ in 0..GOOD_FOR_EACH {
            good += 1;
            world.publish(&placed(&format!("good-{good}"))).await;
            tokio::time::sleep(EVERY).await;
        }
        let waiting = bad.iter().filter(|order| live_failures(&world, order) <= RETRIES).count();
        if waiting == 0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    assert!(changes(&world).is_empty(), "the breaker has opened: {:?}", changes(&world));

    let runs: Vec<Vec<Instant>> = bad
        .iter()
        .map(|order| {
            assert_eq!(live_failures(&world, order), RETRIES + 1, "{order}");
            world.inventory.calls_for(order).iter().map(|call| call.at).take(RETRIES + 1).collect()
        })
        .collect();
    let mut table = Table::default();
    for n in 0..RETRIES {
        let mut waits: Vec<f64> =
            runs.iter().map(|run| (run[n + 1] - run[n]).as_secs_f64()).collect();
        waits.sort_by(f64::total_cmp);
        let (least, median, most) = (waits[0], waits[BAD / 2], waits[BAD - 1]);
        let middle = WAIT_FIRST_SECS * WAIT_GROWS.powi(n.try_into().unwrap());
        let (low, high) = (middle * (1.0 - WAIT_JITTER), middle * (1.0 + WAIT_JITTER));
        assert!(high <= WAIT_MAX_SECS);
        assert!((low..=high).contains(&median), "retry {}: {median} s", n + 1);
        table.add(
            &format!("wait before retry {}", n + 1),
            &format!("{middle:.2} s ± 50 %: {low:.2} to {high:.2} s"),
            &format!("{least:.2} to {most:.2} s, median {median:.2} s"),
        );
    }
    table
}

/// Nothing but orders that fail, four at first and then a steady stream, over two probes.
async fn what_an_open_breaker_does() -> Table {
    const AT_FIRST: usize = 4;
    const CHANGES: [&str; 5] = [
        "closed to open",
        "open to half-open",
        "half-open to open",
        "open to half-open",
        "half-open to open",
    ];
    /// Calls that were under way when it opened, and their way into the store.
    const UNDER_WAY_SECS: f64 = 0.5;
    let world = Setup::redis().start().await;
    world.inventory.set_fallback(Rule::FailAlways);
    let mut sent = 0;
    let mut last = Vec::new();
    eventually(LATER, "the breaker has tried twice", async || {
        for _ in 0..if sent == 0 { AT_FIRST } else { 1 } {
            sent += 1;
            world.publish(&placed(&format!("{sent:03}"))).await;
        }
        tokio::time::sleep(secs(0.1)).await;
        last = changes(&world);
        if last.len() >= CHANGES.len() { Ok(()) } else { Err(last.clone()) }
    })
    .await;
    last.truncate(CHANGES.len());
    let kinds: Vec<&str> = last.iter().map(|(_, change)| change.as_str()).collect();
    assert_eq!(kinds, CHANGES);
    let at: Vec<f64> = last.iter().map(|(at, _)| *at).collect();

    let failures = live_failure_times(&world);
    let between =
        |from: f64, to: f64| failures.iter().filter(|time| (from..to).contains(*time)).count();
    let before = between(0.0, at[0]);
    let while_open =
        between(at[0] + UNDER_WAY_SECS, at[1]) + between(at[2] + UNDER_WAY_SECS, at[3]);
    let probes = [between(at[1], at[2] + UNDER_WAY_SECS), between(at[3], at[4] + UNDER_WAY_SECS)];
    let open = [at[1] - at[0], at[3] - at[2]];
    eprintln!("{sent} orders, {} failures of live attempts, changes at {at:?}", failures.len());
    assert!((TRIP..TRIP + AT_FIRST).contains(&before), "{before} failures opened it");
    assert_eq!(while_open, 0, "calls while it was open");
    assert_eq!(probes, [1, 1], "one probe at each half-open");
    let expected = OPEN_SECS - 0.1..OPEN_SECS + 2.0;
    assert!(open.iter().all(|secs| expected.contains(secs)), "open for {open:?} s");
    assert!(world.published(DEAD) > sent / 2, "what it refuses is dead-lettered at once");

    let mut table = Table::default();
    table.add(
        "failures in a row that open the breaker",
        &format!("{TRIP}, over all events"),
        &before.to_string(),
    );
    table.add(
        "it stays open for",
        &format!("{OPEN_SECS:.0} s, then the next event is the probe"),
        &format!("{:.1} and {:.1} s", open[0], open[1]),
    );
    table.add("deliveries to the handler while it is open", "none", &while_open.to_string());
    table.add(
        "deliveries to the handler at half-open",
        "1",
        &format!("{} and {}", probes[0], probes[1]),
    );
    table
}

const HEAD: &str = "| what the sidecar does | policy | measured |";

/// The table that README.md shows.
#[derive(Default)]
struct Table(Vec<Row>);

struct Row {
    what: String,
    policy: String,
    measured: String,
}

impl Table {
    fn add(&mut self, what: &str, policy: &str, measured: &str) {
        let [what, policy, measured] = [what, policy, measured].map(str::to_owned);
        self.0.push(Row { what, policy, measured });
    }

    fn show(&self) {
        let mut text = format!("{HEAD}\n|---|---|---|\n");
        for Row { what, policy, measured } in &self.0 {
            writeln!(text, "| {what} | {policy} | {measured} |").unwrap();
        }
        eprintln!("\n{text}");
    }
}

/// How often the breaker has changed its state, when (seconds of Unix time) and how.
fn changes(world: &World) -> Vec<(f64, String)> {
    let log = world.daprd_log();
    let change = |line: &str| {
        let (_, change) = line.split_once("changed state from ")?;
        let (_, time) = line.split_once("time=\"")?;
        let time: jiff::Timestamp = time.split_once('"')?.0.parse().ok()?;
        Some((time.as_duration().as_secs_f64(), change.split('"').next()?.to_owned()))
    };
    log.lines().filter_map(change).collect()
}

/// When deliveries by the sidecar failed (seconds of Unix time), as the store has them.
fn live_failure_times(world: &World) -> Vec<f64> {
    const TEXT: &str = "SELECT at / 1e6 FROM attempt WHERE kind = 'live' ORDER BY at";
    let connection = open(world);
    let mut statement = connection.prepare(TEXT).unwrap();
    let times = statement.query_map([], |row| row.get(0)).unwrap();
    times.collect::<Result<_, _>>().unwrap()
}

/// How many deliveries of this order by the sidecar have failed.
fn live_failures(world: &World, order: &str) -> usize {
    const TEXT: &str = "SELECT count(*) FROM attempt JOIN message USING (key)
        WHERE event_id = ?1 AND kind = 'live'";
    let count: i64 = open(world).query_row(TEXT, [event_id(order)], |row| row.get(0)).unwrap();
    usize::try_from(count).unwrap()
}

fn open(world: &World) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = Connection::open_with_flags(&world.database.path, flags).unwrap();
    connection.busy_timeout(SOON).unwrap();
    connection
}

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The time within which an order that was sent must have become something.
const WITHIN: Duration = Duration::from_secs(45);

/// The configuration that the documentation shows and everybody copies, and ours; the same
/// service behind both, and without an app health check, as with the sample.
#[derive(Clone, Copy)]
enum Resources {
    Sample,
    Ours,
}

impl Resources {
    fn setup(self) -> Setup {
        let shipped = Setup::redis()
            .without_health_check()
            .quick_recovery()
            // So that what always fails is a case within the time.
            .env("BACKSTOP_RECOVERIES_MAX", "3");
        match self {
            Self::Ours => shipped,
            // One component for both topics (the second is there under a name that nobody looks
            // for), and a breaker that opens at the fifth failure. Retry, timeouts and the
            // breaker's cooldown are the sample's as they are.
            Self::Sample => shipped
                .edit("orderpubsub-dead.yaml", "name: orderpubsub-dead", "name: unused")
                .edit("resiliency.yaml", "consecutiveFailures >= 15", "consecutiveFailures >= 5"),
        }
    }
}

/// What has become of the orders that were sent.
#[derive(Clone, Copy)]
struct Fate {
    sent: usize,
    /// A row in the shop's table, or a case.
    ended: usize,
    /// The store still has them and will come back to them.
    held: usize,
    /// In the topic that nobody consumes.
    unreadable: usize,
}

impl Fate {
    fn of(world: &World, sent: &BTreeSet<String>) -> Self {
        let mut ended: BTreeSet<String> =
            world.database.orders().iter().map(|order| event_id(order)).collect();
        let cases = world.cases();
        ended.extend(cases.iter().map(|case| case["event_id"].as_str().unwrap().to_owned()));
        let open: Vec<&String> = sent.iter().filter(|id| !ended.contains(*id)).collect();
        let held = open.iter().filter(|id| world.database.in_trouble(id).is_some()).count();
        Self {
            sent: sent.len(),
            ended: sent.len() - open.len(),
            held,
            unreadable: world.published(UNREADABLE),
        }
    }

    /// The last look within the time, or the first at which all have ended.
    async fn within(world: &World, began: Instant, sent: &[String]) -> Self {
        let sent = sent.iter().map(|order| event_id(order)).collect();
        loop {
            let fate = Self::of(world, &sent);
            if fate.ended == fate.sent || began.elapsed() > WITHIN {
                return fate;
            }
            tokio::time::sleep(secs(1.0)).await;
        }
    }

    /// What no part of the system will come back to. With this service a dead letter that an open
    /// breaker refused has a last topic of its own, so a person can still find its bytes there.
    fn lost(self) -> usize {
        self.sent - self.ended - self.held
    }

    fn cell(self) -> String {
        let Self { sent, ended, held, .. } = self;
        format!("{ended} of {sent}; {held} in custody, {} lost", self.lost())
    }
}

/// Two orders that always fail, and twenty good ones while the sample's breaker is open.
async fn two_bad_and_twenty_good(resources: Resources) -> Fate {
    let world = resources.setup().start().await;
    let began = Instant::now();
    let bad = ["bad-1", "bad-2"].map(str::to_owned);
    let good: Vec<String> = (0..20).map(|n| format!("good-{n:02}")).collect();
    for order in &bad {
        world.inventory.set(order, Rule::FailAlways);
        world.publish(&placed(order)).await;
    }
    // The same moment for both: their third attempts are over.
    becomes(SOON, "attempts", true, async || world.inventory.calls().len() >= 5).await;
    tokio::time::sleep(secs(0.5)).await;
    publish_all(&world, &good).await;
    Fate::within(&world, began, &[bad.to_vec(), good].concat()).await
}

/// The service dies with five in hand, five more are sent while it is away for five seconds, and
/// three after it is back.
async fn service_away(resources: Resources) -> Fate {
    let mut world = resources.setup().start().await;
    let began = Instant::now();
    let orders: Vec<String> = (0..13).map(|n| format!("{n:02}")).collect();
    world.inventory.set_fallback(Rule::Hang);
    publish_all(&world, &orders[..5]).await;
    becomes(SOON, "in hand", 5, async || world.inventory.calls().len()).await;
    world.kill_app();
    world.inventory.set_fallback(Rule::Reserve);
    publish_all(&world, &orders[5..10]).await;
    // The time away is what is being tried.
    tokio::time::sleep(secs(5.0)).await;
    world.start_app().await;
    publish_all(&world, &orders[10..]).await;
    Fate::within(&world, began, &orders).await
}

async fn publish_all(world: &World, orders: &[String]) {
    let events: Vec<Value> = orders.iter().map(|order| placed(order)).collect();
    join_all(events.iter().map(|event| world.publish(event))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sample_everybody_copies_loses_events_and_ours_does_not() {
    use Resources::{Ours, Sample};
    let (bad_sample, bad_ours, away_sample, away_ours) = tokio::join!(
        two_bad_and_twenty_good(Sample),
        two_bad_and_twenty_good(Ours),
        service_away(Sample),
        service_away(Ours),
    );
    eprintln!(
        "\n| a row or a case within {} s | the sample | ours |\n|---|---|---|\n\
         | 2 orders that always fail, and 20 good ones | {} | {} |\n\
         | service away for 5 s: 5 in hand, 5 meanwhile, 3 afterwards | {} | {} |\n",
        WITHIN.as_secs(),
        bad_sample.cell(),
        bad_ours.cell(),
        away_sample.cell(),
        away_ours.cell(),
    );
    let unreadable = [bad_sample, bad_ours, away_sample, away_ours].map(|fate| fate.unreadable);
    eprintln!("left in {UNREADABLE}, which nobody consumes: {unreadable:?}");
    for fate in [bad_ours, away_ours] {
        assert_eq!(fate.ended, fate.sent, "every order has become a row or a case");
        assert_eq!(fate.unreadable, 0);
    }
    assert!(bad_sample.lost() > 0, "an open breaker throws dead letters away");
}
