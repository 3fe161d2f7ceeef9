//! Gates on disk, and the messages that wait at them: `recovering` without a due time.

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use super::Sqlite;
use super::ledger::Ledger;
use crate::clock::Timestamp;
use crate::custody::Happening;
use crate::event::MessageKey;
use crate::gate::{GATES_MAX, Gate, GateState, OTHER_CODES, Opened, TRIP};
use crate::outcome::Code;
use crate::store::sqlite::worker::Kept;
use crate::store::{GateAct, GateRow, StoreError};

impl Sqlite {
    pub(crate) async fn gates(&self) -> Result<Vec<GateRow>, StoreError> {
        self.worker.read(list).await
    }

    pub(crate) async fn act_on_gate(
        &self,
        subscription: String,
        code: Code,
        act: GateAct,
        actor: String,
    ) -> Result<(), StoreError> {
        let write = move |connection: &Connection, now| {
            let gate = load(connection, &subscription, code.as_str())?;
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
                    save(connection, &subscription, code.as_str(), &held)?;
                }
                GateAct::Open if gate.is_some() => {
                    remove(connection, &subscription, code.as_str())?;
                    let_through(connection, &subscription, code.as_str(), u32::MAX, now)?;
                }
                GateAct::Open => {}
            }
            connection
                .execute(
                    "INSERT INTO gate_audit (at, actor, action, subscription, code)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![now.0, actor, act.as_str(), subscription, code.as_str()],
                )
                .map_err(StoreError::away)?;
            Ok(Kept::Keep(()))
        };
        self.worker.write(write).await
    }
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
        connection: &Connection,
        subscription: &str,
        code: &Code,
        key: MessageKey,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let mut name = code.as_str().to_owned();
        let mut gate = load(connection, subscription, &name)?;
        if gate.is_none() && gates_of(connection, subscription)? >= GATES_MAX {
            OTHER_CODES.as_str().clone_into(&mut name);
            gate = load(connection, subscription, &name)?;
        }
        let counted = connection
            .prepare_cached(
                "SELECT 1 FROM gate_failure WHERE subscription = ?1 AND code = ?2 AND key = ?3",
            )
            .and_then(|mut select| select.exists(params![subscription, name, key.0]))
            .map_err(StoreError::away)?;
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
        let Ledger { connection, limits, now } = *ledger;
        let gate = self.gate.failed(self.counted, limits.probe_every, now);
        save(connection, subscription, &self.code, &gate)?;
        if gate.state == GateState::Closed {
            forget_failures(connection, subscription, &self.code)?;
        } else if !self.counted {
            connection
                .execute(
                    "INSERT INTO gate_failure (subscription, code, key) VALUES (?1, ?2, ?3)",
                    params![subscription, self.code, key.0],
                )
                .map_err(StoreError::away)?;
        }
        connection
            .execute("UPDATE message SET gate = ?2 WHERE key = ?1", params![key.0, self.code])
            .map(drop)
            .map_err(StoreError::away)
    }
}

/// Takes the due time from a recovering message whose gate is closed; a message that was never
/// attempted waits at any closed gate of its subscription. Says whether it waits now.
pub(super) fn wait_if_closed(connection: &Connection, key: MessageKey) -> Result<bool, StoreError> {
    let waits = connection
        .prepare_cached(
            "UPDATE message SET due_at = NULL, gate = g.code
             FROM (SELECT gate.code AS code FROM gate JOIN message m ON m.subscription = gate.subscription
                   WHERE m.key = ?1 AND gate.state = 'closed'
                     AND (m.gate = gate.code OR (m.gate IS NULL AND m.never_attempted))
                   LIMIT 1) AS g
             WHERE key = ?1 AND state = 'recovering'",
        )
        .and_then(|mut update| update.execute([key.0]))
        .map_err(StoreError::away)?;
    Ok(waits > 0)
}

/// A success of the subscription opens its gates, each a step further.
pub(super) fn succeeded(ledger: &Ledger<'_>, subscription: &str) -> Result<(), StoreError> {
    let Ledger { connection, limits, now } = *ledger;
    for (code, gate) in of_subscription(connection, subscription)? {
        match gate.succeeded(limits.probe_every, now) {
            Opened::Unchanged => {}
            Opened::Wholly => {
                remove(connection, subscription, &code)?;
                let_through(connection, subscription, &code, u32::MAX, now)?;
            }
            Opened::Partly(gate, through) => {
                save(connection, subscription, &code, &gate)?;
                forget_failures(connection, subscription, &code)?;
                let_through(connection, subscription, &code, through, now)?;
            }
        }
    }
    Ok(())
}

