//! A run: group after group, round after round, with what is left to do told before each cell.

use anyhow::ensure;

use crate::Cli;
use crate::cell::{self, Lengths};
use crate::group::Group;
use crate::machine::Machine;
use crate::place::Place;
use crate::plan::Progress;
use crate::record::{Header, Record};
use crate::report;
use crate::results::Results;

/// Seconds that are measured in a cell, when nothing else is said.
pub const SECS: f64 = 2.5;

/// How long cells last, as the command line says.
pub fn lengths(cli: &Cli) -> Lengths {
    if cli.smoke {
        return Lengths {
            warm_up_secs: 0.2,
            secs: 0.6,
            backlog_max: 2_000,
            count_max: 2_000,
            preload_max: 20_000,
            stolen_percent_max: 100.0,
        };
    }
    Lengths {
        warm_up_secs: cli.warm_up_secs,
        secs: cli.secs,
        backlog_max: u64::MAX,
        count_max: u64::MAX,
        preload_max: u64::MAX,
        stolen_percent_max: cli.stolen_percent_max,
    }
}

/// Runs the groups and keeps what comes out; tells how many cells were void.
pub async fn run(
    place: &Place,
    cli: &Cli,
    groups: &[Group],
    results: &Results,
) -> anyhow::Result<u32> {
    let lengths = lengths(cli);
    let mut progress = Progress::new(groups, &lengths);
    ensure!(progress.cells() > 0, "nothing is called so: see --list");
    let machine = Machine::look(place);
    let mut void = 0;
    for group in groups {
        let header = header(place, cli, group, &machine);
        let records = run_group(place, cli, group, &header, results, &mut progress).await?;
        void += records.iter().filter(|record| record.void.is_some()).count();
        println!("{}", report::render(&header, &records));
        place.forget_preloaded();
        if !cli.smoke {
            results.write_page()?;
        }
    }
    let void = u32::try_from(void)?;
    println!("{} cells, {void} void, {:.0} s", progress.cells(), progress.elapsed_secs());
    Ok(void)
}

async fn run_group(
    place: &Place,
    cli: &Cli,
    group: &Group,
    header: &Header,
    results: &Results,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Record>> {
    let lengths = lengths(cli);
    // An interrupted run must not replace more by less.
    let there_before = results.has(&group.name);
    let mut records = Vec::new();
    for round in 0..group.rounds() {
        for contestant in group.order(round) {
            progress.tell(group, contestant, round);
            let mut record = cell::run(place, group, contestant, round, lengths).await;
            if let Some(reason) = &record.void
                && !cli.smoke
            {
                eprintln!("void: {} {}: {reason}; once more", record.group, record.label);
                records.push(record);
                record = cell::run(place, group, contestant, round, lengths).await;
            }
            if let Some(reason) = &record.void {
                eprintln!("void: {} {}: {reason}", record.group, record.label);
            } else if let Some(figures) = &record.figures {
                eprintln!("    {:.0} a second", figures.per_s);
            }
            records.push(record);
        }
        let last = round + 1 == group.rounds();
        if !cli.smoke && (last || !there_before) {
            results.keep(header, &records)?;
        }
    }
    Ok(records)
}

fn header(place: &Place, cli: &Cli, group: &Group, machine: &Machine) -> Header {
    let mut command = format!("make bench ARGS='--only {}", group.name);
    if let Some(rounds) = cli.rounds {
        command.push_str(&format!(" --rounds {rounds}"));
    }
    if (cli.secs - SECS).abs() > f64::EPSILON {
        command.push_str(&format!(" --secs {}", cli.secs));
    }
    command.push('\'');
    Header {
        group: group.name.clone(),
        about: group.about.clone(),
        command,
        commit: commit(place),
        secs: lengths(cli).secs,
        machine: machine.clone(),
    }
}

/// The commit that is measured; `-dirty` when the tree has changes.
fn commit(place: &Place) -> String {
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        let output = command.arg("-C").arg(&place.bench).args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let mut commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_default();
    // Results are what a run changes; they do not make it another program.
    let changes = ["status", "--porcelain", "--", "..", ":!results", ":!RESULTS.md"];
    if git(&changes).is_ok_and(|changes| !changes.is_empty()) {
        commit.push_str("-dirty");
    }
    commit
}
