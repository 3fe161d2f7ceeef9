//! What operators see: one method for each happening, which writes its log line and its metrics
//! together.
//!
//! **Invariants**
//! - No payload, credential or personal data goes into a log line, a label or a span.
//! - Every label has a bounded set of values: names come from code, codes and topics beyond a
//!   fixed number share [`OTHER`].
//! - Levels say what an operator must do: ERROR someone must act, WARN it went wrong and is being
//!   taken care of, INFO lifecycle, DEBUG each delivery.
//!
//! Names follow the OpenTelemetry messaging conventions where they have one (still "development"
//! there, hence one room); what is ours begins with `backstop.`. [`METRICS`] and [`EVENTS`] are the
//! contract, which `docs/TELEMETRY.md` shows. Where all this is sent is `telemetry`'s business.

mod catalog;
mod labels;
mod trace;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};
use tracing::{Span, debug, error, info, warn};

use crate::outcome::{Category, Code, Outcome, reason};

pub use catalog::{EVENTS, Event, Kind, METRICS, Metric};
use labels::Labels;
pub use labels::OTHER;
pub use trace::{current_traceparent, span_for};

/// Distinct codes that get a label of their own, Backstop's included.
const CODES_MAX: usize = 64;
/// Distinct topics published to that get a label of their own.
const TOPICS_MAX: usize = 64;
/// The longest event id or source in a log line, in characters.
const IDENTITY_CHARS_MAX: usize = 128;
/// The `code` label of a recovery whose message was never attempted.
const NEVER_ATTEMPTED: &str = "never_attempted";

const _: () = assert!(
    reason::ALL.len() + 16 <= CODES_MAX,
    "applications need room for codes of their own: raise CODES_MAX"
);

/// How a message came to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// A delivery on the topic.
    Live,
    /// A delivery on the dead-letter topic.
    DeadLetter,
    /// An automatic run from the store.
    Recovery,
    /// A run that an operator asked for.
    Redrive,
}

impl Lane {
    /// The stable `snake_case` name, for labels: a closed set.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::DeadLetter => "dead_letter",
            Self::Recovery => "recovery",
            Self::Redrive => "redrive",
        }
    }
}

/// Which subscription something happened to, and on which way in.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The subscription's name.
    pub subscription: &'a str,
    /// The subscription's topic (not its dead-letter topic).
    pub topic: &'a str,
    /// The way in.
    pub lane: Lane,
}

/// A case that has just been opened.
#[derive(Clone, Copy)]
pub struct Quarantined<'a> {
    /// The subscription's name.
    pub subscription: &'a str,
    /// The case's id.
    pub exception_id: &'a dyn fmt::Display,
    /// Who has to do what about it.
    pub category: Category,
    /// Why.
    pub reason: &'a Code,
    /// Handler runs so far.
    pub attempts: u32,
    /// The event's `id`, when it has one; shortened here.
    pub event_id: Option<&'a str>,
    /// The event's `source`, when it has one; shortened here.
    pub source: Option<&'a str>,
}

impl fmt::Debug for Quarantined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quarantined")
            .field("subscription", &self.subscription)
            .field("exception_id", &self.exception_id.to_string())
            .field("category", &self.category)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

/// What waits in the store, measured by the caller from time to time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Outgoing messages that are not yet published.
    pub outbox_pending: u64,
    /// The age of the oldest of them; zero when there is none.
    pub outbox_oldest_age: Duration,
    /// Outgoing messages that are not to leave yet.
    pub outbox_delayed: u64,
    /// Cases that are open.
    pub exceptions_open: u64,
    /// Messages that automatic recovery has in hand.
    pub recovering: u64,
    /// Gates that are closed.
    pub gates_closed: u64,
    /// Messages that wait at a closed gate.
    pub gates_waiting: u64,
}

/// Tells operators what happens; cheap to clone, and every clone counts into the same place.
#[derive(Clone, Debug)]
pub struct Observer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    codes: Labels,
    topics: Labels,
    store_health: AtomicU8,
    consumed: Counter<u64>,
    process_duration: Histogram<f64>,
    sent: Counter<u64>,
    send_duration: Histogram<f64>,
    outcomes: Counter<u64>,
    delivery_duration: Histogram<f64>,
    quarantines: Counter<u64>,
    recoveries_scheduled: Counter<u64>,
    outbox_refused: Counter<u64>,
    outbox_pending: Gauge<u64>,
    outbox_oldest_age: Gauge<f64>,
    outbox_delayed: Gauge<u64>,
    exceptions_open: Gauge<u64>,
    recovering: Gauge<u64>,
    gates_closed: Gauge<u64>,
    gates_waiting: Gauge<u64>,
    store_available: Gauge<u64>,
}

