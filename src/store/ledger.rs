//! Inbox, rows and attempts: reads what stands, lets [`custody::step`] decide, writes what it says.

use std::sync::Arc;

use super::memory::inbox_table;
use super::outbox::Log;
use super::sql::{Sql, params};
use super::{cases, gates, outbox, rows, statements};
use crate::clock::Timestamp;
use crate::custody::{
    Authority, CaseOpened, Happening, Limits, Row, Standing, State, Verdict, step,
};
use crate::effect::{Otherwise, Statement};
use crate::event::MessageKey;
use crate::outcome::{Code, reason};
use crate::store::writer::Kept;
use crate::store::{AttemptKind, Claim, Committed, Incoming, Outgoing, StoreError, Written};

/// A commit that was not made undoes the statements that led to it.
pub(super) fn kept_if_committed(committed: Committed) -> Kept<Committed> {
    // A row that stood beside an inbox key was removed: that much stays.
    match committed {
        Committed::Yes | Committed::Nothing(Standing::Done) => Kept::Keep(committed),
        other => Kept::Undo(other),
    }
}

/// One transaction's view of the messages.
pub(super) struct Ledger<'a> {
    pub sql: &'a dyn Sql,
    pub limits: &'a Limits,
    /// Where this transaction's outgoing messages go.
    pub log: &'a Log,
    pub now: Timestamp,
}

