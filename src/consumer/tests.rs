//! The six steps against a real store, with handlers that do what a test wants.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::{Map, Value as Json, json};
use tempfile::TempDir;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::custody::Limits;
use crate::effect::{Effects, Message, Value, insert, sql};
use crate::event::{Form, MessageKey};
use crate::handler::{Context, HandlerError, Tx};
use crate::store::{AppMigration, CaseFilter, OpenAs};

mod bulk;
mod gates;

const SOLD_OUT: Code = Code::new("sold_out");
const BUSY: Code = Code::new("dependency_busy");

#[derive(Clone, Debug, serde::Deserialize)]
struct Order {
    id: String,
    #[serde(default)]
    does: String,
}

/// A consumer over a store of its own; the clock moves by hand.
struct World {
    consumer: Arc<Consumer>,
    clock: Clock,
    calls: Arc<AtomicU32>,
    /// The dependency of `fails_while_away`.
    away: Arc<AtomicBool>,
    _directory: TempDir,
}

const LIMITS: Limits = Limits {
    attempts_live_max: 4,
    recoveries_max: 3,
    backoff: crate::backoff::Backoff {
        first: Duration::from_secs(10),
        max: Duration::from_secs(20),
    },
    age_max: Duration::from_secs(86_400),
    retry_guard: Duration::from_secs(60),
    lease: Duration::from_secs(60),
    probe_every: Duration::from_secs(10),
    remember_for: Duration::from_secs(7 * 86_400),
};

async fn world(call: OutsideCall) -> World {
    world_with(call, LIMITS).await
}

