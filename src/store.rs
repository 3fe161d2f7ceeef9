//! The store: the one seam between the core and a database.
//!
//! Every method is one transaction. Writes about a message go through [`crate::custody::step`],
//! so no database decides anything itself: the SQL is the same for both (`store/sql.rs`), and a
//! database brings its connection and its way to commit.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::custody::{Authority, Happening, Limits, Standing};
use crate::effect::{Statement, Value};
use crate::event::{MessageKey, Stored};
use crate::outcome::{Category, Code};

mod case;
mod cases;
#[cfg(test)]
mod conformance;
mod error;
mod gates;
mod ledger;
mod memory;
mod message;
mod outbox;
mod postgres;
mod rows;
mod schema;
mod session;
mod sql;
mod sqlite;
mod statements;
mod writer;

pub(crate) use case::{Asked, CaseRow, GateRow};
pub use case::{Attempt, AttemptKind, AuditEntry, CaseFilter, CaseStatus, GateAct};
pub use error::StoreError;
use ledger::Ledger;
pub use memory::Retention;
pub(crate) use message::{
    Backlog, Claim, Committed, Incoming, Look, OutboxLook, Outgoing, Quarantined, Topic, Waiting,
    Written,
};
use postgres::Postgres;
pub use postgres::{PostgresSettings, PostgresUrl, PostgresUrlError};
pub(crate) use session::Session;
use sql::{Param, Sql, params};
use sqlite::Sqlite;
use writer::{Commit, Kept, Writer};

/// A migration of the application's own tables: run once, in the order given, never edited after.
#[derive(Clone, Debug)]
pub struct AppMigration {
    /// Its name, for ever.
    pub name: &'static str,
    /// One or more SQL statements.
    pub sql: &'static str,
}

/// A database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// `sqlite://PATH`: one file, one process.
    Sqlite(PathBuf),
    /// `postgres://…`: many processes.
    Postgres(Box<PostgresSettings>),
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
    database: Database,
}

#[derive(Clone)]
enum Database {
    Sqlite(Sqlite),
    Postgres(Box<Postgres>),
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the database that `url` names. A service makes what is missing of it, `migrations`
    /// included, unless the settings say otherwise; an operator changes nothing.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another service holds a SQLite file, [`StoreError::Schema`] when
    /// the tables are not this build's, [`StoreError::Away`] when it cannot be opened or reached.
    pub async fn open(
        url: &StoreUrl,
        open_as: OpenAs,
        migrations: Vec<AppMigration>,
        limits: Limits,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let database = match url {
            StoreUrl::Sqlite(path) => {
                let path = path.clone();
                let opened = tokio::task::spawn_blocking(move || {
                    Sqlite::open(&path, open_as, &migrations, limits, clock)
                });
                Database::Sqlite(opened.await.map_err(|_| StoreError::Stopped)??)
            }
            StoreUrl::Postgres(settings) => {
                let opened = Postgres::open(settings, open_as, &migrations, limits, clock);
                Database::Postgres(Box::new(opened.await?))
            }
        };
        Ok(Self { database })
    }

