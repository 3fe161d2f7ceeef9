//! Publishes the outbox: the only place from which anything is published.
//!
//! **Invariants**
//! - Every topic is published by a task of its own (`relay/topic.rs`), so none waits for another's
//!   publish that hangs or fails.
//! - Messages leave in batches, in no order, except that those with one ordering key leave one after
//!   another, in the log's order (`relay/window.rs`).
//! - A topic's cursor moves only over messages that were accepted or have a case, so a crash in
//!   between publishes some of them again under the same ids, and never leaves one out. What was
//!   accepted beyond one that does not leave is remembered and not published again.
//! - A message that the sidecar refuses for good becomes a case. Anything else is tried again for
//!   ever, under a bounded backoff.
//!
//! Each process publishes its own logs, so the bell that a commit rings is in this process too;
//! behind it is a look every second, which also finds what was adopted and what has become due.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::Consumer;
use crate::outcome::Code;
use crate::store::{OutboxLook, Outgoing, StoreError, Topic};

mod topic;
mod window;

use topic::Shared;

/// How long the loop sleeps at most when nothing rings.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);
/// The least time between two looks.
const LOOK_GAP: Duration = Duration::from_millis(20);
/// Topics published at a time; further ones wait for a task to end.
const TOPICS_MAX: usize = 1024;
/// Calls out at a time, over all topics. A topic in trouble has one of them at most.
const CALLS_MAX: usize = 128;
/// Delayed messages moved into the log in one transaction.
const MOVED_MAX: u32 = 200;
/// A publish that did not end in time.
pub(crate) const TIMED_OUT: Code = Code::new("publish_timed_out");

/// Why a publish did not succeed.
#[derive(Clone, Debug)]
pub(crate) enum PublishError {
    /// This message will never be accepted.
    Refused(Code),
    /// Not now.
    Failed(Code),
}

/// Hands messages of one topic to the sidecar: all of them, or nobody knows which.
pub(crate) type Publish =
    Box<dyn Fn(Vec<Outgoing>) -> BoxFuture<'static, Result<(), PublishError>> + Send + Sync>;

/// Runs until `stop`; what is out is then waited for, for a moment.
pub(crate) async fn run(
    consumer: Arc<Consumer>,
    name: Arc<str>,
    publish: Publish,
    stop: CancellationToken,
) {
    let calls = Semaphore::new(CALLS_MAX);
    let shared = Arc::new(Shared { consumer, name, publish, calls, stop: stop.clone() });
    let consumer = &shared.consumer;
    let mut topics = Topics { running: HashMap::new(), tasks: JoinSet::new() };
    while !stop.is_cancelled() {
        let looked_at = Instant::now();
        let pause = match look(&shared, &mut topics).await {
            Ok(pause) => pause,
            Err(error) => {
                consumer.store_away(&error);
                LOOK_UP_EVERY
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = consumer.relay_wake.notified() => {}
            Some(_) = topics.tasks.join_next() => {}
            () = tokio::time::sleep(pause) => {}
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep_until(looked_at + LOOK_GAP) => {}
        }
    }
    while topics.tasks.join_next().await.is_some() {}
}

/// The topics that are being published.
struct Topics {
    /// With the number of the last message that each knows of.
    running: HashMap<Topic, watch::Sender<i64>>,
    tasks: JoinSet<()>,
}

/// Has every topic published where something waits, moves what is due into the log, and says how
/// long there is nothing more to do.
async fn look(shared: &Arc<Shared>, topics: &mut Topics) -> Result<Duration, StoreError> {
    let store = &shared.consumer.store;
    let OutboxLook { waiting, next_due } = store.outbox_look().await?;
    topics.running.retain(|_, newest| !newest.is_closed());
    for waiting in waiting {
        if let Some(known) = topics.running.get(&waiting.topic) {
            known.send_if_modified(|newest| {
                let is_more = waiting.newest > *newest;
                *newest = waiting.newest.max(*newest);
                is_more
            });
        } else if topics.running.len() < TOPICS_MAX {
            let (newest, known) = watch::channel(waiting.newest);
            topics.running.insert(waiting.topic.clone(), newest);
            topics.tasks.spawn(topic::run(Arc::clone(shared), waiting, known));
        }
    }
    let until_due = next_due.map(|due| due.since(store.now()));
    match until_due {
        Some(Duration::ZERO) => {
            // None is moved while another process is about it.
            let moved = store.outbox_move_due(MOVED_MAX).await?;
            Ok(if moved > 0 { Duration::ZERO } else { LOOK_GAP * 5 })
        }
        Some(until_due) => Ok(until_due.min(LOOK_UP_EVERY)),
        None => Ok(LOOK_UP_EVERY),
    }
}

#[cfg(test)]
mod tests;