impl Ledger<'_> {
    /// Applies a happening. `attempt` is the code to record an attempt with, if a run reported.
    pub(super) fn happen(
        &self,
        incoming: &Incoming,
        happening: &Happening,
        attempt: Option<&Code>,
    ) -> Result<Written, StoreError> {
        let (done, before) = rows::standing(self.sql, incoming.key)?;
        let at_gate = self.at_gate(incoming, happening)?;
        let spared = gates::spared(happening, at_gate.as_ref());
        let happening = spared.as_ref().unwrap_or(happening);
        match self.judge(incoming, done, before.as_ref(), happening) {
            Verdict::Nothing(standing) => {
                let filed = matches!(happening, Happening::Refused(Authority::Delivery, ..));
                if filed && attempt.is_none() {
                    cases::count_sighting(self.sql, incoming.key)?;
                }
                Ok(Written::Nothing(standing))
            }
            Verdict::Commit => {
                Err(StoreError::Corrupt("a commit reached the ledger as a happening".into()))
            }
            Verdict::Remove => {
                self.finish(incoming.key)?;
                Ok(Written::Removed)
            }
            Verdict::Put(row, opened) => {
                let lost =
                    matches!(happening, Happening::TimePassed) && row_was_leased(before.as_ref());
                // A recovery that was given back leaves no attempt either: a closed gate is probed
                // for as long as it takes, and what is recorded stays within the cap.
                let given_back = before.is_some_and(|before| row.recoveries < before.recoveries);
                let recorded = if lost { Some(&reason::RUN_LOST) } else { attempt };
                let recorded = recorded.filter(|_| !given_back);
                if let Some(code) = recorded {
                    self.record_attempt(incoming.key, attempt_kind(before.as_ref()), code)?;
                }
                rows::put(self.sql, incoming, before.is_some(), &row, self.now)?;
                if let Some(at_gate) = at_gate {
                    at_gate.record(self, &incoming.subscription, incoming.key)?;
                }
                self.written(incoming, &row, opened)
            }
        }
    }

    fn judge(
        &self,
        incoming: &Incoming,
        done: bool,
        row: Option<&Row>,
        happening: &Happening,
    ) -> Verdict {
        let fresh = Row::fresh(incoming.recovery_attempt, incoming.once, self.now);
        step(row, done, happening, &fresh, self.limits, incoming.key.seed(), self.now)
    }

    fn written(
        &self,
        incoming: &Incoming,
        row: &Row,
        opened: Option<CaseOpened>,
    ) -> Result<Written, StoreError> {
        if let Some(opened) = opened {
            return cases::open(self.sql, incoming, &opened, self.now).map(Written::Quarantined);
        }
        match row.state {
            State::Recovering => {
                let waits = gates::wait_if_closed(self.sql, incoming.key)?;
                let due_at = row.due_at.filter(|_| !waits);
                Ok(Written::Recovering { due_at, never_attempted: row.never_attempted })
            }
            state => Ok(Written::Now(state)),
        }
    }

    fn at_gate(
        &self,
        incoming: &Incoming,
        happening: &Happening,
    ) -> Result<Option<gates::AtGate>, StoreError> {
        let (Happening::Failed(_, code) | Happening::FailedInBulk(_, code)) = happening else {
            return Ok(None);
        };
        let Ledger { sql, now, .. } = *self;
        gates::AtGate::look(sql, &incoming.subscription, code, incoming.key, now).map(Some)
    }

    /// Runs the statements, appends the outgoing messages and writes the inbox key, in this order;
    /// the caller undoes all of it unless the answer is [`Committed::Yes`].
    pub(super) fn commit(
        &self,
        incoming: &Incoming,
        authority: Authority,
        statements: &[Statement],
        outgoing: &[Outgoing],
    ) -> Result<Committed, StoreError> {
        let (done, before) = rows::standing(self.sql, incoming.key)?;
        match self.judge(incoming, done, before.as_ref(), &Happening::Succeeded(authority)) {
            Verdict::Nothing(standing) => return Ok(Committed::Nothing(standing)),
            Verdict::Remove => {
                self.finish(incoming.key)?;
                return Ok(Committed::Nothing(Standing::Done));
            }
            Verdict::Commit | Verdict::Put(..) => {}
        }
        for statement in statements {
            match statements::run(self.sql, statement)? {
                Ok(()) => {}
                Err(statements::Refusal::Failed(code)) => return Ok(Committed::EffectFailed(code)),
                Err(statements::Refusal::Rows(Otherwise::Rerun)) => {
                    return Ok(Committed::RowsDiffer);
                }
                Err(statements::Refusal::Rows(Otherwise::Reject(code))) => {
                    return Ok(Committed::Rejected(code));
                }
            }
        }
        outbox::append(self, outgoing)?;
        let table = inbox_table(self.now, self.limits.remember_for);
        self.sql.execute(
            &format!("INSERT INTO {table} (key, fingerprint, committed_at) VALUES ($1, $2, $3)"),
            params![&incoming.key, &incoming.fingerprint, self.now],
        )?;
        if before.is_some() {
            self.finish(incoming.key)?;
        }
        gates::succeeded(self, &incoming.subscription)?;
        Ok(Committed::Yes)
    }

    /// The message is done: its row goes and its case, if it has one, is resolved.
    fn finish(&self, key: MessageKey) -> Result<(), StoreError> {
        self.sql.execute("DELETE FROM message WHERE key = $1", params![&key])?;
        if !cases::resolve(self.sql, key, self.now)? {
            self.sql.execute(
                "DELETE FROM attempt WHERE key = $1
                 AND NOT EXISTS (SELECT 1 FROM exception WHERE key = $1)",
                params![&key],
            )?;
        }
        Ok(())
    }

    fn record_attempt(
        &self,
        key: MessageKey,
        kind: AttemptKind,
        code: &Code,
    ) -> Result<(), StoreError> {
        self.sql.execute(
            "INSERT INTO attempt (key, n, at, kind, code)
             VALUES ($1, (SELECT coalesce(max(n), 0) + 1 FROM attempt WHERE key = $1), $2, $3, $4)",
            params![&key, self.now, kind.as_str(), code.as_str()],
        )?;
        Ok(())
    }

    /// Guard times and leases that have passed; uses `message_due` and `message_lease`.
    fn overdue(&self, max: u32) -> Result<Vec<MessageKey>, StoreError> {
        let keys = self.sql.keys(
            "SELECT key FROM (
                 SELECT key, due_at AS since FROM message WHERE state = 'retrying' AND due_at <= $1
                 UNION ALL
                 SELECT key, lease_until FROM message WHERE lease_until <= $1) AS overdue
             ORDER BY since LIMIT $2",
            params![self.now, max],
        )?;
        self.sql.try_lock(keys, max as usize)
    }

    pub(super) fn time_passed(&self, max: u32) -> Result<Vec<Written>, StoreError> {
        let mut written = Vec::new();
        let overdue = self.overdue(max)?.into_iter().map(|key| (key, Happening::TimePassed));
        let too_old = self.sql.try_lock(gates::too_old(self, max)?, max as usize)?.into_iter();
        let too_old = too_old.map(|key| (key, Happening::WaitedTooLong));
        for (key, happening) in overdue.chain(too_old) {
            if let Some(incoming) = rows::load_incoming(self.sql, key)? {
                written.push(self.happen(&incoming, &happening, None)?);
            }
        }
        Ok(written)
    }

    /// Redrives that were asked for, then probes of closed gates, then what is due. What another
    /// transaction writes about is left to it.
    pub(super) fn claim_due(&self, max: u32) -> Result<(Vec<Claim>, Vec<Written>), StoreError> {
        let (mut claims, mut other) = (Vec::new(), Vec::new());
        let max = max as usize;
        for key in self.unheld(ASKED_FOR, max)? {
            cases::take_request(self.sql, key)?;
            self.claim(key, AttemptKind::Redrive, &mut claims, &mut other)?;
        }
        for key in gates::probes(self, max - claims.len())? {
            self.claim(key, AttemptKind::Recovery, &mut claims, &mut other)?;
        }
        let closed = gates::any_closed(self.sql)?;
        while claims.len() < max {
            let due = self.unheld(DUE, max - claims.len())?;
            if due.is_empty() {
                break;
            }
            for key in due {
                // Each step takes the message out of what is due, so this ends.
                if !closed || !gates::wait_if_closed(self.sql, key)? {
                    self.claim(key, AttemptKind::Recovery, &mut claims, &mut other)?;
                }
            }
        }
        Ok((claims, other))
    }

    /// The first `max` of what a query gives, past those that other transactions write about: all
    /// who claim at the same time begin with the same ones.
    fn unheld(&self, query: &str, max: usize) -> Result<Vec<MessageKey>, StoreError> {
        let seen = u32::try_from(max).unwrap_or(u32::MAX).saturating_add(HELD_BY_OTHERS_MAX);
        let keys = self.sql.keys(query, params![self.now, seen])?;
        self.sql.try_lock(keys, max)
    }

    fn claim(
        &self,
        key: MessageKey,
        kind: AttemptKind,
        claims: &mut Vec<Claim>,
        other: &mut Vec<Written>,
    ) -> Result<(), StoreError> {
        let Some(incoming) = rows::load_incoming(self.sql, key)? else { return Ok(()) };
        let happening = match kind {
            AttemptKind::Redrive => Happening::RedriveClaim,
            AttemptKind::Live | AttemptKind::Recovery => Happening::RecoveryClaim,
        };
        match self.happen(&incoming, &happening, None)? {
            Written::Now(State::Running) => claims.push(self.claim_of(&Arc::new(incoming), kind)?),
            Written::Now(State::Redriving) => {
                cases::redriving(self.sql, key, self.now)?;
                claims.push(self.claim_of(&Arc::new(incoming), kind)?);
            }
            written => other.push(written),
        }
        Ok(())
    }

    /// The claim that a message's row stands for.
    pub(super) fn claim_of(
        &self,
        incoming: &Arc<Incoming>,
        kind: AttemptKind,
    ) -> Result<Claim, StoreError> {
        let found = self.sql.record(
            "SELECT run, lease_until, (SELECT count(*) FROM attempt a WHERE a.key = m.key)
             FROM message m WHERE key = $1",
            params![&incoming.key],
        )?;
        let mut record =
            found.ok_or_else(|| StoreError::Corrupt("a claim without a row".into()))?;
        let (run, lease_until): (i64, Option<Timestamp>) = (record.take()?, record.take()?);
        let recorded: u32 = record.take()?;
        Ok(Claim {
            incoming: Arc::clone(incoming),
            run,
            kind,
            attempt: recorded + 1,
            lease_until: lease_until.unwrap_or(self.now),
        })
    }
}

/// How far down the list a claim looks past messages that others hold.
const HELD_BY_OTHERS_MAX: u32 = 256;

const ASKED_FOR: &str = "SELECT key FROM exception
    WHERE redrive_requested_at <= $1 AND status = 'open'
    ORDER BY redrive_requested_at LIMIT $2";

const DUE: &str = "SELECT key FROM message WHERE state = 'recovering' AND due_at <= $1
    ORDER BY due_at LIMIT $2";

fn row_was_leased(row: Option<&Row>) -> bool {
    row.is_some_and(|row| matches!(row.state, State::Running | State::Redriving))
}

/// Whose attempt ended, by the row as it stood before the report.
fn attempt_kind(row: Option<&Row>) -> AttemptKind {
    match row {
        Some(row) if row.state == State::Redriving => AttemptKind::Redrive,
        Some(row) if row.state == State::Running && !row.live_claim => AttemptKind::Recovery,
        _ => AttemptKind::Live,
    }
}
