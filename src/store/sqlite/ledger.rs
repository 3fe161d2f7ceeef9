//! Inbox, rows and attempts: reads what stands, lets [`custody::step`] decide, writes what it says.

use std::sync::Arc;

use rusqlite::{Connection, params};

use super::{Sqlite, cases, effects, gates, outbox, rows};
use crate::clock::Timestamp;
use crate::custody::{
    Authority, CaseOpened, Happening, Limits, Row, Standing, State, Verdict, step,
};
use crate::effect::{Otherwise, Statement};
use crate::event::MessageKey;
use crate::outcome::{Category, Code, reason};
use crate::store::sqlite::worker::Kept;
use crate::store::{
    AttemptKind, Backlog, Claim, Committed, Incoming, Look, Outgoing, StoreError, Written,
};

impl Sqlite {
    pub(crate) async fn look(&self, key: MessageKey) -> Result<Look, StoreError> {
        self.worker.read(move |connection| rows::look(connection, key)).await
    }

    pub(crate) async fn claim_live(
        &self,
        incoming: Arc<Incoming>,
    ) -> Result<Result<Claim, Standing>, StoreError> {
        let limits = self.limits;
        let claim = move |connection: &Connection, now| {
            let ledger = Ledger { connection, limits: &limits, now };
            match ledger.happen(&incoming, &Happening::LiveClaim, None)? {
                Written::Nothing(standing) => Ok(Kept::Undo(Err(standing))),
                _ => {
                    ledger.claim_of(&incoming, AttemptKind::Live).map(|claim| Kept::Keep(Ok(claim)))
                }
            }
        };
        self.worker.write(claim).await
    }

    pub(crate) async fn commit(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        statements: Vec<Statement>,
        outgoing: Vec<Outgoing>,
    ) -> Result<Committed, StoreError> {
        let limits = self.limits;
        let commit = move |connection: &Connection, now| {
            let ledger = Ledger { connection, limits: &limits, now };
            let committed = ledger.commit(&incoming, authority, &statements, &outgoing)?;
            Ok(kept_if_committed(committed))
        };
        self.worker.write(commit).await
    }

    pub(crate) async fn fail(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        code: Code,
    ) -> Result<Written, StoreError> {
        self.happen(incoming, Happening::Failed(authority, code.clone()), Some(code)).await
    }

    pub(crate) async fn refuse(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        category: Category,
        code: Code,
        attempted: bool,
    ) -> Result<Written, StoreError> {
        let recorded = attempted.then(|| code.clone());
        self.happen(incoming, Happening::Refused(authority, category, code), recorded).await
    }

    pub(crate) async fn dead_letter(&self, incoming: Arc<Incoming>) -> Result<Written, StoreError> {
        self.happen(incoming, Happening::DeadLetter, None).await
    }

    pub(crate) async fn release(
        &self,
        incoming: Arc<Incoming>,
        run: i64,
    ) -> Result<Written, StoreError> {
        self.happen(incoming, Happening::Released(run), None).await
    }

    async fn happen(
        &self,
        incoming: Arc<Incoming>,
        happening: Happening,
        attempt: Option<Code>,
    ) -> Result<Written, StoreError> {
        let limits = self.limits;
        let write = move |connection: &Connection, now| {
            let ledger = Ledger { connection, limits: &limits, now };
            ledger.happen(&incoming, &happening, attempt.as_ref()).map(Kept::Keep)
        };
        self.worker.write(write).await
    }

    pub(crate) async fn time_passed(&self, max: u32) -> Result<Vec<Written>, StoreError> {
        let limits = self.limits;
        let sweep = move |connection: &Connection, now| {
            let ledger = Ledger { connection, limits: &limits, now };
            ledger.time_passed(max).map(Kept::Keep)
        };
        self.worker.write(sweep).await
    }

    pub(crate) async fn claim_due(
        &self,
        max: u32,
    ) -> Result<(Vec<Claim>, Vec<Written>), StoreError> {
        let limits = self.limits;
        let claim = move |connection: &Connection, now| {
            let ledger = Ledger { connection, limits: &limits, now };
            ledger.claim_due(max).map(Kept::Keep)
        };
        self.worker.write(claim).await
    }