const HEALTH_UNKNOWN: u8 = 2;

impl Observer {
    /// An observer that counts with this meter and logs through `tracing`.
    #[must_use]
    pub fn new(meter: &Meter) -> Self {
        use catalog as m;
        let shared = Shared {
            codes: Labels::with_known(CODES_MAX, reason::ALL.iter().map(|(code, _)| *code)),
            topics: Labels::with_known(TOPICS_MAX, []),
            store_health: AtomicU8::new(HEALTH_UNKNOWN),
            consumed: counter(meter, &m::CONSUMED),
            process_duration: histogram(meter, &m::PROCESS_DURATION),
            sent: counter(meter, &m::SENT),
            send_duration: histogram(meter, &m::SEND_DURATION),
            outcomes: counter(meter, &m::OUTCOMES),
            delivery_duration: histogram(meter, &m::DELIVERY_DURATION),
            quarantines: counter(meter, &m::QUARANTINES),
            recoveries_scheduled: counter(meter, &m::RECOVERIES_SCHEDULED),
            outbox_refused: counter(meter, &m::OUTBOX_REFUSED),
            outbox_pending: gauge(meter, &m::OUTBOX_PENDING),
            outbox_oldest_age: gauge_secs(meter, &m::OUTBOX_OLDEST_AGE),
            outbox_delayed: gauge(meter, &m::OUTBOX_DELAYED),
            exceptions_open: gauge(meter, &m::EXCEPTIONS_OPEN),
            recovering: gauge(meter, &m::RECOVERING),
            gates_closed: gauge(meter, &m::GATES_CLOSED),
            gates_waiting: gauge(meter, &m::GATES_WAITING),
            store_available: gauge(meter, &m::STORE_AVAILABLE),
        };
        Self { shared: Arc::new(shared) }
    }

    /// An observer that counts nothing, for tests; it still logs, to whoever listens.
    #[cfg(test)]
    pub(crate) fn silent() -> Self {
        use opentelemetry::metrics::{MeterProvider, NoopMeterProvider};
        Self::new(&NoopMeterProvider::new().meter("silent"))
    }

    /// One message of one delivery, or one run from the store, has its outcome. `took` counts from
    /// its arrival to its answer.
    pub fn delivery_judged(&self, place: Place<'_>, outcome: &Outcome, took: Duration) {
        let Place { subscription, topic, lane } = place;
        let name = outcome.as_str();
        if matches!(lane, Lane::Live | Lane::DeadLetter) {
            self.shared.consumed.add(
                1,
                &[
                    system(),
                    operation("deliver"),
                    destination(topic.to_owned()),
                    subscription_name(subscription),
                ],
            );
        }
        let at = [
            KeyValue::new("subscription", subscription.to_owned()),
            KeyValue::new("lane", lane.as_str()),
            KeyValue::new("outcome", name),
        ];
        self.shared.outcomes.add(1, &at);
        self.shared.delivery_duration.record(took.as_secs_f64(), &at);
        Span::current().record("outcome", name);
        let code = if let Outcome::Retrying(code) = outcome { Some(code.as_str()) } else { None };
        debug!(
            subscription,
            lane = lane.as_str(),
            outcome = name,
            code,
            duration_secs = took.as_secs_f64(),
            "{}",
            catalog::DELIVERY_JUDGED
        );
    }

