//! What the model knows: one message, everybody who can hold it, and how much may go wrong.

use crate::custody::State;

/// What the handler does besides its effects; decides whether a delivery claims first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    /// Nothing: all is in the transaction, and a delivery claims nothing.
    Inside,
    /// It calls a destination that may be called again when the outcome of a call is unknown.
    Repeatable,
    /// It calls a destination that must not be called again unasked.
    Once,
}

/// The bounds of one search. Small numbers find what large ones hide.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each lets one more thing happen")]
pub(super) struct Settings {
    pub handler: Handler,
    /// Processes of the consumer that share the store.
    pub replicas: u8,
    /// How often the sidecar calls again before it publishes the dead letter.
    pub sidecar_retries: u8,
    pub attempts_live_max: u8,
    pub recoveries_max: u8,
    /// Redrives that begin.
    pub redrives_max: u8,
    /// Times the broker hands the message over.
    pub deliveries_max: u8,
    /// Copies of the dead letter under way at once.
    pub dead_letters_max: u8,
    /// Runs at once.
    pub runs_max: usize,
    /// Lost answers, crashes, sidecar timeouts and the like, all together.
    pub faults_max: u8,
    /// Whether a run may outlive its lease.
    pub pauses: bool,
    /// Whether a claim may be given back because the process is stopping.
    pub drains: bool,
    /// Whether a gate may close: other messages fail with the same code.
    pub gates: bool,
    /// Whether deliveries come in batches: none is answered RETRY.
    pub bulk: bool,
}

impl Settings {
    /// The bounds of the design's own search.
    pub(super) const fn of_the_design(handler: Handler, faults_max: u8) -> Self {
        Self {
            handler,
            replicas: 1,
            sidecar_retries: 1,
            attempts_live_max: 2,
            recoveries_max: 1,
            redrives_max: 1,
            deliveries_max: 3,
            dead_letters_max: 3,
            runs_max: 3,
            faults_max,
            pauses: true,
            drains: false,
            gates: false,
            bulk: false,
        }
    }

    /// Whether a delivery claims the message before its handler runs.
    pub(super) fn claims_first(&self) -> bool {
        self.handler != Handler::Inside
    }
}

/// What the store says of a message in trouble, without times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub state: State,
    /// The number of the latest claim.
    pub run: u8,
    /// The lease of that claim has not run out.
    pub leased: bool,
    pub attempts: u8,
    pub recoveries: u8,
    pub never_attempted: bool,
    pub live_claim: bool,
}

/// Where a case stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    Open,
    Redriving,
    Resolved,
    Closed,
}

/// The message's case, as the store keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Case {
    pub standing: Standing,
    /// Its category is `outcome_unknown`, so a redrive is refused.
    pub outcome_unknown: bool,
    pub redrive_asked: bool,
}

/// Who started a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Starter {
    Delivery,
    Recovery,
    Operator,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    /// A delivery is about to look at the message and to claim it.
    Arrived,
    /// Claimed; nothing outside has been called yet.
    Claimed,
    /// The handler runs; nothing of it can be seen from outside.
    Handling,
    /// The handler is through and its effects wait for the commit.
    Succeeded,
    /// The handler failed, and may have called outside.
    Failed,
    /// The handler failed, and says that nothing was called outside.
    FailedUncalled,
    /// The handler said never.
    Rejected,
    /// What became of it is on disk, and the sidecar is being told SUCCESS.
    TellsSuccess,
    /// Its failure is on disk, and the sidecar is being told RETRY.
    TellsRetry,
    /// The same in a batch: it is about to be handed over instead.
    HandsOver,
}

/// One run of the handler, or a delivery on its way to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Run {
    pub starter: Starter,
    pub replica: u8,
    /// For a delivery: how often the sidecar will still call.
    pub calls_left: u8,
    /// The sidecar still waits for its answer.
    pub awaited: bool,
    pub phase: Phase,
    /// The run number it claimed, if it claims.
    pub claim: Option<u8>,
}

