//! The outbox: append-only logs with one cursor a topic, and what waits for its time to go there.
//!
//! A log belongs to one process, which alone appends to it, so its numbers are gap-free and in the
//! order of the commits. Whoever owns the log moves its cursors.
//!
//! **Invariants**
//! - A log goes on after its highest number, which therefore stays on disk (`memory.rs`). No row is
//!   written over and over for it: while somebody holds an old snapshot, PostgreSQL would have to
//!   walk through all the row's versions to find the latest.
//! - Nothing here looks at what is published already: every read begins at a cursor.

use super::ledger::Ledger;
use super::sql::{Record, Sql, params};
use crate::clock::Timestamp;
use crate::custody::{Authority, Happening};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::outcome::{Category, reason};
use crate::store::{
    Incoming, OutboxLook, Outgoing, Quarantined, StoreError, Topic, Waiting, Written,
};

/// Messages of a topic that are counted for the gauges; a larger backlog is told as this many.
const COUNTED_MAX: u32 = 100_000;
/// The subscription under which a refused message is filed.
const OUTBOX: &str = "outbox";

/// A log of the outbox, and by whose name this process appends to it.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub id: i64,
    pub owner: String,
}

impl Log {
    /// The only log of a database that takes one process at a time.
    pub(crate) fn only() -> Self {
        Self { id: 1, owner: String::new() }
    }
}

/// Appends one delivery's messages, with the next numbers of the log; they are given only if the
/// transaction commits. What is not to leave yet goes where it waits.
pub(super) fn append(ledger: &Ledger<'_>, outgoing: &[Outgoing]) -> Result<(), StoreError> {
    let waits = |message: &&Outgoing| message.due_at.is_some_and(|due_at| due_at > ledger.now);
    let (delayed, due): (Vec<&Outgoing>, Vec<&Outgoing>) = outgoing.iter().partition(waits);
    append_to_log(ledger, &due)?;
    for message in delayed {
        ledger.sql.execute(
            "INSERT INTO outbox_delayed (due_at, pubsub, topic, message_id, ordering_key, content)
             VALUES ($1, $2, $3, $4, $5, $6)",
            params![
                message.due_at,
                &message.pubsub,
                &message.topic,
                &message.message_id,
                &message.ordering_key,
                &message.content[..],
            ],
        )?;
    }
    Ok(())
}

fn append_to_log(ledger: &Ledger<'_>, outgoing: &[&Outgoing]) -> Result<(), StoreError> {
    let Ledger { sql, log, now, .. } = *ledger;
    if outgoing.is_empty() {
        return Ok(());
    }
    if !sql.lock_log(log)? {
        return Err(StoreError::LogLost);
    }
    // After the lock, so that it sees what another transaction has appended before.
    let last: i64 = sql.value(LAST_OF_LOG, params![log.id])?;
    let mut topics: Vec<(&str, &str)> = Vec::new();
    for (seq, message) in (last + 1..).zip(outgoing) {
        let topic = (message.pubsub.as_str(), message.topic.as_str());
        if !topics.contains(&topic) {
            topics.push(topic);
            sql.execute(
                "INSERT INTO relay_cursor (log, pubsub, topic, seq) VALUES ($1, $2, $3, 0)
                 ON CONFLICT DO NOTHING",
                params![log.id, topic.0, topic.1],
            )?;
        }
        sql.execute(
            "INSERT INTO outbox
                 (log, seq, pubsub, topic, message_id, ordering_key, content, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            params![
                log.id,
                seq,
                &message.pubsub,
                &message.topic,
                &message.message_id,
                &message.ordering_key,
                &message.content[..],
                now
            ],
        )?;
    }
    Ok(())
}

/// The number that a log has given last. `last_seq` is what it had given when it was made.
const LAST_OF_LOG: &str = "SELECT CASE WHEN newest > last_seq THEN newest ELSE last_seq END FROM (
        SELECT last_seq, coalesce((SELECT max(seq) FROM outbox WHERE log = $1), 0) AS newest
        FROM outbox_log WHERE id = $1) AS numbers";

