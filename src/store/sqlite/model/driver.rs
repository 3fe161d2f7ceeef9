//! Does to the real store what a step of the model says, and compares what it answers and holds.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;

use super::super::{configure, migrate, take_over};
use super::machine::{Case, Handler, Row, Run, Settings, Standing, Starter, World};
use super::step::{Happens, Step, Told};
use crate::backoff::Backoff;
use crate::clock::Timestamp;
use crate::custody::{self, Authority, Happening, Limits, State};
use crate::effect::sql;
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::outcome::{Category, Code};
use crate::store::ledger::{Ledger, kept_if_committed};
use crate::store::outbox::Log;
use crate::store::rows::{load_row, look, next_due, standing};
use crate::store::session::kept_as_a_whole;
use crate::store::writer::Kept;
use crate::store::{
    AppMigration, Asked, AttemptKind, CaseStatus, Claim, Committed, Incoming, Outgoing, Written,
    cases, gates,
};

/// Bytes no text column would keep: not UTF-8, with a NUL between.
const BODY: &[u8] = b"\xff\x00{\"order\":1}";
const ATTRIBUTES: &str = "{\"subject\":\"a\0b\"}";
const FAILED: Code = Code::new("stock_away");
const REJECTED: Code = Code::new("out_of_stock");
/// When every history begins.
pub(super) const BEGIN: Timestamp = Timestamp(1_800_000_000_000_000);

/// The store under test: one connection, used inline, and a clock moved by hand.
pub(super) struct Store {
    connection: Connection,
    settings: Settings,
    limits: Limits,
    log: Log,
    incoming: Incoming,
}

