//! The relay on a real store, with a publisher that does as it is told.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use futures::FutureExt;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::consumer::Times;
use crate::custody::{Authority, Limits};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::observe::Observer;
use crate::store::{Incoming, OpenAs, Store, StoreUrl};

const BROKER: Code = Code::new("broker_failed");

/// What the publisher does with a call.
type Rule = Box<dyn Fn(&[Outgoing]) -> Answer + Send + Sync>;

enum Answer {
    Accept,
    Fail,
    Hang,
}

struct World {
    consumer: Arc<Consumer>,
    /// What was accepted, by topic, in order.
    accepted: Arc<Mutex<HashMap<String, Vec<String>>>>,
    calls: Arc<Mutex<Vec<usize>>>,
    stop: CancellationToken,
    relay: Option<tokio::task::JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = StoreUrl::Sqlite(directory.path().join("store.db"));
        let limits = Limits::default();
        let store = Store::open(&url, OpenAs::Service, Vec::new(), limits, Clock::System);
        let times = Times {
            handler_timeout: Duration::from_secs(20),
            delivery_deadline: Duration::from_secs(25),
        };
        let store = store.await.unwrap();
        let consumer = Arc::new(Consumer::new(store, Vec::new(), times, Observer::silent()));
        Self {
            consumer,
            accepted: Arc::default(),
            calls: Arc::default(),
            stop: CancellationToken::new(),
            relay: None,
            _directory: directory,
        }
    }

    fn start(&mut self, rule: Rule) {
        self.stop = CancellationToken::new();
        let (accepted, calls) = (Arc::clone(&self.accepted), Arc::clone(&self.calls));
        let publish = move |messages: Vec<Outgoing>| {
            let answer = rule(&messages);
            let (accepted, calls) = (Arc::clone(&accepted), Arc::clone(&calls));
            async move {
                calls.lock().unwrap().push(messages.len());
                match answer {
                    Answer::Accept => {
                        let mut accepted = accepted.lock().unwrap();
                        // In no order, as the sidecar does.
                        for message in messages.into_iter().rev() {
                            accepted.entry(message.topic).or_default().push(message.message_id);
                        }
                        Ok(())
                    }
                    Answer::Fail => Err(PublishError::Failed(BROKER)),
                    Answer::Hang => std::future::pending().await,
                }
            }
            .boxed()
        };
        let consumer = Arc::clone(&self.consumer);
        let run = run(consumer, "consumer".into(), Box::new(publish), self.stop.clone());
        self.relay = Some(tokio::spawn(run));
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        self.relay.take().unwrap().await.unwrap();
    }

    /// Commits one delivery with these messages: topic, id, ordering key.
    async fn commit(&self, id: &str, messages: &[(&str, String, Option<&str>)]) {
        self.commit_after(id, messages, None).await;
    }

    async fn commit_after(
        &self,
        id: &str,
        messages: &[(&str, String, Option<&str>)],
        due_at: Option<Timestamp>,
    ) {
        let outgoing = messages.iter().map(|(topic, message_id, key)| Outgoing {
            log: 0,
            seq: 0,
            pubsub: "pubsub".to_owned(),
            topic: (*topic).to_owned(),
            message_id: message_id.clone(),
            ordering_key: key.map(str::to_owned),
            due_at,
            content: Bytes::from_static(b"{}"),
        });
        let store = &self.consumer.store;
        let commit =
            store.commit(incoming(id), Authority::Delivery, Vec::new(), outgoing.collect());
        commit.await.unwrap();
        self.consumer.relay_wake.notify_one();
    }

    fn accepted(&self, topic: &str) -> Vec<String> {
        self.accepted.lock().unwrap().get(topic).cloned().unwrap_or_default()
    }

    async fn becomes(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !is(self) {
            assert!(Instant::now() < until, "{what}: {:?}", self.accepted.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn pending(&self) -> usize {
        self.consumer.store.outbox_pending(100_000).await.unwrap().iter().map(Vec::len).sum()
    }

    async fn nothing_is_pending(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.pending().await > 0 {
            assert!(Instant::now() < until, "still pending");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn incoming(id: &str) -> Arc<Incoming> {
    Arc::new(Incoming {
        key: MessageKey::of("orders", "shop", id),
        fingerprint: Fingerprint([7; 16]),
        subscription: "orders".to_owned(),
        pubsub: "pubsub".to_owned(),
        topic: "orders".to_owned(),
        source: "shop".to_owned(),
        event_id: id.to_owned(),
        ty: "order.placed".to_owned(),
        subject: None,
        traceparent: None,
        stored: Stored { attributes: None, body: Bytes::from_static(b"{}") },
        once: false,
        recovery_attempt: 0,
    })
}

fn many(topic: &str, numbers: std::ops::Range<usize>) -> Vec<(&str, String, Option<&str>)> {
    numbers.map(|n| (topic, format!("{n:05}"), None)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_leaves_in_full_batches_and_the_cursor_follows() {
    let mut world = World::new().await;
    world.commit("1", &many("a", 0..2_000)).await;
    world.start(Box::new(|_| Answer::Accept));
    world.nothing_is_pending().await;
    let mut accepted = world.accepted("a");
    accepted.sort();
    let expected: Vec<String> = (0..2_000).map(|n| format!("{n:05}")).collect();
    assert_eq!(accepted, expected, "each once");
    assert!(world.calls.lock().unwrap().len() <= 25, "{:?}", world.calls.lock().unwrap());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_topic_waits_for_one_that_hangs_or_one_that_fails() {
    let mut world = World::new().await;
    for topic in ["hangs", "fails", "flows"] {
        world.commit(topic, &many(topic, 0..500)).await;
    }
    world.start(Box::new(|messages| match messages[0].topic.as_str() {
        "hangs" => Answer::Hang,
        "fails" => Answer::Fail,
        _ => Answer::Accept,
    }));
    let began = Instant::now();
    world.becomes("the topic flows", |world| world.accepted("flows").len() == 500).await;
    // Not even for a round, later.
    for n in 0..20 {
        world.commit(&n.to_string(), &many("flows", 500 + n..501 + n)).await;
        world.becomes("it goes on", |world| world.accepted("flows").len() == 501 + n).await;
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // Everything ends although a call hangs.
    let began = Instant::now();
    world.stop().await;
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert_eq!(world.pending().await, 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_one_key_leave_in_the_log_s_order_while_calls_fail() {
    let mut world = World::new().await;
    let keys = ["a", "b", "c", "d"];
    for n in 0..40 {
        let of = |m: usize| ("t", format!("{:05}", n * 10 + m), Some(keys[(n + m) % 4]));
        world.commit(&n.to_string(), &(0..10).map(of).collect::<Vec<_>>()).await;
    }
    let calls = std::sync::atomic::AtomicUsize::new(0);
    world.start(Box::new(move |_| {
        let n = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if n % 23 == 5 { Answer::Fail } else { Answer::Accept }
    }));
    world.nothing_is_pending().await;
    let accepted = world.accepted("t");
    assert_eq!(accepted.len(), 400);
    for key in 0..4 {
        let of_key = |id: &&String| {
            let n: usize = id.parse().unwrap();
            (n / 10 + n % 10) % 4 == key
        };
        let own: Vec<&String> = accepted.iter().filter(of_key).collect();
        assert_eq!(own.len(), 100);
        assert!(own.is_sorted(), "{own:?}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_left_beyond_one_that_fails_is_not_published_again_before_a_restart() {
    let mut world = World::new().await;
    world.commit("1", &many("a", 0..50)).await;
    let is_bad = |message: &Outgoing| message.message_id == "00003";
    world.start(Box::new(
        move |messages| {
            if messages.iter().any(is_bad) { Answer::Fail } else { Answer::Accept }
        },
    ));
    world.becomes("the others leave", |world| world.accepted("a").len() == 49).await;
    world.commit("2", &many("a", 50..150)).await;
    world.becomes("later ones leave", |world| world.accepted("a").len() == 149).await;
    world.stop().await;
    assert_eq!(world.accepted("a").len(), 149, "each once");
    assert_eq!(world.pending().await, 147, "the cursor is before the one that fails");
    world.start(Box::new(|_| Answer::Accept));
    world.nothing_is_pending().await;
    assert_eq!(world.accepted("a").len(), 149 + 147, "repeated after a restart, under their ids");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_refused_at_once_gets_its_case_and_the_cursor_passes_it() {
    let mut world = World::new().await;
    world.commit("1", &many("a", 0..3)).await;
    let publish = |messages: Vec<Outgoing>| {
        let is_bad = messages.iter().any(|message| message.message_id == "00001");
        let answer = if is_bad {
            Err(PublishError::Refused(Code::new("message_too_large")))
        } else {
            Ok(())
        };
        std::future::ready(answer).boxed()
    };
    let consumer = Arc::clone(&world.consumer);
    let running = run(consumer, "consumer".into(), Box::new(publish), world.stop.clone());
    world.relay = Some(tokio::spawn(running));
    world.nothing_is_pending().await;
    assert_eq!(world.consumer.store.backlog().await.unwrap().exceptions_open, 1);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_leaves_on_time_and_not_before() {
    let mut world = World::new().await;
    world.start(Box::new(|_| Answer::Accept));
    let store = world.consumer.store.clone();
    let due_at = store.now().plus(Duration::from_millis(1_500));
    world.commit_after("1", &many("a", 0..1), Some(due_at)).await;
    world.commit("2", &many("a", 1..2)).await;
    world.becomes("the other one leaves at once", |world| world.accepted("a") == ["00001"]).await;
    assert!(store.now() < due_at);
    world.becomes("it leaves", |world| world.accepted("a").len() == 2).await;
    assert!(store.now() >= due_at);
    assert!(store.now().since(due_at) < Duration::from_secs(1));
    world.stop().await;
}
