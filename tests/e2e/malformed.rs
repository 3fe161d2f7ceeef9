//! What can never fit, and what can never arrive.

use std::collections::BTreeMap;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{
    DEAD, LATER, POISON, SOON, Setup, TOPIC, UNREADABLE, becomes, bytes, event_id, placed,
    placed_with,
};
use crate::inventory::Rule;

/// Straight into the stream: the sidecar would refuse or repair some of these.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_fit_is_one_case_with_its_own_reason_on_the_first_delivery() {
    let world = Setup::redis().start().await;
    let but = |order, changes| bytes(&placed_with(order, &changes));
    let not_utf8 = [br#"{"specversion":"1.0","id":""#.as_slice(), &[0xff, 0xfe], br#""}"#].concat();
    let can_never_fit = [
        (["invalid", "data_missing"], but("1001", json!({ "data": null }))),
        (["invalid", "id_too_long"], but("1002", json!({ "id": "i".repeat(10_240) }))),
        (["invalid", "invalid_attribute"], but("1003", json!({ "id": 1003 }))),
        (["invalid", "invalid_utf8"], not_utf8),
        (["invalid", "malformed_json"], Vec::new()),
        (["invalid", "malformed_json"], br#"{"specversion":"1.0","id":"#.to_vec()),
        (["invalid", "missing_source"], but("1007", json!({ "source": null }))),
        (["invalid", "not_a_cloudevent"], b"null".to_vec()),
        (["invalid", "schema_violation"], but("1009", json!({ "data": {} }))),
        (
            ["invalid", "schema_violation"],
            but("1010", json!({ "data": { "orderId": "1010", "total": 42 } })),
        ),
        (["unrouted", "unknown_type"], but("1011", json!({ "type": "shop.order.moved.v1" }))),
    ];
    for (_, data) in &can_never_fit {
        world.redis.add(TOPIC, data);
    }

    becomes(SOON, "cases", can_never_fit.len(), async || world.cases().len()).await;
    let cases = world.cases();
    let mut filed: Vec<[&str; 2]> = cases
        .iter()
        .map(|case| ["category", "reason"].map(|name| case[name].as_str().unwrap()))
        .collect();
    filed.sort_unstable();
    assert_eq!(filed, can_never_fit.each_ref().map(|(why, _)| *why));
    for case in &cases {
        assert_eq!(case["status"], "open", "{case:#?}");
        assert_eq!(case["attempts"], 0, "{case:#?}");
        assert_eq!(case["topic"], TOPIC, "{case:#?}");
    }
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    let delivered = world.metric("messaging_client_consumed_messages_total", &[]).await;
    assert_eq!(delivered, can_never_fit.len() as u64, "each was delivered once");
    assert_eq!(world.published(DEAD), 0, "and acknowledged, not given up");
    assert_eq!(world.app_lines(POISON), can_never_fit.len());
    assert!(world.inventory.calls().is_empty(), "no handler ran");
}

/// Without an id there is nothing to tell two events apart by but their bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_without_an_id_are_never_taken_for_one_another() {
    let world = Setup::redis().start().await;
    let without_id = |order| bytes(&placed_with(order, &json!({ "id": "" })));
    for order in ["1001", "1002", "1001"] {
        world.redis.add(TOPIC, &without_id(order));
    }
    becomes(SOON, "quarantined", 2, async || world.outcomes("quarantined").await).await;
    becomes(SOON, "linked", 1, async || world.outcomes("linked").await).await;
    let cases = world.cases();
    let sightings: Vec<&Value> = cases.iter().map(|case| &case["sightings"]).collect();
    assert!(cases.iter().all(|case| case["reason"] == "missing_id"), "{cases:#?}");
    assert!(sightings == [&json!(1), &json!(2)] || sightings == [&json!(2), &json!(1)]);
    assert_eq!(world.database.order_count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_order_of_three_megabytes_is_processed() {
    let world = Setup::redis().start().await;
    let customer = "c".repeat(3 << 20);
    let data = json!({ "orderId": "1001", "total": "42.00", "customerId": customer });
    world.publish(&placed_with("1001", &json!({ "data": data }))).await;
    becomes(SOON, "orders", ["1001"], async || world.database.orders()).await;
    becomes(SOON, "accepted", ["1001"], async || world.accepted_orders()).await;
}

/// Both are refused before any code of ours: one by the sidecar's own client, one by the decode
/// limit (4 MiB here instead of 64, so that the event need not be larger). In a batch such metadata
/// arrives, because it is in the message and not beside it, and failures make no dead letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_arrive_ends_unreadable_and_the_next_hundred_dead_letters_recover() {
    let world = Setup::redis()
        .env("BACKSTOP_DECODE_BYTES_MAX", "4194304")
        .env("BACKSTOP_RECOVERIES_MAX", "100")
        .quick_recovery()
        .start()
        .await;
    world.redis.add_with_metadata(TOPIC, &bytes(&placed("1001")), r#"{"note":"für später"}"#);
    let customer = "c".repeat(5 << 20);
    let data = json!({ "orderId": "1002", "total": "42.00", "customerId": customer });
    world.redis.add(TOPIC, &bytes(&placed_with("1002", &json!({ "data": data }))));
    let (unreadable, read) = if world.is_bulk { (1, vec!["1001"]) } else { (2, Vec::new()) };
    becomes(LATER, "unreadable", unreadable, async || world.published(UNREADABLE)).await;
    becomes(SOON, "orders", read.as_slice(), async || world.database.orders()).await;
    let dead_letters = world.published(DEAD);

    world.inventory.set_fallback(Rule::FailAlways);
    let orders: Vec<String> = (0..100).map(|n| format!("2{n:03}")).collect();
    let events: Vec<Value> = orders.iter().map(|order| placed(order)).collect();
    join_all(events.iter().map(|event| world.publish(event))).await;
    if world.is_bulk {
        becomes(LATER, "in trouble", 100, async || world.database.in_trouble_count()).await;
        assert_eq!(world.published(DEAD), dead_letters);
    } else {
        becomes(LATER, "dead letters", 102, async || world.published(DEAD)).await;
    }
    world.inventory.set_fallback(Rule::Reserve);
    let orders: Vec<String> = read.into_iter().map(str::to_owned).chain(orders).collect();
    becomes(LATER, "orders", orders.as_slice(), async || world.database.orders()).await;
    becomes(SOON, "accepted", orders.as_slice(), async || world.accepted_orders()).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.published(UNREADABLE), unreadable);
    assert!(world.cases().is_empty());
}

/// An error text of a dependency must not get anywhere, whatever stands in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_in_a_dependencys_answer_reach_no_row_no_log_and_no_case() {
    const SECRET: &str = "postgres://shop:hunter2@db ada@example.invalid Bearer abc.def";
    let world = Setup::redis().env("BACKSTOP_LOG", "debug").start().await;
    world.inventory.set("1001", Rule::Reject(SECRET));
    world.publish(&placed("1001")).await;
    becomes(SOON, "cases", 1, async || world.cases().len()).await;
    let case = world.only_case();
    assert_eq!(case["reason"], "inventory_rejected");
    let show = world.cli(&["exceptions", "show", case["id"].as_str().unwrap(), "--json"]);
    let on_disk: Vec<u8> = ["", "-wal"]
        .iter()
        .flat_map(|end| {
            std::fs::read(format!("{}{end}", world.database.path.display())).unwrap_or_default()
        })
        .collect();
    let places = BTreeMap::from([
        ("the log", world.app_log()),
        ("the case", show.stdout),
        ("the database", String::from_utf8_lossy(&on_disk).into_owned()),
    ]);
    assert!(
        places["the database"].contains(&event_id("1001")),
        "it was looked for in the right file"
    );
    for (place, text) in places {
        for secret in SECRET.split(' ') {
            assert!(!text.contains(secret), "{secret} stands in {place}");
        }
    }
}
