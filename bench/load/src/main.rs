//! The load generator. It runs on one thread, so that it takes no more than one core from what it
//! measures.

mod call;
mod frame;
mod pace;
mod publish;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};

use load::event::{Stream, TOPIC};
use load::report::{Line, Measured};

use call::{Lines, Tally};
use frame::{Form, Frames};

#[derive(Parser)]
#[command(
    about = "Delivers events to a consumer as the Dapr sidecar would, or publishes them through one",
    after_help = "Which events: the first ones of the stream of --seed, so the seed and the number\n\
                  sent, which is printed, are enough to know every id.\n\n\
                  load call --target http://127.0.0.1:50051 --in-flight 64 --secs 5\n\
                  load call --target http://127.0.0.1:50051 --per-sec 2000 --secs 5   # open loop\n\
                  load publish --target http://127.0.0.1:50001 --count 100000"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Call OnTopicEvent (or OnBulkTopicEvent) of a consumer
    Call(CallArguments),
    /// Publish through a sidecar's gRPC API
    Publish(PublishArguments),
}

#[derive(Args)]
struct StreamArguments {
    /// Which stream of events
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// With 1 % poison, 1 % that fail twice before they succeed, and 10 % duplicates
    #[arg(long)]
    dirty: bool,
}

#[derive(Args)]
struct CallArguments {
    /// The consumer's address, such as http://127.0.0.1:50051
    #[arg(long)]
    target: String,
    #[command(flatten)]
    stream: StreamArguments,
    /// How the sidecar would hand events over to this consumer
    #[arg(long, value_enum, default_value = "raw")]
    form: Form,
    /// Deliver as if on this topic
    #[arg(long, default_value = TOPIC)]
    topic: String,
    /// Calls kept in flight
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Connections to the consumer
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Events in one call; more than 1 calls OnBulkTopicEvent
    #[arg(long, default_value_t = 1)]
    bulk: u64,
    /// Send so many events a second whatever the answers do, instead of keeping calls in flight
    #[arg(long)]
    per_sec: Option<f64>,
    /// Seconds before the measured part
    #[arg(long, default_value_t = 1.0)]
    warm_up_secs: f64,
    /// Length of the measured part in seconds
    #[arg(long, default_value_t = 5.0)]
    secs: f64,
    /// Stop after so many events
    #[arg(long, default_value_t = u64::MAX)]
    count: u64,
}

#[derive(Args)]
struct PublishArguments {
    /// The sidecar's gRPC address, such as http://127.0.0.1:50001
    #[arg(long)]
    target: String,
    #[command(flatten)]
    stream: StreamArguments,
    /// How many different events
    #[arg(long)]
    count: u64,
    /// The number of the first
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// So many a second, one by one, instead of all in bulk
    #[arg(long)]
    per_sec: Option<f64>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Call(arguments) => call(arguments).await,
        Command::Publish(PublishArguments { target, stream, count, from, per_sec }) => {
            let stream = Stream::new(stream.seed, stream.dirty);
            let events = from..from + count;
            let done = match per_sec {
                Some(rate) => publish::publish_slowly(&target, stream, events, rate).await?,
                None => publish::publish(&target, stream, events).await?,
            };
            say(&Line::Done(done))
        }
    }
}

async fn call(arguments: CallArguments) -> anyhow::Result<()> {
    let stream = Stream::new(arguments.stream.seed, arguments.stream.dirty);
    let frames = Arc::new(Frames::new(stream, arguments.form, &arguments.topic)?);
    let lines = Lines::open(&arguments.target, arguments.connections).await?;
    let from = Instant::now() + Duration::from_secs_f64(arguments.warm_up_secs);
    let until = from + Duration::from_secs_f64(arguments.secs);
    let tally = Arc::new(Tally::new(from, until)?);
    let plan = pace::Plan { stream, frames, until, count: arguments.count, bulk: arguments.bulk };

    let phases = tokio::spawn(tell_phases(from, until, Arc::clone(&tally)));
    let sent = match arguments.per_sec {
        Some(per_sec) => pace::open(plan, &lines, &tally, per_sec).await,
        None => pace::closed(plan, &lines, &tally, arguments.in_flight).await,
    };
    // A run that ended by its count does not wait for the clock.
    if Instant::now() < until {
        phases.abort();
    } else {
        phases.await??;
    }
    say(&Line::Done(tally.done(sent)))
}

async fn tell_phases(from: Instant, until: Instant, tally: Arc<Tally>) -> anyhow::Result<()> {
    tokio::time::sleep_until(from.into()).await;
    say(&Line::Measuring)?;
    tokio::time::sleep_until(until.into()).await;
    let secs = (until - from).as_secs_f64();
    say(&Line::Measured(Measured { events: tally.events.load(Relaxed), secs }))
}

fn say(line: &Line) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    Ok(out.flush()?)
}
