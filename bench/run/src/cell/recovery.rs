//! Dead letters that were never attempted (an open breaker, an app that was away): how long until
//! each has had its effect, with nobody doing anything.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::process::Signal;

use load::event::{Stream, TOPIC};

use super::Cell;
use crate::audit::Expected;
use crate::cpu::{self, Part};
use crate::daprd::{APP_ID, Ports};
use crate::generator::Generator;
use crate::record::Figures;
use crate::stub::Stub;
use crate::watch::Watch;

const LIMIT: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const IN_FLIGHT: u64 = 64;

/// Hands over `count` dead letters and waits for their effects.
pub async fn run(cell: &Cell<'_>, count: u64) -> anyhow::Result<Figures> {
    let stub = Stub::start().await?;
    let mut setting = Cell::setting(&Ports { grpc: stub.port, http: stub.port })?;
    setting.quick_recovery = true;
    let app = cell.start_app(&setting).await?;
    let mut generator = Generator::start(cell.place, &cell.directory, |command| {
        command.arg("call").args(["--target", &format!("http://127.0.0.1:{}", app.port)]);
        command.args(["--topic", &format!("{TOPIC}-{APP_ID}-dead")]);
        command.args(["--seed", &cell.seed.to_string(), "--form", cell.contestant.peer.form()]);
        command.args(["--in-flight", &IN_FLIGHT.to_string(), "--count", &count.to_string()]);
        command.args(["--warm-up-secs", "0", "--secs", &LIMIT.as_secs().to_string()]);
    })?;
    let families = cell.families(app.process.id(), &[(Part::Load, generator.id())]);
    let (began, before) = (Instant::now(), families.used());
    let done = generator.done(LIMIT).await?;
    let taken_in = began.elapsed();
    ensure!(done.sent == count && done.unsettled == 0, "not all dead letters were taken in");
    let watch = Watch::open(&cell.database).await?;
    while watch.effects().await? < count {
        ensure!(began.elapsed() < LIMIT, "not recovered in time");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let secs = began.elapsed().as_secs_f64();
    let used = cpu::between(&before, &families.used());
    app.process.end(Signal::TERM).await?;
    let stream = Stream::new(cell.seed, false);
    cell.audit(&Expected { stream, sent: count, preloaded: 0, outbox_kept: true }).await?;

    let mut figures = Figures::of(count, secs, &used, IN_FLIGHT, cell.delay_us);
    figures.more.insert("secs_until_taken_in".to_owned(), taken_in.as_secs_f64());
    figures.more.insert("secs_until_recovered".to_owned(), secs);
    Ok(figures)
}
