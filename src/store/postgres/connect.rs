//! How to reach a PostgreSQL database: its URL, TLS, and what every connection is told first.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connection::{Connection, told};
use crate::store::StoreError;

/// How long a new connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What `pg_stat_activity` shows.
const APPLICATION_NAME: &str = "backstop";

/// A PostgreSQL database, and how its connections are used.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    config: Config,
    /// The certificate authorities to trust instead of the system's.
    root_cert: Option<PathBuf>,
}

impl fmt::Debug for PostgresUrl {
    /// Never the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresUrl")
            .field("hosts", &self.config.get_hosts())
            .field("database", &self.config.get_dbname())
            .finish_non_exhaustive()
    }
}

/// Why a URL names no PostgreSQL database that this build can use.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PostgresUrlError(String);

impl FromStr for PostgresUrl {
    type Err = PostgresUrlError;

    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE?…`. Beside what `tokio-postgres` 0.7
    /// takes, `sslmode` may be `verify-full`, which is what `require` does here too, and
    /// `sslrootcert` names a PEM file. Without `sslmode`, TLS is required unless every host is
    /// this machine.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut kept, mut root_cert, mut mode) = (Vec::new(), None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value.to_owned()),
                Some(("sslrootcert", value)) => root_cert = Some(PathBuf::from(value)),
                _ => kept.push(pair),
            }
        }
        let url = if kept.is_empty() {
            address.to_owned()
        } else {
            format!("{address}?{}", kept.join("&"))
        };
        // The parser's own message may quote the password.
        let mut config: Config = url
            .parse()
            .map_err(|_| PostgresUrlError("is not a PostgreSQL connection URL".to_owned()))?;
        if config.get_hosts().is_empty() {
            return Err(PostgresUrlError("names no host".to_owned()));
        }
        if config.get_dbname().is_none() {
            return Err(PostgresUrlError("names no database".to_owned()));
        }
        config.ssl_mode(match mode.as_deref() {
            None if config.get_hosts().iter().all(is_this_machine) => SslMode::Disable,
            None | Some("require" | "verify-full") => SslMode::Require,
            Some("disable") => SslMode::Disable,
            Some(_) => {
                return Err(PostgresUrlError(
                    "takes sslmode=verify-full, require (the same here) or disable".to_owned(),
                ));
            }
        });
        Ok(Self { config, root_cert })
    }
}

fn is_this_machine(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => matches!(name.as_str(), "localhost" | "127.0.0.1" | "::1"),
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// How the connections to a database are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresSettings {
    /// The database.
    pub url: PostgresUrl,
    /// The schema of the store's tables, and the first in which others are looked for.
    pub schema: String,
    /// Connections for reading, and as many for interactive transactions; the writer's comes on
    /// top.
    pub pool_size: usize,
    /// How long one statement may take.
    pub statement_timeout: Duration,
    /// How long a statement may wait for a lock.
    pub lock_timeout: Duration,
    /// Whether a service makes what is missing of the tables when it starts.
    pub migrates_at_start: bool,
}

/// What carries a connection's traffic while a thread waits for its answers.
#[derive(Clone)]
pub(super) enum Driver {
    /// The process's runtime.
    Shared(Handle),
    /// The thread that waits, and only while it waits: an answer needs no other thread to be woken.
    Own(Arc<Runtime>),
}

impl Driver {
    /// Waits on this thread, which must not be one of a runtime's.
    pub(super) fn block_on<F: Future>(&self, work: F) -> F::Output {
        match self {
            Self::Shared(handle) => handle.block_on(work),
            Self::Own(runtime) => runtime.block_on(work),
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Shared(handle) => drop(handle.spawn(work)),
            Self::Own(runtime) => drop(runtime.spawn(work)),
        }
    }
}

/// Opens connections, each told the schema and the time limits before anything else.
#[derive(Clone)]
pub(super) struct Connector {
    pub driver: Driver,
    config: Config,
    tls: MakeRustlsConnect,
    lock_space: i64,
    /// A handler's statement that fails leaves the transaction usable.
    isolates: bool,
}

/// For connections that look up many keys at a time: a statement is planned once, when its tables
/// are small, and is still used when they are not. Left to itself the server plans a group's
/// statement anew each time the group is small, which costs more than running it.
const BY_INDEX: &str = "-c enable_seqscan=off -c plan_cache_mode=force_generic_plan";
/// The same, where no handler's statement runs.
const BY_INDEX_ALONE: &str = "-c enable_seqscan=off -c plan_cache_mode=force_generic_plan \
    -c enable_hashjoin=off -c enable_mergejoin=off";

impl Connector {
    /// One for the writer, whose thread carries the traffic itself.
    pub(super) fn for_writing(self) -> Result<Self, StoreError> {
        let own = Builder::new_current_thread().enable_all().build().map_err(StoreError::away)?;
        Ok(Self { driver: Driver::Own(Arc::new(own)), ..self.with_options(BY_INDEX) })
    }

    /// One for looks alone.
    pub(super) fn for_looking(self) -> Self {
        self.with_options(BY_INDEX_ALONE)
    }

    fn with_options(mut self, more: &str) -> Self {
        let options = format!("{} {more}", self.config.get_options().unwrap_or_default());
        self.config.options(options);
        self
    }

    /// One whose connections serve handlers statement by statement.
    pub(super) fn isolating_statements(self) -> Self {
        Self { isolates: true, ..self }
    }

    pub(super) fn new(settings: &PostgresSettings) -> Result<Self, StoreError> {
        let mut config = settings.url.config.clone();
        let own = config.get_options().unwrap_or_default().to_owned();
        config
            .application_name(APPLICATION_NAME)
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(settings.statement_timeout.saturating_mul(2))
            .keepalives_idle(Duration::from_secs(15))
            // Never a standby, which could not be written.
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .options(format!(
                "-c jit=off {own} -c search_path={},public -c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={}",
                settings.schema,
                settings.statement_timeout.as_millis(),
                settings.lock_timeout.as_millis(),
                IDLE_IN_TRANSACTION.as_millis(),
            ));
        let tls = MakeRustlsConnect::new(tls_config(settings.url.root_cert.as_ref())?);
        let lock_space = lock_space(&settings.schema);
        let driver = Driver::Shared(Handle::current());
        Ok(Self { driver, config, tls, lock_space, isolates: false })
    }

    pub(super) async fn connect(&self) -> Result<Connection, StoreError> {
        let client = self.client().await?;
        Ok(Connection::new(client, self.driver.clone(), self.lock_space, self.isolates))
    }

    /// Opens a connection; its traffic is carried by the driver until it is dropped.
    pub(super) async fn client(&self) -> Result<Client, StoreError> {
        let connected = self.config.connect(self.tls.clone()).await;
        let (client, traffic) = connected.map_err(|error| StoreError::away(told(&error)))?;
        self.driver.spawn(async move {
            // Whoever waits for an answer on it is told the same.
            if let Err(error) = traffic.await {
                tracing::debug!(error = %told(&error), "A connection to the store has ended.");
            }
        });
        Ok(client)
    }
}

/// A pool keeps a connection that is whole and idle.
impl Manager for Connector {
    type Type = Connection;
    type Error = StoreError;

    async fn create(&self) -> Result<Connection, StoreError> {
        self.connect().await
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<StoreError> {
        if connection.is_closed() || connection.is_in_transaction() {
            return Err(RecycleError::message("it was cut, or left in the middle of something"));
        }
        Ok(())
    }
}

/// A number for a schema's advisory locks.
pub(super) fn lock_space(schema: &str) -> i64 {
    let hash = blake3::hash(format!("backstop:{schema}").as_bytes());
    i64::from_str_radix(hash.to_hex().get(..15).unwrap_or_default(), 16).unwrap_or_default()
}

/// A process that is stopped in the middle of a transaction holds its locks no longer than this.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(60);

fn tls_config(root_cert: Option<&PathBuf>) -> Result<ClientConfig, StoreError> {
    let problem = |error: &dyn fmt::Display| StoreError::away(format!("TLS: {error}"));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| problem(&error))?;
    let Some(path) = root_cert else {
        let verified = builder.with_platform_verifier().map_err(|error| problem(&error))?;
        return Ok(verified.with_no_client_auth());
    };
    let unreadable = |error: &dyn fmt::Display| {
        StoreError::away(format!("sslrootcert {}: {error}", path.display()))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))? {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
