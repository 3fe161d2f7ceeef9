//! Many orders in one call of the sidecar: one of them never holds up the others, and nothing is
//! acknowledged that is not on disk.
//!
//! `BACKSTOP_ORDERS_BULK=on` runs every other test in bulk as well; `make soak` does.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    DEAD, LATER, POISON, SOON, SUCCESS, Setup, TOPIC, becomes, bytes, event_id, placed,
    placed_with, secs,
};
use crate::inventory::Rule;

/// Recovery is a minute away, so that what waits for it is seen.
fn recovery_is_far() -> Setup {
    Setup::redis().in_bulk().env("BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", "60")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_order_that_fails_holds_up_none_of_the_thousand_around_it() {
    let world = recovery_is_far().start().await;
    world.inventory.set("bad", Rule::FailAlways);
    world.publish(&placed("bad")).await;
    let good: Vec<String> = (0..1_000).map(|n| format!("{n:04}")).collect();
    let events: Vec<Value> = good.iter().map(|order| placed(order)).collect();
    for lot in events.chunks(100) {
        world.publish_at_once(lot).await;
    }
    becomes(SOON, "orders", good.as_slice(), async || world.database.orders()).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    let row = world.database.in_trouble(&event_id("bad")).unwrap();
    assert_eq!((row.state.as_str(), row.attempts, row.recoveries), ("recovering", 1, 0));
    assert_eq!(world.inventory.calls_for("bad").len(), 1);
    assert_eq!(world.published(DEAD), 0, "the sidecar has given nothing up");
    let batches = world.batches().await;
    assert!((1..=200).contains(&batches), "{batches} batches for 1001 orders");
    eprintln!("1001 orders in {batches} batches");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_order_in_a_batch_is_recovered_by_us_and_exhausted_within_its_cap() {
    let world =
        Setup::redis().in_bulk().quick_recovery().env("BACKSTOP_RECOVERIES_MAX", "3").start().await;
    world.inventory.set("slow", Rule::FailTimes(2));
    world.inventory.set("bad", Rule::FailAlways);
    world.inventory.set("never", Rule::Reject("out_of_stock"));
    let orders = ["good", "slow", "bad", "never"];
    let invalid = placed_with("invalid", &json!({ "data": { "orderId": "invalid" } }));
    let events = [orders.map(placed).as_slice(), &[invalid]].concat();
    world.publish_at_once(&events).await;
    becomes(SOON, "orders", ["good", "slow"], async || world.database.orders()).await;
    becomes(LATER, "cases", 3, async || world.cases().len()).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    let mut filed: Vec<[String; 2]> = world
        .cases()
        .iter()
        .map(|case| ["event_id", "category"].map(|name| case[name].as_str().unwrap().to_owned()))
        .collect();
    filed.sort();
    let wanted = [("bad", "exhausted"), ("invalid", "invalid"), ("never", "rejected")];
    assert_eq!(filed, wanted.map(|(order, category)| [event_id(order), category.to_owned()]));
    becomes(SOON, "poison lines", 3, async || world.app_lines(POISON)).await;
    let calls = orders.map(|order| world.inventory.calls_for(order).len());
    assert_eq!(calls, [1, 3, 4, 1]);
    assert_eq!(world.published(DEAD), 0);
}

/// A run that outlives its delivery (the sidecar waits 3 s here instead of 30) is handed over, and a
/// copy of it that waited as well. Nothing is claimed without an outside call, so the run must not
/// commit any more; with one it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_still_on_at_the_deadline_is_acknowledged_from_disk_and_has_one_effect() {
    let world = recovery_is_far().start().await;
    world.inventory.set("1001", Rule::ReserveAfter(secs(4.0)));
    let (slow, good) = (bytes(&placed("1001")), bytes(&placed("1002")));
    let answers = world.deliver_batch_within(secs(3.0), &[&slow, &good, &slow]).await.unwrap();
    assert_eq!(answers, [SUCCESS; 3]);
    assert_eq!(world.database.state(&event_id("1001")), "running", "its bytes are on disk");
    assert_eq!(world.database.orders(), ["1002"]);
    becomes(SOON, "orders", ["1001", "1002"], async || world.database.orders()).await;
    assert_eq!(world.inventory.calls_for("1001").len(), 1);
    assert_eq!(world.database.in_trouble_count(), 0);
}

/// Another program holds the database for longer than a delivery may take (4 s here instead of 25).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_away_a_batch_is_acknowledged_as_a_whole_or_not_at_all() {
    let world = Setup::redis()
        .in_bulk()
        .quick_recovery()
        .env("BACKSTOP_DELIVERY_DEADLINE_SECS", "4")
        .start()
        .await;
    let batch: Vec<Vec<u8>> = (0..10).map(|n| bytes(&placed(&n.to_string()))).collect();
    let batch: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
    let held = world.database.hold();
    let refused = world.deliver_batch(&batch).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert_eq!(world.database.order_count(), 0);
    world.redis.add(TOPIC, batch[0]);
    drop(held);
    becomes(LATER, "ready", true, async || world.is_ready().await).await;
    assert_eq!(world.deliver_batch(&batch).await.unwrap(), [SUCCESS; 10]);
    becomes(LATER, "orders", 10, async || world.database.order_count()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    becomes(SOON, "in trouble", 0, async || world.database.in_trouble_count()).await;
    assert_eq!(world.database.attempt_count(), 0);
    assert!(world.cases().is_empty());
}

/// The sidecar sends the whole batch again, or its dead letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_in_hand_when_the_service_dies_is_processed_once_each() {
    let mut world = Setup::redis().in_bulk().quick_recovery().start().await;
    world.inventory.set_fallback(Rule::Hang);
    let orders: Vec<String> = (0..50).map(|n| format!("{n:02}")).collect();
    let events: Vec<Value> = orders.iter().map(|order| placed(order)).collect();
    world.publish_at_once(&events).await;
    becomes(SOON, "in hand", orders.len(), async || world.inventory.calls().len()).await;
    world.kill_app();
    world.inventory.set_fallback(Rule::Reserve);
    // The time away is what is being tried.
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.start_app().await;
    becomes(LATER, "orders", orders.as_slice(), async || world.database.orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    world.all_are_accepted(&orders, SOON).await;
}
