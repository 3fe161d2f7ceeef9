//! The database of one cell: a PostgreSQL server of its own or a SQLite file, on tmpfs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::place::Place;
use crate::process::{self, Process, free_ports};

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A private server of the newest installed version.
    Postgres,
    /// One file.
    Sqlite,
}

/// A running or merely existing database.
pub enum Database {
    /// The server and its port.
    Postgres(Box<Process>, u16),
    /// The file.
    Sqlite(PathBuf),
}

/// PostgreSQL's settings that differ from its defaults: the same in every cell. Durability is the
/// default (fsync and synchronous_commit on).
const SETTINGS: [&str; 8] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=100",
    "shared_buffers=512MB",
    "max_wal_size=8GB",
    "checkpoint_timeout=30min",
    "wal_sync_method=fdatasync",
    // Backstop's tables are in a schema of its own, the peers' in the usual one.
    "search_path=backstop,public",
];
const START_LIMIT: Duration = Duration::from_secs(30);

/// What makes the fsync of a program cost `delay_us`, and counts it.
pub fn shim_env(place: &Place, directory: &Path, delay_us: u32) -> [(&'static str, String); 3] {
    [
        ("LD_PRELOAD", place.shim().display().to_string()),
        ("FSYNC_DELAY_US", delay_us.to_string()),
        ("FSYNC_COUNT", directory.join("fsync.count").display().to_string()),
    ]
}

/// How many fsyncs the cell has made until now.
pub fn fsyncs(directory: &Path) -> u64 {
    let bytes = std::fs::read(directory.join("fsync.count")).unwrap_or_default();
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

impl Database {
    /// Makes one with the cell's fsync delay: empty, or a copy of what another left in `filled`.
    pub async fn start(
        place: &Place,
        directory: &Path,
        kind: Kind,
        delay_us: u32,
        filled: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let count = directory.join("fsync.count");
        std::fs::write(&count, [0; 8])?;
        if kind == Kind::Sqlite {
            let file = directory.join("bench.db");
            if let Some(filled) = filled {
                std::fs::copy(filled.join("bench.db"), &file)?;
            }
            return Ok(Self::Sqlite(file));
        }
        let programs = place.postgres.as_ref().context("there is no PostgreSQL here")?;
        let data = directory.join("postgres");
        let template = match filled {
            Some(filled) => filled.join("postgres"),
            None => template(place, programs)?,
        };
        run(Command::new("cp").arg("-a").arg(template).arg(&data))?;
        if let Some((user, group)) = place.postgres_user {
            std::os::unix::fs::chown(&count, Some(user), Some(group))?;
        }
        let [port] = free_ports()?;
        let mut command = process::command(programs.join("postgres"));
        command.arg("-D").arg(&data).args(["-p", &port.to_string()]).current_dir("/");
        command.envs(shim_env(place, directory, delay_us));
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        if let Some((user, group)) = place.postgres_user {
            command.uid(user).gid(group);
        }
        let mut server = Process::start("postgres", command, directory)?;
        let began = tokio::time::Instant::now();
        while connect(port).await.is_err() {
            server.check()?;
            ensure!(began.elapsed() < START_LIMIT, "PostgreSQL did not start: {}", server.tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Self::Postgres(Box::new(server), port))
    }

    /// Its URL, for the consumers.
    pub fn url(&self) -> String {
        match self {
            Self::Postgres(_, port) => {
                format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable")
            }
            Self::Sqlite(path) => format!("sqlite://{}", path.display()),
        }
    }

    /// Its first process, where it has one of its own.
    pub fn process(&self) -> Option<u32> {
        match self {
            Self::Postgres(server, _) => Some(server.id()),
            Self::Sqlite(_) => None,
        }
    }

    /// Runs statements.
    pub async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        match self {
            Self::Postgres(_, port) => Ok(connect(*port).await?.batch_execute(sql).await?),
            Self::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path)?;
                connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")?;
                Ok(connection.execute_batch(sql)?)
            }
        }
    }

    /// Ends it: with SIGINT as it should be, with SIGQUIT at once, when it is not needed any more.
    pub async fn end(self, signal: Signal) -> anyhow::Result<()> {
        match self {
            Self::Postgres(server, _) => server.end(signal).await,
            Self::Sqlite(_) => Ok(()),
        }
    }
}

/// A connection of the orchestrator's own; it ends when the client is dropped.
pub async fn connect(port: u16) -> anyhow::Result<tokio_postgres::Client> {
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// An initialised data directory, made once a run and copied for each cell.
fn template(place: &Place, programs: &Path) -> anyhow::Result<PathBuf> {
    let template = place.root.join("postgres-template");
    if template.exists() {
        return Ok(template);
    }
    let making = place.root.join("postgres-making");
    std::fs::create_dir_all(&making)?;
    let mut initdb = Command::new(programs.join("initdb"));
    initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    initdb.args(["--no-sync", "-D"]).arg(&making).current_dir("/");
    if let Some((user, group)) = place.postgres_user {
        use std::os::unix::process::CommandExt as _;
        std::os::unix::fs::chown(&making, Some(user), Some(group))?;
        initdb.uid(user).gid(group);
    }
    run(&mut initdb)?;
    std::fs::rename(&making, &template)?;
    Ok(template)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", errors.trim());
    Ok(())
}
