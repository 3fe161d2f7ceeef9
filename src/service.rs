//! Wiring and lifecycle: what an application composes, and how it starts, serves and drains.
//!
//! **Invariants**
//! - Both ports are bound, and the store is open and migrated, before the sidecar can call.
//! - Draining needs no sidecar: it may have left first. What is not published stays in the outbox.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use dapr::dapr::proto::runtime::v1::app_callback_alpha_server::AppCallbackAlphaServer;
use dapr::dapr::proto::runtime::v1::app_callback_health_check_server::AppCallbackHealthCheckServer;
use dapr::dapr::proto::runtime::v1::app_callback_server::AppCallbackServer;
use futures::FutureExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::TcpIncoming;

use crate::clock::Clock;
use crate::config::Config;
use crate::consumer::{Consumer, Times};
use crate::observe::{Backlog, Observer};
use crate::sidecar::callback::Callback;
use crate::sidecar::client::Client;
use crate::sidecar::identity::{self, Identity};
use crate::sidecar::token::TokenCheck;
use crate::store::{AppMigration, OpenAs, Retention, Store};
use crate::subscription::Subscription;
use crate::telemetry::Telemetry;
use crate::{recovery, relay};

mod http;

/// How often the gauges are measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// How often a service looks for what is over.
const FORGET_EVERY: Duration = Duration::from_secs(10);
/// The pause between two batches of it, in which others write.
const FORGET_MORE_AFTER: Duration = Duration::from_millis(100);
/// How long a service is cautious after an unclean end.
const CAUTIOUS_FOR: Duration = Duration::from_secs(600);
/// How long the last answers may take to leave.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Streams the sidecar may open on one connection; hyper's default of 200 would queue deliveries
/// inside the sidecar, unseen.
const STREAMS_MAX: u32 = 4096;

/// What an application composes: subscriptions, and the tables its effects write.
#[derive(Debug, Default)]
pub struct Service {
    subscriptions: Vec<Subscription>,
    migrations: Vec<AppMigration>,
}

impl Service {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a subscription.
    #[must_use]
    pub fn subscribe(mut self, subscription: Subscription) -> Self {
        self.subscriptions.push(subscription);
        self
    }

    /// Adds a migration of the application's own tables: run once, in the order added, before the
    /// first delivery. Never edit one that has been released; add another.
    #[must_use]
    pub fn migration(mut self, name: &'static str, sql: &'static str) -> Self {
        self.migrations.push(AppMigration { name, sql });
        self
    }

    /// Opens and migrates the store, and nothing else.
    ///
    /// # Errors
    /// When another service holds the store, or a migration does not apply.
    pub async fn migrate(self, config: &Config) -> anyhow::Result<()> {
        Ok(Store::migrate(&config.store, self.migrations, Clock::System).await?)
    }

    /// Serves until `shutdown` completes, then drains.
    ///
    /// # Errors
    /// What is wrong with how it was composed, a port that is taken, a store that cannot be
    /// opened, or a drain that did not end within its limit.
    ///
    /// # Cancel safety
    /// Dropping the future stops without draining, as a crash does: nothing is lost by it.
    pub async fn serve(
        self,
        config: &Config,
        telemetry: &Telemetry,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        self.check()?;
        let store = self.open_store(config).await?;
        let app_address = SocketAddr::from((Ipv4Addr::LOCALHOST, config.sidecar.app_port));
        let app_listener = bind(app_address, "APP_PORT").await?;
        let http_listener = bind(config.http_listen, "BACKSTOP_HTTP_LISTEN").await?;

        let observer = Observer::new(&telemetry.meter());
        observer.store_health(true);
        let client = Client::new(
            &config.sidecar.grpc_endpoint,
            config.sidecar.dapr_api_token.as_ref(),
            config.delivery.decode_bytes_max,
        )?;
        let subscriptions = self.subscriptions.into_iter().map(Arc::new).collect();
        let times = Times {
            handler_timeout: config.delivery.handler_timeout,
            delivery_deadline: config.delivery.deadline,
        };
        store.serving().await?;
        let consumer = Arc::new(Consumer::new(store, subscriptions, times, observer.clone()));
        mind_crashes(&consumer);
        let (told, identity) = watch::channel(None);
        let running = Running {
            consumer,
            client: client.clone(),
            identity,
            deliveries: TaskTracker::new(),
            loops: TaskTracker::new(),
            stop_taking: CancellationToken::new(),
            stop: CancellationToken::new(),
        };
        let learn =
            identity::learn(client, config.consumer.clone(), observer, told, running.stop.clone());
        running.loops.spawn(learn);
        running.start_background(config.recovery_concurrency_max);
        let (stop, retention) = (running.stop.clone(), config.retention);
        running.loops.spawn(forget(Arc::clone(&running.consumer), retention, stop));
        running.start_http(http_listener, telemetry);
        let mut server = running.start_callback(app_listener, config);
        tracing::info!(app_port = config.sidecar.app_port, http = %config.http_listen, "Backstop is ready for its sidecar.");

        tokio::select! {
            () = shutdown => {}
            ended = &mut server => {
                ended.context("the callback server ended")??;
                anyhow::bail!("the callback server ended by itself");
            }
            () = running.consumer.store.ends() => {
                anyhow::bail!("the store's writer ended by itself; see the log");
            }
        }
        running.drain(server, config.drain_timeout).await
    }