async fn world_with(call: OutsideCall, limits: Limits) -> World {
    let directory = TempDir::new().unwrap();
    let clock = Clock::manual(Timestamp(1_800_000_000_000_000));
    let tables = AppMigration {
        name: "0001",
        sql: "CREATE TABLE done (id TEXT PRIMARY KEY, note TEXT) STRICT",
    };
    let path = directory.path().join("test.db");
    let store = Store::open(
        &crate::store::StoreUrl::Sqlite(path),
        OpenAs::Service,
        vec![tables],
        limits,
        clock.clone(),
    )
    .await
    .unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let away = Arc::new(AtomicBool::new(false));
    let is_away = Arc::clone(&away);
    let handle = move |order: Order, context: Context| {
        counted.fetch_add(1, Ordering::SeqCst);
        let fails = order.does == "fails_while_away" && is_away.load(Ordering::SeqCst);
        async move {
            if fails { Err(HandlerError::transient(BUSY)) } else { handle(order, context).await }
        }
    };
    let orders = Subscription::new("orders")
        .on("order", handle)
        .on_tx("transfer", transfer)
        .schema("order", r#"{"type": "object", "required": ["id"]}"#)
        .ignore("noise")
        .calls_outside(call);
    assert_eq!(orders.problems().collect::<Vec<_>>(), Vec::<String>::new());
    let times = Times {
        handler_timeout: Duration::from_secs(1),
        delivery_deadline: Duration::from_secs(5),
    };
    let consumer =
        Arc::new(Consumer::new(store, vec![Arc::new(orders)], times, Observer::silent()));
    World { consumer, clock, calls, away, _directory: directory }
}

async fn handle(order: Order, context: Context) -> Result<Effects, HandlerError> {
    let row = insert("done", [("id", order.id.as_str().into()), ("note", Value::Null)]);
    let good = Effects::new().write(row);
    match order.does.as_str() {
        "publish" => {
            Ok(good.publish(Message::new("accepted", "accepted", json!({ "id": order.id }))))
        }
        "reject" => Err(HandlerError::reject(SOLD_OUT)),
        "fail" => Err(HandlerError::transient(BUSY)),
        "fail_before_the_call" => Err(HandlerError::not_sent(BUSY)),
        "fail_twice" if context.attempt() <= 2 => Err(HandlerError::transient(BUSY)),
        "secret" => Err(std::io::Error::other("postgres://ada:hunter2@db ada@example.invalid"))?,
        "panic" => panic!("on purpose"),
        "hang" => std::future::pending().await,
        "slow" => {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(good)
        }
        "no_rows" => {
            Ok(good.write(sql("UPDATE done SET note = 'x' WHERE id = 'nobody'", []).expect_rows(1)))
        }
        "no_rows_rejects" => Ok(good.write(
            sql("UPDATE done SET note = 'x' WHERE id = 'nobody'", [])
                .expect_rows(1)
                .or_reject(SOLD_OUT),
        )),
        "bad_sql" => Ok(good.write(sql("INSERT INTO nowhere VALUES (1)", []))),
        "ends_the_transaction" => Ok(good.write(sql("COMMIT", []))),
        _ => Ok(good),
    }
}

async fn transfer(order: Order, _context: Context, tx: &mut Tx) -> Result<(), HandlerError> {
    let before = tx.query("SELECT count(*) FROM done", []).await?;
    tx.execute(
        "INSERT INTO done (id, note) VALUES (?1, ?2)",
        [order.id.as_str().into(), before[0][0].clone()],
    )
    .await?;
    tx.publish(Message::new("accepted", "accepted", json!({ "id": order.id })));
    match order.does.as_str() {
        "reject" => Err(HandlerError::reject(SOLD_OUT)),
        "panic" => panic!("on purpose"),
        _ => Ok(()),
    }
}

fn event(id: &str, does: &str) -> Json {
    json!({
        "specversion": "1.0", "id": id, "source": "/shop", "type": "order",
        "datacontenttype": "application/json", "data": { "id": id, "does": does },
    })
}

fn with(mut event: Json, changes: &[(&str, Json)]) -> Json {
    for (name, value) in changes {
        event[*name] = value.clone();
    }
    event
}

impl World {
    async fn arrives(&self, lane: Lane, body: &Json) -> Vec<Outcome> {
        let arrival = Arrival {
            body: body.to_string().into_bytes().into(),
            form: Form::Broker { metadata: [].into() },
        };
        let origin = Origin {
            pubsub: "bus".to_owned(),
            topic: "orders".to_owned(),
            call: Call::Single,
            arrived_on: if lane == Lane::DeadLetter { "orders-shop-dead" } else { "orders" }
                .to_owned(),
            consumer: "shop".into(),
        };
        let deadline = Instant::now() + self.consumer.times.delivery_deadline;
        let subscription = Arc::clone(&self.consumer.subscriptions[0]);
        self.consumer.receive(&subscription, lane, arrival, &origin, deadline).await
    }

    async fn live(&self, body: &Json) -> Outcome {
        self.arrives(Lane::Live, body).await.remove(0)
    }

    async fn dead(&self, body: &Json) -> Outcome {
        self.arrives(Lane::DeadLetter, body).await.remove(0)
    }

    /// Runs everything that is due now, one after the other.
    async fn recover(&self) -> usize {
        self.consumer.store.time_passed(100).await.unwrap();
        let (claims, _) = self.consumer.store.claim_due(100).await.unwrap();
        let count = claims.len();
        for claim in claims {
            self.consumer.rerun(claim, &"shop".into()).await;
        }
        count
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<Value>> {
        self.consumer.store.query(sql.to_owned(), Vec::new()).await.unwrap()
    }

    async fn count(&self, table: &str) -> i64 {
        match self.rows(&format!("SELECT count(*) FROM {table}")).await[0][0] {
            Value::Integer(count) => count,
            ref other => panic!("{other:?}"),
        }
    }

    /// Category, reason and recorded attempts of every case.
    async fn cases(&self) -> Vec<(Category, String, usize)> {
        let filter = CaseFilter { limit: 100, ..CaseFilter::default() };
        let cases = self.consumer.store.exceptions(filter).await.unwrap();
        cases
            .into_iter()
            .map(|case| (case.category, case.reason.to_string(), case.attempts))
            .collect()
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_twins_at_once_run_the_handler_once() {
    let world = Arc::new(world(OutsideCall::None).await);
    let body = event("1", "slow");
    let deliveries = (0..100).map(|_| {
        let (world, body) = (Arc::clone(&world), body.clone());
        tokio::spawn(async move { world.live(&body).await })
    });
    let mut outcomes = Vec::new();
    for delivery in deliveries.collect::<Vec<_>>() {
        outcomes.push(delivery.await.unwrap());
    }
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Processed).count(), 1);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Duplicate).count(), 99);
    assert_eq!((world.calls(), world.count("done").await), (1, 1));
}

