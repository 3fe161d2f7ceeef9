//! Who is measured, and how each is started.

use std::path::Path;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::daprd::APP_ID;
use crate::database::{self, Database};
use crate::place::Place;
use crate::process;

/// A consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Backstop, by its public API.
    Backstop,
    /// Dapr Go SDK and pgx (or go-sqlite3): one transaction of statements an event.
    GoTx,
    /// The same with one statement of CTEs an event; PostgreSQL only.
    GoCte,
    /// Dapr Node SDK and pg; PostgreSQL only.
    NodePg,
    /// Rust, tonic and sqlx: one transaction of statements an event.
    RustSqlx,
    /// Dapr Go SDK and Dapr's own outbox: one state transaction an event.
    DaprOutbox,
    /// Acknowledges, and does nothing else: the ceiling.
    Nothing,
}

/// What a consumer is told, besides its database.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Where it is called.
    pub app_port: u16,
    /// Where its sidecar's gRPC API is.
    pub dapr_grpc_port: u16,
    /// Where its sidecar's HTTP API is.
    pub dapr_http_port: u16,
    /// Where Backstop's console listens.
    pub http_port: u16,
    /// Whether it publishes its outbox; Backstop always does.
    pub relay: bool,
    /// Whether each event's row is a statement of its own (Backstop).
    pub own_statement: bool,
    /// Events that it asks for in one call of the sidecar.
    pub bulk: Option<u16>,
    /// Whether a message carries the time of its effect; Dapr's outbox always does.
    pub stamped: bool,
    /// How long each handler waits first.
    pub park_ms: u32,
    /// Whether recovery is quick and wide (Backstop): for measuring it.
    pub quick_recovery: bool,
}

impl Peer {
    /// Its name in tables and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backstop => "backstop",
            Self::GoTx => "go-tx",
            Self::GoCte => "go-cte",
            Self::NodePg => "node-pg",
            Self::RustSqlx => "rust-sqlx",
            Self::DaprOutbox => "dapr-outbox",
            Self::Nothing => "nothing",
        }
    }

    /// How the sidecar hands events over to it.
    pub fn form(self) -> &'static str {
        if matches!(self, Self::Backstop | Self::Nothing) { "raw" } else { "cooked" }
    }

    /// Whether it keeps an inbox and an outbox in the cell's database, to be audited.
    pub fn has_tables(self) -> bool {
        !matches!(self, Self::DaprOutbox | Self::Nothing)
    }

    /// The tables it expects to find; Backstop makes its own.
    pub fn schema(self, place: &Place, kind: database::Kind) -> anyhow::Result<String> {
        if self == Self::Backstop || !self.has_tables() {
            return Ok(String::new());
        }
        let name = match kind {
            database::Kind::Postgres => "postgres",
            database::Kind::Sqlite => "sqlite",
        };
        let read = |file: String| std::fs::read_to_string(place.bench.join("schema").join(file));
        Ok(read(format!("business-{name}.sql"))? + &read(format!("peers-{name}.sql"))?)
    }

    /// The command that starts it.
    pub fn command(
        self,
        place: &Place,
        directory: &Path,
        database: &Database,
        delay_us: u32,
        setting: &Setting,
    ) -> anyhow::Result<Command> {
        let program = match self {
            Self::Backstop => place.programs.join("consumer"),
            Self::GoTx | Self::GoCte | Self::DaprOutbox => place.peers.join("go-pgx"),
            Self::Nothing => place.programs.join("nothing"),
            Self::RustSqlx => place.peers.join("rust-sqlx"),
            Self::NodePg => "node".into(),
        };
        ensure!(
            self == Self::NodePg || program.exists(),
            "{} is not built: run `make bench-build`",
            program.display()
        );
        let mut command = process::command(program);
        command.current_dir(directory);
        if let Database::Sqlite(_) = database {
            command.envs(database::shim_env(place, directory, delay_us));
        }
        command
            .env("APP_PORT", setting.app_port.to_string())
            .env("DAPR_GRPC_PORT", setting.dapr_grpc_port.to_string())
            .env("DAPR_HTTP_PORT", setting.dapr_http_port.to_string())
            .env("BENCH_PARK_MS", setting.park_ms.to_string());
        if let Some(bulk) = setting.bulk {
            command.env("BENCH_BULK", bulk.to_string());
        }
        match self {
            Self::Backstop => backstop(&mut command, database, setting),
            Self::GoTx | Self::GoCte | Self::NodePg | Self::RustSqlx => {
                command.env("STORE_URL", database.url());
                command.env("MODE", if self == Self::GoCte { "cte" } else { "tx" });
                command.env("RELAY", if setting.relay { "1" } else { "0" });
            }
            Self::DaprOutbox => {
                command.env("STORE_URL", format!("dapr://{}", crate::daprd::STATE_STORE));
            }
            Self::Nothing => {}
        }
        if self == Self::NodePg {
            command.env("NODE_ENV", "production");
            command.arg(place.bench.join("peers/node-pg/consumer.js"));
        }
        Ok(command)
    }
}

fn backstop(command: &mut Command, database: &Database, setting: &Setting) {
    command
        .arg("serve")
        .env("BACKSTOP_STORE_URL", database.url())
        .env("BACKSTOP_PUBSUB", load::event::PUBSUB)
        .env("BACKSTOP_CONSUMER", APP_ID)
        .env("BACKSTOP_HTTP_LISTEN", format!("127.0.0.1:{}", setting.http_port))
        .env("BACKSTOP_LOG", "warn");
    if setting.own_statement {
        command.env("BENCH_HANDLER", "sql");
    }
    if setting.stamped {
        command.env("BENCH_STAMP", "1");
    }
    if setting.quick_recovery {
        command
            .env("BACKSTOP_RECOVERY_CONCURRENCY_MAX", "64")
            .env("BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", "1");
    }
}
