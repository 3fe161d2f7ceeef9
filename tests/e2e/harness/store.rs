//! What is on disk: the service's database, read beside it.

use std::path::PathBuf;

use rusqlite::TransactionBehavior::Immediate;
use rusqlite::{Connection, OpenFlags, Row};

/// The service's database.
pub struct Database {
    pub path: PathBuf,
}

/// A message for the outbox.
#[derive(Clone, Copy)]
pub struct ToPublish<'a> {
    pub pubsub: &'a str,
    pub topic: &'a str,
    pub id: &'a str,
    pub key: Option<&'a str>,
    /// Microseconds since the epoch.
    pub due_at: Option<i64>,
    /// Bytes more than it would need.
    pub padding: usize,
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

    /// Appends messages to the outbox, as a commit of the service does; it finds them within a second.
    pub fn append(&self, messages: &[ToPublish<'_>]) {
        let mut connection = Connection::open(&self.path).unwrap();
        connection.busy_timeout(super::SOON).unwrap();
        let transaction = connection.transaction_with_behavior(Immediate).unwrap();
        for message in messages {
            let ToPublish { pubsub, topic, id, key, due_at, padding } = *message;
            let content = serde_json::json!({
                "specversion": "1.0",
                "id": id,
                "source": "/test",
                "type": "test",
                "datacontenttype": "application/json",
                "data": { "padding": "x".repeat(padding) },
            });
            let content = content.to_string().into_bytes();
            if let Some(due_at) = due_at {
                transaction
                    .execute(
                        "INSERT INTO outbox_delayed
                             (due_at, pubsub, topic, message_id, ordering_key, content)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                        (due_at, pubsub, topic, id, key, content),
                    )
                    .unwrap();
                continue;
            }
            transaction
                .execute(
                    "INSERT OR IGNORE INTO relay_cursor VALUES (1, ?1, ?2, 0)",
                    (pubsub, topic),
                )
                .unwrap();
            transaction
                .execute(
                    "INSERT INTO outbox
                         (log, seq, pubsub, topic, message_id, ordering_key, content, created_at)
                     SELECT 1, coalesce(max(seq), 0) + 1, ?1, ?2, ?3, ?4, ?5, 1 FROM outbox",
                    (pubsub, topic, id, key, content),
                )
                .unwrap();
        }
        transaction.commit().unwrap();
    }

    /// How many messages of a topic the cursor has not passed.
    pub fn unpublished_count(&self, topic: &str) -> usize {
        let text = "SELECT count(*) FROM outbox o JOIN relay_cursor c USING (log, pubsub, topic)
            WHERE o.seq > c.seq AND o.topic = ?1";
        let count: i64 = self.rows(text, [topic], |row| row.get(0))[0];
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
