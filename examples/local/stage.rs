//! What the demo starts, how it waits for each, and how it stops them.
//!
//! **Invariant:** what has been started is held here from that moment on, so that an interrupt at
//! any time finds it; and nothing else is ever stopped.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::dapr_yaml::{Choices, Ports, Run, Template};
use crate::inventory::Inventory;
use crate::process::{Launch, Process, Ready, find_on_path, free_ports, is_free, resolve};
use crate::{Arguments, Broker, say, seconds};

const TEMPLATE: &str = "dapr.yaml";
/// Logs and data; not in a resources directory, where the sidecar would read them as resources.
const RUN_DIRECTORY: &str = ".run";
const HTTP_PORT: u16 = 8080;
const REDIS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 6379);
/// How long a start may take.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long the compiler may take on a small machine.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// How long the sidecar may take to end: it gives what is in flight 5 s.
const SIDECAR_STOP_LIMIT: Duration = Duration::from_secs(7);
/// How long the others may: the service drains for up to 20 s.
const STOP_LIMIT: Duration = Duration::from_secs(21);
/// What a developer has set for something else must not reach the service or the sidecar.
const FORGOTTEN: [&str; 3] = ["BACKSTOP_", "DAPR_", "APP_"];
/// Recovery in seconds, where it usually takes its time.
const SHORT_RECOVERY: [(&str, &str); 3] = [
    ("BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", "1"),
    ("BACKSTOP_RECOVERY_BACKOFF_MAX_SECS", "2"),
    ("BACKSTOP_RECOVERIES_MAX", "3"),
];

/// What was started.
#[derive(Debug, Default)]
pub struct Stage {
    builder: Option<Process>,
    redis: Option<Process>,
    service: Option<Process>,
    daprd: Option<Process>,
}

/// Where everything is, once it runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The sidecar's HTTP API.
    pub sidecar_url: String,
    /// The pub/sub component.
    pub pubsub: String,
    /// The service's `/metrics` and probes.
    pub service_url: String,
    /// The service's program.
    pub program: PathBuf,
    /// What the service was told beside our own environment.
    pub env: BTreeMap<String, String>,
    /// Where the service runs.
    pub directory: PathBuf,
    /// The inventory stub.
    pub inventory: Arc<Inventory>,
}

impl Place {
    /// The store's URL.
    pub fn store_url(&self) -> &str {
        self.env.get("BACKSTOP_STORE_URL").map(String::as_str).unwrap_or_default()
    }

    /// The service's program as one types it here.
    pub fn program_as_typed(&self) -> String {
        let below = self.program.strip_prefix(&self.directory);
        below.unwrap_or(&self.program).display().to_string()
    }
}

impl Stage {
    /// Starts everything, in the order in which it is needed.
    pub async fn start(&mut self, arguments: &Arguments) -> anyhow::Result<Place> {
        let daprd = daprd_program(arguments.daprd.clone())?;
        let app = Template::read(Path::new(TEMPLATE))
            .context("this is started from the top of the checkout")?
            .app(None)?;
        let run_directory = app.directory.join(RUN_DIRECTORY);
        std::fs::create_dir_all(&run_directory)?;
        say(introduction(arguments.broker));
        let program = self.build().await?;
        if arguments.broker == Broker::Redis {
            self.start_redis(&run_directory).await?;
        }

        let inventory = Arc::new(Inventory::start().await?);
        started("inventory", &format!("a stub of ours on {}", inventory.url()), None);
        let [http, grpc, metrics, internal_grpc, profile, spare_app, spare_http] = free_ports()?;
        let ports = Ports { http, grpc, metrics, internal_grpc, profile };
        let http_port = if is_free(HTTP_PORT) { HTTP_PORT } else { spare_http };
        let service_address = SocketAddr::from((Ipv4Addr::LOCALHOST, http_port));
        let mut choices = choices(arguments.broker, ports, service_address, &inventory.url());
        if !is_free(app.run(&choices).app_port) {
            choices.app_port = Some(spare_app);
        }
        let run = app.run(&choices);
        let place = Place {
            sidecar_url: format!("http://127.0.0.1:{}", run.ports.http),
            pubsub: run.app_env.get("BACKSTOP_PUBSUB").cloned().context("no BACKSTOP_PUBSUB")?,
            service_url: format!("http://{service_address}"),
            program,
            env: run.app_env.clone(),
            directory: run.directory.clone(),
            inventory,
        };
        self.start_service(&place, &run, &run_directory, arguments.verbose).await?;
        self.start_daprd(&daprd, &place, &run, &run_directory, arguments.verbose).await?;
        Ok(place)
    }

