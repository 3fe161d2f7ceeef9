//! The same event again and again: once is enough.

use futures::future::join_all;
use serde_json::json;

use crate::harness::{
    ACCEPTED, SOON, SUCCESS, Setup, becomes, bytes, event_id, placed, placed_with, secs,
};
use crate::inventory::Rule;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_a_hundred_times_is_one_order_one_message_and_99_duplicates() {
    let world = Setup::redis().start().await;
    let event = placed("1001");
    // Slow enough that the copies published at once meet the first one still running.
    world.inventory.set("1001", Rule::ReserveAfter(secs(0.5)));
    join_all((0..50).map(|_| world.publish(&event))).await;
    for _ in 0..50 {
        world.publish(&event).await;
    }

    becomes(SOON, "duplicates", 99, async || world.outcomes("duplicate").await).await;
    becomes(SOON, "accepted", 1, async || world.published(ACCEPTED)).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.outcomes("processed").await, 1);
    assert_eq!(world.database.orders(), ["1001"]);
    assert_eq!(world.database.outbox_count(), 1);
    assert_eq!(world.inventory.calls_for("1001").len(), 1, "the handler ran once");
    assert!(world.cases().is_empty());
}

/// Without an outside call nothing is claimed beforehand: only memory and the inbox stand between
/// the copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_arrive_at_once_or_one_by_one_are_answered_success_without_a_second_effect() {
    let world = Setup::redis().without_inventory().start().await;
    let event = bytes(&placed("1001"));
    for answer in join_all((0..100).map(|_| world.deliver(&event))).await {
        assert_eq!(answer.unwrap(), SUCCESS);
    }
    for _ in 0..100 {
        assert_eq!(world.deliver(&event).await.unwrap(), SUCCESS);
    }
    // Re-encoded on its way: other bytes, the same event.
    let pretty = serde_json::to_vec_pretty(&placed("1001")).unwrap();
    assert_eq!(world.deliver(&pretty).await.unwrap(), SUCCESS);

    assert_eq!(world.outcomes("processed").await, 1);
    assert_eq!(world.outcomes("duplicate").await, 200);
    assert_eq!(world.database.orders(), ["1001"]);
    becomes(SOON, "accepted", 1, async || world.published(ACCEPTED)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_and_sources_are_compared_byte_for_byte_and_a_reused_id_is_no_duplicate() {
    let world = Setup::redis().start().await;
    for (order, id, source) in [
        ("1", "aB1", "/shop/eu"),
        ("2", "Ab1", "/shop/eu"),
        ("3", "aB1", "/shop/us"),
        ("4", " aB1", "/shop/eu"),
    ] {
        let event = placed_with(order, &json!({ "id": id, "source": source }));
        world.publish(&event).await;
    }
    becomes(SOON, "orders", 4, async || world.database.order_count()).await;

    let other = placed_with("5", &json!({ "id": "aB1", "source": "/shop/eu" }));
    world.publish(&other).await;
    becomes(SOON, "cases", 1, async || world.cases().len()).await;
    let case = world.only_case();
    assert_eq!([&case["category"], &case["reason"]], ["reused_id", "reused_id"]);
    assert_eq!(world.database.orders(), ["1", "2", "3", "4"]);
    assert_eq!(world.outcomes("duplicate").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_given_up_half_way_is_never_acknowledged_before_its_effect_is_on_disk() {
    let world = Setup::redis().start().await;
    let event = bytes(&placed("1001"));
    world.inventory.set("1001", Rule::ReserveAfter(secs(4.0)));
    world.deliver_and_cancel(secs(1.0), &event).await;

    // One that cannot wait for the first run, and one that can. In bulk the first is acknowledged
    // because the claim is on disk, and the event's bytes with it.
    assert_eq!(world.deliver_within(secs(0.5), &event).await.unwrap(), world.not_now());
    assert_eq!(world.database.state(&event_id("1001")), "running");
    assert_eq!(world.database.order_count(), 0, "the run was still on");
    assert_eq!(world.deliver_within(secs(20.0), &event).await.unwrap(), SUCCESS);
    assert_eq!(world.database.order_count(), 1, "on disk before it was acknowledged");
    assert_eq!(world.database.orders(), ["1001"]);
    assert_eq!(world.inventory.calls_for("1001").len(), 1, "the handler ran once");
    assert_eq!(world.database.state(&event_id("1001")), "", "nothing is left in trouble");
}
