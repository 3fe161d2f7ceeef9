//! What happens outside the store: the broker, the sidecar, processes that die, answers that get
//! lost, and handlers that end one way or another.

use super::machine::{Handler, Phase, Run, Starter, World};
use super::step::{Happens, Nature, Steps, Told};

pub(super) fn steps(steps: &mut Steps<'_>) {
    broker(steps);
    sidecar(steps);
    dead_letters(steps);
    leases(steps);
    crashes(steps);
    let mut runs = steps.before.runs.clone();
    runs.dedup();
    for run in runs {
        sidecar_stops_waiting(steps, run);
        handler(steps, run);
        answer(steps, run);
    }
}

fn broker(steps: &mut Steps<'_>) {
    let world = steps.before;
    let open = world.waiting.len()
        + world.runs.iter().filter(|run| run.starter == Starter::Delivery && run.awaited).count();
    let calls = steps.settings.sidecar_retries + 1;
    let deliver = |world: &mut World| {
        world.waiting.push(calls);
        world.deliveries += 1;
    };
    let more = world.deliveries < steps.settings.deliveries_max;
    if world.broker_holds && open == 0 && more {
        steps.add(Nature::Benign, Happens::BrokerDelivers, Told::NotAsked, deliver);
    }
    if world.broker_holds && open == 1 && more && steps.may_break() {
        steps.add(Nature::Fault, Happens::BrokerDeliversATwin, Told::NotAsked, deliver);
    }
    if !world.broker_holds && world.deliveries > 0 && more && steps.may_break() {
        steps.add(Nature::Fault, Happens::BrokerRedeliversLate, Told::NotAsked, |world| {
            world.broker_holds = true;
        });
    }
}

fn sidecar(steps: &mut Steps<'_>) {
    let (world, settings) = (steps.before, steps.settings);
    let mut waiting = world.waiting.clone();
    waiting.dedup();
    for calls in waiting {
        let at_once = Happens::SidecarPublishesDeadLetterAtOnce;
        steps.add(Nature::Trouble, at_once, Told::NotAsked, |world| {
            world.remove_waiting(calls);
            world.give_up(settings);
        });
        if steps.may_break() {
            steps.add(Nature::Fault, Happens::SidecarDies, Told::NotAsked, |world| {
                world.remove_waiting(calls);
            });
        }
        for replica in 0..settings.replicas {
            let has_twin = world
                .runs
                .iter()
                .any(|run| run.starter == Starter::Delivery && run.replica == replica);
            if has_twin && !settings.bulk {
                steps.add(Nature::Benign, Happens::TwinIsToldRetry, Told::NotAsked, |world| {
                    world.remove_waiting(calls);
                    world.retry(calls - 1, settings);
                });
            } else if !has_twin && steps.has_room() {
                let phase = if settings.claims_first() { Phase::Arrived } else { Phase::Handling };
                let run = Run {
                    starter: Starter::Delivery,
                    replica,
                    calls_left: calls - 1,
                    awaited: true,
                    phase,
                    claim: None,
                };
                let arrives = Happens::DeliveryArrives { replica };
                steps.add(Nature::Benign, arrives, Told::NotAsked, |world| {
                    world.remove_waiting(calls);
                    world.runs.push(run);
                });
            }
        }
    }
}

fn dead_letters(steps: &mut Steps<'_>) {
    let world = steps.before;
    if world.dead_letters == 0 || !steps.may_break() {
        return;
    }
    // An event whose first failure could not be written and whose dead letter the broker lost is
    // outside the promise.
    if world.row.is_some() || world.done {
        steps.add(Nature::Fault, Happens::DeadLetterIsLost, Told::NotAsked, |world| {
            world.dead_letters -= 1;
        });
    }
    if world.dead_letters < steps.settings.dead_letters_max {
        steps.add(Nature::Fault, Happens::DeadLetterIsDoubled, Told::NotAsked, |world| {
            world.dead_letters += 1;
        });
    }
}

