use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use opentelemetry::Context as OtelContext;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::{SpanId, Status, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanProcessor};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::*;

/// A meter whose numbers can be read as `/metrics` shows them.
struct Meters {
    provider: SdkMeterProvider,
    registry: prometheus::Registry,
}

impl Meters {
    fn new() -> Self {
        let registry = prometheus::Registry::new();
        let reader = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()
            .unwrap();
        Self { provider: SdkMeterProvider::builder().with_reader(reader).build(), registry }
    }

    fn observer(&self) -> Observer {
        Observer::new(&self.provider.meter("test"))
    }

    fn text(&self) -> String {
        prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap()
    }

    /// The value of the one series of that metric with these labels.
    fn value(&self, metric: &str, labels: &[(&str, &str)]) -> u64 {
        let labels: Vec<String> = labels.iter().map(|(n, v)| format!("{n}=\"{v}\"")).collect();
        let text = self.text();
        let mut series = text.lines().filter(|line| {
            line.split(['{', ' ']).next() == Some(metric)
                && labels.iter().all(|label| line.contains(label))
        });
        let line = series.next().unwrap_or_else(|| panic!("no {metric} {labels:?} in\n{text}"));
        assert_eq!(series.next(), None, "{metric} {labels:?}");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

/// One log line: level, message, fields.
type Line = (String, String, BTreeMap<String, String>);

/// Keeps every log line of ours; the SDK writes some of its own.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Line>>>);

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Fields(BTreeMap<String, String>);
        impl Visit for Fields {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                self.0.insert(field.name().to_owned(), format!("{value:?}"));
            }
        }
        if !event.metadata().target().contains("::observe") {
            return;
        }
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        self.0.lock().unwrap().push((event.metadata().level().to_string(), message, fields.0));
    }
}

fn lines_of(doing: impl FnOnce()) -> Vec<Line> {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    tracing::subscriber::with_default(subscriber, doing);
    lines.0.lock().unwrap().clone()
}

/// Keeps every finished span.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<SpanData>>>);

impl SpanProcessor for Spans {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &OtelContext) {}
    fn on_end(&self, span: SpanData) {
        self.0.lock().unwrap().push(span);
    }
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

fn spans_of(doing: impl FnOnce()) -> Vec<SpanData> {
    let spans = Spans::default();
    let provider = SdkTracerProvider::builder().with_span_processor(spans.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), doing);
    spans.0.lock().unwrap().clone()
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name)?;
    Some(found.value.to_string())
}

const ORDERS: Place<'static> =
    Place { subscription: "orders", topic: "orders-topic", lane: Lane::Live };
const NOT_FOUND: Code = Code::new("http_404");
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const SECOND: Duration = Duration::from_secs(1);

fn quarantined<'a>(event_id: &'a str, source: &'a str, reason: &'a Code) -> Quarantined<'a> {
    Quarantined {
        subscription: "orders",
        exception_id: &7,
        category: Category::Exhausted,
        reason,
        attempts: 26,
        event_id: Some(event_id),
        source: Some(source),
    }
}

/// Lets everything happen once.
fn everything(observer: &Observer) {
    observer.delivery_judged(ORDERS, &Outcome::Processed, SECOND);
    observer.delivery_judged(ORDERS, &Outcome::Retrying(NOT_FOUND), SECOND);
    observer.attempt_finished(ORDERS, 1, Ok(()), SECOND);
    observer.attempt_finished(ORDERS, 1, Err(&NOT_FOUND), SECOND);
    observer.message_quarantined(quarantined("ord-1", "/shop", &NOT_FOUND));
    observer.case_reopened(quarantined("ord-1", "/shop", &NOT_FOUND));
    observer.recovery_scheduled("orders", Some(&NOT_FOUND), Some(SECOND));
    observer.messages_published("order-accepted", 3, SECOND);
    observer.publish_failed("order-accepted", 2, &NOT_FOUND, SECOND);
    observer.publish_refused("order-accepted", &NOT_FOUND, &8);
    observer.backlog_measured(Backlog { outbox_pending: 5, ..Backlog::default() });
    observer.sidecar_silent("http://127.0.0.1:50001");
    observer.is_cautious(SECOND);
    observer.store_health(false);
    observer.store_health(true);
    observer.sidecar_found("order-service", "1.16.4", "order-service");
    observer.dead_letter_component_missing("orderpubsub", "orderpubsub-dead");
}

#[test]
fn the_log_lines_are_those_of_the_catalog() {
    let lines = lines_of(|| everything(&Observer::silent()));
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (level, text, fields) in &lines {
        let event = EVENTS.iter().find(|event| event.text == text).expect(text);
        assert_eq!(event.level, level, "{text}");
        assert!(text.ends_with('.') && text.starts_with(char::is_uppercase), "{text}");
        seen.entry(event.text).or_default().extend(fields.keys().map(String::as_str));
    }
    let told = EVENTS.iter().map(|event| (event.text, event.fields.iter().copied().collect()));
    assert_eq!(seen, told.collect());
}

