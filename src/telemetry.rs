//! Where logs, traces and metrics go: `tracing` to standard output, all three to an OpenTelemetry
//! collector when one is named, and the metrics as Prometheus text.
//!
//! **Invariants**
//! - One set of instruments feeds the collector and `/metrics` alike.
//! - What the exporters themselves use never reaches the collector as a log or a span: they would
//!   feed themselves for ever (opentelemetry-rust#3654).
//! - Stopping is bounded, whatever the collector does and whichever runtime this is
//!   (opentelemetry-rust#3176).
//!
//! What is told stands in [`observe`](crate::observe).

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, global};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use prometheus::{Registry, TextEncoder};
use tracing::{Level, Subscriber, warn};
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, TelemetrySettings};

/// The crates that exporting goes through, by the beginning of their targets.
const EXPORT_PATH: [&str; 6] = ["h2", "tonic", "hyper", "tower", "reqwest", "opentelemetry"];

/// The running telemetry of this process. Keep it until the end and [shut it
/// down](Telemetry::shutdown) last: after the server, the relay and the store.
#[derive(Clone, Debug)]
pub struct Telemetry {
    meters: SdkMeterProvider,
    tracers: SdkTracerProvider,
    loggers: Option<SdkLoggerProvider>,
    registry: Registry,
}

impl Telemetry {
    /// Sets up logs, traces and metrics for the whole process. Call it once, within the Tokio
    /// runtime.
    ///
    /// # Errors
    /// When the settings cannot be used, or telemetry has been set up before.
    pub fn init(settings: &TelemetrySettings) -> anyhow::Result<Self> {
        let (telemetry, subscriber) = Self::build(settings, std::io::stdout)?;
        subscriber.try_init().context("telemetry has been set up before")?;
        global::set_text_map_propagator(TraceContextPropagator::new());
        Ok(telemetry)
    }

    /// The meter that every instrument is made from.
    #[must_use]
    pub fn meter(&self) -> Meter {
        self.meters.meter("backstop")
    }

    /// Every metric in the Prometheus text format, for `/metrics`.
    #[must_use]
    pub fn prometheus_text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_else(|_| {
            warn!("The metrics cannot be shown as text.");
            String::new()
        })
    }

    /// Sends what is still waiting to the collector, for `deadline` at most, and stops. What has
    /// not been sent by then is lost.
    ///
    /// # Cancel safety
    /// Cancelling it stops the waiting, not the sending.
    pub async fn shutdown(self, deadline: Duration) {
        let (done, ended) = tokio::sync::oneshot::channel();
        // The SDK blocks the thread that stops it until the runtime has done the sending. A plain
        // thread, because the end of the runtime would wait for one of its blocking tasks.
        let flush = move || {
            if let Some(loggers) = self.loggers {
                loggers.shutdown_with_timeout(deadline).ok();
            }
            self.tracers.shutdown_with_timeout(deadline).ok();
            self.meters.shutdown_with_timeout(deadline).ok();
            done.send(()).ok();
        };
        let thread = std::thread::Builder::new().name("telemetry-flush".to_owned()).spawn(flush);
        if thread.is_err() || tokio::time::timeout(deadline, ended).await.is_err() {
            warn!("The last telemetry was not sent in time.");
        }
    }

    fn build<W>(
        settings: &TelemetrySettings,
        writer: W,
    ) -> anyhow::Result<(Self, impl Subscriber + Send + Sync + use<W>)>
    where
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        let resource = Resource::builder()
            .with_service_name(settings.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let registry = Registry::new();
        let prometheus = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()?;
        let mut meters =
            SdkMeterProvider::builder().with_reader(prometheus).with_resource(resource.clone());
        let mut tracers = SdkTracerProvider::builder().with_resource(resource.clone());
        let mut loggers = None;
        if let Some(endpoint) = &settings.otlp_endpoint {
            tokio::runtime::Handle::try_current().context("exporting needs a Tokio runtime")?;
            let exporters = Exporters::to(endpoint).context("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            meters = meters.with_reader(PeriodicReader::builder(exporters.metrics).build());
            tracers = tracers.with_batch_exporter(exporters.spans);
            let builder = SdkLoggerProvider::builder().with_resource(resource);
            loggers = Some(builder.with_batch_exporter(exporters.logs).build());
        }
        let telemetry =
            Self { meters: meters.build(), tracers: tracers.build(), loggers, registry };

        let exported_logs = telemetry.loggers.as_ref().map(|loggers| {
            let wanted = EnvFilter::new(directives(settings));
            let filter = wanted.and(filter_fn(|log| !is_export_path(log.target())));
            OpenTelemetryTracingBridge::new(loggers).with_filter(filter)
        });
        // Traces do not depend on what is logged. Without a collector there are none: a message then
        // passes the trace of its event on, and names no span that nobody has ever seen.
        let traced = filter_fn(|span| {
            span.is_span() && *span.level() <= Level::INFO && !is_export_path(span.target())
        });
        let spans = settings.otlp_endpoint.is_some().then(|| {
            tracing_opentelemetry::layer()
                .with_tracer(telemetry.tracers.tracer("backstop"))
                .with_location(false)
                .with_threads(false)
                .with_tracked_inactivity(false)
                .with_filter(traced)
        });
        let lines = lines(settings.log_format, writer)
            .with_filter(EnvFilter::try_new(directives(settings)).context("BACKSTOP_LOG")?);
        let subscriber = tracing_subscriber::registry().with(spans).with(exported_logs).with(lines);
        Ok((telemetry, subscriber))
    }
}

/// What is logged: the migration library tells each of its steps at INFO, which is nobody's news
/// unless somebody asks for it.
fn directives(settings: &TelemetrySettings) -> String {
    format!("refinery_core=warn,{}", settings.log)
}

struct Exporters {
    spans: SpanExporter,
    metrics: MetricExporter,
    logs: LogExporter,
}

impl Exporters {
    /// Connects when there is something to send, and again whenever that fails.
    fn to(endpoint: &str) -> anyhow::Result<Self> {
        Ok(Self {
            spans: SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?,
            metrics: MetricExporter::builder().with_tonic().with_endpoint(endpoint).build()?,
            logs: LogExporter::builder().with_tonic().with_endpoint(endpoint).build()?,
        })
    }
}

fn is_export_path(target: &str) -> bool {
    EXPORT_PATH.iter().any(|crate_name| target.starts_with(crate_name))
}

/// The log lines, for people in a terminal and for machines everywhere else.
fn lines<S, W>(format: LogFormat, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let terminal = std::io::stdout().is_terminal();
    let human = match format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let lines = fmt::layer().with_writer(writer);
    if !human {
        lines.json().flatten_event(true).with_span_list(false).boxed()
    } else if terminal {
        lines.boxed()
    } else {
        lines.with_ansi(false).boxed()
    }
}

#[cfg(test)]
mod tests;
