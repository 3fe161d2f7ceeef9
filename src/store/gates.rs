//! Gates on disk, and the messages that wait at them: `recovering` without a due time.

use super::ledger::Ledger;
use super::sql::{Record, Sql, params};
use crate::clock::Timestamp;
use crate::custody::Happening;
use crate::event::MessageKey;
use crate::gate::{GATES_MAX, Gate, GateState, OTHER_CODES, Opened, TRIP};
use crate::outcome::Code;
use crate::store::{GateAct, GateRow, StoreError};

/// Holds or opens a gate, with an audit entry.
pub(super) fn act(
    ledger: &Ledger<'_>,
    subscription: &str,
    code: &str,
    act: GateAct,
    actor: &str,
) -> Result<(), StoreError> {
    let Ledger { sql, now, .. } = *ledger;
    sql.lock_gates()?;
    match act {
        GateAct::Hold => {
            let held = Gate {
                state: GateState::Closed,
                since: now,
                held: true,
                failures: TRIP,
                let_through: 0,
                awaited: 0,
                next_probe_at: Some(now),
            };
            save(sql, subscription, code, &held)?;
        }
        GateAct::Open if load(sql, subscription, code)?.is_some() => {
            remove(sql, subscription, code)?;
            let_through(sql, subscription, code, u32::MAX, now)?;
        }
        GateAct::Open => {}
    }
    sql.execute(
        "INSERT INTO gate_audit (at, actor, action, subscription, code)
         VALUES ($1, $2, $3, $4, $5)",
        params![now, actor, act.as_str(), subscription, code],
    )
    .map(drop)
}

/// A failure at its gate, before it is written.
pub(super) struct AtGate {
    code: String,
    gate: Gate,
    counted: bool,
}

impl AtGate {
    /// Looks at the gate of a subscription's code.
    pub(super) fn look(
        sql: &dyn Sql,
        subscription: &str,
        code: &Code,
        key: MessageKey,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        sql.lock_gates()?;
        let mut name = code.as_str().to_owned();
        let mut gate = load(sql, subscription, &name)?;
        if gate.is_none() && gates_of(sql, subscription)? >= GATES_MAX {
            OTHER_CODES.as_str().clone_into(&mut name);
            gate = load(sql, subscription, &name)?;
        }
        let counted = sql.exists(
            "SELECT 1 FROM gate_failure WHERE subscription = $1 AND code = $2 AND key = $3",
            params![subscription, &name, &key],
        )?;
        Ok(Self { code: name, gate: gate.unwrap_or(Gate::fresh(now)), counted })
    }

    /// Whether a claimed run that fails here spends nothing.
    pub(super) fn spares(&self) -> bool {
        self.gate.spares(self.counted)
    }

    /// Counts the failure, and links the message to the gate.
    pub(super) fn record(
        self,
        ledger: &Ledger<'_>,
        subscription: &str,
        key: MessageKey,
    ) -> Result<(), StoreError> {
        let Ledger { sql, limits, now, .. } = *ledger;
        let gate = self.gate.failed(self.counted, limits.probe_every, now);
        save(sql, subscription, &self.code, &gate)?;
        if gate.state == GateState::Closed {
            forget_failures(sql, subscription, &self.code)?;
        } else if !self.counted {
            sql.execute(
                "INSERT INTO gate_failure (subscription, code, key) VALUES ($1, $2, $3)",
                params![subscription, &self.code, &key],
            )?;
        }
        sql.execute("UPDATE message SET gate = $2 WHERE key = $1", params![&key, &self.code])
            .map(drop)
    }
}

/// Whether any gate is closed.
pub(super) fn any_closed(sql: &dyn Sql) -> Result<bool, StoreError> {
    sql.exists("SELECT 1 FROM gate WHERE state = 'closed' LIMIT 1", &[])
}

/// Takes the due time from a recovering message whose gate is closed; a message that was never
/// attempted waits at any closed gate of its subscription. Says whether it waits now.
pub(super) fn wait_if_closed(sql: &dyn Sql, key: MessageKey) -> Result<bool, StoreError> {
    // Nearly always no gate is closed; then nobody is kept waiting. One that closes meanwhile is met
    // when the message is claimed.
    if !any_closed(sql)? {
        return Ok(false);
    }
    sql.lock_gates()?;
    let waits = sql.execute(
        "UPDATE message SET due_at = NULL, gate = g.code
         FROM (SELECT gate.code AS code FROM gate JOIN message m ON m.subscription = gate.subscription
               WHERE m.key = $1 AND gate.state = 'closed'
                 AND (m.gate = gate.code OR (m.gate IS NULL AND m.never_attempted))
               LIMIT 1) AS g
         WHERE key = $1 AND state = 'recovering'",
        params![&key],
    )?;
    Ok(waits > 0)
}