/// The waiting messages that may be run now without a success, at most one a gate: claimed by the
/// caller where the gate is closed, and given a due time where it is opening.
pub(super) fn probes(ledger: &Ledger<'_>, max: usize) -> Result<Vec<MessageKey>, StoreError> {
    let Ledger { connection, limits, now } = *ledger;
    let mut keys = Vec::new();
    for row in list(connection)? {
        if keys.len() == max {
            break;
        }
        let (subscription, code) = (row.subscription.as_str(), row.code.as_str());
        if !row.gate.may_probe(now) || probe_is_on(connection, subscription, code)? {
            continue;
        }
        let gate = Gate { next_probe_at: Some(now.plus(limits.probe_every)), ..row.gate };
        save(connection, subscription, code, &gate)?;
        if gate.state == GateState::Opening {
            let_through(connection, subscription, code, 1, now)?;
            continue;
        }
        let waiting: Option<[u8; 16]> = connection
            .prepare_cached(
                "SELECT key FROM message
                 WHERE state = 'recovering' AND due_at IS NULL AND subscription = ?1 AND gate = ?2
                 ORDER BY probed_at, first_seen_at LIMIT 1",
            )
            .and_then(|mut select| {
                select.query_row(params![subscription, code], |row| row.get(0)).optional()
            })
            .map_err(StoreError::away)?;
        if let Some(key) = waiting {
            connection
                .execute("UPDATE message SET probed_at = ?2 WHERE key = ?1", params![key, now.0])
                .map_err(StoreError::away)?;
            keys.push(MessageKey(key));
        }
    }
    Ok(keys)
}

/// Files what has waited longer than a message may; one that was never attempted gets its run first.
pub(super) fn too_old(ledger: &Ledger<'_>, max: u32) -> Result<Vec<MessageKey>, StoreError> {
    let Ledger { connection, limits, now } = *ledger;
    let seen_before =
        now.0.saturating_sub(i64::try_from(limits.age_max.as_micros()).unwrap_or(i64::MAX));
    let mut select = connection
        .prepare_cached(
            "SELECT key FROM message
             WHERE state = 'recovering' AND due_at IS NULL AND NOT never_attempted
               AND first_seen_at < ?1 LIMIT ?2",
        )
        .map_err(StoreError::away)?;
    let keys = select
        .query_map(params![seen_before, max], |row| row.get(0).map(MessageKey))
        .and_then(Iterator::collect)
        .map_err(StoreError::away)?;
    Ok(keys)
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

fn load(
    connection: &Connection,
    subscription: &str,
    code: &str,
) -> Result<Option<Gate>, StoreError> {
    connection
        .prepare_cached(&format!("{SELECT} WHERE subscription = ?1 AND code = ?2"))
        .and_then(|mut select| select.query_row(params![subscription, code], read).optional())
        .map_err(StoreError::away)?
        .transpose()
}

fn of_subscription(
    connection: &Connection,
    subscription: &str,
) -> Result<Vec<(String, Gate)>, StoreError> {
    let mut select = connection
        .prepare_cached(&format!("{SELECT} WHERE subscription = ?1"))
        .map_err(StoreError::away)?;
    let rows = select
        .query_map([subscription], |row| Ok((row.get::<_, String>("code")?, read(row)?)))
        .map_err(StoreError::away)?;
    rows.map(|row| {
        let (code, gate) = row.map_err(StoreError::away)?;
        Ok((code, gate?))
    })
    .collect()
}

fn gates_of(connection: &Connection, subscription: &str) -> Result<u32, StoreError> {
    connection
        .prepare_cached("SELECT count(*) FROM gate WHERE subscription = ?1")
        .and_then(|mut select| select.query_row([subscription], |row| row.get(0)))
        .map_err(StoreError::away)
}

fn list(connection: &Connection) -> Result<Vec<GateRow>, StoreError> {
    let mut select = connection
        .prepare_cached(&format!(
            "{SELECT_ALL}, (SELECT count(*) FROM message m
                 WHERE m.state = 'recovering' AND m.due_at IS NULL
                   AND m.subscription = gate.subscription AND m.gate = gate.code) AS waiting,
             (SELECT max(probed_at) FROM message m
                 WHERE m.subscription = gate.subscription AND m.gate = gate.code) AS probed_at
             FROM gate ORDER BY subscription, code"
        ))
        .map_err(StoreError::away)?;
    let rows = select
        .query_map([], |row| {
            let code: String = row.get("code")?;
            let last_probe_at = row.get::<_, Option<i64>>("probed_at")?.map(Timestamp);
            Ok((row.get("subscription")?, code, read(row)?, row.get("waiting")?, last_probe_at))
        })
        .map_err(StoreError::away)?;
    rows.map(|row| {
        let (subscription, code, gate, waiting, last_probe_at) = row.map_err(StoreError::away)?;
        let code = Code::parse(&code).ok_or_else(|| StoreError::Corrupt("a gate's code".into()))?;
        Ok(GateRow { subscription, code, gate: gate?, waiting, last_probe_at })
    })
    .collect()
}