/// Moves what is due into this process's log, in the order of the due times, at most `max`. One
/// process at a time does so; while another does, nothing is moved here. Says how many were.
pub(super) fn move_due(ledger: &Ledger<'_>, max: u32) -> Result<u64, StoreError> {
    let Ledger { sql, now, .. } = *ledger;
    if sql.try_lock(vec![MessageKey::of(OUTBOX, "", "due")], 1)?.is_empty() {
        return Ok(0);
    }
    let taken = sql.records(
        "DELETE FROM outbox_delayed WHERE id IN (
             SELECT id FROM outbox_delayed WHERE due_at <= $1 ORDER BY due_at, id LIMIT $2)
         RETURNING due_at, id, pubsub, topic, message_id, ordering_key, content",
        params![now, max],
    )?;
    let mut due = Vec::with_capacity(taken.len());
    for mut record in taken {
        let place: (Timestamp, i64) = (record.take()?, record.take()?);
        let topic = Topic { log: 0, pubsub: record.take()?, name: record.take()? };
        due.push((place, outgoing(&topic, 0, record)?));
    }
    due.sort_by_key(|(place, _)| *place);
    let due: Vec<&Outgoing> = due.iter().map(|(_, message)| message).collect();
    append_to_log(ledger, &due)?;
    Ok(due.len() as u64)
}

/// The topics of the logs that `owner` has where something waits, and when the next delayed message
/// is due.
pub(super) fn look(sql: &dyn Sql, owner: &str) -> Result<OutboxLook, StoreError> {
    // One step along outbox_topic, backwards, for each cursor.
    let cursors = sql.records(
        "SELECT c.log, c.pubsub, c.topic, c.seq,
                (SELECT max(o.seq) FROM outbox o
                  WHERE o.log = c.log AND o.pubsub = c.pubsub AND o.topic = c.topic)
         FROM relay_cursor c JOIN outbox_log l ON l.id = c.log WHERE l.owner = $1
         ORDER BY c.log, c.pubsub, c.topic",
        params![owner],
    )?;
    let mut waiting = Vec::new();
    for mut cursor in cursors {
        let topic = Topic { log: cursor.take()?, pubsub: cursor.take()?, name: cursor.take()? };
        let (cursor, newest): (i64, Option<i64>) = (cursor.take()?, cursor.take()?);
        if let Some(newest) = newest.filter(|newest| *newest > cursor) {
            waiting.push(Waiting { topic, cursor, newest });
        }
    }
    let next_due = sql.value("SELECT min(due_at) FROM outbox_delayed", &[])?;
    Ok(OutboxLook { waiting, next_due })
}

/// The messages of a topic after a number, in their order: at most `max`, and no more than
/// `bytes_max` together but for the first. `None` when the log is not `owner`'s any more.
pub(super) fn read(
    sql: &dyn Sql,
    owner: &str,
    topic: &Topic,
    after: i64,
    max: u32,
    bytes_max: u64,
) -> Result<Option<Vec<Outgoing>>, StoreError> {
    let is_ours = "SELECT 1 FROM outbox_log WHERE id = $1 AND owner = $2";
    if !sql.exists(is_ours, params![topic.log, owner])? {
        return Ok(None);
    }
    // Both along outbox_topic, from that number on.
    let sizes = sql.records(
        "SELECT seq, length(content) FROM outbox
         WHERE log = $1 AND pubsub = $2 AND topic = $3 AND seq > $4 ORDER BY seq LIMIT $5",
        params![topic.log, &topic.pubsub, &topic.name, after, max],
    )?;
    let (mut last, mut bytes) = (after, 0);
    for mut record in sizes {
        let (seq, size): (i64, u64) = (record.take()?, record.take()?);
        bytes += size;
        if bytes > bytes_max && last > after {
            break;
        }
        last = seq;
    }
    let found = sql.records(
        "SELECT seq, message_id, ordering_key, content FROM outbox
         WHERE log = $1 AND pubsub = $2 AND topic = $3 AND seq > $4 AND seq <= $5 ORDER BY seq",
        params![topic.log, &topic.pubsub, &topic.name, after, last],
    )?;
    let messages = found.into_iter().map(|mut record| {
        let seq = record.take()?;
        outgoing(topic, seq, record)
    });
    messages.collect::<Result<_, _>>().map(Some)
}