impl Store {
    /// An empty store in memory, with a table that counts effects.
    pub(super) fn open(settings: Settings) -> Self {
        let effects =
            AppMigration { name: "effects", sql: "CREATE TABLE effect (note TEXT) STRICT;" };
        let mut connection = Connection::open_in_memory().unwrap();
        configure(&connection, true).unwrap();
        migrate(&mut connection, &[effects], BEGIN).unwrap();
        let limits = Limits {
            attempts_live_max: settings.attempts_live_max.into(),
            recoveries_max: settings.recoveries_max.into(),
            backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(8) },
            // Ages are not in the model.
            age_max: Duration::MAX,
            ..Limits::default()
        };
        let incoming = incoming(settings.handler);
        Self { connection, settings, limits, log: Log::only(), incoming }
    }

    /// Opens a transaction, or one within it.
    pub(super) fn begin(&self) {
        self.run("SAVEPOINT history");
    }

    /// Undoes what was written since the latest beginning.
    pub(super) fn undo(&self) {
        self.run("ROLLBACK TO history; RELEASE history");
    }

    fn run(&self, text: &str) {
        self.connection.execute_batch(text).unwrap();
    }

    /// Does what the step says; `now` moves on where the step is about time.
    ///
    /// # Errors
    /// In what the store differs from the model.
    pub(super) fn follow(&self, step: &Step, now: &mut Timestamp) -> Result<(), String> {
        let row_before = self.row()?;
        let changes_before = self.connection.total_changes();
        let told = self.tell(step, now)?;
        if told != step.told {
            return Err(format!("the store says {told:?}, the model {:?}", step.told));
        }
        if told == Told::Nothing {
            // A refusal that comes too late is still a sighting of the message, and what a commit
            // undoes counts as changed.
            let changes = matches!(
                step.happens,
                Happens::RunRejects(_) | Happens::RunDoesNotKnow(_) | Happens::RunCommits(_)
            );
            if row_before != self.row()?
                || (self.connection.total_changes() != changes_before && !changes)
            {
                return Err("the store says that it wrote nothing, and wrote".to_owned());
            }
        }
        self.compare(&step.after, *now)
    }

    fn tell(&self, step: &Step, now: &mut Timestamp) -> Result<Told, String> {
        let run = step.after.row.map_or(0, |row| row.run);
        Ok(match step.happens {
            Happens::DeliveryArrives { .. } => self.look(&step.after)?,
            Happens::LeaseOfDeadRunEnds | Happens::LeaseOfPausedRunEnds => {
                let lease = self.row()?.and_then(|row| row.lease_until);
                self.wait_until(lease.ok_or("a claim without a lease")?, now)?;
                Told::NotAsked
            }
            Happens::ProcessStartsAgain => {
                take_over(&self.connection).map_err(text)?;
                Told::NotAsked
            }
            Happens::TwinIsHandedOver { .. } | Happens::DeliveryIsHandedOver { .. } => {
                self.happen(&Happening::HandedOver, None, *now)?
            }
            Happens::DeliveryClaims(_) => self.happen(&Happening::LiveClaim, None, *now)?,
            Happens::RunCommits(run) => self.commit(run, step.told, *now)?,
            Happens::RunFails(run) if self.settings.bulk && run.starter == Starter::Delivery => {
                let failed = Happening::FailedInBulk(authority(run), FAILED);
                self.happen(&failed, Some(&FAILED), *now)?
            }
            Happens::RunFails(run) => {
                self.happen(&Happening::Failed(authority(run), FAILED), Some(&FAILED), *now)?
            }
            Happens::RunFailsAtClosedGate(run) => self.fail_at_closed_gate(run, *now)?,
            Happens::RunRejects(run) => self.refuse(run, Category::Rejected, &REJECTED, *now)?,
            Happens::RunDoesNotKnow(run) => {
                self.refuse(run, Category::OutcomeUnknown, &FAILED, *now)?
            }
            Happens::ClaimIsGivenBack(run) => {
                let claim = run.claim.map(i64::from).ok_or("no claim to give back")?;
                self.happen(&Happening::Released(claim), None, *now)?
            }
            Happens::DeadLetterArrives { .. } => self.happen(&Happening::DeadLetter, None, *now)?,
            Happens::GuardTimePasses => {
                let due = self.row()?.and_then(|row| row.due_at);
                self.wait_until(due.ok_or("retrying without a guard time")?, now)?;
                self.sweep(*now)?
            }
            Happens::LeaseIsJudged => self.sweep(*now)?,
            Happens::RecoveryClaims { .. } => {
                let due = self.row()?.and_then(|row| row.due_at);
                self.wait_until(due.ok_or("recovering without a due time")?, now)?;
                self.claim(AttemptKind::Recovery, run, *now)?
            }
            Happens::RedriveClaims => self.claim(AttemptKind::Redrive, run, *now)?,
            Happens::RedriveIsAsked => {
                let id = self.case_id()?;
                let asked = cases::request_redrive(&self.connection, &id, "operator", *now);
                asked_of(&asked.map_err(text)?)?
            }
            Happens::CaseIsClosed => {
                let id = self.case_id()?;
                let closed = cases::close(&self.ledger(*now), &id, "operator", "settled by hand");
                asked_of(&closed.map_err(text)?)?
            }
            _ => Told::NotAsked,
        })
    }

    fn ledger(&self, now: Timestamp) -> Ledger<'_> {
        Ledger { sql: &self.connection, limits: &self.limits, log: &self.log, now }
    }

    fn row(&self) -> Result<Option<custody::Row>, String> {
        load_row(&self.connection, self.incoming.key).map_err(text)
    }

    fn case_id(&self) -> Result<String, String> {
        self.connection
            .query_row("SELECT id FROM exception", [], |row| row.get(0))
            .map_err(|error| format!("no case: {error}"))
    }

    fn happen(
        &self,
        happening: &Happening,
        attempt: Option<&Code>,
        now: Timestamp,
    ) -> Result<Told, String> {
        let written = self.ledger(now).happen(&self.incoming, happening, attempt);
        told(&written.map_err(text)?)
    }

    fn refuse(
        &self,
        run: Run,
        category: Category,
        code: &Code,
        now: Timestamp,
    ) -> Result<Told, String> {
        let refused = Happening::Refused(authority(run), category, code.clone());
        self.happen(&refused, Some(code), now)
    }

    /// Closes the gate of the code for the time of the report, as other messages would, and lets
    /// their success open it.
    fn fail_at_closed_gate(&self, run: Run, now: Timestamp) -> Result<Told, String> {
        self.connection
            .execute(
                "INSERT OR REPLACE INTO gate (subscription, code, state, since, held, failures,
                     let_through, awaited, next_probe_at)
                 VALUES (?1, ?2, 'closed', ?3, 0, 5, 0, 0, NULL)",
                (&self.incoming.subscription, FAILED.as_str(), now.0),
            )
            .map_err(text)?;
        let told = self.happen(&Happening::Failed(authority(run), FAILED), Some(&FAILED), now)?;
        let waits = self.row()?.is_some_and(|row| row.due_at.is_none());
        let ledger = self.ledger(now);
        let (claims, other) = ledger.claim_due(8).map_err(text)?;
        if !(waits && claims.is_empty() && other.is_empty()) {
            return Err(format!("it does not wait at the gate: {claims:?}, {other:?}"));
        }
        gates::succeeded(&ledger, &self.incoming.subscription).map_err(text)?;
        self.run("DELETE FROM gate");
        Ok(told)
    }

    /// Commits one effect and one message to publish, in both forms a handler has. One that may not
    /// commit is tried as an interactive one too, whose statements ran before.
    fn commit(&self, run: Run, told: Told, now: Timestamp) -> Result<Told, String> {
        let ledger = self.ledger(now);
        let outgoing = [Outgoing {
            log: 0,
            seq: 0,
            pubsub: "pubsub".to_owned(),
            topic: "shipments".to_owned(),
            message_id: "1-0".to_owned(),
            ordering_key: None,
            due_at: None,
            content: Bytes::from_static(b"{}"),
        }];
        if told == Told::Nothing {
            self.run("SAVEPOINT delivery; INSERT INTO effect (note) VALUES ('done')");
            let committed = ledger.commit(&self.incoming, authority(run), &[], &outgoing);
            let interactive = self.close_savepoint(kept_as_a_whole(committed.map_err(text)?))?;
            expect("interactive commit", &interactive, &told)?;
        }
        let effect = [sql("INSERT INTO effect (note) VALUES ('done')", []).expect_rows(1)];
        self.run("SAVEPOINT delivery");
        let committed = ledger.commit(&self.incoming, authority(run), &effect, &outgoing);
        self.close_savepoint(kept_if_committed(committed.map_err(text)?))
    }

    /// Keeps or undoes a delivery's writes, as the writer does.
    fn close_savepoint(&self, kept: Kept<Committed>) -> Result<Told, String> {
        let committed = match kept {
            Kept::Keep(committed) => committed,
            Kept::Undo(committed) => {
                self.run("ROLLBACK TO delivery");
                committed
            }
        };
        self.run("RELEASE delivery");
        match committed {
            Committed::Yes => Ok(Told::Committed),
            Committed::Nothing(_) => Ok(Told::Nothing),
            other => Err(format!("the commit came to {other:?}")),
        }
    }

    fn claim(&self, kind: AttemptKind, run: u8, now: Timestamp) -> Result<Told, String> {
        let (claims, other) = self.ledger(now).claim_due(8).map_err(text)?;
        match (&claims[..], &other[..]) {
            ([claim], []) => self.check_claim(claim, kind, run, now),
            ([], [written]) => told(written),
            ([], []) => Ok(Told::Nothing),
            _ => Err(format!("one message was due, and {claims:?}, {other:?} came of it")),
        }
    }

    fn check_claim(
        &self,
        claim: &Claim,
        kind: AttemptKind,
        run: u8,
        now: Timestamp,
    ) -> Result<Told, String> {
        let recorded: u32 = self.number("SELECT count(*) FROM attempt")?;
        let stored = &claim.incoming.stored;
        let same = claim.kind == kind
            && claim.run == i64::from(run)
            && claim.attempt == recorded + 1
            && claim.lease_until == now.plus(self.limits.lease)
            && stored.body == BODY
            && stored.attributes.as_deref() == Some(ATTRIBUTES);
        if same { Ok(Told::Claimed) } else { Err(format!("the claim is {claim:?}")) }
    }

    fn sweep(&self, now: Timestamp) -> Result<Told, String> {
        match &self.ledger(now).time_passed(8).map_err(text)?[..] {
            [] => Ok(Told::Nothing),
            [written] => told(written),
            more => Err(format!("one message was overdue, and {more:?} came of it")),
        }
    }

    /// Lets time pass; until the last moment nothing may be due.
    fn wait_until(&self, until: Timestamp, now: &mut Timestamp) -> Result<(), String> {
        if *now < until {
            let ledger = self.ledger(Timestamp(until.0 - 1));
            let moved = ledger.time_passed(8).map_err(text)?;
            let (claims, other) = ledger.claim_due(8).map_err(text)?;
            if !(moved.is_empty() && claims.is_empty() && other.is_empty()) {
                return Err(format!("too early: {moved:?}, {claims:?}, {other:?}"));
            }
            *now = until;
        }
        Ok(())
    }

    /// What a delivery sees before it runs.
    fn look(&self, world: &World) -> Result<Told, String> {
        let look = look(&self.connection, self.incoming.key).map_err(text)?;
        let done = look.done.map(|fingerprint| fingerprint == self.incoming.fingerprint);
        let row = look.row.map(|(state, _, attempts)| (state, attempts));
        let expected = world.row.map(|row| (row.state, u32::from(row.attempts)));
        if done.unwrap_or(false) == world.done && row == expected {
            Ok(Told::NotAsked)
        } else {
            Err(format!("the look shows done {done:?} and {row:?}"))
        }
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let number = self
            .connection
            .prepare_cached(text)
            .and_then(|mut select| select.query_row([], |row| row.get(0)));
        number.map_err(|error| error.to_string())
    }

    /// Compares all the store holds with the world.
    fn compare(&self, world: &World, now: Timestamp) -> Result<(), String> {
        let row = self.row()?;
        let seen = row.map(|row| Row {
            state: row.state,
            run: u8::try_from(row.run).unwrap_or(u8::MAX),
            leased: row.lease_until.is_some_and(|until| until > now),
            attempts: u8::try_from(row.attempts).unwrap_or(u8::MAX),
            recoveries: u8::try_from(row.recoveries).unwrap_or(u8::MAX),
            never_attempted: row.never_attempted,
            live_claim: row.live_claim,
        });
        expect("row", &seen, &world.row)?;
        if let Some(row) = row {
            self.compare_times(&row)?;
        }
        let (done, _) = standing(&self.connection, self.incoming.key).map_err(text)?;
        expect("inbox key", &done, &world.done)?;
        expect("case", &self.case()?, &world.case)?;
        let held = self.holdings()?;
        let effects = u32::from(world.effects);
        expect("number of effects", &held.effects, &effects)?;
        expect("number of messages to publish", &held.outgoing, &effects)?;
        expect("number of the last of them", &held.last_outgoing, &effects)?;
        let rows_with_bytes = u32::from(world.row.is_some());
        expect("number of rows with the exact bytes", &held.rows_with_bytes, &rows_with_bytes)?;
        expect("number of cases", &held.cases, &u32::from(world.case.is_some()))?;
        let attempts_max = self.limits.attempts_live_max + self.limits.recoveries_max;
        if held.attempts > attempts_max {
            return Err(format!("{} attempts are recorded of {attempts_max}", held.attempts));
        }
        Ok(())
    }

    /// What moves on by itself has a time at which it does, and the store names a time to wake at.
    fn compare_times(&self, row: &custody::Row) -> Result<(), String> {
        let leased = matches!(row.state, State::Running | State::Redriving);
        let waits = matches!(row.state, State::Retrying | State::Recovering);
        let wakes = next_due(&self.connection).map_err(text)?;
        let asked = self.case()?.is_some_and(|case| case.redrive_asked);
        let sound = row.lease_until.is_some() == leased
            && row.due_at.is_some() == waits
            && wakes.is_some() == (leased || waits || asked)
            && row.once == (self.settings.handler == Handler::Once)
            && row.first_seen_at >= BEGIN;
        if sound { Ok(()) } else { Err(format!("nobody would wake for {row:?} at {wakes:?}")) }
    }

    fn case(&self) -> Result<Option<Case>, String> {
        let mut select = self
            .connection
            .prepare_cached("SELECT status, category, redrive_requested_at FROM exception")
            .map_err(|error| error.to_string())?;
        let mut rows = select.query([]).map_err(|error| error.to_string())?;
        let Some(row) = rows.next().map_err(|error| error.to_string())? else { return Ok(None) };
        let status: String = row.get(0).map_err(|error| error.to_string())?;
        let category: String = row.get(1).map_err(|error| error.to_string())?;
        let asked_at: Option<i64> = row.get(2).map_err(|error| error.to_string())?;
        let standing = match CaseStatus::parse(&status).ok_or("a status of no meaning")? {
            CaseStatus::Open => Standing::Open,
            CaseStatus::Redriving => Standing::Redriving,
            CaseStatus::Resolved => Standing::Resolved,
            CaseStatus::Closed => Standing::Closed,
        };
        Ok(Some(Case {
            standing,
            outcome_unknown: category == Category::OutcomeUnknown.as_str(),
            redrive_asked: asked_at.is_some(),
        }))
    }

    fn holdings(&self) -> Result<Holdings, String> {
        let mut select = self
            .connection
            .prepare_cached(
                "SELECT (SELECT count(*) FROM effect),
                        (SELECT count(*) FROM outbox),
                        (SELECT coalesce(max(seq), 0) FROM outbox),
                        (SELECT count(*) FROM message WHERE body = ?1 AND attributes = ?2),
                        (SELECT count(*) FROM exception),
                        (SELECT count(*) FROM attempt WHERE kind <> 'redrive')",
            )
            .map_err(|error| error.to_string())?;
        let held = select.query_row((BODY, ATTRIBUTES), |row| {
            Ok(Holdings {
                effects: row.get(0)?,
                outgoing: row.get(1)?,
                last_outgoing: row.get(2)?,
                rows_with_bytes: row.get(3)?,
                cases: row.get(4)?,
                attempts: row.get(5)?,
            })
        });
        held.map_err(|error| error.to_string())
    }
}