    /// The service's program, built if it is not up to date.
    async fn build(&mut self) -> anyhow::Result<PathBuf> {
        let ours = std::env::current_exe()?;
        let profile = ours.parent().and_then(Path::parent).context("the build has no directory")?;
        let program = profile.join("backstop");
        // Together with this example, so that cargo chooses the same features for the libraries
        // and does not build them twice.
        let mut arguments = vec!["build", "--quiet", "--bin", "backstop", "--example", "local"];
        if profile.ends_with("release") {
            arguments.push("--release");
        }
        if !program.exists() {
            say("  building the service ...");
        }
        let build = Launch::new("cargo", variable("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(arguments)
            .echo();
        let build = self.builder.insert(build.start()?);
        let status = build.wait(BUILD_LIMIT).await?;
        anyhow::ensure!(
            status.success(),
            "the service cannot be built: cargo build --bin backstop"
        );
        self.builder = None;
        Ok(program)
    }

    async fn start_redis(&mut self, run_directory: &Path) -> anyhow::Result<()> {
        let address = SocketAddr::from(REDIS);
        if !is_free(address.port()) {
            anyhow::ensure!(
                is_redis(address),
                "something listens on {address}, and it is not a Redis that lets us in; \
                 components/redis needs one there"
            );
            started("redis", &format!("yours on {address}; it is used and left running"), None);
            return Ok(());
        }
        let began = Instant::now();
        let server = find_on_path("redis-server").context(
            "there is no redis-server on PATH; `make run BROKER=redis` installs it, \
             or deploy/local/install.sh redis-server",
        )?;
        let data = run_directory.join("redis");
        std::fs::create_dir_all(&data)?;
        let redis = Launch::new("redis", server)
            .args(["--port", "6379", "--bind", "127.0.0.1", "--appendonly", "yes", "--dir"])
            .args([&data])
            .log_to(run_directory.join("redis.log"));
        let redis = self.redis.insert(redis.start()?);
        redis.wait_until(Ready::Tcp(address), START_LIMIT).await?;
        started("redis", &format!("ours on {address}, data in .run/redis"), Some(began));
        Ok(())
    }

    async fn start_service(
        &mut self,
        place: &Place,
        run: &Run,
        run_directory: &Path,
        verbose: bool,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let service = Launch::new("backstop", &place.program)
            .args(["serve"])
            .forget_env(&FORGOTTEN)
            .env(&run.app_env)
            .directory(&run.directory)
            .log_to(run_directory.join("backstop.log"));
        let service = self.service.insert(echoed(service, verbose).start()?);
        let app_port = SocketAddr::from((Ipv4Addr::LOCALHOST, run.app_port));
        service.wait_until(Ready::Tcp(app_port), START_LIMIT).await?;
        started("backstop", &format!("the service on {}", place.service_url), Some(began));
        Ok(())
    }

    async fn start_daprd(
        &mut self,
        program: &Path,
        place: &Place,
        run: &Run,
        run_directory: &Path,
        verbose: bool,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let daprd = Launch::new("daprd", program)
            .args(&run.daprd_args)
            .forget_env(&FORGOTTEN)
            .directory(&run.directory)
            .log_to(run_directory.join("daprd.log"));
        let daprd = self.daprd.insert(echoed(daprd, verbose).start()?);
        // Ready means subscribed, or the in-memory broker would drop what is published.
        let ready = Ready::Http(format!("{}/v1.0/healthz", place.sidecar_url));
        daprd.wait_until(ready, START_LIMIT).await?;
        if let Some(service) = &mut self.service {
            let ready = Ready::Http(format!("{}/readyz", place.service_url));
            service.wait_until(ready, START_LIMIT).await?;
        }
        started("daprd", &format!("the sidecar on {}", place.sidecar_url), Some(began));
        Ok(())
    }

    /// Completes when one of them has ended though nobody asked it to.
    pub async fn fallen(&mut self) -> anyhow::Error {
        loop {
            for process in [&mut self.daprd, &mut self.service, &mut self.redis] {
                let Some(process) = process else { continue };
                match process.ended() {
                    Ok(None) => {}
                    Ok(Some(status)) => {
                        return anyhow::anyhow!(
                            "{} has ended by itself ({status})\n{}",
                            process.name(),
                            process.last_lines()
                        );
                    }
                    Err(error) => return error,
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops what was started: first the sidecar, so that nothing new arrives, then the service,
    /// which finishes what it has in hand, then Redis if it is ours.
    pub async fn stop(&mut self) {
        for (process, limit) in [
            (&mut self.builder, STOP_LIMIT),
            (&mut self.daprd, SIDECAR_STOP_LIMIT),
            (&mut self.service, STOP_LIMIT),
            (&mut self.redis, STOP_LIMIT),
        ] {
            let Some(running) = process else { continue };
            let name = running.name().to_owned();
            let had_ended = matches!(running.ended(), Ok(Some(_)));
            match running.stop(limit).await {
                Ok(_) if had_ended => {}
                Ok(_) => say(&format!("  {name:<10} stopped")),
                Err(error) => say(&format!("  {name:<10} cannot be stopped: {error:#}")),
            }
            *process = None;
        }
    }

    /// Kills what was started.
    pub fn kill(&mut self) {
        let all = [&mut self.builder, &mut self.daprd, &mut self.service, &mut self.redis];
        for running in all.into_iter().flatten() {
            drop(running.kill());
        }
    }
}

const fn introduction(broker: Broker) -> &'static str {
    match broker {
        Broker::InMemory => {
            "Backstop behind a real sidecar, with the in-memory broker.

  What this broker cannot promise: it keeps nothing over a restart and redelivers nothing, hands
  over one event at a time, and has no second component to carry dead letters past a breaker.
  The app health check of dapr.yaml is off for it: with the check the sidecar subscribes a little
  later, and what is published before is lost here. `make run BROKER=redis` has none of this.
"
        }
        Broker::Redis => "Backstop behind a real sidecar, with Redis.\n",
    }
}

/// What differs from `dapr run -f .`.
fn choices(broker: Broker, ports: Ports, service: SocketAddr, inventory_url: &str) -> Choices {
    let mut choices = Choices::without_init(ports);
    choices.resources_paths = Some(vec![Path::new("components").join(broker.directory())]);
    if broker == Broker::InMemory {
        // With the check the sidecar subscribes only after the first good probe, and this broker
        // drops what is published before.
        choices.app_health_check = Some(false);
    }
    let own = [
        ("BACKSTOP_HTTP_LISTEN", service.to_string()),
        ("BACKSTOP_ORDERS_INVENTORY_URL", inventory_url.to_owned()),
        ("BACKSTOP_LOG_FORMAT", "human".to_owned()),
        ("NO_COLOR", "1".to_owned()),
    ];
    let short = SHORT_RECOVERY.map(|(name, value)| (name, value.to_owned()));
    let env = own.into_iter().chain(short).map(|(name, value)| (name.to_owned(), value));
    choices.env = env.collect();
    choices
}

fn daprd_program(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let program = given.or_else(|| variable("DAPRD")).or_else(|| find_on_path("daprd"));
    let program = program.context(
        "There is no daprd: --daprd and DAPRD are not set, and it is not on PATH.\n\
         `make run` finds or builds one. By hand:\n  \
         DAPRD=$(deploy/local/find-daprd.sh) cargo run --example local",
    )?;
    resolve(&program)
}

/// A variable of the shell or of cargo; the service's own settings are read by its `config.rs`.
fn variable(name: &str) -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "about this program, not about the service")]
    let value = std::env::var_os(name)?;
    (!value.is_empty()).then(|| value.into())
}

/// Whether a Redis answers there, and without a password.
fn is_redis(address: SocketAddr) -> bool {
    let moment = Duration::from_secs(2);
    let asked = TcpStream::connect_timeout(&address, moment).and_then(|mut stream| {
        stream.set_read_timeout(Some(moment))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    });
    asked.is_ok_and(|answer| answer == *b"+PONG")
}

fn echoed(launch: Launch, verbose: bool) -> Launch {
    if verbose { launch.echo() } else { launch }
}

fn started(name: &str, what: &str, began: Option<Instant>) {
    let took = began.map(|began| format!(", up in {}", seconds(began.elapsed())));
    say(&format!("  {name:<10} {what}{}", took.unwrap_or_default()));
}