    pub(crate) async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        self.worker.read(rows::next_due).await
    }

    pub(crate) async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.worker.read(rows::backlog).await
    }
}

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
    pub connection: &'a Connection,
    pub limits: &'a Limits,
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
        let before = rows::load_row(self.connection, incoming.key)?;
        let at_gate = self.at_gate(incoming, happening)?;
        let spared = gates::spared(happening, at_gate.as_ref());
        let happening = spared.as_ref().unwrap_or(happening);
        match self.judge(incoming, before.as_ref(), happening)? {
            Verdict::Nothing(standing) => {
                let filed = matches!(happening, Happening::Refused(Authority::Delivery, ..));
                if filed && attempt.is_none() {
                    cases::count_sighting(self.connection, incoming.key)?;
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
                rows::put(self.connection, incoming, before.is_some(), &row, self.now)?;
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
        row: Option<&Row>,
        happening: &Happening,
    ) -> Result<Verdict, StoreError> {
        let done = rows::is_done(self.connection, incoming.key)?;
        let fresh = Row::fresh(incoming.recovery_attempt, incoming.once, self.now);
        Ok(step(row, done, happening, &fresh, self.limits, incoming.key.seed(), self.now))
    }

    fn written(
        &self,
        incoming: &Incoming,
        row: &Row,
        opened: Option<CaseOpened>,
    ) -> Result<Written, StoreError> {
        if let Some(opened) = opened {
            return cases::open(self.connection, incoming, &opened, self.now)
                .map(Written::Quarantined);
        }
        match row.state {
            State::Recovering => {
                let waits = gates::wait_if_closed(self.connection, incoming.key)?;
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
        let Happening::Failed(_, code) = happening else { return Ok(None) };
        let Ledger { connection, now, .. } = *self;
        gates::AtGate::look(connection, &incoming.subscription, code, incoming.key, now).map(Some)
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
        let before = rows::load_row(self.connection, incoming.key)?;
        match self.judge(incoming, before.as_ref(), &Happening::Succeeded(authority))? {
            Verdict::Nothing(standing) => return Ok(Committed::Nothing(standing)),
            Verdict::Remove => {
                self.finish(incoming.key)?;
                return Ok(Committed::Nothing(Standing::Done));
            }
            Verdict::Commit | Verdict::Put(..) => {}
        }
        for statement in statements {
            match effects::run(self.connection, statement)? {
                Ok(()) => {}
                Err(effects::Refusal::Failed(code)) => return Ok(Committed::EffectFailed(code)),
                Err(effects::Refusal::Rows(Otherwise::Rerun)) => return Ok(Committed::RowsDiffer),
                Err(effects::Refusal::Rows(Otherwise::Reject(code))) => {
                    return Ok(Committed::Rejected(code));
                }
            }
        }
        for message in outgoing {
            outbox::append(self.connection, message, self.now)?;
        }
        self.connection
            .prepare_cached(
                "INSERT INTO inbox (key, fingerprint, committed_at) VALUES (?1, ?2, ?3)",
            )
            .and_then(|mut insert| {
                insert.execute(params![incoming.key.0, incoming.fingerprint.0, self.now.0])
            })
            .map_err(StoreError::away)?;
        if before.is_some() {
            self.finish(incoming.key)?;
        }
        gates::succeeded(self, &incoming.subscription)?;
        Ok(Committed::Yes)
    }

    /// The message is done: its row goes and its case, if it has one, is resolved.
    fn finish(&self, key: MessageKey) -> Result<(), StoreError> {
        self.connection
            .execute("DELETE FROM message WHERE key = ?1", [key.0])
            .map_err(StoreError::away)?;
        if !cases::resolve(self.connection, key, self.now)? {
            self.connection
                .execute(
                    "DELETE FROM attempt WHERE key = ?1
                     AND NOT EXISTS (SELECT 1 FROM exception WHERE key = ?1)",
                    [key.0],
                )
                .map_err(StoreError::away)?;
        }
        Ok(())
    }

    fn record_attempt(
        &self,
        key: MessageKey,
        kind: AttemptKind,
        code: &Code,
    ) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO attempt (key, n, at, kind, code)
                 SELECT ?1, coalesce(max(n), 0) + 1, ?2, ?3, ?4 FROM attempt WHERE key = ?1",
            )
            .and_then(|mut insert| {
                insert.execute(params![key.0, self.now.0, kind.as_str(), code.as_str()])
            })
            .map_err(StoreError::away)?;
        Ok(())
    }

    /// Guard times and leases that have passed; uses `message_due` and `message_lease`.
    fn overdue(&self, max: u32) -> Result<Vec<MessageKey>, StoreError> {
        self.keys(
            "SELECT key FROM (
                 SELECT key, due_at AS since FROM message WHERE state = 'retrying' AND due_at <= ?1
                 UNION ALL
                 SELECT key, lease_until FROM message WHERE lease_until <= ?1)
             ORDER BY since LIMIT ?2",
            max,
        )
    }

    pub(super) fn time_passed(&self, max: u32) -> Result<Vec<Written>, StoreError> {
        let mut written = Vec::new();
        let overdue = self.overdue(max)?.into_iter().map(|key| (key, Happening::TimePassed));
        let too_old = gates::too_old(self, max)?.into_iter();
        let too_old = too_old.map(|key| (key, Happening::WaitedTooLong));
        for (key, happening) in overdue.chain(too_old) {
            if let Some(incoming) = rows::load_incoming(self.connection, key)? {
                written.push(self.happen(&incoming, &happening, None)?);
            }
        }
        Ok(written)
    }

    /// Redrives that were asked for, then probes of closed gates, then what is due.
    pub(super) fn claim_due(&self, max: u32) -> Result<(Vec<Claim>, Vec<Written>), StoreError> {
        let (mut claims, mut other) = (Vec::new(), Vec::new());
        for key in self.keys(ASKED_FOR, max)? {
            cases::take_request(self.connection, key)?;
            self.claim(key, AttemptKind::Redrive, &mut claims, &mut other)?;
        }
        for key in gates::probes(self, max as usize - claims.len())? {
            self.claim(key, AttemptKind::Recovery, &mut claims, &mut other)?;
        }
        while claims.len() < max as usize {
            let due = self.keys(DUE, max)?;
            if due.is_empty() {
                break;
            }
            for key in due.into_iter().take(max as usize - claims.len()) {
                // Each step takes the message out of what is due, so this ends.
                if !gates::wait_if_closed(self.connection, key)? {
                    self.claim(key, AttemptKind::Recovery, &mut claims, &mut other)?;
                }
            }
        }
        Ok((claims, other))
    }

    fn claim(
        &self,
        key: MessageKey,
        kind: AttemptKind,
        claims: &mut Vec<Claim>,
        other: &mut Vec<Written>,
    ) -> Result<(), StoreError> {
        let Some(incoming) = rows::load_incoming(self.connection, key)? else { return Ok(()) };
        let happening = match kind {
            AttemptKind::Redrive => Happening::RedriveClaim,
            AttemptKind::Live | AttemptKind::Recovery => Happening::RecoveryClaim,
        };
        match self.happen(&incoming, &happening, None)? {
            Written::Now(State::Running) => claims.push(self.claim_of(&Arc::new(incoming), kind)?),
            Written::Now(State::Redriving) => {
                cases::redriving(self.connection, key, self.now)?;
                claims.push(self.claim_of(&Arc::new(incoming), kind)?);
            }
            written => other.push(written),
        }
        Ok(())
    }

    fn claim_of(&self, incoming: &Arc<Incoming>, kind: AttemptKind) -> Result<Claim, StoreError> {
        let row = rows::load_row(self.connection, incoming.key)?
            .ok_or_else(|| StoreError::Corrupt("a claim without a row".into()))?;
        let recorded: u32 = self
            .connection
            .query_row("SELECT count(*) FROM attempt WHERE key = ?1", [incoming.key.0], |row| {
                row.get(0)
            })
            .map_err(StoreError::away)?;
        Ok(Claim {
            incoming: Arc::clone(incoming),
            run: row.run,
            kind,
            attempt: recorded + 1,
            lease_until: row.lease_until.unwrap_or(self.now),
        })
    }

    fn keys(&self, text: &str, max: u32) -> Result<Vec<MessageKey>, StoreError> {
        let mut statement = self.connection.prepare_cached(text).map_err(StoreError::away)?;
        let rows = statement
            .query_map(params![self.now.0, max], |row| row.get(0).map(MessageKey))
            .map_err(StoreError::away)?;
        rows.collect::<Result<_, _>>().map_err(StoreError::away)
    }
}

const ASKED_FOR: &str = "SELECT key FROM exception
    WHERE redrive_requested_at <= ?1 AND status = 'open'
    ORDER BY redrive_requested_at LIMIT ?2";

const DUE: &str = "SELECT key FROM message WHERE state = 'recovering' AND due_at <= ?1
    ORDER BY due_at LIMIT ?2";

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
