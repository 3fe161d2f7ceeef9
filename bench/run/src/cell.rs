//! One cell: its programs are started afresh, measured, audited and ended.

mod backlog;
mod direct;
mod drain;
mod outbox;
mod parked;
mod recovery;
mod relay;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use dapr::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;
use rustix::process::Signal;

use crate::audit::{self, Expected};
use crate::cpu::{Families, Part};
use crate::daprd;
use crate::database::{self, Database};
use crate::group::{Contestant, Group, Work};
use crate::peer::{Peer, Setting};
use crate::place::Place;
use crate::preload;
use crate::process::{Process, free_ports};
use crate::record::{Figures, Record};
use crate::stub::Stub;

/// How long a consumer may take to say that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// How long cells last.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Seconds before the measured part.
    pub warm_up_secs: f64,
    /// Length of the measured part in seconds.
    pub secs: f64,
    /// The most events in a backlog.
    pub backlog_max: u64,
    /// The most events for other cells that have a number of their own.
    pub count_max: u64,
    /// The most rows of dedup memory.
    pub preload_max: u64,
    /// More than this share of the machine's CPU stolen by the hypervisor voids a cell, in per cent.
    pub stolen_percent_max: f64,
}

/// Runs one cell; whatever goes wrong makes it void.
pub async fn run(
    place: &Place,
    group: &Group,
    contestant: &Contestant,
    round: u32,
    lengths: Lengths,
) -> Record {
    let outcome = run_inner(place, group, contestant, round, lengths).await;
    let (figures, void) = match outcome {
        Ok(figures) if figures.stolen_percent > lengths.stolen_percent_max => {
            (None, Some(format!("{:.1} % of the CPU was stolen", figures.stolen_percent)))
        }
        Ok(figures) => (Some(figures), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    Record { group: group.name.clone(), label: contestant.label.clone(), round, figures, void }
}

async fn run_inner(
    place: &Place,
    group: &Group,
    contestant: &Contestant,
    round: u32,
    lengths: Lengths,
) -> anyhow::Result<Figures> {
    let directory = place.root.join("cell");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory)?;
    let preload = preload_rows(&contestant.work, &lengths);
    let database = start_database(place, &directory, group, contestant, preload).await?;
    let cell = Cell {
        place,
        directory,
        database,
        delay_us: group.delay_us,
        contestant,
        seed: u64::from(round) + 1,
        lengths,
    };
    let outcome = match &contestant.work {
        Work::Direct(direct) => direct::run(&cell, direct).await,
        Work::Drain(drain) => drain::run(&cell, drain).await,
        Work::Parked(parked) => parked::run(&cell, parked).await,
        Work::Recovery { count } => recovery::run(&cell, (*count).min(lengths.count_max)).await,
        Work::Relay { count } => relay::run(&cell, (*count).min(lengths.count_max)).await,
        Work::Outbox { count } => outbox::run(&cell, (*count).min(lengths.count_max)).await,
    };
    // What the measured programs did comes first; an end that failed counts only after it.
    let ended = cell.database.end(Signal::QUIT).await;
    let figures = outcome?;
    ended?;
    Ok(figures)
}

/// Rows of dedup memory that must be there before.
fn preload_rows(work: &Work, lengths: &Lengths) -> u64 {
    let Work::Direct(direct) = work else { return 0 };
    direct.preload.min(lengths.preload_max)
}

/// Starts an empty database, or one with a filled dedup memory: filled once, then copied.
async fn start_database(
    place: &Place,
    directory: &Path,
    group: &Group,
    contestant: &Contestant,
    preload: u64,
) -> anyhow::Result<Database> {
    if preload == 0 {
        return Database::start(place, directory, group.store, group.delay_us, None).await;
    }
    let filled = place.preloaded(group.store, preload);
    if !filled.exists() {
        let making = filled.with_extension("making");
        let _ = std::fs::remove_dir_all(&making);
        std::fs::create_dir_all(&making)?;
        let database = Database::start(place, &making, group.store, 0, None).await?;
        let stub = Stub::start().await?;
        let setting = Cell::setting(&daprd::Ports { grpc: stub.port, http: stub.port })?;
        // Its own migrations, then an end as it should be.
        let app = start_app(contestant.peer, place, &making, &database, 0, &setting).await?;
        app.process.end(Signal::TERM).await?;
        preload::fill(&database, preload).await?;
        database.end(Signal::INT).await?;
        std::fs::rename(&making, &filled)?;
    }
    Database::start(place, directory, group.store, group.delay_us, Some(&filled)).await
}

async fn start_app(
    peer: Peer,
    place: &Place,
    directory: &Path,
    database: &Database,
    delay_us: u32,
    setting: &Setting,
) -> anyhow::Result<App> {
    let command = peer.command(place, directory, database, delay_us, setting)?;
    let mut process = Process::start("app", command, directory)?;
    let address = format!("http://127.0.0.1:{}", setting.app_port);
    let began = Instant::now();
    loop {
        process.check()?;
        if let Ok(mut client) = AppCallbackClient::connect(address.clone()).await
            && client.list_topic_subscriptions(()).await.is_ok()
        {
            return Ok(App { process, port: setting.app_port });
        }
        ensure!(began.elapsed() < READY_LIMIT, "not ready in time: {}", process.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What all kinds of cells have.
struct Cell<'a> {
    place: &'a Place,
    directory: PathBuf,
    database: Database,
    delay_us: u32,
    contestant: &'a Contestant,
    seed: u64,
    lengths: Lengths,
}

/// A consumer that is ready.
struct App {
    process: Process,
    port: u16,
}

impl Cell<'_> {
    /// Ports for a consumer whose sidecar is on `dapr`; everything else off.
    fn setting(dapr: &daprd::Ports) -> anyhow::Result<Setting> {
        let [app_port, http_port] = free_ports()?;
        Ok(Setting {
            app_port,
            dapr_grpc_port: dapr.grpc,
            dapr_http_port: dapr.http,
            http_port,
            relay: false,
            own_statement: false,
            bulk: None,
            stamped: false,
            park_ms: 0,
            quick_recovery: false,
        })
    }

    /// Makes the tables, if the consumer does not.
    async fn make_tables(&self) -> anyhow::Result<()> {
        let kind = match self.database {
            Database::Postgres(..) => database::Kind::Postgres,
            Database::Sqlite(_) => database::Kind::Sqlite,
        };
        let schema = self.contestant.peer.schema(self.place, kind)?;
        if schema.is_empty() {
            return Ok(());
        }
        self.database.execute(&schema).await
    }

    /// Starts the consumer and waits until it answers what the sidecar asks first.
    async fn start_app(&self, setting: &Setting) -> anyhow::Result<App> {
        let peer = self.contestant.peer;
        start_app(peer, self.place, &self.directory, &self.database, self.delay_us, setting).await
    }

    fn spawn_app(&self, setting: &Setting) -> anyhow::Result<Process> {
        let command = self.contestant.peer.command(
            self.place,
            &self.directory,
            &self.database,
            self.delay_us,
            setting,
        )?;
        Process::start("app", command, &self.directory)
    }

    /// The processes whose CPU time counts.
    fn families(&self, app: u32, more: &[(Part, u32)]) -> Families {
        let database = self.database.process().map(|pid| (Part::Database, pid));
        let app = [(Part::App, app)];
        Families(app.into_iter().chain(database).chain(more.iter().copied()).collect())
    }

    async fn audit(&self, expected: &Expected) -> anyhow::Result<()> {
        audit::audit(&self.database, expected).await.context("the audit failed")
    }
}

/// Waits until the consumer listens.
async fn wait_for_port(port: u16) -> anyhow::Result<()> {
    let began = Instant::now();
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        ensure!(began.elapsed() < READY_LIMIT, "the consumer does not listen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
