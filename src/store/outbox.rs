//! The outbox: append-only logs with one cursor a topic.
//!
//! A log belongs to one process, which alone appends to it, so its numbers are gap-free and in the
//! order of the commits. Whoever owns the log moves its cursors.

use super::ledger::Ledger;
use super::sql::{Sql, params};
use crate::custody::{Authority, Happening};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::outcome::{Category, reason};
use crate::store::{Incoming, Outgoing, Quarantined, StoreError, Written};

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
/// transaction commits.
pub(super) fn append(ledger: &Ledger<'_>, outgoing: &[Outgoing]) -> Result<(), StoreError> {
    let Ledger { sql, log, now, .. } = *ledger;
    if outgoing.is_empty() {
        return Ok(());
    }
    let count = i64::try_from(outgoing.len()).unwrap_or(i64::MAX);
    let moved = sql.record(
        "UPDATE outbox_log SET last_seq = last_seq + $3 WHERE id = $1 AND owner = $2
         RETURNING last_seq",
        params![log.id, &log.owner, count],
    )?;
    let Some(mut record) = moved else { return Err(StoreError::LogLost) };
    let last: i64 = record.take()?;
    for (seq, message) in (last - count + 1..).zip(outgoing) {
        sql.execute(
            "INSERT INTO relay_cursor (log, pubsub, topic, seq) VALUES ($1, $2, $3, 0)
             ON CONFLICT DO NOTHING",
            params![log.id, &message.pubsub, &message.topic],
        )?;
        sql.execute(
            "INSERT INTO outbox (log, seq, pubsub, topic, message_id, content, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
            params![
                log.id,
                seq,
                &message.pubsub,
                &message.topic,
                &message.message_id,
                &message.content[..],
                now
            ],
        )?;
    }
    Ok(())
}

/// The next unpublished messages of every topic of the logs that `owner` has, at most `max` a
/// topic and log, each in the log's order.
pub(super) fn pending(
    sql: &dyn Sql,
    owner: &str,
    max: u32,
) -> Result<Vec<Vec<Outgoing>>, StoreError> {
    let cursors = sql.records(
        "SELECT c.log, c.pubsub, c.topic, c.seq FROM relay_cursor c
         JOIN outbox_log l ON l.id = c.log WHERE l.owner = $1
         ORDER BY c.log, c.pubsub, c.topic",
        params![owner],
    )?;
    let mut topics = Vec::new();
    for mut cursor in cursors {
        let (log, pubsub, topic, seq): (i64, String, String, i64) =
            (cursor.take()?, cursor.take()?, cursor.take()?, cursor.take()?);
        // Reads along outbox_topic from the cursor on, never what is published already.
        let found = sql.records(
            "SELECT seq, message_id, content FROM outbox
             WHERE log = $1 AND pubsub = $2 AND topic = $3 AND seq > $4 ORDER BY seq LIMIT $5",
            params![log, &pubsub, &topic, seq, max],
        )?;
        let messages: Vec<Outgoing> = found
            .into_iter()
            .map(|mut record| {
                Ok(Outgoing {
                    log,
                    seq: record.take()?,
                    pubsub: pubsub.clone(),
                    topic: topic.clone(),
                    message_id: record.take()?,
                    content: record.take()?,
                })
            })
            .collect::<Result<_, StoreError>>()?;
        if !messages.is_empty() {
            topics.push(messages);
        }
    }
    Ok(topics)
}

/// Moves a topic's cursor: all up to `last` is published. Never back.
pub(super) fn move_cursor(sql: &dyn Sql, last: &Outgoing) -> Result<(), StoreError> {
    sql.execute(
        "UPDATE relay_cursor SET seq = $4
         WHERE log = $1 AND pubsub = $2 AND topic = $3 AND seq < $4",
        params![last.log, &last.pubsub, &last.topic, last.seq],
    )
    .map(drop)
}

/// Files a message that was refused for good, and moves its topic's cursor past it.
pub(super) fn refuse(
    ledger: &Ledger<'_>,
    refused: &Outgoing,
    source: &str,
) -> Result<Quarantined, StoreError> {
    let incoming = as_incoming(refused, source);
    ledger.sql.lock(&[incoming.key])?;
    let happening = Happening::Refused(
        Authority::Delivery,
        Category::PublishRejected,
        reason::PUBLISH_REJECTED,
    );
    match ledger.happen(&incoming, &happening, None)? {
        Written::Quarantined(case) => {
            move_cursor(ledger.sql, refused)?;
            Ok(case)
        }
        _ => Err(StoreError::Corrupt("an unpublished message that has a case already".into())),
    }
}

/// The row under which a refused message is filed: its subscription is the outbox.
fn as_incoming(refused: &Outgoing, source: &str) -> Incoming {
    const OUTBOX: &str = "outbox";
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
