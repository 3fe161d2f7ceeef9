//! Whole processes killed (-9) with fifty orders in hand, and away for a while.

use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;

use crate::harness::{LATER, SOON, Setup, TOPIC, World, becomes, bytes, placed, secs};
use crate::inventory::Rule;

const IN_HAND: usize = 50;
const MEANWHILE: usize = 10;
/// How long they are away.
const AWAY: &[f64] = if cfg!(feature = "soak") { &[3.0, 30.0, 90.0] } else { &[3.0] };
/// Both ways a sidecar can be told about its app: by a health check, and only by its answers.
const BOTH_WAYS: [bool; 2] = [true, false];

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Service,
    Sidecar,
    ServiceAndSidecar,
    Redis,
    All,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_orders_in_hand_when_the_service_dies_are_processed_once_each() {
    away(Killed::Service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_orders_in_hand_when_the_sidecar_dies_are_processed_once_each() {
    away(Killed::Sidecar).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_orders_in_hand_when_service_and_sidecar_die_are_processed_once_each() {
    away(Killed::ServiceAndSidecar).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_orders_in_hand_when_redis_dies_are_processed_once_each() {
    away(Killed::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_orders_in_hand_when_everything_dies_are_processed_once_each() {
    away(Killed::All).await;
}

async fn away(killed: Killed) {
    for away in AWAY {
        for health_check in BOTH_WAYS {
            away_for(killed, secs(*away), health_check).await;
        }
    }
}

async fn away_for(killed: Killed, away: Duration, health_check: bool) {
    let setup = Setup::redis()
        .quick_recovery()
        // What nobody acknowledged is redelivered after three seconds instead of a minute.
        .edit("orderpubsub.yaml", "value: 60s", "value: 3s")
        .edit("orderpubsub.yaml", "value: 15s", "value: 1s");
    let mut world = if health_check { setup } else { setup.without_health_check() }.start().await;
    let service_dies = !matches!(killed, Killed::Sidecar | Killed::Redis);
    // A service that lives on finishes what it has in hand, and nobody hears of it.
    let rule = if service_dies { Rule::Hang } else { Rule::ReserveAfter(secs(1.5)) };
    world.inventory.set_fallback(rule);
    let orders: Vec<String> = (0..IN_HAND + MEANWHILE).map(|n| format!("{n:03}")).collect();
    let events: Vec<Value> = orders.iter().map(|order| placed(order)).collect();
    let (in_hand, meanwhile) = events.split_at(IN_HAND);
    world.publish_at_once(in_hand).await;
    becomes(SOON, "in hand", IN_HAND, async || world.inventory.calls().len()).await;
    kill(&mut world, killed);
    assert_eq!(world.database.order_count(), 0, "all are still in hand");
    world.inventory.set_fallback(Rule::Reserve);
    if killed == Killed::Service {
        join_all(meanwhile.iter().map(|event| world.publish(event))).await;
    }
    // The time away is what is being tried.
    tokio::time::sleep(away).await;
    start(&mut world, killed).await;
    if killed != Killed::Service {
        // There was no sidecar to publish through, or no broker.
        for event in meanwhile {
            world.redis.add(TOPIC, &bytes(event));
        }
    }

    becomes(LATER + away, "orders", orders.as_slice(), async || world.database.orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    world.all_are_accepted(&orders, LATER).await;
    let calls = world.inventory.calls().len();
    eprintln!("{killed:?} for {away:?}, health check {health_check}: {calls} calls");
}

fn kill(world: &mut World, killed: Killed) {
    if matches!(killed, Killed::Service | Killed::ServiceAndSidecar | Killed::All) {
        world.kill_app();
    }
    if matches!(killed, Killed::Sidecar | Killed::ServiceAndSidecar | Killed::All) {
        world.kill_daprd();
    }
    if matches!(killed, Killed::Redis | Killed::All) {
        world.redis.kill();
    }
}

async fn start(world: &mut World, killed: Killed) {
    if matches!(killed, Killed::Redis | Killed::All) {
        world.redis.start_again().await;
    }
    if matches!(killed, Killed::Service | Killed::ServiceAndSidecar | Killed::All) {
        world.start_app().await;
    }
    if matches!(killed, Killed::Sidecar | Killed::ServiceAndSidecar | Killed::All) {
        world.start_daprd().await;
    }
}
