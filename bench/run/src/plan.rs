//! How long a run takes: told per group before it, and before each cell of it.

use std::time::Instant;

use crate::cell::Lengths;
use crate::database::Kind;
use crate::group::{Contestant, Group, Work};
use crate::peer::Peer;

/// Seconds to start and end the programs of a cell and to audit it; roughly, on two cores.
const AROUND_DIRECT: f64 = 1.5;
const AROUND_DAPRD: f64 = 3.5;
/// Rows a second that a dedup memory is filled with; once a group, then it is copied.
const PRELOADED_PER_S: f64 = 250_000.0;
/// Rows a second that such a memory is copied with.
const COPIED_PER_S: f64 = 5_000_000.0;

/// What a cell takes, in seconds; roughly, to plan by.
fn estimate(group: &Group, contestant: &Contestant, lengths: &Lengths) -> f64 {
    let slow = group.store == Kind::Sqlite && group.delay_us > 0;
    let measured = lengths.warm_up_secs + lengths.secs;
    let per_s = per_s(contestant.peer, slow);
    let events = |count: u64| count.min(lengths.count_max) as f64;
    match &contestant.work {
        Work::Direct(direct) => {
            let rows = direct.preload.min(lengths.preload_max) as f64;
            let rounds = f64::from(contestant.rounds.max(1));
            let preload = rows / PRELOADED_PER_S / rounds + rows / COPIED_PER_S;
            AROUND_DIRECT + measured + preload
        }
        Work::Drain(drain) => AROUND_DAPRD + drain.backlog.min(lengths.backlog_max) as f64 / per_s,
        Work::Parked(parked) => AROUND_DIRECT + 5.0 + f64::from(parked.park_ms) / 1e3,
        Work::Recovery { count } => AROUND_DIRECT + 3.0 + events(*count) / 1_500.0,
        Work::Relay { count } => {
            let relayed = if contestant.peer == Peer::Backstop { 20_000.0 } else { 6_000.0 };
            AROUND_DIRECT + events(*count) / 20_000.0 + events(*count) / relayed
        }
        Work::Outbox { count } => {
            let relayed = if contestant.peer == Peer::Backstop { 5_000.0 } else { 50.0 };
            AROUND_DAPRD + 8.0 + events(*count) / relayed
        }
    }
}

/// Events a second through a sidecar.
fn per_s(peer: Peer, slow: bool) -> f64 {
    match peer {
        Peer::Backstop | Peer::Nothing => 8_000.0,
        Peer::NodePg => 1_200.0,
        Peer::DaprOutbox => 50.0,
        Peer::GoTx | Peer::GoCte | Peer::RustSqlx if slow => 700.0,
        Peer::GoTx | Peer::GoCte | Peer::RustSqlx => 4_000.0,
    }
}

fn estimate_group(group: &Group, lengths: &Lengths) -> f64 {
    let of = |one: &Contestant| f64::from(one.rounds) * estimate(group, one, lengths);
    group.contestants.iter().map(of).sum()
}

/// Prints the groups with the time that each takes.
pub fn print(groups: &[Group], lengths: &Lengths) {
    let (mut total, mut cells) = (0.0, 0);
    for group in groups {
        let labels: Vec<String> =
            group.contestants.iter().map(|one| format!("{} x{}", one.label, one.rounds)).collect();
        let secs = estimate_group(group, lengths);
        if group.default {
            total += secs;
            cells += group.contestants.iter().map(|one| one.rounds).sum::<u32>();
        }
        let mark = if group.default { "*" } else { " " };
        println!("{mark} {:<18} {secs:>4.0} s  {}", group.name, group.about);
        println!("{:28} [{}]", "", labels.join("; "));
    }
    println!(
        "\n* runs when nothing is chosen: {cells} cells, about {:.0} min. All others: --all, or \
         --only NAME. xN is the number of rounds.",
        total / 60.0
    );
}

/// What is done and what is left of a run.
pub struct Progress {
    began: Instant,
    cells: u32,
    cells_done: u32,
    planned_secs: f64,
    planned_done: f64,
    lengths: Lengths,
}

impl Progress {
    /// Of these groups.
    pub fn new(groups: &[Group], lengths: &Lengths) -> Self {
        let contestants = || groups.iter().flat_map(|group| &group.contestants);
        Self {
            began: Instant::now(),
            cells: contestants().map(|one| one.rounds).sum(),
            cells_done: 0,
            planned_secs: groups.iter().map(|group| estimate_group(group, lengths)).sum(),
            planned_done: 0.0,
            lengths: *lengths,
        }
    }

    /// How many cells there are in all.
    pub fn cells(&self) -> u32 {
        self.cells
    }

    /// How long the run has taken.
    pub fn elapsed_secs(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Prints which cell begins, and about how long the whole run will still take.
    pub fn tell(&mut self, group: &Group, contestant: &Contestant, round: u32) {
        let left = self.planned_secs - self.planned_done;
        // The plan, corrected by how long what is done really took: the more is done, the more so.
        let so_far = self.elapsed_secs() / self.planned_done.max(1.0);
        let done = (self.planned_done / self.planned_secs.max(1.0)).min(1.0);
        let weight = (done * 5.0).min(1.0);
        let left = left * (1.0 - weight + weight * so_far);
        self.cells_done += 1;
        self.planned_done += estimate(group, contestant, &self.lengths);
        eprintln!(
            "[{}/{}, {:.1} min gone, {:.1} min left] {} {}, round {} of {}",
            self.cells_done,
            self.cells,
            self.elapsed_secs() / 60.0,
            left.max(0.0) / 60.0,
            group.name,
            contestant.label,
            round + 1,
            contestant.rounds,
        );
    }
}
