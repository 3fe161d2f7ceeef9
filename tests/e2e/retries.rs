//! A dependency that fails for a moment, and one that says no.

use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{DEAD, POISON, SOON, Setup, becomes, event_id, placed};
use crate::inventory::Rule;

/// The sidecar waits longer before each further attempt, as `resiliency.yaml` says, with so much
/// jitter that only many orders show it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependency_that_fails_twice_costs_two_growing_waits_and_no_case() {
    const WAVES: usize = 10;
    // In bulk recovery waits, twice as long each time, instead of the sidecar.
    let world = Setup::redis().quick_recovery().start().await;
    // So few that their failures alone (two each) cannot open the breaker, which takes 15; in bulk,
    // that they cannot close a gate, which takes 5.
    let at_once = if world.is_bulk { 4 } else { 7 };
    let mut orders = Vec::new();
    for wave in 0..WAVES {
        let new: Vec<String> = (0..at_once).map(|n| format!("{wave}-{n}")).collect();
        for order in &new {
            world.inventory.set(order, Rule::FailTimes(2));
        }
        let events: Vec<Value> = new.iter().map(|order| placed(order)).collect();
        join_all(events.iter().map(|event| world.publish(event))).await;
        orders.extend(new);
        becomes(SOON, "orders", orders.as_slice(), async || world.database.orders()).await;
    }

    becomes(SOON, "accepted", orders.as_slice(), async || world.accepted_orders()).await;
    assert!(world.cases().is_empty());
    assert_eq!(world.published(DEAD), 0, "the retries were enough");
    assert_eq!(world.database.in_trouble_count(), 0);
    let (mut first_gaps, mut second_gaps) = (Vec::new(), Vec::new());
    for order in &orders {
        let calls = world.inventory.calls_for(order);
        assert_eq!(calls.len(), 3, "{order}");
        first_gaps.push(calls[1].at - calls[0].at);
        second_gaps.push(calls[2].at - calls[1].at);
    }
    let (first, second) = (median(first_gaps), median(second_gaps));
    eprintln!("{} orders, median gaps {first:.3?} and {second:.3?}", orders.len());
    assert!(second > first, "{second:?} is not longer than {first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejection_is_one_case_after_one_attempt() {
    let world = Setup::redis().start().await;
    world.inventory.set("1001", Rule::Reject("out_of_stock"));
    world.publish(&placed("1001")).await;

    becomes(SOON, "cases", 1, async || world.cases().len()).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    let case = world.only_case();
    assert_eq!([&case["category"], &case["reason"]], ["rejected", "out_of_stock"]);
    assert_eq!(case["event_id"], event_id("1001").as_str());
    assert_eq!(case["attempts"], 1);
    assert_eq!(world.inventory.calls_for("1001").len(), 1);
    assert_eq!(world.app_lines(POISON), 1);
    assert_eq!(world.published(DEAD), 0);
    assert_eq!(world.database.order_count(), 0);
    assert_eq!(world.database.outbox_count(), 0);
}

fn median(mut gaps: Vec<Duration>) -> Duration {
    gaps.sort();
    gaps[gaps.len() / 2]
}
