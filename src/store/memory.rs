//! How long what is over is remembered, and how it is forgotten.
//!
//! Keys of processed messages are kept in generations: four tables, written in turn. Time alone
//! says which: each is written for half of [`Limits::remember_for`], so that when a table's turn
//! comes again, the youngest key in it is older than that. Before its turn comes it is emptied as a
//! whole. Where nobody did that, because no service ran, old keys are only remembered for longer.
//!
//! Everything else goes in small batches. What is not over (a message with any other row than a
//! closed one, an open case, an unpublished message) is never touched.

use std::time::Duration;

use super::ledger::Ledger;
use super::sql::{Sql, params};
use crate::clock::Timestamp;
use crate::store::StoreError;

/// The tables of the dedup memory.
const GENERATIONS: i64 = 4;
/// Rows of a kind forgotten in one transaction.
const BATCH_MAX: u32 = 500;

/// For how long the store keeps what is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Published messages of the outbox. Default one hour.
    pub published_for: Duration,
    /// Resolved and closed cases, with their attempts; absent keeps them. Default 90 days.
    pub cases_for: Option<Duration>,
    /// What people and the service did to cases and gates; absent keeps it. Default keep.
    pub audit_for: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            published_for: Duration::from_secs(3600),
            cases_for: Some(Duration::from_secs(90 * 86_400)),
            audit_for: None,
        }
    }
}

/// Which generation a time belongs to.
fn generation(now: Timestamp, remember_for: Duration) -> i64 {
    let turn = i64::try_from(remember_for.as_micros() / 2).unwrap_or(i64::MAX).max(1);
    now.0.div_euclid(turn)
}

/// The table that keys are written to now.
pub(super) fn inbox_table(now: Timestamp, remember_for: Duration) -> &'static str {
    table(generation(now, remember_for))
}

fn table(generation: i64) -> &'static str {
    match generation.rem_euclid(GENERATIONS) {
        0 => "inbox_0",
        1 => "inbox_1",
        2 => "inbox_2",
        _ => "inbox_3",
    }
}

/// Empties the table whose turn is next, where it is not empty.
pub(super) fn forget_oldest_generation(ledger: &Ledger<'_>) -> Result<bool, StoreError> {
    let next = table(generation(ledger.now, ledger.limits.remember_for) + 1);
    if !ledger.sql.exists(&format!("SELECT 1 FROM {next} LIMIT 1"), &[])? {
        return Ok(false);
    }
    ledger.sql.empty(next)?;
    Ok(true)
}

/// Forgets a batch of everything else that is over for long enough. Says whether there may be more.
pub(super) fn forget_batch(ledger: &Ledger<'_>, retention: &Retention) -> Result<bool, StoreError> {
    let Ledger { sql, limits, now, .. } = *ledger;
    let mut rows = published(sql, before(now, retention.published_for), now)?;
    // A closed message's row is its tombstone: it stays for as long as a processed one's key.
    rows = rows.max(closed(sql, before(now, limits.remember_for))?);
    if let Some(cases_for) = retention.cases_for {
        rows = rows.max(cases(sql, before(now, cases_for.max(limits.remember_for)))?);
    }
    if let Some(audit_for) = retention.audit_for {
        rows = rows.max(audit(sql, before(now, audit_for))?);
    }
    Ok(rows >= u64::from(BATCH_MAX))
}

fn before(now: Timestamp, age: Duration) -> Timestamp {
    Timestamp(now.0.saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)))
}

