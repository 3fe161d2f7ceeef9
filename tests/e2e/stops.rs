//! The service asked to stop (SIGTERM) with much in hand.

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{LATER, SOON, Setup, becomes, placed, secs};
use crate::inventory::Rule;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_loses_nothing_doubles_nothing_and_ends_in_good_order() {
    for first in ["the service", "the sidecar", "both"] {
        let mut world = Setup::redis().quick_recovery().start().await;
        world.inventory.set_fallback(Rule::ReserveAfter(secs(0.3)));
        let orders: Vec<String> = (0..60).map(|n| format!("{n:03}")).collect();
        let events: Vec<Value> = orders.iter().map(|order| placed(order)).collect();
        join_all(events.iter().map(|event| world.publish(event))).await;
        becomes(SOON, "under way", true, async || world.inventory.calls().len() > 5).await;
        if first == "the sidecar" {
            world.stop_daprd().await;
        }
        let is_good =
            if first == "both" { world.stop_both().await } else { world.stop_app().await };
        assert!(is_good, "{first} first: exit 0 within the drain limit");
        if first == "the service" {
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
        assert_eq!(world.database.outbox_count(), orders.len());
        assert!(world.cases().is_empty());
    }
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
