//! One delivery, repeated until it is settled as the sidecar would repeat it, and what is counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dapr::dapr::proto::runtime::v1 as api;
use dapr::dapr::proto::runtime::v1::topic_event_response::TopicEventResponseStatus;
use hdrhistogram::Histogram;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use load::report::Done;

use crate::frame::{Frames, Ready};

const SINGLE: &str = "/dapr.proto.runtime.v1.AppCallback/OnTopicEvent";
const BULK: &str = "/dapr.proto.runtime.v1.AppCallback/OnBulkTopicEvent";
/// How often an event is tried again, and how long after an answer that does not settle it.
const REPEATS_MAX: u32 = 50;
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// Connections to the consumer, used in turn.
pub struct Lines {
    channels: Vec<Channel>,
}

impl Lines {
    /// Connects; daprd too keeps one connection to its app until that has no streams left.
    pub async fn open(target: &str, count: usize) -> anyhow::Result<Self> {
        let mut channels = Vec::new();
        for _ in 0..count.max(1) {
            let endpoint = Endpoint::from_shared(target.to_owned())?.tcp_nodelay(true);
            let endpoint = endpoint.initial_connection_window_size(4 << 20);
            channels.push(endpoint.connect().await.with_context(|| format!("no one at {target}"))?);
        }
        Ok(Self { channels })
    }

    /// A caller on the connection whose turn `n` is.
    pub fn caller(&self, n: usize, frames: &Arc<Frames>, tally: &Arc<Tally>) -> Caller {
        let channel = self.channels[n % self.channels.len()].clone();
        Caller { grpc: Grpc::new(channel), frames: Arc::clone(frames), tally: Arc::clone(tally) }
    }
}

/// What is counted over all callers. Latencies and events only between `from` and `until`.
pub struct Tally {
    from: Instant,
    until: Instant,
    /// Final answers in the measured part.
    pub events: AtomicU64,
    duplicates: AtomicU64,
    repeats: AtomicU64,
    dropped: AtomicU64,
    unsettled: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
    error: Mutex<Option<String>>,
}

impl Tally {
    /// Counts what happens in the measured part.
    pub fn new(from: Instant, until: Instant) -> anyhow::Result<Self> {
        Ok(Self {
            from,
            until,
            events: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            repeats: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
            // Up to ten minutes in microseconds, three digits.
            latencies: Mutex::new(Histogram::new_with_bounds(1, 600_000_000, 3)?),
            error: Mutex::new(None),
        })
    }

    fn answered(&self, due: Instant, events: u64) {
        let now = Instant::now();
        if now >= self.from && now < self.until {
            self.events.fetch_add(events, Relaxed);
            let micros = u64::try_from((now - due).as_micros()).unwrap_or(u64::MAX);
            self.latencies.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(micros);
        }
    }

    fn failed(&self, status: &Status) {
        let mut error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        error.get_or_insert_with(|| format!("{:?}: {}", status.code(), status.message()));
    }

    /// The totals, when the first `sent` events of the stream were sent.
    pub fn done(&self, sent: u64) -> Done {
        let latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        Done {
            sent,
            duplicates: self.duplicates.load(Relaxed),
            repeats: self.repeats.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            unsettled: self.unsettled.load(Relaxed),
            p50_us: latencies.value_at_quantile(0.5),
            p99_us: latencies.value_at_quantile(0.99),
            p999_us: latencies.value_at_quantile(0.999),
            max_us: latencies.max(),
            error: self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Makes one call at a time.
#[derive(Clone)]
pub struct Caller {
    grpc: Grpc<Channel>,
    frames: Arc<Frames>,
    tally: Arc<Tally>,
}

enum Settled {
    Success,
    Drop,
    Not,
}

impl Caller {
    /// Delivers event `n`, due at `due`, until it is settled.
    pub async fn deliver(&mut self, n: u64, due: Instant) {
        let frame = self.frames.one(n);
        for _ in 0..=REPEATS_MAX {
            let answer = self.call::<api::TopicEventResponse>(frame.clone(), SINGLE).await;
            match self.settled(answer.map(|answer| answer.status)) {
                Settled::Success => return self.tally.answered(due, 1),
                Settled::Drop => {
                    self.tally.dropped.fetch_add(1, Relaxed);
                    return self.tally.answered(due, 1);
                }
                Settled::Not => {}
            }
            self.tally.repeats.fetch_add(1, Relaxed);
            tokio::time::sleep(REPEAT_AFTER).await;
        }
        self.tally.unsettled.fetch_add(1, Relaxed);
    }

    /// Delivers event `n` once more.
    pub async fn deliver_again(&mut self, n: u64) {
        self.tally.duplicates.fetch_add(1, Relaxed);
        self.deliver(n, Instant::now()).await;
    }

    /// Delivers these events in bulk; those that are not settled again, alone, as daprd does.
    pub async fn deliver_bulk(&mut self, events: &[u64], due: Instant) {
        let mut left: Vec<u64> = events.to_vec();
        for _ in 0..=REPEATS_MAX {
            let frame = self.frames.many(&left);
            let answer = self.call::<api::TopicEventBulkResponse>(frame, BULK).await;
            let before = left.len();
            match answer {
                Ok(answer) => {
                    for entry in answer.statuses {
                        let n = entry.entry_id.parse().unwrap_or(u64::MAX);
                        if !matches!(self.settled(Ok(entry.status)), Settled::Not) {
                            left.retain(|other| *other != n);
                        }
                    }
                }
                Err(status) => self.tally.failed(&status),
            }
            self.tally.answered(due, (before - left.len()) as u64);
            if left.is_empty() {
                return;
            }
            self.tally.repeats.fetch_add(left.len() as u64, Relaxed);
            tokio::time::sleep(REPEAT_AFTER).await;
        }
        self.tally.unsettled.fetch_add(left.len() as u64, Relaxed);
    }

    fn settled(&self, status: Result<i32, Status>) -> Settled {
        match status.map(TopicEventResponseStatus::try_from) {
            Ok(Ok(TopicEventResponseStatus::Success)) => Settled::Success,
            Ok(Ok(TopicEventResponseStatus::Drop)) => Settled::Drop,
            Ok(_) => Settled::Not,
            Err(status) => {
                self.tally.failed(&status);
                Settled::Not
            }
        }
    }

    async fn call<A>(&mut self, frame: bytes::Bytes, path: &'static str) -> Result<A, Status>
    where
        A: prost::Message + Default + Send + 'static,
    {
        let ready = self.grpc.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        let answer = self.grpc.unary(Request::new(frame), path, Ready::<A>::default()).await;
        answer.map(tonic::Response::into_inner)
    }
}