struct Holdings {
    effects: u32,
    outgoing: u32,
    last_outgoing: u32,
    rows_with_bytes: u32,
    cases: u32,
    attempts: u32,
}

fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    held: &T,
    expected: &T,
) -> Result<(), String> {
    if held == expected {
        return Ok(());
    }
    Err(format!("{what}: the store holds {held:?}, the model {expected:?}"))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn authority(run: Run) -> Authority {
    run.claim.map_or(Authority::Delivery, |claim| Authority::Run(claim.into()))
}

fn told(written: &Written) -> Result<Told, String> {
    match written {
        Written::Nothing(_) => Ok(Told::Nothing),
        Written::Now(State::Retrying) => Ok(Told::Retrying),
        Written::Now(State::Running | State::Redriving) => Ok(Told::Claimed),
        Written::Recovering { .. } => Ok(Told::Recovering),
        Written::Quarantined(case) if case.reopened => Ok(Told::Reopened),
        Written::Quarantined(_) => Ok(Told::Quarantined),
        Written::Now(_) | Written::Removed => Err(format!("the store wrote {written:?}")),
    }
}

fn asked_of(kept: &Kept<Asked>) -> Result<Told, String> {
    match kept {
        Kept::Keep(Asked::Taken) => Ok(Told::Taken),
        Kept::Keep(Asked::Refused(_)) => Ok(Told::Refused),
        Kept::Keep(Asked::Unknown) | Kept::Undo(_) => Err("the case is unknown".to_owned()),
    }
}

fn incoming(handler: Handler) -> Incoming {
    Incoming {
        key: MessageKey::of("orders", "shop", "1"),
        fingerprint: Fingerprint([7; 16]),
        subscription: "orders".to_owned(),
        pubsub: "pubsub".to_owned(),
        topic: "orders".to_owned(),
        source: "shop".to_owned(),
        event_id: "1".to_owned(),
        ty: "order.placed".to_owned(),
        subject: None,
        traceparent: None,
        stored: Stored { attributes: Some(ATTRIBUTES.to_owned()), body: Bytes::from_static(BODY) },
        once: handler == Handler::Once,
        recovery_attempt: 0,
    }
}
