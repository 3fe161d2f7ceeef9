//! The executable model of a message's life, and a driver that leads the store through its
//! histories.
//!
//! The model writes the rules of [`crate::custody`] down a second time, in another form: not by
//! what a row says, but as everything that broker, sidecar, process, person and store can do to
//! one message, with a bound on how much may break. All of it is searched for a broken promise
//! first; then the SQLite store is led through the same histories and has to answer and to hold
//! what the model says after every step. A rule that is changed in one of the two only is found
//! by the shortest history that shows the difference.
//!
//! Not in the model: times other than "has run out", ages, what is in an event, and other messages,
//! which only show as a gate that is closed for a while.

mod driver;
mod graph;
mod inside;
mod machine;
mod outside;
mod step;
mod walks;

use graph::Graph;
use machine::{Handler, Settings};
use walks::{Tree, by_chance};

use crate::clock::Clock;

/// Searches all worlds within the bounds, then leads the store through every operation in every
/// situation; `worlds` is how many there are.
fn search_and_follow(settings: Settings, worlds: usize) {
    let graph = Graph::search(settings).unwrap_or_else(|broken| panic!("{broken}"));
    graph.every_benign_history_ends().unwrap_or_else(|broken| panic!("{broken}"));
    let walked = Tree::plan(&graph).walk().unwrap_or_else(|difference| panic!("{difference}"));
    println!("{} worlds, {} steps; {walked:?}", graph.worlds.len(), graph.steps());
    assert_eq!(
        graph.worlds.len(),
        worlds,
        "the model's rules changed; if they should, count again"
    );
}

#[test]
fn a_handler_inside_the_transaction_keeps_every_promise_with_two_faults() {
    let settings = Settings::of_the_design(Handler::Inside, 2);
    search_and_follow(Settings { drains: true, gates: true, ..settings }, 31_811);
}

#[test]
fn two_processes_on_one_store_keep_every_promise_with_one_fault() {
    let settings = Settings::of_the_design(Handler::Inside, 1);
    search_and_follow(Settings { replicas: 2, ..settings }, 13_621);
}

#[test]
fn a_handler_whose_calls_may_be_repeated_keeps_every_promise_with_one_fault() {
    let settings = Settings::of_the_design(Handler::Repeatable, 1);
    let settings = Settings { recoveries_max: 2, attempts_live_max: 3, ..settings };
    search_and_follow(Settings { drains: true, gates: true, ..settings }, 18_559);
}

#[test]
fn a_handler_whose_calls_must_not_be_repeated_keeps_every_promise_with_one_fault() {
    let settings = Settings::of_the_design(Handler::Once, 1);
    let settings = Settings { recoveries_max: 2, attempts_live_max: 3, ..settings };
    search_and_follow(Settings { drains: true, gates: true, ..settings }, 11_331);
}

#[test]
fn batches_of_a_handler_inside_the_transaction_keep_every_promise_with_two_faults() {
    let settings = Settings::of_the_design(Handler::Inside, 2);
    search_and_follow(Settings { bulk: true, drains: true, gates: true, ..settings }, 20_570);
}

#[test]
fn batches_at_two_processes_on_one_store_keep_every_promise_with_one_fault() {
    let settings = Settings::of_the_design(Handler::Inside, 1);
    search_and_follow(Settings { bulk: true, replicas: 2, ..settings }, 11_533);
}

#[test]
fn batches_of_a_handler_whose_calls_may_be_repeated_keep_every_promise_with_one_fault() {
    let settings = Settings::of_the_design(Handler::Repeatable, 1);
    let settings = Settings { recoveries_max: 2, attempts_live_max: 3, ..settings };
    search_and_follow(Settings { bulk: true, drains: true, gates: true, ..settings }, 8_770);
}

#[test]
fn batches_of_a_handler_whose_calls_must_not_be_repeated_keep_every_promise_with_one_fault() {
    let settings = Settings::of_the_design(Handler::Once, 1);
    let settings = Settings { recoveries_max: 2, attempts_live_max: 3, ..settings };
    search_and_follow(Settings { bulk: true, drains: true, gates: true, ..settings }, 5_619);
}

/// Longer histories with more of everything, far beyond what can be searched. The last seed comes
/// from the clock; a failure names its seed, which repeats it when it is put into the list.
#[test]
fn the_store_follows_the_model_through_long_histories_by_chance() {
    let today = Clock::System.now().0.unsigned_abs();
    let handlers = [Handler::Inside, Handler::Repeatable, Handler::Once];
    for (seed, bulk) in [1, 2, today].into_iter().flat_map(|seed| [(seed, false), (seed, true)]) {
        for handler in handlers {
            let settings = Settings {
                bulk,
                replicas: 2,
                sidecar_retries: 2,
                attempts_live_max: 4,
                recoveries_max: 3,
                redrives_max: 3,
                deliveries_max: 6,
                runs_max: 4,
                drains: true,
                gates: true,
                ..Settings::of_the_design(handler, 8)
            };
            let walked = by_chance(settings, seed, 100, 60)
                .unwrap_or_else(|how| panic!("seed {seed}, {handler:?}, bulk {bulk}: {how}"));
            println!("seed {seed}, {handler:?}, bulk {bulk}: {walked:?}");
        }
    }
}
