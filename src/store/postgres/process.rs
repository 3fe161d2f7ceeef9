//! The processes that share a database: each has a lease, and a log of the outbox; those of one
//! that is gone are taken over by whoever notices first.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::store::StoreError;
use crate::store::outbox::Log;
use crate::store::sql::{Sql, params};

/// How long a process is believed alive without a sign of life.
pub(crate) const LEASE: Duration = Duration::from_secs(20);
/// How often a process gives one.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How long the record of a process that is gone is kept.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// Logs looked at in one transaction for whether they can be forgotten.
const FORGOTTEN_MAX: u32 = 16;

/// The database's time, as far as it was heard.
#[derive(Clone)]
pub(super) struct Clocks {
    clock: Clock,
    /// Microseconds that the database's clock was ahead of this machine's when it was last heard.
    ahead: Arc<AtomicI64>,
}

impl Clocks {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, ahead: Arc::default() }
    }

    /// Takes in what the database says the time is, and gives the time to go by.
    pub(super) fn tell(&self, database: Timestamp) -> Timestamp {
        match self.clock {
            Clock::System => {
                self.ahead.store(database.0 - self.clock.now().0, Ordering::Relaxed);
                database
            }
            Clock::Manual(_) => self.clock.now(),
        }
    }

    /// The database's time, by this machine's clock.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp(self.clock.now().0.saturating_add(self.ahead.load(Ordering::Relaxed)))
    }
}

/// Which of the process's logs is for what; both are made where they are missing.
pub(super) struct Logs {
    pub of_sessions: Log,
    pub of_writer: Log,
}

/// The logs of `owner`.
pub(super) fn logs(sql: &dyn Sql, owner: &str) -> Result<Logs, StoreError> {
    let mut ids = Vec::new();
    for mut record in sql
        .records("SELECT id FROM outbox_log WHERE owner = $1 ORDER BY id LIMIT 2", params![owner])?
    {
        ids.push(record.take()?);
    }
    while ids.len() < 2 {
        ids.push(sql.value(
            "INSERT INTO outbox_log (owner, last_seq) VALUES ($1, 0) RETURNING id",
            params![owner],
        )?);
    }
    let log =
        |place: usize| Log { id: ids.get(place).copied().unwrap_or(0), owner: owner.to_owned() };
    Ok(Logs { of_sessions: log(0), of_writer: log(1) })
}

/// Says that this process serves, for as long as the lease.
pub(super) fn renew(sql: &dyn Sql, id: &str, now: Timestamp) -> Result<(), StoreError> {
    sql.execute(
        "INSERT INTO process (id, state, lease_until) VALUES ($1, 'serving', $2)
         ON CONFLICT (id) DO UPDATE SET state = 'serving', lease_until = excluded.lease_until",
        params![id, now.plus(LEASE)],
    )
    .map(drop)
}

/// Says that this process has ended properly.
pub(super) fn end(sql: &dyn Sql, id: &str) -> Result<(), StoreError> {
    sql.execute("UPDATE process SET state = 'ended' WHERE id = $1", params![id]).map(drop)
}

/// Marks processes whose lease is over as crashed, and says how many there were.
pub(super) fn bury(sql: &dyn Sql, now: Timestamp) -> Result<u64, StoreError> {
    sql.execute(
        "UPDATE process SET state = 'crashed' WHERE state = 'serving' AND lease_until < $1",
        params![now],
    )
}

/// Takes over the logs of processes that are gone, and forgets those long gone.
pub(super) fn adopt_logs(sql: &dyn Sql, id: &str, now: Timestamp) -> Result<u64, StoreError> {
    let adopted = sql.execute(
        "UPDATE outbox_log SET owner = $1 WHERE id IN (
             SELECT id FROM outbox_log WHERE owner IN (SELECT id FROM process WHERE state <> 'serving')
             ORDER BY id FOR UPDATE SKIP LOCKED)",
        params![id],
    )?;
    let before = Timestamp(now.0 - i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX));
    sql.execute(
        "DELETE FROM process WHERE state <> 'serving' AND lease_until < $1
         AND NOT EXISTS (SELECT 1 FROM outbox_log WHERE owner = process.id)",
        params![before],
    )?;
    Ok(adopted)
}

/// Forgets logs beyond the two in use from which everything has left long ago: those of processes
/// that are gone would only grow in number. Whoever still appends to one takes another.
pub(super) fn forget_logs(sql: &dyn Sql, id: &str, now: Timestamp) -> Result<(), StoreError> {
    let mut beyond = Vec::new();
    for mut record in sql.records(
        "SELECT id FROM outbox_log WHERE owner = $1 ORDER BY id OFFSET 2 LIMIT $2",
        params![id, FORGOTTEN_MAX],
    )? {
        beyond.push(Log { id: record.take()?, owner: id.to_owned() });
    }
    let before = Timestamp(now.0 - i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX));
    for log in beyond {
        // Nothing is appended from here on.
        if !sql.lock_log(&log)? {
            continue;
        }
        let is_needed = sql.exists(
            "SELECT 1 FROM outbox o LEFT JOIN relay_cursor c USING (log, pubsub, topic)
             WHERE o.log = $1 AND (o.created_at >= $2 OR c.seq IS NULL OR o.seq > c.seq) LIMIT 1",
            params![log.id, before],
        )?;
        if is_needed {
            continue;
        }
        for text in [
            "DELETE FROM outbox WHERE log = $1",
            "DELETE FROM relay_cursor WHERE log = $1",
            "DELETE FROM outbox_log WHERE id = $1",
        ] {
            sql.execute(text, params![log.id])?;
        }
    }
    Ok(())
}