    /// One run of a handler has ended, its commit included. Marks the current span as failed when
    /// it did, and only then.
    pub fn attempt_finished(
        &self,
        place: Place<'_>,
        attempt: u32,
        result: Result<(), &Code>,
        took: Duration,
    ) {
        let Place { subscription, topic, lane } = place;
        let secs = took.as_secs_f64();
        let mut at = vec![
            system(),
            operation("process"),
            destination(topic.to_owned()),
            subscription_name(subscription),
            KeyValue::new("lane", lane.as_str()),
        ];
        let lane = lane.as_str();
        match result {
            Ok(()) => {
                debug!(
                    subscription,
                    lane,
                    attempt,
                    duration_secs = secs,
                    "{}",
                    catalog::ATTEMPT_SUCCEEDED
                );
            }
            Err(code) => {
                at.push(error_type(self.shared.codes.label(code.as_str())));
                let span = Span::current();
                span.record("otel.status_code", "ERROR");
                span.record("error.type", code.as_str());
                warn!(
                    subscription,
                    lane,
                    attempt,
                    code = code.as_str(),
                    duration_secs = secs,
                    "{}",
                    catalog::ATTEMPT_FAILED
                );
            }
        }
        self.shared.process_duration.record(secs, &at);
    }

    /// A case has been opened, and its row is on disk: the poison log line. Call it once for each
    /// case, after the commit; for `publish_rejected` call [`Observer::publish_refused`] instead.
    pub fn message_quarantined(&self, case: Quarantined<'_>) {
        let reason = self.shared.codes.label(case.reason.as_str());
        self.shared.quarantines.add(
            1,
            &[
                KeyValue::new("subscription", case.subscription.to_owned()),
                KeyValue::new("category", case.category.as_str()),
                KeyValue::new("reason", reason),
            ],
        );
        error!(
            subscription = case.subscription,
            exception_id = %case.exception_id,
            category = case.category.as_str(),
            reason = case.reason.as_str(),
            attempts = case.attempts,
            event_id = case.event_id.map(shortened),
            source = case.source.map(shortened),
            "{}",
            catalog::MESSAGE_QUARANTINED
        );
    }

    /// An operator's run failed and its case is open again.
    #[allow(clippy::unused_self, reason = "happenings are told to an observer, whatever it does")]
    pub fn case_reopened(&self, case: Quarantined<'_>) {
        warn!(
            subscription = case.subscription,
            exception_id = %case.exception_id,
            category = case.category.as_str(),
            reason = case.reason.as_str(),
            "{}",
            catalog::CASE_REOPENED
        );
    }

    /// A message will be run from the store. `code` is what its latest attempt ended with; absent
    /// when it was never attempted. `due_in` is absent when it waits at a closed gate.
    pub fn recovery_scheduled(
        &self,
        subscription: &str,
        code: Option<&Code>,
        due_in: Option<Duration>,
    ) {
        let label = code
            .map_or_else(|| NEVER_ATTEMPTED.into(), |code| self.shared.codes.label(code.as_str()));
        self.shared.recoveries_scheduled.add(
            1,
            &[KeyValue::new("subscription", subscription.to_owned()), KeyValue::new("code", label)],
        );
        info!(
            subscription,
            code = code.map_or(NEVER_ATTEMPTED, Code::as_str),
            due_in_secs = due_in.map(|due_in| due_in.as_secs_f64()),
            "{}",
            catalog::RECOVERY_SCHEDULED
        );
    }

    /// The sidecar has not answered for a while.
    #[allow(clippy::unused_self, reason = "happenings are told to an observer, whatever it does")]
    pub fn sidecar_silent(&self, endpoint: &str) {
        warn!(endpoint, "{}", catalog::SIDECAR_SILENT);
    }

    /// A service of this store ended uncleanly.
    #[allow(clippy::unused_self, reason = "happenings are told to an observer, whatever it does")]
    pub fn is_cautious(&self, duration: Duration) {
        warn!(for_secs = duration.as_secs_f64(), "{}", catalog::IS_CAUTIOUS);
    }

    /// The sidecar took these messages, by one call that took so long.
    pub fn messages_published(&self, topic: &str, count: u64, took: Duration) {
        let at = [system(), operation("publish"), destination(self.shared.topics.label(topic))];
        self.shared.sent.add(count, &at);
        self.shared.send_duration.record(took.as_secs_f64(), &at);
        debug!(topic, count, duration_secs = took.as_secs_f64(), "{}", catalog::MESSAGES_PUBLISHED);
    }

    /// The sidecar did not take these messages; the relay will try again.
    pub fn publish_failed(&self, topic: &str, count: u64, code: &Code, took: Duration) {
        let at = [
            system(),
            operation("publish"),
            destination(self.shared.topics.label(topic)),
            error_type(self.shared.codes.label(code.as_str())),
        ];
        self.shared.sent.add(count, &at);
        self.shared.send_duration.record(took.as_secs_f64(), &at);
        warn!(topic, count, code = code.as_str(), "{}", catalog::PUBLISH_FAILED);
    }

