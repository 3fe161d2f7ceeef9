//! The life of a message in trouble, as one pure function.
//!
//! A message that has failed, or that must be claimed before it is handled, has one [`Row`] with
//! one [`State`]. [`step`] says what a happening does to it; the stores read the row and the
//! message's inbox key, call `step`, and write what it says, all in one transaction. They decide
//! nothing themselves, so that both databases and the simulation live by the same rules.
//!
//! **Invariants**
//! - Every write about a message is conditional. Without a claim it needs the message not done and
//!   its row absent or `retrying`; with one it needs the row under its own run number. Otherwise
//!   nothing is written.
//! - A recovery is spent when the run is claimed, never when it reports; only a report gives it back.
//! - Recorded live attempts never pass `attempts_live_max`, spent recoveries never pass
//!   `recoveries_max`.
//! - A row that stands beside an inbox key goes; nothing runs.
//! - What came in a batch never becomes `retrying`: the sidecar is not asked to call again.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::Timestamp;
use crate::outcome::{Category, Code, reason};

/// Who moves a row out of each state is said with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A live attempt failed and the sidecar is retrying; we hold the bytes. Left by the next
    /// delivery, by its dead letter, or at the guard time when neither comes.
    Retrying,
    /// Ours to run when due. Left by a recovery claim.
    Recovering,
    /// A claimed run is on, under a lease and a run number. Left by that run's report, or when
    /// the lease has expired.
    Running,
    /// A case is open. Left by a person: redrive or close.
    Quarantined,
    /// An operator's run is on, under a lease and a run number. Left by its report, or when the
    /// lease has expired.
    Redriving,
    /// A person closed the case. A tombstone: nothing runs again.
    Closed,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Retrying,
        Self::Recovering,
        Self::Running,
        Self::Quarantined,
        Self::Redriving,
        Self::Closed,
    ];

    /// The stable name in columns and labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::Recovering => "recovering",
            Self::Running => "running",
            Self::Quarantined => "quarantined",
            Self::Redriving => "redriving",
            Self::Closed => "closed",
        }
    }

    /// The state with that name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// What the store knows of a message in trouble, apart from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where it stands.
    pub state: State,
    /// The number of the latest claim; a report under another number is refused. From 1.
    pub run: i64,
    /// Until when the claimed run may be believed alive; only while running or redriving.
    pub lease_until: Option<Timestamp>,
    /// While recovering: when to run. While retrying: when to stop waiting for the sidecar.
    pub due_at: Option<Timestamp>,
    /// Recorded live failures.
    pub attempts: u32,
    /// Recoveries spent, counted at the claim.
    pub recoveries: u32,
    /// It came into our custody without an attempt on record: as a dead letter, or handed over.
    pub never_attempted: bool,
    /// The claim was made by a delivery, not by recovery.
    pub live_claim: bool,
    /// Its handler calls something that must not be repeated unasked, so a lost run has an
    /// unknown outcome.
    pub once: bool,
    /// When this store first saw it; its age counts from here.
    pub first_seen_at: Timestamp,
}

impl Row {
    /// The row of a message that has none yet. `recoveries` is what its `recoveryattempt` said:
    /// a counter that travels counts only upwards.
    #[must_use]
    pub fn fresh(recoveries: u32, once: bool, now: Timestamp) -> Self {
        Self {
            state: State::Retrying,
            run: 0,
            lease_until: None,
            due_at: None,
            attempts: 0,
            recoveries,
            never_attempted: false,
            live_claim: false,
            once,
            first_seen_at: now,
        }
    }
}

