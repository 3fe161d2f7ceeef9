//! Statements that take too long, and locks that others keep.

use super::*;
use crate::outcome::reason;

#[tokio::test]
async fn a_statement_that_takes_too_long_fails_its_delivery_and_no_other() {
    let place = Place::postgres();
    let url = with(&place, |settings| settings.statement_timeout = Duration::from_millis(500));
    let store = open_at(&url, &place.clock).await;
    let slow = sql("INSERT INTO note SELECT 'slow' FROM pg_sleep(10)", []);
    let commits = (0..20).map(|n: i64| {
        let statements =
            if n == 7 { vec![note("half"), slow.clone()] } else { vec![note("quick")] };
        let store = store.clone();
        tokio::spawn(async move { (n, store.commit_one(&n.to_string(), statements).await) })
    });
    for commit in commits.collect::<Vec<_>>() {
        let (n, committed) = commit.await.unwrap();
        let expected = match n {
            7 => Committed::EffectFailed(reason::EFFECT_FAILED),
            _ => Committed::Yes,
        };
        assert_eq!(committed, expected, "{n}");
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 19);
    assert!(store.is_healthy());
}

#[tokio::test]
async fn a_row_that_somebody_keeps_locked_costs_the_message_nothing() {
    let place = Place::postgres();
    let url = with(&place, |settings| settings.lock_timeout = Duration::from_millis(100));
    let store = open_at(&url, &place.clock).await;
    let one = insert("stock", [("item", "a".into()), ("count", 1.into())]);
    store.commit_one("0", vec![one]).await;
    let session = store.session(Duration::from_secs(20)).await.unwrap();
    let take = "UPDATE stock SET count = count + 1 WHERE item = 'a'";
    session.execute(take.to_owned(), Vec::<Value>::new()).await.unwrap().unwrap();
    let waits = store.commit(message("1"), Authority::Delivery, vec![sql(take, [])], Vec::new());
    let refused = waits.await;
    assert!(matches!(refused, Err(StoreError::Away(_))), "{refused:?}");
    drop(session);
    assert_eq!(store.commit_one("1", vec![sql(take, [])]).await, Committed::Yes);
    assert_eq!(place.on_disk("SELECT count FROM stock").await, 2);
    assert_eq!(place.on_disk("SELECT count(*) FROM attempt").await, 0);
}

#[tokio::test]
async fn interactive_transactions_go_on_beside_one_another_and_beside_the_writer() {
    let place = Place::postgres();
    let store = place.open().await;
    let first = store.session(Duration::from_secs(20)).await.unwrap();
    let second = store.session(Duration::from_secs(20)).await.unwrap();
    for (session, text) in [(&first, "first"), (&second, "second")] {
        let text = format!("INSERT INTO note VALUES ('{text}')");
        session.execute(text, Vec::new()).await.unwrap().unwrap();
    }
    assert_eq!(store.commit_one("3", vec![note("beside them")]).await, Committed::Yes);
    for (session, id) in [(first, "1"), (second, "2")] {
        let outgoing = vec![outgoing("topic", id)];
        let committed = session.commit(message(id), Authority::Delivery, outgoing).await;
        assert_eq!(committed.unwrap(), Committed::Yes);
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 3);
    assert_eq!(place.on_disk("SELECT max(seq) FROM outbox").await, 2);
}
