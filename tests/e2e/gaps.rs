//! The process ends by itself at each numbered gap of ARCHITECTURE.md, "Life of a delivery", and is
//! started again: one effect, at least one publish, at most one case.
//!
//! These need the feature `failpoints`: `make test` builds with it.

use crate::harness::{
    ACCEPTED, DEAD, LATER, POISON, SOON, SUCCESS, Setup, World, becomes, bytes, event_id, placed,
};
use crate::inventory::Rule;

/// Starts a world whose service ends at `gap`, publishes one order under `rule`, waits for the end
/// and starts the service again without the failpoint.
async fn ends_at(gap: &str, rule: Rule) -> World {
    ends_at_with(Setup::redis().quick_recovery(), gap, rule).await
}

async fn ends_at_with(setup: Setup, gap: &str, rule: Rule) -> World {
    let mut world = setup.start_with_failpoint(gap).await;
    world.inventory.set("1001", rule);
    world.publish(&placed("1001")).await;
    world.app_ends().await;
    world.start_app().await;
    world
}

/// What must hold whatever the gap.
async fn is_processed_once(world: &World) {
    becomes(LATER, "orders", ["1001"], async || world.database.orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    becomes(LATER, "in trouble", 0, async || world.database.in_trouble_count()).await;
    becomes(SOON, "published", true, async || world.published(ACCEPTED) >= 1).await;
    let ids: std::collections::BTreeSet<String> =
        world.accepted().iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "however often it was published");
    assert_eq!(world.database.outbox_count(), 1);
    assert!(world.cases().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_claim_before_the_call() {
    let world = ends_at("claimed", Rule::Reserve).await;
    is_processed_once(&world).await;
    assert_eq!(world.inventory.calls_for("1001").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_handler_before_the_commit() {
    let world = ends_at("handled", Rule::Reserve).await;
    is_processed_once(&world).await;
    assert_eq!(world.inventory.calls_for("1001").len(), 2, "the same action, asked for again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_commit_before_the_answer() {
    let world = ends_at("committed", Rule::Reserve).await;
    is_processed_once(&world).await;
    assert_eq!(world.inventory.calls_for("1001").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failure_was_written_before_the_answer() {
    let world = ends_at("failure_written", Rule::FailTimes(1)).await;
    is_processed_once(&world).await;
    assert_eq!(world.inventory.calls_for("1001").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_dead_letter_was_taken_in_before_the_answer() {
    let setup = Setup::redis().quick_recovery();
    let mut world = setup.start_with_failpoint("dead_letter_taken").await;
    world.inventory.set("1001", Rule::FailTimes(6));
    if world.is_bulk {
        // Failures in bulk make no dead letter: one that was never attempted, then.
        world.redis.add(DEAD, &bytes(&placed("1001")));
    } else {
        world.publish(&placed("1001")).await;
    }
    world.app_ends().await;
    world.start_app().await;
    is_processed_once(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_recovery_run_committed() {
    let world = ends_at("recovery_committed", Rule::FailTimes(6)).await;
    is_processed_once(&world).await;
    assert_eq!(world.inventory.calls_for("1001").len(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_publish_before_the_cursor_moves() {
    let world = ends_at("published", Rule::Reserve).await;
    is_processed_once(&world).await;
    becomes(SOON, "published", 2, async || world.published(ACCEPTED)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_case_was_opened_before_the_answer() {
    let world = ends_at("quarantined", Rule::Reject("sold_out")).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    let case = world.only_case();
    assert_eq!([&case["category"], &case["reason"]], ["rejected", "sold_out"]);
    assert_eq!(case["attempts"], 1);
    assert!(world.app_lines(POISON) <= 1);
    assert_eq!(world.inventory.calls_for("1001").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_redriven_run_before_its_call() {
    let mut world = Setup::redis().start_with_failpoint("redrive_claimed").await;
    world.inventory.set("1001", Rule::Reject("sold_out"));
    world.publish(&placed("1001")).await;
    becomes(SOON, "cases", 1, async || world.cases().len()).await;
    let id = world.only_case()["id"].as_str().unwrap().to_owned();
    world.inventory.set("1001", Rule::Reserve);
    assert!(world.cli(&["exceptions", "redrive", &id, "--wait-secs", "0"]).is_success);
    world.app_ends().await;
    world.start_app().await;
    becomes(SOON, "status", "open", async || world.only_case()["status"].clone()).await;
    assert_eq!(world.inventory.calls_for("1001").len(), 1, "it does not run by itself");
    assert!(world.cli(&["exceptions", "redrive", &id]).is_success);
    assert_eq!(world.only_case()["status"], "resolved");
    assert_eq!(world.database.orders(), ["1001"]);
}

/// One recovery and no more, after one live failure: the second claim is the last that the cap
/// allows.
fn one_recovery() -> Setup {
    Setup::redis()
        .quick_recovery()
        .env("BACKSTOP_ATTEMPTS_LIVE_MAX", "1")
        .env("BACKSTOP_RECOVERIES_MAX", "1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_last_claim_the_cap_allows_before_its_call() {
    let world = ends_at_with(one_recovery(), "claimed@2", Rule::FailTimes(1)).await;
    becomes(SOON, "cases", 1, async || world.cases().len()).await;
    let case = world.only_case();
    assert_eq!([&case["category"], &case["reason"]], ["crashed_process", "run_lost"]);
    is_not_run_by_a_redelivery(&world, "quarantined").await;
    assert_eq!(world.app_lines(POISON), 1);
    assert_eq!(world.inventory.calls_for("1001").len(), 1, "before the crash, and never since");
    // It was no poison after all.
    let id = case["id"].as_str().unwrap();
    assert!(world.cli(&["exceptions", "redrive", id]).is_success);
    assert_eq!(world.only_case()["status"], "resolved");
    becomes(SOON, "accepted", ["1001"], async || world.accepted_orders()).await;
    assert_eq!(world.database.orders(), ["1001"]);
}

/// A run that took longer than its lease, which the cap had no more of: its case is open and then
/// closed while the run still goes on. It comes to its commit, or its process ends before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_commit_of_an_old_run_whose_case_a_person_has_closed() {
    for is_killed in [false, true] {
        let goes_on = tempfile::NamedTempFile::new().unwrap();
        let mut world = one_recovery()
            .env("BACKSTOP_HANDLER_TIMEOUT_SECS", "1")
            .env("BACKSTOP_LEASE_SECS", "2")
            .env("FAILPOINT_WHILE", goes_on.path().to_str().unwrap())
            .start_with_failpoint("handled")
            .await;
        world.inventory.set("1001", Rule::FailTimes(1));
        world.publish(&placed("1001")).await;
        becomes(SOON, "the run waits", 1, async || world.app_lines("has this run wait")).await;
        becomes(SOON, "cases", 1, async || world.cases().len()).await;
        let case = world.only_case();
        assert_eq!([&case["category"], &case["reason"]], ["crashed_process", "run_lost"]);
        let id = case["id"].as_str().unwrap();
        let closed = world.cli(&["exceptions", "close", id, "--note", "sold elsewhere"]);
        assert!(closed.is_success, "{closed:?}");

        if is_killed {
            world.kill_app();
            world.start_app().await;
        } else {
            drop(goes_on);
            becomes(SOON, "it goes on", 1, async || world.app_lines("lets this run go on")).await;
            becomes(SOON, "linked", true, async || world.outcomes("linked").await >= 1).await;
        }
        is_not_run_by_a_redelivery(&world, "closed").await;
        assert_eq!(world.only_case()["status"], "closed");
        assert_eq!(world.inventory.calls_for("1001").len(), 2, "the old run's call is the last");
        assert_eq!(world.published(ACCEPTED), 0);
    }
}

/// Delivered again, and as a dead letter: the row stands, nothing is written beside it.
async fn is_not_run_by_a_redelivery(world: &World, state: &str) {
    let event = bytes(&placed("1001"));
    // Not before it has found its sidecar.
    becomes(SOON, "answer", Some(SUCCESS), async || world.deliver(&event).await.ok()).await;
    assert_eq!(world.deliver_dead(&event).await.unwrap(), SUCCESS);
    assert_eq!(world.database.state(&event_id("1001")), state);
    assert_eq!((world.database.order_count(), world.database.outbox_count()), (0, 0));
}
