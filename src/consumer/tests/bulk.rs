//! What a batch leaves open is taken over, and has one effect all the same.

use super::*;

impl World {
    fn origin_in_bulk() -> Origin {
        Origin {
            pubsub: "bus".to_owned(),
            topic: "orders".to_owned(),
            arrived_on: "orders".to_owned(),
            consumer: "shop".into(),
            call: Call::Bulk,
        }
    }

    /// One entry of a batch is judged, as far as the deadline allows.
    async fn in_bulk(&self, body: &Json) -> Vec<Outcome> {
        let deadline = Instant::now() + self.consumer.times.delivery_deadline;
        let (origin, subscription) =
            (Self::origin_in_bulk(), Arc::clone(&self.consumer.subscriptions[0]));
        let arrival = arrival(body);
        self.consumer.receive(&subscription, Lane::Live, arrival, &origin, deadline).await
    }

    async fn hand_over(&self, body: &Json) -> Vec<Outcome> {
        let subscription = Arc::clone(&self.consumer.subscriptions[0]);
        self.consumer.hand_over(&subscription, arrival(body), &Self::origin_in_bulk()).await
    }

    /// A run that is on when this returns.
    async fn begin_in_bulk(self: &Arc<Self>, body: &Json) -> tokio::task::JoinHandle<Vec<Outcome>> {
        let (world, body, calls) = (Arc::clone(self), body.clone(), self.calls());
        let run = tokio::spawn(async move { world.in_bulk(&body).await });
        while self.calls() == calls {
            tokio::task::yield_now().await;
        }
        run
    }

    /// State, attempts and recoveries of every message in trouble.
    async fn troubles(&self) -> Vec<(String, i64, i64)> {
        let rows = self.rows("SELECT state, attempts, recoveries FROM message ORDER BY event_id");
        let number = |value: &Value| match value {
            Value::Integer(number) => *number,
            other => panic!("{other:?}"),
        };
        let read = |row: Vec<Value>| match &row[0] {
            Value::Text(state) => (state.clone(), number(&row[1]), number(&row[2])),
            other => panic!("{other:?}"),
        };
        rows.await.into_iter().map(read).collect()
    }
}

fn arrival(body: &Json) -> Arrival {
    let body = body.to_string().into_bytes().into();
    Arrival { body, form: Form::Broker { metadata: [].into() } }
}

#[tokio::test]
async fn a_failure_in_a_batch_is_recovered_and_never_retried_by_the_sidecar() {
    for call in [OutsideCall::None, OutsideCall::Repeatable] {
        let world = world(call).await;
        let body = event("1", "fail_twice");
        assert_eq!(world.in_bulk(&body).await, [Outcome::Recovering], "{call:?}");
        assert_eq!(world.troubles().await, [("recovering".to_owned(), 1, 0)], "{call:?}");
        assert_eq!(world.recover().await, 0, "not before its first wait");
        // Whatever comes of it now changes nothing.
        assert_eq!(world.in_bulk(&body).await, [Outcome::Linked]);
        assert_eq!(world.dead(&body).await, Outcome::Linked);
        for left in [1, 0] {
            world.clock.advance(Duration::from_secs(60));
            assert_eq!(world.recover().await, 1);
            assert_eq!(world.troubles().await.len(), left, "{call:?}");
        }
        assert_eq!((world.calls(), world.count("done").await), (3, 1), "{call:?}");
    }
}

#[tokio::test]
async fn what_fails_in_batches_ends_in_one_case_at_the_cap() {
    let world = world(OutsideCall::None).await;
    assert_eq!(world.in_bulk(&event("1", "fail")).await, [Outcome::Recovering]);
    for _ in 0..LIMITS.recoveries_max + 2 {
        world.clock.advance(Duration::from_secs(60));
        world.recover().await;
        assert_eq!(world.in_bulk(&event("1", "fail")).await, [Outcome::Linked]);
    }
    let attempts = 1 + LIMITS.recoveries_max as usize;
    assert_eq!(world.cases().await, [(Category::Exhausted, BUSY.to_string(), attempts)]);
    assert_eq!(world.calls() as usize, attempts);
}

#[tokio::test]
async fn five_that_fail_in_a_batch_close_their_gate_and_wait_at_it() {
    let world = world(OutsideCall::None).await;
    world.away.store(true, Ordering::SeqCst);
    let orders: Vec<Json> = (0..6).map(|n| event(&n.to_string(), "fails_while_away")).collect();
    for order in &orders {
        assert_eq!(world.in_bulk(order).await, [Outcome::Recovering]);
    }
    assert_eq!(world.count("gate WHERE state = 'closed'").await, 1, "their first failures do");
    // One that is handed over without an attempt waits with them.
    assert_eq!(world.hand_over(&event("late", "fails_while_away")).await, [Outcome::Recovering]);
    let waiting = "message WHERE state = 'recovering' AND due_at IS NULL";
    for _ in 0..50 {
        world.clock.advance(Duration::from_secs(20));
        world.recover().await;
    }
    assert_eq!(world.count(waiting).await, 7);
    assert_eq!(world.troubles().await[0], ("recovering".to_owned(), 1, 0), "none has spent any");
    world.away.store(false, Ordering::SeqCst);
    for _ in 0..10 {
        world.clock.advance(Duration::from_secs(20));
        world.recover().await;
    }
    assert_eq!(world.count("done").await, 7);
    assert!(world.cases().await.is_empty());
}

