//! What this process is told by its environment: read once, before any port is opened, and handed
//! on by value.
//!
//! **Invariants**
//! - Nothing else in the crate reads the environment.
//! - Every variable is a row of one table ([`variables`](self)), which drives the reading, the
//!   printed settings and the reference page alike.
//! - All problems are told at once, and none of them repeats a value: it might be a secret.
//!
//! Which broker is used stands in `components/`, how the sidecar retries in `resiliency.yaml`,
//! what belongs to one subscription in the code that declares it: none of it is here.

mod page;
mod read;
mod values;
mod variables;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Serialize;

use crate::backoff::Backoff;
use crate::custody::Limits;
use crate::store::{PostgresSettings, Retention};

pub use crate::store::StoreUrl;
pub use page::reference_page;
pub use read::{ConfigError, Problem};
use read::{Given, Reader};
use values::StorePlace;
use variables as var;

/// Everything the environment decides about this process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database.
    pub store: StoreUrl,
    /// Where the console, `/metrics`, `/healthz` and `/readyz` listen. Default `127.0.0.1:8080`.
    pub http_listen: SocketAddr,
    /// The consumer's name; absent means the Dapr app id, as the sidecar's metadata gives it.
    pub consumer: Option<String>,
    /// The pub/sub component that is consumed from and published to. Default `orderpubsub`.
    pub pubsub: String,
    /// The bounds of automatic recovery.
    pub recovery: Limits,
    /// Recoveries that run at the same time. Default 4.
    pub recovery_concurrency_max: usize,
    /// The bounds of one delivery.
    pub delivery: DeliveryLimits,
    /// For how long the store keeps what is over.
    pub retention: Retention,
    /// How long a stopping process waits for the work in hand. Default 20 s.
    pub drain_timeout: Duration,
    /// Where the sidecar is, and what each side shows the other.
    pub sidecar: SidecarSettings,
    /// Where logs, traces and metrics go.
    pub telemetry: TelemetrySettings,
    /// The inventory service of the reference consumer, without a slash at its end; absent means
    /// that nobody is asked.
    pub orders_inventory_url: Option<String>,
    /// Whether the reference consumer asks for bulk.
    pub orders_bulk: bool,
    settings: Vec<Setting>,
}

/// The bounds of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryLimits {
    /// How long one run of a handler may take. Default 20 s.
    pub handler_timeout: Duration,
    /// The longest a delivery waits for a twin in flight. Default 25 s.
    pub deadline: Duration,
    /// The largest gRPC message that is decoded, in bytes. Default 64 MiB.
    pub decode_bytes_max: usize,
}

impl Default for DeliveryLimits {
    fn default() -> Self {
        Self {
            handler_timeout: Duration::from_secs(20),
            deadline: Duration::from_secs(25),
            decode_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// Where the sidecar is, and what each side shows the other.
#[derive(Clone, Debug)]
pub struct SidecarSettings {
    /// The port on which the sidecar calls us. Default 50051.
    pub app_port: u16,
    /// The URL of the sidecar's gRPC API. Default `http://127.0.0.1:50001`.
    pub grpc_endpoint: String,
    /// The port of the sidecar's HTTP API. Default 3500.
    pub http_port: u16,
    /// The token the sidecar must show us, if any.
    pub app_api_token: Option<SecretString>,
    /// What becomes of a call without a token when one is set. Default require.
    pub app_token_mode: AppTokenMode,
    /// The token we must show the sidecar, if any.
    pub dapr_api_token: Option<SecretString>,
}

/// What becomes of a call without a token when `APP_API_TOKEN` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppTokenMode {
    /// It is refused.
    #[default]
    Require,
    /// It is accepted (sidecars before 1.16.2 send none); a wrong token is still refused.
    AcceptMissing,
}

/// Where logs, traces and metrics go.
#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    /// Which log lines are written, in the syntax of `tracing_subscriber::EnvFilter`.
    pub log: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// The OpenTelemetry collector; absent means that nothing is exported.
    pub otlp_endpoint: Option<String>,
    /// The name of this service in traces, metrics and exported logs.
    pub service_name: String,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Human in a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Lines for people.
    Human,
    /// One JSON object a line.
    Json,
}

/// One variable with the value in effect, as `backstop config` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// The value in effect; a secret is only said to be set.
    pub value: String,
    /// Who gave the value.
    pub source: Origin,
    /// What it is about.
    pub meaning: &'static str,
}

