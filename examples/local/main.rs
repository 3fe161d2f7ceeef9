//! The main job on real input, on this machine: a sidecar, a broker, the service and an inventory
//! that fails as it is told. `make run` starts this; so does
//!
//! ```text
//! DAPRD=$(deploy/local/find-daprd.sh) cargo run --example local
//! ```
//!
//! `stage.rs` starts and stops everything, `story.rs` publishes the orders of `orders.rs`, `watch.rs`
//! sees what becomes of them. `dapr_yaml.rs`, `process.rs` and `inventory.rs` serve the tests as well.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tokio::signal::unix::{Signal, SignalKind, signal};

mod dapr_yaml;
mod inventory;
mod orders;
mod process;
mod stage;
mod story;
mod watch;

use stage::Stage;
use story::Story;

/// The broker that the events go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Broker {
    /// Inside the sidecar: nothing to install, nothing kept
    InMemory,
    /// Redis on localhost:6379, started if there is none
    Redis,
}

impl Broker {
    /// Its directory in `components/`.
    const fn directory(self) -> &'static str {
        match self {
            Self::InMemory => "in-memory",
            Self::Redis => "redis",
        }
    }
}

/// Shows the main job: publishes six orders through a real Dapr sidecar and prints what becomes of
/// each, then keeps running until Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "local", after_help = AFTER_HELP)]
struct Arguments {
    /// The broker that the events go through
    #[arg(long, value_enum, default_value = "in-memory")]
    broker: Broker,
    /// The sidecar program [default: the variable DAPRD, else daprd on PATH]
    #[arg(long, value_name = "PATH")]
    daprd: Option<PathBuf>,
    /// End after the story: exit code 0 if every order became what it should, else 1
    #[arg(long)]
    once: bool,
    /// Show the output of the service and the sidecar too, not only in .run/
    #[arg(long)]
    verbose: bool,
}

const AFTER_HELP: &str = "\
The orders: a good one, one published twice, a malformed one, one that the inventory
refuses, one whose inventory fails twice and then works, one whose inventory never works.

What is started: the service (cargo run -- serve) on the SQLite file .run/backstop.db, a stub
of the inventory, daprd with the flags of dapr.yaml, and Redis if that is the broker and none
runs. Ctrl-C stops these and nothing else. Logs and data are in .run/; `make clean-run`
removes it.

No daprd yet? `make run` finds or builds one. By hand:
  DAPRD=$(deploy/local/find-daprd.sh) cargo run --example local";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut interrupts = match Interrupts::new() {
        Ok(interrupts) => interrupts,
        Err(error) => return failed(&error.into()),
    };
    let mut stage = Stage::default();
    let ended = tokio::select! {
        ended = show(&arguments, &mut stage) => Some(ended),
        () = interrupts.next() => None,
    };
    say(match ended {
        None => "\n\nStopping what was started; Ctrl-C again kills it.",
        Some(_) => "",
    });
    tokio::select! {
        () = stage.stop() => {}
        () = interrupts.next() => stage.kill(),
    }
    match ended {
        None | Some(Ok(true)) => ExitCode::SUCCESS,
        Some(Ok(false)) => ExitCode::FAILURE,
        Some(Err(error)) => failed(&error),
    }
}

/// Everything up to the end of the story; without `--once` it does not end by itself. True when
/// every order became what it should.
async fn show(arguments: &Arguments, stage: &mut Stage) -> anyhow::Result<bool> {
    let place = stage.start(arguments).await?;
    let tell = async {
        let mut story = Story::new(&place).await?;
        let as_it_should = story.tell().await?;
        if !arguments.once {
            story.invite();
            story.go_on().await?;
        }
        anyhow::Ok(as_it_should)
    };
    tokio::select! {
        told = tell => told,
        fallen = stage.fallen() => Err(fallen),
    }
}

/// Ctrl-C, a closed terminal, or a request to end.
struct Interrupts([Signal; 3]);

impl Interrupts {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    use std::io::Write as _;
    // When that fails there is nobody left to tell.
    drop(writeln!(std::io::stderr(), "\n{error:#}"));
    ExitCode::FAILURE
}

/// Prints a line; a reader that has gone away is no error.
fn say(text: &str) {
    use std::io::Write as _;
    drop(writeln!(std::io::stdout(), "{text}"));
}

/// 0.4 s
fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
