//! What only SQLite's writer can meet: a lock, a full disk, a read-only file, a statement that ends
//! the whole transaction.

use super::*;

/// Another process's connection.
fn connect(place: &Place) -> Connection {
    let connection = Connection::open(place.path()).unwrap();
    connection.busy_timeout(Duration::from_secs(5)).unwrap();
    connection
}

/// Tells the writer's connection something.
async fn pragma(store: &Store, text: &str) {
    let text = format!("PRAGMA {text}");
    let tell = move |ledger: &Ledger<'_>| ledger.sql.records(&text, &[]).map(|_| Kept::Keep(()));
    store.write(None, tell).await.unwrap();
}

/// From here on a second row for an item rolls back the transaction it is part of.
async fn with_a_trigger_that_rolls_back(place: &Place) -> Store {
    drop(place.open().await);
    connect(place)
        .execute_batch(
            "CREATE TRIGGER once BEFORE INSERT ON stock
             WHEN EXISTS (SELECT 1 FROM stock WHERE item = NEW.item)
             BEGIN SELECT RAISE(ROLLBACK, 'twice'); END;",
        )
        .unwrap();
    let store = place.open().await;
    store.commit_one("0", vec![sql("INSERT INTO stock VALUES ('a', 1)", [])]).await;
    store
}

#[tokio::test]
async fn a_transaction_that_cannot_begin_writes_nothing_and_says_that_the_store_is_away() {
    let place = Place::sqlite();
    let store = place.open().await;
    pragma(&store, "busy_timeout = 100").await;
    let other = connect(&place);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let commit = |id| store.commit(message(id), Authority::Delivery, vec![note("a")], Vec::new());
    let (first, second) = tokio::join!(commit("1"), commit("2"));
    assert!(matches!(first, Err(StoreError::Away(_))), "{first:?}");
    assert!(matches!(second, Err(StoreError::Away(_))), "{second:?}");
    assert!(!store.is_healthy());
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 0);
    assert_eq!(commit("1").await.unwrap(), Committed::Yes);
    assert!(store.is_healthy());
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 1);
}

#[tokio::test]
async fn what_ends_the_transaction_leaves_nothing_of_it_and_counts_for_its_own_message() {
    let place = Place::sqlite();
    let store = with_a_trigger_that_rolls_back(&place).await;
    for text in
        ["INSERT OR ROLLBACK INTO stock VALUES ('a', 2)", "INSERT INTO stock VALUES ('a', 2)"]
    {
        let statements = vec![note("before"), sql(text, []), note("after")];
        let ended = store.commit_one("1", statements).await;
        assert!(matches!(ended, Committed::EffectFailed(_)), "{text}: {ended:?}");
        assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 0, "{text}");
    }
    assert_eq!(store.commit_one("2", vec![note("next")]).await, Committed::Yes);
}

#[tokio::test]
async fn after_a_trigger_has_rolled_everything_back_nothing_commits_on_its_own() {
    let place = Place::sqlite();
    let store = with_a_trigger_that_rolls_back(&place).await;
    let session = store.session(Duration::from_secs(20)).await.unwrap();
    let execute = async |text: &str| session.execute(text.to_owned(), Vec::new()).await;
    execute("INSERT INTO note VALUES ('before')").await.unwrap().unwrap();
    drop(execute("INSERT INTO stock VALUES ('a', 2)").await);
    let after = execute("INSERT INTO note VALUES ('after')").await;
    assert!(matches!(after, Err(StoreError::Away(_))), "{after:?}");
    let committed = session.commit(message("1"), Authority::Delivery, Vec::new()).await;
    assert!(!matches!(committed, Ok(Committed::Yes)), "{committed:?}");
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 0);
    assert_eq!(place.on_disk("SELECT count(*) FROM inbox").await, 1);
    assert_eq!(store.commit_one("2", vec![note("next")]).await, Committed::Yes);
}

#[tokio::test]
async fn a_full_disk_says_away_leaves_the_store_whole_and_heals_by_itself() {
    let place = Place::sqlite();
    let store = place.open().await;
    // Never less than there are: the database is full from here on.
    pragma(&store, "max_page_count = 1").await;
    let large = || {
        let text = "x".repeat(1 << 20);
        sql("INSERT INTO note (text) VALUES ($1)", [Value::from(text)])
    };
    let refused = store.commit(message("1"), Authority::Delivery, vec![large()], Vec::new()).await;
    assert!(matches!(refused, Err(StoreError::Away(_))), "{refused:?}");
    // A failure may fit still; where it does not, the sidecar keeps the message.
    drop(store.fail(message("1"), Authority::Delivery, FAILED).await);
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 0);
    assert_eq!(place.on_disk("SELECT count(*) FROM inbox").await, 0);
    pragma(&store, "max_page_count = 1048576").await;
    assert_eq!(store.commit_one("1", vec![large()]).await, Committed::Yes);
    assert!(store.is_healthy());
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 1);
    assert_eq!(place.on_disk("SELECT count(*) FROM message").await, 0);
}

#[tokio::test]
async fn a_read_only_file_is_away_and_not_a_fault_of_the_message() {
    let place = Place::sqlite();
    let store = place.open().await;
    pragma(&store, "query_only = true").await;
    let committed =
        store.commit(message("1"), Authority::Delivery, vec![note("a")], Vec::new()).await;
    assert!(matches!(committed, Err(StoreError::Away(_))), "{committed:?}");
    let failed = store.fail(message("1"), Authority::Delivery, FAILED).await;
    assert!(matches!(failed, Err(StoreError::Away(_))), "{failed:?}");
}