#[tokio::test]
async fn the_twin_of_a_failing_delivery_spends_no_attempt_of_its_own() {
    let world = Arc::new(world(OutsideCall::None).await);
    let body = event("1", "hang");
    let first = {
        let (world, body) = (Arc::clone(&world), body.clone());
        tokio::spawn(async move { world.live(&body).await })
    };
    while world.calls() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.live(&body).await, Outcome::Busy);
    assert_eq!(first.await.unwrap(), Outcome::Retrying(reason::HANDLER_TIMED_OUT));
    assert_eq!((world.calls(), world.count("attempt").await), (1, 1));
}

#[tokio::test]
async fn what_a_handler_returns_decides_what_becomes_of_the_message() {
    use Category::Rejected;
    use Outcome::{Processed, Quarantined, Retrying};
    for (does, outcome, done) in [
        ("", Processed, 1),
        ("reject", Quarantined(Rejected), 0),
        ("fail", Retrying(BUSY), 0),
        ("secret", Retrying(reason::HANDLER_FAILED), 0),
        ("panic", Retrying(reason::HANDLER_PANICKED), 0),
        ("hang", Retrying(reason::HANDLER_TIMED_OUT), 0),
        ("no_rows", Retrying(reason::EFFECT_ROWS), 0),
        ("no_rows_rejects", Quarantined(Rejected), 0),
        ("bad_sql", Retrying(reason::EFFECT_FAILED), 0),
        ("ends_the_transaction", Retrying(reason::EFFECT_FAILED), 0),
    ] {
        let world = world(OutsideCall::None).await;
        assert_eq!(world.live(&event("1", does)).await, outcome, "{does}");
        assert_eq!(world.count("done").await, done, "{does}");
        let calls = if does == "no_rows" { 4 } else { 1 };
        assert_eq!(world.calls(), calls, "{does}: changed rows run it again, uncounted");
        let attempts = i64::from(outcome != Processed);
        assert_eq!(world.count("attempt").await, attempts, "{does}");
    }
}

#[tokio::test]
async fn the_text_of_an_error_is_nowhere_in_the_store() {
    let world = world(OutsideCall::None).await;
    world.live(&event("1", "secret")).await;
    let rows = world.rows("SELECT code FROM attempt").await;
    assert_eq!(rows, [[Value::Text("handler_failed".to_owned())]]);
}

#[tokio::test]
async fn an_interactive_handler_commits_as_a_whole_or_not_at_all() {
    let world = world(OutsideCall::None).await;
    let transfer = |id: &str, does: &str| with(event(id, does), &[("type", json!("transfer"))]);
    assert_eq!(world.live(&transfer("1", "")).await, Outcome::Processed);
    assert_eq!(world.live(&transfer("1", "")).await, Outcome::Duplicate);
    assert_eq!(
        world.live(&transfer("2", "reject")).await,
        Outcome::Quarantined(Category::Rejected)
    );
    assert_eq!(
        world.live(&transfer("3", "panic")).await,
        Outcome::Retrying(reason::HANDLER_PANICKED)
    );
    assert_eq!(world.live(&event("4", "")).await, Outcome::Processed, "the writer is free again");
    assert_eq!((world.count("done").await, world.count("outbox").await), (2, 1));
}

#[tokio::test]
async fn a_failure_that_passes_ends_in_one_effect_and_no_case() {
    let world = world(OutsideCall::None).await;
    let body = event("1", "fail_twice");
    assert_eq!(world.live(&body).await, Outcome::Retrying(BUSY));
    assert_eq!(world.live(&body).await, Outcome::Retrying(BUSY));
    assert_eq!(world.live(&body).await, Outcome::Processed);
    for table in ["message", "attempt", "exception"] {
        assert_eq!(world.count(table).await, 0, "{table}");
    }
}

