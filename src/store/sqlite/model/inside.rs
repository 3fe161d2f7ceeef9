//! What happens inside the store: each step here is one operation of it, and says what the store
//! has to answer. The rules are those of `src/custody.rs`, written a second time, by state.

use super::machine::{Case, Handler, Phase, Row, Run, Standing, Starter, World};
use super::step::{Happens, Nature, Steps, Told};
use crate::custody::State;

pub(super) fn steps(steps: &mut Steps<'_>) {
    dead_letter(steps);
    time(steps);
    recovery(steps);
    person(steps);
    if steps.settings.bulk {
        twins_in_bulk(steps);
    }
    let mut runs = steps.before.runs.clone();
    runs.dedup();
    for run in runs {
        match run.phase {
            Phase::Arrived => claim(steps, run),
            Phase::Succeeded => commit(steps, run),
            Phase::Failed | Phase::FailedUncalled => {
                failure(steps, run);
                failure_at_closed_gate(steps, run);
            }
            Phase::Rejected => rejection(steps, run),
            Phase::Claimed | Phase::Handling => give_back(steps, run),
            Phase::TellsSuccess | Phase::TellsRetry | Phase::HandsOver => {}
        }
        let open = run.awaited && run.may_write();
        if steps.settings.bulk && (open || run.phase == Phase::HandsOver) {
            delivery_in_bulk(steps, run);
        }
    }
}

const FRESH: Row = Row {
    state: State::Retrying,
    run: 0,
    leased: false,
    attempts: 0,
    recoveries: 0,
    never_attempted: false,
    live_claim: false,
};

impl World {
    /// The row as it is, or the one a first write would make, in a state without a claim.
    fn put(&mut self, state: State) -> &mut Row {
        let row = self.row.get_or_insert(FRESH);
        row.state = state;
        row.leased = false;
        row.live_claim = false;
        row
    }

    /// A case is opened, or opened again after a redrive.
    fn quarantine(&mut self, outcome_unknown: bool) {
        self.put(State::Quarantined);
        self.case = Some(Case { standing: Standing::Open, outcome_unknown, redrive_asked: false });
    }

    /// A claim is made; its number.
    fn claimed(&mut self, state: State, live_claim: bool) -> u8 {
        let row = self.put(state);
        row.run += 1;
        row.leased = true;
        row.live_claim = live_claim;
        row.never_attempted = false;
        row.run
    }

    fn finish(&mut self) {
        self.row = None;
        if let Some(case) = &mut self.case
            && matches!(case.standing, Standing::Open | Standing::Redriving)
        {
            case.standing = Standing::Resolved;
        }
    }

    /// The run has reported; a delivery goes on to tell the sidecar.
    fn reported(&mut self, run: Run, phase: Phase) {
        if run.starter == Starter::Delivery {
            self.replace_run(run, Run { phase, ..run });
        } else {
            self.remove_run(run);
        }
    }
}

/// Whether what the run reports may be written.
fn may_report(world: &World, run: Run) -> bool {
    !world.done && if run.claim.is_some() { world.is_fenced_in(run) } else { world.is_open() }
}

fn dead_letter(steps: &mut Steps<'_>) {
    let (world, settings) = (steps.before, steps.settings);
    if world.dead_letters == 0 {
        return;
    }
    let told = match world.row {
        _ if world.done => Told::Nothing,
        None => Told::Recovering,
        Some(Row { state: State::Retrying, recoveries, .. }) => {
            if recoveries >= settings.recoveries_max { Told::Quarantined } else { Told::Recovering }
        }
        Some(_) => Told::Nothing,
    };
    let write = |world: &mut World| match told {
        Told::Quarantined => world.quarantine(false),
        Told::Recovering => {
            let first = world.row.is_none();
            world.put(State::Recovering).never_attempted = first;
        }
        _ => {}
    };
    let arrives = Happens::DeadLetterArrives { answer_lost: false };
    steps.add(Nature::Benign, arrives, told, |world| {
        write(world);
        world.dead_letters -= 1;
    });
    if steps.may_break() {
        let arrives = Happens::DeadLetterArrives { answer_lost: true };
        steps.add(Nature::Fault, arrives, told, write);
    }
}

fn time(steps: &mut Steps<'_>) {
    let settings = steps.settings;
    let Some(row) = steps.before.row else { return };
    let once = settings.handler == Handler::Once;
    match row.state {
        State::Retrying => {
            steps.add(Nature::Benign, Happens::GuardTimePasses, Told::Recovering, |world| {
                world.put(State::Recovering);
            });
        }
        State::Running if !row.leased => {
            let capped = !row.live_claim && row.recoveries >= settings.recoveries_max;
            let told = if once || capped { Told::Quarantined } else { Told::Recovering };
            steps.add(Nature::Benign, Happens::LeaseIsJudged, told, |world| {
                if told == Told::Quarantined {
                    world.quarantine(once);
                } else {
                    world.put(State::Recovering);
                }
            });
        }
        State::Redriving if !row.leased => {
            steps.add(Nature::Benign, Happens::LeaseIsJudged, Told::Reopened, |world| {
                world.quarantine(once);
            });
        }
        _ => {}
    }
}

