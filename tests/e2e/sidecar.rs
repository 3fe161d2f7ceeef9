//! What the two processes tell each other: tokens, traces, and that the store is away.

use serde_json::json;

use crate::harness::{
    ACCEPTED, DEAD, LATER, SOON, SUCCESS, Setup, TOPIC, becomes, bytes, event_id, placed,
    placed_with, secs,
};
use crate::inventory::Rule;

/// Another program holds the database, so nothing can be written: once for less than the deadline
/// of a delivery (8 s here instead of 25), once for longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_away_nothing_is_acknowledged_and_no_attempt_is_counted() {
    let world = Setup::redis().env("BACKSTOP_DELIVERY_DEADLINE_SECS", "8").start().await;
    let held = world.database.hold();
    world.publish(&placed("1001")).await;
    let in_hand = bytes(&placed("1002"));
    let comes_back = async {
        becomes(SOON, "ready", false, async || world.is_ready().await).await;
        assert_eq!(world.unacknowledged(), 1);
        drop(held);
    };
    let (answer, ()) = tokio::join!(world.deliver(&in_hand), comes_back);
    let is_safe = || {
        let is_done = world.database.orders().contains(&"1002".to_owned());
        is_done || world.database.in_trouble(&event_id("1002")).is_some()
    };
    match answer {
        Ok(SUCCESS) => assert!(is_safe()),
        Ok(other) => assert_eq!(other, world.not_now()),
        Err(status) => assert_eq!(status.code(), tonic::Code::Unavailable),
    }
    becomes(LATER, "ready", true, async || world.is_ready().await).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.deliver(&in_hand).await.unwrap(), SUCCESS);
    becomes(SOON, "orders", ["1001", "1002"], async || world.database.orders()).await;

    let held = world.database.hold();
    let too_late = world.deliver(&bytes(&placed("1003"))).await;
    assert_eq!(too_late.unwrap_err().code(), tonic::Code::Unavailable);
    drop(held);
    becomes(LATER, "ready", true, async || world.is_ready().await).await;
    assert_eq!(world.deliver(&bytes(&placed("1003"))).await.unwrap(), SUCCESS);

    assert_eq!(world.database.orders(), ["1001", "1002", "1003"]);
    assert_eq!(world.app_lines("Handler attempt failed."), 0);
    assert_eq!(world.database.in_trouble_count(), 0);
    assert_eq!(world.database.attempt_count(), 0);
    assert!(world.cases().is_empty());
}

/// A handler that never answers is cut off, and what the sidecar hears is not SUCCESS: neither for
/// this delivery nor for a copy of it that waited for its end. In bulk it is: the store has both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_out_of_time_is_a_failed_attempt_that_is_made_again() {
    let world = Setup::redis().env("BACKSTOP_HANDLER_TIMEOUT_SECS", "0.5").start().await;
    world.inventory.set_fallback(Rule::Hang);
    let event = bytes(&placed("1001"));
    let (first, copy) = tokio::join!(world.deliver(&event), world.deliver(&event));
    assert_eq!([first.unwrap(), copy.unwrap()], [world.not_now(); 2]);
    let row = world.database.in_trouble(&event_id("1001")).unwrap();
    let failed = (world.after_failure(), 1);
    assert_eq!((row.state.as_str(), row.attempts), failed, "the copy spent nothing");

    world.publish(&placed("1002")).await;
    becomes(SOON, "calls", 2, async || world.inventory.calls_for("1002").len()).await;
    world.inventory.set_fallback(Rule::Reserve);
    if !world.is_bulk {
        becomes(SOON, "orders", ["1002"], async || world.database.orders()).await;
    }
    assert_eq!(world.deliver(&event).await.unwrap(), SUCCESS);
    becomes(SOON, "orders", ["1001", "1002"], async || world.database.orders()).await;
    assert_eq!(world.published(DEAD), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_sidecar_with_the_token_is_served() {
    const TOKEN: &str = "a-long-random-token";
    let world =
        Setup::redis().env("APP_API_TOKEN", TOKEN).daprd_env("APP_API_TOKEN", TOKEN).start().await;
    world.publish(&placed("1001")).await;
    becomes(SOON, "orders", ["1001"], async || world.database.orders()).await;
    let refused = world.deliver(&bytes(&placed("1002"))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert_eq!(world.database.order_count(), 1);
    assert!(!world.app_log().contains(TOKEN));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_goes_on_with_the_trace_of_its_event_and_carries_its_own_id() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let world = Setup::redis().start().await;
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let nobody = "00-00000000000000000000000000000000-0000000000000000-00";
    let traced = |order, parent: &str| {
        bytes(&placed_with(order, &json!({ "traceparent": parent, "traceid": parent })))
    };
    world.redis.add(TOPIC, &traced("1001", &parent));
    becomes(SOON, "accepted", 1, async || world.published(ACCEPTED)).await;
    world.redis.add(TOPIC, &traced("1002", nobody));
    becomes(SOON, "accepted", 2, async || world.published(ACCEPTED)).await;

    let accepted = world.accepted();
    let parent_of = |n: usize| accepted[n]["traceparent"].as_str().unwrap_or_default();
    assert!(parent_of(0).contains(TRACE), "{:#}", accepted[0]);
    assert!(!parent_of(1).contains(TRACE), "{:#}", accepted[1]);
    assert_eq!(accepted[0]["type"], "shop.order.accepted.v1");
    assert_eq!(accepted[0]["source"], "order-service");
    assert_eq!(accepted[0]["data"]["orderId"], "1001");
    assert_ne!(accepted[0]["id"], event_id("1001"));
    assert_ne!(accepted[0]["id"], accepted[1]["id"]);
}

/// SIGTERM with work in hand: it is finished, published if the sidecar is there, and the process
/// ends in good order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_asked_to_stop_finishes_what_it_has_in_hand() {
    let mut world = Setup::redis().start().await;
    world.inventory.set_fallback(Rule::ReserveAfter(secs(1.0)));
    let orders = ["1", "2", "3", "4", "5"];
    world.publish_at_once(&orders.map(placed)).await;
    becomes(SOON, "in hand", orders.len(), async || world.inventory.calls().len()).await;
    assert!(world.stop_app().await, "the exit code is 0");
    assert_eq!(world.database.orders(), orders);
    assert_eq!(world.database.in_trouble_count(), 0);

    world.start_app().await;
    becomes(LATER, "accepted", orders, async || world.accepted_orders()).await;
    becomes(LATER, "unacknowledged", 0, async || world.unacknowledged()).await;
    assert_eq!(world.database.orders(), orders);
    assert_eq!(world.inventory.calls().len(), orders.len(), "none ran twice");
}