#[test]
fn the_metrics_are_those_of_the_catalog() {
    let meters = Meters::new();
    everything(&meters.observer());
    let text = meters.text();
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with("target_info")) {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap();
            if name != "target_info" {
                let metric = METRICS.iter().find(|metric| metric.prometheus == name).expect(name);
                assert_eq!(format!("{:?}", metric.kind).to_lowercase(), kind, "{name}");
                seen.entry(metric.name).or_default();
            }
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|s| name.strip_suffix(s))
                .unwrap_or(name);
            let metric = METRICS.iter().find(|metric| metric.prometheus == name).expect(name);
            let labels =
                line.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap());
            let labels = labels.split(',').filter_map(|label| label.split_once('='));
            let named = labels.map(|(label, _)| label.to_owned()).filter(|label| label != "le");
            seen.entry(metric.name).or_default().extend(named);
        }
    }
    let told = METRICS.iter().map(|metric| {
        (metric.name, metric.labels.iter().map(|label| label.replace('.', "_")).collect())
    });
    assert_eq!(seen, told.collect());
}

#[test]
fn the_documentation_shows_the_catalog() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/TELEMETRY.md"))
        .unwrap_or_default();
    let metrics = METRICS.iter().map(|metric| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let Metric { name, prometheus, kind, meaning, .. } = metric;
        let kind = format!("{kind:?}").to_lowercase();
        format!("| `{name}`<br>`{prometheus}` | {kind} | {} | {meaning} |", labels.join(", "))
    });
    let events = EVENTS.iter().map(|event| {
        let fields: Vec<String> = event.fields.iter().map(|field| format!("`{field}`")).collect();
        let Event { level, text, meaning, .. } = event;
        format!("| {level} | {text} | {} | {meaning} |", fields.join(", "))
    });
    let told: Vec<String> = metrics.chain(events).collect();
    let shown: Vec<&str> = page
        .lines()
        .filter(|line| {
            line.starts_with('|') && !line.contains("---") && !line.contains("| Meaning")
        })
        .collect();
    assert!(shown == told, "docs/TELEMETRY.md should show:\n{}", told.join("\n"));
}

#[test]
fn a_duplicate_is_an_outcome_and_a_delivery_but_no_attempt() {
    let meters = Meters::new();
    let observer = meters.observer();
    for _ in 0..99 {
        observer.delivery_judged(ORDERS, &Outcome::Duplicate, SECOND);
    }
    observer.delivery_judged(Place { lane: Lane::Recovery, ..ORDERS }, &Outcome::Processed, SECOND);
    let duplicates = [("subscription", "orders"), ("lane", "live"), ("outcome", "duplicate")];
    assert_eq!(meters.value("backstop_outcomes_total", &duplicates), 99);
    let delivered = [("messaging_destination_name", "orders-topic")];
    assert_eq!(meters.value("messaging_client_consumed_messages_total", &delivered), 99);
    assert!(!meters.text().contains("messaging_process_duration"));
}

#[test]
fn a_failed_attempt_has_its_code_and_a_good_one_has_none() {
    let meters = Meters::new();
    let observer = meters.observer();
    observer.attempt_finished(ORDERS, 1, Err(&NOT_FOUND), SECOND);
    let name = "messaging_process_duration_seconds_count";
    assert_eq!(meters.value(name, &[("error_type", "http_404"), ("lane", "live")]), 1);
    let meters = Meters::new();
    meters.observer().attempt_finished(ORDERS, 1, Ok(()), SECOND);
    assert!(!meters.text().contains("error_type"));
}

#[test]
fn a_hundred_thousand_codes_and_topics_share_a_bounded_number_of_labels() {
    let meters = Meters::new();
    let observer = meters.observer();
    for n in 0..100_000 {
        let code = Code::parse(&format!("code_{n}")).unwrap();
        observer.attempt_finished(ORDERS, 1, Err(&code), SECOND);
        observer.publish_failed(&format!("topic-{n}"), 1, &reason::EXPIRED, SECOND);
    }
    observer.attempt_finished(ORDERS, 1, Err(&reason::HANDLER_PANICKED), SECOND);
    let text = meters.text();
    let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(
        series("messaging_process_duration_seconds_count"),
        CODES_MAX - reason::ALL.len() + 2
    );
    assert_eq!(series("messaging_client_sent_messages_total"), TOPICS_MAX + 1);
    let name = "messaging_process_duration_seconds_count";
    assert_eq!(
        meters.value(name, &[("error_type", OTHER)]),
        100_000 - (CODES_MAX - reason::ALL.len()) as u64
    );
    // Codes from outside cannot crowd out our own.
    assert_eq!(meters.value(name, &[("error_type", "handler_panicked")]), 1);
}

