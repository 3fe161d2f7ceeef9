//! A seeded simulation: several messages of one subscription through outages, crashes and people,
//! on the real SQLite store.
//!
//! One number decides a whole history: what is delivered, doubled, delayed and lost, when the
//! process ends, which writes fail, when the dependency is away, what operators do. The store runs
//! inline under a clock moved by hand, so a seed repeats exactly. Where the model beside this
//! searches everything that can happen to one message, this looks at what several do to each other:
//! gates, concurrency, the outbox.
//!
//! Promises checked after every step: nothing is acknowledged that is not on disk, no message is
//! without an owner, attempts and recoveries stay within their bounds, an effect is committed once,
//! a case is opened once, the outbox is published in order. When the history is over everything
//! heals; then every message is done exactly once or a case that was earned, and all is published.
//! A dead letter is only lost after something of ours was written.
//!
//! The steps of the process imitate `consumer.rs`, `recovery.rs` and `relay.rs`, which are async.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};

mod healing;
mod outside;
mod process;
mod random;
mod store;
mod world;

use store::Store;
use world::{Step, World};

use crate::clock::Clock;

/// Seeds whose history has once broken a promise, with what it was.
const REGRESSIONS: &[(u64, &str)] = &[];

/// Plays the history of a seed. Its sentences, and the promise it breaks, if it does.
fn play(store: &Store, seed: u64) -> (Vec<String>, Step) {
    store.begin();
    let mut world = World::new(store, seed);
    let played = catch_unwind(AssertUnwindSafe(|| {
        world.start_process()?;
        for _ in 0..world.settings.steps {
            world.step()?;
        }
        world.heals()?;
        world.every_promise_is_kept()
    }));
    let history = std::mem::take(&mut world.history);
    store.undo();
    (history, played.unwrap_or_else(|_| Err("the store panicked".to_owned())))
}

/// The whole history of a seed, to be read by a person.
fn told(seed: u64, history: &[String], broken: &str) -> String {
    use std::fmt::Write as _;
    let mut text = format!("seed {seed}: {broken}\n");
    for (number, sentence) in history.iter().enumerate() {
        let _ = writeln!(text, "{:4}. {sentence}", number + 1);
    }
    let _ = writeln!(
        text,
        "seed {seed}: {broken}\nreplay: SIMULATION_SEED={seed} cargo test --lib simulation::replay -- --nocapture"
    );
    text
}

/// Plays every seed, on as many stores as the machine has room for; the first that breaks a
/// promise is told.
fn keeps_every_promise(seeds: Range<u64>) {
    let players = available_parallelism().map_or(1, usize::from).min(8);
    let next = AtomicU64::new(seeds.start);
    let sentences = AtomicUsize::new(0);
    let broken = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..players {
            scope.spawn(|| {
                let store = Store::open();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || broken.lock().unwrap().is_some() {
                        return;
                    }
                    let (history, played) = play(&store, seed);
                    sentences.fetch_add(history.len(), Ordering::Relaxed);
                    if let Err(promise) = played {
                        let text = told(seed, &history, &promise);
                        broken.lock().unwrap().get_or_insert(text);
                    }
                }
            });
        }
    });
    if let Some(text) = broken.into_inner().unwrap() {
        panic!("{text}");
    }
    println!("{} histories, {sentences:?} sentences", seeds.end - seeds.start);
}

#[test]
fn ten_thousand_histories_keep_every_promise() {
    keeps_every_promise(0..10_000);
}

/// The seeds come from the clock; a failure names its seed.
#[test]
fn fresh_histories_keep_every_promise() {
    let first = Clock::System.now().0.unsigned_abs();
    println!("seeds from {first} on");
    keeps_every_promise(first..first + 200);
}

#[cfg(feature = "soak")]
#[test]
fn soak_a_million_histories_keep_every_promise() {
    keeps_every_promise(0..1_000_000);
}

#[test]
fn histories_that_once_broke_a_promise_keep_it() {
    for (seed, promise) in REGRESSIONS {
        println!("seed {seed}: {promise}");
        keeps_every_promise(*seed..*seed + 1);
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let (first, second) = (Store::open(), Store::open());
    drop(play(&second, 1_000));
    for seed in 0..50 {
        assert_eq!(play(&first, seed), play(&second, seed), "seed {seed}");
    }
}

/// Tells the history of the seed in `SIMULATION_SEED`; without one there is nothing to replay.
#[test]
fn replay() {
    #[allow(clippy::disallowed_methods, reason = "names a seed for a test, configures nothing")]
    let Ok(seed) = std::env::var("SIMULATION_SEED") else { return };
    let seed = seed.parse().unwrap();
    let (history, played) = play(&Store::open(), seed);
    let text = told(seed, &history, played.as_ref().err().map_or("every promise kept", |b| b));
    println!("{text}");
    assert_eq!(played, Ok(()));
}