/// Published messages, along outbox_topic from the oldest of each topic on. The newest of a log
/// stays: the log goes on after its number.
fn published(sql: &dyn Sql, before: Timestamp, now: Timestamp) -> Result<u64, StoreError> {
    let mut cursors = sql.records(
        "SELECT c.log, c.pubsub, c.topic, c.seq,
                (SELECT max(o.seq) FROM outbox o WHERE o.log = c.log)
         FROM relay_cursor c ORDER BY c.log, c.pubsub, c.topic",
        &[],
    )?;
    if !cursors.is_empty() {
        // Another one is first each time, so that a busy topic keeps no other from its turn.
        let first = usize::try_from(now.0 / 1000).unwrap_or(0) % cursors.len();
        cursors.rotate_left(first);
    }
    let mut forgotten = 0;
    for mut cursor in cursors {
        let (log, pubsub, topic): (i64, String, String) =
            (cursor.take()?, cursor.take()?, cursor.take()?);
        let (seq, newest): (i64, Option<i64>) = (cursor.take()?, cursor.take()?);
        let last: Option<i64> = sql.value(
            "SELECT max(seq) FROM (
                 SELECT seq, created_at FROM outbox
                 WHERE log = $1 AND pubsub = $2 AND topic = $3 AND seq <= $4
                 ORDER BY seq LIMIT $5) AS oldest
             WHERE created_at < $6",
            params![log, &pubsub, &topic, seq.min(newest.unwrap_or(0) - 1), BATCH_MAX, before],
        )?;
        if let Some(last) = last {
            forgotten += sql.execute(
                "DELETE FROM outbox WHERE log = $1 AND pubsub = $2 AND topic = $3 AND seq <= $4",
                params![log, &pubsub, &topic, last],
            )?;
        }
        if forgotten >= u64::from(BATCH_MAX) {
            break;
        }
    }
    Ok(forgotten)
}

fn closed(sql: &dyn Sql, before: Timestamp) -> Result<u64, StoreError> {
    sql.execute(
        "DELETE FROM message WHERE state = 'closed' AND key IN (
             SELECT key FROM message WHERE state = 'closed' AND changed_at < $1
             ORDER BY changed_at LIMIT $2)",
        params![before, BATCH_MAX],
    )
}

/// Finished cases whose message has no row any more, and the attempts of those messages.
fn cases(sql: &dyn Sql, before: Timestamp) -> Result<u64, StoreError> {
    let forgotten = sql.execute(
        "DELETE FROM exception WHERE id IN (
             SELECT e.id FROM exception e
             WHERE e.status IN ('resolved', 'closed') AND e.changed_at < $1
               AND NOT EXISTS (SELECT 1 FROM message m WHERE m.key = e.key)
             ORDER BY e.changed_at LIMIT $2)",
        params![before, BATCH_MAX],
    )?;
    if forgotten > 0 {
        sql.execute(
            "DELETE FROM attempt WHERE at < $1
             AND NOT EXISTS (SELECT 1 FROM message m WHERE m.key = attempt.key)
             AND NOT EXISTS (SELECT 1 FROM exception e WHERE e.key = attempt.key)",
            params![before],
        )?;
    }
    Ok(forgotten)
}

fn audit(sql: &dyn Sql, before: Timestamp) -> Result<u64, StoreError> {
    let of_cases = sql.execute(
        "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < $1 ORDER BY id LIMIT $2)",
        params![before, BATCH_MAX],
    )?;
    let of_gates = sql.execute(
        "DELETE FROM gate_audit WHERE id IN (
             SELECT id FROM gate_audit WHERE at < $1 ORDER BY id LIMIT $2)",
        params![before, BATCH_MAX],
    )?;
    Ok(of_cases.max(of_gates))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_table_is_written_again_only_when_its_youngest_key_is_older_than_what_is_remembered() {
        let remember = DAY * 7;
        let step = Duration::from_secs(3600);
        let mut last_written = [None::<Timestamp>; 4];
        let mut now = Timestamp(1_800_000_000_000_000);
        for _ in 0..24 * 60 {
            let (written, emptied) =
                (inbox_table(now, remember), table(generation(now, remember) + 1));
            assert_ne!(written, emptied);
            let place = |name: &str| usize::from(name.as_bytes()[name.len() - 1] - b'0');
            if let Some(youngest) = last_written[place(emptied)] {
                assert!(now.since(youngest) + step >= remember, "forgotten after too short a time");
            }
            last_written[place(written)] = Some(now);
            now = now.plus(step);
        }
    }
}