/// A success of the subscription opens its gates, each a step further. Says whether there was any.
pub(super) fn succeeded(ledger: &Ledger<'_>, subscription: &str) -> Result<bool, StoreError> {
    let Ledger { sql, limits, now, .. } = *ledger;
    // Nearly always there is no gate; then nobody is kept waiting.
    if gates_of(sql, subscription)? == 0 {
        return Ok(false);
    }
    sql.lock_gates()?;
    for (code, gate) in of_subscription(sql, subscription)? {
        match gate.succeeded(limits.probe_every, now) {
            Opened::Unchanged => {}
            Opened::Wholly => {
                remove(sql, subscription, &code)?;
                let_through(sql, subscription, &code, u32::MAX, now)?;
            }
            Opened::Partly(gate, through) => {
                save(sql, subscription, &code, &gate)?;
                forget_failures(sql, subscription, &code)?;
                let_through(sql, subscription, &code, through, now)?;
            }
        }
    }
    Ok(true)
}

/// The waiting messages that may be run now without a success, at most one a gate: claimed by the
/// caller where the gate is closed, and given a due time where it is opening.
pub(super) fn probes(ledger: &Ledger<'_>, max: usize) -> Result<Vec<MessageKey>, StoreError> {
    let Ledger { sql, limits, now, .. } = *ledger;
    let mut keys = Vec::new();
    let gates = list(sql)?;
    if gates.is_empty() {
        return Ok(keys);
    }
    sql.lock_gates()?;
    for row in list(sql)? {
        if keys.len() == max {
            break;
        }
        let (subscription, code) = (row.subscription.as_str(), row.code.as_str());
        if !row.gate.may_probe(now) || probe_is_on(sql, subscription, code)? {
            continue;
        }
        let gate = Gate { next_probe_at: Some(now.plus(limits.probe_every)), ..row.gate };
        save(sql, subscription, code, &gate)?;
        if gate.state == GateState::Opening {
            let_through(sql, subscription, code, 1, now)?;
            continue;
        }
        let waiting = sql.keys(
            "SELECT key FROM message
             WHERE state = 'recovering' AND due_at IS NULL AND subscription = $1 AND gate = $2
             ORDER BY probed_at NULLS FIRST, first_seen_at LIMIT 1",
            params![subscription, code],
        )?;
        for key in sql.try_lock(waiting, 1)? {
            sql.execute("UPDATE message SET probed_at = $2 WHERE key = $1", params![&key, now])?;
            keys.push(key);
        }
    }
    Ok(keys)
}

/// Files what has waited longer than a message may; one that was never attempted gets its run first.
pub(super) fn too_old(ledger: &Ledger<'_>, max: u32) -> Result<Vec<MessageKey>, StoreError> {
    let Ledger { sql, limits, now, .. } = *ledger;
    let seen_before =
        now.0.saturating_sub(i64::try_from(limits.age_max.as_micros()).unwrap_or(i64::MAX));
    sql.keys(
        "SELECT key FROM message
         WHERE state = 'recovering' AND due_at IS NULL AND NOT never_attempted
           AND first_seen_at < $1 LIMIT $2",
        params![seen_before, max],
    )
}

/// The happening of a claimed run's failure, by what its gate says.
pub(super) fn spared(happening: &Happening, at_gate: Option<&AtGate>) -> Option<Happening> {
    match (happening, at_gate) {
        (Happening::Failed(authority, code), Some(at_gate)) if at_gate.spares() => {
            Some(Happening::FailedAtClosedGate(*authority, code.clone()))
        }
        _ => None,
    }
}

fn load(sql: &dyn Sql, subscription: &str, code: &str) -> Result<Option<Gate>, StoreError> {
    sql.record(SELECT_ONE, params![subscription, code])?
        .map(|mut record| read(&mut record))
        .transpose()
}

const SELECT_ONE: &str = "SELECT state, since, held, failures, let_through, awaited, next_probe_at
    FROM gate WHERE subscription = $1 AND code = $2";

