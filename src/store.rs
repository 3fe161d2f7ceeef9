//! The store: the one seam between the core and a database.
//!
//! Every method is one transaction. Writes about a message go through [`crate::custody::step`],
//! so no database decides anything itself. SQLite is the only implementation so far; nothing in
//! these signatures is SQLite's.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::clock::{Clock, Timestamp};
use crate::custody::{Authority, Limits, Standing, State};
use crate::effect::{Statement, Value};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::outcome::{Category, Code};

mod case;
mod sqlite;

pub(crate) use case::{Asked, CaseRow, GateRow};
pub use case::{Attempt, AttemptKind, AuditEntry, CaseFilter, CaseStatus, GateAct};
pub(crate) use sqlite::session::Session;

/// Why the store could not do what was asked. Cloned to every caller of a failed commit.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database could not be read or written just now. Nothing was written; ask again later.
    #[error("the store cannot be read or written: {0}")]
    Away(Arc<str>),
    /// The store has been shut down.
    #[error("the store has stopped")]
    Stopped,
    /// Another process serves this database.
    #[error("{} is being served by another process; SQLite takes one service a file: stop the other, or give each its own BACKSTOP_STORE_URL", .0.display())]
    InUse(PathBuf),
    /// The database's tables are not those this build works with.
    #[error("{0}")]
    Schema(Arc<str>),
    /// A stored value has no meaning to this build.
    #[error("the store holds a value this build does not understand: {0}")]
    Corrupt(Arc<str>),
}

impl StoreError {
    pub(crate) fn away(error: impl std::fmt::Display) -> Self {
        Self::Away(error.to_string().into())
    }
}

/// A message as it came in: its identity, where it came from, and its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub key: MessageKey,
    pub fingerprint: Fingerprint,
    pub subscription: String,
    pub pubsub: String,
    pub topic: String,
    pub source: String,
    pub event_id: String,
    pub ty: String,
    pub subject: Option<String>,
    pub traceparent: Option<String>,
    pub stored: Stored,
    /// Its handler calls something that must not be repeated unasked.
    pub once: bool,
    /// What its `recoveryattempt` said.
    pub recovery_attempt: u32,
}

/// What a look at a message found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// The fingerprint it was processed with.
    pub done: Option<Fingerprint>,
    /// Its row: state, fingerprint, live attempts so far.
    pub row: Option<(State, Fingerprint, u32)>,
}

/// What a write about a message came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Nothing was written.
    Nothing(Standing),
    /// It is in this state now.
    Now(State),
    /// It is due for recovery then, or waits at a closed gate.
    Recovering { due_at: Option<Timestamp>, never_attempted: bool },
    /// A case was opened, or opened again.
    Quarantined(Quarantined),
    /// Its row stood beside an inbox key and is gone.
    Removed,
}

/// A case as the poison log needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quarantined {
    pub exception_id: String,
    pub subscription: String,
    pub source: String,
    pub event_id: String,
    pub category: Category,
    pub reason: Code,
    pub attempts: u32,
    /// A redrive opened a known case again.
    pub reopened: bool,
}

/// What a commit came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// Effects, outgoing messages and inbox key are on disk.
    Yes,
    /// It had no right to commit; nothing was written.
    Nothing(Standing),
    /// A statement changed another number of rows than it said and wants the handler run again.
    RowsDiffer,
    /// A statement changed another number of rows than it said and rejects the message.
    Rejected(Code),
    /// A statement failed.
    EffectFailed(Code),
}

/// A claimed run.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub incoming: Arc<Incoming>,
    pub run: i64,
    pub kind: AttemptKind,
    /// The number this attempt will have, from 1.
    pub attempt: u32,
    pub lease_until: Timestamp,
}

/// A message waiting in the outbox.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Its place in the log; 0 until it is written.
    pub seq: i64,
    pub pubsub: String,
    pub topic: String,
    pub message_id: String,
    /// The whole structured CloudEvent.
    pub content: Bytes,
}

/// What waits, for the gauges.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backlog {
    pub recovering: u64,
    pub gates_closed: u64,
    pub gates_waiting: u64,
    pub exceptions_open: u64,
    pub outbox_pending: u64,
    pub outbox_oldest: Option<Timestamp>,
}

