//! What a store does, whatever the database: every case runs on SQLite and on PostgreSQL.
//!
//! PostgreSQL is started by the first case that wants it, and each case has a schema of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use super::*;
use crate::effect::sql;
use crate::event::Fingerprint;

mod bytes_kept;
mod effects_made;
mod groups;
mod memory;
mod operators;
mod outbox_log;
mod sessions;
mod starts;
mod writes;

#[path = "../../tests/support/postgres.rs"]
#[allow(dead_code, reason = "the end-to-end tests stop and start it")]
mod postgres_server;

use postgres_server::PostgresServer;
pub(super) use starts::refusal;

/// Makes two tests of each case, one a database.
macro_rules! on_both {
    ($($case:ident),+ $(,)?) => { $(
        mod $case {
            #[tokio::test]
            async fn sqlite() {
                super::$case(crate::store::conformance::Place::sqlite()).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::$case(crate::store::conformance::Place::postgres()).await;
            }
        }
    )+ };
}
use on_both;

pub(super) const FAILED: Code = Code::new("stock_away");
pub(super) const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

pub(super) const TABLES: AppMigration = AppMigration {
    name: "0001_tables",
    sql: "CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL CHECK (count >= 0));
          CREATE TABLE note (text TEXT NOT NULL);
          CREATE TABLE line (item TEXT REFERENCES stock (item) DEFERRABLE INITIALLY DEFERRED);",
};

/// A server for all tests of this process.
pub(super) fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(PostgresServer::start)
}

/// A schema's name that was not given before.
fn new_schema() -> String {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    format!("store_{}", GIVEN.fetch_add(1, Ordering::Relaxed))
}

/// A database for one case, and a clock moved by hand.
pub(super) struct Place {
    pub url: StoreUrl,
    pub clock: Clock,
    directory: Option<TempDir>,
}

impl Place {
    pub(super) fn sqlite() -> Self {
        let directory = TempDir::new().unwrap();
        let url = StoreUrl::Sqlite(directory.path().join("store.db"));
        Self { url, clock: Clock::manual(NOW), directory: Some(directory) }
    }

    pub(super) fn postgres() -> Self {
        let settings = PostgresSettings {
            url: server().url().parse().unwrap(),
            schema: new_schema(),
            pool_size: 4,
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(3),
            migrates_at_start: true,
        };
        Self {
            url: StoreUrl::Postgres(Box::new(settings)),
            clock: Clock::manual(NOW),
            directory: None,
        }
    }

    pub(super) fn is_postgres(&self) -> bool {
        matches!(self.url, StoreUrl::Postgres(_))
    }

    /// The file of a SQLite database.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.as_ref().unwrap().path().join("store.db")
    }

    pub(super) async fn open_with(
        &self,
        open_as: OpenAs,
        migrations: &[AppMigration],
    ) -> Result<Store, StoreError> {
        let clock = self.clock.clone();
        Store::open(&self.url, open_as, migrations.to_vec(), Limits::default(), clock).await
    }

    pub(super) async fn open_as(&self, open_as: OpenAs) -> Result<Store, StoreError> {
        self.open_with(open_as, &[TABLES]).await
    }

    pub(super) async fn open(&self) -> Store {
        self.open_as(OpenAs::Service).await.unwrap()
    }

    /// Ends the service properly and opens it again.
    pub(super) async fn reopen(&self, store: Store) -> Store {
        store.ended().await.unwrap();
        drop(store);
        self.open().await
    }

    /// The one value that a query gives to another process: only what is on disk.
    pub(super) async fn on_disk(&self, query: &str) -> i64 {
        match self.value_on_disk(query).await {
            Value::Integer(count) => count,
            other => panic!("{query}: {other:?}"),
        }
    }

    pub(super) async fn value_on_disk(&self, query: &str) -> Value {
        let other = self.open_as(OpenAs::Operator).await.unwrap();
        other.query(query.to_owned(), Vec::new()).await.unwrap().remove(0).remove(0)
    }

    pub(super) fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

pub(super) fn message(id: &str) -> Arc<Incoming> {
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

/// A message to publish.
pub(super) fn outgoing(topic: &str, id: &str) -> Outgoing {
    Outgoing {
        log: 0,
        seq: 0,
        pubsub: "pubsub".to_owned(),
        topic: topic.to_owned(),
        message_id: id.to_owned(),
        ordering_key: None,
        due_at: None,
        content: Bytes::from(format!("{{\"id\":\"{id}\"}}")),
    }
}

pub(super) fn note(text: &'static str) -> Statement {
    sql("INSERT INTO note (text) VALUES ($1)", [Value::from(text)])
}

impl Store {
    pub(super) async fn commit_one(&self, id: &str, statements: Vec<Statement>) -> Committed {
        self.commit(message(id), Authority::Delivery, statements, Vec::new()).await.unwrap()
    }

    pub(super) async fn count(&self, text: &str) -> i64 {
        match self.query(text.to_owned(), Vec::new()).await.unwrap()[0][0] {
            Value::Integer(count) => count,
            ref other => panic!("{text}: {other:?}"),
        }
    }

    /// Files the message and gives its case's id.
    pub(super) async fn file(&self, id: &str, category: Category) -> String {
        let refused = self.refuse(message(id), Authority::Delivery, category, FAILED, true);
        match refused.await.unwrap() {
            Written::Quarantined(case) => case.exception_id,
            other => panic!("{other:?}"),
        }
    }
}
