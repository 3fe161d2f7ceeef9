//! The contract with operators: every metric and every log line of ours.

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its OpenTelemetry name.
    pub name: &'static str,
    /// Its name on `/metrics`.
    pub prometheus: &'static str,
    /// Counter, histogram or gauge.
    pub kind: Kind,
    /// Its unit, in UCUM.
    pub unit: &'static str,
    /// Its attributes; on `/metrics` with underscores for dots.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub meaning: &'static str,
}

/// What kind of instrument a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows.
    Counter,
    /// A distribution.
    Histogram,
    /// The value of now.
    Gauge,
}

/// One log line.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// `ERROR`, `WARN`, `INFO` or `DEBUG`.
    pub level: &'static str,
    /// Its message, word for word.
    pub text: &'static str,
    /// Its fields; those that do not apply are left out of a line.
    pub fields: &'static [&'static str],
    /// What it tells, and what to do.
    pub meaning: &'static str,
}

/// The bucket boundaries of every duration, in seconds, as the messaging conventions advise.
pub(super) const DURATION_BOUNDARIES: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal as $prometheus:literal in $unit:literal by [$($label:literal),*], $meaning:literal;)+) => {
        $(pub(super) const $id: Metric = Metric {
            name: $name, prometheus: $prometheus, kind: Kind::$kind, unit: $unit, labels: &[$($label),*], meaning: $meaning,
        };)+
        /// Every metric, in the order of the documentation.
        pub const METRICS: &[Metric] = &[$($id),+];
    };
}

metrics! {
    CONSUMED = Counter "messaging.client.consumed.messages" as "messaging_client_consumed_messages_total" in "{message}"
        by ["messaging.system", "messaging.operation.name", "messaging.destination.name", "messaging.destination.subscription.name"],
        "Messages that the sidecar delivered, dead letters included; each entry of a batch counts.";
    PROCESS_DURATION = Histogram "messaging.process.duration" as "messaging_process_duration_seconds" in "s"
        by ["messaging.system", "messaging.operation.name", "messaging.destination.name", "messaging.destination.subscription.name", "lane", "error.type"],
        "Handler runs, from start to commit; a failed one has its code as error.type.";
    SENT = Counter "messaging.client.sent.messages" as "messaging_client_sent_messages_total" in "{message}"
        by ["messaging.system", "messaging.operation.name", "messaging.destination.name", "error.type"],
        "Messages that the relay handed to the sidecar; those not taken have error.type and are tried again.";
    SEND_DURATION = Histogram "messaging.client.operation.duration" as "messaging_client_operation_duration_seconds" in "s"
        by ["messaging.system", "messaging.operation.name", "messaging.destination.name", "error.type"],
        "The relay's publish calls; one may carry many messages.";
    OUTCOMES = Counter "backstop.outcomes" as "backstop_outcomes_total" in "{message}"
        by ["subscription", "lane", "outcome"],
        "What became of each message of each delivery or run; a duplicate is outcome=duplicate.";
    DELIVERY_DURATION = Histogram "backstop.delivery.duration" as "backstop_delivery_duration_seconds" in "s"
        by ["subscription", "lane", "outcome"],
        "From a message's arrival to its answer, waiting and commit included.";
    QUARANTINES = Counter "backstop.quarantines" as "backstop_quarantines_total" in "{message}"
        by ["subscription", "category", "reason"],
        "Cases opened, each with one poison log line.";
    RECOVERIES_SCHEDULED = Counter "backstop.recoveries.scheduled" as "backstop_recoveries_scheduled_total" in "{message}"
        by ["subscription", "code"],
        "Recoveries that got a due time; the code is the latest attempt's, retries_exhausted when the dead letter started it, or never_attempted.";
    OUTBOX_REFUSED = Counter "backstop.outbox.refused" as "backstop_outbox_refused_total" in "{message}"
        by ["topic", "code"],
        "Outgoing messages that the sidecar refused for good; each has a case.";
    OUTBOX_PENDING = Gauge "backstop.outbox.pending" as "backstop_outbox_pending" in "{message}" by [],
        "Outgoing messages that are due and not yet published; of one topic no more than 100,000 are counted.";
    OUTBOX_OLDEST_AGE = Gauge "backstop.outbox.oldest_age" as "backstop_outbox_oldest_age_seconds" in "s" by [],
        "The age of the oldest outgoing message not yet published; 0 when there is none.";
    OUTBOX_DELAYED = Gauge "backstop.outbox.delayed" as "backstop_outbox_delayed" in "{message}" by [],
        "Outgoing messages that are not to leave yet; no more than 100,000 are counted.";
    EXCEPTIONS_OPEN = Gauge "backstop.exceptions.open" as "backstop_exceptions_open" in "{exception}" by [],
        "Cases that wait for a person.";
    RECOVERING = Gauge "backstop.recovering" as "backstop_recovering" in "{message}" by [],
        "Messages that automatic recovery has in hand.";
    GATES_CLOSED = Gauge "backstop.gates.closed" as "backstop_gates_closed" in "{gate}" by [],
        "Gates that are closed: dependencies that are away.";
    GATES_WAITING = Gauge "backstop.gates.waiting" as "backstop_gates_waiting" in "{message}" by [],
        "Messages that wait at a closed gate.";
    STORE_AVAILABLE = Gauge "backstop.store.available" as "backstop_store_available" in "" by [],
        "1 while the store can commit, 0 while it cannot.";
}

