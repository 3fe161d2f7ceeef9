//! What a cell leaves behind: one JSON line in `bench/results/`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cpu::{Micros, Part};
use crate::machine::Machine;

/// Of which run a group's records are: the first line of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// The group.
    pub group: String,
    /// What it asks.
    pub about: String,
    /// The command that makes it again.
    pub command: String,
    /// The commit that was measured; `-dirty` when the tree had changes.
    pub commit: String,
    /// Length of the measured part in seconds.
    pub secs: f64,
    /// Where it was measured.
    pub machine: Machine,
}

/// One cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The group it belongs to.
    pub group: String,
    /// Who was measured.
    pub label: String,
    /// The round, from 0.
    pub round: u32,
    /// What came out; absent when the cell is void.
    pub figures: Option<Figures>,
    /// Why the cell is void.
    pub void: Option<String>,
}

/// What came out of a cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Events a second.
    pub per_s: f64,
    /// Microseconds from when a call was due to its answer, where calls were timed: median.
    pub p50_us: Option<u64>,
    /// The same, 99th percentile.
    pub p99_us: Option<u64>,
    /// CPU microseconds an event, by part.
    pub cpu_us: BTreeMap<Part, f64>,
    /// The most events a second that this cell's CPU, calls in flight and fsync delay would allow.
    pub bound_per_s: Option<f64>,
    /// Fsyncs for a thousand events.
    pub fsyncs_per_1000: Option<f64>,
    /// Peak resident memory of the consumer in MiB.
    pub resident_peak_mib: Option<f64>,
    /// Share of the machine's CPU that went to programs outside the cell, in per cent.
    pub others_percent: f64,
    /// Share that the hypervisor gave to other machines, in per cent.
    pub stolen_percent: f64,
    /// What only this kind of cell has, by name with its unit.
    pub more: BTreeMap<String, f64>,
}

/// Cores that all programs of a cell share.
fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

impl Figures {
    /// CPU microseconds an event of the consumer and its database.
    pub fn app_and_database_us(&self) -> Option<f64> {
        let of = |part| self.cpu_us.get(&part).copied();
        Some(of(Part::App)? + of(Part::Database).unwrap_or(0.0))
    }

    /// The share of the bound that was reached, in per cent.
    pub fn percent_of_bound(&self) -> Option<f64> {
        self.bound_per_s.map(|bound| self.per_s * 100.0 / bound)
    }

    /// Of `events` in `secs`, with this CPU time, `in_flight` events at once and this fsync delay.
    pub fn of(events: u64, secs: f64, cpu: &Micros, in_flight: u64, delay_us: u32) -> Self {
        let count = events.max(1) as f64;
        let outside = |part: &Part| matches!(part, Part::Others | Part::Stolen);
        let inside = cpu.iter().filter(|(part, _)| !outside(part));
        let cpu_us: BTreeMap<Part, f64> =
            inside.map(|(part, micros)| (*part, *micros as f64 / count)).collect();
        let percent =
            |part| cpu.get(&part).map_or(0.0, |micros| *micros as f64 / (secs * cores() * 1e4));
        let by_cpu = cores() * 1e6 / cpu_us.values().sum::<f64>().max(0.001);
        // No answer leaves before an fsync: all that is in flight can share one at best.
        let by_fsync = match delay_us {
            0 => f64::INFINITY,
            delay => in_flight as f64 * 1e6 / f64::from(delay),
        };
        Self {
            per_s: events as f64 / secs,
            cpu_us,
            bound_per_s: Some(by_cpu.min(by_fsync)),
            others_percent: percent(Part::Others),
            stolen_percent: percent(Part::Stolen),
            ..Self::default()
        }
    }
}
