//! A JSON batch is many events: each is judged alone.

use serde_json::{Value, json};

use crate::harness::{ACCEPTED, DEAD, SOON, Setup, becomes, event_id, placed, placed_with};
use crate::inventory::Rule;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_poison_entry_in_a_batch_of_ten_is_one_case_and_the_nine_are_processed() {
    let world = Setup::redis().start().await;
    let mut batch: Vec<Value> = (0..10).map(|n| placed(&format!("100{n}"))).collect();
    batch[4] = placed_with("1004", &json!({ "data": { "orderId": "1004" } }));
    let nine: Vec<String> = (0..10).filter(|n| *n != 4).map(|n| format!("100{n}")).collect();
    world.publish_raw(&serde_json::to_vec(&batch).unwrap()).await;

    becomes(SOON, "orders", nine.as_slice(), async || world.database.orders()).await;
    becomes(SOON, "accepted", nine.as_slice(), async || world.accepted_orders()).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    let case = world.only_case();
    assert_eq!([&case["category"], &case["reason"]], ["invalid", "schema_violation"]);
    assert_eq!(case["event_id"], event_id("1004").as_str());
    assert_eq!(world.published(DEAD), 0);
    assert!(world.inventory.calls_for("1004").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_may_repeat_an_id_fail_in_part_or_hold_one_event_or_none() {
    let world = Setup::redis().quick_recovery().start().await;
    let publish = async |batch: &[Value]| {
        world.publish_raw(&serde_json::to_vec(batch).unwrap()).await;
    };
    let (a, b) = (placed("a"), placed("b"));
    publish(&[a.clone(), b.clone(), a.clone(), b]).await;
    becomes(SOON, "orders", 2, async || world.database.order_count()).await;
    becomes(SOON, "duplicates", 2, async || world.outcomes("duplicate").await).await;

    publish(&[]).await;
    publish(&[placed("c")]).await;
    becomes(SOON, "orders", 3, async || world.database.order_count()).await;
    assert_eq!(world.outcomes("processed").await, 3);

    // One entry fails once: the batch comes again, and the others are duplicates then. In bulk that
    // entry alone is recovered.
    world.inventory.set("e", Rule::FailTimes(1));
    publish(&[placed("d"), placed("e"), placed("f")]).await;
    let all = ["a", "b", "c", "d", "e", "f"];
    becomes(SOON, "orders", all, async || world.database.orders()).await;
    becomes(SOON, "accepted", all, async || world.accepted_orders()).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    for (order, calls) in [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 2), ("f", 1)] {
        assert_eq!(world.inventory.calls_for(order).len(), calls, "{order}");
    }
    assert!(world.cases().is_empty());
    assert_eq!(world.published(DEAD), 0);
    assert_eq!(world.published(ACCEPTED), 6);
}
