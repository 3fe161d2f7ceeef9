//! What came in is kept to the byte, whatever the bytes are.

use super::*;

/// A NUL in every text and bytes that are no text at all.
fn odd() -> Arc<Incoming> {
    let odd = Incoming {
        source: "sh\0op".to_owned(),
        event_id: "1\0".to_owned(),
        ty: "\u{1F600}\0".to_owned(),
        subject: Some("\0".to_owned()),
        stored: Stored {
            attributes: Some("{\"a\":\"\\u0000\"}\0".to_owned()),
            body: Bytes::from_static(b"\0\xff\xfe{\"note\":\"a\\u0000b\"}\0"),
        },
        ..(*message("odd")).clone()
    };
    Arc::new(odd)
}

async fn nul_characters_and_bytes_that_are_no_text_come_back_as_they_were(place: Place) {
    let store = place.open().await;
    let sent = odd();
    store.fail(Arc::clone(&sent), Authority::Delivery, FAILED).await.unwrap();
    store.dead_letter(Arc::clone(&sent)).await.unwrap();
    place.pass(Duration::from_secs(60));
    let store = place.reopen(store).await;
    let (claims, _) = store.claim_due(9).await.unwrap();
    let kept = &claims[0].incoming;
    assert_eq!(kept.stored, sent.stored);
    assert_eq!(kept.source, sent.source);
    assert_eq!(kept.event_id, sent.event_id);
    assert_eq!(kept.ty, sent.ty);
    assert_eq!(kept.subject, sent.subject);
    let run = Authority::Run(claims[0].run);
    let refused = store.refuse(Arc::clone(kept), run, Category::Rejected, FAILED, true).await;
    let Ok(Written::Quarantined(case)) = refused else { panic!("{refused:?}") };
    let shown = store.cases_by_prefix(case.exception_id.clone()).await.unwrap().remove(0);
    assert_eq!(
        (shown.source, shown.event_id, shown.ty),
        (sent.source.clone(), sent.event_id.clone(), sent.ty.clone())
    );
    let revealed = store.reveal(case.exception_id.clone(), "ann".to_owned()).await.unwrap();
    assert_eq!(revealed.as_ref(), Some(&sent.stored));
    let acts = store.audit(case.exception_id).await.unwrap();
    assert_eq!(
        acts.last().map(|act| (act.actor.as_str(), act.action.as_str())),
        Some(("ann", "revealed"))
    );
}

async fn a_claim_holds_the_bytes_before_anything_is_called(place: Place) {
    let store = place.open().await;
    let sent = odd();
    store.claim_live(Arc::clone(&sent)).await.unwrap().unwrap();
    let on_disk = place.value_on_disk("SELECT body FROM message").await;
    assert_eq!(on_disk, Value::Blob(sent.stored.body.clone()));
}

async fn what_is_published_is_published_as_it_was_written(place: Place) {
    let store = place.open().await;
    let outgoing = crate::store::Outgoing {
        log: 0,
        seq: 0,
        pubsub: "pubsub".to_owned(),
        topic: "a\0b".to_owned(),
        message_id: "1-0".to_owned(),
        ordering_key: None,
        due_at: None,
        content: Bytes::from_static(b"\xff\0"),
    };
    store.commit(message("1"), Authority::Delivery, Vec::new(), vec![outgoing]).await.unwrap();
    let pending = store.outbox_pending(9).await.unwrap();
    assert_eq!(
        (pending[0][0].topic.as_str(), &pending[0][0].content[..]),
        ("a\0b", &b"\xff\0"[..])
    );
}

on_both!(
    nul_characters_and_bytes_that_are_no_text_come_back_as_they_were,
    a_claim_holds_the_bytes_before_anything_is_called,
    what_is_published_is_published_as_it_was_written,
);
