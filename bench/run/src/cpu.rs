//! CPU time of whole families of processes, from the kernel's own counters: the one figure that a
//! busy machine does not distort.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

/// CPU microseconds by part.
pub type Micros = BTreeMap<Part, u64>;

/// Whose CPU time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The consumer; an embedded database is in it.
    App,
    /// All processes of PostgreSQL.
    Database,
    /// The sidecar.
    Daprd,
    /// Redis.
    Redis,
    /// The load generator.
    Load,
    /// Everything else on the machine, the orchestrator included.
    Others,
    /// Time the hypervisor gave to other machines.
    Stolen,
}

/// The processes of a cell, by part: the first of each family.
#[derive(Clone, Debug, Default)]
pub struct Families(pub Vec<(Part, u32)>);

impl Families {
    /// CPU time used until now by every family: the first process, its children, theirs, and those
    /// that have ended and been waited for.
    pub fn used(&self) -> Micros {
        let stats = all_stats();
        let mut used = Micros::new();
        for (part, first) in &self.0 {
            *used.entry(*part).or_default() += family(&stats, *first);
        }
        let (busy, stolen) = machine().unwrap_or_default();
        let ours: u64 = used.values().sum();
        // Not clamped at nought: only differences are used, and the families may hold older time.
        used.insert(Part::Others, busy.wrapping_sub(ours));
        used.insert(Part::Stolen, stolen);
        used
    }
}

/// What was used between two readings.
pub fn between(before: &Micros, after: &Micros) -> Micros {
    let spent = |(part, end): (&Part, &u64)| {
        let spent = end.wrapping_sub(before.get(part).copied().unwrap_or_default());
        // Two readings a tick apart can make a small difference negative.
        (*part, if spent > u64::MAX / 2 { 0 } else { spent })
    };
    after.iter().map(spent).collect()
}

/// The largest resident size so far, in KiB.
pub fn resident_peak_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

struct Stat {
    parent: u32,
    micros: u64,
}

fn family(stats: &BTreeMap<u32, Stat>, first: u32) -> u64 {
    let own = stats.get(&first).map_or(0, |stat| stat.micros);
    let children = stats.iter().filter(|(_, stat)| stat.parent == first);
    own + children.map(|(child, _)| family(stats, *child)).sum::<u64>()
}

fn all_stats() -> BTreeMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            Some((pid, stat_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))
        })
        .collect()
}

/// Reads `/proc/PID/stat` (proc(5)): after the name come the state, the parent, and as 12th to 15th
/// field the user and system time, its own and that of its waited-for children, in ticks.
fn stat_of(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Stat { parent: fields.get(1)?.parse().ok()?, micros: micros(ticks) })
}

/// Busy and stolen time of the whole machine: the fields of `/proc/stat`'s first line are user,
/// nice, system, idle, waiting for I/O, interrupts, soft interrupts, stolen.
fn machine() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields = text.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    Some((micros(busy), micros(ticks.get(7).copied()?)))
}

fn micros(ticks: u64) -> u64 {
    ticks * 1_000_000 / rustix::param::clock_ticks_per_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_stat_line_are_added_up() {
        let line = "42 (a) b) S 7 1 1 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 5 6";
        let stat = stat_of(line).unwrap();
        assert_eq!(stat.parent, 7);
        assert_eq!(stat.micros, micros(100));
    }
}