/// The bounds of automatic recovery; the environment sets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The live failure with this number hands the message to recovery. Default 12.
    pub attempts_live_max: u32,
    /// Recoveries a message may spend. Default 14.
    pub recoveries_max: u32,
    /// The wait before each recovery. Default 10 s doubling to 10 min.
    pub backoff: Backoff,
    /// A message older than this is not recovered again. Default 24 h.
    pub age_max: Duration,
    /// How long after a live failure the sidecar may stay silent. Default 60 s.
    pub retry_guard: Duration,
    /// How long a claimed run is believed alive without reporting. Default 60 s.
    pub lease: Duration,
    /// How often one message tries a closed gate. Default 10 s.
    pub probe_every: Duration,
    /// How long a message that is done or closed is remembered at least, so that it is known when
    /// it comes again. Default 7 days.
    pub remember_for: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            attempts_live_max: 12,
            recoveries_max: 14,
            backoff: Backoff { first: Duration::from_secs(10), max: Duration::from_secs(600) },
            age_max: Duration::from_secs(86_400),
            retry_guard: Duration::from_secs(60),
            lease: Duration::from_secs(60),
            probe_every: Duration::from_secs(10),
            remember_for: Duration::from_secs(7 * 86_400),
        }
    }
}

/// By what right a run reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// A delivery that claimed nothing.
    Delivery,
    /// The claim with this run number.
    Run(i64),
}

/// What happened to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// A delivery wants to claim it before calling something outside the transaction.
    LiveClaim,
    /// A run succeeded.
    Succeeded(Authority),
    /// A run failed in a way that may pass.
    Failed(Authority, Code),
    /// The same, of a delivery in a batch: nobody but us may try it again.
    FailedInBulk(Authority, Code),
    /// A claimed recovery failed with the code of a gate that is closed: it spends nothing.
    FailedAtClosedGate(Authority, Code),
    /// A delivery in a batch has no end by its deadline. Its run may go on, but not write any more
    /// unless it has claimed the message.
    HandedOver,
    /// It has waited at a closed gate for longer than a message may.
    WaitedTooLong,
    /// A run, or the validation before it, ended in a case.
    Refused(Authority, Category, Code),
    /// Its dead letter arrived.
    DeadLetter,
    /// Time passed: a guard time, a lease or nothing of interest.
    TimePassed,
    /// Recovery wants to claim it.
    RecoveryClaim,
    /// An operator wants it run again.
    RedriveClaim,
    /// A claimed run ended before its handler began, because the process is stopping; or its end
    /// could not be written, because the store was away.
    Released(i64),
    /// A person closes its case.
    Closed,
}

/// Why nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its effect has committed.
    Done,
    /// It has a row in this state, and the happening has no right to it.
    Owned(State),
    /// It has no row, and the happening needs one.
    Absent,
}

/// A case to open or, after a redrive, to open again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseOpened {
    /// `None` keeps the category of the case that a redrive reopens.
    pub category: Option<Category>,
    /// Why.
    pub reason: Code,
}

/// What the store has to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing; the caller's transaction rolls back.
    Nothing(Standing),
    /// The effects, the inbox key, and no row any more.
    Commit,
    /// No row any more: the message was done already.
    Remove,
    /// This row and, when it is now quarantined, its case.
    Put(Row, Option<CaseOpened>),
}

