//! The gate of CI: CPU time per event, consumer and database together, divided by the Go peer's in
//! the same round. A ratio within one run depends little on the machine; seconds would.

use std::process::ExitCode;

use anyhow::{Context as _, ensure};

use crate::cell::{self, Lengths};
use crate::group::{self, Contestant, Group};
use crate::peer::Peer;
use crate::place::Place;
use crate::record::{Figures, Record};
use crate::report::{middle, ratios};
use crate::stats::{median, range};

const GROUP: &str = "direct.pg.0.64";
const ROUNDS: u32 = 5;
const LIMIT_FILE: &str = "gate.limit";

fn lengths() -> Lengths {
    Lengths {
        warm_up_secs: 0.7,
        secs: 2.0,
        backlog_max: 0,
        count_max: 0,
        preload_max: 0,
        // It costs time, not CPU time.
        stolen_percent_max: 100.0,
    }
}

/// Measures, and fails when the median is above the limit.
pub async fn run(place: &Place) -> anyhow::Result<ExitCode> {
    let path = place.bench.join(LIMIT_FILE);
    let limit = limit_of(&std::fs::read_to_string(&path).with_context(|| LIMIT_FILE)?)?;
    let group = group()?;
    let mut records = Vec::new();
    for round in 0..ROUNDS {
        for contestant in group.order(round) {
            let record = cell::run(place, &group, contestant, round, lengths()).await;
            if let Some(reason) = &record.void {
                eprintln!("gate: a cell of {} is void: {reason}", record.label);
            }
            records.push(record);
        }
    }
    judge(&records, limit)
}

/// The headline's group, with the pair alone.
fn group() -> anyhow::Result<Group> {
    let all = group::all().into_iter();
    let mut group = all.filter(|group| group.name == GROUP).next().context("no such group")?;
    group.contestants.retain(|one: &Contestant| {
        one.label == Peer::GoTx.name() || one.label == Peer::Backstop.name()
    });
    for contestant in &mut group.contestants {
        contestant.rounds = ROUNDS;
    }
    Ok(group)
}

/// The number in the file, which is the line that is not a comment.
fn limit_of(text: &str) -> anyhow::Result<f64> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let limit: f64 = lines.next().context("no limit in the file")?.trim().parse()?;
    ensure!(lines.next().is_none() && limit > 0.0, "one positive number is wanted");
    Ok(limit)
}

fn judge(records: &[Record], limit: f64) -> anyhow::Result<ExitCode> {
    let (ours, theirs) = (Peer::Backstop.name(), Peer::GoTx.name());
    let values = ratios(records, ours, theirs, Figures::app_and_database_us);
    let (Some(reached), Some((low, high))) = (median(&values), range(&values)) else {
        eprintln!("gate: FAILED, every round has a void cell; the reasons are above");
        return Ok(ExitCode::FAILURE);
    };
    let micros = |label| middle(records, label, Figures::app_and_database_us).unwrap_or_default();
    println!(
        "gate: {:.1} us of CPU an event (consumer and PostgreSQL) against {:.1} of the Go peer: \
         ratio {reached:.3} ({low:.3} to {high:.3}, {} of {ROUNDS} rounds), limit {limit}",
        micros(ours),
        micros(theirs),
        values.len(),
    );
    let void = records.iter().filter(|record| record.void.is_some()).count();
    if values.len() < usize::try_from(ROUNDS)? / 2 + 1 {
        eprintln!("gate: FAILED, {void} cells are void; the reasons are above");
        return Ok(ExitCode::FAILURE);
    }
    if reached > limit {
        eprintln!(
            "gate: FAILED. An event costs more CPU than it may. `make bench-gate` shows it again; \
             `make bench ARGS='--only {GROUP}'` measures with everything optimised. If the price is \
             meant, raise bench/{LIMIT_FILE} and say there why."
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(ours: f64, theirs: f64) -> Vec<Record> {
        let one = |peer: Peer, round, micros| Record {
            group: GROUP.to_owned(),
            label: peer.name().to_owned(),
            round,
            figures: Some(Figures {
                cpu_us: [(crate::cpu::Part::App, micros)].into(),
                ..Figures::default()
            }),
            void: None,
        };
        let both = |round| [one(Peer::GoTx, round, theirs), one(Peer::Backstop, round, ours)];
        (0..ROUNDS).flat_map(both).collect()
    }

    #[test]
    fn the_gate_fails_above_the_limit_and_when_nothing_was_measured() {
        let judged = |records: &[Record]| format!("{:?}", judge(records, 0.5).unwrap());
        let (passed, failed) = (ExitCode::SUCCESS, ExitCode::FAILURE);
        assert_eq!(judged(&records(40.0, 100.0)), format!("{passed:?}"));
        assert_eq!(judged(&records(60.0, 100.0)), format!("{failed:?}"));
        let mut most_void = records(40.0, 100.0);
        most_void.truncate(4);
        assert_eq!(judged(&most_void), format!("{failed:?}"));
        assert_eq!(judged(&[]), format!("{failed:?}"));
    }

    #[test]
    fn the_limit_is_the_one_line_that_is_no_comment() {
        assert!((limit_of("# why\n\n0.25\n").unwrap() - 0.25).abs() < 1e-9);
        assert!(limit_of("# why\n").is_err());
        assert!(limit_of("0.2\n0.3\n").is_err());
    }
}
