//! The service killed (-9) at the worst moments.

use serde_json::Value;

use crate::harness::{ACCEPTED, LATER, POISON, SOON, Setup, becomes, placed, secs};
use crate::inventory::Rule;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_orders_in_hand_when_the_service_dies_for_five_seconds_are_processed_once_each() {
    let mut world = Setup::redis().quick_recovery().start().await;
    world.inventory.set_fallback(Rule::Hang);
    let all: Vec<String> = (0..25).map(|n| format!("10{n:02}")).collect();
    let events: Vec<Value> = all.iter().map(|order| placed(order)).collect();
    let (in_hand, meanwhile) = events.split_at(20);
    world.publish_at_once(in_hand).await;
    becomes(SOON, "in hand", 20, async || world.inventory.calls().len()).await;

    world.kill_app();
    world.inventory.set_fallback(Rule::Reserve);
    for event in meanwhile {
        world.publish(event).await;
    }
    // The time away is what is being tried.
    tokio::time::sleep(secs(5.0)).await;
    world.start_app().await;

    // Well before a lease (60 s) would run out: the lock says that the old process is gone.
    becomes(SOON, "orders", all.as_slice(), async || world.database.orders()).await;
    becomes(SOON, "accepted", all.as_slice(), async || world.accepted_orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.database.in_trouble_count(), 0);
    assert_eq!(world.database.outbox_count(), all.len());
    assert!(world.cases().is_empty());
    assert_eq!(world.app_lines(POISON), 0);
    for order in &all[..20] {
        let calls = world.inventory.calls_for(order);
        assert_eq!(calls.len(), 2, "{order}: once before the crash, once after");
        assert_eq!(calls[0].idempotency_key, calls[1].idempotency_key, "{order}");
        assert!(calls[0].idempotency_key.is_some());
    }
}

/// The effect is on disk and the message is out; neither the sidecar's delivery nor the service's
/// publication has an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_lost_to_a_crash_cost_no_second_effect_and_repeat_a_message_under_its_own_id() {
    let mut world = Setup::redis().over_lines().start().await;
    world.lose_answers();
    world.publish(&placed("1001")).await;
    becomes(SOON, "accepted", 1, async || world.published(ACCEPTED)).await;
    assert_eq!(world.database.orders(), ["1001"]);
    assert_eq!(world.unacknowledged(), 1, "no answer has come through");

    world.kill_app();
    world.mend_lines();
    world.start_app().await;
    becomes(LATER, "accepted", 2, async || world.published(ACCEPTED)).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    let accepted = world.accepted();
    assert_eq!(accepted[0]["id"], accepted[1]["id"]);
    assert_eq!(world.database.orders(), ["1001"]);
    assert_eq!(world.database.outbox_count(), 1);
    assert_eq!(world.outcomes("duplicate").await, 1, "the redelivery was one");
    assert_eq!(world.inventory.calls_for("1001").len(), 1);
}
