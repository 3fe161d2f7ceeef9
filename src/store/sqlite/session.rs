//! One interactive transaction: statements come one at a time from an async handler and run on
//! the writer thread, which does nothing else until the delivery has committed or its time is up.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::effects;
use super::ledger::Ledger;
use super::worker::{Kept, Worker};
use crate::clock::Timestamp;
use crate::custody::{Authority, Limits};
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

impl Session {
    pub(super) async fn open(
        worker: Worker,
        limits: Limits,
        limit: Duration,
    ) -> Result<Self, StoreError> {
        let (commands, inbox) = sync_channel(1);
        let (begun, has_begun) = oneshot::channel();
        let serve = move |connection: &Connection, now: Timestamp| {
            if begun.send(()).is_err() {
                return Ok(Kept::Undo(Committed::EffectFailed(reason::TRANSACTION_TIMED_OUT)));
            }
            let until = Instant::now() + limit;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                match inbox.recv_timeout(left) {
                    Ok(Command::Execute(text, params, reply)) => {
                        let params: Vec<&Value> = params.iter().collect();
                        let executed = still_open(connection)
                            .and_then(|()| effects::execute(connection, &text, &params));
                        drop(reply.send(executed));
                    }
                    Ok(Command::Query(text, params, reply)) => {
                        drop(reply.send(effects::query(connection, &text, &params)));
                    }
                    Ok(Command::Commit(incoming, authority, outgoing)) => {
                        still_open(connection)?;
                        let ledger = Ledger { connection, limits: &limits, now };
                        return ledger
                            .commit(&incoming, authority, &[], &outgoing)
                            .map(kept_as_a_whole);
                    }
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                        return Ok(Kept::Undo(Committed::EffectFailed(
                            reason::TRANSACTION_TIMED_OUT,
                        )));
                    }
                }
            }
        };
        let outcome = tokio::spawn(async move { worker.write_alone(serve).await });
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

/// The statements ran before the verdict, so all but a commit undoes them.
pub(super) fn kept_as_a_whole(committed: Committed) -> Kept<Committed> {
    match committed {
        Committed::Yes => Kept::Keep(committed),
        other => Kept::Undo(other),
    }
}

/// A statement can end the transaction it is part of (`ON CONFLICT ROLLBACK`); what came after it
/// would commit on its own.
fn still_open(connection: &Connection) -> Result<(), StoreError> {
    if connection.is_autocommit() {
        return Err(StoreError::away("a statement of the handler has ended its transaction"));
    }
    Ok(())
}

fn timed_out() -> StoreError {
    StoreError::away("the interactive transaction is over")
}
