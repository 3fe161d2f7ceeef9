//! What is over is forgotten after its time, and not before; what is not over stays.

use super::*;
use crate::effect::insert;

const DAY: Duration = Duration::from_secs(86_400);
const RETENTION: Retention = Retention {
    published_for: Duration::from_secs(3600),
    cases_for: Some(Duration::from_secs(30 * 86_400)),
    audit_for: Some(Duration::from_secs(60 * 86_400)),
};

/// One of the form that is written together with others.
fn effect() -> Statement {
    insert("line", [("item", Value::Null)])
}

async fn forget_all(store: &Store) {
    while store.forget(RETENTION).await.unwrap() {}
}

async fn a_duplicate_is_known_across_generations_and_forgotten_only_after_its_time(place: Place) {
    let store = place.open().await;
    let mut processed: Vec<(String, Timestamp)> = Vec::new();
    for day in 0..30 {
        let id = day.to_string();
        assert_eq!(store.commit_one(&id, vec![effect()]).await, Committed::Yes);
        processed.push((id, place.clock.now()));
        forget_all(&store).await;
        for (id, at) in &processed {
            let known = store.look(message(id).key).await.unwrap().done.is_some();
            let age = place.clock.now().since(*at);
            assert!(known || age >= DAY * 7, "day {day}: {id} was forgotten after {age:?}");
            assert!(!known || age <= DAY * 11, "day {day}: {id} is still known after {age:?}");
            if known {
                let again = store.commit_one(id, vec![effect()]).await;
                assert_eq!(again, Committed::Nothing(Standing::Done), "day {day}: {id}");
            }
        }
        place.pass(DAY);
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM line").await, 30);
}

async fn a_message_with_a_row_is_never_forgotten_but_a_tombstone_after_its_time(place: Place) {
    let store = place.open().await;
    let open = store.file("open", Category::Rejected).await;
    let closed = store.file("closed", Category::Rejected).await;
    store.close(closed.clone(), "ann".to_owned(), "settled".to_owned()).await.unwrap();
    store.dead_letter(message("due")).await.unwrap();
    place.pass(DAY * 6);
    forget_all(&store).await;
    assert_eq!(place.on_disk("SELECT count(*) FROM message").await, 3, "too early");
    place.pass(DAY * 2);
    forget_all(&store).await;
    assert_eq!(
        place.on_disk("SELECT count(*) FROM message").await,
        2,
        "the tombstone's time is over"
    );
    assert_eq!(place.on_disk("SELECT count(*) FROM exception").await, 2, "its case has its own");
    place.pass(DAY * 60);
    forget_all(&store).await;
    assert_eq!(place.on_disk("SELECT count(*) FROM message").await, 2);
    assert_eq!(store.cases_by_prefix(open).await.unwrap().len(), 1);
    assert!(store.cases_by_prefix(closed.clone()).await.unwrap().is_empty());
    assert!(store.audit(closed).await.unwrap().is_empty());
    assert_eq!(place.on_disk("SELECT count(*) FROM attempt").await, 1, "the open one's");
}

async fn only_published_messages_leave_the_outbox(place: Place) {
    let store = place.open().await;
    for n in 1..=1200 {
        let outgoing = outgoing("topic", &n.to_string());
        let commit =
            store.commit(message(&n.to_string()), Authority::Delivery, Vec::new(), vec![outgoing]);
        commit.await.unwrap();
    }
    let last = store.outbox_pending(1100).await.unwrap().remove(0).pop().unwrap();
    store.outbox_published(last.at(), last.seq).await.unwrap();
    forget_all(&store).await;
    assert_eq!(place.on_disk("SELECT count(*) FROM outbox").await, 1200, "too early");
    place.pass(Duration::from_secs(3601));
    forget_all(&store).await;
    assert_eq!(place.on_disk("SELECT count(*) FROM outbox").await, 100);
    assert_eq!(store.outbox_pending(9).await.unwrap()[0][0].message_id, "1101");
    // The last of all is published and old, and its number is still known.
    store.outbox_published(last.at(), 1200).await.unwrap();
    forget_all(&store).await;
    assert_eq!(place.on_disk("SELECT count(*) FROM outbox").await, 1);
    let id = "1201";
    let outgoing = outgoing("topic", id);
    store.commit(message(id), Authority::Delivery, Vec::new(), vec![outgoing]).await.unwrap();
    let seqs = "SELECT max(seq) FROM outbox";
    assert_eq!(place.on_disk(seqs).await, 1201, "no number is given twice");
}

on_both!(
    a_duplicate_is_known_across_generations_and_forgotten_only_after_its_time,
    a_message_with_a_row_is_never_forgotten_but_a_tombstone_after_its_time,
    only_published_messages_leave_the_outbox,
);
