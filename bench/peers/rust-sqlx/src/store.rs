//! One transaction an event, on PostgreSQL or SQLite.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::SqliteSynchronous;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};

/// What one event writes.
pub struct Write {
    pub key: Vec<u8>,
    pub fingerprint: Vec<u8>,
    pub event_id: String,
    pub customer: String,
    pub cents: i64,
    pub note: String,
    pub message_id: String,
    pub content: Vec<u8>,
}

/// A message of the outbox: its number, id and content.
pub type Outgoing = (i64, String, Vec<u8>);

/// The database.
#[derive(Clone)]
pub enum Store {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

const ORDER: &str =
    "INSERT INTO bench_order (event_id, customer, cents, note) VALUES ($1, $2, $3, $4)";
const EXCEPTION: &str =
    "INSERT INTO exception (event_id, reason, body) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";

/// The three statements in one transaction; the macro, because sqlx's types differ by database.
macro_rules! commit {
    ($pool:expr, $write:expr, $begin:expr, $now:literal) => {{
        let mut tx = $begin;
        let done = sqlx::query(concat!(
            "INSERT INTO inbox (key, fingerprint, committed_at) VALUES ($1, $2, ",
            $now,
            ") ON CONFLICT DO NOTHING"
        ))
        .bind(&$write.key)
        .bind(&$write.fingerprint)
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() == 0 {
            tx.rollback().await?;
            return Ok(());
        }
        sqlx::query(ORDER)
            .bind(&$write.event_id)
            .bind(&$write.customer)
            .bind($write.cents)
            .bind(&$write.note)
            .execute(&mut *tx)
            .await?;
        sqlx::query(concat!(
            "INSERT INTO outbox (pubsub, topic, message_id, content, created_at) ",
            "VALUES ($1, $2, $3, $4, ",
            $now,
            ")"
        ))
        .bind(crate::PUBSUB)
        .bind(crate::TOPIC_OUT)
        .bind(&$write.message_id)
        .bind(&$write.content)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
    }};
}

impl Store {
    pub async fn open(url: &str) -> anyhow::Result<Self> {
        let Some(path) = url.strip_prefix("sqlite://") else {
            let pool = PgPoolOptions::new()
                .max_connections(16)
                .min_connections(16)
                // sqlx pings at every acquire unless told not to: one round trip an event.
                .test_before_acquire(false)
                .connect(url)
                .await?;
            return Ok(Self::Postgres(pool));
        };
        let options = SqliteConnectOptions::from_str(&format!("sqlite://{path}"))?
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(10));
        // One connection: SQLite has one writer, and a pool of them waits in a sleeping lock.
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect_with(options)
            .await?;
        Ok(Self::Sqlite(pool))
    }

    /// Commits the rows, or nothing if the key is there already.
    pub async fn commit(&self, write: &Write) -> anyhow::Result<()> {
        match self {
            Self::Postgres(pool) => commit!(pool, write, pool.begin().await?, "now()"),
            Self::Sqlite(pool) => {
                let begin = pool.begin_with("BEGIN IMMEDIATE").await?;
                commit!(pool, write, begin, "unixepoch() * 1000");
            }
        }
        Ok(())
    }

    pub async fn quarantine(&self, id: &str, reason: &str, body: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Postgres(pool) => {
                sqlx::query(EXCEPTION).bind(id).bind(reason).bind(body).execute(pool).await?;
            }
            Self::Sqlite(pool) => {
                sqlx::query(EXCEPTION).bind(id).bind(reason).bind(body).execute(pool).await?;
            }
        }
        Ok(())
    }

    /// Publishes one batch of the outbox and deletes it; tells how many rows it had.
    pub async fn relay<F>(&self, publish: impl FnOnce(Vec<Outgoing>) -> F) -> anyhow::Result<usize>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        match self {
            Self::Postgres(pool) => {
                let mut tx = pool.begin().await?;
                let batch: Vec<Outgoing> = sqlx::query_as(
                    "SELECT seq, message_id, content FROM outbox ORDER BY seq
                     LIMIT 100 FOR UPDATE SKIP LOCKED",
                )
                .fetch_all(&mut *tx)
                .await?;
                let seqs: Vec<i64> = batch.iter().map(|(seq, ..)| *seq).collect();
                if !seqs.is_empty() {
                    publish(batch).await?;
                    sqlx::query("DELETE FROM outbox WHERE seq = ANY($1)")
                        .bind(&seqs)
                        .execute(&mut *tx)
                        .await?;
                }
                tx.commit().await?;
                Ok(seqs.len())
            }
            Self::Sqlite(pool) => {
                let batch: Vec<Outgoing> = sqlx::query_as(
                    "SELECT seq, message_id, content FROM outbox ORDER BY seq LIMIT 100",
                )
                .fetch_all(pool)
                .await?;
                let count = batch.len();
                if let Some((last, ..)) = batch.last() {
                    let last = *last;
                    publish(batch).await?;
                    sqlx::query("DELETE FROM outbox WHERE seq <= $1")
                        .bind(last)
                        .execute(pool)
                        .await?;
                }
                Ok(count)
            }
        }
    }
}
