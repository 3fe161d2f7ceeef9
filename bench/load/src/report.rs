//! What a run says, one JSON object a line on standard output. The orchestrator reads the CPU
//! clocks of all processes when the first two arrive.

use serde::{Deserialize, Serialize};

/// A line of the generator's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "at", rename_all = "snake_case")]
pub enum Line {
    /// The warm-up is over: what follows counts.
    Measuring,
    /// What follows counts no more.
    Measured(Measured),
    /// All calls are answered.
    Done(Done),
}

/// What happened between [`Line::Measuring`] and [`Line::Measured`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Events that got their final answer.
    pub events: u64,
    /// Length in seconds.
    pub secs: f64,
}

/// A whole run, the warm-up included; latencies of the measured part only.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Different events sent: the first `sent` of the stream.
    pub sent: u64,
    /// Duplicates sent on purpose, beside `sent`.
    pub duplicates: u64,
    /// Calls that had to be repeated because the answer was RETRY or an error.
    pub repeats: u64,
    /// Events answered DROP.
    pub dropped: u64,
    /// Events without an answer that settles them, after all repeats.
    pub unsettled: u64,
    /// Microseconds from when a call was due to its answer: median.
    pub p50_us: u64,
    /// The same, 99th percentile.
    pub p99_us: u64,
    /// The same, 99.9th percentile.
    pub p999_us: u64,
    /// The same, maximum.
    pub max_us: u64,
    /// One of the errors seen, if any.
    pub error: Option<String>,
}
