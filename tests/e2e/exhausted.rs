//! A dependency that never works for one order: the cap holds, and one case comes of it.

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{
    DEAD, LATER, POISON, SOON, SUCCESS, Setup, World, becomes, bytes, event_id, eventually, placed,
};
use crate::inventory::Rule;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_order_that_never_works_among_good_ones_ends_in_one_exhausted_case() {
    let world = Setup::redis().env("BACKSTOP_RECOVERIES_MAX", "3").quick_recovery().start().await;
    world.inventory.set("bad", Rule::FailAlways);
    world.publish(&placed("bad")).await;
    let good: Vec<String> = (0..20).map(|n| format!("good-{n:02}")).collect();
    let events: Vec<Value> = good.iter().map(|order| placed(order)).collect();
    join_all(events.iter().map(|event| world.publish(event))).await;
    becomes(SOON, "orders", good.as_slice(), async || world.database.orders()).await;
    becomes(LATER, "cases", 1, async || world.cases().len()).await;

    let case = world.only_case();
    assert_eq!([&case["category"], &case["reason"]], ["exhausted", "inventory_unavailable"]);
    // Six by the sidecar (maxRetries 5), in bulk one; then the recoveries.
    let live = if world.is_bulk { 1 } else { 6 };
    let kinds = [vec!["live"; live], vec!["recovery"; 3]].concat();
    assert_history(&case, &kinds);
    assert_eq!(world.inventory.calls_for("bad").len(), live + 3, "each attempt is recorded");

    // However often it is delivered now.
    for _ in 0..3 {
        assert_eq!(world.deliver_dead(&bytes(&placed("bad"))).await.unwrap(), SUCCESS);
    }
    assert_eq!(world.only_case(), case, "the case is as it was");
    assert_eq!(world.database.in_trouble_count(), 1);
    becomes(SOON, "poison lines", 1, async || world.app_lines(POISON)).await;
    assert_eq!(world.inventory.calls_for("bad").len(), live + 3);
    assert_eq!(world.database.orders(), good);
}

/// Each sidecar begins its retries anew, so only a count that is on disk can hold the cap: 8 live
/// attempts here instead of 12, and a broker that redelivers after 5 s instead of 60.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_killed_twice_on_the_way_stretches_no_cap() {
    let mut world = Setup::redis()
        .env("BACKSTOP_ATTEMPTS_LIVE_MAX", "8")
        .env("BACKSTOP_RECOVERIES_MAX", "2")
        .quick_recovery()
        .edit("orderpubsub.yaml", "value: 60s", "value: 5s")
        .edit("orderpubsub.yaml", "value: 15s", "value: 1s")
        .start()
        .await;
    world.inventory.set("bad", Rule::FailAlways);
    world.publish(&placed("bad")).await;
    // In bulk there is one live attempt, and no sidecar that could begin anew.
    for seen in if world.is_bulk { [1, 2] } else { [3, 5] } {
        attempted(&world, seen).await;
        world.kill_daprd();
        world.start_daprd().await;
    }
    becomes(LATER, "cases", 1, async || world.cases().len()).await;

    let case = world.only_case();
    assert_eq!(case["category"], "exhausted");
    let live = if world.is_bulk { 1 } else { 8 };
    let kinds = [vec!["live"; live], vec!["recovery"; 2]].concat();
    assert_history(&case, &kinds);
    let calls = world.inventory.calls_for("bad").len();
    assert_eq!(calls, live + 2, "no attempt beside the recorded ones");
    becomes(SOON, "poison lines", 1, async || world.app_lines(POISON)).await;
}

/// The sidecar has no answer to a dead letter whose quarantine is on disk: all it can do is
/// deliver it again. No recovery here, so that the dead letter itself opens the case; in bulk it
/// finds the event recovering, and what opens the case is that there is no recovery to spend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_between_commit_and_answer_leaves_one_row_and_one_poison_line() {
    let mut world = Setup::redis().env("BACKSTOP_RECOVERIES_MAX", "0").over_lines().start().await;
    let event = bytes(&placed("bad"));
    world.inventory.set("bad", Rule::FailAlways);
    assert_eq!(world.deliver(&event).await.unwrap(), world.not_now());
    world.lose_answers();
    world.redis.add(DEAD, &event);
    let state = async || world.database.state(&event_id("bad"));
    becomes(SOON, "state", "quarantined", state).await;
    world.kill_app();
    assert_eq!(world.unacknowledged(), 1, "no answer has come through");

    world.mend_lines();
    world.start_app().await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    for _ in 0..3 {
        assert_eq!(world.deliver_dead(&event).await.unwrap(), SUCCESS);
    }
    let case = world.only_case();
    assert_eq!(case["category"], "exhausted");
    assert_history(&case, &["live"]);
    assert_eq!(world.database.in_trouble_count(), 1);
    assert!(world.app_lines(POISON) <= 1, "at most one poison line, over both processes");
    assert_eq!(world.inventory.calls_for("bad").len(), 1);
}

async fn attempted(world: &World, times: usize) {
    eventually(SOON, &format!("{times} attempts"), async || {
        let calls = world.inventory.calls_for("bad").len();
        if calls >= times { Ok(()) } else { Err(calls) }
    })
    .await;
}

/// The case tells each attempt: its number, its time, who made it and how it ended.
fn assert_history(case: &Value, kinds: &[&str]) {
    let history = case["attempt_history"].as_array().unwrap();
    let told: Vec<&str> = history.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(told, kinds, "{history:#?}");
    assert_eq!(case["attempts"], kinds.len());
    for (number, attempt) in (1..).zip(history) {
        assert_eq!(attempt["n"], number);
        assert_eq!(attempt["code"], "inventory_unavailable");
    }
    let times: Vec<&str> = history.iter().map(|one| one["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
}
