//! A breaker that a few orders have opened, and the many that have nothing to do with it.

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{DEAD, LATER, SOON, Setup, World, becomes, event_id, eventually, placed};
use crate::inventory::Rule;

/// While it is open the sidecar dead-letters every event of the component without an attempt.
/// Here it stays open for 5 s instead of 10, so that its probe comes while orders still arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_good_orders_beside_an_open_breaker_are_processed_once_and_charged_nothing() {
    let world = Setup::redis()
        .env("BACKSTOP_RECOVERIES_MAX", "3")
        .quick_recovery()
        .edit("resiliency.yaml", "timeout: 10s", "timeout: 5s")
        .start()
        .await;
    let bad: Vec<String> = (0..4).map(|n| format!("bad-{n}")).collect();
    for order in &bad {
        world.inventory.set(order, Rule::FailAlways);
        world.publish(&placed(order)).await;
    }
    if world.is_bulk {
        // What fails is taken over at once, so there is nothing that could open it.
        return good_ones_are_not_held_up(&world, &bad).await;
    }
    let opened = "changed state from closed to open";
    becomes(SOON, "the breaker is open", true, async || world.daprd_log().contains(opened)).await;

    let mut good: Vec<String> = (0..150).map(|n| format!("good-{n:03}")).collect();
    let events: Vec<Value> = good.iter().map(|order| placed(order)).collect();
    join_all(events.iter().map(|event| world.publish(event))).await;
    // One after another through its probe, until it has closed; and then some more.
    let closed = "changed state from half-open to closed";
    eventually(LATER, "the breaker closes", async || {
        let order = format!("good-{:03}", good.len());
        world.publish(&placed(&order)).await;
        good.push(order);
        if world.daprd_log().contains(closed) { Ok(()) } else { Err(good.len()) }
    })
    .await;
    for n in good.len()..good.len().max(180) + 20 {
        good.push(format!("good-{n:03}"));
        world.publish(&placed(&good[n])).await;
    }

    becomes(LATER, "orders", good.as_slice(), async || world.database.orders()).await;
    becomes(SOON, "accepted", good.as_slice(), async || world.accepted_orders()).await;
    becomes(LATER, "cases", bad.len(), async || world.cases().len()).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    let dead_letters = world.published(DEAD);
    assert!(dead_letters >= 50, "{dead_letters} dead letters: the breaker hardly mattered");
    eprintln!("{} good orders, {dead_letters} dead letters", good.len());
    for order in &good {
        assert_eq!(world.inventory.calls_for(order).len(), 1, "{order} was handled once");
    }
    only_these_have_failed(&world, &bad);
}

async fn good_ones_are_not_held_up(world: &World, bad: &[String]) {
    let good: Vec<String> = (0..200).map(|n| format!("good-{n:03}")).collect();
    let events: Vec<Value> = good.iter().map(|order| placed(order)).collect();
    join_all(events.iter().map(|event| world.publish(event))).await;
    becomes(SOON, "orders", good.as_slice(), async || world.database.orders()).await;
    becomes(LATER, "cases", bad.len(), async || world.cases().len()).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.published(DEAD), 0);
    assert!(!world.daprd_log().contains("changed state"), "the breaker stays closed");
    only_these_have_failed(world, bad);
}

fn only_these_have_failed(world: &World, bad: &[String]) {
    let failures = world.app_lines("Handler attempt failed.");
    let calls: usize = bad.iter().map(|order| world.inventory.calls_for(order).len()).sum();
    assert_eq!(failures, calls, "only the four have failed");
    assert_eq!(world.database.attempt_count(), calls, "nobody else has an attempt on record");
    let cases = world.cases();
    for order in bad {
        let case = cases.iter().find(|case| case["event_id"] == event_id(order).as_str()).unwrap();
        assert_eq!(case["category"], "exhausted", "{case:#?}");
        assert_eq!(case["attempts"], world.inventory.calls_for(order).len(), "{case:#?}");
    }
}