#[tokio::test]
async fn attempts_are_capped_whatever_the_sidecar_does() {
    let world = world(OutsideCall::None).await;
    let body = event("1", "fail");
    for _ in 0..3 {
        assert_eq!(world.live(&body).await, Outcome::Retrying(BUSY));
    }
    assert_eq!(world.live(&body).await, Outcome::Recovering, "the fourth is the cap");
    assert_eq!(world.live(&body).await, Outcome::Linked, "a sidecar that goes on finds it taken");
    assert_eq!(world.dead(&body).await, Outcome::Linked);
    let mut runs = 0;
    for _ in 0..20 {
        world.clock.advance(Duration::from_secs(30));
        runs += world.recover().await;
    }
    assert_eq!((runs, world.calls()), (3, 7));
    assert_eq!(world.cases().await, [(Category::Exhausted, BUSY.to_string(), 7)]);
    assert_eq!(world.dead(&body).await, Outcome::Linked);
    assert_eq!(world.live(&body).await, Outcome::Linked);
    assert_eq!((world.calls(), world.cases().await.len()), (7, 1));
}

#[tokio::test]
async fn an_incoming_counter_counts_only_upwards_and_garbage_is_zero() {
    for (counter, runs) in
        [(json!(2), 1), (json!("2"), 1), (json!(-5), 3), (json!("many"), 3), (json!(99), 0)]
    {
        let world = world(OutsideCall::None).await;
        let body = with(event("1", "fail"), &[("recoveryattempt", counter.clone())]);
        assert_eq!(world.dead(&body).await, Outcome::Recovering, "{counter}");
        let mut ran = 0;
        for _ in 0..20 {
            world.clock.advance(Duration::from_secs(30));
            ran += world.recover().await;
        }
        assert_eq!(ran, runs, "{counter}");
        assert_eq!(world.cases().await.len(), 1, "{counter}");
    }
}

#[tokio::test]
async fn a_never_attempted_dead_letter_runs_at_once_and_leaves_nothing_behind() {
    let world = world(OutsideCall::None).await;
    assert_eq!(world.dead(&event("1", "publish")).await, Outcome::Recovering);
    assert_eq!(world.recover().await, 1);
    assert_eq!((world.count("done").await, world.count("outbox").await), (1, 1));
    assert_eq!((world.count("message").await, world.count("attempt").await), (0, 0));
    assert_eq!(world.dead(&event("1", "publish")).await, Outcome::Duplicate);
}

#[tokio::test]
async fn a_message_the_sidecar_forgot_is_recovered_after_the_guard_time() {
    let world = world(OutsideCall::None).await;
    assert_eq!(world.live(&event("1", "fail_twice")).await, Outcome::Retrying(BUSY));
    world.clock.advance(Duration::from_secs(59));
    assert_eq!(world.recover().await, 0);
    world.clock.advance(Duration::from_secs(2));
    assert_eq!(world.recover().await, 1);
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(world.recover().await, 1);
    assert_eq!(world.count("done").await, 1);
}

#[tokio::test]
async fn what_can_never_fit_is_filed_once_and_never_handled() {
    for (changes, category, reason) in [
        (vec![("data", json!({}))], Category::Invalid, reason::SCHEMA_VIOLATION),
        (vec![("data", json!({ "id": 5 }))], Category::Invalid, reason::DATA_NOT_DECODABLE),
        (vec![("data", json!("{\"id\": "))], Category::Invalid, reason::MALFORMED_JSON),
        (vec![("data", Json::Null)], Category::Invalid, reason::DATA_MISSING),
        (
            vec![("datacontenttype", json!("text/plain")), ("data", json!("x"))],
            Category::Invalid,
            reason::CONTENT_TYPE_NOT_JSON,
        ),
        (vec![("type", json!("other"))], Category::Unrouted, reason::UNKNOWN_TYPE),
        (vec![("id", json!(5))], Category::Invalid, reason::INVALID_ATTRIBUTE),
        (vec![("expiration", json!("2020-01-01T00:00:00Z"))], Category::Expired, reason::EXPIRED),
    ] {
        for lane in [Lane::Live, Lane::DeadLetter] {
            let world = world(OutsideCall::None).await;
            let body = with(event("1", ""), &changes);
            assert_eq!(
                world.arrives(lane, &body).await,
                [Outcome::Quarantined(category)],
                "{changes:?}"
            );
            assert_eq!(world.arrives(lane, &body).await, [Outcome::Linked], "{changes:?}, again");
            assert_eq!(world.cases().await, [(category, reason.to_string(), 0)], "{changes:?}");
            assert_eq!(world.calls(), 0, "{changes:?}");
        }
    }
}

