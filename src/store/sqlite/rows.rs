//! The row of a message as it is on disk: reading it, writing it, and what of all rows is due.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, named_params};

use crate::clock::Timestamp;
use crate::custody::{Row, State};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::store::{Backlog, Incoming, Look, StoreError};

/// Writes the row of a message; its identity and bytes only the first time.
pub(super) fn put(
    connection: &Connection,
    incoming: &Incoming,
    exists: bool,
    row: &Row,
    now: Timestamp,
) -> Result<(), StoreError> {
    let text = if exists { UPDATE_ROW } else { INSERT_ROW };
    let mut statement = connection.prepare_cached(text).map_err(StoreError::away)?;
    let key = incoming.key.0;
    let state = row.state.as_str();
    let lease_until = row.lease_until.map(|time| time.0);
    let due_at = row.due_at.map(|time| time.0);
    let wrote = if exists {
        statement.execute(named_params! {
            ":key": key, ":state": state, ":run": row.run, ":lease_until": lease_until,
            ":due_at": due_at, ":attempts": row.attempts, ":recoveries": row.recoveries,
            ":never_attempted": row.never_attempted, ":live_claim": row.live_claim,
            ":changed_at": now.0,
        })
    } else {
        statement.execute(named_params! {
            ":key": key, ":state": state, ":run": row.run, ":lease_until": lease_until,
            ":due_at": due_at, ":attempts": row.attempts, ":recoveries": row.recoveries,
            ":never_attempted": row.never_attempted, ":live_claim": row.live_claim,
            ":changed_at": now.0, ":once": row.once, ":first_seen_at": row.first_seen_at.0,
            ":fingerprint": incoming.fingerprint.0, ":subscription": incoming.subscription,
            ":pubsub": incoming.pubsub, ":topic": incoming.topic, ":source": incoming.source,
            ":event_id": incoming.event_id, ":type": incoming.ty, ":subject": incoming.subject,
            ":traceparent": incoming.traceparent,
            ":attributes": incoming.stored.attributes, ":body": &incoming.stored.body[..],
        })
    };
    wrote.map(drop).map_err(StoreError::away)
}

const UPDATE_ROW: &str =
    "UPDATE message SET state = :state, run = :run, lease_until = :lease_until,
    due_at = :due_at, attempts = :attempts, recoveries = :recoveries,
    never_attempted = :never_attempted, live_claim = :live_claim, changed_at = :changed_at
    WHERE key = :key";

const INSERT_ROW: &str = "INSERT INTO message (key, state, run, lease_until, due_at, attempts,
    recoveries, never_attempted, live_claim, changed_at, once, first_seen_at, fingerprint,
    subscription, pubsub, topic, source, event_id, type, subject, traceparent, attributes, body)
    VALUES (:key, :state, :run, :lease_until, :due_at, :attempts, :recoveries, :never_attempted,
    :live_claim, :changed_at, :once, :first_seen_at, :fingerprint, :subscription, :pubsub, :topic,
    :source, :event_id, :type, :subject, :traceparent, :attributes, :body)";

pub(super) fn is_done(connection: &Connection, key: MessageKey) -> Result<bool, StoreError> {
    connection
        .prepare_cached("SELECT 1 FROM inbox WHERE key = ?1")
        .and_then(|mut select| select.exists([key.0]))
        .map_err(StoreError::away)
}

pub(super) fn load_row(
    connection: &Connection,
    key: MessageKey,
) -> Result<Option<Row>, StoreError> {
    let read = |row: &SqlRow<'_>| -> rusqlite::Result<Option<Row>> {
        let state: String = row.get(0)?;
        let Some(state) = State::parse(&state) else { return Ok(None) };
        Ok(Some(Row {
            state,
            run: row.get(1)?,
            lease_until: row.get::<_, Option<i64>>(2)?.map(Timestamp),
            due_at: row.get::<_, Option<i64>>(3)?.map(Timestamp),
            attempts: row.get(4)?,
            recoveries: row.get(5)?,
            never_attempted: row.get(6)?,
            live_claim: row.get(7)?,
            once: row.get(8)?,
            first_seen_at: Timestamp(row.get(9)?),
        }))
    };
    let found = connection
        .prepare_cached(
            "SELECT state, run, lease_until, due_at, attempts, recoveries, never_attempted,
                    live_claim, once, first_seen_at FROM message WHERE key = ?1",
        )
        .and_then(|mut select| select.query_row([key.0], read).optional())
        .map_err(StoreError::away)?;
    match found {
        None => Ok(None),
        Some(Some(row)) => Ok(Some(row)),
        Some(None) => Err(StoreError::Corrupt("a message's state".into())),
    }
}