impl Run {
    /// Whether it can still write about the message.
    pub(super) fn may_write(self) -> bool {
        !matches!(self.phase, Phase::TellsSuccess | Phase::TellsRetry | Phase::HandsOver)
    }
}

/// One message and everybody who can hold it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    // What is in the store.
    pub row: Option<Row>,
    pub done: bool,
    /// Effects that have committed.
    pub effects: u8,
    pub case: Option<Case>,
    // What has happened outside.
    /// Outside calls that took effect; 2 stands for more than one.
    pub calls: u8,
    pub broker_holds: bool,
    pub deliveries: u8,
    pub dead_letters: u8,
    /// Deliveries that wait at the sidecar, by how often it will still call; sorted.
    pub waiting: Vec<u8>,
    /// Runs under way; sorted.
    pub runs: Vec<Run>,
    // What may still happen.
    pub faults_left: u8,
    pub redrives_left: u8,
}

impl World {
    /// A message that has just been published.
    pub(super) fn published(settings: &Settings) -> Self {
        Self {
            row: None,
            done: false,
            effects: 0,
            case: None,
            calls: 0,
            broker_holds: true,
            deliveries: 0,
            dead_letters: 0,
            waiting: Vec::new(),
            runs: Vec::new(),
            faults_left: settings.faults_max,
            redrives_left: settings.redrives_max,
        }
    }

    pub(super) fn state(&self) -> Option<State> {
        self.row.map(|row| row.state)
    }

    /// A delivery without a claim may write.
    pub(super) fn is_open(&self) -> bool {
        !self.done && matches!(self.state(), None | Some(State::Retrying))
    }

    /// The run with that claim is the one the row waits for.
    pub(super) fn is_fenced_in(&self, run: Run) -> bool {
        self.row.is_some_and(|row| {
            matches!(row.state, State::Running | State::Redriving) && run.claim == Some(row.run)
        })
    }

    /// The message cannot be forgotten: it is done, or the store moves it on by itself, or it
    /// waits for a person, or the broker or the sidecar will bring it again.
    pub(super) fn has_an_owner(&self) -> bool {
        self.done || self.row.is_some() || self.comes_again()
    }

    /// The broker or the sidecar will bring it again.
    pub(super) fn comes_again(&self) -> bool {
        self.broker_holds || self.dead_letters > 0 || !self.waiting.is_empty()
    }

    /// Nothing more need happen: it is over, or a person has it, or the search lets the broker
    /// deliver no more.
    pub(super) fn may_rest(&self, settings: &Settings) -> bool {
        self.done
            || matches!(self.state(), Some(State::Quarantined | State::Closed))
            || (self.broker_holds && self.deliveries >= settings.deliveries_max)
    }

    pub(super) fn remove_waiting(&mut self, calls_left: u8) {
        if let Some(at) = self.waiting.iter().position(|calls| *calls == calls_left) {
            self.waiting.remove(at);
        }
    }

    pub(super) fn remove_run(&mut self, run: Run) {
        if let Some(at) = self.runs.iter().position(|known| *known == run) {
            self.runs.remove(at);
        }
    }

    pub(super) fn replace_run(&mut self, run: Run, with: Run) {
        self.remove_run(run);
        self.runs.push(with);
    }

    /// The sidecar gives up: it publishes the dead letter and acknowledges the delivery.
    pub(super) fn give_up(&mut self, settings: &Settings) {
        self.dead_letters = (self.dead_letters + 1).min(settings.dead_letters_max);
        self.broker_holds = false;
    }

    /// The sidecar calls again, or gives up when it has no call left.
    pub(super) fn retry(&mut self, calls_left: u8, settings: &Settings) {
        if calls_left > 0 {
            self.waiting.push(calls_left);
        } else {
            self.give_up(settings);
        }
    }
}
