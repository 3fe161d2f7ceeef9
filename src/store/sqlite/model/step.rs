//! One step of the model: what happens, what the store answers, and the world after it.

use std::fmt;

use super::machine::{Phase, Run, Settings, Starter, World};

/// What happens. The first group happens outside the store; the second is one operation of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Happens {
    BrokerDelivers,
    BrokerDeliversATwin,
    BrokerRedeliversLate,
    SidecarPublishesDeadLetterAtOnce,
    SidecarDies,
    TwinIsToldRetry,
    TwinIsHandedOver { answer_lost: bool },
    DeliveryArrives { replica: u8 },
    SidecarStopsWaiting(Run),
    HandlerEnds(Run, Phase),
    CallTakesEffect(Run, Phase),
    AnswerArrives(Run),
    AnswerIsLost(Run),
    DeadLetterIsLost,
    DeadLetterIsDoubled,
    ProcessCrashes { replica: u8 },
    LeaseOfDeadRunEnds,
    ProcessStartsAgain,
    LeaseOfPausedRunEnds,

    DeliveryClaims(Run),
    DeliveryIsHandedOver { run: Run, answer_lost: bool },
    RunCommits(Run),
    RunFails(Run),
    RunFailsAtClosedGate(Run),
    RunRejects(Run),
    RunDoesNotKnow(Run),
    ClaimIsGivenBack(Run),
    DeadLetterArrives { answer_lost: bool },
    GuardTimePasses,
    LeaseIsJudged,
    RecoveryClaims { replica: u8 },
    RedriveIsAsked,
    RedriveClaims,
    CaseIsClosed,
}

/// What the store says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Told {
    /// The store was not asked.
    NotAsked,
    /// Nothing was written: it has no right to.
    Nothing,
    Committed,
    Retrying,
    Recovering,
    Quarantined,
    Reopened,
    Claimed,
    Taken,
    Refused,
}

/// Which histories a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// It comes by itself while nothing goes wrong: such steps alone must lead to an end.
    Benign,
    /// A handler fails, a breaker is open, a person acts.
    Trouble,
    /// Something breaks; the world can take only so many.
    Fault,
}

/// One step.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub happens: Happens,
    pub told: Told,
    pub nature: Nature,
    pub after: World,
}

/// Collects the steps that can follow on a world.
pub(super) struct Steps<'a> {
    pub settings: &'a Settings,
    pub before: &'a World,
    pub found: Vec<Step>,
}

impl Steps<'_> {
    /// Adds a step that changes the world so.
    pub(super) fn add(
        &mut self,
        nature: Nature,
        happens: Happens,
        told: Told,
        change: impl FnOnce(&mut World),
    ) {
        let mut after = self.before.clone();
        if nature == Nature::Fault {
            after.faults_left -= 1;
        }
        change(&mut after);
        after.waiting.sort_unstable();
        after.runs.sort_unstable();
        self.found.push(Step { happens, told, nature, after });
    }

    /// Something more may break.
    pub(super) fn may_break(&self) -> bool {
        self.before.faults_left > 0
    }

    /// Another run may begin.
    pub(super) fn has_room(&self) -> bool {
        self.before.runs.len() < self.settings.runs_max
    }
}