#[tokio::test]
async fn a_reused_id_is_a_case_and_never_a_duplicate() {
    let world = world(OutsideCall::None).await;
    assert_eq!(world.live(&event("1", "")).await, Outcome::Processed);
    let other = with(event("1", ""), &[("data", json!({ "id": "another" }))]);
    assert_eq!(world.live(&other).await, Outcome::Quarantined(Category::ReusedId));
    assert_eq!(world.live(&other).await, Outcome::Linked);
    assert_eq!(world.dead(&other).await, Outcome::Linked);
    let same_in_other_words = with(event("1", ""), &[("data", json!({ "does": "", "id": "1" }))]);
    assert_eq!(world.live(&same_in_other_words).await, Outcome::Duplicate);
    assert_eq!((world.calls(), world.cases().await.len()), (1, 1));
}

#[tokio::test]
async fn identity_is_source_and_id_byte_for_byte() {
    let world = world(OutsideCall::None).await;
    for (source, id) in [("/eu", "aB1"), ("/us", "aB1"), ("/eu", "Ab1"), ("/eua", "B1")] {
        let data = json!({ "id": format!("{source} {id}") });
        let body = with(event(id, ""), &[("source", json!(source)), ("data", data)]);
        assert_eq!(world.live(&body).await, Outcome::Processed, "{source} {id}");
    }
}

#[tokio::test]
async fn a_dead_letter_of_another_topic_is_foreign_and_an_ignored_type_is_only_counted() {
    let world = world(OutsideCall::None).await;
    let foreign = with(event("1", ""), &[("topic", json!("invoices"))]);
    assert_eq!(world.dead(&foreign).await, Outcome::Quarantined(Category::Foreign));
    for own in ["orders", "orders-shop-dead"] {
        let body = with(event(own, ""), &[("topic", json!(own))]);
        assert_eq!(world.dead(&body).await, Outcome::Recovering, "{own}");
    }
    assert_eq!(
        world.live(&with(event("2", ""), &[("type", json!("noise"))])).await,
        Outcome::Ignored
    );
    assert_eq!(world.cases().await.len(), 1);
}

#[tokio::test]
async fn a_batch_is_judged_event_by_event() {
    let world = world(OutsideCall::None).await;
    let batch =
        json!([event("1", ""), event("2", "reject"), event("1", ""), json!(7), event("3", "")]);
    let outcomes = world.arrives(Lane::Live, &batch).await;
    assert_eq!(
        outcomes,
        [
            Outcome::Processed,
            Outcome::Quarantined(Category::Rejected),
            Outcome::Duplicate,
            Outcome::Quarantined(Category::Invalid),
            Outcome::Processed,
        ]
    );
    assert_eq!(world.arrives(Lane::Live, &json!([])).await, []);
}

#[tokio::test]
async fn a_handler_that_calls_outside_is_claimed_first_with_its_bytes() {
    let world = Arc::new(world(OutsideCall::Repeatable).await);
    let body = event("1", "hang");
    let running = {
        let (world, body) = (Arc::clone(&world), body.clone());
        tokio::spawn(async move { world.live(&body).await })
    };
    while world.calls() == 0 {
        tokio::task::yield_now().await;
    }
    let rows = world.rows("SELECT state, run, length(body) > 100 FROM message").await;
    assert_eq!(rows, [[Value::Text("running".to_owned()), Value::Integer(1), Value::Integer(1)]]);
    assert_eq!(world.dead(&body).await, Outcome::Linked, "its row owns it");
    assert_eq!(running.await.unwrap(), Outcome::Retrying(reason::HANDLER_TIMED_OUT));
}

#[tokio::test]
async fn a_cautious_consumer_claims_every_message_before_its_handler_runs() {
    let world = world(OutsideCall::None).await;
    world.consumer.be_cautious(world.consumer.store.now().plus(Duration::from_secs(60)));
    assert_eq!(world.live(&event("1", "")).await, Outcome::Processed);
    assert_eq!(world.live(&event("2", "fail")).await, Outcome::Retrying(BUSY));
    let rows = world.rows("SELECT run, attempts FROM message").await;
    assert_eq!(rows, [[Value::Integer(1), Value::Integer(1)]]);
    assert_eq!(world.live(&event("2", "fail")).await, Outcome::Retrying(BUSY));
    assert_eq!((world.count("done").await, world.calls()), (1, 3));
}