const SELECT_ALL: &str =
    "SELECT subscription, code, state, since, held, failures, let_through, awaited, next_probe_at";
const SELECT: &str = "SELECT subscription, code, state, since, held, failures, let_through, awaited, next_probe_at FROM gate";

fn read(row: &SqlRow<'_>) -> rusqlite::Result<Result<Gate, StoreError>> {
    let state: String = row.get("state")?;
    let Some(state) = GateState::parse(&state) else {
        return Ok(Err(StoreError::Corrupt("a gate's state".into())));
    };
    Ok(Ok(Gate {
        state,
        since: Timestamp(row.get("since")?),
        held: row.get("held")?,
        failures: row.get("failures")?,
        let_through: row.get("let_through")?,
        awaited: row.get("awaited")?,
        next_probe_at: row.get::<_, Option<i64>>("next_probe_at")?.map(Timestamp),
    }))
}

fn save(
    connection: &Connection,
    subscription: &str,
    code: &str,
    gate: &Gate,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO gate
                 (subscription, code, state, since, held, failures, let_through, awaited, next_probe_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                subscription,
                code,
                gate.state.as_str(),
                gate.since.0,
                gate.held,
                gate.failures,
                gate.let_through,
                gate.awaited,
                gate.next_probe_at.map(|at| at.0),
            ])
        })
        .map(drop)
        .map_err(StoreError::away)
}

fn remove(connection: &Connection, subscription: &str, code: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM gate WHERE subscription = ?1 AND code = ?2")
        .and_then(|mut delete| delete.execute(params![subscription, code]))
        .map_err(StoreError::away)?;
    forget_failures(connection, subscription, code)
}

fn forget_failures(
    connection: &Connection,
    subscription: &str,
    code: &str,
) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM gate_failure WHERE subscription = ?1 AND code = ?2")
        .and_then(|mut delete| delete.execute(params![subscription, code]))
        .map(drop)
        .map_err(StoreError::away)
}

/// Gives the longest waiting messages of a gate a due time; uses `message_waiting`.
fn let_through(
    connection: &Connection,
    subscription: &str,
    code: &str,
    count: u32,
    now: Timestamp,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "UPDATE message SET due_at = ?3, probed_at = NULL WHERE key IN (
                 SELECT key FROM message
                 WHERE state = 'recovering' AND due_at IS NULL AND subscription = ?1 AND gate = ?2
                 ORDER BY first_seen_at LIMIT ?4)",
        )
        .and_then(|mut update| update.execute(params![subscription, code, now.0, count]))
        .map(drop)
        .map_err(StoreError::away)
}

/// Whether the latest probe of a gate has not reported yet.
fn probe_is_on(
    connection: &Connection,
    subscription: &str,
    code: &str,
) -> Result<bool, StoreError> {
    connection
        .prepare_cached(
            "SELECT 1 FROM message WHERE state = 'running' AND probed_at IS NOT NULL
                 AND subscription = ?1 AND gate = ?2",
        )
        .and_then(|mut select| select.exists(params![subscription, code]))
        .map_err(StoreError::away)
}
