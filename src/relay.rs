//! Publishes the outbox: the only place from which anything is published.
//!
//! **Invariants**
//! - A topic's messages leave in the order of the log, one at a time; topics do not wait for one
//!   another.
//! - A topic's cursor moves after its messages were accepted, so a crash in between publishes
//!   them again under the same ids, and never leaves one out.
//! - A message the sidecar refuses for good becomes a case in the same transaction that moves the
//!   cursor past it. Anything else is tried again for ever, under a bounded backoff.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::consumer::Consumer;
use crate::failpoint::{Gap, reached};
use crate::outcome::Code;
use crate::store::{Outgoing, StoreError};

/// Messages of one topic between two moves of its cursor.
const BATCH_MAX: u32 = 100;
/// How long the loop sleeps at most when nothing rings.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);
/// The wait after a topic's publish failed.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(200), max: Duration::from_secs(15) };

/// Why a publish did not succeed.
#[derive(Clone, Debug)]
pub(crate) enum PublishError {
    /// This message will never be accepted.
    Refused(Code),
    /// Not now.
    Failed(Code),
}

#[derive(Clone, Copy)]
struct Pause {
    failures: u32,
    until: Instant,
}

/// Runs until `stop`; the batch under way is finished first.
pub(crate) async fn run<P, F>(
    consumer: Arc<Consumer>,
    name: Arc<str>,
    publish: P,
    stop: CancellationToken,
) where
    P: Fn(Outgoing) -> F + Send + Sync,
    F: Future<Output = Result<(), PublishError>> + Send,
{
    let mut pauses: HashMap<(String, String), Pause> = HashMap::new();
    while !stop.is_cancelled() {
        let now = Instant::now();
        let resting =
            |topic: &(String, String)| pauses.get(topic).is_some_and(|pause| pause.until > now);
        let pending = match consumer.store.outbox_pending(BATCH_MAX).await {
            Ok(pending) => pending,
            Err(error) => {
                consumer.store_away(&error);
                Vec::new()
            }
        };
        let mut batches: FuturesUnordered<_> = pending
            .into_iter()
            .filter_map(|batch| Some((topic_of(batch.first()?), batch)))
            .filter(|(topic, _)| !resting(topic))
            .map(|(topic, batch)| async {
                let result = publish_batch(&consumer, &name, &publish, batch).await;
                (topic, result)
            })
            .collect();
        let mut published_any = false;
        while let Some((topic, result)) = batches.next().await {
            match result {
                Ok(()) => {
                    published_any = true;
                    pauses.remove(&topic);
                }
                Err(failure) => {
                    if let Failure::Store(error) = &failure {
                        consumer.store_away(error);
                    }
                    let failures = pauses.get(&topic).map_or(0, |pause| pause.failures);
                    let wait = BACKOFF.delay(failures, 0);
                    let pause = Pause {
                        failures: failures.saturating_add(1),
                        until: Instant::now() + wait,
                    };
                    pauses.insert(topic, pause);
                }
            }
        }
        drop(batches);
        if published_any {
            continue;
        }
        let wake = pauses.values().map(|pause| pause.until).min();
        let until = wake
            .unwrap_or(now + LOOK_UP_EVERY)
            .min(now + LOOK_UP_EVERY)
            .max(now + Duration::from_millis(10));
        tokio::select! {
            () = stop.cancelled() => {}
            () = consumer.relay_wake.notified() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

enum Failure {
    Publish,
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Publishes one topic's next messages in order and moves its cursor once.
async fn publish_batch<P, F>(
    consumer: &Consumer,
    name: &Arc<str>,
    publish: &P,
    batch: Vec<Outgoing>,
) -> Result<(), Failure>
where
    P: Fn(Outgoing) -> F,
    F: Future<Output = Result<(), PublishError>>,
{
    let began = Instant::now();
    let (mut accepted, mut count): (Option<Outgoing>, u64) = (None, 0);
    let mut stopped_by = None;
    for message in batch {
        match publish(message.clone()).await {
            Ok(()) => {
                count += 1;
                accepted = Some(message);
            }
            Err(refusal) => {
                stopped_by = Some((message, refusal));
                break;
            }
        }
    }
    if let Some(last) = accepted {
        reached(Gap::Published);
        consumer.observer.messages_published(&last.topic, count, began.elapsed());
        consumer.store.outbox_published(last).await?;
    }
    match stopped_by {
        None => Ok(()),
        Some((message, PublishError::Failed(code))) => {
            consumer.observer.publish_failed(&message.topic, 1, &code, began.elapsed());
            Err(Failure::Publish)
        }
        Some((message, PublishError::Refused(code))) => {
            let topic = message.topic.clone();
            let case = consumer.store.outbox_refused(message, name.to_string()).await?;
            consumer.observer.publish_refused(&topic, &code, &case.exception_id);
            Ok(())
        }
    }
}

fn topic_of(message: &Outgoing) -> (String, String) {
    (message.pubsub.clone(), message.topic.clone())
}
