//! PostgreSQL: for many replicas. One writer connection a process, a pool for reading, another for
//! interactive transactions.
//!
//! **Invariants**
//! - Whoever writes about a message holds its advisory lock until its transaction has ended, so
//!   that a commit and a dead letter's first row, say, never pass one another unseen. The inbox's
//!   primary key stands behind it.
//! - Times are the database's, so the machines' clocks may differ.
//! - A process that shows no sign of life for its lease is gone: its log of the outbox is adopted
//!   by another. What it had claimed waits for the claim's own lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Pool, PoolError};
use tokio::sync::watch;
use uuid::Uuid;

use crate::clock::{Clock, Timestamp};
use crate::custody::Limits;
use crate::event::MessageKey;
use crate::store::ledger::Ledger;
use crate::store::outbox::Log;
use crate::store::session::Served;
use crate::store::sql::Sql;
use crate::store::writer::{Kept, Writer};
use crate::store::{AppMigration, Committed, Look, OpenAs, StoreError};

mod connect;
mod connection;
mod halves;
mod look;
mod merged;
mod migrate;
mod process;
#[cfg(test)]
mod tests;
mod together;
mod transactions;
mod values;

use connect::{Connector, lock_space};
pub use connect::{PostgresSettings, PostgresUrl, PostgresUrlError};
use connection::{Connection, fault, refusal};
use look::Lookout;
use merged::Memory;
use process::Clocks;
pub(crate) use process::RENEW_EVERY;
use transactions::PostgresWriter;

/// How long a read waits for a connection.
const POOL_WAIT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Postgres {
    pub(crate) writer: Writer,
    lookout: Lookout,
    reads: Pool<Connector>,
    sessions: Pool<Connector>,
    clocks: Clocks,
    limits: Limits,
    /// This process, among those that share the database.
    id: Arc<str>,
    /// The log that interactive transactions append to; the writer has its own.
    session_log: watch::Sender<Log>,
    /// When this process last noticed that another had ended without a word; 0 when it never did.
    crash_seen: Arc<AtomicI64>,
}

impl Postgres {
    pub(crate) async fn open(
        settings: &PostgresSettings,
        open_as: OpenAs,
        migrations: &[AppMigration],
        limits: Limits,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let connector = Connector::new(settings)?;
        let lock_space = lock_space(&settings.schema);
        let clocks = Clocks::new(clock);
        let mut client = connector.client().await?;
        if open_as == OpenAs::Service && settings.migrates_at_start {
            let now = clocks.now();
            migrate::migrate(&mut client, &settings.schema, lock_space, migrations, now).await?;
        } else {
            migrate::check(&client, &settings.schema).await?;
        }
        drop(client);
        let id: Arc<str> = Uuid::now_v7().to_string().into();
        let nothing = Log { id: 0, owner: id.to_string() };
        let store = Self {
            writer: Writer::start(PostgresWriter {
                connector: connector.clone().for_writing()?,
                clocks: clocks.clone(),
                limits,
                log: nothing.clone(),
                memory: Memory::default(),
                connection: None,
            })
            .map_err(StoreError::away)?,
            lookout: Lookout::start(connector.clone().for_looking()),
            reads: pool(&connector, settings.pool_size)?,
            sessions: pool(&connector.isolating_statements(), settings.pool_size)?,
            clocks,
            limits,
            session_log: watch::Sender::new(nothing),
            id,
            crash_seen: Arc::default(),
        };
        if open_as == OpenAs::Service {
            store.stay_alive().await?;
        }
        Ok(store)
    }

    /// Makes what is missing of the tables.
    pub(crate) async fn migrate(
        settings: &PostgresSettings,
        migrations: &[AppMigration],
        clock: Clock,
    ) -> Result<(), StoreError> {
        let mut client = Connector::new(settings)?.client().await?;
        let lock = lock_space(&settings.schema);
        migrate::migrate(&mut client, &settings.schema, lock, migrations, clock.now()).await
    }

    fn note_crashes(&self, crashed: u64, now: Timestamp) {
        if crashed > 0 {
            tracing::warn!(crashed, "Another process of this consumer ended without a word.");
            self.crash_seen.store(now.0, Ordering::Relaxed);
        }
    }