impl World {
    /// Everything that can happen next.
    pub(super) fn steps(&self, settings: &Settings) -> Vec<Step> {
        let mut steps = Steps { settings, before: self, found: Vec::new() };
        super::outside::steps(&mut steps);
        super::inside::steps(&mut steps);
        steps.found
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starter = match self.starter {
            Starter::Delivery => "live",
            Starter::Recovery => "recovery",
            Starter::Operator => "redrive",
        };
        match self.claim {
            Some(claim) => write!(f, "The {starter} run with claim {claim}"),
            None => write!(f, "The {starter} run"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = |lost: bool| if lost { ", and its answer is lost" } else { "" };
        let end = |phase: &Phase| match phase {
            Phase::Succeeded => "succeeds",
            Phase::Rejected => "says never",
            Phase::FailedUncalled => "fails and says that nothing was called",
            _ => "fails",
        };
        match &self.happens {
            Happens::BrokerDelivers => write!(f, "The broker delivers"),
            Happens::BrokerDeliversATwin => write!(f, "The broker delivers again, concurrently"),
            Happens::BrokerRedeliversLate => write!(f, "The broker holds it again"),
            Happens::SidecarPublishesDeadLetterAtOnce => {
                write!(f, "The breaker is open: the sidecar publishes the dead letter at once")
            }
            Happens::SidecarDies => {
                write!(f, "The sidecar dies with the delivery; the broker still holds it")
            }
            Happens::TwinIsToldRetry => {
                write!(f, "A delivery meets its twin in flight and is told RETRY at its deadline")
            }
            Happens::DeliveryArrives { replica } => {
                write!(f, "A delivery arrives at process {replica}")
            }
            Happens::SidecarStopsWaiting(run) => {
                write!(f, "{run} goes on, but the sidecar's time is up")
            }
            Happens::HandlerEnds(run, phase) => write!(f, "{run}: the handler {}", end(phase)),
            Happens::CallTakesEffect(run, Phase::Succeeded) => {
                write!(f, "{run} calls outside, and hears that it worked")
            }
            Happens::CallTakesEffect(run, _) => {
                write!(f, "{run} calls outside; it works, but the answer is lost")
            }
            Happens::AnswerArrives(run) if run.phase == Phase::TellsSuccess => {
                write!(f, "{run}: SUCCESS arrives, the sidecar acknowledges")
            }
            Happens::AnswerArrives(run) => write!(f, "{run}: RETRY arrives"),
            Happens::AnswerIsLost(run) => write!(f, "{run}: its SUCCESS is lost"),
            Happens::DeadLetterIsLost => write!(f, "The broker loses the dead letter"),
            Happens::DeadLetterIsDoubled => write!(f, "The broker doubles the dead letter"),
            Happens::ProcessCrashes { replica } => write!(f, "Process {replica} crashes"),
            Happens::LeaseOfDeadRunEnds => write!(f, "The lease of the dead run ends"),
            Happens::ProcessStartsAgain => {
                write!(f, "The process starts again and ends the leases of its predecessor")
            }
            Happens::LeaseOfPausedRunEnds => {
                write!(f, "The lease ends while its run is paused, and will go on")
            }
            Happens::TwinIsHandedOver { answer_lost } => {
                write!(f, "A twin is handed over at its deadline{}", lost(*answer_lost))
            }
            Happens::DeliveryIsHandedOver { run, answer_lost } => {
                write!(f, "{run} is handed over while it is on{}", lost(*answer_lost))
            }
            Happens::DeliveryClaims(run) => write!(f, "{run} claims"),
            Happens::RunCommits(run) => write!(f, "{run} commits"),
            Happens::RunFails(run) => write!(f, "{run} reports its failure"),
            Happens::RunFailsAtClosedGate(run) => {
                write!(f, "{run} reports its failure at a closed gate, which opens later")
            }
            Happens::RunRejects(run) => write!(f, "{run} reports its rejection"),
            Happens::RunDoesNotKnow(run) => write!(f, "{run} reports an unknown outcome"),
            Happens::ClaimIsGivenBack(run) => {
                write!(f, "{run} is given back before its handler began")
            }
            Happens::DeadLetterArrives { answer_lost: false } => {
                write!(f, "The dead letter arrives")
            }
            Happens::DeadLetterArrives { answer_lost: true } => {
                write!(f, "The dead letter arrives, and its answer is lost")
            }
            Happens::GuardTimePasses => write!(f, "The guard time passes"),
            Happens::LeaseIsJudged => write!(f, "The ended lease is looked at"),
            Happens::RecoveryClaims { replica } => {
                write!(f, "Recovery in process {replica} claims what is due")
            }
            Happens::RedriveIsAsked => write!(f, "An operator asks for a redrive"),
            Happens::RedriveClaims => write!(f, "The redrive is claimed"),
            Happens::CaseIsClosed => write!(f, "An operator closes the case"),
        }?;
        f.write_str(match self.told {
            Told::NotAsked => ".",
            Told::Nothing => ": nothing is written.",
            Told::Committed => ": the effect is on disk.",
            Told::Retrying => ": the sidecar is to retry.",
            Told::Recovering => ": recovery has it.",
            Told::Quarantined => ": a case is opened.",
            Told::Reopened => ": the case is opened again.",
            Told::Claimed => ": the claim is on disk.",
            Told::Taken => ": taken.",
            Told::Refused => ": refused.",
        })
    }
}