    /// An outgoing message is refused for good, and a case about it is on disk.
    pub fn publish_refused(&self, topic: &str, code: &Code, exception_id: &dyn fmt::Display) {
        self.shared.outbox_refused.add(
            1,
            &[
                KeyValue::new("topic", self.shared.topics.label(topic)),
                KeyValue::new("code", self.shared.codes.label(code.as_str())),
            ],
        );
        error!(topic, code = code.as_str(), %exception_id, "{}", catalog::PUBLISH_REFUSED);
    }

    /// What waits in the store now.
    pub fn backlog_measured(&self, backlog: Backlog) {
        let shared = &self.shared;
        shared.outbox_pending.record(backlog.outbox_pending, &[]);
        shared.outbox_oldest_age.record(backlog.outbox_oldest_age.as_secs_f64(), &[]);
        shared.outbox_delayed.record(backlog.outbox_delayed, &[]);
        shared.exceptions_open.record(backlog.exceptions_open, &[]);
        shared.recovering.record(backlog.recovering, &[]);
        shared.gates_closed.record(backlog.gates_closed, &[]);
        shared.gates_waiting.record(backlog.gates_waiting, &[]);
    }

    /// The store can, or cannot, commit. Only a change is logged, so it may be told as often as it
    /// is known.
    pub fn store_health(&self, available: bool) {
        self.shared.store_available.record(u64::from(available), &[]);
        let before = self.shared.store_health.swap(u8::from(available), Ordering::Relaxed);
        if before == u8::from(available) {
            return;
        }
        if !available {
            error!("{}", catalog::STORE_AWAY);
        } else if before != HEALTH_UNKNOWN {
            info!("{}", catalog::STORE_BACK);
        }
    }

    /// The sidecar has answered and said who it is.
    #[allow(clippy::unused_self, reason = "happenings are told to an observer, whatever it does")]
    pub fn sidecar_found(&self, app_id: &str, runtime_version: &str, consumer: &str) {
        info!(
            app_id = &*shortened(app_id),
            runtime_version = &*shortened(runtime_version),
            consumer,
            "{}",
            catalog::SIDECAR_FOUND
        );
    }

    /// The sidecar has not loaded `component`, so that dead letters come through `pubsub` itself.
    #[allow(clippy::unused_self, reason = "happenings are told to an observer, whatever it does")]
    pub fn dead_letter_component_missing(&self, pubsub: &str, component: &str) {
        warn!(pubsub, component, "{}", catalog::DEAD_LETTER_COMPONENT_MISSING);
    }
}

fn counter(meter: &Meter, metric: &Metric) -> Counter<u64> {
    meter.u64_counter(metric.name).with_unit(metric.unit).with_description(metric.meaning).build()
}

fn histogram(meter: &Meter, metric: &Metric) -> Histogram<f64> {
    meter
        .f64_histogram(metric.name)
        .with_unit(metric.unit)
        .with_description(metric.meaning)
        .with_boundaries(catalog::DURATION_BOUNDARIES.to_vec())
        .build()
}

fn gauge(meter: &Meter, metric: &Metric) -> Gauge<u64> {
    meter.u64_gauge(metric.name).with_unit(metric.unit).with_description(metric.meaning).build()
}

fn gauge_secs(meter: &Meter, metric: &Metric) -> Gauge<f64> {
    meter.f64_gauge(metric.name).with_unit(metric.unit).with_description(metric.meaning).build()
}

fn system() -> KeyValue {
    KeyValue::new("messaging.system", "dapr")
}

fn operation(name: &'static str) -> KeyValue {
    KeyValue::new("messaging.operation.name", name)
}

fn destination(topic: String) -> KeyValue {
    KeyValue::new("messaging.destination.name", topic)
}

fn subscription_name(subscription: &str) -> KeyValue {
    KeyValue::new("messaging.destination.subscription.name", subscription.to_owned())
}

fn error_type(code: String) -> KeyValue {
    KeyValue::new("error.type", code)
}

/// An identity from outside, short enough for a log line.
fn shortened(text: &str) -> String {
    text.chars().take(IDENTITY_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