    fn check(&self) -> anyhow::Result<()> {
        let mut problems: Vec<String> =
            self.subscriptions.iter().flat_map(Subscription::problems).collect();
        if self.subscriptions.is_empty() {
            problems.push("no subscription".to_owned());
        }
        for (at, one) in self.subscriptions.iter().enumerate() {
            let earlier = self.subscriptions.iter().take(at);
            if earlier.clone().any(|other| other.name() == one.name()) {
                problems.push(format!("two subscriptions named `{}`", one.name()));
            }
        }
        anyhow::ensure!(
            problems.is_empty(),
            "the service is not composed well:\n  {}",
            problems.join("\n  ")
        );
        Ok(())
    }

    async fn open_store(&self, config: &Config) -> anyhow::Result<Store> {
        let migrations = self.migrations.clone();
        let clock = Clock::System;
        let store = Store::open(&config.store, OpenAs::Service, migrations, config.recovery, clock);
        Ok(store.await?)
    }
}

async fn bind(address: SocketAddr, variable: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{address} cannot be listened on; set {variable} to a free one"))
}

type Server = tokio::task::JoinHandle<Result<(), tonic::transport::Error>>;

/// A service under way.
struct Running {
    consumer: Arc<Consumer>,
    client: Client,
    identity: watch::Receiver<Option<Arc<Identity>>>,
    deliveries: TaskTracker,
    loops: TaskTracker,
    /// No new deliveries, no new recoveries.
    stop_taking: CancellationToken,
    /// Everything ends.
    stop: CancellationToken,
}

impl Running {
    /// Recovery and relay start when the consumer's name is known: both need it.
    fn start_background(&self, recovery_concurrency: usize) {
        let (consumer, client, runs) =
            (Arc::clone(&self.consumer), self.client.clone(), self.deliveries.clone());
        let (stop_taking, stop, loops) =
            (self.stop_taking.clone(), self.stop.clone(), self.loops.clone());
        let mut identity = self.identity.clone();
        self.loops.spawn(async move {
            let known = tokio::select! {
                () = stop.cancelled() => return,
                known = identity.wait_for(Option::is_some) => known,
            };
            let Some(name) = known
                .ok()
                .and_then(|known| known.as_ref().map(|known| Arc::clone(&known.consumer)))
            else {
                return;
            };
            loops.spawn(recovery::run(
                Arc::clone(&consumer),
                Arc::clone(&name),
                recovery_concurrency,
                runs,
                stop_taking,
            ));
            let publish = move |messages| {
                let client = client.clone();
                async move { client.publish(messages).await }.boxed()
            };
            relay::run(consumer, name, Box::new(publish), stop).await;
        });
        self.loops.spawn(measure(Arc::clone(&self.consumer), self.stop.clone()));
        self.loops.spawn(stay_alive(Arc::clone(&self.consumer), self.stop.clone()));
    }

    fn start_http(&self, listener: TcpListener, telemetry: &Telemetry) {
        let probes = http::Probes {
            store: self.consumer.store.clone(),
            identity: self.identity.clone(),
            stopping: self.stop_taking.clone(),
            telemetry: telemetry.clone(),
        };
        self.loops.spawn(http::serve(listener, probes, self.stop.clone()));
    }

