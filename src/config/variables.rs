//! The table of variables: name, default, what is allowed, an example, and the meaning.

/// One environment variable.
#[derive(Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    /// The part of the reference page it stands in.
    pub(super) group: &'static str,
    pub(super) default: Fallback,
    pub(super) kind: Kind,
    /// A good value, shown with every problem.
    pub(super) example: &'static str,
    pub(super) meaning: &'static str,
}

/// What holds when a variable is not set.
#[derive(Debug)]
pub(super) enum Fallback {
    /// This value.
    Value(&'static str),
    /// No value; the text says what that means.
    Unset(&'static str),
}

/// What a variable accepts.
#[derive(Debug)]
pub(super) enum Kind {
    /// A number of seconds, decimals allowed.
    Secs { min: f64, max: f64 },
    /// A whole number of something.
    Count { unit: &'static str, min: u64, max: u64 },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// What the text describes.
    Text(&'static str),
    /// A URL, as the text describes, shown without its password.
    Url(&'static str),
    /// A token, never shown.
    Secret,
}

use Fallback::{Unset, Value};
use Kind::{Choice, Count, Secret, Secs, Text, Url};

const NAME: Kind = Text("1 to 64 of `A-Z a-z 0-9 . _ -`");
const PORT: Kind = Count { unit: "", min: 1, max: 65_535 };
const PLAIN_URL: Kind = Text("`http://HOST:PORT`");
const DAY: f64 = 86_400.0;

macro_rules! variables {
    ($($group:literal { $($id:ident = $name:literal, $default:expr, $kind:expr, $example:literal, $meaning:literal;)+ })+) => {
        $($(pub(super) const $id: Variable = Variable {
            name: $name, group: $group, default: $default, kind: $kind, example: $example, meaning: $meaning,
        };)+)+
        /// Every variable, in the order of the reference page.
        pub(super) const ALL: &[&Variable] = &[$($(&$id),+),+];
    };
}

variables! {
    "This process" {
        STORE_URL = "BACKSTOP_STORE_URL", Value("sqlite://backstop.db"), Url("`sqlite://PATH` or `postgres://USER:PASSWORD@HOST/DATABASE`"), "sqlite:///var/lib/backstop/backstop.db",
            "The database. SQLite: a path without a leading slash counts from the working directory; in memory is refused, for what is acknowledged must be on disk. PostgreSQL 13 or newer: TLS with verification is required unless the host is this machine; `sslmode=disable` switches it off, `sslrootcert=FILE` trusts those authorities instead of the system's.";
        HTTP_LISTEN = "BACKSTOP_HTTP_LISTEN", Value("127.0.0.1:8080"), Text("`IP:PORT`, another port than `APP_PORT`"), "0.0.0.0:8080",
            "Where the console, `/metrics`, `/healthz` and `/readyz` listen.";
        CONSUMER = "BACKSTOP_CONSUMER", Unset("the Dapr app id"), NAME, "order-service",
            "The consumer's name: part of its dead-letter topics' names. Replicas share it.";
        PUBSUB = "BACKSTOP_PUBSUB", Value("orderpubsub"), NAME, "orderpubsub",
            "The pub/sub component that is consumed from and published to. Its dead letters come through the component of this name with `-dead` added, when the sidecar has loaded one.";
        DRAIN_TIMEOUT_SECS = "BACKSTOP_DRAIN_TIMEOUT_SECS", Value("20"), Secs { min: 0.0, max: 3600.0 }, "20",
            "How long a stopping process waits for the work in hand. Keep it below the platform's own grace period.";
    }
    "PostgreSQL" {
        STORE_SCHEMA = "BACKSTOP_STORE_SCHEMA", Value("backstop"), Text("1 to 63 of `a-z 0-9 _`"), "backstop",
            "The schema of the store's tables; made when it is missing. Tables that no statement qualifies are looked for there first, then in `public`.";
        STORE_POOL_SIZE = "BACKSTOP_STORE_POOL_SIZE", Value("8"), Count { unit: "connections", min: 1, max: 256 }, "8",
            "Connections for reading, and as many again for interactive transactions; two more write and look up duplicates. All are opened when needed.";
        STORE_STATEMENT_TIMEOUT_SECS = "BACKSTOP_STORE_STATEMENT_TIMEOUT_SECS", Value("5"), Secs { min: 0.1, max: 600.0 }, "5",
            "How long one statement may take. A handler's that takes longer fails its delivery; those that commit with it wait as long.";
        STORE_LOCK_TIMEOUT_SECS = "BACKSTOP_STORE_LOCK_TIMEOUT_SECS", Value("3"), Secs { min: 0.1, max: 600.0 }, "3",
            "How long a statement may wait for a lock of another transaction before all of its own is run again.";
        STORE_MIGRATE = "BACKSTOP_STORE_MIGRATE", Value("at_start"), Choice(&["at_start", "never"]), "never",
            "Whether a service makes what is missing of the tables when it starts. `never` leaves it to `backstop migrate`, and a service whose tables are not there does not start.";
    }
    "One delivery" {
        HANDLER_TIMEOUT_SECS = "BACKSTOP_HANDLER_TIMEOUT_SECS", Value("20"), Secs { min: 0.001, max: 3600.0 }, "20",
            "How long one run of a handler may take; after it the attempt has failed with `handler_timed_out`.";
        DELIVERY_DEADLINE_SECS = "BACKSTOP_DELIVERY_DEADLINE_SECS", Value("25"), Secs { min: 0.001, max: 3600.0 }, "25",
            "The longest a delivery waits for a twin of it that is still in flight. Keep it below the timeout that `resiliency.yaml` gives the sidecar.";
        DECODE_BYTES_MAX = "BACKSTOP_DECODE_BYTES_MAX", Value("67108864"), Count { unit: "bytes", min: 65_536, max: 1_073_741_824 }, "67108864",
            "The largest gRPC message that is decoded. Not below the sidecar's `--max-body-size`, else larger events end in the topic `…-unreadable`.";
    }
    "Recovery" {
        ATTEMPTS_LIVE_MAX = "BACKSTOP_ATTEMPTS_LIVE_MAX", Value("12"), Count { unit: "attempts", min: 1, max: 1000 }, "12",
            "The live failure with this number hands the message to recovery. Keep it above the sidecar's `maxRetries` + 1, so that the dead letter stays the ordinary trigger.";
        RETRY_GUARD_SECS = "BACKSTOP_RETRY_GUARD_SECS", Value("60"), Secs { min: 0.001, max: DAY }, "60",
            "How long after a live failure we wait for the sidecar before the message is recovered from the store. Keep it above the sidecar's longest pause between retries.";
        RECOVERIES_MAX = "BACKSTOP_RECOVERIES_MAX", Value("14"), Count { unit: "recoveries", min: 0, max: 1000 }, "14",
            "The cap: automatic recoveries a message may spend before it is quarantined.";
        RECOVERY_BACKOFF_FIRST_SECS = "BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", Value("10"), Secs { min: 0.001, max: DAY }, "10",
            "The wait before the first recovery; each further one doubles it, with ±25 % of jitter.";
        RECOVERY_BACKOFF_MAX_SECS = "BACKSTOP_RECOVERY_BACKOFF_MAX_SECS", Value("600"), Secs { min: 0.001, max: DAY }, "600",
            "The longest wait between two recoveries, before jitter. Not below the first.";
        RECOVERY_AGE_MAX_SECS = "BACKSTOP_RECOVERY_AGE_MAX_SECS", Value("86400"), Secs { min: 0.001, max: 365.0 * DAY }, "86400",
            "A message first seen longer ago is not recovered again, but quarantined.";
        RECOVERY_CONCURRENCY_MAX = "BACKSTOP_RECOVERY_CONCURRENCY_MAX", Value("4"), Count { unit: "runs", min: 1, max: 256 }, "4",
            "Recoveries that run at the same time, beside live traffic.";
        GATE_PROBE_SECS = "BACKSTOP_GATE_PROBE_SECS", Value("10"), Secs { min: 0.001, max: DAY }, "10",
            "How often one message tries a dependency that is away, while the others wait at its closed gate.";
        LEASE_SECS = "BACKSTOP_LEASE_SECS", Value("60"), Secs { min: 0.002, max: 7200.0 }, "60",
            "How long a claimed run is believed alive without a report. At least twice the handler timeout.";
    }
    "What is kept" {
        DEDUP_RETENTION_SECS = "BACKSTOP_DEDUP_RETENTION_SECS", Value("604800"), Secs { min: 1.0, max: 3650.0 * DAY }, "604800",
            "How long a processed or closed message is remembered at least, and half as long again at most. It must cover the longest way by which a message can come back: the broker's own retention, the age of a dead letter, automatic recovery.";
        OUTBOX_RETENTION_SECS = "BACKSTOP_OUTBOX_RETENTION_SECS", Value("3600"), Secs { min: 0.0, max: 3650.0 * DAY }, "3600",
            "How long published messages stay in the outbox. What is not published stays.";
        CASE_RETENTION_SECS = "BACKSTOP_CASE_RETENTION_SECS", Value("7776000"), Text("seconds, or `keep`"), "keep",
            "How long resolved and closed cases stay, with their attempts. Not shorter than `BACKSTOP_DEDUP_RETENTION_SECS`, which goes before. Open ones stay.";
        AUDIT_RETENTION_SECS = "BACKSTOP_AUDIT_RETENTION_SECS", Value("keep"), Text("seconds, or `keep`"), "31536000",
            "How long it is kept who did what to cases and gates.";
    }
    "Logs and telemetry" {
        LOG = "BACKSTOP_LOG", Value("info"), Text("levels and `target=level`, separated by commas"), "info,backstop=debug",
            "Which log lines are written: `error`, `warn`, `info`, `debug`, `trace` or `off`, for all or for a target. Traces and metrics do not depend on it.";
        LOG_FORMAT = "BACKSTOP_LOG_FORMAT", Value("auto"), Choice(&["auto", "human", "json"]), "json",
            "How log lines look on standard output; `auto` is human in a terminal and JSON otherwise.";
        OTEL_EXPORTER_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", Unset("nothing is exported"), PLAIN_URL, "http://127.0.0.1:4317",
            "The OpenTelemetry collector (gRPC) for traces, metrics and logs. This build speaks to it without TLS: use a collector on the same host or network.";
        OTEL_SERVICE_NAME = "OTEL_SERVICE_NAME", Value("backstop"), Text("1 to 255 characters"), "order-service",
            "The name of this service in traces, metrics and exported logs.";
    }
    "The sidecar" {
        APP_PORT = "APP_PORT", Value("50051"), PORT, "50051",
            "The port on which the sidecar calls this service (gRPC).";
        DAPR_GRPC_PORT = "DAPR_GRPC_PORT", Value("50001"), PORT, "50001",
            "The port of the sidecar's gRPC API on this host.";
        DAPR_HTTP_PORT = "DAPR_HTTP_PORT", Value("3500"), PORT, "3500",
            "The port of the sidecar's HTTP API on this host.";
        DAPR_GRPC_ENDPOINT = "DAPR_GRPC_ENDPOINT", Unset("`DAPR_GRPC_PORT` on this host"), PLAIN_URL, "http://127.0.0.1:50001",
            "The sidecar's gRPC API when it is not on this host; goes before `DAPR_GRPC_PORT`. Without TLS.";
        APP_API_TOKEN = "APP_API_TOKEN", Unset("no token is asked for"), Secret, "a-long-random-token",
            "The token that the sidecar must show this service.";
        APP_TOKEN_MODE = "BACKSTOP_APP_TOKEN_MODE", Value("require"), Choice(&["require", "accept_missing"]), "require",
            "What becomes of a call without a token when `APP_API_TOKEN` is set. Sidecars before 1.16.2 send none: `accept_missing` lets them in; a wrong token is always refused.";
        DAPR_API_TOKEN = "DAPR_API_TOKEN", Unset("no token is shown"), Secret, "a-long-random-token",
            "The token that this service must show the sidecar.";
    }
    "The reference consumer" {
        ORDERS_INVENTORY_URL = "BACKSTOP_ORDERS_INVENTORY_URL", Unset("nobody is asked"), Text("`http://…` or `https://…`"), "http://127.0.0.1:9090",
            "The service that reserves an order's goods: `PUT {url}/reservations/{orderId}`.";
        ORDERS_BULK = "BACKSTOP_ORDERS_BULK", Value("off"), Choice(&["off", "on"]), "on",
            "Whether orders are asked for in bulk, 64 in a call; README.md says when that pays. Not above the `concurrency` of the component.";
    }
}
