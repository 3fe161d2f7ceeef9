//! Deliveries straight into the consumer, as the sidecar would make them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use tokio::process::Command;

use load::event::Stream;
use load::report::Measured;

use super::{App, Cell};
use crate::audit::Expected;
use crate::cpu::{self, Part};
use crate::daprd::Ports;
use crate::database::fsyncs;
use crate::generator::{Generator, Line};
use crate::group::{Direct, Rate};
use crate::peer::Peer;
use crate::record::Figures;
use crate::results;
use crate::stub::Stub;
use crate::watch::Watch;

/// How long the generator may go on after the measured part: repeats of transient events.
const FINISH_LIMIT: Duration = Duration::from_secs(60);

/// Delivers for the measured time and audits.
pub async fn run(cell: &Cell<'_>, direct: &Direct) -> anyhow::Result<Figures> {
    let stub = Stub::start().await?;
    let mut setting = Cell::setting(&Ports { grpc: stub.port, http: stub.port })?;
    setting.own_statement = direct.own_statement;
    cell.make_tables().await?;
    let per_sec = direct.rate.as_ref().map(|rate| per_sec(cell, rate));
    let app = cell.start_app(&setting).await?;
    let mut generator = Generator::start(cell.place, &cell.directory, |command| {
        arguments(command, cell, direct, per_sec, &app);
    })?;
    let families = cell.families(app.process.id(), &[(Part::Load, generator.id())]);

    let limit =
        FINISH_LIMIT + Duration::from_secs_f64(cell.lengths.warm_up_secs + cell.lengths.secs);
    let mut before = None;
    let mut measured = None;
    let done = loop {
        match generator.next(limit).await? {
            Line::Measuring => before = Some((families.used(), fsyncs(&cell.directory))),
            Line::Measured(part) => {
                measured = Some((part, families.used(), fsyncs(&cell.directory)));
            }
            Line::Done(done) => break done,
        }
    };
    let (before, fsyncs_before) = before.context("the generator never measured")?;
    let (Measured { events, secs }, after, fsyncs_after) =
        measured.context("the generator never measured")?;
    let resident = cpu::resident_peak_kib(app.process.id());
    let counted = match cell.contestant.peer {
        Peer::Nothing => Some(Watch::count(app.port).await?.effects().await?),
        _ => None,
    };
    app.process.end(Signal::TERM).await?;
    ensure!(
        done.unsettled == 0 && done.dropped == 0,
        "{} events unsettled, {} dropped: {}",
        done.unsettled,
        done.dropped,
        done.error.clone().unwrap_or_default()
    );
    ensure!(events > 0, "nothing was settled while measuring: {}", done.error.unwrap_or_default());
    if cell.contestant.peer.has_tables() {
        let expected = Expected {
            stream: Stream::new(cell.seed, direct.dirty),
            sent: done.sent,
            preloaded: direct.preload.min(cell.lengths.preload_max),
            outbox_kept: true,
        };
        cell.audit(&expected).await?;
    } else {
        ensure!(counted == Some(done.sent), "{counted:?} counted of {} sent", done.sent);
    }

    let used = cpu::between(&before, &after);
    let in_flight = direct.in_flight as u64 * direct.bulk;
    let mut figures = Figures::of(events, secs, &used, in_flight, cell.delay_us);
    figures.p50_us = Some(done.p50_us);
    figures.p99_us = Some(done.p99_us);
    figures.fsyncs_per_1000 = Some((fsyncs_after - fsyncs_before) as f64 * 1e3 / events as f64);
    figures.resident_peak_mib = resident.map(|kib| kib as f64 / 1024.0);
    if let Some(per_sec) = per_sec {
        figures.bound_per_s = None;
        figures.more.insert("sent_per_s".to_owned(), per_sec);
    }
    if direct.dirty {
        figures.more.insert("duplicates".to_owned(), done.duplicates as f64);
        figures.more.insert("repeats".to_owned(), done.repeats as f64);
    }
    Ok(figures)
}

/// The same rate for everybody in the group: half of what another group's first has reached, to a
/// hundred.
fn per_sec(cell: &Cell<'_>, rate: &Rate) -> f64 {
    let reached = results::reached_per_s(cell.place, &rate.half_of);
    let half = reached.map(|per_s| (per_s / 200.0).round() * 100.0);
    half.filter(|half| *half > 0.0).unwrap_or(rate.else_per_sec)
}

fn arguments(
    command: &mut Command,
    cell: &Cell<'_>,
    direct: &Direct,
    per_sec: Option<f64>,
    app: &App,
) {
    command.arg("call").args(["--target", &format!("http://127.0.0.1:{}", app.port)]);
    command.args(["--seed", &cell.seed.to_string(), "--form", cell.contestant.peer.form()]);
    command.args(["--in-flight", &direct.in_flight.to_string()]);
    command.args(["--bulk", &direct.bulk.to_string()]);
    command.args(["--warm-up-secs", &cell.lengths.warm_up_secs.to_string()]);
    command.args(["--secs", &cell.lengths.secs.to_string()]);
    if let Some(per_sec) = per_sec {
        command.args(["--per-sec", &per_sec.to_string()]);
    }
    if direct.dirty {
        command.arg("--dirty");
    }
}
