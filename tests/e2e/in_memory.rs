//! The broker inside the sidecar: fewer promises, the same service.

use crate::harness::{LATER, SOON, Setup, becomes, event_id, placed};
use crate::inventory::Rule;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_in_memory_broker_too_a_failing_order_recovers() {
    let world = Setup::in_memory().quick_recovery().start().await;
    world.publish(&placed("good")).await;
    world.publish(&placed("good")).await;
    becomes(SOON, "duplicates", 1, async || world.outcomes("duplicate").await).await;

    // Six by the sidecar (maxRetries 5), which dead-letters it, then two recoveries; in bulk one
    // and seven.
    world.inventory.set("slow", Rule::FailTimes(7));
    world.publish(&placed("slow")).await;
    becomes(LATER, "orders", ["good", "slow"], async || world.database.orders()).await;
    assert_eq!(world.inventory.calls_for("slow").len(), 8);
    let dead_letters = world.metric("backstop_outcomes_total", &[("lane", "dead_letter")]).await;
    assert_eq!(dead_letters, u64::from(!world.is_bulk));
    assert_eq!(world.database.state(&event_id("slow")), "");
    assert_eq!(world.database.outbox_count(), 2);
    assert!(world.cases().is_empty());
    assert!(world.app_log().contains("Dead letters come through the same component"));
}
