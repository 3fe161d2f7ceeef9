use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::observe::{Lane, Observer, Place, Quarantined, span_for};
use crate::outcome::{Category, Outcome, reason};

/// Keeps what is written to "standard output".
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Output {
    type Writer = Self;
    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

fn settings(log_format: LogFormat, collector: Option<SocketAddr>) -> TelemetrySettings {
    TelemetrySettings {
        log: "info".to_owned(),
        log_format,
        otlp_endpoint: collector.map(|address| format!("http://{address}")),
        service_name: "order-service".to_owned(),
    }
}

/// Handles one message and puts it aside.
fn something_happens(observer: &Observer) {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let place = Place { subscription: "orders", topic: "orders", lane: Lane::Live };
    span_for(place, Some(parent), None).in_scope(|| {
        let outcome = Outcome::Quarantined(Category::Exhausted);
        observer.delivery_judged(place, &outcome, Duration::from_millis(7));
        observer.message_quarantined(Quarantined {
            subscription: "orders",
            exception_id: &7,
            category: Category::Exhausted,
            reason: &reason::RECOVERIES_EXHAUSTED,
            attempts: 26,
            event_id: Some("ord-1"),
            source: Some("/shop"),
        });
    });
}

fn run(settings: &TelemetrySettings) -> (String, String) {
    let output = Output::default();
    let (telemetry, subscriber) = Telemetry::build(settings, output.clone()).unwrap();
    let observer = Observer::new(&telemetry.meter());
    tracing::subscriber::with_default(subscriber, || something_happens(&observer));
    (output.text(), telemetry.prometheus_text())
}

#[test]
fn json_lines_carry_the_fields_and_the_trace_of_the_event() {
    let (text, _) = run(&settings(LogFormat::Json, None));
    let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["message"], "Poison message quarantined.");
    assert_eq!(line["event_id"], "ord-1");
    assert_eq!(line["attempts"], 26);
    assert_eq!(line["span"]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
}

#[test]
fn human_lines_are_one_line_without_colours_outside_a_terminal() {
    let (text, _) = run(&settings(LogFormat::Human, None));
    assert!(text.contains("ERROR") && text.contains("Poison message quarantined."), "{text}");
    assert_eq!(text.lines().count(), 1);
    if !std::io::stdout().is_terminal() {
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn the_log_setting_decides_about_lines_and_not_about_metrics() {
    let quiet = TelemetrySettings { log: "off".to_owned(), ..settings(LogFormat::Json, None) };
    let (text, metrics) = run(&quiet);
    assert_eq!(text, "");
    assert!(metrics.contains("backstop_quarantines_total{"), "{metrics}");
    assert!(metrics.contains("service_name=\"order-service\""), "{metrics}");
}

fn published_with(collector: Option<SocketAddr>) -> Option<String> {
    let quiet =
        TelemetrySettings { log: "error".to_owned(), ..settings(LogFormat::Json, collector) };
    let (_telemetry, subscriber) = Telemetry::build(&quiet, Output::default()).unwrap();
    let place = Place { subscription: "orders", topic: "orders", lane: Lane::Live };
    tracing::subscriber::with_default(subscriber, || {
        span_for(place, None, None).in_scope(crate::observe::current_traceparent)
    })
}

#[test]
fn traces_are_told_whatever_is_logged_and_only_where_there_is_a_collector() {
    let runtime = current_thread();
    let _inside = runtime.enter();
    let collector = Some(SocketAddr::from(([127, 0, 0, 1], 4317)));
    assert!(published_with(collector).is_some_and(|parent| parent.len() == 55));
    assert_eq!(published_with(None), None);
}

#[test]
fn what_exporting_uses_is_not_exported() {
    for target in [
        "h2::codec",
        "tonic::transport",
        "hyper_util::client",
        "tower::buffer",
        "reqwest::connect",
        "opentelemetry_sdk",
        "opentelemetry-otlp",
    ] {
        assert!(is_export_path(target), "{target}");
    }
    assert!(!is_export_path("backstop::observe"));
}

#[test]
fn an_exporter_outside_a_runtime_is_an_error_and_not_a_panic() {
    let collector = Some(SocketAddr::from(([127, 0, 0, 1], 4317)));
    let built = Telemetry::build(&settings(LogFormat::Json, collector), Output::default());
    assert!(built.is_err());
}

/// Starts telemetry in this runtime, lets something happen, stops it, and ends the runtime.
/// Gives the time that took.
fn lifetime(runtime: Runtime, collector: SocketAddr) -> Duration {
    let started = runtime.block_on(async {
        let settings = settings(LogFormat::Json, Some(collector));
        let (telemetry, subscriber) = Telemetry::build(&settings, Output::default()).unwrap();
        let _guard = tracing::subscriber::set_default(subscriber);
        something_happens(&Observer::new(&telemetry.meter()));
        let started = Instant::now();
        telemetry.shutdown(Duration::from_millis(500)).await;
        started
    });
    drop(runtime);
    started.elapsed()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn stopping_is_bounded_when_there_is_no_collector() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for runtime in [current_thread(), multi_thread()] {
        let took = lifetime(runtime, closed);
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}

#[test]
fn stopping_is_bounded_when_the_collector_accepts_and_never_answers() {
    for runtime in [current_thread(), multi_thread()] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (called, calls) = mpsc::channel();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut preface = [0; 14];
                stream.read_exact(&mut preface).unwrap();
                called.send(preface.to_vec()).ok();
                held.push(stream);
            }
        });
        let took = lifetime(runtime, address);
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!(calls.try_recv().unwrap(), b"PRI * HTTP/2.0");
    }
}