#[tokio::test]
async fn a_run_that_outlives_its_delivery_without_a_claim_may_not_commit() {
    let world = Arc::new(world(OutsideCall::None).await);
    let body = event("1", "slow");
    let run = world.begin_in_bulk(&body).await;
    assert_eq!(world.hand_over(&body).await, [Outcome::Recovering]);
    assert_eq!(run.await.unwrap(), [Outcome::Linked], "it comes too late");
    assert_eq!(world.count("done").await, 0);
    assert_eq!(world.troubles().await, [("recovering".to_owned(), 0, 0)]);
    assert_eq!(world.hand_over(&body).await, [Outcome::Linked], "once is enough");
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.recover().await, 1);
    assert_eq!((world.calls(), world.count("done").await), (2, 1));
    assert_eq!(world.hand_over(&body).await, [Outcome::Duplicate]);
}

#[tokio::test]
async fn a_run_that_has_claimed_its_message_goes_on_and_commits() {
    let world = Arc::new(world(OutsideCall::Repeatable).await);
    let body = event("1", "slow");
    let run = world.begin_in_bulk(&body).await;
    assert_eq!(world.hand_over(&body).await, [Outcome::Linked]);
    assert_eq!(world.troubles().await, [("running".to_owned(), 0, 0)], "unchanged");
    assert_eq!(run.await.unwrap(), [Outcome::Processed]);
    assert_eq!((world.calls(), world.count("done").await), (1, 1));
}

#[tokio::test]
async fn a_twin_that_waits_to_its_deadline_is_handed_over_with_its_bytes() {
    let world = Arc::new(world(OutsideCall::None).await);
    let body = event("1", "slow");
    let run = world.begin_in_bulk(&body).await;
    let subscription = Arc::clone(&world.consumer.subscriptions[0]);
    let origin = World::origin_in_bulk();
    let late = Instant::now();
    let twin = world.consumer.receive(&subscription, Lane::Live, arrival(&body), &origin, late);
    assert_eq!(twin.await, [Outcome::Busy]);
    assert_eq!(world.hand_over(&body).await, [Outcome::Recovering]);
    assert_eq!(run.await.unwrap(), [Outcome::Linked]);
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.recover().await, 1);
    assert_eq!(world.count("done").await, 1);
}

/// Its bytes would be kept in place of those that are being handled.
#[tokio::test]
async fn a_twin_with_other_data_is_filed_and_the_run_keeps_its_right() {
    for call in [OutsideCall::None, OutsideCall::Repeatable] {
        let world = Arc::new(world(call).await);
        let (first, other) = (event("1", "slow"), event("1", ""));
        let run = world.begin_in_bulk(&first).await;
        let filed = [Outcome::Quarantined(Category::ReusedId)];
        assert_eq!(world.hand_over(&other).await, filed, "{call:?}");
        assert_eq!(run.await.unwrap(), [Outcome::Processed], "{call:?}");
        assert_eq!(world.count("done").await, 1);
        assert_eq!(world.cases().await, [(Category::ReusedId, "reused_id".to_owned(), 0)]);
    }
}

/// As at another replica, whose event under the same id was written first.
#[tokio::test]
async fn a_run_that_loses_to_another_event_under_its_id_is_filed_and_not_taken_for_done() {
    for does in ["slow", "hang"] {
        let world = Arc::new(world(OutsideCall::None).await);
        let run = world.begin_in_bulk(&event("1", does)).await;
        let subscription = &world.consumer.subscriptions[0];
        let decoded = decode(arrival(&event("1", ""))).remove(0).unwrap();
        let origin = World::origin_in_bulk();
        let other = incoming(subscription.name(), OutsideCall::None, &decoded, &origin);
        world.consumer.store.hand_over(Arc::new(other)).await.unwrap();
        let filed = [Outcome::Quarantined(Category::ReusedId)];
        assert_eq!(run.await.unwrap(), filed, "{does}");
    }
}

#[tokio::test]
async fn only_what_is_open_is_handed_over() {
    let world = world(OutsideCall::None).await;
    let ignored = with(event("noise", ""), &[("type", json!("noise"))]);
    assert_eq!(world.in_bulk(&event("done", "")).await, [Outcome::Processed]);
    let batch = json!([event("done", ""), ignored, event("open", ""), { "no": "event" }]);
    let outcomes = [
        Outcome::Duplicate,
        Outcome::Ignored,
        Outcome::Recovering,
        Outcome::Quarantined(Category::Invalid),
    ];
    assert_eq!(world.hand_over(&batch).await, outcomes);
    assert_eq!(world.calls(), 1);
    let linked = Outcome::Linked;
    let again = [Outcome::Duplicate, Outcome::Ignored, linked.clone(), linked];
    assert_eq!(world.hand_over(&batch).await, again);
    assert_eq!(world.cases().await.len(), 1);
}