macro_rules! events {
    ($($id:ident = $level:ident $text:literal with [$($field:literal),*], $meaning:literal;)+) => {
        $(pub(super) const $id: &str = $text;)+
        /// Every log line of ours, in the order of the documentation.
        pub const EVENTS: &[Event] = &[$(Event {
            level: stringify!($level), text: $text, fields: &[$($field),*], meaning: $meaning,
        }),+];
    };
}

events! {
    MESSAGE_QUARANTINED = ERROR "Poison message quarantined."
        with ["subscription", "exception_id", "category", "reason", "attempts", "event_id", "source"],
        "The poison log: a case was opened and waits for a person. Once for each case.";
    PUBLISH_REFUSED = ERROR "Outgoing message refused for good."
        with ["topic", "code", "exception_id"],
        "A case was opened for a message that can never leave: too large, or it fails alone while others leave.";
    STORE_AWAY = ERROR "The store cannot commit; deliveries are held back."
        with [],
        "Health is unhealthy, nothing is acknowledged and no attempt is counted until it is back.";
    ATTEMPT_FAILED = WARN "Handler attempt failed."
        with ["subscription", "lane", "attempt", "code", "duration_secs"],
        "One run failed; what follows, a retry, a recovery or a case, happens by itself.";
    CASE_REOPENED = WARN "A redriven message failed; its case is open again."
        with ["subscription", "exception_id", "category", "reason"],
        "An operator's run did not help; the case waits for a person as before.";
    PUBLISH_FAILED = WARN "Publishing failed; the relay will try again."
        with ["topic", "count", "code"],
        "The sidecar or the broker did not take these messages; they stay in the outbox.";
    DEAD_LETTER_COMPONENT_MISSING = WARN "Dead letters come through the same component as their topic. While its breaker is open, or this service is away, events are then lost on Redis and JetStream. Load a second component of the same broker, named as `component` says; components/ has one for each broker."
        with ["pubsub", "component"],
        "The sidecar's metadata does not show the dead-letter component.";
    SIDECAR_SILENT = WARN "The sidecar's API does not answer; nothing is consumed until it does."
        with ["endpoint"],
        "Without it the consumer's name and the dead-letter component are not known. Is DAPR_GRPC_PORT the sidecar's?";
    IS_CAUTIOUS = WARN "A service of this store ended uncleanly; every message is claimed first for a while."
        with ["for_secs"],
        "A message that ends the process is found out, and takes no other with it. Slower: one more commit a message.";
    STORE_BACK = INFO "The store can commit again."
        with [],
        "Deliveries go on.";
    SIDECAR_FOUND = INFO "Sidecar found."
        with ["app_id", "runtime_version", "consumer"],
        "The sidecar answered and said who it is.";
    RECOVERY_SCHEDULED = INFO "Recovery scheduled."
        with ["subscription", "code", "due_in_secs"],
        "The message will be run from the store at its due time.";
    ATTEMPT_SUCCEEDED = DEBUG "Handler attempt succeeded."
        with ["subscription", "lane", "attempt", "duration_secs"],
        "One run has committed.";
    DELIVERY_JUDGED = DEBUG "Delivery judged."
        with ["subscription", "lane", "outcome", "code", "duration_secs"],
        "One message of one delivery has its outcome.";
    MESSAGES_PUBLISHED = DEBUG "Messages published."
        with ["topic", "count", "duration_secs"],
        "The sidecar took these messages.";
}
