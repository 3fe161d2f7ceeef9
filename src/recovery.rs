//! Automatic recovery: runs what is due, as soon as it is due.
//!
//! A failure's arrival puts a due time into the store and rings `recovery_wake`; this loop sleeps
//! until the earliest due time or the bell. It looks up at least once a second for what another
//! process asked for (a redrive by the command line), which no bell here can announce.
//!
//! **Invariants**
//! - At most `concurrency` runs at a time, below live traffic.
//! - Claims come from the store, which spends the cap with them; this loop decides nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::consumer::Consumer;
use crate::outcome::reason;
use crate::store::{Claim, StoreError, Written};

/// How long the loop sleeps at most: the delay of a redrive that another process asks for.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);
/// The wait when all that is due is in the hands of other replicas.
const OTHERS_ARE_AT_IT: Duration = Duration::from_millis(200);
/// Guard times and leases moved on in one transaction.
const SWEEP_MAX: u32 = 256;

/// Runs until `stop`, then starts nothing more; runs already claimed end in `runs`.
pub(crate) async fn run(
    consumer: Arc<Consumer>,
    name: Arc<str>,
    concurrency: usize,
    runs: TaskTracker,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(concurrency));
    while !stop.is_cancelled() {
        let pause = match start_due(&consumer, &name, &slots, concurrency, &runs, &stop).await {
            Ok(pause) => pause,
            Err(error) => {
                consumer.store_away(&error);
                LOOK_UP_EVERY
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = consumer.recovery_wake.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Claims and starts what is due, and says how long there is nothing more to do.
async fn start_due(
    consumer: &Arc<Consumer>,
    name: &Arc<str>,
    slots: &Arc<Semaphore>,
    concurrency: usize,
    runs: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Duration, StoreError> {
    if !consumer.store.is_healthy() {
        // Nobody else writes while the sidecar sees us unhealthy, so this is what heals.
        consumer.store.probe().await?;
        consumer.observer.store_health(true);
    }
    loop {
        let now = consumer.store.now();
        match consumer.store.next_due().await? {
            Some(due) if due <= now => {}
            Some(due) => return Ok(due.since(now).min(LOOK_UP_EVERY)),
            None => return Ok(LOOK_UP_EVERY),
        }
        let moved = consumer.store.time_passed(SWEEP_MAX).await?;
        tell(consumer, &moved);
        let free = free_slots(consumer, slots, concurrency);
        if free == 0 || stop.is_cancelled() {
            // A run that ends rings the bell.
            return Ok(LOOK_UP_EVERY);
        }
        let (claims, other) = consumer.store.claim_due(free).await?;
        tell(consumer, &other);
        if claims.is_empty() && other.is_empty() && moved.is_empty() {
            return Ok(OTHERS_ARE_AT_IT);
        }
        for claim in claims {
            if stop.is_cancelled() {
                consumer.give_back(claim, &reason::DRAINING).await;
            } else {
                start(consumer, name, slots, runs, claim).await;
            }
        }
    }
}

/// How many runs may start now: one at a time while the consumer is cautious.
fn free_slots(consumer: &Consumer, slots: &Semaphore, concurrency: usize) -> u32 {
    let free = slots.available_permits();
    let allowed = if consumer.is_cautious() { usize::from(free == concurrency) } else { free };
    u32::try_from(allowed).unwrap_or(u32::MAX)
}

async fn start(
    consumer: &Arc<Consumer>,
    name: &Arc<str>,
    slots: &Arc<Semaphore>,
    runs: &TaskTracker,
    claim: Claim,
) {
    // Never closed, and no more was claimed than was free.
    let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return };
    let (consumer, name) = (Arc::clone(consumer), Arc::clone(name));
    runs.spawn(async move {
        consumer.rerun(claim, &name).await;
        drop(slot);
        consumer.recovery_wake.notify_one();
    });
}

/// The poison log for cases that time opened.
fn tell(consumer: &Consumer, written: &[Written]) {
    for written in written {
        if let Written::Quarantined(case) = written {
            consumer.quarantined(case);
        }
    }
}
