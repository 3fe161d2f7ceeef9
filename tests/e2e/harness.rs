//! A world for one test: broker, sidecar, service and inventory on ports of their own, everything
//! stopped when the test ends, however it ends.
//!
//! The sidecar's arguments and the service's environment come from the top-level `dapr.yaml`, the
//! component files and `resiliency.yaml` from `components/`; only ports are changed, and what a
//! test says with [`Setup::env`] and [`Setup::edit`]. Orders come one by one, or in bulk where a test
//! or the environment says so (`bulk.rs`).

mod bulk;
mod calls;
mod disk;
mod ends;
mod events;
mod line;
mod preload;
mod redis;
mod store;
mod wait;
mod watch;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::dapr_yaml::{Choices, Ports as DaprPorts, Run, Template};
use crate::inventory::Inventory;
use crate::process::{Launch, Process, Ready, free_ports};

pub use calls::{RETRY, SUCCESS};
pub use disk::Trouble;
pub use events::{bytes, event_id, placed, placed_with};
pub use wait::{LATER, SOON, becomes, eventually};

use disk::Disk;
pub use line::Line;
use preload::Preload;
pub use redis::Redis;
use store::Database;
pub use store::ToPublish;

/// The component that orders come through.
pub const PUBSUB: &str = "orderpubsub";
/// A second component, where a test has one.
pub const SECOND_PUBSUB: &str = "secondpubsub";
/// The topic that orders are published to.
pub const TOPIC: &str = "orders";
/// Where the sidecar puts what it gives up.
pub const DEAD: &str = "orders-order-service-dead";
/// Where the sidecar puts what can never reach the service.
pub const UNREADABLE: &str = "orders-order-service-unreadable";
/// The topic that accepted orders are published to.
pub const ACCEPTED: &str = "order-accepted";
/// The poison log line.
pub const POISON: &str = "Poison message quarantined.";

/// The consumer's name, and the sidecar's consumer group.
const CONSUMER: &str = "order-service";
/// What a developer may have set for something else must not change what a test does.
const FORGOTTEN: [&str; 5] = ["BACKSTOP_", "DAPR_", "APP_", "OTEL_", "NAMESPACE"];
/// Worlds at the same time: more would only slow one another down.
static WORLDS: Semaphore = Semaphore::const_new(3);

/// What a test wants different from the shipped files.
#[allow(clippy::struct_excessive_bools, reason = "each is about another part of the world")]
pub struct Setup {
    components: &'static str,
    env: Vec<(String, String)>,
    daprd_env: Vec<(String, String)>,
    edits: Vec<(&'static str, &'static str, String)>,
    trouble: Option<Trouble>,
    clock: Option<&'static Preload>,
    has_inventory: bool,
    has_lines: bool,
    has_health_check: bool,
    redis_port: Option<u16>,
    second_redis_port: Option<u16>,
    is_bulk: bool,
}

impl Setup {
    /// Everything as shipped for Redis, with an inventory that reserves.
    pub fn redis() -> Self {
        Self {
            components: "redis",
            env: Vec::new(),
            daprd_env: Vec::new(),
            edits: Vec::new(),
            trouble: None,
            clock: None,
            has_inventory: true,
            has_lines: false,
            has_health_check: true,
            redis_port: None,
            second_redis_port: None,
            is_bulk: bulk::is_asked_for(),
        }
    }

    /// Everything as shipped for the broker inside the sidecar.
    pub fn in_memory() -> Self {
        // As dapr.yaml says: that broker drops what is published before the first good probe.
        Self { components: "in-memory", has_health_check: false, ..Self::redis() }
    }