    /// Makes what is missing of a database's tables, and opens nothing for good.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub async fn migrate(
        url: &StoreUrl,
        migrations: Vec<AppMigration>,
        clock: Clock,
    ) -> Result<(), StoreError> {
        match url {
            StoreUrl::Sqlite(_) => {
                let limits = Limits::default();
                Self::open(url, OpenAs::Service, migrations, limits, clock).await.map(drop)
            }
            StoreUrl::Postgres(settings) => Postgres::migrate(settings, &migrations, clock).await,
        }
    }

    fn writer(&self) -> &Writer {
        match &self.database {
            Database::Sqlite(sqlite) => &sqlite.writer,
            Database::Postgres(postgres) => &postgres.writer,
        }
    }

    /// Runs `work` in the next transaction, which it may share with others, and gives its answer
    /// after the commit. It may run more than once. `key` is the message it is about, where that
    /// is known beforehand.
    async fn write<R: Send + 'static>(
        &self,
        key: Option<MessageKey>,
        work: impl FnMut(&Ledger<'_>) -> Result<Kept<R>, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        self.writer().write(key, work).await
    }

    /// Runs `work` on the latest committed state.
    async fn read<R: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Sql) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        match &self.database {
            Database::Sqlite(sqlite) => sqlite.reader.read(work).await,
            Database::Postgres(postgres) => postgres.read(work).await,
        }
    }

    /// Whether the latest transaction could be committed; answered from memory.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.writer().is_healthy()
    }

    /// Completes when the store can be written again; at once while it can.
    pub(crate) async fn becomes_healthy(&self) {
        self.writer().becomes_healthy().await;
    }

    /// Completes when nothing can be written any more, however long one waits.
    pub(crate) async fn ends(&self) {
        self.writer().ends().await;
    }

    /// When it was last noticed that a service of this store had ended without saying so; the one
    /// before this one, or with PostgreSQL any other.
    pub(crate) fn crash_seen(&self) -> Option<Timestamp> {
        match &self.database {
            Database::Sqlite(sqlite) => sqlite.crash_seen,
            Database::Postgres(postgres) => postgres.crash_seen(),
        }
    }

    /// Says that this service serves. To be repeated every [`Store::SIGN_OF_LIFE_EVERY`], so that
    /// others do not take it for dead.
    pub(crate) async fn serving(&self) -> Result<(), StoreError> {
        match &self.database {
            Database::Sqlite(_) => self.mark_process("serving").await,
            Database::Postgres(postgres) => postgres.stay_alive().await,
        }
    }

    /// How often a service says that it serves.
    pub(crate) const SIGN_OF_LIFE_EVERY: Duration = postgres::RENEW_EVERY;

    /// Says that this service has ended properly.
    pub(crate) async fn ended(&self) -> Result<(), StoreError> {
        match &self.database {
            Database::Sqlite(_) => self.mark_process("ended").await,
            Database::Postgres(postgres) => postgres.end().await,
        }
    }

    async fn mark_process(&self, state: &'static str) -> Result<(), StoreError> {
        let mark = move |ledger: &Ledger<'_>| {
            let text = "UPDATE process SET state = $1 WHERE state <> $1";
            ledger.sql.execute(text, params![state]).map(|_| Kept::Keep(()))
        };
        self.write(None, mark).await
    }

    /// The time by which leases and due times are judged: with PostgreSQL, the database's.
    pub(crate) fn now(&self) -> Timestamp {
        match &self.database {
            Database::Sqlite(sqlite) => sqlite.clock.now(),
            Database::Postgres(postgres) => postgres.now(),
        }
    }

    /// Writes something, to learn whether writing works. A transaction that changes nothing can be
    /// committed on a disk that is full or read-only; a row that goes in and out again leaves the
    /// database as it was, and is written.
    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        let touch = |ledger: &Ledger<'_>| {
            ledger.sql.execute(
                "INSERT INTO relay_cursor (log, pubsub, topic, seq) VALUES (0, '', '', 0)
                 ON CONFLICT DO NOTHING",
                &[],
            )?;
            ledger.sql.execute("DELETE FROM relay_cursor WHERE log = 0", &[])?;
            Ok(Kept::Keep(()))
        };
        self.write(None, touch).await
    }

    // --- one message -------------------------------------------------------------------------

    /// Looks whether the message is done or in trouble.
    pub(crate) async fn look(&self, key: MessageKey) -> Result<Look, StoreError> {
        match &self.database {
            Database::Sqlite(_) => self.read(move |sql| rows::look(sql, key)).await,
            Database::Postgres(postgres) => postgres.look(key).await,
        }
    }

    /// Claims it for a delivery, bytes included, before anything outside is called.
    pub(crate) async fn claim_live(
        &self,
        incoming: Arc<Incoming>,
    ) -> Result<Result<Claim, Standing>, StoreError> {
        let claim = {
            let incoming = Arc::clone(&incoming);
            move |ledger: &Ledger<'_>| match ledger.happen(
                &incoming,
                &Happening::LiveClaim,
                None,
            )? {
                Written::Nothing(standing) => Ok(Kept::Undo(Err(standing))),
                _ => {
                    ledger.claim_of(&incoming, AttemptKind::Live).map(|claim| Kept::Keep(Ok(claim)))
                }
            }
        };
        self.write(Some(incoming.key), claim).await
    }

    /// Commits effects, outgoing messages and inbox key, or nothing.
    pub(crate) async fn commit(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        statements: Vec<Statement>,
        outgoing: Vec<Outgoing>,
    ) -> Result<Committed, StoreError> {
        let commit = Commit { incoming, authority, statements, outgoing };
        refused_as_failed(self.writer().commit(commit).await)
    }

    /// Writes down a failure that may pass, with the event's bytes.
    pub(crate) async fn fail(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        code: Code,
    ) -> Result<Written, StoreError> {
        self.happen(incoming, Happening::Failed(authority, code.clone()), Some(code)).await
    }

    /// The same for a delivery in a batch: recovery tries it again, not the sidecar.
    pub(crate) async fn fail_in_bulk(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        code: Code,
    ) -> Result<Written, StoreError> {
        self.happen(incoming, Happening::FailedInBulk(authority, code.clone()), Some(code)).await
    }

    /// Takes a delivery in a batch that has no end by its deadline, with the event's bytes.
    pub(crate) async fn hand_over(&self, incoming: Arc<Incoming>) -> Result<Written, StoreError> {
        self.happen(incoming, Happening::HandedOver, None).await
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
        let recorded = attempted.then(|| code.clone());
        self.happen(incoming, Happening::Refused(authority, category, code), recorded).await
    }

    /// Takes in its dead letter.
    pub(crate) async fn dead_letter(&self, incoming: Arc<Incoming>) -> Result<Written, StoreError> {
        self.happen(incoming, Happening::DeadLetter, None).await
    }

    /// Gives a claim back whose handler never began.
    pub(crate) async fn release(
        &self,
        incoming: Arc<Incoming>,
        run: i64,
    ) -> Result<Written, StoreError> {
        self.happen(incoming, Happening::Released(run), None).await
    }

    async fn happen(
        &self,
        incoming: Arc<Incoming>,
        happening: Happening,
        attempt: Option<Code>,
    ) -> Result<Written, StoreError> {
        let key = incoming.key;
        let write = move |ledger: &Ledger<'_>| {
            ledger.happen(&incoming, &happening, attempt.as_ref()).map(Kept::Keep)
        };
        self.write(Some(key), write).await
    }

    // --- what is due -------------------------------------------------------------------------

    /// Moves on what waited long enough: guard times and leases that have passed. At most `max`.
    pub(crate) async fn time_passed(&self, max: u32) -> Result<Vec<Written>, StoreError> {
        self.write(None, move |ledger| ledger.time_passed(max).map(Kept::Keep)).await
    }

    /// Claims recoveries that are due and redrives that were asked for, oldest first. Each claim
    /// spends a recovery; a case opened instead of a claim is among the second list.
    pub(crate) async fn claim_due(
        &self,
        max: u32,
    ) -> Result<(Vec<Claim>, Vec<Written>), StoreError> {
        self.write(None, move |ledger| ledger.claim_due(max).map(Kept::Keep)).await
    }

    /// When the next recovery, guard time or lease is due; `None` when nothing waits.
    pub(crate) async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(rows::next_due).await
    }

    /// What waits, for the gauges.
    pub(crate) async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.read(rows::backlog).await
    }

    // --- gates -------------------------------------------------------------------------------

    /// Every gate that has counted a failure since the last success, or is closed.
    pub(crate) async fn gates(&self) -> Result<Vec<GateRow>, StoreError> {
        self.read(gates::list).await
    }

    /// Holds or opens a gate, with an audit entry.
    pub(crate) async fn act_on_gate(
        &self,
        subscription: String,
        code: Code,
        act: GateAct,
        actor: String,
    ) -> Result<(), StoreError> {
        let write = move |ledger: &Ledger<'_>| {
            gates::act(ledger, &subscription, code.as_str(), act, &actor).map(Kept::Keep)
        };
        self.write(None, write).await
    }

    // --- the outbox --------------------------------------------------------------------------

    /// The name by which this process owns logs of the outbox.
    fn log_owner(&self) -> &str {
        match &self.database {
            Database::Sqlite(_) => "",
            Database::Postgres(postgres) => postgres.log_owner(),
        }
    }

    /// The topics where messages of this process's logs wait, and when the next delayed message is
    /// due.
    pub(crate) async fn outbox_look(&self) -> Result<OutboxLook, StoreError> {
        let owner = self.log_owner().to_owned();
        self.read(move |sql| outbox::look(sql, &owner)).await
    }

    /// The messages of a topic after the number `after`, in the log's order: at most `max`, and no
    /// more than `bytes_max` together but for the first. `None` when the log belongs to another
    /// process by now.
    pub(crate) async fn outbox_read(
        &self,
        topic: Topic,
        after: i64,
        max: u32,
        bytes_max: u64,
    ) -> Result<Option<Vec<Outgoing>>, StoreError> {
        let owner = self.log_owner().to_owned();
        self.read(move |sql| outbox::read(sql, &owner, &topic, after, max, bytes_max)).await
    }

    /// Moves a topic's cursor: all up to the number `seq` is published, or has a case.
    pub(crate) async fn outbox_published(&self, topic: Topic, seq: i64) -> Result<(), StoreError> {
        let publish =
            move |ledger: &Ledger<'_>| outbox::move_cursor(ledger.sql, &topic, seq).map(Kept::Keep);
        self.write(None, publish).await
    }

    /// Opens the case of a message that is refused for good, and moves its topic's cursor to
    /// `cursor`. `None` when it has one already.
    pub(crate) async fn outbox_refused(
        &self,
        refused: Outgoing,
        source: String,
        cursor: i64,
    ) -> Result<Option<Quarantined>, StoreError> {
        let refuse = move |ledger: &Ledger<'_>| {
            outbox::refuse(ledger, &refused, &source, cursor).map(Kept::Keep)
        };
        self.write(None, refuse).await
    }

    /// Moves delayed messages that are due into a log of this process, at most `max`. Says how many;
    /// none while another process is about it.
    pub(crate) async fn outbox_move_due(&self, max: u32) -> Result<u64, StoreError> {
        self.write(None, move |ledger| outbox::move_due(ledger, max).map(Kept::Keep)).await
    }

    /// The next unpublished messages of every topic, in the log's order, at most `max` a topic.
    #[cfg(test)]
    pub(crate) async fn outbox_pending(&self, max: u32) -> Result<Vec<Vec<Outgoing>>, StoreError> {
        let mut topics = Vec::new();
        for Waiting { topic, cursor, .. } in self.outbox_look().await?.waiting {
            topics.extend(self.outbox_read(topic, cursor, max, u64::MAX).await?);
        }
        Ok(topics)
    }

    // --- cases -------------------------------------------------------------------------------

    /// Cases by filter, unfinished ones first, then the newest.
    pub(crate) async fn cases(&self, filter: CaseFilter) -> Result<Vec<CaseRow>, StoreError> {
        self.read(move |sql| cases::list(sql, &filter)).await
    }

    /// The cases whose id begins with `prefix`, at most two.
    pub(crate) async fn cases_by_prefix(&self, prefix: String) -> Result<Vec<CaseRow>, StoreError> {
        self.read(move |sql| cases::by_prefix(sql, &prefix)).await
    }

    /// What was done about a case, oldest first.
    pub(crate) async fn audit(&self, exception_id: String) -> Result<Vec<AuditEntry>, StoreError> {
        self.read(move |sql| cases::audit(sql, &exception_id)).await
    }

    /// The exact bytes of a case's message; the reveal is written to the audit log first.
    pub(crate) async fn reveal(
        &self,
        exception_id: String,
        actor: String,
    ) -> Result<Option<Stored>, StoreError> {
        let reveal = move |ledger: &Ledger<'_>| {
            cases::reveal(ledger.sql, &exception_id, &actor, ledger.now).map(Kept::Keep)
        };
        self.write(None, reveal).await
    }

    /// Asks the service to run a case's message again.
    pub(crate) async fn request_redrive(
        &self,
        exception_id: String,
        actor: String,
    ) -> Result<Asked, StoreError> {
        let ask = move |ledger: &Ledger<'_>| {
            cases::request_redrive(ledger.sql, &exception_id, &actor, ledger.now)
        };
        self.write(None, ask).await
    }

    /// Closes a case: a tombstone, nothing runs again.
    pub(crate) async fn close(
        &self,
        exception_id: String,
        actor: String,
        note: String,
    ) -> Result<Asked, StoreError> {
        let close = move |ledger: &Ledger<'_>| cases::close(ledger, &exception_id, &actor, &note);
        self.write(None, close).await
    }

    // --- what is over ------------------------------------------------------------------------

    /// Forgets what is over for long enough: the oldest generation of the dedup memory, and a
    /// batch of everything else. Says whether there may be more to forget.
    pub(crate) async fn forget(&self, retention: Retention) -> Result<bool, StoreError> {
        let emptied =
            self.write(None, |ledger| memory::forget_oldest_generation(ledger).map(Kept::Keep));
        emptied.await?;
        self.write(None, move |ledger| memory::forget_batch(ledger, &retention).map(Kept::Keep))
            .await
    }

    // --- the application ---------------------------------------------------------------------

    /// Runs one query on committed state. Rows are values in the order of the columns.
    pub(crate) async fn query(
        &self,
        text: String,
        params: Vec<Value>,
    ) -> Result<Vec<Vec<Value>>, StoreError> {
        let query = move |sql: &dyn Sql| {
            let params: Vec<Param<'_>> = params.iter().map(Param::from).collect();
            sql.query(&text, &params)
        };
        self.read(query).await
    }

    /// Opens an interactive transaction for one delivery.
    pub(crate) async fn session(&self, limit: Duration) -> Result<Session, StoreError> {
        let database = self.database.clone();
        let serve = |mut served: session::Served| async move {
            let committed = match database {
                Database::Sqlite(sqlite) => {
                    sqlite.writer.write_alone(move |ledger| served.serve(ledger)).await
                }
                Database::Postgres(postgres) => postgres.serve(served).await,
            };
            refused_as_failed(committed)
        };
        Session::open(limit, serve).await
    }
}

/// A transaction that the database refused was refused for the effects in it.
fn refused_as_failed(committed: Result<Committed, StoreError>) -> Result<Committed, StoreError> {
    match committed {
        Err(StoreError::Refused(code)) => Ok(Committed::EffectFailed(code)),
        other => other,
    }
}
