//! The outbox: a log without gaps, a cursor for each topic, and what the sidecar refuses.

use super::*;
use crate::effect::insert;
use crate::store::{CaseFilter, CaseStatus, Outgoing};

async fn publish(store: &Store, id: &str, statements: Vec<Statement>, topic: &str) -> Committed {
    let outgoing = vec![outgoing(topic, id)];
    store.commit(message(id), Authority::Delivery, statements, outgoing).await.unwrap()
}

/// The numbers and ids that wait, by topic.
fn ids(batches: &[Vec<Outgoing>]) -> Vec<Vec<(i64, &str)>> {
    fn row(message: &Outgoing) -> (i64, &str) {
        (message.seq, &message.message_id)
    }
    batches.iter().map(|batch| batch.iter().map(row).collect()).collect()
}

async fn numbers_have_no_gap_after_what_was_rolled_back(place: Place) {
    let store = place.open().await;
    assert_eq!(publish(&store, "1", Vec::new(), "a").await, Committed::Yes);
    let fails = vec![sql("INSERT INTO nowhere VALUES (1)", [])];
    assert!(matches!(publish(&store, "2", fails, "a").await, Committed::EffectFailed(_)));
    assert!(matches!(publish(&store, "1", Vec::new(), "a").await, Committed::Nothing(_)));
    let session = store.session(Duration::from_secs(9)).await.unwrap();
    let twice = vec![outgoing("a", "1-0")];
    let done = session.commit(message("1"), Authority::Delivery, twice).await.unwrap();
    assert!(matches!(done, Committed::Nothing(_)), "{done:?}");
    assert_eq!(publish(&store, "3", Vec::new(), "a").await, Committed::Yes);
    let pending = store.outbox_pending(9).await.unwrap();
    assert_eq!(ids(&pending), [[(1, "1"), (2, "3")]]);
}

async fn each_topic_has_a_cursor_of_its_own_that_moves_only_forwards(place: Place) {
    let store = place.open().await;
    for (id, topic) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "a")] {
        publish(&store, id, Vec::new(), topic).await;
    }
    let pending = store.outbox_pending(2).await.unwrap();
    assert_eq!(ids(&pending), [vec![(1, "1"), (3, "3")], vec![(2, "2")]], "two a topic");
    store.outbox_published(pending[0][1].at(), 3).await.unwrap();
    store.outbox_published(pending[0][0].at(), 1).await.unwrap();
    let pending = store.outbox_pending(9).await.unwrap();
    assert_eq!(ids(&pending), [vec![(4, "4")], vec![(2, "2")]]);
    let backlog = store.backlog().await.unwrap();
    assert_eq!((backlog.outbox_pending, backlog.outbox_oldest), (2, Some(NOW)));
}

async fn refuse(store: &Store, message: &Outgoing, cursor: i64) -> Option<Quarantined> {
    store.outbox_refused(message.clone(), "consumer".to_owned(), cursor).await.unwrap()
}

async fn a_message_the_sidecar_refuses_for_good_becomes_a_case_and_the_next_goes_on(place: Place) {
    let store = place.open().await;
    publish(&store, "1", Vec::new(), "a").await;
    publish(&store, "2", Vec::new(), "a").await;
    let pending = store.outbox_pending(9).await.unwrap();
    let case = refuse(&store, &pending[0][0], 1).await.unwrap();
    assert_eq!(case.category, Category::PublishRejected);
    let pending = store.outbox_pending(9).await.unwrap();
    assert_eq!(ids(&pending), [[(2, "2")]]);
    let filter = CaseFilter { limit: 9, ..CaseFilter::default() };
    let cases = store.cases(filter).await.unwrap();
    assert_eq!((cases[0].topic.as_str(), cases[0].status), ("a", CaseStatus::Open));
    let stored = store.reveal(case.exception_id.clone(), "ann".to_owned()).await.unwrap();
    assert_eq!(stored.unwrap().body, "{\"id\":\"1\"}");
    // It stays on disk: a restart publishes the second and not the first.
    let store = place.reopen(store).await;
    let pending = store.outbox_pending(9).await.unwrap();
    assert_eq!(ids(&pending), [[(2, "2")]]);
}

