//! The end of a history: nothing breaks any more, everything comes to rest, and the promises are
//! checked on what is then on disk.

use super::world::{Carrier, Nature, Step, TOPICS, World};
use crate::custody::{Row, State};
use crate::outcome::Category;
use crate::store::GateAct;

/// More than messages need that do not wait at a gate.
const ROUNDS: usize = 150;

impl World<'_> {
    /// The dependency is back, people open what they held, and time passes until nothing is due.
    pub(super) fn heals(&mut self) -> Step {
        self.say("from here on nothing breaks");
        self.healing = true;
        self.away = None;
        self.breaker_open = false;
        for code in self.store.held_gates()? {
            self.act_on_gate(&code, GateAct::Open)?;
        }
        if self.comes_to_rest()? {
            return Ok(());
        }
        // Five poison messages and nothing that succeeds look like an outage, until they are old.
        self.now = self.now.plus(self.settings.limits.age_max);
        self.say("all that waits is old now");
        if self.comes_to_rest()? { Ok(()) } else { Err("there is no rest at any age".to_owned()) }
    }

    /// Moves and waits until nothing is due, for a bounded time.
    fn comes_to_rest(&mut self) -> Step<bool> {
        let mut idle = 0;
        for _ in 0..ROUNDS {
            if self.everything_outside_moves()? {
                continue;
            }
            let Some(due) = self.store.next_due()? else { return Ok(true) };
            if due > self.now {
                self.now = due;
                self.say("time passes until something is due");
            }
            let judged = self.sweep()?;
            let claimed = self.claim_due()?;
            // What was due may have gone to wait at a gate, whose probe comes next.
            idle = if judged || claimed { 0 } else { idle + 1 };
            if idle > self.messages.len() {
                return Err(format!("something is due since {due}, and nobody moves it"));
            }
        }
        Ok(false)
    }

    /// Delivers, answers, starts and publishes all there is; says whether there was anything.
    fn everything_outside_moves(&mut self) -> Step<bool> {
        let mut moved = !self.process_up;
        if !self.process_up {
            self.start_process()?;
        }
        for number in 0..self.messages.len() {
            while let Some(index) = self.first_run() {
                self.run_goes_on(index)?;
                moved = true;
            }
            let is_calling =
                matches!(self.messages[number].carrier, Carrier::Sidecar { calling: true, .. });
            if self.messages[number].carrier != Carrier::Gone && !is_calling && self.process_up {
                self.deliver(number)?;
                moved = true;
            } else if self.messages[number].dead_letters > 0 && self.process_up {
                self.dead_letter_arrives(number)?;
                moved = true;
            }
        }
        self.every_message_has_an_owner()?;
        for topic in 0..TOPICS.len() {
            let relay = &self.relay[topic];
            if relay.published < relay.committed.len() || relay.cursor_to.is_some() {
                moved |= self.relay_topic(topic)?;
            }
        }
        Ok(moved)
    }

    /// What has to be true of every message once everything has come to rest.
    pub(super) fn every_promise_is_kept(&self) -> Step {
        for number in 0..self.messages.len() {
            self.is_at_rest(number).map_err(|broken| format!("message {number} {broken}"))?;
        }
        for (topic, relay) in TOPICS.iter().zip(&self.relay) {
            if relay.published < relay.committed.len() {
                let lost = &relay.committed[relay.published];
                return Err(format!("{lost} was never published to {topic}"));
            }
        }
        Ok(())
    }

    fn is_at_rest(&self, number: usize) -> Step {
        let message = &self.messages[number];
        let key = message.incoming.key;
        let effects = self.store.effects(&message.incoming.event_id)?;
        let row = self.store.row(key)?;
        let cases = self.store.cases(key)?;
        if cases.len() > 1 {
            return Err(format!("has {} cases", cases.len()));
        }
        let case = cases.first().map(|(_, status, category)| (status.as_str(), category.as_str()));
        if self.store.is_done(key)? {
            return match (effects, &row, case) {
                (1, None, None | Some(("resolved", _))) => Ok(()),
                _ => Err(format!("is done with {effects} effects, {row:?}, {case:?}")),
            };
        }
        if effects > 0 || message.committed {
            return Err(format!("has {effects} effects and may run again"));
        }
        match (row, case) {
            (Some(Row { state: State::Closed, .. }), Some(("closed", _))) => Ok(()),
            (Some(row @ Row { state: State::Quarantined, .. }), Some(("open", category))) => {
                self.has_earned_its_case(number, row, category)
            }
            (None, _) => Err("is lost".to_owned()),
            (row, case) => Err(format!("waits for ever: {row:?}, {case:?}")),
        }
    }

    /// Nobody is bothered before the bounds are reached, or the handler said never.
    fn has_earned_its_case(&self, number: usize, row: Row, category: &str) -> Step {
        let limits = &self.settings.limits;
        let spent = row.recoveries >= limits.recoveries_max;
        let old = self.now.since(row.first_seen_at) > limits.age_max;
        let nature = self.messages[number].nature;
        let earned = match Category::parse(category) {
            Some(Category::Rejected) => nature == Nature::Rejects,
            Some(Category::Exhausted) => spent || old,
            Some(Category::CrashedProcess) => spent,
            _ => false,
        };
        if earned { Ok(()) } else { Err(format!("is a case of {category} too early: {row:?}")) }
    }
}
