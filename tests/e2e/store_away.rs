//! The store unwritable for a while under load, in every way in which that happens: nothing is lost
//! or doubled, nobody is charged an attempt, and it heals by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{LATER, SOON, Setup, Trouble, World, becomes, placed, secs};
use crate::inventory::Rule;

/// How long the trouble lasts: for longer than SQLite waits for a lock (5 s) twice in a row.
const AWAY: Duration = Duration::from_secs(if cfg!(feature = "soak") { 20 } else { 12 });
/// What a slow disk adds to each sync.
const SYNC: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_counts_nothing_and_heals_by_itself() {
    survives(Trouble::Full).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_file_system_loses_nothing_counts_nothing_and_heals_by_itself() {
    survives(Trouble::ReadOnly).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_takes_seconds_loses_nothing_and_counts_nothing() {
    survives(Trouble::Slow(SYNC)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_locked_by_another_loses_nothing_counts_nothing_and_heals_by_itself() {
    survives(Trouble::Locked).await;
}

async fn survives(trouble: Trouble) {
    let world = Setup::redis()
        .quick_recovery()
        // What was claimed when the trouble began, and is not delivered again after its end, is
        // recovered after ten seconds instead of sixty.
        .env("BACKSTOP_RETRY_GUARD_SECS", "10")
        .on_a_disk_that_will_be(trouble)
        .start()
        .await;
    world.database.remember_attempts();
    // So that orders are under way when it begins: claimed and not committed.
    world.inventory.set_fallback(Rule::ReserveAfter(secs(0.5)));
    let is_over = AtomicBool::new(false);
    let (orders, ()) = tokio::join!(load(&world, &is_over), async {
        becomes(SOON, "under load", true, async || world.database.order_count() >= 10).await;
        endures(&world, trouble).await;
        let after = world.database.order_count();
        let goes_on = async || world.database.order_count() > after;
        becomes(SOON, "orders go on by themselves", true, goes_on).await;
        is_over.store(true, Ordering::SeqCst);
    });
    // The broker delivers again after a minute what an unhealthy service was not asked any more.
    becomes(2 * LATER, "orders", orders.as_slice(), async || world.database.orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    becomes(SOON, "ready", true, async || world.is_ready().await).await;
    world.all_are_accepted(&orders, SOON).await;
    assert_eq!(world.database.attempts_ever(), 0, "no attempt is counted for the store");
    assert_eq!(world.app_lines("Backstop is ready for its sidecar."), 1, "it was not restarted");
    let calls = world.inventory.calls().len();
    eprintln!("{trouble:?} for {AWAY:?}: {} orders, {calls} calls", orders.len());
}

/// Publishes orders one after another, four at a time, and says which.
async fn load(world: &World, is_over: &AtomicBool) -> Vec<String> {
    const AT_ONCE: usize = 4;
    const EVERY: Duration = Duration::from_millis(200);
    let mut orders: Vec<String> = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let new = orders.len()..orders.len() + AT_ONCE;
        orders.extend(new.clone().map(|n| format!("{n:04}")));
        let events: Vec<Value> = orders[new].iter().map(|order| placed(order)).collect();
        join_all(events.iter().map(|event| world.publish(event))).await;
        tokio::time::sleep(EVERY).await;
    }
    orders
}

/// The trouble from its beginning to its end.
async fn endures(world: &World, trouble: Trouble) {
    let broken = world.break_store();
    let began = Instant::now();
    let refuses = !matches!(trouble, Trouble::Slow(_));
    if refuses {
        becomes(SOON, "ready", false, async || world.is_ready().await).await;
    }
    let commits = world.database.commit_count();
    // The time away is what is being tried.
    while began.elapsed() < AWAY {
        assert!(!refuses || !world.is_ready().await, "it says all the while that it cannot write");
        tokio::time::sleep(secs(0.1)).await;
    }
    let commits = world.database.commit_count() - commits;
    if refuses {
        assert_eq!(commits, 0, "nothing can be written");
    } else {
        let most = AWAY.as_secs() / SYNC.as_secs() + 1;
        assert!(commits as u64 <= most, "{commits} commits, at most {most}");
    }
    drop(broken);
    becomes(SOON, "ready", true, async || world.is_ready().await).await;
}

/// One recovery and no more here, and the store is away when it comes to its commit: the recovery
/// has not failed, so it is not the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_that_could_not_be_written_is_not_spent() {
    let world = Setup::redis()
        .env("BACKSTOP_ATTEMPTS_LIVE_MAX", "1")
        .env("BACKSTOP_RECOVERIES_MAX", "1")
        .env("BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", "1")
        .env("BACKSTOP_HANDLER_TIMEOUT_SECS", "2")
        .env("BACKSTOP_LEASE_SECS", "5")
        .on_a_disk_that_will_be(Trouble::ReadOnly)
        .start()
        .await;
    world.inventory.set("1001", Rule::FailAlways);
    world.publish(&placed("1001")).await;
    becomes(SOON, "calls", 1, async || world.inventory.calls().len()).await;
    world.inventory.set("1001", Rule::ReserveAfter(secs(1.0)));
    becomes(SOON, "recoveries under way", 2, async || world.inventory.calls().len()).await;
    let broken = world.break_store();
    becomes(SOON, "ready", false, async || world.is_ready().await).await;
    drop(broken);
    becomes(LATER, "orders", ["1001"], async || world.database.orders()).await;
    assert!(world.cases().is_empty());
    assert_eq!(world.database.in_trouble_count(), 0);
}