async fn a_message_that_has_its_case_already_is_passed_without_another(place: Place) {
    let store = place.open().await;
    publish(&store, "1", Vec::new(), "a").await;
    publish(&store, "2", Vec::new(), "a").await;
    let pending = store.outbox_pending(9).await.unwrap().remove(0);
    // The process ended while the first one had not left.
    assert!(refuse(&store, &pending[1], 0).await.is_some());
    assert_eq!(ids(&store.outbox_pending(9).await.unwrap()), [[(1, "1"), (2, "2")]]);
    assert_eq!(refuse(&store, &pending[1], 2).await, None);
    assert!(store.outbox_pending(9).await.unwrap().is_empty());
    assert_eq!(place.on_disk("SELECT count(*) FROM exception").await, 1);
}

async fn what_is_read_at_a_time_is_bounded_in_number_and_bytes(place: Place) {
    let store = place.open().await;
    for n in 1..=5_u8 {
        let content = Bytes::from(vec![b'x'; 1000]);
        let large = Outgoing { content, ..outgoing("a", &n.to_string()) };
        let commit =
            store.commit(message(&n.to_string()), Authority::Delivery, Vec::new(), vec![large]);
        assert_eq!(commit.await.unwrap(), Committed::Yes);
    }
    let topic = store.outbox_look().await.unwrap().waiting.remove(0).topic;
    for (after, max, bytes_max, expected) in [
        (0, 9, 9_999, vec![1, 2, 3, 4, 5]),
        (2, 2, 9_999, vec![3, 4]),
        (0, 9, 3_500, vec![1, 2, 3]),
        (3, 9, 10, vec![4]),
        (5, 9, 9_999, vec![]),
    ] {
        let read = store.outbox_read(topic.clone(), after, max, bytes_max).await.unwrap().unwrap();
        let seqs: Vec<i64> = read.iter().map(|message| message.seq).collect();
        assert_eq!(seqs, expected, "after {after}, at most {max} and {bytes_max} bytes");
    }
}

async fn an_ordering_key_stays_with_its_message(place: Place) {
    let store = place.open().await;
    // In both ways that a commit is written, and after a delay.
    let insert = insert("line", [("item", Value::Null)]);
    for (id, statements) in [("1", vec![insert]), ("2", vec![note("one by one")])] {
        let key = Some(format!("key {id}"));
        let keyed = Outgoing { ordering_key: key, ..outgoing("a", id) };
        let delayed = Outgoing {
            message_id: format!("{id} later"),
            due_at: Some(NOW.plus(Duration::from_secs(60))),
            ..keyed.clone()
        };
        let plain = outgoing("a", &format!("{id} plain"));
        let all = vec![keyed, delayed, plain];
        let committed = store.commit(message(id), Authority::Delivery, statements, all).await;
        assert_eq!(committed.unwrap(), Committed::Yes);
    }
    place.pass(Duration::from_secs(61));
    assert_eq!(store.outbox_move_due(9).await.unwrap(), 2);
    let pending = store.outbox_pending(9).await.unwrap().remove(0);
    let keys: Vec<_> = pending
        .iter()
        .map(|message| (message.message_id.as_str(), message.ordering_key.as_deref()))
        .collect();
    assert_eq!(
        keys,
        [
            ("1", Some("key 1")),
            ("1 plain", None),
            ("2", Some("key 2")),
            ("2 plain", None),
            ("1 later", Some("key 1")),
            ("2 later", Some("key 2")),
        ]
    );
}

async fn publish_after(store: &Store, id: &str, delay: Duration) {
    let later = Outgoing { due_at: Some(store.now().plus(delay)), ..outgoing("a", id) };
    let committed = store.commit(message(id), Authority::Delivery, Vec::new(), vec![later]).await;
    assert_eq!(committed.unwrap(), Committed::Yes);
}

