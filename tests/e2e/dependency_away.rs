//! A dependency away for a while: it is hardly called, costs nobody a recovery, and is not run over
//! when it is back.

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{LATER, POISON, Setup, World, becomes, event_id, eventually, placed, secs};
use crate::inventory::{Call, Rule};

/// How long it is away, and how many orders arrive meanwhile.
const AWAY: Duration = Duration::from_secs(if cfg!(feature = "soak") { 180 } else { 20 });
const ORDERS: usize = if cfg!(feature = "soak") { 500 } else { 200 };
/// No more arrive so long before it is back, so that what comes then is recovery alone.
const QUIET: Duration = Duration::from_secs(10);
/// How long a call takes when it is back: recoveries let through together are under way together.
const CALL: Duration = Duration::from_millis(300);

// What `quick_gates` sets.
const PROBE: Duration = Duration::from_secs(1);
const OPEN: Duration = Duration::from_secs(2);
const RECOVERIES_AT_ONCE: usize = 16;
// What is shipped (components/redis/orderpubsub.yaml, resiliency.yaml).
const AT_ONCE: usize = 64;
const TRIP: usize = 15;

/// Probes come every second here instead of every ten, and the breaker tries again after two
/// seconds instead of ten, so that an outage of seconds is a long one.
fn quick_gates() -> Setup {
    Setup::redis()
        .quick_recovery()
        .env("BACKSTOP_GATE_PROBE_SECS", &PROBE.as_secs().to_string())
        .env("BACKSTOP_RECOVERY_CONCURRENCY_MAX", &RECOVERIES_AT_ONCE.to_string())
        .edit(
            "resiliency.yaml",
            "timeout: 10s # open",
            &format!("timeout: {}s # open", OPEN.as_secs()),
        )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependency_away_for_long_is_hardly_called_costs_no_order_and_is_not_run_over_afterwards()
{
    let world = quick_gates().start().await;
    world.inventory.set_fallback(Rule::FailAlways);
    world.inventory.set("poison", Rule::FailAlways);
    let orders: Vec<String> = (0..ORDERS).map(|n| format!("{n:03}")).collect();
    let began = Instant::now();
    world.publish(&placed("poison")).await;
    arrive(&world, &orders, AWAY.saturating_sub(QUIET)).await;
    // The time away is what is being tried.
    tokio::time::sleep(AWAY.saturating_sub(began.elapsed())).await;
    world.inventory.set_fallback(Rule::ReserveAfter(CALL));
    let while_away = world.inventory.calls().iter().filter(|call| call.answer != Some(200)).count();

    becomes(LATER, "orders", ORDERS, async || world.database.order_count()).await;
    becomes(LATER, "cases", 1, async || world.cases().len()).await;
    assert_eq!(world.database.orders(), orders);
    let case = world.only_case();
    assert_eq!([&case["category"], &case["event_id"]], ["exhausted", &event_id("poison")]);
    becomes(LATER, "poison lines", 1, async || world.app_lines(POISON)).await;
    // What it takes to open the breaker, what was under way then, one after each of the breaker's
    // timeouts, and one a probe; a little of both for the way there and back.
    let tries = |every: Duration| usize::try_from(AWAY.as_secs() / every.as_secs()).unwrap() + 2;
    let sidecar = TRIP + AT_ONCE + tries(OPEN);
    // In bulk no breaker opens, so each order is tried once when it comes.
    let sidecar = if world.is_bulk { ORDERS + 1 } else { sidecar };
    let bound = sidecar + RECOVERIES_AT_ONCE + tries(PROBE);
    assert!(while_away <= bound, "{while_away} calls, at most {bound}");
    let good: Vec<Call> =
        world.inventory.calls().into_iter().filter(|call| call.answer == Some(200)).collect();
    let most = assert_ramp(&good);
    eprintln!(
        "away for {AWAY:?}: {while_away} calls (at most {bound}), {ORDERS} orders, {most} at once"
    );
}

/// Publishes the orders in twenty lots over that time.
async fn arrive(world: &World, orders: &[String], over: Duration) {
    const LOTS: u32 = 20;
    let began = Instant::now();
    for (n, lot) in (1..).zip(orders.chunks(orders.len() / LOTS as usize)) {
        let events: Vec<Value> = lot.iter().map(|order| placed(order)).collect();
        join_all(events.iter().map(|event| world.publish(event))).await;
        // The pace of their arrival is what is being tried.
        tokio::time::sleep((over * n / LOTS).saturating_sub(began.elapsed())).await;
    }
}

/// The probe's success lets one through, that one two, those four and so on: of so many that have
/// succeeded twice the largest power of two among them can have begun, until the 64 that are let
/// through together have succeeded. Says how many were under way at once.
fn assert_ramp(calls: &[Call]) -> usize {
    const ALL_MAY_GO: usize = 2 * 64;
    let mut most = 0;
    for (before, call) in calls.iter().enumerate() {
        let succeeded = calls.iter().filter(|other| other.at + CALL <= call.at).count();
        let may_begin = succeeded.checked_ilog2().map_or(1, |doublings| 2_usize << doublings);
        let is_open = succeeded >= ALL_MAY_GO;
        assert!(
            is_open || before < may_begin,
            "call {}: only {succeeded} have succeeded",
            before + 1
        );
        most = most.max(before + 1 - succeeded);
    }
    assert!(most > 4, "it never came to more than {most} at once");
    most
}

/// Six orders wait at the gate, and the dependency comes back for five of them just before the
/// probe is the sixth's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_order_chosen_as_the_probe_does_not_keep_the_gate_shut() {
    const PROBE: Duration = Duration::from_secs(2);
    let world = quick_gates()
        .env("BACKSTOP_GATE_PROBE_SECS", &PROBE.as_secs().to_string())
        .env("BACKSTOP_RECOVERIES_MAX", "3")
        .start()
        .await;
    world.inventory.set_fallback(Rule::FailAlways);
    world.inventory.set("poison", Rule::FailAlways);
    let good = ["1", "2", "3", "4", "5"];
    for order in ["poison"].into_iter().chain(good) {
        world.publish(&placed(order)).await;
    }
    becomes(LATER, "waiting", 6, async || world.database.waiting().len()).await;
    let poison = event_id("poison");
    // A probe has just been made, and the next is the poison's.
    let before = eventually(LATER, "the poison is next", async || {
        let calls = world.inventory.calls();
        let is_fresh = calls.last().is_some_and(|call| call.at.elapsed() < PROBE / 2);
        let waiting = world.database.waiting();
        if is_fresh && waiting.len() == 6 && waiting[0] == poison {
            Ok(calls.len())
        } else {
            Err(waiting)
        }
    })
    .await;
    world.inventory.set_fallback(Rule::Reserve);
    becomes(LATER, "orders", good, async || world.database.orders()).await;
    let calls = world.inventory.calls_after(before);
    assert_eq!(calls[0].order_id, "poison", "the first probe after the return");
    let next = calls.iter().find(|call| call.order_id != "poison").unwrap();
    assert!(next.at - calls[0].at < PROBE + secs(1.5), "the next probe is another's");
    becomes(LATER, "cases", 1, async || world.cases().len()).await;
    let case = world.only_case();
    assert_eq!([&case["category"], &case["event_id"]], ["exhausted", &poison]);
}