fn recovery(steps: &mut Steps<'_>) {
    let (world, settings) = (steps.before, steps.settings);
    let Some(row) = world.row.filter(|row| row.state == State::Recovering) else { return };
    if !steps.has_room() {
        return;
    }
    if row.recoveries >= settings.recoveries_max {
        let claims = Happens::RecoveryClaims { replica: 0 };
        steps.add(Nature::Benign, claims, Told::Quarantined, |world| world.quarantine(false));
        return;
    }
    for replica in 0..settings.replicas {
        let claims = Happens::RecoveryClaims { replica };
        steps.add(Nature::Benign, claims, Told::Claimed, |world| {
            let claim = world.claimed(State::Running, false);
            if let Some(row) = &mut world.row {
                row.recoveries += 1;
            }
            world.runs.push(claimed_run(Starter::Recovery, replica, claim, settings.handler));
        });
    }
}

fn claimed_run(starter: Starter, replica: u8, claim: u8, handler: Handler) -> Run {
    let phase = if handler == Handler::Inside { Phase::Handling } else { Phase::Claimed };
    Run { starter, replica, calls_left: 0, awaited: false, phase, claim: Some(claim) }
}

fn person(steps: &mut Steps<'_>) {
    let (world, settings) = (steps.before, steps.settings);
    let Some(case) = world.case else { return };
    if case.standing != Standing::Open || case.outcome_unknown {
        steps.add(Nature::Trouble, Happens::RedriveIsAsked, Told::Refused, |_| {});
    } else if world.redrives_left > 0 && !case.redrive_asked {
        steps.add(Nature::Trouble, Happens::RedriveIsAsked, Told::Taken, |world| {
            world.case = Some(Case { redrive_asked: true, ..case });
        });
    }
    if case.standing == Standing::Open {
        steps.add(Nature::Trouble, Happens::CaseIsClosed, Told::Taken, |world| {
            world.put(State::Closed);
            world.case = Some(Case { standing: Standing::Closed, redrive_asked: false, ..case });
        });
    } else {
        steps.add(Nature::Trouble, Happens::CaseIsClosed, Told::Refused, |_| {});
    }
    if case.redrive_asked && steps.has_room() {
        steps.add(Nature::Benign, Happens::RedriveClaims, Told::Claimed, |world| {
            world.redrives_left -= 1;
            let claim = world.claimed(State::Redriving, false);
            world.case = Some(Case { standing: Standing::Redriving, redrive_asked: false, ..case });
            world.runs.push(claimed_run(Starter::Operator, 0, claim, settings.handler));
        });
    }
}

/// A twin waits for the run of another delivery, at most to its deadline.
fn twins_in_bulk(steps: &mut Steps<'_>) {
    let world = steps.before;
    let is_twin = world.runs.iter().any(|run| run.starter == Starter::Delivery);
    let mut waiting = world.waiting.clone();
    waiting.dedup();
    for calls in waiting.into_iter().filter(|_| is_twin) {
        let happens = |answer_lost| Happens::TwinIsHandedOver { answer_lost };
        let leaves = |world: &mut World| world.remove_waiting(calls);
        is_handed_over(steps, Nature::Benign, calls - 1, happens, leaves);
    }
}

/// A run that is still on at the deadline goes on afterwards; a claim that was given back is over.
fn delivery_in_bulk(steps: &mut Steps<'_>, run: Run) {
    let happens = |answer_lost| Happens::DeliveryIsHandedOver { run, answer_lost };
    if run.phase == Phase::HandsOver {
        let leaves = |world: &mut World| world.remove_run(run);
        is_handed_over(steps, Nature::Benign, run.calls_left, happens, leaves);
    } else {
        let goes_on = Run { awaited: false, calls_left: 0, ..run };
        let leaves = |world: &mut World| world.replace_run(run, goes_on);
        is_handed_over(steps, Nature::Trouble, run.calls_left, happens, leaves);
    }
}

/// The sidecar is told SUCCESS about a delivery in a batch: what it leaves open goes to recovery,
/// unless it is over or claimed.
fn is_handed_over(
    steps: &mut Steps<'_>,
    nature: Nature,
    calls_left: u8,
    happens: impl Fn(bool) -> Happens,
    leaves: impl Fn(&mut World),
) {
    let settings = steps.settings;
    let told = if steps.before.is_open() { Told::Recovering } else { Told::Nothing };
    let hand_over = |world: &mut World| {
        if told == Told::Recovering {
            let first = world.row.is_none();
            world.put(State::Recovering).never_attempted = first;
        }
        leaves(world);
    };
    steps.add(nature, happens(false), told, |world| {
        hand_over(world);
        world.broker_holds = false;
    });
    if steps.may_break() {
        steps.add(Nature::Fault, happens(true), told, |world| {
            hand_over(world);
            world.retry(calls_left, settings);
        });
    }
}