/// Says what `happening` does to a message whose row and inbox key are as given.
///
/// `fresh` is the row it would have if this is the first write about it; `seed` spreads the due
/// times of different messages.
#[must_use]
pub fn step(
    row: Option<&Row>,
    done: bool,
    happening: &Happening,
    fresh: &Row,
    limits: &Limits,
    seed: u64,
    now: Timestamp,
) -> Verdict {
    if done {
        return if row.is_some() { Verdict::Remove } else { Verdict::Nothing(Standing::Done) };
    }
    let rules = Rules { limits, seed, now };
    match happening {
        Happening::LiveClaim => match unclaimed(row, fresh) {
            Some(row) => Verdict::Put(rules.claimed(row, State::Running, true), None),
            None => nothing(row),
        },
        Happening::Succeeded(authority) => match reporting(row, fresh, *authority) {
            Some(_) => Verdict::Commit,
            None => nothing(row),
        },
        Happening::Failed(authority, code) => match reporting(row, fresh, *authority) {
            Some(row) => rules.failed(row, code, TriedAgainBy::Sidecar),
            None => nothing(row),
        },
        Happening::FailedInBulk(authority, code) => match reporting(row, fresh, *authority) {
            Some(row) => rules.failed(row, code, TriedAgainBy::Us),
            None => nothing(row),
        },
        Happening::HandedOver => match unclaimed(row, fresh) {
            Some(open) => {
                let due_at = rules.next_recovery(open.recoveries);
                recovering(Row { never_attempted: row.is_none(), ..open }, due_at)
            }
            None => nothing(row),
        },
        Happening::FailedAtClosedGate(authority, code) => match reporting(row, fresh, *authority) {
            Some(row) => rules.failed_at_closed_gate(row, code),
            None => nothing(row),
        },
        Happening::WaitedTooLong => match row {
            Some(row) if row.state == State::Recovering && !row.never_attempted => {
                let code = reason::RECOVERY_AGE_EXCEEDED;
                quarantined(*row, Some(Category::Exhausted), code)
            }
            _ => nothing(row),
        },
        Happening::Refused(authority, category, code) => match reporting(row, fresh, *authority) {
            Some(row) => quarantined(row, Some(*category), code.clone()),
            None => nothing(row),
        },
        Happening::DeadLetter => rules.dead_letter(row, fresh),
        Happening::TimePassed => rules.time_passed(row),
        Happening::RecoveryClaim => match row {
            Some(row) if row.state == State::Recovering => rules.recovery_claim(*row),
            _ => nothing(row),
        },
        Happening::RedriveClaim => match row {
            Some(row) if row.state == State::Quarantined => {
                Verdict::Put(rules.claimed(*row, State::Redriving, false), None)
            }
            _ => nothing(row),
        },
        Happening::Released(run) => match reporting(row, fresh, Authority::Run(*run)) {
            Some(row) => rules.released(row),
            None => nothing(row),
        },
        Happening::Closed => match row {
            Some(row) if row.state == State::Quarantined => {
                Verdict::Put(Row { state: State::Closed, ..*row }, None)
            }
            _ => nothing(row),
        },
    }
}

fn nothing(row: Option<&Row>) -> Verdict {
    Verdict::Nothing(row.map_or(Standing::Absent, |row| Standing::Owned(row.state)))
}

/// The row a delivery without a claim may write over.
fn unclaimed(row: Option<&Row>, fresh: &Row) -> Option<Row> {
    match row {
        None => Some(*fresh),
        Some(row) if row.state == State::Retrying => {
            Some(Row { recoveries: row.recoveries.max(fresh.recoveries), ..*row })
        }
        Some(_) => None,
    }
}

/// The row a report under `authority` may write over. An expired lease alone does not forbid a
/// report; a newer run number does.
fn reporting(row: Option<&Row>, fresh: &Row, authority: Authority) -> Option<Row> {
    match authority {
        Authority::Delivery => unclaimed(row, fresh),
        Authority::Run(run) => row
            .filter(|row| matches!(row.state, State::Running | State::Redriving) && row.run == run)
            .copied(),
    }
}

fn recovering(row: Row, due_at: Timestamp) -> Verdict {
    let row = Row {
        state: State::Recovering,
        lease_until: None,
        due_at: Some(due_at),
        live_claim: false,
        ..row
    };
    Verdict::Put(row, None)
}

fn quarantined(row: Row, category: Option<Category>, reason: Code) -> Verdict {
    let row = Row {
        state: State::Quarantined,
        lease_until: None,
        due_at: None,
        live_claim: false,
        ..row
    };
    Verdict::Put(row, Some(CaseOpened { category, reason }))
}

/// Who tries a message again after a live failure that may pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TriedAgainBy {
    Sidecar,
    Us,
}

struct Rules<'a> {
    limits: &'a Limits,
    seed: u64,
    now: Timestamp,
}

