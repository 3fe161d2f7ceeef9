//! A real sidecar and a real Redis behind it, for one cell.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use dapr::dapr::proto::runtime::v1::GetMetadataRequest;
use dapr::dapr::proto::runtime::v1::dapr_client::DaprClient;
use rustix::process::Signal;

use load::event::{PUBSUB, TOPIC_OUT};

use crate::place::Place;
use crate::process::{self, Process, free_ports};

/// The consumer's app id: also its consumer group.
pub const APP_ID: &str = "bench-consumer";
/// The state store that Dapr's own outbox works on.
pub const STATE_STORE: &str = "benchstate";
const START_LIMIT: Duration = Duration::from_secs(30);

/// A Redis of the cell's own; it keeps nothing on disk.
pub struct Redis {
    process: Process,
    port: u16,
}

impl Redis {
    /// Starts it, with what is in `dump.rdb` of the directory if there is one.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        let [port] = free_ports()?;
        let mut command = process::command("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--appendonly", "no"]);
        command.args(["--save", ""]).arg("--dir").arg(directory);
        let process = Process::start("redis", command, directory)?;
        let redis = Self { process, port };
        let began = Instant::now();
        while redis.cli(&["PING"]).await.is_err() {
            ensure!(began.elapsed() < START_LIMIT, "Redis did not start: {}", redis.process.tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(redis)
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// What a command prints.
    pub async fn cli(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = process::command("redis-cli");
        command.args(["-p", &self.port.to_string()]).args(arguments);
        let output = command.output().await.context("redis-cli")?;
        ensure!(output.status.success(), "redis-cli {arguments:?} failed");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Length of a stream.
    pub async fn stream_len(&self, topic: &str) -> anyhow::Result<u64> {
        Ok(self.cli(&["XLEN", topic]).await?.trim().parse()?)
    }

    /// Ends it.
    pub async fn end(self) -> anyhow::Result<()> {
        self.process.end(Signal::TERM).await
    }

    /// The component files: one component for the topic, a second for dead letters, and the
    /// repository's own resiliency file for these names.
    fn components(&self, place: &Place, directory: &Path) -> anyhow::Result<PathBuf> {
        let components = directory.join("components");
        std::fs::create_dir_all(&components)?;
        let repository = place.bench.parent().context("the repository")?;
        for suffix in ["", "-dead"] {
            let source = format!("components/redis/orderpubsub{suffix}.yaml");
            let text = std::fs::read_to_string(repository.join(&source))
                .with_context(|| source.clone())?
                .replace("orderpubsub", PUBSUB)
                .replace("localhost:6379", &format!("127.0.0.1:{}", self.port));
            std::fs::write(components.join(format!("{PUBSUB}{suffix}.yaml")), text)?;
        }
        let resiliency = std::fs::read_to_string(repository.join("resiliency.yaml"))?;
        let resiliency = resiliency.replace("orderpubsub", PUBSUB);
        std::fs::write(components.join("resiliency.yaml"), resiliency)?;
        Ok(components)
    }

    /// Adds a state store with Dapr's own outbox, in the same Redis: no fsync is waited for.
    pub fn add_outbox(&self, directory: &Path) -> anyhow::Result<()> {
        let components = directory.join("components");
        std::fs::create_dir_all(&components)?;
        let text = format!(
            "apiVersion: dapr.io/v1alpha1
kind: Component
metadata:
  name: {STATE_STORE}
spec:
  type: state.redis
  version: v1
  metadata:
    - name: redisHost
      value: 127.0.0.1:{}
    - name: outboxPublishPubsub
      value: {PUBSUB}
    - name: outboxPublishTopic
      value: {TOPIC_OUT}
",
            self.port
        );
        Ok(std::fs::write(components.join("state.yaml"), text)?)
    }
}

/// A sidecar.
pub struct Daprd {
    process: Process,
}

/// The ports a sidecar's API will have: its app is told them before it starts.
pub struct Ports {
    /// gRPC.
    pub grpc: u16,
    /// HTTP.
    pub http: u16,
}

impl Daprd {
    /// Starts a sidecar for `app_id`, in front of the app on `app_port` if there is one.
    pub async fn start(
        place: &Place,
        directory: &Path,
        redis: &Redis,
        app_id: &str,
        ports: &Ports,
        app_port: Option<u16>,
    ) -> anyhow::Result<Self> {
        let program = place.daprd.as_ref().context("DAPRD is not set: where is the sidecar?")?;
        let components = redis.components(place, directory)?;
        let [internal, metrics] = free_ports()?;
        let mut command = process::command(program);
        command.args(["--app-id", app_id, "--app-protocol", "grpc", "--log-level", "warn"]);
        command.arg("--resources-path").arg(components);
        command.args(["--dapr-grpc-port", &ports.grpc.to_string()]);
        command.args(["--dapr-http-port", &ports.http.to_string()]);
        command.args(["--dapr-internal-grpc-port", &internal.to_string()]);
        command.args(["--metrics-port", &metrics.to_string()]);
        command.args(["--dapr-listen-addresses", "127.0.0.1"]);
        if let Some(port) = app_port {
            command.args(["--app-port", &port.to_string()]);
        }
        let mut process = Process::start("daprd", command, directory)?;
        let address = format!("http://127.0.0.1:{}", ports.grpc);
        let began = Instant::now();
        loop {
            process.check()?;
            if let Ok(mut client) = DaprClient::connect(address.clone()).await
                && let Ok(answer) = client.get_metadata(GetMetadataRequest {}).await
                && !answer.get_ref().registered_components.is_empty()
            {
                return Ok(Self { process });
            }
            ensure!(began.elapsed() < START_LIMIT, "the sidecar did not start: {}", process.tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Ends it.
    pub async fn end(self) -> anyhow::Result<()> {
        self.process.end(Signal::TERM).await
    }
}
