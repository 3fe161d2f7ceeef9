//! The audit of a cell: every event sent has had its effect once, or is an exception; nothing else
//! is there. All SQL that looks into the consumers' tables is in this file.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, ensure};

use load::event::{Kind, Stream};

use crate::database::{Database, connect};
use crate::peer::Peer;

/// What the audit compares with.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The stream that was sent.
    pub stream: Stream,
    /// How many of its events.
    pub sent: u64,
    /// Rows that were in the inbox before.
    pub preloaded: u64,
    /// Whether every message must still be in the outbox's table (nothing was relayed).
    pub outbox_kept: bool,
}

const ORDERS: &str = "SELECT event_id FROM bench_order";
const EXCEPTIONS: &str = "SELECT event_id FROM exception";
const INBOX: &str = "SELECT count(*) FROM inbox";
const OUTBOX: &str = "SELECT count(*) FROM outbox";
const PROGRESS: &str = "SELECT coalesce(max(id), 0) FROM bench_order";
const ORDER_COUNT: &str = "SELECT count(*) FROM bench_order";

/// Fills the inbox with `rows` keys of other events, in the order of the key, which is the quickest.
/// Backstop notes times as milliseconds, the peers on PostgreSQL as timestamps.
pub fn preload_sql(database: &Database, peer: Peer, rows: u64) -> String {
    let now =
        if peer == Peer::Backstop { "(extract(epoch FROM now()) * 1000)::bigint" } else { "now()" };
    match database {
        Database::Postgres(..) => format!(
            "INSERT INTO inbox (key, fingerprint, committed_at)
             SELECT decode(md5('preload' || n), 'hex') AS k, decode(md5(n::text), 'hex'), {now}
             FROM generate_series(1, {rows}) n ORDER BY k;
             ANALYZE inbox; CHECKPOINT;"
        ),
        Database::Sqlite(_) => format!(
            "WITH RECURSIVE counted(n) AS
               (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {rows})
             INSERT INTO inbox (key, fingerprint, committed_at)
             SELECT randomblob(16) AS k, randomblob(16), unixepoch() * 1000 FROM counted ORDER BY k;
             PRAGMA wal_checkpoint(TRUNCATE);"
        ),
    }
}

/// Looks at a database again and again, over one connection, so that watching costs next to nothing.
pub enum Watch {
    /// A session of its own.
    Postgres(tokio_postgres::Client),
    /// A second reader beside the consumer.
    Sqlite(rusqlite::Connection),
}

impl Watch {
    /// Connects; a SQLite file must be there already.
    pub async fn open(database: &Database) -> anyhow::Result<Self> {
        match database {
            Database::Postgres(_, port) => Ok(Self::Postgres(connect(*port).await?)),
            Database::Sqlite(path) => {
                let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
                Ok(Self::Sqlite(rusqlite::Connection::open_with_flags(path, flags)?))
            }
        }
    }

    /// About how many effects there are: one look into an index.
    pub async fn progress(&self) -> anyhow::Result<u64> {
        self.number(PROGRESS).await
    }

    /// How many effects there are.
    pub async fn effects(&self) -> anyhow::Result<u64> {
        self.number(ORDER_COUNT).await
    }

    async fn number(&self, sql: &str) -> anyhow::Result<u64> {
        let number: i64 = match self {
            Self::Postgres(client) => client.query_one(sql, &[]).await?.get(0),
            Self::Sqlite(connection) => connection.query_row(sql, [], |row| row.get(0))?,
        };
        Ok(u64::try_from(number)?)
    }
}

/// Fails with the first thing that is not as it must be. The consumer should have ended.
pub async fn audit(database: &Database, expected: &Expected) -> anyhow::Result<()> {
    let mut good: HashMap<String, u32> = HashMap::new();
    let mut poison: HashSet<String> = HashSet::new();
    for n in 0..expected.sent {
        let id = expected.stream.id(n);
        match expected.stream.kind(n) {
            Kind::Good | Kind::Transient => {
                good.insert(id, 0);
            }
            Kind::Poison => {
                poison.insert(id);
            }
        }
    }
    for id in texts(database, ORDERS).await? {
        let times = good.get_mut(&id).with_context(|| format!("an effect of {id}: never sent"))?;
        *times += 1;
        ensure!(*times == 1, "the effect of {id} is there {times} times");
    }
    let lost = good.values().filter(|times| **times == 0).count();
    ensure!(lost == 0, "{lost} of {} events have no effect", good.len());
    let exceptions: HashSet<String> = texts(database, EXCEPTIONS).await?.into_iter().collect();
    ensure!(
        exceptions == poison,
        "{} exceptions for {} poison events",
        exceptions.len(),
        poison.len()
    );
    let keys = number(database, INBOX).await?.saturating_sub(expected.preloaded);
    let effects = good.len() as u64;
    // A store may remember the key of an exception as well.
    let keys_max = effects + poison.len() as u64;
    ensure!((effects..=keys_max).contains(&keys), "{keys} inbox keys for {effects} effects");
    if expected.outbox_kept {
        let messages = number(database, OUTBOX).await?;
        ensure!(messages == effects, "{messages} outbox rows for {effects} effects");
    }
    Ok(())
}

/// Fails unless every effect's message is on the stream, whose lines are given; tells how many came
/// more than once, which at-least-once publishing allows.
pub fn audit_published(expected: &Expected, entries: &str) -> anyhow::Result<u64> {
    let mut seen: HashSet<&str> = HashSet::new();
    let mut count = 0;
    for entry in entries.lines() {
        // Within redis-cli's quotes the quotes of JSON may be escaped.
        let Some(at) = entry.find("orderId") else { continue };
        let hex = |c: char| c.is_ascii_hexdigit();
        let after = entry[at + "orderId".len()..].trim_start_matches(|c: char| !hex(c));
        let id = after.get(..load::event::ID_LEN).context("an outgoing message without its id")?;
        seen.insert(id);
        count += 1;
    }
    let good = (0..expected.sent).filter(|n| expected.stream.kind(*n) != Kind::Poison).map(|n| {
        let id = expected.stream.id(n);
        seen.contains(id.as_str())
    });
    let missing = good.filter(|there| !there).count();
    ensure!(missing == 0, "{missing} messages were never published");
    Ok(count - seen.len() as u64)
}

async fn texts(database: &Database, sql: &str) -> anyhow::Result<Vec<String>> {
    match database {
        Database::Postgres(_, port) => {
            let rows = connect(*port).await?.query(sql, &[]).await?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        }
        Database::Sqlite(path) => {
            let connection = rusqlite::Connection::open(path)?;
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        }
    }
}

async fn number(database: &Database, sql: &str) -> anyhow::Result<u64> {
    Watch::open(database).await?.number(sql).await
}
