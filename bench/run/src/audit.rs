//! The audit of a cell: every event sent has had its effect once, or is an exception; nothing else
//! is there. All SQL that looks into the consumers' tables is in this file.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, ensure};

use load::event::{Kind, Stream};

use crate::database::{Database, connect};
use crate::watch::Watch;

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
/// About how many effects there are.
pub const PROGRESS: &str = "SELECT coalesce(max(id), 0) FROM bench_order";
/// How many effects there are.
pub const ORDER_COUNT: &str = "SELECT count(*) FROM bench_order";

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
    let orders: Vec<&str> = entries.lines().filter_map(order_of).collect();
    let seen: HashSet<&str> = orders.iter().copied().collect();
    let good = (0..expected.sent).filter(|n| expected.stream.kind(*n) != Kind::Poison).map(|n| {
        let id = expected.stream.id(n);
        seen.contains(id.as_str())
    });
    let missing = good.filter(|there| !there).count();
    ensure!(missing == 0, "{missing} messages were never published");
    Ok((orders.len() - seen.len()) as u64)
}

/// The order that an outgoing message is about.
pub fn order_of(message: &str) -> Option<&str> {
    let at = message.find("orderId")?;
    // Within redis-cli's quotes the quotes of JSON may be escaped.
    let hex = |c: char| c.is_ascii_hexdigit();
    let after = message[at + "orderId".len()..].trim_start_matches(|c: char| !hex(c));
    after.get(..load::event::ID_LEN)
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

/// Fills a peer's outbox with the messages of a stream's first events, as the peer would write them.
pub async fn fill_outbox(database: &Database, stream: &Stream, count: u64) -> anyhow::Result<()> {
    let orders: Vec<String> = (0..count).map(|n| stream.id(n)).collect();
    let content = |order: &str| {
        format!(
            r#"{{"data":{{"cents":123456,"orderId":"{order}"}},"datacontenttype":"application/json","id":"{order}","source":"bench-consumer","specversion":"1.0","time":"2026-11-30T12:00:00.123456789Z","type":"bench.order.accepted.v1"}}"#
        )
    };
    let (pubsub, topic) = (load::event::PUBSUB, load::event::TOPIC_OUT);
    match database {
        Database::Postgres(_, port) => {
            let client = connect(*port).await?;
            let insert = "INSERT INTO outbox (pubsub, topic, message_id, content, created_at)
                SELECT $1, $2, id, convert_to(content, 'UTF8'), now()
                FROM unnest($3::text[], $4::text[]) AS made (id, content)";
            for some in orders.chunks(10_000) {
                let contents: Vec<String> = some.iter().map(|order| content(order)).collect();
                client.execute(insert, &[&pubsub, &topic, &some, &contents]).await?;
            }
        }
        Database::Sqlite(path) => {
            let mut connection = rusqlite::Connection::open(path)?;
            let transaction = connection.transaction()?;
            for order in &orders {
                transaction.execute(
                    "INSERT INTO outbox (pubsub, topic, message_id, content, created_at)
                     VALUES (?, ?, ?, ?, unixepoch() * 1000)",
                    (pubsub, topic, order, content(order).into_bytes()),
                )?;
            }
            transaction.commit()?;
        }
    }
    Ok(())
}