    /// A variable of the service's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A variable of the sidecar's environment.
    #[must_use]
    pub fn daprd_env(mut self, name: &str, value: &str) -> Self {
        self.daprd_env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Recoveries so soon after one another that a test need not wait for them.
    #[must_use]
    pub fn quick_recovery(self) -> Self {
        self.env("BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", "0.2")
            .env("BACKSTOP_RECOVERY_BACKOFF_MAX_SECS", "1")
    }

    /// Changes a text in one of the files in `components/`; it must stand there.
    #[must_use]
    pub fn edit(mut self, file: &'static str, from: &'static str, to: &str) -> Self {
        self.edits.push((file, from, to.to_owned()));
        self
    }

    /// The service asks nobody.
    #[must_use]
    pub fn without_inventory(mut self) -> Self {
        self.has_inventory = false;
        self
    }

    /// The sidecar learns of the service's absence only from its answers.
    #[must_use]
    pub fn without_health_check(mut self) -> Self {
        self.has_health_check = false;
        self
    }

    /// A replica of another world's service: on the same Redis, with a sidecar of its own.
    #[must_use]
    pub fn beside(mut self, world: &World) -> Self {
        self.redis_port = Some(world.redis.port);
        self
    }

    /// Another component, [`SECOND_PUBSUB`], with its Redis at that port.
    #[must_use]
    pub fn second_redis(mut self, port: u16) -> Self {
        self.second_redis_port = Some(port);
        self
    }

    /// Sidecar and service reach each other over lines on which answers can be lost
    /// ([`World::lose_answers`]).
    #[must_use]
    pub fn over_lines(mut self) -> Self {
        self.has_lines = true;
        self
    }

    /// Starts it, and waits until orders are consumed.
    pub async fn start(self) -> World {
        World::start(self).await
    }
}

/// The ports of a world.
#[derive(Clone, Copy)]
pub struct Ports {
    /// Where the service listens.
    app: u16,
    /// Where it is called: the same, or the line to it.
    pub app_called: u16,
    /// The service's own HTTP: metrics and probes.
    http: u16,
    dapr: DaprPorts,
    /// Where the service calls the sidecar: its gRPC port, or the line to it.
    dapr_grpc_called: u16,
}

/// A running world.
pub struct World {
    // In the order in which they are to go.
    app: Option<Process>,
    daprd: Option<Process>,
    pub redis: Redis,
    pub inventory: Inventory,
    /// Between the sidecar and the service, for both ways of calling; empty unless asked for.
    lines: Vec<Line>,
    pub database: Database,
    /// Where the database is, if that disk will be in trouble.
    disk: Option<Disk>,
    pub ports: Ports,
    run: Run,
    daprd_env: Vec<(String, String)>,
    app_starts: usize,
    daprd_starts: usize,
    http: reqwest::Client,
    /// Orders come in bulk.
    pub is_bulk: bool,
    directory: tempfile::TempDir,
    /// A world beside another counts with it.
    _slot: Option<SemaphorePermit<'static>>,
}

impl World {
    async fn start(setup: Setup) -> Self {
        let slot = match setup.redis_port {
            None => Some(WORLDS.acquire().await.unwrap()),
            Some(_) => None,
        };
        let directory = tempfile::Builder::new().prefix("backstop-e2e-").tempdir().unwrap();
        let redis = match setup.redis_port {
            None => Redis::start(&directory.path().join("redis")).await,
            Some(port) => Redis::of_another_world(port),
        };
        let inventory = Inventory::start().await.unwrap();
        let ports = ports(setup.has_lines);
        let resources = directory.path().join("resources");
        copy_components(&setup, &resources, redis.port);
        let data = directory.path().join("data");
        let database = Database { path: data.join("backstop.db") };
        let told = directory.path().join("trouble");
        let disk = setup.trouble.map(|trouble| Disk::prepare(trouble, &data, told));
        let mut run = how_to_run(&setup, &ports, &resources, &database.path, &inventory);
        run.app_env.extend(disk.iter().flat_map(Disk::env));
        if let Some(clock) = setup.clock {
            run.app_env.extend(clock.env_of_clock(directory.path()));
        }
        let lines = if setup.has_lines {
            let to_app = Line::lay(ports.app_called, ports.app).await;
            let to_daprd = Line::lay(ports.dapr_grpc_called, ports.dapr.grpc).await;
            vec![to_app, to_daprd]
        } else {
            Vec::new()
        };
        let mut world = Self {
            app: None,
            daprd: None,
            redis,
            inventory,
            lines,
            database,
            disk,
            ports,
            run,
            daprd_env: setup.daprd_env,
            app_starts: 0,
            daprd_starts: 0,
            http: reqwest::Client::builder().no_proxy().timeout(SOON).build().unwrap(),
            is_bulk: setup.is_bulk,
            directory,
            _slot: slot,
        };
        world.start_app().await;
        world.start_daprd().await;
        if setup.components == "redis" {
            for topic in [TOPIC, DEAD] {
                let what = format!("{topic} is consumed");
                becomes(SOON, &what, true, async || world.redis.is_consumed(topic, CONSUMER)).await;
            }
        }
        world
    }

