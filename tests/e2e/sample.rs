//! What the configuration that everybody copies loses, and ours does not: the table that README.md
//! shows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{SOON, Setup, UNREADABLE, World, becomes, event_id, placed, read, secs};
use crate::inventory::Rule;

/// The time within which an order that was sent must have become something. What README.md shows
/// was made with the longer one; ours needs neither.
const WITHIN: Duration = Duration::from_secs(if cfg!(feature = "soak") { 45 } else { 20 });
const HEAD: &str = "| a row or a case within 45 s | the sample | ours |";

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
            // What the sidecar does with what fails: in bulk, nothing.
            .one_by_one()
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
    eprintln!("\n{HEAD}\n|---|---|---|");
    let readme = read("README.md");
    assert!(readme.contains(HEAD), "README.md has no table {HEAD}");
    for (what, sample, ours) in [
        ("2 orders that always fail, and 20 good ones", bad_sample, bad_ours),
        ("service away for 5 s: 5 in hand, 5 meanwhile, 3 afterwards", away_sample, away_ours),
    ] {
        eprintln!("| {what} | {} | {} |", sample.cell(), ours.cell());
        // How many the sample loses depends on the moment.
        let shown = readme.lines().find(|line| line.starts_with(&format!("| {what} |")));
        let ours = format!("| {} |", ours.cell());
        assert!(shown.is_some_and(|row| row.ends_with(&ours)), "README.md: {shown:?}, not {ours}");
    }
    let unreadable = [bad_sample, bad_ours, away_sample, away_ours].map(|fate| fate.unreadable);
    eprintln!("left in {UNREADABLE}, which nobody consumes: {unreadable:?}");
    for fate in [bad_ours, away_ours] {
        assert_eq!(fate.ended, fate.sent, "every order has become a row or a case");
        assert_eq!(fate.unreadable, 0);
    }
    assert!(bad_sample.lost() > 0, "an open breaker throws dead letters away");
}
