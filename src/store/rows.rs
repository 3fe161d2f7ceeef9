//! The row of a message as it is on disk: reading it, writing it, and what of all rows is due.

use crate::clock::Timestamp;
use crate::custody::{Row, State};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::store::outbox;
use crate::store::sql::{Sql, params};
use crate::store::{Backlog, Incoming, Look, StoreError};

/// Writes the row of a message; its identity and bytes only the first time.
pub(super) fn put(
    sql: &dyn Sql,
    incoming: &Incoming,
    exists: bool,
    row: &Row,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut params = params![
        &incoming.key,
        row.state.as_str(),
        row.run,
        row.lease_until,
        row.due_at,
        row.attempts,
        row.recoveries,
        row.never_attempted,
        row.live_claim,
        now,
    ]
    .to_vec();
    if exists {
        return sql.execute(UPDATE_ROW, &params).map(drop);
    }
    params.extend(params![
        row.once,
        row.first_seen_at,
        &incoming.fingerprint,
        &incoming.subscription,
        &incoming.pubsub,
        &incoming.topic,
        &incoming.source,
        &incoming.event_id,
        &incoming.ty,
        &incoming.subject,
        &incoming.traceparent,
        &incoming.stored.attributes,
        &incoming.stored.body[..],
    ]);
    sql.execute(INSERT_ROW, &params).map(drop)
}

const UPDATE_ROW: &str = "UPDATE message SET state = $2, run = $3, lease_until = $4, due_at = $5,
    attempts = $6, recoveries = $7, never_attempted = $8, live_claim = $9, changed_at = $10
    WHERE key = $1";

const INSERT_ROW: &str = "INSERT INTO message (key, state, run, lease_until, due_at, attempts,
    recoveries, never_attempted, live_claim, changed_at, once, first_seen_at, fingerprint,
    subscription, pubsub, topic, source, event_id, type, subject, traceparent, attributes, body)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
    $20, $21, $22, $23)";

/// Whether the message is done, and its row.
pub(super) fn standing(sql: &dyn Sql, key: MessageKey) -> Result<(bool, Option<Row>), StoreError> {
    let found = sql.record(
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM inbox WHERE key = $1) THEN 1 ELSE 0 END,
                m.state, m.run, m.lease_until, m.due_at, m.attempts, m.recoveries,
                m.never_attempted, m.live_claim, m.once, m.first_seen_at
         FROM (SELECT 1 AS one) AS always LEFT JOIN message m ON m.key = $1",
        params![&key],
    )?;
    let Some(mut record) = found else { return Ok((false, None)) };
    let done = record.take()?;
    let Some(state) = record.take::<Option<String>>()? else { return Ok((done, None)) };
    let row = Row {
        state: parse_state(&state)?,
        run: record.take()?,
        lease_until: record.take()?,
        due_at: record.take()?,
        attempts: record.take()?,
        recoveries: record.take()?,
        never_attempted: record.take()?,
        live_claim: record.take()?,
        once: record.take()?,
        first_seen_at: record.take()?,
    };
    Ok((done, Some(row)))
}

#[cfg(test)]
pub(super) fn load_row(sql: &dyn Sql, key: MessageKey) -> Result<Option<Row>, StoreError> {
    standing(sql, key).map(|(_, row)| row)
}

/// The state with that stored name.
pub(super) fn parse_state(text: &str) -> Result<State, StoreError> {
    State::parse(text).ok_or_else(|| StoreError::Corrupt("a message's state".into()))
}

pub(super) fn load_incoming(
    sql: &dyn Sql,
    key: MessageKey,
) -> Result<Option<Incoming>, StoreError> {
    let found = sql.record(
        "SELECT fingerprint, subscription, pubsub, topic, source, event_id, type, subject,
                traceparent, attributes, body, once, recoveries FROM message WHERE key = $1",
        params![&key],
    )?;
    let Some(mut record) = found else { return Ok(None) };
    Ok(Some(Incoming {
        key,
        fingerprint: record.take()?,
        subscription: record.take()?,
        pubsub: record.take()?,
        topic: record.take()?,
        source: record.take()?,
        event_id: record.take()?,
        ty: record.take()?,
        subject: record.take()?,
        traceparent: record.take()?,
        stored: Stored { attributes: record.take()?, body: record.take()? },
        once: record.take()?,
        recovery_attempt: record.take()?,
    }))
}

pub(super) fn look(sql: &dyn Sql, key: MessageKey) -> Result<Look, StoreError> {
    let done = sql.record("SELECT fingerprint FROM inbox WHERE key = $1", params![&key])?;
    let done: Option<Fingerprint> = done.map(|mut record| record.take()).transpose()?;
    let row = sql
        .record("SELECT state, fingerprint, attempts FROM message WHERE key = $1", params![&key])?;
    let row = match row {
        None => None,
        Some(mut record) => {
            Some((parse_state(&record.take::<String>()?)?, record.take()?, record.take()?))
        }
    };
    Ok(Look { done, row })
}

pub(super) fn next_due(sql: &dyn Sql) -> Result<Option<Timestamp>, StoreError> {
    sql.value(
        "SELECT min(due) FROM (
             SELECT min(due_at) AS due FROM message WHERE state = 'recovering' AND due_at IS NOT NULL
             UNION ALL
             SELECT min(due_at) FROM message WHERE state = 'retrying' AND due_at IS NOT NULL
             UNION ALL
             SELECT min(lease_until) FROM message WHERE lease_until IS NOT NULL
             UNION ALL
             SELECT min(redrive_requested_at) FROM exception WHERE redrive_requested_at IS NOT NULL
             UNION ALL
             SELECT min(next_probe_at) FROM gate WHERE NOT held AND EXISTS (
                 SELECT 1 FROM message m WHERE m.state = 'recovering' AND m.due_at IS NULL
                     AND m.subscription = gate.subscription AND m.gate = gate.code)) AS soonest",
        &[],
    )
}

pub(super) fn backlog(sql: &dyn Sql) -> Result<Backlog, StoreError> {
    let found = sql.record(
        "SELECT (SELECT count(*) FROM message WHERE state IN ('recovering', 'running')),
                (SELECT count(*) FROM gate WHERE state = 'closed'),
                (SELECT count(*) FROM message WHERE state = 'recovering' AND due_at IS NULL),
                (SELECT count(*) FROM exception WHERE status IN ('open', 'redriving'))",
        &[],
    )?;
    let Some(mut record) = found else { return Ok(Backlog::default()) };
    let (outbox_pending, outbox_oldest, outbox_delayed) = outbox::backlog(sql)?;
    Ok(Backlog {
        recovering: record.take()?,
        gates_closed: record.take()?,
        gates_waiting: record.take()?,
        exceptions_open: record.take()?,
        outbox_pending,
        outbox_oldest,
        outbox_delayed,
    })
}
