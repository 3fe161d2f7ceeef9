//! The command line of a consumer: serve, and work its exception queue.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 it
//! failed, 2 the command line is wrong, 64 the environment is wrong.

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::clock::Clock;
use crate::config::{Config, reference_page};
use crate::service::Service;
use crate::store::{OpenAs, Store};
use crate::telemetry::Telemetry;

mod exceptions;
mod gates;
mod publish;

/// The environment is wrong: `EX_USAGE` of sysexits.h.
const EXIT_CONFIG: u8 = 64;
/// How long telemetry may take to flush when the process ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);

#[derive(Parser)]
#[command(
    name = "backstop",
    version,
    about = "Consumes Dapr pub/sub events so that nothing is lost, doubled or looped",
    after_help = "Everything else is set by the environment: `backstop config` shows it.\n\
                  Exit codes: 0 done, 1 failed, 2 wrong command line, 64 wrong environment."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve behind the Dapr sidecar until SIGTERM or Ctrl-C
    Serve,
    /// Work the exception queue: list, show, redrive, close
    #[command(subcommand)]
    Exceptions(exceptions::Command),
    /// Show the gates that stand before dependencies that are away; hold or open one
    Gates(gates::Arguments),
    /// Publish one event through the sidecar
    Publish(publish::Arguments),
    /// Create or update the store's tables, and exit
    Migrate(MigrateArguments),
    /// Print every setting, its value and where the value comes from
    Config(ConfigArguments),
}

#[derive(Args)]
struct MigrateArguments {
    /// Change nothing; fail when the tables are not this build's
    #[arg(long)]
    check: bool,
}

#[derive(Args)]
struct ConfigArguments {
    /// As a JSON array
    #[arg(long)]
    json: bool,
    /// Print the reference page (Markdown) instead of this process's values
    #[arg(long, conflicts_with = "json")]
    reference: bool,
}

/// Runs a consumer's command line, and is its whole `main`: `serve` for the service `build` makes,
/// and the commands for its operators.
pub fn main(build: impl FnOnce(&Config) -> anyhow::Result<Service>) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap, printed to standard output.
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return error.print().map_or(ExitCode::FAILURE, |()| ExitCode::from(code));
        }
    };
    if let Command::Config(ConfigArguments { reference: true, .. }) = cli.command {
        return finish(out(&reference_page()));
    }
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => {
            complain(&format!("{error}"));
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    // Two workers at least: telemetry's exporters hang on a runtime with one.
    let workers = std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    match runtime {
        Ok(runtime) => finish(runtime.block_on(run(cli.command, config, build))),
        Err(error) => finish(Err(error.into())),
    }
}

async fn run(
    command: Command,
    config: Config,
    build: impl FnOnce(&Config) -> anyhow::Result<Service>,
) -> anyhow::Result<()> {
    match command {
        Command::Serve => serve(build(&config)?, &config).await,
        Command::Exceptions(command) => exceptions::run(command, &config).await,
        Command::Gates(arguments) => gates::run(arguments, &config).await,
        Command::Publish(arguments) => publish::run(arguments, &config).await,
        Command::Migrate(MigrateArguments { check: true }) => {
            operator_store(&config).await?;
            out("The store is up to date.\n")
        }
        Command::Migrate(MigrateArguments { check: false }) => {
            build(&config)?.migrate(&config).await?;
            out("The store is up to date.\n")
        }
        Command::Config(arguments) => print_config(&arguments, &config),
    }
}

async fn serve(service: Service, config: &Config) -> anyhow::Result<()> {
    let telemetry = Telemetry::init(&config.telemetry)?;
    let served = service.serve(config, &telemetry, stop_signal()?).await;
    if let Err(error) = &served {
        tracing::error!(error = %format!("{error:#}"), "Backstop ends with an error.");
    }
    telemetry.shutdown(FLUSH_LIMIT).await;
    served
}

/// Completes at SIGTERM or SIGINT.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn print_config(arguments: &ConfigArguments, config: &Config) -> anyhow::Result<()> {
    let settings = config.effective();
    if arguments.json {
        return out(&format!("{}\n", serde_json::to_string_pretty(&settings)?));
    }
    let mut table = table(&["variable", "value", "from", "meaning"]);
    for setting in settings {
        let from = serde_json::to_value(setting.source)?;
        table.add_row([
            setting.name,
            &setting.value,
            from.as_str().unwrap_or_default(),
            setting.meaning,
        ]);
    }
    out(&format!("{table}\n"))
}

/// The store as an operator's command opens it, beside the service.
async fn operator_store(config: &Config) -> anyhow::Result<Store> {
    let (limits, clock) = (config.recovery, Clock::System);
    Ok(Store::open(&config.store, OpenAs::Operator, Vec::new(), limits, clock).await?)
}

fn table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_header(header);
    table
}

/// Writes to standard output; a reader that has gone away (`| head`) is no error.
fn out(text: &str) -> anyhow::Result<()> {
    use std::io::{ErrorKind, Write};
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Writes to standard error.
fn complain(text: &str) {
    use std::io::Write;
    // When even that fails there is nobody left to tell.
    drop(writeln!(std::io::stderr(), "{text}"));
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("backstop: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
