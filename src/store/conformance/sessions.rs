//! The interactive transaction of one delivery.

use super::*;
use crate::outcome::reason;
use crate::store::Session;

const LIMIT: Duration = Duration::from_secs(20);

async fn execute(session: &Session, text: &str) -> Result<Result<u64, Code>, StoreError> {
    session.execute(text.to_owned(), Vec::new()).await
}

async fn it_reads_its_own_writes_and_commits_them_with_the_inbox_key(place: Place) {
    let store = place.open().await;
    let session = store.session(LIMIT).await.unwrap();
    assert_eq!(execute(&session, "INSERT INTO stock VALUES ('a', 3)").await.unwrap(), Ok(1));
    assert_eq!(execute(&session, "UPDATE stock SET count = count - 1").await.unwrap(), Ok(1));
    let rows = session.query("SELECT count FROM stock".to_owned(), Vec::new()).await.unwrap();
    assert_eq!(rows, [[Value::Integer(2)]]);
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 0, "not before the commit");
    let committed = session.commit(message("1"), Authority::Delivery, Vec::new()).await.unwrap();
    assert_eq!(committed, Committed::Yes);
    assert_eq!(place.on_disk("SELECT count FROM stock").await, 2);
    assert_eq!(place.on_disk("SELECT count(*) FROM inbox").await, 1);
}

async fn dropped_without_a_commit_it_leaves_nothing_and_the_writer_goes_on(place: Place) {
    let store = place.open().await;
    let session = store.session(LIMIT).await.unwrap();
    execute(&session, "INSERT INTO stock VALUES ('a', 3)").await.unwrap().unwrap();
    drop(session);
    assert_eq!(store.commit_one("1", vec![note("next")]).await, Committed::Yes);
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 0);
}

async fn past_its_time_limit_it_is_rolled_back_and_holds_nobody_up(place: Place) {
    let store = place.open().await;
    let session = store.session(Duration::from_millis(50)).await.unwrap();
    // On a slow machine this is late already.
    drop(execute(&session, "INSERT INTO stock VALUES ('a', 3)").await);
    assert_eq!(store.commit_one("2", vec![note("next")]).await, Committed::Yes);
    let late = loop {
        match execute(&session, "UPDATE stock SET count = count").await {
            Ok(_) => {}
            Err(late) => break late,
        }
    };
    assert!(matches!(late, StoreError::Away(_)), "{late:?}");
    let committed = session.commit(message("1"), Authority::Delivery, Vec::new()).await.unwrap();
    assert_eq!(committed, Committed::EffectFailed(reason::TRANSACTION_TIMED_OUT));
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 0);
    assert_eq!(place.on_disk("SELECT count(*) FROM inbox").await, 1);
}

async fn a_statement_that_fails_is_the_handler_s_to_judge(place: Place) {
    let store = place.open().await;
    let session = store.session(LIMIT).await.unwrap();
    execute(&session, "INSERT INTO stock VALUES ('a', 3)").await.unwrap().unwrap();
    let twice = execute(&session, "INSERT INTO stock VALUES ('a', 4)").await.unwrap();
    assert_eq!(twice, Err(reason::EFFECT_CONSTRAINT));
    let nonsense = execute(&session, "INSERT INTO nowhere VALUES (1)").await.unwrap();
    assert_eq!(nonsense, Err(reason::EFFECT_FAILED));
    let committed = session.commit(message("1"), Authority::Delivery, Vec::new()).await.unwrap();
    assert_eq!(committed, Committed::Yes);
    assert_eq!(place.on_disk("SELECT count FROM stock").await, 3);
}

async fn a_message_that_is_done_meanwhile_undoes_all_of_it(place: Place) {
    let store = place.open().await;
    store.commit_one("1", vec![note("first")]).await;
    let session = store.session(LIMIT).await.unwrap();
    execute(&session, "INSERT INTO stock VALUES ('a', 3)").await.unwrap().unwrap();
    let committed = session.commit(message("1"), Authority::Delivery, Vec::new()).await.unwrap();
    assert!(matches!(committed, Committed::Nothing(_)), "{committed:?}");
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 0, "its effects come twice");
}

async fn a_handler_cannot_end_the_transaction_it_is_part_of(place: Place) {
    let store = place.open().await;
    let attempts = [
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "BEGIN IMMEDIATE",
        "SAVEPOINT mine",
        "RELEASE delivery",
        "ROLLBACK TO delivery",
        "INSERT INTO note VALUES ('x'); COMMIT",
        "INSERT OR ROLLBACK INTO stock VALUES ('a', 2)",
        "PRAGMA journal_mode = DELETE",
        "VACUUM",
    ];
    for (done, text) in (0..).zip(attempts) {
        let session = store.session(LIMIT).await.unwrap();
        let adds = format!("INSERT INTO stock VALUES ('{done}', 3)");
        execute(&session, &adds).await.unwrap().unwrap();
        let executed = execute(&session, text).await;
        assert!(!matches!(executed, Ok(Ok(_))), "{text}: {executed:?}");
        let queried = session.query(text.to_owned(), Vec::new()).await;
        assert!(queried.is_err() || text.starts_with("PRAGMA"), "{text}: {queried:?}");
        assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, done, "{text}");
        let message = message(&done.to_string());
        let committed = session.commit(message, Authority::Delivery, Vec::new()).await;
        assert_eq!(committed.unwrap(), Committed::Yes, "{text}");
        assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, done + 1, "{text}");
    }
}

on_both!(
    it_reads_its_own_writes_and_commits_them_with_the_inbox_key,
    dropped_without_a_commit_it_leaves_nothing_and_the_writer_goes_on,
    past_its_time_limit_it_is_rolled_back_and_holds_nobody_up,
    a_statement_that_fails_is_the_handler_s_to_judge,
    a_message_that_is_done_meanwhile_undoes_all_of_it,
    a_handler_cannot_end_the_transaction_it_is_part_of,
);
