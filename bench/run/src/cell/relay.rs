//! How fast a backlog of the outbox is published while somebody holds an old snapshot open: the
//! snapshot keeps the dead rows of a relay that deletes, and each look at the queue passes over all
//! of them. The broker is a stand-in that takes everything at once.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::process::Signal;

use load::event::Stream;

use super::Cell;
use crate::audit::Expected;
use crate::cpu;
use crate::daprd::Ports;
use crate::database::{self, Database};
use crate::generator::Generator;
use crate::record::Figures;
use crate::stub::Stub;

const LIMIT: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const IN_FLIGHT: usize = 64;

/// Consumes `count` events without a broker, and then publishes their messages.
pub async fn run(cell: &Cell<'_>, count: u64) -> anyhow::Result<Figures> {
    let stub = Stub::start().await?;
    let mut setting = Cell::setting(&Ports { grpc: stub.port, http: stub.port })?;
    cell.make_tables(&setting, 0).await?;
    let app = cell.start_app(&setting).await?;
    let mut generator = Generator::start(cell.place, &cell.directory, |command| {
        command.arg("call").args(["--target", &format!("http://127.0.0.1:{}", app.port)]);
        command.args(["--seed", &cell.seed.to_string(), "--form", cell.contestant.peer.form()]);
        command.args(["--in-flight", &IN_FLIGHT.to_string(), "--count", &count.to_string()]);
        command.args(["--warm-up-secs", "0", "--secs", &LIMIT.as_secs().to_string()]);
    })?;
    let done = generator.done(LIMIT).await?;
    ensure!(done.sent == count && done.unsettled == 0, "the backlog could not be made");
    app.process.end(Signal::TERM).await?;
    let stream = Stream::new(cell.seed, false);
    cell.audit(&Expected { stream, sent: count, preloaded: 0, outbox_kept: true }).await?;

    let _snapshot = old_snapshot(&cell.database).await?;
    stub.accept();
    setting.relay = true;
    // Started anew, so that no wait from the refusals before is left.
    let app = cell.start_app(&setting).await?;
    let families = cell.families(app.process.id(), &[]);
    let (began, before, first) = (Instant::now(), families.used(), stub.published());
    while stub.published() < count {
        ensure!(
            began.elapsed() < LIMIT,
            "{} of {count} published within {} s",
            stub.published(),
            LIMIT.as_secs()
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let secs = began.elapsed().as_secs_f64();
    let used = cpu::between(&before, &families.used());
    app.process.end(Signal::TERM).await?;
    let mut figures = Figures::of(count - first, secs, &used, 100, cell.delay_us);
    figures.bound_per_s = None;
    figures.more.insert("published".to_owned(), stub.published() as f64);
    Ok(figures)
}

/// A transaction that has looked and then idles; dropping it ends it. SQLite's readers do not stand
/// in a writer's way, so there is nothing to hold.
async fn old_snapshot(database: &Database) -> anyhow::Result<Option<tokio_postgres::Client>> {
    let Database::Postgres(_, port) = database else { return Ok(None) };
    let client = database::connect(*port).await?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM outbox").await?;
    Ok(Some(client))
}
