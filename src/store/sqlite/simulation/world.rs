//! What a history is about: messages with their broker, their sidecar and their dead letters, one
//! process, a dependency, people, and a clock that is moved by hand.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::random::Random;
use super::store::{BEGIN, BODY, SUBSCRIPTION, Store};
use crate::backoff::Backoff;
use crate::clock::Timestamp;
use crate::custody::{Authority, Limits, State};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::outcome::{Code, Outcome};
use crate::store::writer::Kept;
use crate::store::{Incoming, Outgoing, StoreError};

/// `Err` says which promise was broken.
pub(super) type Step<T = ()> = Result<T, String>;

/// The two codes a handler fails with when something passes.
pub(super) const CODES: [Code; 2] = [Code::new("stock_away"), Code::new("payment_away")];
pub(super) const TOPICS: [&str; 2] = ["shipments", "invoices"];

/// What the handler does with a message whenever it gets the chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// Succeeds while the dependency is there.
    Fine,
    /// Fails at times, with one of two codes.
    Flaky,
    /// Says never.
    Rejects,
    /// Fails always.
    Poison,
    /// Ends the process.
    EndsProcess,
}

/// Who holds a message outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Broker,
    /// The sidecar, after so many tries; `calling` says that a call is under way.
    Sidecar {
        tries: u32,
        calling: bool,
    },
    /// Nobody: acknowledged, or published as a dead letter.
    Gone,
}

pub(super) struct Message {
    pub incoming: Arc<Incoming>,
    pub nature: Nature,
    pub carrier: Carrier,
    /// Copies of its dead letter that have not been acknowledged.
    pub dead_letters: u32,
    /// The store said that its effect has committed.
    pub committed: bool,
    /// Recoveries claimed and not given back.
    pub spent: u32,
    /// How often its case was opened for the first time: the poison log.
    pub quarantines: u32,
    pub reopened: u32,
    pub redrives: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Live,
    DeadLetter,
    Recovery,
    Redrive,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Claimed, the handler has not begun.
    Claimed {
        lease_until: Timestamp,
    },
    Handling,
    /// All is written that will be; the answer is not out yet.
    Answering(Outcome),
}

/// A call or a claimed run in the process's hands: gone when the process ends.
pub(super) struct Run {
    /// Its name in the history.
    pub name: u32,
    pub message: usize,
    pub lane: Lane,
    pub authority: Authority,
    /// Its sidecar still waits for the answer.
    pub awaited: bool,
    pub stage: Stage,
}

pub(super) struct Settings {
    pub limits: Limits,
    /// Retries of the sidecar after the first try.
    pub sidecar_retries: u32,
    /// Every delivery claims before it is handled: the handler calls outside, repeatably.
    pub claims: bool,
    /// Deliveries of one message do not wait for each other, as in two processes.
    pub twins: bool,
    /// Deliveries come in batches: none is answered RETRY.
    pub bulk: bool,
    /// How often a write fails, in percent.
    pub store_fails: u32,
    pub steps: usize,
}

pub(super) struct World<'s> {
    pub store: &'s Store,
    pub random: Random,
    pub settings: Settings,
    pub now: Timestamp,
    pub messages: Vec<Message>,
    pub runs: Vec<Run>,
    pub process_up: bool,
    pub cautious_until: Timestamp,
    /// The dependency is away, and every handler that needs it fails with this.
    pub away: Option<Code>,
    pub breaker_open: bool,
    pub relay: [Relay; 2],
    /// Nothing breaks any more.
    pub healing: bool,
    pub history: Vec<String>,
    runs_named: u32,
}

/// One topic of the outbox as seen from outside.
#[derive(Default)]
pub(super) struct Relay {
    /// What was committed, in order.
    pub committed: Vec<String>,
    /// How much of it has been published at least once.
    pub published: usize,
    /// Published, while its cursor has not moved.
    pub cursor_to: Option<Outgoing>,
}

