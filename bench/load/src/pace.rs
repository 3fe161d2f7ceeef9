//! How calls follow one another: a closed loop keeps a number of calls in flight; an open loop
//! sends at a fixed rate whatever the answers do, and counts a call's time from when it was due, so
//! that a consumer which stalls cannot hide it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use load::event::Stream;

use crate::call::{Caller, Lines, Tally};
use crate::frame::Frames;

/// Calls an open loop may have in flight; beyond it the next call waits, and its time runs.
const OPEN_IN_FLIGHT_MAX: usize = 4096;

/// What is sent, and until when.
pub struct Plan {
    /// The events.
    pub stream: Stream,
    /// Their requests.
    pub frames: Arc<Frames>,
    /// No call begins after this.
    pub until: Instant,
    /// At most so many events.
    pub count: u64,
    /// Events in one call; 1 is a single delivery.
    pub bulk: u64,
}

/// Keeps `in_flight` calls going; tells how many events were sent.
pub async fn closed(plan: Plan, lines: &Lines, tally: &Arc<Tally>, in_flight: usize) -> u64 {
    let plan = Arc::new(plan);
    let next = Arc::new(AtomicU64::new(0));
    let mut loops = JoinSet::new();
    for at in 0..in_flight {
        let mut caller = lines.caller(at, &plan.frames, tally);
        let (plan, next) = (Arc::clone(&plan), Arc::clone(&next));
        loops.spawn(async move {
            while Instant::now() < plan.until {
                let first = next.fetch_add(plan.bulk, Relaxed);
                if first >= plan.count {
                    break;
                }
                call_once(&plan, &mut caller, first).await;
            }
        });
    }
    while loops.join_next().await.is_some() {}
    next.load(Relaxed).min(plan.count)
}

async fn call_once(plan: &Plan, caller: &mut Caller, first: u64) {
    let due = Instant::now();
    if plan.bulk == 1 {
        caller.deliver(first, due).await;
        if let Some(older) = plan.stream.duplicate_after(first) {
            caller.deliver_again(older).await;
        }
    } else {
        let events: Vec<u64> = (first..(first + plan.bulk).min(plan.count)).collect();
        caller.deliver_bulk(&events, due).await;
    }
}

/// Sends `per_sec` events a second, singly; tells how many were sent.
pub async fn open(plan: Plan, lines: &Lines, tally: &Arc<Tally>, per_sec: f64) -> u64 {
    let began = Instant::now();
    let room = Arc::new(Semaphore::new(OPEN_IN_FLIGHT_MAX));
    let mut calls = JoinSet::new();
    let mut n = 0;
    while n < plan.count {
        let due = began + Duration::from_secs_f64(n as f64 / per_sec);
        if due >= plan.until {
            break;
        }
        tokio::time::sleep_until(due.into()).await;
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { break };
        let at = usize::try_from(n).unwrap_or_default();
        let mut caller = lines.caller(at, &plan.frames, tally);
        calls.spawn(async move {
            caller.deliver(n, due).await;
            drop(permit);
        });
        while calls.try_join_next().is_some() {}
        n += 1;
    }
    while calls.join_next().await.is_some() {}
    n
}
