//! The outbox: a log without gaps, a cursor for each topic, and what the sidecar refuses.

use super::*;
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
    store.outbox_published(pending[0][1].clone()).await.unwrap();
    store.outbox_published(pending[0][0].clone()).await.unwrap();
    let pending = store.outbox_pending(9).await.unwrap();
    assert_eq!(ids(&pending), [vec![(4, "4")], vec![(2, "2")]]);
    let backlog = store.backlog().await.unwrap();
    assert_eq!((backlog.outbox_pending, backlog.outbox_oldest), (2, Some(NOW)));
}

async fn a_message_the_sidecar_refuses_for_good_becomes_a_case_and_the_next_goes_on(place: Place) {
    let store = place.open().await;
    publish(&store, "1", Vec::new(), "a").await;
    publish(&store, "2", Vec::new(), "a").await;
    let pending = store.outbox_pending(9).await.unwrap();
    let case = store.outbox_refused(pending[0][0].clone(), "consumer".to_owned()).await.unwrap();
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

on_both!(
    numbers_have_no_gap_after_what_was_rolled_back,
    each_topic_has_a_cursor_of_its_own_that_moves_only_forwards,
    a_message_the_sidecar_refuses_for_good_becomes_a_case_and_the_next_goes_on,
);