/// A message from the columns that remain: id, ordering key and content.
fn outgoing(topic: &Topic, seq: i64, mut record: Record) -> Result<Outgoing, StoreError> {
    Ok(Outgoing {
        log: topic.log,
        seq,
        pubsub: topic.pubsub.clone(),
        topic: topic.name.clone(),
        message_id: record.take()?,
        ordering_key: record.take()?,
        due_at: None,
        content: record.take()?,
    })
}

/// Moves a topic's cursor: all up to `seq` is published, or has a case. Never back.
pub(super) fn move_cursor(sql: &dyn Sql, topic: &Topic, seq: i64) -> Result<(), StoreError> {
    sql.execute(
        "UPDATE relay_cursor SET seq = $4
         WHERE log = $1 AND pubsub = $2 AND topic = $3 AND seq < $4",
        params![topic.log, &topic.pubsub, &topic.name, seq],
    )
    .map(drop)
}

/// Files a message that was refused for good, and moves its topic's cursor to `cursor`. `None` when
/// it was filed before, by a process that ended before the cursor could move.
pub(super) fn refuse(
    ledger: &Ledger<'_>,
    refused: &Outgoing,
    source: &str,
    cursor: i64,
) -> Result<Option<Quarantined>, StoreError> {
    let incoming = as_incoming(refused, source);
    ledger.sql.lock(&[incoming.key])?;
    let happening = Happening::Refused(
        Authority::Delivery,
        Category::PublishRejected,
        reason::PUBLISH_REJECTED,
    );
    let case = match ledger.happen(&incoming, &happening, None)? {
        Written::Quarantined(case) => Some(case),
        _ => None,
    };
    move_cursor(ledger.sql, &refused.at(), cursor)?;
    Ok(case)
}

/// What waits, for the gauges: how many messages in logs, since when the oldest, and how many that
/// are not due.
pub(super) fn backlog(sql: &dyn Sql) -> Result<(u64, Option<Timestamp>, u64), StoreError> {
    // Along outbox_topic from each cursor on, and no further than that many.
    let counted = sql.record(
        "SELECT CAST(coalesce(sum(pending), 0) AS BIGINT), min(since) FROM (
             SELECT (SELECT count(*) FROM (
                         SELECT 1 FROM outbox o
                         WHERE o.log = c.log AND o.pubsub = c.pubsub AND o.topic = c.topic
                           AND o.seq > c.seq LIMIT $1) AS few) AS pending,
                    (SELECT o.created_at FROM outbox o
                      WHERE o.log = c.log AND o.pubsub = c.pubsub AND o.topic = c.topic
                        AND o.seq > c.seq ORDER BY o.seq LIMIT 1) AS since
             FROM relay_cursor c) AS topics",
        params![COUNTED_MAX],
    )?;
    let delayed = sql.value(
        "SELECT count(*) FROM (SELECT 1 FROM outbox_delayed LIMIT $1) AS few",
        params![COUNTED_MAX],
    )?;
    match counted {
        Some(mut counted) => Ok((counted.take()?, counted.take()?, delayed)),
        None => Ok((0, None, delayed)),
    }
}

/// The row under which a refused message is filed: its subscription is the outbox.
fn as_incoming(refused: &Outgoing, source: &str) -> Incoming {
    Incoming {
        key: MessageKey::of(OUTBOX, source, &refused.message_id),
        fingerprint: Fingerprint([0; 16]),
        subscription: OUTBOX.to_owned(),
        pubsub: refused.pubsub.clone(),
        topic: refused.topic.clone(),
        source: source.to_owned(),
        event_id: refused.message_id.clone(),
        ty: String::new(),
        subject: None,
        traceparent: None,
        stored: Stored { attributes: None, body: refused.content.clone() },
        once: false,
        recovery_attempt: 0,
    }
}
