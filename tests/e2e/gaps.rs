//! The process ends by itself at each numbered gap of ARCHITECTURE.md, "Life of a delivery", and is
//! started again: one effect, at least one publish, at most one case.
//!
//! These need the feature `failpoints`: `make test` builds with it.

use crate::harness::{ACCEPTED, LATER, SOON, Setup, World, becomes, placed};
use crate::inventory::Rule;

/// Starts a world whose service ends at `gap`, publishes one order under `rule`, waits for the end
/// and starts the service again without the failpoint.
async fn ends_at(gap: &str, rule: Rule) -> World {
    let mut world = Setup::redis().quick_recovery().start_with_failpoint(gap).await;
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
    let world = ends_at("dead_letter_taken", Rule::FailTimes(6)).await;
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
    assert!(world.app_lines(crate::harness::POISON) <= 1);
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
