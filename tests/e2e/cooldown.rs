//! How a real sidecar retries and cools down with the shipped policies, as the handler sees it: the
//! table that README.md shows.

use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use crate::harness::{
    DEAD, LATER, SOON, Setup, World, becomes, event_id, eventually, placed, read, secs,
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

/// In bulk the sidecar has nothing to retry, and nothing opens its breaker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_bulk_the_sidecar_retries_nothing_and_its_breaker_stays_closed() {
    let world = Setup::redis().in_bulk().start().await;
    world.inventory.set_fallback(Rule::FailAlways);
    for n in 0..2 * TRIP {
        let order = n.to_string();
        world.publish(&placed(&order)).await;
        let failures = async || live_failures(&world, &order);
        becomes(SOON, "live failures", 1, failures).await;
    }
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert!(changes(&world).is_empty(), "{:?}", changes(&world));
    assert_eq!(world.published(DEAD), 0);
    assert_eq!(live_failure_times(&world).len(), 2 * TRIP, "one each");
}

/// About single deliveries, whatever the other tests do.
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
    table.assert_shown();
}

/// Orders that always fail, each a little after the last, with good ones between: those reset the
/// breaker's count, so it stays out of this.
async fn waits_between_retries() -> Table {
    const BAD: usize = 30;
    const GOOD_FOR_EACH: usize = 5;
    const EVERY: Duration = Duration::from_millis(30);
    /// Two calls and what is written between them, on a machine that has other things to do.
    const ON_THE_WAY_SECS: f64 = 0.3;
    let world = Setup::redis().one_by_one().start().await;
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
        assert!((low..=high + ON_THE_WAY_SECS).contains(&median), "retry {}: {median} s", n + 1);
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
    let world = Setup::redis().one_by_one().start().await;
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
    table.add_exact("deliveries to the handler while it is open", "none", &while_open.to_string());
    table.add_exact(
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
    /// What is measured is the same each time.
    is_exact: bool,
}

impl Table {
    fn add(&mut self, what: &str, policy: &str, measured: &str) {
        let [what, policy, measured] = [what, policy, measured].map(str::to_owned);
        self.0.push(Row { what, policy, measured, is_exact: false });
    }

    fn add_exact(&mut self, what: &str, policy: &str, measured: &str) {
        self.add(what, policy, measured);
        self.0.last_mut().unwrap().is_exact = true;
    }

    /// Prints it, and looks whether README.md shows the same, but for what differs each time.
    fn assert_shown(&self) {
        let readme = read("README.md");
        eprintln!("\n{HEAD}\n|---|---|---|");
        assert!(readme.contains(HEAD), "README.md has no table {HEAD}");
        for Row { what, policy, measured, is_exact } in &self.0 {
            eprintln!("| {what} | {policy} | {measured} |");
            let measured = if *is_exact { &format!("{measured} |") } else { "" };
            let row = format!("| {what} | {policy} | {measured}");
            assert!(readme.contains(&row), "README.md has no row {row}");
        }
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
