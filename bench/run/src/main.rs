//! Runs the benchmark. One cell after another: each starts its programs afresh, is measured and
//! audited, and leaves one line in `bench/results/`; `bench/RESULTS.md` is made from those lines.

mod audit;
mod cell;
mod cpu;
mod daprd;
mod database;
mod generator;
mod group;
mod peer;
mod place;
mod process;
mod record;
mod report;
mod stats;
mod stub;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use cell::Lengths;
use group::Group;
use place::Place;
use record::{Header, Record};

#[derive(Parser)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
#[command(
    about = "Measures Backstop and its peers, audits every cell, and writes down what came out",
    after_help = "Peers of a group take turns, the order turned round each round (A B B A), and each is\n\
                  divided by the group's first in the same round. What is printed are medians over\n\
                  rounds with the smallest and largest. A cell whose audit fails is void and says why.\n\n\
                  make bench                              the default groups, about half an hour\n\
                  make bench-smoke                        one short cell of everything, two minutes\n\
                  make bench ARGS='--list'                which groups there are\n\
                  make bench ARGS='--only direct.pg'      every group whose name begins so\n\
                  make bench ARGS='--only growth --rounds 3 --secs 10'\n\
                  make bench ARGS='--report'              only RESULTS.md, from what is in results/"
)]
struct Cli {
    /// List the groups and end
    #[arg(long)]
    list: bool,
    /// Only groups whose name begins with one of these, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these contestants, by their label; ratios need the first
    #[arg(long, value_delimiter = ',')]
    who: Vec<String>,
    /// Every group, not only the default ones
    #[arg(long)]
    all: bool,
    /// One short round of the smoke groups; results are printed and not kept
    #[arg(long)]
    smoke: bool,
    /// Rounds of each group
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds measured in each cell
    #[arg(long, default_value_t = 3.0)]
    secs: f64,
    /// Seconds of each cell before they are measured
    #[arg(long, default_value_t = 1.0)]
    warm_up_secs: f64,
    /// Events in the backlog of a cell through the sidecar
    #[arg(long, default_value_t = 20_000)]
    backlog: u64,
    /// A cell is void when the hypervisor took more than this share of the CPU for other machines
    #[arg(long, default_value_t = 10.0)]
    stolen_percent_max: f64,
    /// Make RESULTS.md from the results that are there, and end
    #[arg(long)]
    report: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let groups = chosen(&cli);
    if cli.list {
        for group in &groups {
            let labels: Vec<&str> =
                group.contestants.iter().map(|contestant| contestant.label.as_str()).collect();
            let mark = if group.default { "*" } else { " " };
            println!("{mark} {:<18} {} [{}]", group.name, group.about, labels.join(", "));
        }
        println!("\n* runs when nothing is chosen. All others: --all, or --only NAME.");
        return Ok(());
    }
    let place = Place::prepare()?;
    let outcome = if cli.report { Ok(()) } else { run(&place, &cli, &groups).await };
    place.clear();
    outcome?;
    if !cli.smoke {
        let results = place.bench.join("RESULTS.md");
        std::fs::write(&results, report::render_directory(&place.bench.join("results"))?)?;
        println!("written: {}", results.display());
    }
    Ok(())
}

/// The groups the command line asks for.
fn chosen(cli: &Cli) -> Vec<Group> {
    let mut groups = group::all();
    let unchosen = cli.only.is_empty() && !cli.all && !cli.list;
    groups.retain(|group| match () {
        () if !cli.only.is_empty() => cli.only.iter().any(|name| group.name.starts_with(name)),
        () if cli.smoke => group.smoke,
        () if unchosen => group.default,
        () => true,
    });
    for group in &mut groups {
        let wanted = |label: &String| cli.who.is_empty() || cli.who.contains(label);
        group.contestants.retain(|contestant| wanted(&contestant.label));
    }
    groups
}

fn lengths(cli: &Cli) -> Lengths {
    if cli.smoke {
        return Lengths {
            warm_up_secs: 0.3,
            secs: 1.0,
            backlog: 2_000,
            count_max: 2_000,
            stolen_percent_max: 100.0,
        };
    }
    Lengths {
        warm_up_secs: cli.warm_up_secs,
        secs: cli.secs,
        backlog: cli.backlog,
        count_max: u64::MAX,
        stolen_percent_max: cli.stolen_percent_max,
    }
}

async fn run(place: &Place, cli: &Cli, groups: &[Group]) -> anyhow::Result<()> {
    let rounds = if cli.smoke { 1 } else { cli.rounds };
    let cells: usize = groups.iter().map(|group| group.contestants.len()).sum();
    ensure!(cells > 0, "nothing is called so: see --list");
    let bar = ProgressBar::new(cells as u64 * u64::from(rounds)).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}, {eta} to go: {msg}")?,
    );
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    for group in groups {
        let header = header(place, cli, group);
        let mut records = Vec::new();
        for round in 0..rounds {
            let mut order: Vec<_> = group.contestants.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for contestant in order {
                bar.set_message(format!("{} {}", group.name, contestant.label));
                let record = cell::run(place, group, contestant, round, lengths(cli)).await;
                if let Some(reason) = &record.void {
                    bar.println(format!("void: {} {}: {reason}", record.group, record.label));
                }
                records.push(record);
                bar.inc(1);
            }
        }
        bar.suspend(|| println!("{}", report::render(&header, &records)));
        if !cli.smoke {
            keep(&place.bench.join("results"), &header, &records)?;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn header(place: &Place, cli: &Cli, group: &Group) -> Header {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&place.bench).args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let mut commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_default();
    // Results are what a run changes; they do not make it another program.
    let changes = ["status", "--porcelain", "--", "..", ":!results", ":!RESULTS.md"];
    if git(&changes).is_ok_and(|changes| !changes.is_empty()) {
        commit.push_str("-dirty");
    }
    Header {
        group: group.name.clone(),
        about: group.about.clone(),
        command: format!(
            "make bench ARGS='--only {} --rounds {} --secs {} --backlog {}'",
            group.name, cli.rounds, cli.secs, cli.backlog
        ),
        commit,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        secs: lengths(cli).secs,
    }
}

/// Replaces what is kept of this group.
fn keep(results: &Path, header: &Header, records: &[Record]) -> anyhow::Result<()> {
    std::fs::create_dir_all(results)?;
    let path: PathBuf = results.join(format!("{}.jsonl", header.group));
    let mut file = std::fs::File::create(path)?;
    writeln!(file, "{}", serde_json::to_string(header)?)?;
    for record in records {
        writeln!(file, "{}", serde_json::to_string(record)?)?;
    }
    Ok(())
}
