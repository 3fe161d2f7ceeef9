//! How fast a backlog of the outbox is published while somebody holds an old snapshot open: the
//! snapshot keeps the dead rows of a relay that deletes, and each look at the queue passes over all
//! of them. The broker is a stand-in that takes everything at once.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::process::Signal;

use load::event::Stream;

use super::Cell;
use crate::audit::{self, Expected};
use crate::cpu;
use crate::daprd::Ports;
use crate::database::{self, Database};
use crate::generator::Generator;
use crate::peer::{Peer, Setting};
use crate::record::Figures;
use crate::stub::Stub;

const LIMIT: Duration = Duration::from_secs(150);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How the backlog of Backstop comes about: so many calls of so many events.
const CALLS: usize = 4;
const IN_ONE: u64 = 100;

/// Makes a backlog of `count` messages without a broker, and then publishes it.
pub async fn run(cell: &Cell<'_>, count: u64) -> anyhow::Result<Figures> {
    let stub = Stub::start().await?;
    let mut setting = Cell::setting(&Ports { grpc: stub.port, http: stub.port })?;
    cell.make_tables().await?;
    if cell.contestant.peer == Peer::Backstop {
        consume(cell, &setting, count).await?;
    } else {
        audit::fill_outbox(&cell.database, &Stream::new(cell.seed, false), count).await?;
    }

    let _snapshot = old_snapshot(&cell.database).await?;
    stub.accept();
    setting.relay = true;
    // Started anew, so that no wait from the refusals before is left.
    let app = cell.start_app(&setting).await?;
    let families = cell.families(app.process.id(), &[]);
    let (began, before, first) = (Instant::now(), families.used(), stub.published());
    let mut last_tenth = None;
    loop {
        let published = stub.published();
        if last_tenth.is_none() && published >= count / 10 * 9 {
            last_tenth = Some((Instant::now(), published));
        }
        if published >= count {
            break;
        }
        let limit = LIMIT.as_secs();
        ensure!(began.elapsed() < LIMIT, "{published} of {count} published within {limit} s");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let secs = began.elapsed().as_secs_f64();
    let used = cpu::between(&before, &families.used());
    app.process.end(Signal::TERM).await?;
    let stream = Stream::new(cell.seed, false);
    let missing = (0..count).filter(|n| !stub.has(&stream.id(*n))).count();
    ensure!(missing == 0, "{missing} messages were never published");

    let mut figures = Figures::of(count - first, secs, &used, 100, cell.delay_us);
    figures.bound_per_s = None;
    figures.more.insert("published_again".to_owned(), stub.published_again() as f64);
    if let Some((at, published)) = last_tenth {
        let per_s = (count - published) as f64 / at.elapsed().as_secs_f64().max(0.001);
        figures.more.insert("per_s_of_the_last_tenth".to_owned(), per_s);
    }
    Ok(figures)
}

/// Consumes `count` events while nothing can be published.
async fn consume(cell: &Cell<'_>, setting: &Setting, count: u64) -> anyhow::Result<()> {
    let app = cell.start_app(setting).await?;
    let mut generator = Generator::start(cell.place, &cell.directory, |command| {
        command.arg("call").args(["--target", &format!("http://127.0.0.1:{}", app.port)]);
        command.args(["--seed", &cell.seed.to_string(), "--form", cell.contestant.peer.form()]);
        command.args(["--in-flight", &CALLS.to_string(), "--bulk", &IN_ONE.to_string()]);
        command.args(["--count", &count.to_string()]);
        command.args(["--warm-up-secs", "0", "--secs", &LIMIT.as_secs().to_string()]);
    })?;
    let done = generator.done(LIMIT).await?;
    ensure!(done.sent == count && done.unsettled == 0, "the backlog could not be made");
    app.process.end(Signal::TERM).await?;
    let stream = Stream::new(cell.seed, false);
    cell.audit(&Expected { stream, sent: count, preloaded: 0, outbox_kept: true }).await
}

/// A transaction that has looked and then idles; dropping it ends it. SQLite's readers do not stand
/// in a writer's way, so there is nothing to hold.
async fn old_snapshot(database: &Database) -> anyhow::Result<Option<tokio_postgres::Client>> {
    let Database::Postgres(_, port) = database else { return Ok(None) };
    let client = database::connect(*port).await?;
    client
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM outbox LIMIT 1")
        .await?;
    Ok(Some(client))
}
