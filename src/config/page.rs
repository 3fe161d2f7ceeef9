//! The reference page of the configuration, made from the table.

use super::variables::{ALL, Fallback, Kind, Variable};

const HEAD: &str = "\
# Configuration

<!-- Made from the table in src/config/variables.rs. After a change there:
     cargo run -- config --reference > docs/CONFIGURATION.md -->

The environment is read once, before any port is opened. `backstop config` prints the values in
effect and who gave them. Which broker is used stands in `components/`, how the sidecar retries in
`resiliency.yaml`, and what belongs to one subscription in the code that declares it.

- An empty value counts as not set. Spaces around a value are dropped, except in tokens.
- A bad value, or a name beginning with `BACKSTOP_` that does not stand here, ends the start with
  exit code 64. All problems are told at once, with an example each and without the values.
  (What Kubernetes sets for a Service called `backstop…` is passed over.)
- Times are in seconds and may have decimals: `0.5`.
- Tokens, and the password in a URL, are never printed or logged.
";

const TAIL: &str = "
## Checked together

- `BACKSTOP_RECOVERY_BACKOFF_MAX_SECS` is not below `BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS`.
- `BACKSTOP_LEASE_SECS` is at least twice `BACKSTOP_HANDLER_TIMEOUT_SECS`: a run that may still
  work must not look dead to another process.
- `BACKSTOP_DEDUP_RETENTION_SECS` is at least `BACKSTOP_RECOVERY_AGE_MAX_SECS` and the longest
  backoff: a message that recovery may still bring back must not be forgotten. How long the broker
  keeps messages it does not know; that is for you to compare.
- `BACKSTOP_HTTP_LISTEN` and `APP_PORT` are two ports.

## Read by others

The Dapr CLI sets `APP_PORT`, `DAPR_GRPC_PORT` and `DAPR_HTTP_PORT` itself, to free ports. The
OpenTelemetry SDK reads its other standard variables by itself, such as `OTEL_RESOURCE_ATTRIBUTES`,
`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_TIMEOUT`, `OTEL_TRACES_SAMPLER` and
`OTEL_METRIC_EXPORT_INTERVAL`; `NO_COLOR` takes the colours from human log lines.
";

/// The text of `docs/CONFIGURATION.md`.
#[must_use]
pub fn reference_page() -> String {
    let mut page = HEAD.to_owned();
    let mut group = "";
    for variable in ALL {
        if variable.group != group {
            group = variable.group;
            page.push_str("\n## ");
            page.push_str(group);
            page.push_str("\n\n| Variable | Default | Allowed | Example | Meaning |\n");
            page.push_str("|---|---|---|---|---|\n");
        }
        page.push_str(&row(variable));
    }
    page.push_str(TAIL);
    page
}

fn row(variable: &Variable) -> String {
    let default = match variable.default {
        Fallback::Value(text) => format!("`{text}`"),
        Fallback::Unset(means) => format!("not set: {means}"),
    };
    let allowed = match variable.kind {
        Kind::Secs { min, max } => format!("seconds, {min} to {max}"),
        Kind::Count { unit: "", min, max } => format!("{min} to {max}"),
        Kind::Count { unit, min, max } => format!("{unit}, {min} to {max}"),
        Kind::Choice(words) => format!("`{}`", words.join("`, `")),
        Kind::Text(described) | Kind::Url(described) => described.to_owned(),
        Kind::Secret => "printable ASCII without spaces; secret".to_owned(),
    };
    let Variable { name, example, meaning, .. } = variable;
    format!("| `{name}` | {default} | {allowed} | `{example}` | {meaning} |\n")
}
