//! Deliveries of what the store owns already, and a redrive that its process does not survive.

use serde_json::json;

use crate::harness::{PUBSUB, SOON, SUCCESS, Setup, becomes, bytes, event_id, placed, placed_with};
use crate::inventory::Rule;

/// Recovery is far away here (60 s instead of 10, after the first failure instead of the twelfth),
/// so that a recovering message stays one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_redelivery_of_a_quarantined_a_closed_or_a_recovering_message_runs_nothing() {
    let world = Setup::redis()
        .env("BACKSTOP_ATTEMPTS_LIVE_MAX", "1")
        .env("BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", "60")
        .start()
        .await;
    let orders = ["quarantined", "closed", "recovering"];
    world.inventory.set("quarantined", Rule::Reject("out_of_stock"));
    world.inventory.set("closed", Rule::Reject("out_of_stock"));
    world.inventory.set("recovering", Rule::FailAlways);
    for order in orders {
        assert_eq!(world.deliver(&bytes(&placed(order))).await.unwrap(), SUCCESS, "{order}");
    }
    let cases = world.cases();
    let to_close = cases.iter().find(|case| case["event_id"] == event_id("closed").as_str());
    let id = to_close.unwrap()["id"].as_str().unwrap();
    let closed = world.cli(&["exceptions", "close", id, "--note", "sold elsewhere"]);
    assert!(closed.is_success, "{closed:?}");
    let rows = || orders.map(|order| world.database.in_trouble(&event_id(order)).unwrap());
    let before = rows();
    assert_eq!(before.each_ref().map(|row| row.state.as_str()), orders);

    for order in orders {
        // It would work now: only what stands in the store keeps the handler from running.
        world.inventory.set(order, Rule::Reserve);
        for _ in 0..3 {
            assert_eq!(world.deliver(&bytes(&placed(order))).await.unwrap(), SUCCESS, "{order}");
        }
        let dead = world.deliver_dead(&bytes(&placed(order))).await;
        assert_eq!(dead.unwrap(), SUCCESS, "{order}");
        world.publish(&placed(order)).await;
    }
    becomes(SOON, "linked", 15, async || world.outcomes("linked").await).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(rows(), before, "state, due time and cap are unchanged");
    for order in orders {
        assert_eq!(world.inventory.calls_for(order).len(), 1, "{order}: no handler ran");
    }
    assert_eq!(world.database.order_count(), 0);
    assert_eq!(world.cases().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_while_redriving_reopens_the_case_and_a_second_redrive_resolves_it() {
    let mut world = Setup::redis().start().await;
    world.inventory.set("1001", Rule::Reject("out_of_stock"));
    world.publish(&placed("1001")).await;
    becomes(SOON, "cases", 1, async || world.cases().len()).await;
    let case = world.only_case();
    let id = case["id"].as_str().unwrap();

    world.inventory.set("1001", Rule::Hang);
    let asked = world.cli(&["exceptions", "redrive", id, "--wait-secs", "0"]);
    assert!(asked.is_success, "{asked:?}");
    becomes(SOON, "calls", 2, async || world.inventory.calls_for("1001").len()).await;
    assert_eq!(world.only_case()["status"], "redriving");
    world.kill_app();
    world.start_app().await;

    becomes(SOON, "status", "open", async || world.only_case()["status"].clone()).await;
    let reopened = world.only_case();
    assert_eq!(reopened["id"], case["id"], "the same case");
    assert_eq!(reopened["category"], "rejected");
    assert_eq!(reopened["reason"], "run_lost");
    assert_eq!(world.database.state(&event_id("1001")), "quarantined");
    assert_eq!(world.inventory.calls_for("1001").len(), 2, "it does not run by itself");

    world.inventory.set("1001", Rule::Reserve);
    let redriven = world.cli(&["exceptions", "redrive", id]);
    assert!(redriven.is_success && redriven.stdout.contains("resolved"), "{redriven:?}");
    assert_eq!(world.only_case()["status"], "resolved");
    assert_eq!(world.database.orders(), ["1001"]);
    becomes(SOON, "accepted", ["1001"], async || world.accepted_orders()).await;
    let keys = world.inventory.calls_for("1001").into_iter().map(|call| call.idempotency_key);
    let keys: std::collections::HashSet<_> = keys.collect();
    assert_eq!(keys.len(), 1, "one action, however often it runs: {keys:?}");
}

/// The sidecar would take UNIMPLEMENTED for an acknowledgement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_for_a_topic_nobody_subscribes_to_is_filed_and_never_unimplemented() {
    let world = Setup::redis().start().await;
    let event = bytes(&placed_with("1001", &json!({ "type": "shop.refund.v1" })));
    assert_eq!(world.deliver_to(PUBSUB, "refunds", &event).await.unwrap(), SUCCESS);
    let case = world.only_case();
    assert_eq!([&case["category"], &case["reason"]], ["unrouted", "unknown_topic"]);
    assert_eq!(case["topic"], "refunds");
}