impl Rules<'_> {
    fn claimed(&self, row: Row, state: State, live_claim: bool) -> Row {
        Row {
            state,
            run: row.run + 1,
            lease_until: Some(self.now.plus(self.limits.lease)),
            due_at: None,
            live_claim,
            never_attempted: false,
            ..row
        }
    }

    fn retrying(&self, row: Row) -> Verdict {
        let row = Row {
            state: State::Retrying,
            lease_until: None,
            due_at: Some(self.now.plus(self.limits.retry_guard)),
            live_claim: false,
            ..row
        };
        Verdict::Put(row, None)
    }

    fn next_recovery(&self, spent: u32) -> Timestamp {
        self.now.plus(self.limits.backoff.delay(spent, self.seed))
    }

    fn failed(&self, row: Row, code: &Code, live: TriedAgainBy) -> Verdict {
        match row.state {
            State::Redriving => quarantined(row, None, code.clone()),
            State::Running if !row.live_claim => {
                let too_old = self.now.since(row.first_seen_at) > self.limits.age_max;
                if row.recoveries >= self.limits.recoveries_max || too_old {
                    quarantined(row, Some(Category::Exhausted), code.clone())
                } else {
                    let due_at = self.next_recovery(row.recoveries);
                    recovering(row, due_at)
                }
            }
            _ => {
                let row = Row { attempts: row.attempts + 1, ..row };
                if live == TriedAgainBy::Us || row.attempts >= self.limits.attempts_live_max {
                    let due_at = self.next_recovery(row.recoveries);
                    recovering(row, due_at)
                } else {
                    self.retrying(row)
                }
            }
        }
    }

    fn failed_at_closed_gate(&self, row: Row, code: &Code) -> Verdict {
        let recovery = row.state == State::Running && !row.live_claim;
        let too_old = self.now.since(row.first_seen_at) > self.limits.age_max;
        if !recovery || too_old {
            return self.failed(row, code, TriedAgainBy::Sidecar);
        }
        let row = Row { recoveries: row.recoveries.saturating_sub(1), ..row };
        recovering(row, self.next_recovery(row.recoveries))
    }

    fn dead_letter(&self, row: Option<&Row>, fresh: &Row) -> Verdict {
        match row {
            None => {
                // Nothing of its own has failed, so there is nothing to wait for but its turn.
                let row = Row { never_attempted: true, ..*fresh };
                recovering(row, self.now)
            }
            Some(row) if row.state == State::Retrying => {
                let row = Row { recoveries: row.recoveries.max(fresh.recoveries), ..*row };
                if row.recoveries >= self.limits.recoveries_max {
                    quarantined(row, Some(Category::Exhausted), reason::RECOVERIES_EXHAUSTED)
                } else {
                    let due_at = self.next_recovery(row.recoveries);
                    recovering(row, due_at)
                }
            }
            _ => nothing(row),
        }
    }

    fn time_passed(&self, row: Option<&Row>) -> Verdict {
        let Some(row) = row else { return nothing(None) };
        let lease_over = row.lease_until.is_none_or(|until| until <= self.now);
        match row.state {
            State::Retrying if row.due_at.is_none_or(|due| due <= self.now) => {
                recovering(*row, self.now)
            }
            State::Running if lease_over && row.once => {
                quarantined(*row, Some(Category::OutcomeUnknown), reason::RUN_LOST)
            }
            State::Running if lease_over && row.live_claim => recovering(*row, self.now),
            State::Running if lease_over && row.recoveries >= self.limits.recoveries_max => {
                quarantined(*row, Some(Category::CrashedProcess), reason::RUN_LOST)
            }
            State::Running if lease_over => recovering(*row, self.next_recovery(row.recoveries)),
            State::Redriving if lease_over => {
                let category = row.once.then_some(Category::OutcomeUnknown);
                quarantined(*row, category, reason::RUN_LOST)
            }
            _ => nothing(Some(row)),
        }
    }

    fn recovery_claim(&self, row: Row) -> Verdict {
        if row.recoveries >= self.limits.recoveries_max {
            return quarantined(row, Some(Category::Exhausted), reason::RECOVERIES_EXHAUSTED);
        }
        let row = Row { recoveries: row.recoveries + 1, ..row };
        Verdict::Put(self.claimed(row, State::Running, false), None)
    }

    fn released(&self, row: Row) -> Verdict {
        match row.state {
            State::Redriving => quarantined(row, None, reason::RUN_LOST),
            _ if row.live_claim => self.retrying(row),
            _ => {
                let row = Row { recoveries: row.recoveries.saturating_sub(1), ..row };
                recovering(row, self.now)
            }
        }
    }
}

#[cfg(test)]
mod tests;