    /// When this process last noticed that another had ended without saying so.
    pub(crate) fn crash_seen(&self) -> Option<Timestamp> {
        Some(Timestamp(self.crash_seen.load(Ordering::Relaxed))).filter(|time| time.0 > 0)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clocks.now()
    }

    /// The name under which this process owns logs of the outbox.
    pub(crate) fn log_owner(&self) -> &str {
        &self.id
    }

    /// Gives a sign of life, and takes over what processes left that give none any more.
    pub(crate) async fn stay_alive(&self) -> Result<(), StoreError> {
        let id = Arc::clone(&self.id);
        let renew = move |ledger: &Ledger<'_>| {
            process::renew(ledger.sql, &id, ledger.now)?;
            let crashed = process::bury(ledger.sql, ledger.now)?;
            let adopted = process::adopt_logs(ledger.sql, &id, ledger.now)?;
            process::forget_logs(ledger.sql, &id, ledger.now)?;
            let log = process::logs(ledger.sql, &id)?.of_sessions;
            Ok(Kept::Keep((crashed, adopted, log, ledger.now)))
        };
        let (crashed, adopted, log, now) = self.writer.write(None, renew).await?;
        self.session_log.send_replace(log);
        if adopted > 0 {
            tracing::info!(logs = adopted, "Took over the outbox of a process that is gone.");
        }
        self.note_crashes(crashed, now);
        Ok(())
    }

    /// Says that this process has ended properly.
    pub(crate) async fn end(&self) -> Result<(), StoreError> {
        let id = Arc::clone(&self.id);
        let end = move |ledger: &Ledger<'_>| process::end(ledger.sql, &id).map(Kept::Keep);
        self.writer.write(None, end).await
    }

    pub(crate) async fn look(&self, key: MessageKey) -> Result<Look, StoreError> {
        self.lookout.look(key).await
    }

    /// Runs `work` on committed state.
    pub(crate) async fn read<R: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Sql) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let read = move |connection: &Connection| {
            connection.begin_reading().map_err(|error| fault(&error))?;
            let read = work(connection);
            connection.roll_back().map_err(|error| fault(&error))?;
            read
        };
        self.on_a_thread(&self.reads, read).await
    }

    /// Serves an interactive transaction on a connection of its own.
    pub(crate) async fn serve(&self, mut served: Served) -> Result<Committed, StoreError> {
        let (limits, log, clocks) =
            (self.limits, self.session_log.borrow().clone(), self.clocks.clone());
        let serve = move |connection: &Connection| {
            let begun = connection.begin().map_err(|error| fault(&error))?;
            let now = clocks.tell(begun.time);
            let ledger = Ledger { sql: connection, limits: &limits, log: &log, now };
            let (ended, result) = match served.serve(&ledger) {
                Ok(Kept::Keep(committed)) => (connection.commit(), Ok(committed)),
                Ok(Kept::Undo(committed)) => (connection.roll_back(), Ok(committed)),
                Err(error) => (connection.roll_back(), Err(error)),
            };
            match ended {
                Ok(()) => result,
                Err(error) => Err(refusal(&error)),
            }
        };
        match self.on_a_thread(&self.sessions, serve).await {
            // The next one has a log again; this delivery comes again.
            Err(error @ StoreError::LogLost) => {
                self.stay_alive().await?;
                Err(StoreError::away(error))
            }
            served => served,
        }
    }

    /// Uses a pool's connection on a thread that may wait.
    async fn on_a_thread<R: Send + 'static>(
        &self,
        pool: &Pool<Connector>,
        work: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        // Boxed: it is large, and part of every delivery's future.
        let connection = match Box::pin(pool.get()).await {
            Ok(connection) => connection,
            Err(PoolError::Backend(error)) => return Err(error),
            Err(error) => return Err(StoreError::away(error)),
        };
        // A panic leaves it in a transaction, and the pool does not keep it.
        let used = tokio::task::spawn_blocking(move || work(&connection));
        used.await.map_err(|_| StoreError::Stopped)?
    }
}

fn pool(connector: &Connector, size: usize) -> Result<Pool<Connector>, StoreError> {
    Pool::builder(connector.clone())
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_WAIT))
        .build()
        .map_err(StoreError::away)
}