    /// Starts the service, and waits until it listens.
    pub async fn start_app(&mut self) {
        self.app_starts += 1;
        let log = self.log_of("app", self.app_starts);
        let mut app = Launch::new("backstop", env!("CARGO_BIN_EXE_backstop"))
            .args(["serve"])
            .forget_env(&FORGOTTEN)
            .env(&self.run.app_env)
            .directory(self.directory.path())
            .log_to(log)
            .start()
            .unwrap();
        let address = (std::net::Ipv4Addr::LOCALHOST, self.ports.app).into();
        app.wait_until(Ready::Tcp(address), SOON).await.unwrap();
        self.app = Some(app);
    }

    /// Starts the sidecar, and waits until it is ready.
    pub async fn start_daprd(&mut self) {
        self.daprd_starts += 1;
        let log = self.log_of("daprd", self.daprd_starts);
        let mut daprd = Launch::new("daprd", find_daprd())
            .args(&self.run.daprd_args)
            .forget_env(&FORGOTTEN)
            .env(self.daprd_env.iter().map(|(name, value)| (name, value)))
            .directory(self.directory.path())
            .log_to(log)
            .start()
            .unwrap();
        let url = format!("http://127.0.0.1:{}/v1.0/healthz", self.ports.dapr.http);
        daprd.wait_until(Ready::Http(url), SOON).await.unwrap();
        self.daprd = Some(daprd);
    }

    /// Kills the service as a crash does (SIGKILL).
    pub fn kill_app(&mut self) {
        self.app.take().expect("the service runs").kill().unwrap();
    }

    /// Kills the sidecar as a crash does (SIGKILL).
    pub fn kill_daprd(&mut self) {
        self.daprd.take().expect("the sidecar runs").kill().unwrap();
    }

    /// Asks the service to stop (SIGTERM), and says whether it did so in good order.
    pub async fn stop_app(&mut self) -> bool {
        let mut app = self.app.take().expect("the service runs");
        app.stop(SOON).await.unwrap().success()
    }

    /// From now on neither sidecar nor service hears an answer of the other; calls arrive.
    pub fn lose_answers(&self) {
        assert!(!self.lines.is_empty(), "a world without lines: Setup::over_lines");
        self.lines.iter().for_each(Line::lose_answers);
    }

    /// Ends the connections on which answers were lost; new ones work.
    pub fn mend_lines(&self) {
        self.lines.iter().for_each(Line::mend);
    }

    fn log_of(&self, name: &str, start: usize) -> PathBuf {
        self.directory.path().join(format!("{name}-{start}.log"))
    }

