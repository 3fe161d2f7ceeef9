//! The real SQLite store, used inline: one connection in memory, one transaction a call.

use rusqlite::{Connection, params};

use super::super::{configure, migrate, take_over};
use crate::clock::Timestamp;
use crate::custody::{Limits, Row};
use crate::event::MessageKey;
use crate::store::ledger::Ledger;
use crate::store::outbox::{self, Log};
use crate::store::rows::{load_row, look, next_due, standing};
use crate::store::writer::Kept;
use crate::store::{AppMigration, Look, Outgoing, StoreError};

/// When every history begins.
pub(super) const BEGIN: Timestamp = Timestamp(1_800_000_000_000_000);
pub(super) const SUBSCRIPTION: &str = "orders";
pub(super) const BODY: &[u8] = b"{\"order\":1}";

/// An empty store that histories are played on, one after another, each undone afterwards.
pub(super) struct Store {
    connection: Connection,
    log: Log,
}

impl Store {
    pub(super) fn open() -> Self {
        let effects =
            AppMigration { name: "effects", sql: "CREATE TABLE effect (message TEXT) STRICT;" };
        let mut connection = Connection::open_in_memory().unwrap();
        configure(&connection, true).unwrap();
        migrate(&mut connection, &[effects], BEGIN).unwrap();
        Self { connection, log: Log::only() }
    }

    pub(super) fn begin(&self) {
        self.run("SAVEPOINT history");
    }

    /// Undoes everything since [`Store::begin`].
    pub(super) fn undo(&self) {
        self.run("ROLLBACK TO history");
        self.run("RELEASE history");
    }

    fn run(&self, text: &str) {
        self.connection.prepare_cached(text).and_then(|mut run| run.execute([])).unwrap();
    }

    /// One transaction. When it `fails`, all of it is tried and nothing of it stays: `None`.
    ///
    /// # Errors
    /// The store failed when nothing was wrong with it.
    pub(super) fn write<R>(
        &self,
        limits: &Limits,
        now: Timestamp,
        fails: bool,
        work: impl FnOnce(&Ledger<'_>) -> Result<Kept<R>, StoreError>,
    ) -> Result<Option<R>, String> {
        self.run("SAVEPOINT delivery");
        let ledger = Ledger { sql: &self.connection, limits, log: &self.log, now };
        let (keep, result) = match work(&ledger) {
            Ok(Kept::Keep(value)) => (!fails, Ok((!fails).then_some(value))),
            Ok(Kept::Undo(value)) => (false, Ok((!fails).then_some(value))),
            Err(error) => (false, Err(format!("the store failed by itself: {error}"))),
        };
        if !keep {
            self.run("ROLLBACK TO delivery");
        }
        self.run("RELEASE delivery");
        result
    }

    pub(super) fn look(&self, key: MessageKey) -> Result<Look, String> {
        look(&self.connection, key).map_err(text)
    }

    pub(super) fn row(&self, key: MessageKey) -> Result<Option<Row>, String> {
        load_row(&self.connection, key).map_err(text)
    }

    pub(super) fn is_done(&self, key: MessageKey) -> Result<bool, String> {
        standing(&self.connection, key).map(|(done, _)| done).map_err(text)
    }

    /// Whether it has an inbox key or a row.
    pub(super) fn is_known(&self, key: MessageKey) -> Result<bool, String> {
        self.connection
            .prepare_cached(
                "SELECT 1 FROM inbox WHERE key = ?1
                 UNION ALL SELECT 1 FROM message WHERE key = ?1",
            )
            .and_then(|mut select| select.exists([key.0]))
            .map_err(text)
    }

    pub(super) fn next_due(&self) -> Result<Option<Timestamp>, String> {
        next_due(&self.connection).map_err(text)
    }

    /// A service starts. Says whether the one before it ended without a word.
    pub(super) fn start(&self) -> Result<bool, String> {
        let after_crash = take_over(&self.connection).map_err(text)?;
        self.run("UPDATE process SET state = 'serving'");
        Ok(after_crash)
    }

    /// Whether the message's bytes are on disk beside its row.
    pub(super) fn holds_bytes(&self, key: MessageKey) -> Result<bool, String> {
        self.connection
            .prepare_cached("SELECT 1 FROM message WHERE key = ?1 AND body = ?2")
            .and_then(|mut select| select.exists(params![key.0, BODY]))
            .map_err(text)
    }

    /// How often its effect is on disk.
    pub(super) fn effects(&self, event_id: &str) -> Result<u32, String> {
        self.connection
            .prepare_cached("SELECT count(*) FROM effect WHERE message = ?1")
            .and_then(|mut select| select.query_row([event_id], |row| row.get(0)))
            .map_err(text)
    }

    /// Recorded attempts of deliveries and of recovery, by the one with the most.
    pub(super) fn attempts(&self) -> Result<Vec<(MessageKey, u32)>, String> {
        self.connection
            .prepare_cached(
                "SELECT key, count(*) FROM attempt WHERE kind <> 'redrive' GROUP BY key",
            )
            .and_then(|mut select| {
                select
                    .query_map([], |row| Ok((MessageKey(row.get(0)?), row.get(1)?)))
                    .and_then(Iterator::collect)
            })
            .map_err(text)
    }

    /// Whether the message has a case that is not resolved.
    pub(super) fn has_unresolved_case(&self, key: MessageKey) -> Result<bool, String> {
        self.connection
            .prepare_cached("SELECT 1 FROM exception WHERE key = ?1 AND status <> 'resolved'")
            .and_then(|mut select| select.exists([key.0]))
            .map_err(text)
    }

    /// Every case of the message: id, status, category.
    pub(super) fn cases(&self, key: MessageKey) -> Result<Vec<(String, String, String)>, String> {
        self.connection
            .prepare_cached("SELECT id, status, category FROM exception WHERE key = ?1")
            .and_then(|mut select| {
                select
                    .query_map([key.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                    .and_then(Iterator::collect)
            })
            .map_err(text)
    }

    /// The gates that people hold closed.
    pub(super) fn held_gates(&self) -> Result<Vec<String>, String> {
        self.connection
            .prepare_cached("SELECT code FROM gate WHERE held")
            .and_then(|mut select| {
                select.query_map([], |row| row.get(0)).and_then(Iterator::collect)
            })
            .map_err(text)
    }

    /// The next unpublished messages of a topic.
    pub(super) fn pending(&self, topic: &str) -> Result<Vec<Outgoing>, String> {
        let owner = &self.log.owner;
        let look = outbox::look(&self.connection, owner).map_err(text)?;
        let Some(found) = look.waiting.iter().find(|waiting| waiting.topic.name == topic) else {
            return Ok(Vec::new());
        };
        let read = outbox::read(&self.connection, owner, &found.topic, found.cursor, 4, u64::MAX);
        Ok(read.map_err(text)?.unwrap_or_default())
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
