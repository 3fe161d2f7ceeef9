//! The writer: one transaction for many, one delivery's failure its own, answers after the commit.

use std::sync::atomic::{AtomicUsize, Ordering};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::super::worker::{Kept, Worker};
use super::*;

const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the tables and opens a connection that waits so long for another's write.
fn connect(place: &Place, patience: Duration) -> Connection {
    drop(place.open());
    let connection = Connection::open(place.path()).unwrap();
    connection.busy_timeout(patience).unwrap();
    connection
}

/// A writer and a reader on the same file.
fn worker(place: &Place, patience: Duration) -> Worker {
    let writes_to = connect(place, patience);
    Worker::start(writes_to, connect(place, patience), place.clock.clone()).unwrap()
}

fn insert(connection: &Connection, text: &str) -> Result<(), StoreError> {
    let inserted = connection.execute("INSERT INTO note (text) VALUES (?1)", [text]);
    inserted.map(drop).map_err(StoreError::away)
}

/// Holds the writer in a job until the sender speaks, so that what follows queues up behind it and
/// shares one transaction.
async fn hold(worker: &Worker) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (go, wait) = oneshot::channel();
    let (begun, has_begun) = oneshot::channel();
    let worker = worker.clone();
    let held = tokio::spawn(async move {
        let job = move |_: &Connection, _| {
            begun.send(()).unwrap();
            wait.blocking_recv().unwrap();
            Ok(Kept::Keep(()))
        };
        worker.write_alone(job).await.unwrap();
    });
    has_begun.await.unwrap();
    (go, held)
}

type Job = Box<dyn FnOnce(&Connection) -> Result<Kept<&'static str>, StoreError> + Send>;

/// Queues jobs in this order and gives their answers.
async fn together(worker: &Worker, jobs: Vec<Job>) -> Vec<Result<&'static str, StoreError>> {
    let (go, held) = hold(worker).await;
    let mut answers = Vec::new();
    for job in jobs {
        let worker = worker.clone();
        let (queued, is_queued) = oneshot::channel();
        answers.push(tokio::spawn(async move {
            let mut write = std::pin::pin!(worker.write(move |connection, _| job(connection)));
            // The first poll queues the job.
            let polled = futures::poll!(write.as_mut());
            assert!(polled.is_pending());
            queued.send(()).unwrap();
            write.await
        }));
        is_queued.await.unwrap();
    }
    go.send(()).unwrap();
    held.await.unwrap();
    let mut results = Vec::new();
    for answer in answers {
        results.push(answer.await.unwrap());
    }
    results
}

fn writes(text: &'static str) -> Job {
    Box::new(move |connection| insert(connection, text).map(|()| Kept::Keep(text)))
}

#[tokio::test]
async fn one_delivery_s_bad_sql_undoes_nothing_of_its_neighbours() {
    let place = Place::new();
    let worker = worker(&place, PATIENCE);
    let fails: Job = Box::new(|connection| {
        insert(connection, "half of a failing one")?;
        connection.execute("INSERT INTO nowhere VALUES (1)", []).map_err(StoreError::away)?;
        Ok(Kept::Keep("never"))
    });
    let undone: Job =
        Box::new(|connection| insert(connection, "undone").map(|()| Kept::Undo("undone")));
    let answers = together(&worker, vec![writes("first"), fails, undone, writes("last")]).await;
    assert_eq!(answers[0].as_ref().unwrap(), &"first");
    assert!(matches!(&answers[1], Err(StoreError::Away(_))), "{:?}", answers[1]);
    assert_eq!(answers[2].as_ref().unwrap(), &"undone");
    assert_eq!(answers[3].as_ref().unwrap(), &"last");
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 2);
    assert!(worker.is_healthy());
}

#[tokio::test]
async fn all_that_is_queued_shares_one_commit() {
    let place = Place::new();
    let writes_to = connect(&place, PATIENCE);
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&commits);
    let count = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        false
    };
    writes_to.commit_hook(Some(count)).unwrap();
    let worker = Worker::start(writes_to, connect(&place, PATIENCE), place.clock.clone()).unwrap();
    together(&worker, (0..100).map(|_| writes("one of many")).collect()).await;
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 100);
    assert_eq!(commits.load(Ordering::SeqCst), 2, "the one that held the writer, and theirs");
}

#[tokio::test]
async fn a_job_after_a_failed_begin_writes_nothing_and_says_that_the_store_is_away() {
    let place = Place::new();
    let worker = worker(&place, Duration::from_millis(100));
    let other = connect(&place, PATIENCE);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let write = |text: &'static str| {
        worker.write(move |connection, _| insert(connection, text).map(Kept::Keep))
    };
    let (first, second) = tokio::join!(write("first"), write("second"));
    assert!(matches!(first, Err(StoreError::Away(_))), "{first:?}");
    assert!(matches!(second, Err(StoreError::Away(_))), "{second:?}");
    assert!(!worker.is_healthy());
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 0);
    write("later").await.unwrap();
    assert!(worker.is_healthy());
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 1);
}

