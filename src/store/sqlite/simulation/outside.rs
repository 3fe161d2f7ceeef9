//! Everything around the process: broker, sidecar, dead-letter topic, dependency, operators, relay,
//! time; and the choice of what happens next.

use super::store::SUBSCRIPTION;
use super::world::{CODES, Carrier, Lane, Run, Stage, Step, TOPICS, World};
use crate::outcome::Outcome;
use crate::store::writer::Kept;
use crate::store::{GateAct, cases, gates, outbox};

impl World<'_> {
    /// Lets one thing happen, chosen by chance; what does not apply does nothing.
    pub(super) fn step(&mut self) -> Step {
        match self.random.between(1, 100) {
            ..=24 => self.sidecar_delivers()?,
            25..=56 => self.some_run_goes_on()?,
            57..=63 => self.some_dead_letter_arrives()?,
            64..=69 => self.time_goes_on(),
            70..=74 if self.process_up => drop(self.sweep()?),
            75..=83 if self.process_up => drop(self.claim_due()?),
            84..=87 if self.process_up => self.relay_goes_on()?,
            88..=90 => self.process_ends_or_starts()?,
            91..=95 => self.something_is_lost_or_doubled()?,
            96..=98 => self.operator_acts()?,
            _ => self.dependency_comes_or_goes(),
        }
        self.every_message_has_an_owner()
    }

    fn some_message(&mut self) -> usize {
        self.random.below(self.messages.len())
    }

    fn sidecar_delivers(&mut self) -> Step {
        let number = self.some_message();
        match self.messages[number].carrier {
            Carrier::Gone | Carrier::Sidecar { calling: true, .. } => Ok(()),
            Carrier::Broker | Carrier::Sidecar { .. } => self.deliver(number),
        }
    }

    /// A try of the sidecar, which may come to nothing before it reaches us.
    pub(super) fn deliver(&mut self, number: usize) -> Step {
        let tries = match self.messages[number].carrier {
            Carrier::Sidecar { tries, .. } => tries,
            Carrier::Broker | Carrier::Gone => 0,
        };
        self.messages[number].carrier = Carrier::Sidecar { tries, calling: true };
        if self.breaker_open || !self.process_up {
            let why = if self.breaker_open { "its breaker is open" } else { "the app is away" };
            self.say(format!("the sidecar cannot deliver message {number}: {why}"));
            self.call_failed(number);
            return Ok(());
        }
        self.delivery_arrives(number, true)
    }

    /// A try is over without an acknowledgement; after the last one it becomes a dead letter.
    pub(super) fn call_failed(&mut self, number: usize) {
        let message = &mut self.messages[number];
        let Carrier::Sidecar { tries, .. } = message.carrier else { return };
        if tries < self.settings.sidecar_retries {
            message.carrier = Carrier::Sidecar { tries: tries + 1, calling: false };
            return;
        }
        message.carrier = Carrier::Gone;
        message.dead_letters += 1;
        self.say(format!("the sidecar gives message {number} up as a dead letter"));
    }

    /// A call has its answer, which follows from the outcome and may be lost on its way.
    pub(super) fn answered(&mut self, run: &Run, outcome: &Outcome) -> Step {
        if matches!(run.lane, Lane::Recovery | Lane::Redrive) {
            return Ok(());
        }
        let refused = matches!(outcome, Outcome::Retrying(_) | Outcome::Busy | Outcome::StoreAway);
        let number = run.message;
        if !refused {
            self.must_be_on_disk(number)?;
        }
        // **A message in a batch is never answered RETRY**, so none holds up its topic.
        let retries = matches!(outcome, Outcome::Retrying(_) | Outcome::Busy);
        if self.settings.bulk && run.awaited && retries {
            return Err(format!("message {number} of a batch is answered RETRY"));
        }
        let lost = self.breaks(6);
        self.say(format!(
            "{:?} of message {number} is answered {} ({}){}",
            run.lane,
            if refused { "no" } else { "yes" },
            outcome.as_str(),
            if lost { ", and the answer is lost" } else { "" },
        ));
        let acknowledged = !refused && !lost;
        match run.lane {
            Lane::Live if run.awaited && acknowledged => {
                self.messages[number].carrier = Carrier::Gone;
            }
            Lane::Live if run.awaited => self.call_failed(number),
            Lane::DeadLetter if acknowledged => {
                let copies = &mut self.messages[number].dead_letters;
                *copies = copies.saturating_sub(1);
            }
            _ => {}
        }
        Ok(())
    }

    fn some_run_goes_on(&mut self) -> Step {
        if self.runs.is_empty() {
            return self.sidecar_delivers();
        }
        let index = self.random.below(self.runs.len());
        self.run_goes_on(index)
    }

    fn some_dead_letter_arrives(&mut self) -> Step {
        let number = self.some_message();
        if self.messages[number].dead_letters == 0 || !self.process_up {
            return Ok(());
        }
        self.dead_letter_arrives(number)
    }

    fn time_goes_on(&mut self) {
        let by = match self.random.between(1, 20) {
            ..=6 => self.random.secs(1, 5),
            7..=13 => self.random.secs(10, 30),
            14..=18 => self.random.secs(45, 90),
            19 => self.random.secs(600, 900),
            _ => self.random.secs(2000, 4000),
        };
        self.now = self.now.plus(by);
        self.say(format!("{} s pass", by.as_secs()));
    }

    fn process_ends_or_starts(&mut self) -> Step {
        if !self.process_up {
            return self.start_process();
        }
        if self.random.percent(40) {
            self.crash();
        }
        Ok(())
    }

    fn something_is_lost_or_doubled(&mut self) -> Step {
        let number = self.some_message();
        let on_disk = self.is_on_disk(number)?;
        let message = &mut self.messages[number];
        match self.random.between(1, if self.settings.bulk { 8 } else { 7 }) {
            1 if message.dead_letters > 0 => {
                message.dead_letters += 1;
                self.say(format!("the dead letter of message {number} is doubled"));
            }
            2 if message.dead_letters > 0 && on_disk => {
                message.dead_letters -= 1;
                self.say(format!("a dead letter of message {number} is lost"));
            }
            3 if on_disk && message.carrier != Carrier::Gone => {
                message.carrier = Carrier::Gone;
                self.nobody_awaits(number);
                self.say(format!("broker and sidecar lose message {number}"));
            }
            4 if matches!(message.carrier, Carrier::Sidecar { .. }) => {
                message.carrier = Carrier::Broker;
                self.nobody_awaits(number);
                self.say(format!("the sidecar ends; the broker has message {number} again"));
            }
            5 if matches!(message.carrier, Carrier::Sidecar { calling: true, .. }) => {
                self.nobody_awaits(number);
                self.say(format!("the sidecar stops waiting for message {number}"));
                self.call_failed(number);
            }
            6 if self.process_up => self.delivery_arrives(number, false)?,
            7 => {
                self.breaker_open = !self.breaker_open;
                let state = if self.breaker_open { "opens" } else { "closes" };
                self.say(format!("the sidecar's breaker {state}"));
            }
            8 => self.deadline_passes(number)?,
            _ => {}
        }
        Ok(())
    }

    /// The calls about the message go on without anybody waiting for their answers.
    fn nobody_awaits(&mut self, number: usize) {
        let calls = self.runs.iter_mut().filter(|run| run.message == number);
        calls.filter(|run| run.lane == Lane::Live).for_each(|run| run.awaited = false);
    }

    fn operator_acts(&mut self) -> Step {
        let code = CODES[self.random.below(2)].clone();
        match self.random.between(1, 10) {
            1 => self.act_on_gate(code.as_str(), GateAct::Hold),
            2 => self.act_on_gate(code.as_str(), GateAct::Open),
            3..=8 => self.act_on_case(true),
            _ => self.act_on_case(false),
        }
    }

    pub(super) fn act_on_gate(&mut self, code: &str, act: GateAct) -> Step {
        self.say(format!("an operator: {} the gate of {code}", act.as_str()));
        self.write(|ledger| gates::act(ledger, SUBSCRIPTION, code, act, "operator").map(Kept::Keep))
            .map(drop)
    }

    fn act_on_case(&mut self, redrive: bool) -> Step {
        let number = self.some_message();
        let Some((id, ..)) = self.store.cases(self.key(number))?.into_iter().next() else {
            return Ok(());
        };
        let now = self.now;
        let asked = self.write(|ledger| {
            if redrive {
                cases::request_redrive(ledger.sql, &id, "ann", now)
            } else {
                cases::close(ledger, &id, "ann", "settled by hand")
            }
        })?;
        let what = if redrive { "redrive" } else { "close" };
        self.say(format!("an operator: {what} message {number}: {asked:?}"));
        Ok(())
    }

    fn dependency_comes_or_goes(&mut self) {
        if self.away.take().is_some() {
            self.say("the dependency is back");
        } else {
            let code = CODES[self.random.below(2)].clone();
            self.say(format!("the dependency is away: {code}"));
            self.away = Some(code);
        }
    }

    /// Publishes some of what waits, or moves the cursor past what it has published.
    fn relay_goes_on(&mut self) -> Step {
        let topic = self.random.below(2);
        self.relay_topic(topic).map(drop)
    }

    /// **Every committed message is published at least once, and in order.** Says whether there
    /// was anything to do.
    pub(super) fn relay_topic(&mut self, topic: usize) -> Step<bool> {
        let name = TOPICS[topic];
        if let Some(last) = self.relay[topic].cursor_to.take() {
            self.say(format!("the cursor of {name} moves to {}", last.seq));
            self.write(|ledger| {
                outbox::move_cursor(ledger.sql, &last.at(), last.seq).map(Kept::Keep)
            })?;
            return Ok(true);
        }
        let pending = self.store.pending(name)?;
        if pending.is_empty() {
            return Ok(false);
        }
        let count = if self.healing { pending.len() } else { 1 + self.random.below(pending.len()) };
        for message in pending.into_iter().take(count) {
            let id = &message.message_id;
            self.say(format!("{id} is published to {name}"));
            let relay = &mut self.relay[topic];
            match relay.committed.iter().position(|committed| committed == id) {
                Some(place) if place < relay.published => {}
                Some(place) if place == relay.published => relay.published += 1,
                Some(place) => {
                    let missing = &relay.committed[relay.published];
                    return Err(format!("{missing} was not published before {place}, {id}"));
                }
                None => return Err(format!("{id} was published and never committed")),
            }
            relay.cursor_to = Some(message);
        }
        Ok(true)
    }

    /// The index of a run that waits to be answered or to go on.
    pub(super) fn first_run(&self) -> Option<usize> {
        let answering = |run: &Run| matches!(run.stage, Stage::Answering(_));
        self.runs.iter().position(answering).or(if self.runs.is_empty() { None } else { Some(0) })
    }
}