fn of_subscription(sql: &dyn Sql, subscription: &str) -> Result<Vec<(String, Gate)>, StoreError> {
    let found = sql.records(
        "SELECT code, state, since, held, failures, let_through, awaited, next_probe_at
         FROM gate WHERE subscription = $1",
        params![subscription],
    )?;
    found.into_iter().map(|mut record| Ok((record.take()?, read(&mut record)?))).collect()
}

fn gates_of(sql: &dyn Sql, subscription: &str) -> Result<u32, StoreError> {
    sql.value("SELECT count(*) FROM gate WHERE subscription = $1", params![subscription])
}

/// Every gate, with what waits at it.
pub(super) fn list(sql: &dyn Sql) -> Result<Vec<GateRow>, StoreError> {
    let found = sql.records(
        "SELECT subscription, code,
                (SELECT count(*) FROM message m
                  WHERE m.state = 'recovering' AND m.due_at IS NULL
                    AND m.subscription = gate.subscription AND m.gate = gate.code),
                (SELECT max(probed_at) FROM message m
                  WHERE m.subscription = gate.subscription AND m.gate = gate.code),
                state, since, held, failures, let_through, awaited, next_probe_at
         FROM gate ORDER BY subscription, code",
        &[],
    )?;
    found
        .into_iter()
        .map(|mut record| {
            Ok(GateRow {
                subscription: record.take()?,
                code: Code::parse(&record.take::<String>()?)
                    .ok_or_else(|| StoreError::Corrupt("a gate's code".into()))?,
                waiting: record.take()?,
                last_probe_at: record.take()?,
                gate: read(&mut record)?,
            })
        })
        .collect()
}

fn read(record: &mut Record) -> Result<Gate, StoreError> {
    Ok(Gate {
        state: GateState::parse(&record.take::<String>()?)
            .ok_or_else(|| StoreError::Corrupt("a gate's state".into()))?,
        since: record.take()?,
        held: record.take()?,
        failures: record.take()?,
        let_through: record.take()?,
        awaited: record.take()?,
        next_probe_at: record.take()?,
    })
}

fn save(sql: &dyn Sql, subscription: &str, code: &str, gate: &Gate) -> Result<(), StoreError> {
    sql.execute(
        "INSERT INTO gate (subscription, code, state, since, held, failures, let_through, awaited,
                           next_probe_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (subscription, code) DO UPDATE SET
             state = excluded.state, since = excluded.since, held = excluded.held,
             failures = excluded.failures, let_through = excluded.let_through,
             awaited = excluded.awaited, next_probe_at = excluded.next_probe_at",
        params![
            subscription,
            code,
            gate.state.as_str(),
            gate.since,
            gate.held,
            gate.failures,
            gate.let_through,
            gate.awaited,
            gate.next_probe_at
        ],
    )
    .map(drop)
}

fn remove(sql: &dyn Sql, subscription: &str, code: &str) -> Result<(), StoreError> {
    sql.execute(
        "DELETE FROM gate WHERE subscription = $1 AND code = $2",
        params![subscription, code],
    )?;
    forget_failures(sql, subscription, code)
}

fn forget_failures(sql: &dyn Sql, subscription: &str, code: &str) -> Result<(), StoreError> {
    sql.execute(
        "DELETE FROM gate_failure WHERE subscription = $1 AND code = $2",
        params![subscription, code],
    )
    .map(drop)
}

/// Gives the longest waiting messages of a gate a due time; uses `message_waiting`.
fn let_through(
    sql: &dyn Sql,
    subscription: &str,
    code: &str,
    count: u32,
    now: Timestamp,
) -> Result<(), StoreError> {
    sql.execute(
        "UPDATE message SET due_at = $3, probed_at = NULL WHERE key IN (
             SELECT key FROM message
             WHERE state = 'recovering' AND due_at IS NULL AND subscription = $1 AND gate = $2
             ORDER BY first_seen_at LIMIT $4)
           AND state = 'recovering'",
        params![subscription, code, now, count],
    )
    .map(drop)
}

/// Whether the latest probe of a gate has not reported yet.
fn probe_is_on(sql: &dyn Sql, subscription: &str, code: &str) -> Result<bool, StoreError> {
    sql.exists(
        "SELECT 1 FROM message WHERE state = 'running' AND probed_at IS NOT NULL
             AND subscription = $1 AND gate = $2",
        params![subscription, code],
    )
}