#[tokio::test]
async fn the_answer_comes_when_another_process_can_see_the_write() {
    let place = Place::new();
    let store = place.open();
    for n in 1..=20 {
        assert_eq!(store.commit_one(&n.to_string(), vec![note("done")]).await, Committed::Yes);
        assert_eq!(place.on_disk("SELECT count(*) FROM note"), n);
    }
}

#[tokio::test]
async fn when_the_commit_fails_nobody_is_told_otherwise() {
    let place = Place::new();
    let deferred = AppMigration {
        name: "0002_deferred",
        sql: "CREATE TABLE line (item TEXT REFERENCES stock (item) DEFERRABLE INITIALLY DEFERRED);",
    };
    place.open_with(OpenAs::Service, &[TABLES, deferred]).unwrap();
    let writes_to = connect(&place, PATIENCE);
    writes_to.pragma_update(None, "foreign_keys", true).unwrap();
    let worker = Worker::start(writes_to, connect(&place, PATIENCE), place.clock.clone()).unwrap();
    let breaks: Job = Box::new(|connection| {
        connection.execute("INSERT INTO line VALUES ('unknown')", []).map_err(StoreError::away)?;
        Ok(Kept::Keep("never"))
    });
    for answer in together(&worker, vec![writes("first"), breaks, writes("last")]).await {
        assert!(matches!(answer, Err(StoreError::Away(_))), "{answer:?}");
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 0);
    worker.write(|connection, _| insert(connection, "later").map(Kept::Keep)).await.unwrap();
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 1);
}

#[tokio::test]
async fn a_full_disk_says_away_leaves_the_store_whole_and_heals_by_itself() {
    let place = Place::new();
    let store = place.open();
    let bounded = |pages: u32| {
        store.worker.write(move |connection, _| {
            // Never less than there are: the database is full from here on.
            connection
                .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
                .map_err(StoreError::away)?;
            Ok(Kept::Keep(()))
        })
    };
    bounded(1).await.unwrap();
    let large = || {
        let text = "x".repeat(1 << 20);
        sql("INSERT INTO note (text) VALUES (?1)", [Value::from(text)])
    };
    let refused = store.commit(message("1"), Authority::Delivery, vec![large()], Vec::new()).await;
    assert!(matches!(refused, Err(StoreError::Away(_))), "{refused:?}");
    // A failure may fit still; where it does not, the sidecar keeps the message.
    drop(store.fail(message("1"), Authority::Delivery, FAILED).await);
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 0);
    assert_eq!(place.on_disk("SELECT count(*) FROM inbox"), 0);
    bounded(1 << 20).await.unwrap();
    assert_eq!(store.commit_one("1", vec![large()]).await, Committed::Yes);
    assert!(store.worker.is_healthy());
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 1);
    assert_eq!(place.on_disk("SELECT count(*) FROM message"), 0);
}

#[tokio::test]
async fn a_full_disk_in_one_job_is_never_half_a_transaction() {
    let place = Place::new();
    let worker = worker(&place, PATIENCE);
    let fills: Job = Box::new(|connection| {
        connection
            .query_row("PRAGMA max_page_count = 1", [], |_| Ok(()))
            .map_err(StoreError::away)?;
        insert(connection, &"x".repeat(1 << 20))?;
        Ok(Kept::Keep("never"))
    });
    let answers = together(&worker, vec![writes("first"), fills, writes("last")]).await;
    assert!(matches!(&answers[1], Err(StoreError::Away(_))), "{:?}", answers[1]);
    let kept = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), i64::try_from(kept).unwrap());
}

#[tokio::test]
async fn a_read_only_file_is_away_and_not_a_fault_of_the_message() {
    let place = Place::new();
    let store = place.open();
    let only_reads = store.worker.write(|connection, _| {
        connection.pragma_update(None, "query_only", true).map_err(StoreError::away)?;
        Ok(Kept::Keep(()))
    });
    only_reads.await.unwrap();
    let committed =
        store.commit(message("1"), Authority::Delivery, vec![note("a")], Vec::new()).await;
    assert!(matches!(committed, Err(StoreError::Away(_))), "{committed:?}");
    let failed = store.fail(message("1"), Authority::Delivery, FAILED).await;
    assert!(matches!(failed, Err(StoreError::Away(_))), "{failed:?}");
}

#[tokio::test]
async fn a_job_whose_caller_has_gone_away_still_commits() {
    let place = Place::new();
    let worker = worker(&place, PATIENCE);
    let (go, held) = hold(&worker).await;
    {
        let mut write = std::pin::pin!(
            worker.write(|connection, _| insert(connection, "alone").map(Kept::Keep))
        );
        assert!(futures::poll!(write.as_mut()).is_pending());
    }
    go.send(()).unwrap();
    held.await.unwrap();
    worker.write(|_, _| Ok(Kept::Keep(()))).await.unwrap();
    assert_eq!(place.on_disk("SELECT count(*) FROM note"), 1);
}
