//! What is on disk: the service's database, read beside it.

use std::path::PathBuf;

use rusqlite::{Connection, OpenFlags, Row};

/// The service's database.
pub struct Database {
    pub path: PathBuf,
}

/// A message in trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTrouble {
    pub state: String,
    pub run: i64,
    pub attempts: u32,
    pub recoveries: u32,
    pub due_at: Option<i64>,
}

impl Database {
    /// The ids of the orders that were written, sorted.
    pub fn orders(&self) -> Vec<String> {
        self.rows("SELECT order_id FROM orders ORDER BY order_id", [], |row| row.get(0))
    }

    /// How many orders were written.
    pub fn order_count(&self) -> usize {
        self.count("SELECT count(*) FROM orders")
    }

    /// How many messages were ever appended to the outbox.
    pub fn outbox_count(&self) -> usize {
        self.count("SELECT count(*) FROM outbox")
    }

    /// How many messages are in trouble.
    pub fn in_trouble_count(&self) -> usize {
        self.count("SELECT count(*) FROM message")
    }

    /// How many attempts are recorded, over all messages.
    pub fn attempt_count(&self) -> usize {
        self.count("SELECT count(*) FROM attempt")
    }

    /// How many transactions have brought messages to their end.
    pub fn commit_count(&self) -> usize {
        self.count("SELECT count(DISTINCT committed_at) FROM inbox")
    }

    /// The event ids of the messages that wait at a gate, the next probe first.
    pub fn waiting(&self) -> Vec<String> {
        let text = "SELECT event_id FROM message WHERE state = 'recovering' AND due_at IS NULL
            ORDER BY probed_at, first_seen_at";
        self.rows(text, [], |row| row.get(0))
    }

    /// The row of the message with this event id.
    pub fn in_trouble(&self, event_id: &str) -> Option<InTrouble> {
        let text =
            "SELECT state, run, attempts, recoveries, due_at FROM message WHERE event_id = ?1";
        let mut rows = self.rows(text, [event_id], |row| {
            Ok(InTrouble {
                state: row.get(0)?,
                run: row.get(1)?,
                attempts: row.get(2)?,
                recoveries: row.get(3)?,
                due_at: row.get(4)?,
            })
        });
        assert!(rows.len() <= 1, "one message, one row: {rows:?}");
        rows.pop()
    }

    /// The state of the message with this event id; empty when it is not in trouble.
    pub fn state(&self, event_id: &str) -> String {
        self.in_trouble(event_id).map(|row| row.state).unwrap_or_default()
    }

    fn count(&self, text: &str) -> usize {
        let count: i64 = self.rows(text, [], |row| row.get(0))[0];
        usize::try_from(count).unwrap()
    }

    /// From now on every attempt that is recorded is counted, also one that is forgotten when its
    /// message succeeds ([`Self::attempts_ever`]).
    pub fn remember_attempts(&self) {
        let connection = Connection::open(&self.path).unwrap();
        connection.busy_timeout(super::SOON).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE attempts_ever (code TEXT);
                 CREATE TRIGGER remember_attempt AFTER INSERT ON attempt
                 BEGIN INSERT INTO attempts_ever VALUES (new.code); END;",
            )
            .unwrap();
    }

    /// How many attempts were ever recorded.
    pub fn attempts_ever(&self) -> usize {
        self.count("SELECT count(*) FROM attempts_ever")
    }

    /// Holds the database as another program may: nobody can write until the guard is dropped.
    pub fn hold(&self) -> Connection {
        let connection = Connection::open(&self.path).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        connection
    }

    fn rows<T>(
        &self,
        text: &str,
        params: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Vec<T> {
        let connection =
            Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        connection.busy_timeout(super::SOON).unwrap();
        let mut statement = connection.prepare(text).unwrap();
        let rows = statement.query_map(params, read).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }
}