pub(super) fn load_incoming(
    connection: &Connection,
    key: MessageKey,
) -> Result<Option<Incoming>, StoreError> {
    let read = |row: &SqlRow<'_>| -> rusqlite::Result<Incoming> {
        let body: Vec<u8> = row.get(10)?;
        Ok(Incoming {
            key,
            fingerprint: Fingerprint(row.get(0)?),
            subscription: row.get(1)?,
            pubsub: row.get(2)?,
            topic: row.get(3)?,
            source: row.get(4)?,
            event_id: row.get(5)?,
            ty: row.get(6)?,
            subject: row.get(7)?,
            traceparent: row.get(8)?,
            stored: Stored { attributes: row.get(9)?, body: Bytes::from(body) },
            once: row.get(11)?,
            recovery_attempt: row.get(12)?,
        })
    };
    connection
        .prepare_cached(
            "SELECT fingerprint, subscription, pubsub, topic, source, event_id, type, subject,
                    traceparent, attributes, body, once, recoveries FROM message WHERE key = ?1",
        )
        .and_then(|mut select| select.query_row([key.0], read).optional())
        .map_err(StoreError::away)
}

pub(super) fn look(connection: &Connection, key: MessageKey) -> Result<Look, StoreError> {
    let done = connection
        .prepare_cached("SELECT fingerprint FROM inbox WHERE key = ?1")
        .and_then(|mut select| {
            select.query_row([key.0], |row| row.get(0).map(Fingerprint)).optional()
        })
        .map_err(StoreError::away)?;
    let row = connection
        .prepare_cached("SELECT state, fingerprint, attempts FROM message WHERE key = ?1")
        .and_then(|mut select| {
            select
                .query_row([key.0], |row| {
                    Ok((row.get::<_, String>(0)?, Fingerprint(row.get(1)?), row.get(2)?))
                })
                .optional()
        })
        .map_err(StoreError::away)?;
    let row = match row {
        None => None,
        Some((state, fingerprint, attempts)) => {
            let state = State::parse(&state)
                .ok_or_else(|| StoreError::Corrupt("a message's state".into()))?;
            Some((state, fingerprint, attempts))
        }
    };
    Ok(Look { done, row })
}

pub(super) fn next_due(connection: &Connection) -> Result<Option<Timestamp>, StoreError> {
    let next: Option<i64> = connection
        .prepare_cached(
            "SELECT min(at) FROM (
                 SELECT min(due_at) AS at FROM message WHERE state = 'recovering' AND due_at IS NOT NULL
                 UNION ALL
                 SELECT min(due_at) FROM message WHERE state = 'retrying' AND due_at IS NOT NULL
                 UNION ALL
                 SELECT min(lease_until) FROM message WHERE lease_until IS NOT NULL
                 UNION ALL
                 SELECT min(redrive_requested_at) FROM exception
                 WHERE redrive_requested_at IS NOT NULL
                 UNION ALL
                 SELECT min(next_probe_at) FROM gate WHERE NOT held AND EXISTS (
                     SELECT 1 FROM message m WHERE m.state = 'recovering' AND m.due_at IS NULL
                         AND m.subscription = gate.subscription AND m.gate = gate.code))",
        )
        .and_then(|mut select| select.query_row([], |row| row.get(0)))
        .map_err(StoreError::away)?;
    Ok(next.map(Timestamp))
}

pub(super) fn backlog(connection: &Connection) -> Result<Backlog, StoreError> {
    connection
        .prepare_cached(
            "SELECT (SELECT count(*) FROM message WHERE state IN ('recovering', 'running')),
                    (SELECT count(*) FROM gate WHERE state = 'closed'),
                    (SELECT count(*) FROM message WHERE state = 'recovering' AND due_at IS NULL),
                    (SELECT count(*) FROM exception WHERE status IN ('open', 'redriving')),
                    (SELECT count(*) FROM outbox o JOIN relay_cursor c USING (pubsub, topic)
                      WHERE o.seq > c.seq),
                    (SELECT min(o.created_at) FROM outbox o JOIN relay_cursor c USING (pubsub, topic)
                      WHERE o.seq > c.seq)",
        )
        .and_then(|mut select| {
            select.query_row([], |row| {
                let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
                Ok(Backlog {
                    recovering: count(0)?,
                    gates_closed: count(1)?,
                    gates_waiting: count(2)?,
                    exceptions_open: count(3)?,
                    outbox_pending: count(4)?,
                    outbox_oldest: row.get::<_, Option<i64>>(5)?.map(Timestamp),
                })
            })
        })
        .map_err(StoreError::away)
}
