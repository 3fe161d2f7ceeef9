//! An order whose handling ends the process, every time.

use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{LATER, SOON, Setup, World, becomes, event_id, placed, secs};
use crate::inventory::Rule;

/// A day, and longer than a message may be recovered.
const A_DAY: Duration = Duration::from_secs(25 * 60 * 60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_ends_the_process_every_time_is_isolated_and_its_neighbours_are_processed() {
    let mut world = Setup::redis()
        .quick_recovery()
        .env("BACKSTOP_RECOVERIES_MAX", "4")
        .with_a_clock_that_jumps()
        .start()
        .await;
    let neighbours: Vec<String> = (0..50).map(|n| format!("{n:03}")).collect();
    world.inventory.set("deadly", Rule::Hang);
    let mut events: Vec<Value> = neighbours.iter().map(|order| placed(order)).collect();
    events.insert(25, placed("deadly"));
    join_all(events.iter().map(|event| world.publish(event))).await;
    // Whenever it is handled the process ends, as if the handler had ended it.
    let mut ends = 0;
    loop {
        let calls = world.inventory.calls_for("deadly").len();
        if calls > ends {
            ends = calls;
            world.kill_app();
            world.start_app().await;
        }
        if world.cases().len() == 1 {
            break;
        }
        assert!(ends <= 10, "it must be found out");
        tokio::time::sleep(secs(0.05)).await;
    }
    let case = world.only_case();
    assert_eq!(case["category"], "crashed_process");
    assert_eq!(case["event_id"], event_id("deadly").as_str());
    becomes(LATER, "orders", neighbours.as_slice(), async || world.database.orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;

    let a_day_later = async |world: &World| {
        let [linked, duplicate] = ["linked", "duplicate"].map(|outcome| world.outcomes(outcome));
        let (linked, duplicate) = (linked.await, duplicate.await);
        world.publish(&placed("deadly")).await;
        world.publish(&placed("000")).await;
        becomes(SOON, "linked", linked + 1, async || world.outcomes("linked").await).await;
        becomes(SOON, "duplicate", duplicate + 1, async || world.outcomes("duplicate").await).await;
        assert_eq!(world.inventory.calls_for("deadly").len(), ends, "it is not run again");
        assert_eq!(world.database.orders(), neighbours);
        assert_eq!(world.cases().len(), 1);
    };
    world.time_passes(A_DAY);
    a_day_later(&world).await;
    world.kill_app();
    world.start_app().await;
    a_day_later(&world).await;
    assert!(world.stop_app().await);
    world.start_app().await;
    a_day_later(&world).await;
    let tomorrow = (jiff::Timestamp::now() + A_DAY).strftime("%Y-%m-%dT").to_string();
    assert!(world.app_log().contains(&tomorrow), "the service believes that it is {tomorrow}");
}
