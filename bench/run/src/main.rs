//! Runs the benchmark. One cell after another: each starts its programs afresh, is measured and
//! audited, and leaves one line in `bench/results/`; `bench/RESULTS.md` is made from those lines.

mod aims;
mod audit;
mod cell;
mod cpu;
mod daprd;
mod database;
mod gate;
mod generator;
mod group;
mod machine;
mod peer;
mod place;
mod plan;
mod preload;
mod process;
mod record;
mod report;
mod results;
mod run;
mod stats;
mod stub;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use group::Group;
use place::Place;
use results::Results;

#[derive(Parser)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
#[command(
    about = "Measures Backstop and its peers, audits every cell, and writes down what came out",
    after_help = "Peers of a group take turns, the order turned round each round (A B B A), and each is\n\
                  divided by the group's first in the same round. What is printed are medians over\n\
                  rounds with the smallest and largest. A cell whose audit fails is void and says why.\n\n\
                  make bench                              the default groups, about half an hour\n\
                  make bench-smoke                        every cell once and short; nothing is kept\n\
                  make bench-gate                         CPU per event against the Go peer, for CI\n\
                  make bench ARGS='--list'                which groups there are, and the time each takes\n\
                  make bench ARGS='--only direct.pg'      every group whose name begins so\n\
                  make bench ARGS='--only growth --rounds 3 --secs 10'\n\
                  make bench ARGS='--report'              only RESULTS.md, from what is in results/"
)]
struct Cli {
    /// List the groups with the time they take, and end
    #[arg(long)]
    list: bool,
    /// Only groups whose name begins with one of these, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these contestants, by their label; ratios need the first
    #[arg(long, value_delimiter = ';')]
    who: Vec<String>,
    /// Every group, not only the default ones
    #[arg(long)]
    all: bool,
    /// Every cell once and as short as it can be; results are printed and not kept
    #[arg(long)]
    smoke: bool,
    /// Rounds for everybody, instead of each contestant's own number
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds measured in each cell
    #[arg(long, default_value_t = run::SECS)]
    secs: f64,
    /// Seconds of each cell before they are measured
    #[arg(long, default_value_t = 0.8)]
    warm_up_secs: f64,
    /// A cell is void when the hypervisor took more than this share of the CPU for other machines
    #[arg(long, default_value_t = 10.0)]
    stolen_percent_max: f64,
    /// Make RESULTS.md from the results that are there, and end
    #[arg(long)]
    report: bool,
    /// Fail when CPU per event, divided by the Go peer's, is above the limit in bench/gate.limit
    #[arg(long)]
    gate: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let groups = chosen(&cli);
    if cli.list {
        plan::print(&groups, &run::lengths(&cli));
        return Ok(ExitCode::SUCCESS);
    }
    let mut place = Place::prepare()?;
    if cli.gate {
        // Built with the same profile, and without what the gate does not need.
        place.peers.push("gate");
    }
    // Dropping the work ends the programs it has started.
    let outcome = tokio::select! {
        outcome = work(&place, &cli, &groups) => outcome,
        () = asked_to_end() => Err(anyhow::anyhow!("interrupted; what was finished is kept")),
    };
    place.clear();
    outcome
}

async fn work(place: &Place, cli: &Cli, groups: &[Group]) -> anyhow::Result<ExitCode> {
    if cli.gate {
        return gate::run(place).await;
    }
    let results = Results::of(place);
    let void = if cli.report { 0 } else { run::run(place, cli, groups, &results).await? };
    if !cli.smoke {
        println!("written: {}", results.write_page()?.display());
    }
    Ok(if void == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn asked_to_end() {
    let wait = async |kind| match signal(kind) {
        Ok(mut signals) => drop(signals.recv().await),
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::terminate()) => {}
    }
}

/// The groups the command line asks for.
fn chosen(cli: &Cli) -> Vec<Group> {
    let mut groups = group::all();
    groups.retain(|group| match () {
        () if !cli.only.is_empty() => cli.only.iter().any(|name| group.name.starts_with(name)),
        () => group.default || cli.all || cli.list || cli.smoke,
    });
    for group in &mut groups {
        group.contestants.retain(|one| cli.who.is_empty() || cli.who.contains(&one.label));
        for contestant in &mut group.contestants {
            contestant.rounds = match cli.rounds {
                _ if cli.smoke => 1,
                Some(rounds) => rounds,
                None => contestant.rounds,
            };
        }
    }
    groups
}
