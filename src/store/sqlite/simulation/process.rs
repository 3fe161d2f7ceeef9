//! The process: the steps of `consumer.rs` and `recovery.rs`, each cut where the process can end.

use std::sync::Arc;
use std::time::Duration;

use super::world::{CODES, Lane, Nature, Stage, Step, TOPICS, World};
use crate::custody::{Authority, Happening, Row, Standing, State};
use crate::effect::sql;
use crate::outcome::{Category, Code, Outcome, reason};
use crate::store::ledger::{Ledger, kept_if_committed};
use crate::store::writer::Kept;
use crate::store::{AttemptKind, Claim, Committed, Incoming, Outgoing, StoreError, Written};

const HANDLER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a start after an unclean end claims everything first.
const CAUTIOUS_FOR: Duration = Duration::from_secs(300);
/// Recoveries and redrives at a time.
const CONCURRENCY: usize = 4;
const REJECTED: Code = Code::new("out_of_stock");

/// How a handler run ended.
enum Handled {
    Effects { sound: bool },
    Failed(Code),
    Rejected,
    ProcessEnds,
}

impl World<'_> {
    pub(super) fn start_process(&mut self) -> Step {
        self.process_up = true;
        let after_crash = self.store.start()?;
        if after_crash {
            self.cautious_until = self.now.plus(CAUTIOUS_FOR);
        }
        self.say(if after_crash { "the process starts, cautiously" } else { "the process starts" });
        Ok(())
    }

    /// The process ends without a word: all it has in hand is forgotten, every call breaks off.
    pub(super) fn crash(&mut self) {
        self.say("the process ends without a word");
        self.process_up = false;
        self.relay.iter_mut().for_each(|relay| relay.cursor_to = None);
        for run in std::mem::take(&mut self.runs) {
            if run.lane == Lane::Live && run.awaited {
                self.call_failed(run.message);
            }
        }
    }

    /// Steps 1 and 2 of a delivery. One that nobody awaits is a duplicate the broker made.
    pub(super) fn delivery_arrives(&mut self, number: usize, awaited: bool) -> Step {
        self.say(if awaited {
            format!("message {number} is delivered")
        } else {
            format!("message {number} is delivered once more, as a duplicate")
        });
        if let Some(outcome) = self.is_judged_or_runs(number, awaited)? {
            self.judged(number, Lane::Live, awaited, outcome);
        }
        Ok(())
    }

    /// What is known of a delivery at once; none when its run has begun.
    fn is_judged_or_runs(&mut self, number: usize, awaited: bool) -> Step<Option<Outcome>> {
        let twin = self.runs.iter().any(|run| run.message == number && run.lane == Lane::Live);
        if self.breaks(self.settings.store_fails) {
            return Ok(Some(Outcome::StoreAway));
        }
        if twin && !self.settings.twins {
            // In a batch it has waited to its deadline.
            let bulk = self.settings.bulk && awaited;
            return if bulk {
                self.is_handed_over(number).map(Some)
            } else {
                Ok(Some(Outcome::Busy))
            };
        }
        if let Some(outcome) = self.standing(number)? {
            return Ok(Some(outcome));
        }
        if self.settings.claims || self.is_cautious() {
            return self.claims_live(number, awaited);
        }
        let name =
            self.begin_run(number, Lane::Live, Authority::Delivery, awaited, Stage::Handling);
        self.say(format!("run {name} handles message {number}"));
        Ok(None)
    }

    /// A delivery in a batch leaves something open.
    fn is_handed_over(&mut self, number: usize) -> Step<Outcome> {
        if let Some(outcome) = self.standing(number)? {
            return Ok(outcome);
        }
        self.say(format!("message {number} is handed over"));
        let incoming = Arc::clone(&self.messages[number].incoming);
        self.happens(number, &incoming, &Happening::HandedOver, None)
    }

    /// A run in a batch has no end by its deadline, and goes on without its call.
    pub(super) fn deadline_passes(&mut self, number: usize) -> Step {
        let is_on = |stage: &Stage| !matches!(stage, Stage::Answering(_));
        let mut runs = self.runs.iter_mut();
        let late = runs.find(|run| run.message == number && run.awaited && is_on(&run.stage));
        let Some(late) = late else { return Ok(()) };
        late.awaited = false;
        let name = late.name;
        self.say(format!("run {name} has no end by its deadline"));
        let outcome = self.is_handed_over(number)?;
        self.judged(number, Lane::Live, true, outcome);
        Ok(())
    }

    fn claims_live(&mut self, number: usize, awaited: bool) -> Step<Option<Outcome>> {
        let incoming = Arc::clone(&self.messages[number].incoming);
        let claimed = self.write(|ledger| {
            let written = ledger.happen(&incoming, &Happening::LiveClaim, None)?;
            Ok(match written {
                Written::Nothing(_) => Kept::Undo(written),
                _ => Kept::Keep(written),
            })
        })?;
        match claimed {
            None => Ok(Some(Outcome::StoreAway)),
            Some(Written::Nothing(standing)) => Ok(Some(over(standing))),
            Some(Written::Now(State::Running)) => {
                let row = self.store.row(incoming.key)?.ok_or("a claim left no row")?;
                let lease_until = row.lease_until.ok_or("a claim has no lease")?;
                let stage = Stage::Claimed { lease_until };
                let authority = Authority::Run(row.run);
                let name = self.begin_run(number, Lane::Live, authority, awaited, stage);
                self.say(format!("run {name} claims message {number} under {}: Live", row.run));
                Ok(None)
            }
            Some(other) => Err(format!("a live claim came to {other:?}")),
        }
    }

    pub(super) fn dead_letter_arrives(&mut self, number: usize) -> Step {
        self.say(format!("a dead letter of message {number} arrives"));
        let outcome = if let Some(outcome) = self.standing(number)? {
            outcome
        } else {
            let incoming = Arc::clone(&self.messages[number].incoming);
            self.happens(number, &incoming, &Happening::DeadLetter, None)?
        };
        self.judged(number, Lane::DeadLetter, true, outcome);
        Ok(())
    }

    fn judged(&mut self, number: usize, lane: Lane, awaited: bool, outcome: Outcome) {
        let stage = Stage::Answering(outcome);
        self.begin_run(number, lane, Authority::Delivery, awaited, stage);
    }

    fn standing(&self, number: usize) -> Step<Option<Outcome>> {
        let found = self.store.look(self.key(number))?;
        if found.done.is_some() {
            return Ok(Some(Outcome::Duplicate));
        }
        Ok(match found.row {
            None | Some((State::Retrying, ..)) => None,
            Some(_) => Some(Outcome::Linked),
        })
    }

    /// Takes one run a step further.
    pub(super) fn run_goes_on(&mut self, index: usize) -> Step {
        let run = &self.runs[index];
        let (name, number) = (run.name, run.message);
        match run.stage.clone() {
            Stage::Claimed { lease_until } => {
                let has_time = lease_until.since(self.now) >= HANDLER_TIMEOUT;
                if has_time && !self.breaks(8) {
                    self.runs[index].stage = Stage::Handling;
                    self.say(format!("run {name} handles message {number}"));
                    Ok(())
                } else {
                    self.say(format!("run {name} gives message {number} back"));
                    self.claim_is_given_back(index)
                }
            }
            Stage::Handling => match self.handled(number) {
                Handled::ProcessEnds => {
                    self.say(format!("message {number} ends the process in run {name}"));
                    self.crash();
                    Ok(())
                }
                handled => self.reports(index, handled),
            },
            Stage::Answering(outcome) => {
                let run = self.runs.remove(index);
                self.answered(&run, &outcome)
            }
        }
    }

    fn handled(&mut self, number: usize) -> Handled {
        let nature = self.messages[number].nature;
        match nature {
            Nature::Rejects => Handled::Rejected,
            Nature::Poison => Handled::Failed(reason::HANDLER_FAILED),
            Nature::EndsProcess => Handled::ProcessEnds,
            Nature::Fine | Nature::Flaky if self.away.is_some() => {
                Handled::Failed(self.away.clone().unwrap_or(reason::HANDLER_FAILED))
            }
            Nature::Flaky if self.breaks(50) => {
                Handled::Failed(CODES[self.random.below(2)].clone())
            }
            _ => Handled::Effects { sound: !self.breaks(4) },
        }
    }

    fn claim_is_given_back(&mut self, index: usize) -> Step {
        let run = &self.runs[index];
        let (number, lane) = (run.message, run.lane);
        let Authority::Run(claim) = run.authority else { return Err("no claim to give".into()) };
        let incoming = Arc::clone(&self.messages[number].incoming);
        let awaited = run.awaited;
        let mut outcome = self.happens(number, &incoming, &Happening::Released(claim), None)?;
        if self.settings.bulk && awaited && matches!(outcome, Outcome::Retrying(_)) {
            outcome = self.is_handed_over(number)?;
        }
        if lane == Lane::Recovery && outcome == Outcome::Recovering {
            self.messages[number].spent -= 1;
        }
        self.runs[index].stage = Stage::Answering(outcome);
        Ok(())
    }

    /// Writes down how a run ended.
    fn reports(&mut self, index: usize, handled: Handled) -> Step {
        let run = &self.runs[index];
        let (name, number, lane, authority) = (run.name, run.message, run.lane, run.authority);
        let incoming = Arc::clone(&self.messages[number].incoming);
        let recoveries = |row: Option<Row>| row.map_or(0, |row| row.recoveries);
        let spent_before = match lane {
            Lane::Recovery => recoveries(self.store.row(incoming.key)?),
            _ => 0,
        };
        let in_bulk = self.settings.bulk && lane == Lane::Live;
        let failed = |code: &Code| {
            let happening = if in_bulk { Happening::FailedInBulk } else { Happening::Failed };
            happening(authority, code.clone())
        };
        let outcome = match handled {
            Handled::Effects { sound } => match self.commits(number, authority, sound)? {
                Some(Committed::Yes) => Outcome::Processed,
                Some(Committed::Nothing(standing)) => over(standing),
                Some(Committed::EffectFailed(code)) => {
                    self.say(format!("an effect of run {name} fails"));
                    self.happens(number, &incoming, &failed(&code), Some(&code))?
                }
                Some(other) => return Err(format!("a commit came to {other:?}")),
                None => Outcome::StoreAway,
            },
            Handled::Failed(code) => {
                self.say(format!("run {name} of message {number} fails with {code}"));
                self.happens(number, &incoming, &failed(&code), Some(&code))?
            }
            Handled::Rejected => {
                self.say(format!("run {name} rejects message {number}"));
                let refused = Happening::Refused(authority, Category::Rejected, REJECTED);
                self.happens(number, &incoming, &refused, Some(&REJECTED))?
            }
            Handled::ProcessEnds => return Err("a process that has ended reports".into()),
        };
        self.say(format!("run {name} of message {number} is {}", outcome.as_str()));
        if lane == Lane::Recovery && outcome == Outcome::Recovering {
            let spared = spent_before.saturating_sub(recoveries(self.store.row(incoming.key)?));
            self.messages[number].spent -= spared;
        }
        let is_recorded = !matches!(outcome, Outcome::Processed | Outcome::StoreAway);
        self.runs[index].stage = Stage::Answering(outcome);
        if is_recorded { self.attempts_stay_within_bounds() } else { Ok(()) }
    }

    fn commits(
        &mut self,
        number: usize,
        authority: Authority,
        sound: bool,
    ) -> Step<Option<Committed>> {
        let incoming = Arc::clone(&self.messages[number].incoming);
        let text = if sound {
            "INSERT INTO effect (message) VALUES (?1)"
        } else {
            "INSERT INTO nowhere (message) VALUES (?1)"
        };
        let effect = [sql(text, [incoming.event_id.as_str().into()]).expect_rows(1)];
        let outgoing = outgoing(&incoming, number);
        let committed = self.write(|ledger| {
            ledger.commit(&incoming, authority, &effect, &outgoing).map(kept_if_committed)
        })?;
        if committed == Some(Committed::Yes) {
            if self.messages[number].committed || self.store.effects(&incoming.event_id)? != 1 {
                return Err(format!("the effect of message {number} is on disk twice"));
            }
            self.messages[number].committed = true;
            for message in outgoing {
                let topic = TOPICS.iter().position(|topic| *topic == message.topic).unwrap_or(0);
                self.relay[topic].committed.push(message.message_id);
            }
        }
        Ok(committed)
    }

    fn happens(
        &mut self,
        number: usize,
        incoming: &Incoming,
        happening: &Happening,
        attempt: Option<&Code>,
    ) -> Step<Outcome> {
        let written =
            self.write(|ledger| ledger.happen(incoming, happening, attempt).map(Kept::Keep))?;
        let Some(written) = written else { return Ok(Outcome::StoreAway) };
        self.count_cases(&written)?;
        Ok(match written {
            Written::Nothing(standing) => over(standing),
            Written::Removed => Outcome::Duplicate,
            Written::Quarantined(case) => Outcome::Quarantined(case.category),
            Written::Recovering { .. } => Outcome::Recovering,
            Written::Now(State::Retrying) => Outcome::Retrying(reason::HANDLER_FAILED),
            Written::Now(state) => {
                return Err(format!("message {number} is {} after a report", state.as_str()));
            }
        })
    }

    /// **One case and one poison log a message**; a redrive may open it again.
    fn count_cases(&mut self, written: &Written) -> Step {
        let Written::Quarantined(case) = written else { return Ok(()) };
        let number: usize = case.event_id.parse().map_err(|_| "a case of no message")?;
        self.say(format!("message {number} is quarantined: {} {}", case.category, case.reason));
        let message = &mut self.messages[number];
        if case.reopened {
            message.reopened += 1;
        } else {
            message.quarantines += 1;
        }
        if message.quarantines > 1 || message.reopened > message.redrives {
            return Err(format!("message {number} is quarantined twice"));
        }
        if message.committed {
            return Err(format!("message {number} is quarantined after its effect"));
        }
        Ok(())
    }

    /// Guard times and leases.
    pub(super) fn sweep(&mut self) -> Step<bool> {
        let max = if self.healing { 16 } else { self.random.between(1, 8) };
        let moved = self.write(|ledger| ledger.time_passed(max).map(Kept::Keep))?;
        let moved = moved.unwrap_or_default();
        if !moved.is_empty() {
            self.say(format!("{} guard times and leases are judged", moved.len()));
        }
        for written in &moved {
            self.count_cases(written)?;
        }
        if !moved.is_empty() {
            self.attempts_stay_within_bounds()?;
        }
        Ok(!moved.is_empty())
    }

    /// Recoveries, probes and redrives.
    pub(super) fn claim_due(&mut self) -> Step<bool> {
        let on = self.runs.iter().filter(|run| matches!(run.lane, Lane::Recovery | Lane::Redrive));
        let on = on.count();
        let free =
            if self.is_cautious() { usize::from(on == 0) } else { CONCURRENCY.saturating_sub(on) };
        let Some(free) = u32::try_from(free).ok().filter(|free| *free > 0) else {
            return Ok(false);
        };
        let due = self.write(|ledger: &Ledger<'_>| -> Result<_, StoreError> {
            ledger.claim_due(free).map(Kept::Keep)
        })?;
        let Some((claims, other)) = due else { return Ok(false) };
        for written in &other {
            self.count_cases(written)?;
        }
        let moved = !claims.is_empty() || !other.is_empty();
        for claim in claims {
            self.claimed(&claim)?;
        }
        Ok(moved)
    }

    fn claimed(&mut self, claim: &Claim) -> Step {
        let number: usize = claim.incoming.event_id.parse().map_err(|_| "a claim of no message")?;
        let message = &mut self.messages[number];
        let lane = if claim.kind == AttemptKind::Redrive {
            message.redrives += 1;
            Lane::Redrive
        } else {
            message.spent += 1;
            Lane::Recovery
        };
        let most = self.settings.limits.recoveries_max;
        if message.spent > most {
            return Err(format!(
                "message {number} is claimed for recovery {} of {most}",
                message.spent
            ));
        }
        if message.committed {
            return Err(format!("message {number} is claimed after its effect"));
        }
        let stage = Stage::Claimed { lease_until: claim.lease_until };
        let name = self.begin_run(number, lane, Authority::Run(claim.run), false, stage);
        self.say(format!("run {name} claims message {number} under {}: {lane:?}", claim.run));
        Ok(())
    }
}

fn over(standing: Standing) -> Outcome {
    match standing {
        Standing::Done => Outcome::Duplicate,
        Standing::Owned(_) | Standing::Absent => Outcome::Linked,
    }
}

/// Most messages publish one message when they commit, some two, some none.
fn outgoing(incoming: &Incoming, number: usize) -> Vec<Outgoing> {
    (0..number % 3)
        .map(|n| Outgoing {
            log: 0,
            seq: 0,
            pubsub: "pubsub".to_owned(),
            topic: TOPICS[(number + n) % 2].to_owned(),
            message_id: format!("{}-{n}", incoming.event_id),
            ordering_key: None,
            due_at: None,
            content: incoming.stored.body.clone(),
        })
        .collect()
}