    /// Everything that a program of this world has printed, over all its starts.
    fn log(&self, name: &str, starts: usize) -> String {
        let logs = (1..=starts).map(|start| std::fs::read(self.log_of(name, start)));
        let texts = logs.map(|log| String::from_utf8_lossy(&log.unwrap_or_default()).into_owned());
        texts.collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Nothing here is worth a drain.
        for process in [&mut self.app, &mut self.daprd].into_iter().flatten() {
            drop(process.kill());
        }
        self.redis.kill();
        if std::thread::panicking() {
            for (name, starts) in [("app", self.app_starts), ("daprd", self.daprd_starts)] {
                const LINES: usize = 40;
                let log = self.log(name, starts);
                // What the sidecar says at its start fills pages.
                let tells = |line: &&str| !line.contains("level=info") || line.contains("status");
                let lines: Vec<&str> = log.lines().filter(tells).collect();
                let last = &lines[lines.len().saturating_sub(LINES)..];
                eprintln!("--- the last lines of {name}:\n{}", last.join("\n"));
            }
        }
    }
}

fn ports(has_lines: bool) -> Ports {
    let [app, http, dapr_http, grpc, metrics, internal_grpc, profile] = free_ports().unwrap();
    let [app_line, grpc_line] = free_ports().unwrap();
    let dapr = DaprPorts { http: dapr_http, grpc, metrics, internal_grpc, profile };
    Ports {
        app,
        app_called: if has_lines { app_line } else { app },
        http,
        dapr,
        dapr_grpc_called: if has_lines { grpc_line } else { grpc },
    }
}

/// The shipped component files with this world's Redis in them, and with the test's edits.
fn copy_components(setup: &Setup, to: &Path, redis_port: u16) {
    std::fs::create_dir_all(to).unwrap();
    let from = top().join("components").join(setup.components);
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let mut text = std::fs::read_to_string(entry.path()).unwrap();
        text = text.replace("localhost:6379", &format!("127.0.0.1:{redis_port}"));
        for (file, old, new) in setup.edits.iter().filter(|(file, ..)| entry.file_name() == *file) {
            assert!(text.contains(old), "components/{}/{file}: no {old:?}", setup.components);
            text = text.replace(old, new);
        }
        if let Some(port) = setup.second_redis_port
            && entry.file_name() == "orderpubsub.yaml"
        {
            let second = text
                .replace(&format!(":{redis_port}"), &format!(":{port}"))
                .replace(&format!("name: {PUBSUB}"), &format!("name: {SECOND_PUBSUB}"));
            std::fs::write(to.join("secondpubsub.yaml"), second).unwrap();
        }
        std::fs::write(to.join(entry.file_name()), text).unwrap();
    }
}

/// What `dapr run -f .` would make of `dapr.yaml`, on this world's ports.
fn how_to_run(
    setup: &Setup,
    ports: &Ports,
    resources: &Path,
    database: &Path,
    inventory: &Inventory,
) -> Run {
    let app = Template::read(&top().join("dapr.yaml")).unwrap().app(None).unwrap();
    let mut choices = Choices::without_init(ports.dapr);
    choices.app_port = Some(ports.app_called);
    choices.resources_paths = Some(vec![resources.to_owned()]);
    choices.app_health_check = (!setup.has_health_check).then_some(false);
    let own = [
        ("APP_PORT", ports.app.to_string()),
        ("DAPR_GRPC_PORT", ports.dapr_grpc_called.to_string()),
        ("BACKSTOP_HTTP_LISTEN", format!("127.0.0.1:{}", ports.http)),
        ("BACKSTOP_STORE_URL", format!("sqlite://{}", database.display())),
        ("BACKSTOP_LOG_FORMAT", "json".to_owned()),
    ];
    choices.env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    if setup.has_inventory {
        choices.env.insert("BACKSTOP_ORDERS_INVENTORY_URL".to_owned(), inventory.url());
    }
    if setup.is_bulk {
        choices.env.insert("BACKSTOP_ORDERS_BULK".to_owned(), "on".to_owned());
    }
    choices.env.extend(setup.env.iter().cloned());
    app.run(&choices)
}

/// The path of a daprd; where there is none it is built, once.
fn find_daprd() -> &'static str {
    static DAPRD: OnceLock<String> = OnceLock::new();
    DAPRD.get_or_init(|| {
        let script = top().join("deploy/local/find-daprd.sh");
        let found = Command::new(&script).output().expect("bash runs deploy/local/find-daprd.sh");
        assert!(
            found.status.success(),
            "there is no daprd:\n{}",
            String::from_utf8_lossy(&found.stderr)
        );
        String::from_utf8(found.stdout).unwrap().trim().to_owned()
    })
}

/// The directory of the package.
fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of one of the package's files.
pub fn read(file: &str) -> String {
    std::fs::read_to_string(top().join(file)).unwrap()
}

/// A time in seconds, for what a test has to say about times.
pub fn secs(secs: f64) -> Duration {
    Duration::from_secs_f64(secs)
}
