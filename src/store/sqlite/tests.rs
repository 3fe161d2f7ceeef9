//! The SQLite store on a real file, through the operations the core uses.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;
use tempfile::TempDir;

use super::Sqlite;
use crate::clock::{Clock, Timestamp};
use crate::custody::{Authority, Limits};
use crate::effect::{Statement, Value, sql};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::outcome::{Category, Code};
use crate::store::{AppMigration, Committed, Incoming, OpenAs, StoreError, Written};

mod bytes_kept;
mod effects_made;
mod operators;
mod outbox_log;
mod sessions;
mod starts;
mod writer;

const FAILED: Code = Code::new("stock_away");
const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

const TABLES: AppMigration = AppMigration {
    name: "0001_tables",
    sql: "CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL CHECK (count >= 0)) STRICT;
          CREATE TABLE note (text TEXT NOT NULL) STRICT;
          CREATE TABLE fuse (text TEXT) STRICT;
          CREATE TRIGGER blow BEFORE INSERT ON fuse BEGIN SELECT RAISE(ROLLBACK, 'blown'); END;",
};

/// A store in a directory of its own, which goes with it.
struct Place {
    directory: TempDir,
    clock: Clock,
}

impl Place {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap(), clock: Clock::manual(NOW) }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("store.db")
    }

    fn open_as(&self, open_as: OpenAs) -> Result<Sqlite, StoreError> {
        self.open_with(open_as, &[TABLES])
    }

    fn open_with(
        &self,
        open_as: OpenAs,
        migrations: &[AppMigration],
    ) -> Result<Sqlite, StoreError> {
        Sqlite::open(&self.path(), open_as, migrations, Limits::default(), self.clock.clone())
    }

    fn open(&self) -> Sqlite {
        self.open_as(OpenAs::Service).unwrap()
    }

    /// Another process's view of the file: only what is on disk.
    fn on_disk(&self, count: &str) -> i64 {
        let connection = Connection::open(self.path()).unwrap();
        connection.query_row(count, [], |row| row.get(0)).unwrap()
    }

    /// From here on a second row for an item rolls back the transaction it is part of.
    fn add_trigger_that_rolls_back(&self) {
        drop(self.open());
        let connection = Connection::open(self.path()).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection
            .execute_batch(
                "CREATE TRIGGER once BEFORE INSERT ON stock
                 WHEN EXISTS (SELECT 1 FROM stock WHERE item = NEW.item)
                 BEGIN SELECT RAISE(ROLLBACK, 'twice'); END;",
            )
            .unwrap();
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

fn message(id: &str) -> Arc<Incoming> {
    Arc::new(Incoming {
        key: MessageKey::of("orders", "shop", id),
        fingerprint: Fingerprint([7; 16]),
        subscription: "orders".to_owned(),
        pubsub: "pubsub".to_owned(),
        topic: "orders".to_owned(),
        source: "shop".to_owned(),
        event_id: id.to_owned(),
        ty: "order.placed".to_owned(),
        subject: None,
        traceparent: None,
        stored: Stored { attributes: None, body: Bytes::from_static(b"{}") },
        once: false,
        recovery_attempt: 0,
    })
}

fn note(text: &'static str) -> Statement {
    sql("INSERT INTO note (text) VALUES (?1)", [Value::from(text)])
}

impl Sqlite {
    async fn commit_one(&self, id: &str, statements: Vec<Statement>) -> Committed {
        self.commit(message(id), Authority::Delivery, statements, Vec::new()).await.unwrap()
    }

    async fn count(&self, text: &str) -> i64 {
        match self.query(text.to_owned(), Vec::new()).await.unwrap()[0][0] {
            Value::Integer(count) => count,
            ref other => panic!("{text}: {other:?}"),
        }
    }

    /// Files the message and gives its case's id.
    async fn file(&self, id: &str, category: Category) -> String {
        let refused = self.refuse(message(id), Authority::Delivery, category, FAILED, true);
        match refused.await.unwrap() {
            Written::Quarantined(case) => case.exception_id,
            other => panic!("{other:?}"),
        }
    }
}
