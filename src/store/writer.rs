//! The queue in front of a database's one writer.
//!
//! The writer takes all that is queued, commits it as one transaction, and only then answers: one
//! commit serves many deliveries, and a lone job on an idle system commits at once because nothing
//! waits for company. A job may run more than once, in another transaction each time; it is
//! answered once.

use std::sync::Arc;
use std::thread;

use tokio::sync::{mpsc, oneshot, watch};

use crate::custody::Authority;
use crate::effect::Statement;
use crate::event::MessageKey;
use crate::store::ledger::{Ledger, kept_if_committed};
use crate::store::{Committed, Incoming, Outgoing, StoreError};

/// Jobs that may wait for the writer; beyond it callers wait their turn.
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

/// Work of one caller inside a transaction.
pub(crate) trait Job: Send {
    /// The message it writes about, where it is known beforehand.
    fn key(&self) -> Option<MessageKey>;

    /// Does the work, and says whether what it wrote is to be kept. The error is this job's answer
    /// too, unless the writer runs it again.
    fn run(&mut self, ledger: &Ledger<'_>) -> Result<bool, StoreError>;

    /// Answers with what came of the latest run, or with why nothing is on disk.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);

    /// The delivery it commits, if it is one whose parts can be written together with those of
    /// others.
    fn as_commit(&self) -> Option<&Commit> {
        None
    }

    /// Takes note that the delivery was committed together with others.
    fn was_committed(&mut self) {}
}

/// What one delivery commits.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub incoming: Arc<Incoming>,
    pub authority: Authority,
    pub statements: Vec<Statement>,
    pub outgoing: Vec<Outgoing>,
}

/// A database, as its writer thread uses it.
pub(crate) trait Transactions: Send + 'static {
    /// Runs the jobs and commits what they keep, in one transaction where that can be; says for
    /// each whether it is on disk.
    fn commit(&mut self, jobs: &mut [Box<dyn Job>]) -> Vec<Result<(), StoreError>>;
}

struct Queued {
    /// It may not share its transaction with others.
    alone: bool,
    job: Box<dyn Job>,
}

/// A handle on the writer thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Writer {
    jobs: mpsc::Sender<Queued>,
    healthy: watch::Sender<bool>,
}

impl Writer {
    pub(crate) fn start(transactions: impl Transactions) -> std::io::Result<Self> {
        let (jobs, queued) = mpsc::channel(QUEUE_MAX);
        let healthy = watch::Sender::new(true);
        let health = healthy.clone();
        thread::Builder::new()
            .name("backstop-writer".into())
            .spawn(move || write_loop(transactions, queued, &health))?;
        Ok(Self { jobs, healthy })
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

    /// Completes when the writer has ended, which it does by itself only when it panics.
    pub(crate) async fn ends(&self) {
        self.jobs.closed().await;
    }

    /// Runs `work` in the next transaction and returns its answer after the commit. `key` is the
    /// message it is about, where that is known beforehand.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the job back: it commits or not, unobserved.
    pub(crate) async fn write<R: Send + 'static>(
        &self,
        key: Option<MessageKey>,
        work: impl FnMut(&Ledger<'_>) -> Result<Kept<R>, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Work { key, run: work, result: Err(StoreError::Stopped), answer });
        self.enqueue(false, job, answered).await
    }

    /// Like [`Writer::write`], in a transaction of its own: for a job that may take long, so that
    /// no answer of another waits for it.
    pub(crate) async fn write_alone<R: Send + 'static>(
        &self,
        work: impl FnMut(&Ledger<'_>) -> Result<Kept<R>, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Work { key: None, run: work, result: Err(StoreError::Stopped), answer });
        self.enqueue(true, job, answered).await
    }

    /// Commits a delivery in the next transaction, all of it or nothing.
    ///
    /// # Cancel safety
    /// That of [`Writer::write`].
    pub(crate) async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let (answer, answered) = oneshot::channel();
        let result = Err(StoreError::Stopped);
        self.enqueue(false, Box::new(Delivery { commit, result, answer }), answered).await
    }

    async fn enqueue<R>(
        &self,
        alone: bool,
        job: Box<dyn Job>,
        answered: oneshot::Receiver<Result<R, StoreError>>,
    ) -> Result<R, StoreError> {
        // The writer ends only when it panics or is no longer wanted: in either case nothing can
        // be written any more.
        let stopped = || {
            self.healthy.send_replace(false);
            StoreError::Stopped
        };
        self.jobs.send(Queued { alone, job }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}

struct Work<R, F> {
    key: Option<MessageKey>,
    run: F,
    /// What the latest run came to.
    result: Result<R, StoreError>,
    answer: oneshot::Sender<Result<R, StoreError>>,
}

impl<R, F> Job for Work<R, F>
where
    R: Send,
    F: FnMut(&Ledger<'_>) -> Result<Kept<R>, StoreError> + Send,
{
    fn key(&self) -> Option<MessageKey> {
        self.key
    }

    fn run(&mut self, ledger: &Ledger<'_>) -> Result<bool, StoreError> {
        let (ran, result) = told((self.run)(ledger));
        self.result = result;
        ran
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        // A caller that has gone away does not need its answer.
        drop(self.answer.send(committed.and(self.result)));
    }
}

/// Whether what a run wrote is to be kept, and what the run came to.
fn told<R>(kept: Result<Kept<R>, StoreError>) -> (Result<bool, StoreError>, Result<R, StoreError>) {
    match kept {
        Ok(Kept::Keep(value)) => (Ok(true), Ok(value)),
        Ok(Kept::Undo(value)) => (Ok(false), Ok(value)),
        Err(error) => (Err(error.clone()), Err(error)),
    }
}

struct Delivery {
    commit: Commit,
    /// What the latest run came to.
    result: Result<Committed, StoreError>,
    answer: oneshot::Sender<Result<Committed, StoreError>>,
}

impl Job for Delivery {
    fn key(&self) -> Option<MessageKey> {
        Some(self.commit.incoming.key)
    }

    fn run(&mut self, ledger: &Ledger<'_>) -> Result<bool, StoreError> {
        let Commit { incoming, authority, statements, outgoing } = &self.commit;
        let kept = ledger.commit(incoming, *authority, statements, outgoing).map(kept_if_committed);
        let (ran, result) = told(kept);
        self.result = result;
        ran
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        drop(self.answer.send(committed.and(self.result)));
    }

    fn as_commit(&self) -> Option<&Commit> {
        Some(&self.commit)
    }

    fn was_committed(&mut self) {
        self.result = Ok(Committed::Yes);
    }
}

fn write_loop(
    mut transactions: impl Transactions,
    mut queued: mpsc::Receiver<Queued>,
    healthy: &watch::Sender<bool>,
) {
    let mut next = queued.blocking_recv();
    while let Some(first) = next.take() {
        let shared = !first.alone;
        let mut batch = vec![first.job];
        while shared && batch.len() < BATCH_MAX {
            match queued.try_recv() {
                Ok(queued) if queued.alone => {
                    next = Some(queued);
                    break;
                }
                Ok(queued) => batch.push(queued.job),
                Err(_) => break,
            }
        }
        let committed = transactions.commit(&mut batch);
        let away = committed.iter().any(|result| matches!(result, Err(StoreError::Away(_))));
        healthy.send_if_modified(|healthy| std::mem::replace(healthy, !away) == away);
        for (job, committed) in batch.into_iter().zip(committed) {
            job.answer(committed);
        }
        if next.is_none() {
            next = queued.blocking_recv();
        }
    }
}
