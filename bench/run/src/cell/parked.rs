//! Many deliveries in flight at once: every handler waits, and the consumer's memory is read.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::Signal;

use load::event::Stream;

use super::Cell;
use crate::audit::Expected;
use crate::cpu;
use crate::daprd::Ports;
use crate::generator::Generator;
use crate::group::Parked;
use crate::record::Figures;
use crate::stub::Stub;

const LIMIT: Duration = Duration::from_secs(120);
/// Deliveries on one connection: below every peer's limit of streams.
const ON_ONE_CONNECTION: u64 = 2000;

/// Sends all deliveries at once and waits for their answers.
pub async fn run(cell: &Cell<'_>, parked: &Parked) -> anyhow::Result<Figures> {
    let in_flight = u64::try_from(parked.in_flight)?.min(cell.lengths.count_max);
    let connections = in_flight.div_ceil(ON_ONE_CONNECTION);
    let stub = Stub::start().await?;
    let mut setting = Cell::setting(&Ports { grpc: stub.port, http: stub.port })?;
    setting.park_ms = parked.park_ms;
    cell.make_tables().await?;
    let app = cell.start_app(&setting).await?;
    let idle = cpu::resident_peak_kib(app.process.id()).context("no memory figure")?;
    let began = Instant::now();
    let mut generator = Generator::start(cell.place, &cell.directory, |command| {
        command.arg("call").args(["--target", &format!("http://127.0.0.1:{}", app.port)]);
        command.args(["--seed", &cell.seed.to_string(), "--form", cell.contestant.peer.form()]);
        command.args(["--in-flight", &in_flight.to_string()]);
        command.args(["--count", &in_flight.to_string()]);
        command.args(["--connections", &connections.to_string()]);
        command.args(["--warm-up-secs", "0", "--secs", &LIMIT.as_secs().to_string()]);
    })?;
    let done = generator.done(LIMIT).await?;
    let took = began.elapsed();
    let peak = cpu::resident_peak_kib(app.process.id()).context("no memory figure")?;
    app.process.end(Signal::TERM).await?;
    let unsettled = done.unsettled + done.dropped;
    ensure!(
        unsettled == 0 && done.sent == in_flight,
        "{unsettled} of {in_flight} were not settled"
    );
    let stream = Stream::new(cell.seed, false);
    cell.audit(&Expected { stream, sent: done.sent, preloaded: 0, outbox_kept: true }).await?;

    let drain_secs = (took.as_secs_f64() - f64::from(parked.park_ms) / 1e3).max(0.001);
    let mut figures = Figures {
        per_s: in_flight as f64 / drain_secs,
        resident_peak_mib: Some(peak as f64 / 1024.0),
        ..Figures::default()
    };
    figures.more.insert("resident_idle_mib".to_owned(), idle as f64 / 1024.0);
    figures.more.insert("kib_per_delivery".to_owned(), (peak - idle) as f64 / in_flight as f64);
    figures.more.insert("repeats".to_owned(), done.repeats as f64);
    Ok(figures)
}