/// A migration of the application's own tables: run once, in the order given, never edited after.
#[derive(Clone, Debug)]
pub struct AppMigration {
    /// Its name, for ever.
    pub name: &'static str,
    /// One or more SQL statements.
    pub sql: &'static str,
}

/// How a process means to use the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAs {
    /// As the one service: takes the lock, migrates, takes over what a dead process left running.
    Service,
    /// As an operator's tool beside the service: reads, and writes single acts.
    Operator,
}

/// The store, opened. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    sqlite: sqlite::Sqlite,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Opens a SQLite database, with its directory and file made where they are missing.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another service holds it, [`StoreError::Schema`] when its
    /// tables are not this build's, [`StoreError::Away`] when the file cannot be opened.
    pub async fn open_sqlite(
        path: PathBuf,
        open_as: OpenAs,
        migrations: Vec<AppMigration>,
        limits: Limits,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let opened = tokio::task::spawn_blocking(move || {
            sqlite::Sqlite::open(&path, open_as, &migrations, limits, clock)
        });
        let sqlite = opened.await.map_err(|_| StoreError::Stopped)??;
        Ok(Self { sqlite })
    }

    /// Whether the latest transaction could be committed; answered from memory.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.sqlite.worker.is_healthy()
    }

    /// Completes when the store can be written again; at once while it can.
    pub(crate) async fn becomes_healthy(&self) {
        self.sqlite.worker.becomes_healthy().await;
    }

    /// Whether the service before this one ended without saying so.
    pub(crate) fn opened_after_crash(&self) -> bool {
        self.sqlite.after_crash
    }

    /// Marks that a service serves now, or has ended properly.
    pub(crate) async fn serving(&self, serves: bool) -> Result<(), StoreError> {
        self.sqlite.serving(serves).await
    }

    /// The time by which leases and due times are judged.
    pub(crate) fn now(&self) -> Timestamp {
        self.sqlite.clock.now()
    }

    /// A cheap write, to learn whether writing works.
    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        self.sqlite.probe().await
    }

    // --- one message -------------------------------------------------------------------------

    /// Looks whether the message is done or in trouble.
    pub(crate) async fn look(&self, key: MessageKey) -> Result<Look, StoreError> {
        self.sqlite.look(key).await
    }

    /// Claims it for a delivery, bytes included, before anything outside is called.
    pub(crate) async fn claim_live(
        &self,
        incoming: Arc<Incoming>,
    ) -> Result<Result<Claim, Standing>, StoreError> {
        self.sqlite.claim_live(incoming).await
    }

    /// Commits effects, outgoing messages and inbox key, or nothing.
    pub(crate) async fn commit(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        statements: Vec<Statement>,
        outgoing: Vec<Outgoing>,
    ) -> Result<Committed, StoreError> {
        self.sqlite.commit(incoming, authority, statements, outgoing).await
    }

    /// Writes down a failure that may pass, with the event's bytes.
    pub(crate) async fn fail(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        code: Code,
    ) -> Result<Written, StoreError> {
        self.sqlite.fail(incoming, authority, code).await
    }

    /// Opens a case. `attempted` says whether a handler run led to it.
    pub(crate) async fn refuse(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        category: Category,
        code: Code,
        attempted: bool,
    ) -> Result<Written, StoreError> {
        self.sqlite.refuse(incoming, authority, category, code, attempted).await
    }

    /// Takes in its dead letter.
    pub(crate) async fn dead_letter(&self, incoming: Arc<Incoming>) -> Result<Written, StoreError> {
        self.sqlite.dead_letter(incoming).await
    }

    /// Gives a claim back whose handler never began.
    pub(crate) async fn release(
        &self,
        incoming: Arc<Incoming>,
        run: i64,
    ) -> Result<Written, StoreError> {
        self.sqlite.release(incoming, run).await
    }

    // --- what is due -------------------------------------------------------------------------

    /// Moves on what waited long enough: guard times and leases that have passed. At most `max`.
    pub(crate) async fn time_passed(&self, max: u32) -> Result<Vec<Written>, StoreError> {
        self.sqlite.time_passed(max).await
    }

    /// Claims recoveries that are due and redrives that were asked for, oldest first. Each claim
    /// spends a recovery; a case opened instead of a claim is among the second list.
    pub(crate) async fn claim_due(
        &self,
        max: u32,
    ) -> Result<(Vec<Claim>, Vec<Written>), StoreError> {
        self.sqlite.claim_due(max).await
    }

    /// When the next recovery, guard time or lease is due; `None` when nothing waits.
    pub(crate) async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        self.sqlite.next_due().await
    }

    /// What waits, for the gauges.
    pub(crate) async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.sqlite.backlog().await
    }

    // --- gates -------------------------------------------------------------------------------

    /// Every gate that has counted a failure since the last success, or is closed.
    pub(crate) async fn gates(&self) -> Result<Vec<GateRow>, StoreError> {
        self.sqlite.gates().await
    }

    /// Holds or opens a gate, with an audit entry.
    pub(crate) async fn act_on_gate(
        &self,
        subscription: String,
        code: Code,
        act: GateAct,
        actor: String,
    ) -> Result<(), StoreError> {
        self.sqlite.act_on_gate(subscription, code, act, actor).await
    }

    // --- the outbox --------------------------------------------------------------------------

    /// The next unpublished messages of every topic, in the log's order, at most `max` a topic.
    pub(crate) async fn outbox_pending(&self, max: u32) -> Result<Vec<Vec<Outgoing>>, StoreError> {
        self.sqlite.outbox_pending(max).await
    }

    /// Moves a topic's cursor: all up to `last` is published.
    pub(crate) async fn outbox_published(&self, last: Outgoing) -> Result<(), StoreError> {
        self.sqlite.outbox_published(last).await
    }

    /// Moves a topic's cursor past a message the sidecar refused for good, and opens its case.
    pub(crate) async fn outbox_refused(
        &self,
        refused: Outgoing,
        source: String,
    ) -> Result<Quarantined, StoreError> {
        self.sqlite.outbox_refused(refused, source).await
    }

    // --- cases -------------------------------------------------------------------------------

    /// Cases by filter, unfinished ones first, then the newest.
    pub(crate) async fn cases(&self, filter: CaseFilter) -> Result<Vec<CaseRow>, StoreError> {
        self.sqlite.cases(filter).await
    }

    /// The cases whose id begins with `prefix`, at most two.
    pub(crate) async fn cases_by_prefix(&self, prefix: String) -> Result<Vec<CaseRow>, StoreError> {
        self.sqlite.cases_by_prefix(prefix).await
    }

    /// What was done about a case, oldest first.
    pub(crate) async fn audit(&self, exception_id: String) -> Result<Vec<AuditEntry>, StoreError> {
        self.sqlite.audit(exception_id).await
    }

    /// The exact bytes of a case's message; the reveal is written to the audit log first.
    pub(crate) async fn reveal(
        &self,
        exception_id: String,
        actor: String,
    ) -> Result<Option<Stored>, StoreError> {
        self.sqlite.reveal(exception_id, actor).await
    }

    /// Asks the service to run a case's message again.
    pub(crate) async fn request_redrive(
        &self,
        exception_id: String,
        actor: String,
    ) -> Result<Asked, StoreError> {
        self.sqlite.request_redrive(exception_id, actor).await
    }

    /// Closes a case: a tombstone, nothing runs again.
    pub(crate) async fn close(
        &self,
        exception_id: String,
        actor: String,
        note: String,
    ) -> Result<Asked, StoreError> {
        self.sqlite.close(exception_id, actor, note).await
    }

    // --- the application ---------------------------------------------------------------------

    /// Runs one query on committed state. Rows are values in the order of the columns.
    pub(crate) async fn query(
        &self,
        sql: String,
        params: Vec<Value>,
    ) -> Result<Vec<Vec<Value>>, StoreError> {
        self.sqlite.query(sql, params).await
    }

    /// Opens an interactive transaction for one delivery.
    pub(crate) async fn session(&self, limit: std::time::Duration) -> Result<Session, StoreError> {
        self.sqlite.session(limit).await
    }
}