impl<'s> World<'s> {
    pub(super) fn new(store: &'s Store, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let limits = Limits {
            attempts_live_max: random.between(1, 5),
            recoveries_max: random.between(1, 4),
            backoff: Backoff { first: random.secs(1, 10), max: Duration::from_secs(60) },
            age_max: Duration::from_secs(if random.percent(10) { 1800 } else { 86_400 }),
            ..Limits::default()
        };
        let claims = random.percent(40);
        let mut history = Vec::new();
        let count = usize::try_from(random.between(3, 8)).unwrap_or(3);
        let messages = (0..count).map(|number| Message::new(number, &mut random)).collect();
        let away = random.percent(30).then(|| CODES[0].clone());
        let settings = Settings {
            limits,
            sidecar_retries: random.between(0, 4),
            claims,
            twins: random.percent(30),
            bulk: seed.is_multiple_of(3),
            store_fails: if random.percent(30) { 15 } else { 3 },
            steps: usize::try_from(random.between(16, 36)).unwrap_or(30),
        };
        history.push(format!(
            "{count} messages are published; {} live attempts, {} recoveries, {} retries of the \
             sidecar{}{}{}{}",
            limits.attempts_live_max,
            limits.recoveries_max,
            settings.sidecar_retries,
            if claims { "; every delivery claims" } else { "" },
            if settings.twins { "; twins run side by side" } else { "" },
            if settings.bulk { "; deliveries come in batches" } else { "" },
            if away.is_some() { "; the dependency is away" } else { "" },
        ));
        Self {
            store,
            random,
            settings,
            now: BEGIN,
            messages,
            runs: Vec::new(),
            process_up: false,
            cautious_until: BEGIN,
            away,
            breaker_open: false,
            relay: Default::default(),
            healing: false,
            history,
            runs_named: 0,
        }
    }

    pub(super) fn say(&mut self, sentence: impl Into<String>) {
        self.history.push(sentence.into());
    }

    /// Something that goes wrong with this chance, until the healing.
    pub(super) fn breaks(&mut self, percent: u32) -> bool {
        !self.healing && self.random.percent(percent)
    }

    pub(super) fn key(&self, message: usize) -> MessageKey {
        self.messages[message].incoming.key
    }

    pub(super) fn is_cautious(&self) -> bool {
        self.now < self.cautious_until
    }

    /// Writes in one transaction; `None` when the store is away, and then nothing is on disk.
    pub(super) fn write<R>(
        &mut self,
        work: impl FnOnce(&crate::store::ledger::Ledger<'_>) -> Result<Kept<R>, StoreError>,
    ) -> Step<Option<R>> {
        let fails = self.breaks(self.settings.store_fails);
        if fails {
            self.say("the store fails the next write as a whole");
        }
        self.store.write(&self.settings.limits, self.now, fails, work)
    }

    pub(super) fn begin_run(
        &mut self,
        message: usize,
        lane: Lane,
        authority: Authority,
        awaited: bool,
        stage: Stage,
    ) -> u32 {
        self.runs_named += 1;
        let name = self.runs_named;
        self.runs.push(Run { name, message, lane, authority, awaited, stage });
        name
    }

    /// Whether something of ours about the message is on disk.
    pub(super) fn is_on_disk(&self, message: usize) -> Step<bool> {
        let key = self.key(message);
        self.store.is_known(key)
    }

    /// **Nothing is acknowledged that is not on disk**: asked at every acknowledgement.
    pub(super) fn must_be_on_disk(&self, message: usize) -> Step {
        let key = self.key(message);
        if self.store.is_done(key)? {
            return Ok(());
        }
        let Some(row) = self.store.row(key)? else {
            return Err(format!("message {message} is acknowledged and not on disk"));
        };
        if !self.store.holds_bytes(key)? {
            return Err(format!("message {message} is acknowledged without its bytes"));
        }
        match row.state {
            State::Quarantined | State::Redriving | State::Closed
                if !self.store.has_unresolved_case(key)? =>
            {
                Err(format!("message {message} is acknowledged and is with no person"))
            }
            _ => Ok(()),
        }
    }

    /// **No message without an owner**: asked after every step.
    pub(super) fn every_message_has_an_owner(&self) -> Step {
        for (number, message) in self.messages.iter().enumerate() {
            let outside = message.carrier != Carrier::Gone || message.dead_letters > 0;
            if !outside && !message.committed && !self.is_on_disk(number)? {
                return Err(format!("nobody holds message {number}"));
            }
        }
        Ok(())
    }

    /// **Attempts and recoveries stay within their bounds.** A recovery that a closed gate gave
    /// back is not recorded.
    pub(super) fn attempts_stay_within_bounds(&self) -> Step {
        let limits = &self.settings.limits;
        for (key, recorded) in self.store.attempts()? {
            let known = self.messages.iter().position(|message| message.incoming.key == key);
            let Some(number) = known else { return Err("attempts of an unknown message".into()) };
            let most = limits.attempts_live_max + limits.recoveries_max;
            if recorded > most {
                return Err(format!("message {number} has {recorded} recorded attempts of {most}"));
            }
        }
        Ok(())
    }
}

impl Message {
    fn new(number: usize, random: &mut Random) -> Self {
        let nature = match random.between(1, 100) {
            ..=62 => Nature::Fine,
            63..=77 => Nature::Flaky,
            78..=85 => Nature::Rejects,
            86..=95 => Nature::Poison,
            _ => Nature::EndsProcess,
        };
        let id = number.to_string();
        let incoming = Incoming {
            key: MessageKey::of(SUBSCRIPTION, "shop", &id),
            fingerprint: Fingerprint([7; 16]),
            subscription: SUBSCRIPTION.to_owned(),
            pubsub: "pubsub".to_owned(),
            topic: SUBSCRIPTION.to_owned(),
            source: "shop".to_owned(),
            event_id: id,
            ty: "order.placed".to_owned(),
            subject: None,
            traceparent: None,
            stored: Stored { attributes: None, body: Bytes::from_static(BODY) },
            once: false,
            recovery_attempt: 0,
        };
        Self {
            incoming: Arc::new(incoming),
            nature,
            carrier: Carrier::Broker,
            dead_letters: 0,
            committed: false,
            spent: 0,
            quarantines: 0,
            reopened: 0,
            redrives: 0,
        }
    }
}
