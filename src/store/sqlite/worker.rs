//! The threads that own SQLite connections: one writer, one reader.
//!
//! The writer takes all that is queued, runs each job under a savepoint of its own inside one
//! transaction, commits, and only then answers: one commit serves many deliveries, one
//! delivery's bad SQL undoes nothing of its neighbours, and a lone job on an idle system commits
//! at once because nothing waits for company.

use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::{Clock, Timestamp};
use crate::store::StoreError;

/// Jobs that may wait for the writer or the reader; beyond it callers wait their turn.
const QUEUE_MAX: usize = 4096;
/// Jobs in one transaction.
const BATCH_MAX: usize = 256;

/// What a write leaves behind: its rows, or only its answer.
pub(crate) enum Kept<R> {
    /// Commit what the job wrote.
    Keep(R),
    /// Undo what the job wrote and answer this.
    Undo(R),
}

type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
type Transaction<'c> = Result<(&'c Connection, Timestamp), StoreError>;
type WriteJob = Box<dyn FnOnce(Transaction<'_>) -> (bool, Answer) + Send>;
/// A job, and whether it may share its transaction with others.
struct Queued {
    alone: bool,
    job: WriteJob,
}
type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// A handle on the two threads; they end when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Worker {
    writes: mpsc::Sender<Queued>,
    reads: mpsc::Sender<ReadJob>,
    healthy: watch::Sender<bool>,
}

impl Worker {
    pub(crate) fn start(
        for_writes: Connection,
        for_reads: Connection,
        clock: Clock,
    ) -> std::io::Result<Self> {
        let (writes, to_write) = mpsc::channel(QUEUE_MAX);
        let (reads, to_read) = mpsc::channel(QUEUE_MAX);
        let healthy = watch::Sender::new(true);
        let health = healthy.clone();
        thread::Builder::new()
            .name("backstop-writer".into())
            .spawn(move || write_loop(&for_writes, to_write, &clock, &health))?;
        thread::Builder::new()
            .name("backstop-reader".into())
            .spawn(move || read_loop(&for_reads, to_read))?;
        Ok(Self { writes, reads, healthy })
    }

    /// Whether the latest transaction could be committed; answered from memory.
    pub(crate) fn is_healthy(&self) -> bool {
        *self.healthy.borrow()
    }

    /// Completes when the latest transaction could be committed.
    pub(crate) async fn becomes_healthy(&self) {
        // This handle keeps the channel open, so waiting ends only with health.
        drop(self.healthy.subscribe().wait_for(|healthy| *healthy).await);
    }

    /// Runs `work` in the next transaction and returns its answer after the commit.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the job back: it commits or not, unobserved.
    pub(crate) async fn write<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, Timestamp) -> Result<Kept<R>, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        self.enqueue(false, work).await
    }

    /// Like [`Worker::write`], in a transaction of its own: for a job that may take long, so that
    /// no answer of another waits for it.
    pub(crate) async fn write_alone<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, Timestamp) -> Result<Kept<R>, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        self.enqueue(true, work).await
    }

    async fn enqueue<R: Send + 'static>(
        &self,
        alone: bool,
        work: impl FnOnce(&Connection, Timestamp) -> Result<Kept<R>, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: WriteJob = Box::new(move |transaction| {
            let (keep, result) =
                match transaction.and_then(|(connection, now)| work(connection, now)) {
                    Ok(Kept::Keep(value)) => (true, Ok(value)),
                    Ok(Kept::Undo(value)) => (false, Ok(value)),
                    Err(error) => (false, Err(error)),
                };
            let tell: Answer = Box::new(move |committed| {
                // A caller that has gone away does not need its answer.
                drop(answer.send(committed.and(result)));
            });
            (keep, tell)
        });
        // The writer ends only when it panics or is no longer wanted: in either case nothing can
        // be written any more.
        let stopped = || {
            self.healthy.send_replace(false);
            StoreError::Stopped
        };
        self.writes.send(Queued { alone, job }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Runs `work` on the latest committed state.
    pub(crate) async fn read<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: ReadJob = Box::new(move |connection| drop(answer.send(work(connection))));
        self.reads.send(job).await.map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }
}

fn write_loop(
    connection: &Connection,
    mut jobs: mpsc::Receiver<Queued>,
    clock: &Clock,
    healthy: &watch::Sender<bool>,
) {
    let mut next = jobs.blocking_recv();
    while let Some(first) = next.take() {
        let shared = !first.alone;
        let mut batch = vec![first.job];
        while shared && batch.len() < BATCH_MAX {
            match jobs.try_recv() {
                Ok(queued) if queued.alone => {
                    next = Some(queued);
                    break;
                }
                Ok(queued) => batch.push(queued.job),
                Err(_) => break,
            }
        }
        let mut answers = Vec::with_capacity(batch.len());
        let committed = commit_batch(connection, batch, clock, &mut answers);
        healthy.send_if_modified(|healthy| {
            let changed = *healthy != committed.is_ok();
            *healthy = committed.is_ok();
            changed
        });
        for answer in answers {
            answer(committed.clone());
        }
        if next.is_none() {
            next = jobs.blocking_recv();
        }
    }
}

fn commit_batch(
    connection: &Connection,
    batch: Vec<WriteJob>,
    clock: &Clock,
    answers: &mut Vec<Answer>,
) -> Result<(), StoreError> {
    // IMMEDIATE: a deferred transaction that turns into a write fails with SQLITE_BUSY_SNAPSHOT,
    // which the busy timeout does not wait out.
    let mut outcome = connection.execute_batch("BEGIN IMMEDIATE").map_err(StoreError::away);
    let now = clock.now();
    for job in batch {
        // After a failure nothing more may run: SQLite has perhaps ended the transaction by
        // itself, and a savepoint outside one would commit on its own.
        outcome = match outcome {
            Ok(()) => in_savepoint(connection, job, now, answers),
            Err(error) => {
                answers.push(job(Err(error.clone())).1);
                Err(error)
            }
        };
    }
    let finished =
        outcome.and_then(|()| connection.execute_batch("COMMIT").map_err(StoreError::away));
    if finished.is_err() && !connection.is_autocommit() {
        // Nothing of the batch is on disk and every caller is told so.
        if let Err(error) = connection.execute_batch("ROLLBACK") {
            tracing::warn!(error = %error, "A failed transaction could not be rolled back.");
        }
    }
    finished
}

fn in_savepoint(
    connection: &Connection,
    job: WriteJob,
    now: Timestamp,
    answers: &mut Vec<Answer>,
) -> Result<(), StoreError> {
    let opened = connection.execute_batch("SAVEPOINT delivery").map_err(StoreError::away);
    let (keep, answer) = job(opened.clone().map(|()| (connection, now)));
    answers.push(answer);
    opened?;
    let close = if keep { "RELEASE delivery" } else { "ROLLBACK TO delivery; RELEASE delivery" };
    connection.execute_batch(close).map_err(StoreError::away)
}

fn read_loop(connection: &Connection, mut jobs: mpsc::Receiver<ReadJob>) {
    while let Some(job) = jobs.blocking_recv() {
        job(connection);
    }
}