/// Who gave a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The table of defaults.
    Default,
    /// The environment.
    Environment,
}

impl Config {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// [`ConfigError`] with every problem there is.
    pub fn from_env() -> Result<Self, ConfigError> {
        #[allow(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let variables = std::env::vars_os();
        Self::from_given(variables.filter_map(|(name, value)| {
            // A name that is not UTF-8 is none of ours.
            Some((name.into_string().ok()?, value.into_string().map_err(|_: OsString| ())))
        }))
    }

    /// Reads these variables as if they were the environment.
    ///
    /// # Errors
    /// [`ConfigError`] with every problem there is.
    pub fn from_vars(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        Self::from_given(variables.into_iter().map(|(name, value)| (name, Ok(value))))
    }

    /// Every variable with the value in effect, in the order of the reference page.
    #[must_use]
    pub fn effective(&self) -> Vec<Setting> {
        self.settings.clone()
    }

    fn from_given(variables: impl Iterator<Item = Given>) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(variables);
        let config = Self {
            store: store_url(&mut reader),
            http_listen: reader.parsed(&var::HTTP_LISTEN, values::NOWHERE, values::listen_address),
            consumer: reader.optional(&var::CONSUMER, values::name),
            pubsub: reader.parsed(&var::PUBSUB, String::new(), values::name),
            recovery: recovery_limits(&mut reader),
            recovery_concurrency_max: reader.count(&var::RECOVERY_CONCURRENCY_MAX),
            delivery: DeliveryLimits {
                handler_timeout: reader.secs(&var::HANDLER_TIMEOUT_SECS),
                deadline: reader.secs(&var::DELIVERY_DEADLINE_SECS),
                decode_bytes_max: reader.count(&var::DECODE_BYTES_MAX),
            },
            retention: Retention {
                published_for: reader.secs(&var::OUTBOX_RETENTION_SECS),
                cases_for: reader.parsed(&var::CASE_RETENTION_SECS, None, values::secs_or_keep),
                audit_for: reader.parsed(&var::AUDIT_RETENTION_SECS, None, values::secs_or_keep),
            },
            drain_timeout: reader.secs(&var::DRAIN_TIMEOUT_SECS),
            sidecar: sidecar_settings(&mut reader),
            telemetry: telemetry_settings(&mut reader),
            orders_inventory_url: reader.optional(&var::ORDERS_INVENTORY_URL, values::http_url),
            orders_bulk: reader.choice(&var::ORDERS_BULK, &[("off", false), ("on", true)]),
            settings: reader.settings(),
        };
        config.check_together(&mut reader);
        reader.finish(config)
    }

    /// What no variable can say alone.
    fn check_together(&self, reader: &mut Reader) {
        let Backoff { first, max } = self.recovery.backoff;
        if max < first {
            reader.disagreement(
                &var::RECOVERY_BACKOFF_MAX_SECS,
                &var::RECOVERY_BACKOFF_FIRST_SECS,
                |other| (format!("must not be below {other}"), values::secs_text(first)),
            );
        }
        // A run that is still allowed to work must not look dead to another one.
        let lease_min = self.delivery.handler_timeout.saturating_mul(2);
        if self.recovery.lease < lease_min {
            reader.disagreement(&var::LEASE_SECS, &var::HANDLER_TIMEOUT_SECS, |other| {
                (format!("must be at least twice {other}"), values::secs_text(lease_min))
            });
        }
        // Its recovery alone may bring a message back so late; the broker may take longer.
        let budget = self.recovery.age_max.saturating_add(self.recovery.backoff.max);
        if self.recovery.remember_for < budget {
            reader.disagreement(&var::DEDUP_RETENTION_SECS, &var::RECOVERY_AGE_MAX_SECS, |other| {
                let least = format!("must be at least {other} and the longest backoff");
                (least, values::secs_text(budget))
            });
        }
        if self.http_listen.port() == self.sidecar.app_port {
            reader.disagreement(&var::HTTP_LISTEN, &var::APP_PORT, |other| {
                (format!("must not use the port of {other}"), var::HTTP_LISTEN.example.to_owned())
            });
        }
    }
}