fn claim(steps: &mut Steps<'_>, run: Run) {
    let happens = Happens::DeliveryClaims(run);
    if steps.before.is_open() {
        steps.add(Nature::Benign, happens, Told::Claimed, |world| {
            let claim = world.claimed(State::Running, true);
            world.replace_run(run, Run { phase: Phase::Claimed, claim: Some(claim), ..run });
        });
    } else {
        steps.add(Nature::Benign, happens, Told::Nothing, |world| {
            world.reported(run, Phase::TellsSuccess);
        });
    }
}

fn commit(steps: &mut Steps<'_>, run: Run) {
    let may = may_report(steps.before, run);
    let told = if may { Told::Committed } else { Told::Nothing };
    steps.add(Nature::Benign, Happens::RunCommits(run), told, |world| {
        if may {
            world.done = true;
            world.effects += 1;
            world.finish();
        }
        world.reported(run, Phase::TellsSuccess);
    });
}

fn failure(steps: &mut Steps<'_>, run: Run) {
    let (world, settings) = (steps.before, steps.settings);
    let unknown = settings.handler == Handler::Once && run.phase == Phase::Failed;
    let happens = if unknown { Happens::RunDoesNotKnow(run) } else { Happens::RunFails(run) };
    if !may_report(world, run) {
        steps.add(Nature::Benign, happens, Told::Nothing, |world| {
            world.reported(run, Phase::TellsSuccess);
        });
        return;
    }
    let row = world.row.unwrap_or(FRESH);
    let told = match run.starter {
        Starter::Operator => Told::Reopened,
        _ if unknown => Told::Quarantined,
        Starter::Recovery if row.recoveries >= settings.recoveries_max => Told::Quarantined,
        Starter::Recovery => Told::Recovering,
        Starter::Delivery if settings.bulk => Told::Recovering,
        Starter::Delivery if row.attempts + 1 >= settings.attempts_live_max => Told::Recovering,
        Starter::Delivery => Told::Retrying,
    };
    steps.add(Nature::Benign, happens, told, |world| {
        let counted = run.starter == Starter::Delivery && !unknown;
        match told {
            Told::Retrying => {
                world.put(State::Retrying);
            }
            Told::Recovering => {
                world.put(State::Recovering);
            }
            _ => world.quarantine(unknown),
        }
        if let Some(row) = &mut world.row {
            row.attempts += u8::from(counted);
        }
        let phase = if told == Told::Retrying { Phase::TellsRetry } else { Phase::TellsSuccess };
        world.reported(run, phase);
    });
}

/// The dependency is away for everyone: a recovery that fails with its code spends nothing.
fn failure_at_closed_gate(steps: &mut Steps<'_>, run: Run) {
    let settings = steps.settings;
    let unknown = settings.handler == Handler::Once && run.phase == Phase::Failed;
    let spared = run.starter == Starter::Recovery && !unknown && may_report(steps.before, run);
    if !settings.gates || !steps.may_break() || !spared {
        return;
    }
    let happens = Happens::RunFailsAtClosedGate(run);
    steps.add(Nature::Fault, happens, Told::Recovering, |world| {
        world.put(State::Recovering).recoveries -= 1;
        world.remove_run(run);
    });
}

fn rejection(steps: &mut Steps<'_>, run: Run) {
    let told = match (may_report(steps.before, run), run.starter) {
        (false, _) => Told::Nothing,
        (true, Starter::Operator) => Told::Reopened,
        (true, _) => Told::Quarantined,
    };
    steps.add(Nature::Benign, Happens::RunRejects(run), told, |world| {
        if told != Told::Nothing {
            world.quarantine(false);
        }
        world.reported(run, Phase::TellsSuccess);
    });
}

/// The process stops, or too little of the lease is left, before the handler began.
fn give_back(steps: &mut Steps<'_>, run: Run) {
    if !steps.settings.drains || !steps.may_break() || run.claim.is_none() {
        return;
    }
    let told = match (may_report(steps.before, run), run.starter) {
        (false, _) => Told::Nothing,
        (true, Starter::Operator) => Told::Reopened,
        (true, Starter::Recovery) => Told::Recovering,
        (true, Starter::Delivery) => Told::Retrying,
    };
    // When nobody awaits it any more it is left to the guard time.
    let in_bulk = steps.settings.bulk && run.awaited;
    steps.add(Nature::Fault, Happens::ClaimIsGivenBack(run), told, |world| {
        let mut phase = Phase::TellsSuccess;
        match told {
            Told::Recovering => world.put(State::Recovering).recoveries -= 1,
            Told::Retrying => {
                world.put(State::Retrying);
                phase = if in_bulk { Phase::HandsOver } else { Phase::TellsRetry };
            }
            // It was not the outcome of this run that is unknown: the case stays what it was.
            Told::Reopened => world.quarantine(false),
            _ => {}
        }
        world.reported(run, phase);
    });
}