#[tokio::test]
async fn an_outside_call_that_must_not_be_repeated_is_not_repeated() {
    for (does, outcome) in [
        ("fail", Outcome::Quarantined(Category::OutcomeUnknown)),
        ("hang", Outcome::Quarantined(Category::OutcomeUnknown)),
        ("panic", Outcome::Quarantined(Category::OutcomeUnknown)),
        ("no_rows", Outcome::Quarantined(Category::OutcomeUnknown)),
        ("fail_before_the_call", Outcome::Retrying(BUSY)),
        ("reject", Outcome::Quarantined(Category::Rejected)),
        ("", Outcome::Processed),
    ] {
        let world = world(OutsideCall::Once).await;
        assert_eq!(world.live(&event("1", does)).await, outcome, "{does}");
        assert_eq!(world.calls(), 1, "{does}");
        if outcome == Outcome::Quarantined(Category::OutcomeUnknown) {
            let id = world
                .consumer
                .store
                .exceptions(CaseFilter { limit: 1, ..CaseFilter::default() })
                .await
                .unwrap()
                .remove(0)
                .id;
            assert!(
                world.consumer.store.redrive_exception(&id, "ada").await.is_err(),
                "{does}: not before it is reconciled"
            );
        }
    }
}

#[tokio::test]
async fn a_case_is_redriven_once_resolved_by_its_commit_and_reopened_by_a_failure() {
    let world = world(OutsideCall::None).await;
    let store = &world.consumer.store;
    world.live(&event("1", "reject")).await;
    let id = store
        .exceptions(CaseFilter { limit: 1, ..CaseFilter::default() })
        .await
        .unwrap()
        .remove(0)
        .id;
    store.redrive_exception(&id, "ada").await.unwrap();
    assert_eq!(world.recover().await, 1);
    let case = store.exception(&id).await.unwrap();
    assert_eq!((case.status.as_str(), case.attempts, case.attempt_history.len()), ("open", 1, 2));
    let audit: Vec<String> =
        store.exception_audit(&id).await.unwrap().into_iter().map(|entry| entry.action).collect();
    assert_eq!(audit, ["quarantined", "redrive_requested", "redriving", "reopened"]);
    assert_eq!(world.recover().await, 0, "automatic recovery does not apply to it");

    store.close_exception(&id, "ada", "refunded").await.unwrap();
    assert_eq!(world.live(&event("1", "reject")).await, Outcome::Linked);
    assert_eq!(world.calls(), 2);
    assert!(store.redrive_exception(&id, "ada").await.is_err());
}

#[tokio::test]
async fn what_is_published_continues_the_trace_and_keeps_its_id() {
    let world = world(OutsideCall::None).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    world.live(&with(event("1", "publish"), &[("traceparent", json!(trace))])).await;
    let outgoing = world.consumer.store.outbox_pending(10).await.unwrap().remove(0).remove(0);
    let published: Map<String, Json> = serde_json::from_slice(&outgoing.content).unwrap();
    assert_eq!(published["traceparent"], trace);
    assert_eq!(published["traceid"], trace);
    assert_eq!(
        (published["source"].as_str(), published["type"].as_str()),
        (Some("shop"), Some("accepted"))
    );
    let key = MessageKey::of("orders", "/shop", "1");
    assert_eq!(published["id"], format!("{key}-0"), "it follows from the message that caused it");
}

#[tokio::test]
async fn a_delivery_for_an_unknown_topic_is_filed() {
    let world = world(OutsideCall::None).await;
    let arrival = || Arrival {
        body: event("1", "").to_string().into_bytes().into(),
        form: Form::Broker { metadata: [].into() },
    };
    let origin = Origin {
        pubsub: "bus".into(),
        topic: "refunds".into(),
        arrived_on: "refunds".into(),
        call: Call::Single,
        consumer: "shop".into(),
    };
    assert_eq!(
        world.consumer.unknown_topic(arrival(), &origin).await,
        [Outcome::Quarantined(Category::Unrouted)]
    );
    assert_eq!(world.consumer.unknown_topic(arrival(), &origin).await, [Outcome::Linked]);
    assert_eq!(world.cases().await, [(Category::Unrouted, "unknown_topic".to_owned(), 0)]);
}