fn leases(steps: &mut Steps<'_>) {
    let world = steps.before;
    let Some(row) = world.row.filter(|row| row.leased) else { return };
    let end = |world: &mut World| {
        if let Some(row) = &mut world.row {
            row.leased = false;
        }
    };
    let alive = world.runs.iter().any(|run| run.claim == Some(row.run));
    if !alive {
        steps.add(Nature::Benign, Happens::LeaseOfDeadRunEnds, Told::NotAsked, end);
        if world.runs.is_empty() {
            steps.add(Nature::Benign, Happens::ProcessStartsAgain, Told::NotAsked, end);
        }
    } else if steps.settings.pauses && steps.may_break() {
        steps.add(Nature::Fault, Happens::LeaseOfPausedRunEnds, Told::NotAsked, end);
    }
}

fn crashes(steps: &mut Steps<'_>) {
    let (world, settings) = (steps.before, steps.settings);
    for replica in 0..settings.replicas {
        if !steps.may_break() || !world.runs.iter().any(|run| run.replica == replica) {
            continue;
        }
        let crashes = Happens::ProcessCrashes { replica };
        steps.add(Nature::Fault, crashes, Told::NotAsked, |world| {
            let (dead, alive) = world.runs.iter().partition(|run| run.replica == replica);
            world.runs = alive;
            let dead: Vec<Run> = dead;
            for run in dead.iter().filter(|run| run.awaited) {
                world.retry(run.calls_left, settings);
            }
        });
    }
}

fn sidecar_stops_waiting(steps: &mut Steps<'_>, run: Run) {
    let settings = steps.settings;
    if !(run.awaited && run.may_write() && steps.may_break()) {
        return;
    }
    let happens = Happens::SidecarStopsWaiting(run);
    steps.add(Nature::Fault, happens, Told::NotAsked, |world| {
        world.replace_run(run, Run { awaited: false, calls_left: 0, ..run });
        world.retry(run.calls_left, settings);
    });
}

fn handler(steps: &mut Steps<'_>, run: Run) {
    let settings = steps.settings;
    let mut end = |nature, phase| {
        let happens = Happens::HandlerEnds(run, phase);
        steps.add(nature, happens, Told::NotAsked, |world| {
            world.replace_run(run, Run { phase, ..run });
        });
    };
    match run.phase {
        Phase::Handling => {
            end(Nature::Benign, Phase::Succeeded);
            end(Nature::Trouble, Phase::Failed);
            end(Nature::Trouble, Phase::Rejected);
        }
        Phase::Claimed => {
            // The destination refused it, or could not be reached.
            end(Nature::Trouble, Phase::Failed);
            end(Nature::Trouble, Phase::Rejected);
            if settings.handler == Handler::Once {
                end(Nature::Trouble, Phase::FailedUncalled);
            }
            let natures = [(Nature::Benign, Phase::Succeeded), (Nature::Trouble, Phase::Failed)];
            for (nature, phase) in natures {
                let calls = Happens::CallTakesEffect(run, phase);
                steps.add(nature, calls, Told::NotAsked, |world| {
                    world.calls = (world.calls + 1).min(2);
                    world.replace_run(run, Run { phase, ..run });
                });
            }
        }
        _ => {}
    }
}

fn answer(steps: &mut Steps<'_>, run: Run) {
    let settings = steps.settings;
    let arrives = Happens::AnswerArrives(run);
    match run.phase {
        Phase::TellsSuccess | Phase::TellsRetry if !run.awaited => {
            steps.add(Nature::Benign, arrives, Told::NotAsked, |world| world.remove_run(run));
        }
        Phase::TellsSuccess => {
            steps.add(Nature::Benign, arrives, Told::NotAsked, |world| {
                world.remove_run(run);
                world.broker_holds = false;
            });
            if steps.may_break() {
                let lost = Happens::AnswerIsLost(run);
                steps.add(Nature::Fault, lost, Told::NotAsked, |world| {
                    world.remove_run(run);
                    world.retry(run.calls_left, settings);
                });
            }
        }
        Phase::TellsRetry => {
            steps.add(Nature::Benign, arrives, Told::NotAsked, |world| {
                world.remove_run(run);
                world.retry(run.calls_left, settings);
            });
        }
        _ => {}
    }
}
