//! Dependencies, the store and whole processes away for a while, under load.

use std::time::Instant;

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{LATER, POISON, SOON, Setup, becomes, event_id, placed, secs};
use crate::inventory::Rule;

/// Probes come every second here instead of every ten, and the breaker tries again after two
/// seconds instead of ten, so that an outage of seconds is a long one.
fn quick_gates() -> Setup {
    Setup::redis().quick_recovery().env("BACKSTOP_GATE_PROBE_SECS", "1").edit(
        "resiliency.yaml",
        "timeout: 10s # open",
        "timeout: 2s # open",
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependency_away_for_twenty_seconds_costs_no_order_and_is_hardly_called() {
    const AWAY_SECS: u32 = 20;
    let world = quick_gates().start().await;
    world.inventory.set_fallback(Rule::FailAlways);
    world.inventory.set("poison", Rule::FailAlways);
    let orders: Vec<String> = (0..200).map(|n| format!("{n:03}")).collect();
    let began = Instant::now();
    world.publish(&placed("poison")).await;
    for chunk in orders.chunks(20) {
        let events: Vec<Value> = chunk.iter().map(|order| placed(order)).collect();
        join_all(events.iter().map(|event| world.publish(event))).await;
        tokio::time::sleep(secs(f64::from(AWAY_SECS) / 20.0)).await;
    }
    // The time away is what is being tried.
    tokio::time::sleep(secs(AWAY_SECS.into()).saturating_sub(began.elapsed())).await;
    let calls = world.inventory.calls();
    world.inventory.set_fallback(Rule::Reserve);

    becomes(LATER, "orders", orders.len(), async || world.database.order_count()).await;
    let cases = world.cases();
    assert!(cases.iter().all(|case| case["event_id"] == event_id("poison").as_str()), "{cases:#?}");
    becomes(LATER, "cases", 1, async || world.cases().len()).await;
    assert_eq!(world.only_case()["category"], "exhausted");
    assert_eq!(world.app_lines(POISON), 1);
    // While it was away: what it takes to open the breaker (15) and what was under way then (64 in
    // the sidecar, 4 in recovery), one after each of the breaker's timeouts, one a probe.
    let bound = 15 + 64 + 4 + (AWAY_SECS / 2 + AWAY_SECS + 5) as usize;
    assert!(calls.len() <= bound, "{} calls, at most {bound}", calls.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_locked_by_another_for_twelve_seconds_loses_nothing_and_counts_nothing() {
    let world = Setup::redis().without_inventory().start().await;
    let orders: Vec<String> = (0..40).map(|n| format!("{n:03}")).collect();
    let (before, during) = orders.split_at(10);
    for order in before {
        world.publish(&placed(order)).await;
    }
    becomes(SOON, "orders", before.len(), async || world.database.order_count()).await;
    let held = world.database.hold();
    let events: Vec<Value> = during.iter().map(|order| placed(order)).collect();
    join_all(events.iter().map(|event| world.publish(event))).await;
    becomes(SOON, "ready", false, async || world.is_ready().await).await;
    // The time away is what is being tried.
    tokio::time::sleep(secs(12.0)).await;
    assert_eq!(world.database.attempt_count(), 0);
    drop(held);
    becomes(LATER, "orders", orders.as_slice(), async || world.database.orders()).await;
    becomes(SOON, "ready", true, async || world.is_ready().await).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.database.attempt_count(), 0, "no attempt is counted for a store that is away");
    assert!(world.cases().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_ends_the_process_every_time_is_isolated_and_its_neighbours_are_processed() {
    let mut world =
        Setup::redis().quick_recovery().env("BACKSTOP_RECOVERIES_MAX", "4").start().await;
    let neighbours: Vec<String> = (0..50).map(|n| format!("{n:03}")).collect();
    world.inventory.set("deadly", Rule::Hang);
    let mut events: Vec<Value> = neighbours.iter().map(|order| placed(order)).collect();
    events.insert(25, placed("deadly"));
    join_all(events.iter().map(|event| world.publish(event))).await;
    // Whenever it is handled the process ends, as if the handler had ended it.
    let mut ends = 0;
    loop {
        let calls = world.inventory.calls_for("deadly").len();
        if calls > ends {
            ends = calls;
            world.kill_app();
            world.start_app().await;
        }
        if world.cases().len() == 1 {
            break;
        }
        assert!(ends <= 10, "it must be found out");
        tokio::time::sleep(secs(0.05)).await;
    }
    let case = world.only_case();
    assert_eq!(case["category"], "crashed_process");
    assert_eq!(case["event_id"], event_id("deadly").as_str());
    becomes(LATER, "orders", neighbours.as_slice(), async || world.database.orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;

    world.publish(&placed("deadly")).await;
    world.kill_app();
    world.start_app().await;
    world.publish(&placed("deadly")).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.inventory.calls_for("deadly").len(), ends, "it is not run again");
    assert_eq!(world.cases().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_loses_nothing_doubles_nothing_and_ends_in_good_order() {
    for sidecar_first in [false, true] {
        let mut world = Setup::redis().quick_recovery().start().await;
        world.inventory.set_fallback(Rule::ReserveAfter(secs(0.3)));
        let orders: Vec<String> = (0..60).map(|n| format!("{n:03}")).collect();
        let events: Vec<Value> = orders.iter().map(|order| placed(order)).collect();
        join_all(events.iter().map(|event| world.publish(event))).await;
        becomes(SOON, "under way", true, async || world.inventory.calls().len() > 5).await;
        if sidecar_first {
            world.stop_daprd().await;
        }
        assert!(world.stop_app().await, "exit 0 within the drain limit");
        if !sidecar_first {
            world.stop_daprd().await;
        }
        world.start_app().await;
        world.start_daprd().await;
        becomes(LATER, "orders", orders.as_slice(), async || world.database.orders()).await;
        becomes(LATER, "accepted", orders.len(), async || {
            let mut accepted = world.accepted_orders();
            accepted.dedup();
            accepted.len()
        })
        .await;
        assert!(world.cases().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_and_sidecar_killed_together_and_redis_restarted_lose_nothing() {
    let mut world = Setup::redis()
        .quick_recovery()
        // What a dead sidecar had in hand is redelivered after three seconds instead of a minute.
        .edit("orderpubsub.yaml", "value: 60s", "value: 3s")
        .edit("orderpubsub.yaml", "value: 15s", "value: 1s")
        .start()
        .await;
    world.inventory.set_fallback(Rule::ReserveAfter(secs(0.2)));
    let orders: Vec<String> = (0..50).map(|n| format!("{n:03}")).collect();
    let events: Vec<Value> = orders.iter().map(|order| placed(order)).collect();
    join_all(events.iter().map(|event| world.publish(event))).await;
    becomes(SOON, "under way", true, async || world.inventory.calls().len() > 5).await;
    world.kill_app();
    world.kill_daprd();
    world.redis.restart().await;
    world.start_app().await;
    world.start_daprd().await;
    becomes(LATER, "orders", orders.as_slice(), async || world.database.orders()).await;
    assert!(world.cases().is_empty());
}

/// Past its limit a drain is no good order: the exit says so, and the next start is cautious.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_past_its_limit_ends_non_zero_and_the_next_start_is_cautious() {
    let mut world =
        Setup::redis().quick_recovery().env("BACKSTOP_DRAIN_TIMEOUT_SECS", "1").start().await;
    world.inventory.set("1001", Rule::Hang);
    world.publish(&placed("1001")).await;
    becomes(SOON, "calls", 1, async || world.inventory.calls().len()).await;
    assert!(!world.stop_app().await, "it says that it did not end well");
    world.inventory.set("1001", Rule::Reserve);
    world.start_app().await;
    becomes(LATER, "orders", ["1001"], async || world.database.orders()).await;
    assert_eq!(world.app_lines("ended uncleanly"), 1);
    assert!(world.stop_app().await);
    world.start_app().await;
    assert_eq!(world.app_lines("ended uncleanly"), 1, "not after a good end");
}

/// Both ways a sidecar can be told about its app: by a health check, and only by its answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_orders_in_hand_when_the_service_dies_are_processed_once_with_and_without_a_health_check()
 {
    for health_check in [true, false] {
        app_away(secs(3.0), health_check).await;
    }
}

/// The longer absences; `make soak`.
#[cfg(feature = "soak")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_away_for_thirty_and_for_ninety_seconds_loses_nothing() {
    for away in [30.0, 90.0] {
        for health_check in [true, false] {
            app_away(secs(away), health_check).await;
        }
    }
}

async fn app_away(away: std::time::Duration, health_check: bool) {
    let setup = Setup::redis()
        .quick_recovery()
        .edit("orderpubsub.yaml", "value: 60s", "value: 3s")
        .edit("orderpubsub.yaml", "value: 15s", "value: 1s");
    let mut world = if health_check { setup } else { setup.without_health_check() }.start().await;
    world.inventory.set_fallback(Rule::Hang);
    let orders: Vec<String> = (0..60).map(|n| format!("{n:03}")).collect();
    let events: Vec<Value> = orders.iter().map(|order| placed(order)).collect();
    let (in_hand, meanwhile) = events.split_at(50);
    join_all(in_hand.iter().map(|event| world.publish(event))).await;
    becomes(SOON, "in hand", in_hand.len(), async || world.inventory.calls().len()).await;
    world.kill_app();
    world.inventory.set_fallback(Rule::Reserve);
    join_all(meanwhile.iter().map(|event| world.publish(event))).await;
    // The time away is what is being tried.
    tokio::time::sleep(away).await;
    world.start_app().await;
    becomes(LATER + away, "orders", orders.as_slice(), async || world.database.orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.database.outbox_count(), orders.len());
    assert!(world.cases().is_empty());
}
