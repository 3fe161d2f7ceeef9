//! One interactive transaction: statements come one at a time from an async handler and run on
//! the thread that has the transaction open, until the delivery has committed or its time is up.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::ledger::Ledger;
use super::sql::{Param, Sql};
use super::writer::Kept;
use crate::custody::Authority;
use crate::effect::Value;
use crate::outcome::{Code, reason};
use crate::store::{Committed, Incoming, Outgoing, StoreError};

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

enum Command {
    Execute(String, Vec<Value>, Reply<Result<u64, Code>>),
    Query(String, Vec<Value>, Reply<Vec<Vec<Value>>>),
    Commit(Arc<Incoming>, Authority, Vec<Outgoing>),
}

/// An open transaction. Dropped without a commit, it rolls back.
pub(crate) struct Session {
    commands: SyncSender<Command>,
    outcome: JoinHandle<Result<Committed, StoreError>>,
}

/// The other end of a session: what the transaction has to do. It can be run once.
pub(crate) struct Served {
    commands: Receiver<Command>,
    begun: Option<oneshot::Sender<()>>,
    limit: Duration,
}

impl Session {
    /// Opens a session whose other end `run` serves, in a transaction of its own.
    pub(super) async fn open<F>(
        limit: Duration,
        run: impl FnOnce(Served) -> F,
    ) -> Result<Self, StoreError>
    where
        F: Future<Output = Result<Committed, StoreError>> + Send + 'static,
    {
        let (commands, received) = sync_channel(1);
        let (begun, has_begun) = oneshot::channel();
        let served = Served { commands: received, begun: Some(begun), limit };
        let outcome = tokio::spawn(run(served));
        has_begun.await.map_err(|_| StoreError::away("no transaction could be opened"))?;
        Ok(Self { commands, outcome })
    }

    /// Runs a statement and says how many rows it changed.
    pub(crate) async fn execute(
        &self,
        text: String,
        params: Vec<Value>,
    ) -> Result<Result<u64, Code>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Execute(text, params, reply))?;
        answer.await.map_err(|_| timed_out())?
    }

    /// Runs a query inside the transaction.
    pub(crate) async fn query(
        &self,
        text: String,
        params: Vec<Value>,
    ) -> Result<Vec<Vec<Value>>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Query(text, params, reply))?;
        answer.await.map_err(|_| timed_out())?
    }

    /// Appends the outgoing messages, writes the inbox key last, and commits.
    pub(crate) async fn commit(
        self,
        incoming: Arc<Incoming>,
        authority: Authority,
        outgoing: Vec<Outgoing>,
    ) -> Result<Committed, StoreError> {
        // A refused send means the time is up; the outcome says so.
        drop(self.commands.send(Command::Commit(incoming, authority, outgoing)));
        self.outcome.await.map_err(|_| StoreError::Stopped)?
    }

    fn send(&self, command: Command) -> Result<(), StoreError> {
        self.commands.try_send(command).map_err(|_| timed_out())
    }
}

impl Served {
    /// Does what the session asks for until it commits, is dropped, or its time is up.
    pub(super) fn serve(&mut self, ledger: &Ledger<'_>) -> Result<Kept<Committed>, StoreError> {
        let too_late = || Ok(Kept::Undo(Committed::EffectFailed(reason::TRANSACTION_TIMED_OUT)));
        match self.begun.take().map(|begun| begun.send(())) {
            Some(Ok(())) => {}
            Some(Err(())) | None => return too_late(),
        }
        let sql = ledger.sql;
        let until = Instant::now() + self.limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.commands.recv_timeout(left) {
                Ok(Command::Execute(text, params, reply)) => {
                    let params: Vec<Param<'_>> = params.iter().map(Param::from).collect();
                    let executed = still_open(sql).and_then(|()| sql.effect(&text, &params));
                    drop(reply.send(executed));
                }
                Ok(Command::Query(text, params, reply)) => {
                    let params: Vec<Param<'_>> = params.iter().map(Param::from).collect();
                    drop(reply.send(sql.query(&text, &params)));
                }
                Ok(Command::Commit(incoming, authority, outgoing)) => {
                    still_open(sql)?;
                    sql.lock(&[incoming.key])?;
                    return ledger
                        .commit(&incoming, authority, &[], &outgoing)
                        .map(kept_as_a_whole);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return too_late();
                }
            }
        }
    }
}

/// The statements ran before the verdict, so all but a commit undoes them.
pub(super) fn kept_as_a_whole(committed: Committed) -> Kept<Committed> {
    match committed {
        Committed::Yes => Kept::Keep(committed),
        other => Kept::Undo(other),
    }
}

/// A statement can end the transaction it is part of (`ON CONFLICT ROLLBACK`); what came after it
/// would commit on its own.
fn still_open(sql: &dyn Sql) -> Result<(), StoreError> {
    if sql.is_open() {
        return Ok(());
    }
    Err(StoreError::away("a statement of the handler has ended its transaction"))
}

fn timed_out() -> StoreError {
    StoreError::away("the interactive transaction is over")
}