    fn start_callback(&self, listener: TcpListener, config: &Config) -> Server {
        let token =
            TokenCheck::new(config.sidecar.app_api_token.clone(), config.sidecar.app_token_mode);
        let callback = Callback::new(
            Arc::clone(&self.consumer),
            config.pubsub.as_str().into(),
            self.identity.clone(),
            self.deliveries.clone(),
            self.stop_taking.clone(),
            token,
        );
        let limit = config.delivery.decode_bytes_max;
        let events = AppCallbackServer::new(callback.clone()).max_decoding_message_size(limit);
        let alpha = AppCallbackAlphaServer::new(callback.clone()).max_decoding_message_size(limit);
        let health = AppCallbackHealthCheckServer::new(callback);
        let stop_taking = self.stop_taking.clone();
        tokio::spawn(async move {
            tonic::transport::Server::builder()
                .max_concurrent_streams(STREAMS_MAX)
                // Without these a peer that is gone keeps the drain waiting.
                .http2_keepalive_interval(Some(Duration::from_secs(20)))
                .http2_keepalive_timeout(Some(Duration::from_secs(10)))
                .add_service(events)
                .add_service(alpha)
                .add_service(health)
                .serve_with_incoming_shutdown(
                    // Without it the last answers of a burst wait for an acknowledgement.
                    TcpIncoming::from(listener).with_nodelay(Some(true)),
                    stop_taking.cancelled_owned(),
                )
                .await
        })
    }

    /// Takes nothing more, finishes what is in hand, and ends.
    async fn drain(self, mut server: Server, limit: Duration) -> anyhow::Result<()> {
        tracing::info!(limit_secs = limit.as_secs_f64(), "Draining.");
        self.stop_taking.cancel();
        self.deliveries.close();
        self.loops.close();
        let drained = tokio::time::timeout(limit, async {
            self.deliveries.wait().await;
            self.stop.cancel();
            self.loops.wait().await;
        });
        let in_time = drained.await.is_ok();
        self.stop.cancel();
        // All deliveries are judged; their last answers still have to leave. What the server may
        // wait for after that are idle connections.
        if tokio::time::timeout(LAST_ANSWERS, &mut server).await.is_err() {
            server.abort();
        }
        anyhow::ensure!(
            in_time,
            "the drain took longer than {} s; what was in hand is in the store or comes again",
            limit.as_secs_f64()
        );
        // Only now: a drain past its limit leaves the mark of an unclean end.
        self.consumer.store.ended().await?;
        tracing::info!("Drained.");
        Ok(())
    }
}

/// After an unclean end, seen here or by another replica, a consumer is cautious for a while.
fn mind_crashes(consumer: &Consumer) {
    if let Some(seen) = consumer.store.crash_seen() {
        consumer.be_cautious(seen.plus(CAUTIOUS_FOR));
    }
}

/// Gives the store signs of life until everything ends.
async fn stay_alive(consumer: Arc<Consumer>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Store::SIGN_OF_LIFE_EVERY) => {}
        }
        if !consumer.store.is_healthy() {
            // Recovery probes it. What changes nothing could be committed all the same.
            continue;
        }
        match consumer.store.serving().await {
            Ok(()) => mind_crashes(&consumer),
            Err(error) => drop(consumer.store_away(&error)),
        }
    }
}

/// Forgets what is over, little by little, until everything ends.
async fn forget(consumer: Arc<Consumer>, retention: Retention, stop: CancellationToken) {
    let mut pause = FORGET_EVERY;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        if !consumer.store.is_healthy() {
            continue;
        }
        pause = match consumer.store.forget(retention).await {
            Ok(true) => FORGET_MORE_AFTER,
            Ok(false) => FORGET_EVERY,
            Err(error) => {
                // Nothing waits for it; what is away is told by those that do.
                tracing::debug!(error = %error, "Nothing could be forgotten just now.");
                FORGET_EVERY
            }
        };
    }
}

async fn measure(consumer: Arc<Consumer>, stop: CancellationToken) {
    loop {
        if let Ok(backlog) = consumer.store.backlog().await {
            let now = consumer.store.now();
            consumer.observer.store_health(consumer.store.is_healthy());
            consumer.observer.backlog_measured(Backlog {
                outbox_pending: backlog.outbox_pending,
                outbox_delayed: backlog.outbox_delayed,
                outbox_oldest_age: backlog
                    .outbox_oldest
                    .map_or(Duration::ZERO, |oldest| now.since(oldest)),
                exceptions_open: backlog.exceptions_open,
                recovering: backlog.recovering,
                gates_closed: backlog.gates_closed,
                gates_waiting: backlog.gates_waiting,
            });
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(MEASURE_EVERY) => {}
        }
    }
}
