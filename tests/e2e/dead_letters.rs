//! What arrives on the dead-letter topic, and what the table in the design says to it.

use serde_json::{Value, json};

use crate::harness::{
    ACCEPTED, DEAD, POISON, SOON, SUCCESS, Setup, TOPIC, UNREADABLE, becomes, bytes, event_id,
    placed, placed_with,
};
use crate::inventory::Rule;

/// Straight into the stream, as a sidecar would put them there: through the broker, so that what
/// the sidecar itself does with a strange dead letter is tried as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_is_anothers_done_expired_or_no_cloudevent_is_never_sent_round_again() {
    let world = Setup::redis().start().await;
    world.publish(&placed("done")).await;
    becomes(SOON, "orders", 1, async || world.database.order_count()).await;

    let anothers = placed_with("1001", &json!({ "topic": "payments" }));
    let expired = placed_with("1002", &json!({ "expiration": "2020-01-01T00:00:00Z" }));
    let no_cloudevent = json!({ "orderId": "1003", "total": "42.00" });
    let done = placed_with("done", &json!({ "topic": TOPIC }));
    let dead_letters = [bytes(&anothers), bytes(&expired), bytes(&no_cloudevent), bytes(&done)];
    for data in &dead_letters {
        world.redis.add(DEAD, data);
    }
    world.redis.add(DEAD, b"not even JSON");

    becomes(SOON, "cases", 4, async || world.cases().len()).await;
    becomes(SOON, "duplicates", 1, async || world.outcomes("duplicate").await).await;
    becomes(SOON, "unacknowledged", 0, async || world.unacknowledged()).await;
    let mut filed: Vec<[String; 2]> = world
        .cases()
        .iter()
        .map(|case| ["category", "reason"].map(|name| case[name].as_str().unwrap().to_owned()))
        .collect();
    filed.sort();
    let wanted = [
        ["expired", "expired"],
        ["foreign", "foreign_topic"],
        ["invalid", "malformed_json"],
        ["invalid", "not_a_cloudevent"],
    ];
    assert_eq!(filed, wanted);
    assert_eq!(world.app_lines(POISON), 4);
    assert_eq!(world.inventory.calls().len(), 1, "only the one that was done has ever run");
    assert_eq!(world.published(ACCEPTED), 1);
    assert_eq!(world.published(TOPIC), 1, "nothing was put back");
    assert_eq!(world.published(DEAD), 5, "here neither");
    assert_eq!(world.published(UNREADABLE), 0);

    // What was filed stays filed, and is counted.
    for data in &dead_letters {
        assert_eq!(world.deliver_dead(data).await.unwrap(), SUCCESS);
    }
    assert_eq!(world.cases().len(), 4);
    assert_eq!(world.app_lines(POISON), 4);
}

/// Done is done, whatever comes after it and by whichever topic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_done_and_dead_lettered_all_the_same_has_one_effect() {
    let world = Setup::redis().start().await;
    let event = bytes(&placed("1001"));
    for _ in 0..3 {
        assert_eq!(world.deliver(&event).await.unwrap(), SUCCESS);
    }
    assert_eq!(world.deliver_dead(&event).await.unwrap(), SUCCESS);
    assert_eq!(world.outcomes("duplicate").await, 3);
    assert_eq!(world.database.orders(), ["1001"]);
    assert_eq!(world.database.in_trouble_count(), 0);
    assert_eq!(world.inventory.calls().len(), 1);
    assert!(world.cases().is_empty());
    assert_eq!(world.app_lines(POISON), 0);
}

/// The two that are recovered: one that was never attempted, at once, and one that failed before,
/// after a wait. An incoming count of recoveries counts upwards, and nonsense counts as none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_never_attempted_or_still_retrying_is_recovered_within_its_cap() {
    let world = Setup::redis().env("BACKSTOP_RECOVERIES_MAX", "3").quick_recovery().start().await;
    let travelled =
        |order: &str, count: Value| placed_with(order, &json!({ "recoveryattempt": count }));
    world.inventory.set("retrying", Rule::FailTimes(1));
    assert_eq!(world.deliver(&bytes(&placed("retrying"))).await.unwrap(), world.not_now());
    if !world.is_bulk {
        assert_eq!(world.database.state(&event_id("retrying")), "retrying");
    }

    for event in [
        placed("retrying"),
        placed("never-attempted"),
        travelled("nonsense", json!("many")),
        travelled("negative", json!(-7)),
    ] {
        world.redis.add(DEAD, &bytes(&event));
    }
    let recovered = ["negative", "never-attempted", "nonsense", "retrying"];
    becomes(SOON, "orders", recovered, async || world.database.orders()).await;
    becomes(SOON, "accepted", 4, async || world.published(ACCEPTED)).await;

    world.inventory.set("travelled", Rule::FailAlways);
    world.redis.add(DEAD, &bytes(&travelled("travelled", json!("2"))));
    becomes(SOON, "cases", 1, async || world.cases().len()).await;
    let case = world.only_case();
    assert_eq!(case["category"], "exhausted");
    assert_eq!(case["attempts"], 1, "two of its three recoveries were spent elsewhere");
    assert_eq!(world.inventory.calls_for("travelled").len(), 1);
}