#[test]
fn a_quarantine_is_exactly_one_error_line_with_shortened_identities() {
    let id = "é".repeat(10_000);
    let lines = lines_of(|| {
        Observer::silent().message_quarantined(quarantined(&id, "/shop\n\u{1b}[31m", &NOT_FOUND));
    });
    let [(level, text, fields)] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((level.as_str(), text.as_str()), ("ERROR", "Poison message quarantined."));
    assert_eq!(fields["event_id"].chars().filter(|c| *c == 'é').count(), IDENTITY_CHARS_MAX);
    assert_eq!(fields["exception_id"], "7");
    assert_eq!((fields["category"].as_str(), fields["attempts"].as_str()), ("\"exhausted\"", "26"));
    assert!(!fields["source"].contains(['\n', '\u{1b}']), "{}", fields["source"]);
}

#[test]
fn only_a_change_of_the_stores_health_is_logged() {
    let meters = Meters::new();
    let lines = lines_of(|| {
        let observer = meters.observer();
        for available in [true, true, false, false, true] {
            observer.store_health(available);
        }
    });
    let levels: Vec<&str> = lines.iter().map(|(level, ..)| level.as_str()).collect();
    assert_eq!(levels, ["ERROR", "INFO"]);
    assert_eq!(meters.value("backstop_store_available", &[]), 1);
}

#[test]
fn a_delivery_continues_the_trace_of_its_event_and_passes_it_on() {
    let mut published = None;
    let spans = spans_of(|| {
        let span = span_for(ORDERS, Some(PARENT), Some("vendor=1"));
        span.in_scope(|| {
            published = current_traceparent();
            Observer::silent().delivery_judged(ORDERS, &Outcome::Processed, SECOND);
        });
    });
    let [span] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!(span.name, "process orders-topic");
    assert_eq!(span.span_context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(span.parent_span_id.to_string(), "b7ad6b7169203331");
    assert_eq!(span.span_context.trace_state().header(), "vendor=1");
    assert_eq!(attribute(span, "outcome").as_deref(), Some("processed"));
    assert_eq!(attribute(span, "messaging.destination.name").as_deref(), Some("orders-topic"));
    assert_eq!(span.status, Status::Unset);
    let expected =
        format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", span.span_context.span_id());
    assert_eq!(published, Some(expected));
}

#[test]
fn a_run_from_the_store_has_a_trace_of_its_own_linked_to_the_events() {
    for lane in [Lane::Recovery, Lane::Redrive] {
        let spans = spans_of(|| drop(span_for(Place { lane, ..ORDERS }, Some(PARENT), None)));
        let [span] = spans.as_slice() else { panic!("{spans:?}") };
        assert_ne!(span.span_context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(span.parent_span_id, SpanId::INVALID);
        let linked: Vec<_> =
            span.links.iter().map(|l| l.span_context.span_id().to_string()).collect();
        assert_eq!(linked, ["b7ad6b7169203331"]);
    }
}

#[test]
fn only_the_failed_attempts_span_is_an_error() {
    let spans = spans_of(|| {
        for result in [Err(&NOT_FOUND), Ok(())] {
            span_for(ORDERS, Some(PARENT), None)
                .in_scope(|| Observer::silent().attempt_finished(ORDERS, 1, result, SECOND));
        }
    });
    let [failed, good] = spans.as_slice() else { panic!("{spans:?}") };
    assert!(matches!(failed.status, Status::Error { .. }), "{:?}", failed.status);
    assert_eq!(attribute(failed, "error.type").as_deref(), Some("http_404"));
    assert_eq!(good.status, Status::Unset);
    assert_eq!(attribute(good, "error.type"), None);
}

#[test]
fn a_malformed_or_all_zero_traceparent_counts_as_absent() {
    for bad in [
        "",
        "garbage",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
    ] {
        let spans = spans_of(|| drop(span_for(ORDERS, Some(bad), None)));
        assert_eq!(spans.first().map(|s| s.parent_span_id), Some(SpanId::INVALID), "{bad}");
    }
    let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more";
    let spans = spans_of(|| drop(span_for(ORDERS, Some(later), None)));
    assert_ne!(spans.first().map(|s| s.parent_span_id), Some(SpanId::INVALID));
}

#[test]
fn without_a_span_nothing_is_passed_on() {
    assert_eq!(current_traceparent(), None);
    assert_eq!(span_for(ORDERS, Some(PARENT), None).in_scope(current_traceparent), None);
}