async fn a_delayed_message_waits_apart_until_it_is_due_and_then_takes_its_place_in_the_log(
    place: Place,
) {
    let (store, second) = (place.open().await, Duration::from_secs(1));
    for (id, delay) in [("late", second * 20), ("first", second * 10), ("second", second * 10)] {
        publish_after(&store, id, delay).await;
    }
    publish(&store, "now", Vec::new(), "a").await;
    assert_eq!(ids(&store.outbox_pending(9).await.unwrap()), [[(1, "now")]]);
    let look = store.outbox_look().await.unwrap();
    assert_eq!(look.next_due, Some(NOW.plus(second * 10)));
    let backlog = store.backlog().await.unwrap();
    assert_eq!((backlog.outbox_pending, backlog.outbox_delayed), (1, 3));
    assert_eq!(store.outbox_move_due(9).await.unwrap(), 0, "nothing is due");
    place.pass(second * 10);
    assert_eq!(store.outbox_move_due(1).await.unwrap(), 1, "no more than asked for");
    assert_eq!(store.outbox_move_due(9).await.unwrap(), 1);
    let expected = [[(1, "now"), (2, "first"), (3, "second")]];
    assert_eq!(ids(&store.outbox_pending(9).await.unwrap()), expected);
    let backlog = store.backlog().await.unwrap();
    assert_eq!((backlog.outbox_pending, backlog.outbox_delayed), (3, 1));
    // Over a restart, and however long it takes.
    let store = place.reopen(store).await;
    place.pass(second * 86_400 * 400);
    let retention = Retention { published_for: Duration::ZERO, ..Retention::default() };
    while store.forget(retention).await.unwrap() {}
    assert_eq!(place.on_disk("SELECT count(*) FROM outbox_delayed").await, 1);
    assert_eq!(store.outbox_move_due(9).await.unwrap(), 1);
    assert_eq!(store.outbox_look().await.unwrap().next_due, None);
}

async fn a_delivery_that_is_rolled_back_leaves_no_delayed_message(place: Place) {
    let store = place.open().await;
    let later = Outgoing { due_at: Some(NOW.plus(Duration::from_secs(9))), ..outgoing("a", "1") };
    let fails = vec![sql("INSERT INTO nowhere VALUES (1)", [])];
    let failed = store.commit(message("1"), Authority::Delivery, fails, vec![later]).await;
    assert!(matches!(failed.unwrap(), Committed::EffectFailed(_)));
    assert_eq!(place.on_disk("SELECT count(*) FROM outbox_delayed").await, 0);
}

async fn a_backlog_begins_at_the_cursor_of_each_topic(place: Place) {
    let store = place.open().await;
    for (n, topic) in ["a", "b", "a", "a"].into_iter().enumerate() {
        publish(&store, &n.to_string(), Vec::new(), topic).await;
        place.pass(Duration::from_secs(10));
    }
    let pending = store.outbox_pending(9).await.unwrap();
    store.outbox_published(pending[0][0].at(), 1).await.unwrap();
    let backlog = store.backlog().await.unwrap();
    assert_eq!(backlog.outbox_pending, 3);
    assert_eq!(backlog.outbox_oldest, Some(NOW.plus(Duration::from_secs(10))));
}

on_both!(
    numbers_have_no_gap_after_what_was_rolled_back,
    each_topic_has_a_cursor_of_its_own_that_moves_only_forwards,
    a_message_the_sidecar_refuses_for_good_becomes_a_case_and_the_next_goes_on,
    a_message_that_has_its_case_already_is_passed_without_another,
    what_is_read_at_a_time_is_bounded_in_number_and_bytes,
    an_ordering_key_stays_with_its_message,
    a_delayed_message_waits_apart_until_it_is_due_and_then_takes_its_place_in_the_log,
    a_delivery_that_is_rolled_back_leaves_no_delayed_message,
    a_backlog_begins_at_the_cursor_of_each_topic,
);