/// Who runs an operator's command, for the audit log: `SUDO_USER`, else `USER`, else `unknown`.
#[must_use]
pub fn operator_name() -> String {
    const CHARS_MAX: usize = 64;
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    let name = ["SUDO_USER", "USER"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    name.map_or_else(|| "unknown".to_owned(), |name| name.chars().take(CHARS_MAX).collect())
}

fn store_url(reader: &mut Reader) -> StoreUrl {
    let nowhere = StorePlace::Sqlite(PathBuf::new());
    let place = reader.parsed(&var::STORE_URL, nowhere, values::store_place);
    // Read in any case, so that what is wrong with them is told.
    let (schema, pool_size) = (
        reader.parsed(&var::STORE_SCHEMA, String::new(), values::schema),
        reader.count(&var::STORE_POOL_SIZE),
    );
    let (statement_timeout, lock_timeout) = (
        reader.secs(&var::STORE_STATEMENT_TIMEOUT_SECS),
        reader.secs(&var::STORE_LOCK_TIMEOUT_SECS),
    );
    let migrates_at_start =
        reader.choice(&var::STORE_MIGRATE, &[("at_start", true), ("never", false)]);
    match place {
        StorePlace::Sqlite(path) => StoreUrl::Sqlite(path),
        StorePlace::Postgres(url) => StoreUrl::Postgres(Box::new(PostgresSettings {
            url: *url,
            schema,
            pool_size,
            statement_timeout,
            lock_timeout,
            migrates_at_start,
        })),
    }
}

fn recovery_limits(reader: &mut Reader) -> Limits {
    Limits {
        attempts_live_max: reader.count(&var::ATTEMPTS_LIVE_MAX),
        recoveries_max: reader.count(&var::RECOVERIES_MAX),
        backoff: Backoff {
            first: reader.secs(&var::RECOVERY_BACKOFF_FIRST_SECS),
            max: reader.secs(&var::RECOVERY_BACKOFF_MAX_SECS),
        },
        age_max: reader.secs(&var::RECOVERY_AGE_MAX_SECS),
        retry_guard: reader.secs(&var::RETRY_GUARD_SECS),
        lease: reader.secs(&var::LEASE_SECS),
        probe_every: reader.secs(&var::GATE_PROBE_SECS),
        remember_for: reader.secs(&var::DEDUP_RETENTION_SECS),
    }
}

fn sidecar_settings(reader: &mut Reader) -> SidecarSettings {
    let grpc_port: u16 = reader.count(&var::DAPR_GRPC_PORT);
    SidecarSettings {
        app_port: reader.count(&var::APP_PORT),
        grpc_endpoint: reader
            .optional(&var::DAPR_GRPC_ENDPOINT, values::plain_http_url)
            .unwrap_or_else(|| format!("http://127.0.0.1:{grpc_port}")),
        http_port: reader.count(&var::DAPR_HTTP_PORT),
        app_api_token: reader.optional(&var::APP_API_TOKEN, values::secret),
        app_token_mode: reader.choice(
            &var::APP_TOKEN_MODE,
            &[("require", AppTokenMode::Require), ("accept_missing", AppTokenMode::AcceptMissing)],
        ),
        dapr_api_token: reader.optional(&var::DAPR_API_TOKEN, values::secret),
    }
}

fn telemetry_settings(reader: &mut Reader) -> TelemetrySettings {
    TelemetrySettings {
        log: reader.parsed(&var::LOG, String::new(), values::log_directives),
        log_format: reader.choice(
            &var::LOG_FORMAT,
            &[("auto", LogFormat::Auto), ("human", LogFormat::Human), ("json", LogFormat::Json)],
        ),
        otlp_endpoint: reader.optional(&var::OTEL_EXPORTER_OTLP_ENDPOINT, values::plain_http_url),
        service_name: reader.parsed(&var::OTEL_SERVICE_NAME, String::new(), values::text),
    }
}

#[cfg(test)]
mod tests;
