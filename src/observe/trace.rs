//! One span for each message, and the trace context from the event into it and on into what it
//! publishes (W3C Trace Context).

use std::str::FromStr;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::{Lane, Place};

/// The longest `tracestate` that is passed on; W3C asks for 512 at least.
const TRACESTATE_BYTES_MAX: usize = 512;

/// The span of one message, to be entered (`instrument`) around its handling.
///
/// A delivery continues the event's trace. A run from the store, minutes or days later, has a
/// trace of its own with a link to the event's, so that no trace lasts for days. A `traceparent`
/// that is malformed or all zeroes counts as absent.
///
/// [`Observer`](super::Observer) records the outcome and the failure on the current span.
#[must_use]
pub fn span_for(place: Place<'_>, traceparent: Option<&str>, tracestate: Option<&str>) -> Span {
    let Place { subscription, topic, lane } = place;
    // Few fields, because log lines show them; what only traces need is an attribute.
    let span = tracing::info_span!(
        parent: None,
        "message",
        otel.name = %format_args!("process {topic}"),
        otel.kind = "consumer",
        otel.status_code = Empty,
        outcome = Empty,
        "error.type" = Empty,
        trace_id = Empty,
    );
    span.set_attribute("messaging.system", "dapr");
    span.set_attribute("messaging.operation.name", "process");
    span.set_attribute("messaging.operation.type", "process");
    span.set_attribute("messaging.destination.name", topic.to_owned());
    span.set_attribute("messaging.destination.subscription.name", subscription.to_owned());
    span.set_attribute("lane", lane.as_str());
    let event = traceparent.and_then(|parent| parse(parent, tracestate));
    if let Some(event) = event.clone() {
        match lane {
            // It fails when traces are switched off; the span then has no one to tell.
            Lane::Live | Lane::DeadLetter => {
                span.set_parent(Context::new().with_remote_span_context(event)).ok();
            }
            Lane::Recovery | Lane::Redrive => span.add_link(event),
        }
    }
    if let Some(context) = context_of(&span).or(event) {
        span.record("trace_id", tracing::field::display(context.trace_id()));
    }
    span
}

/// The current span as a `traceparent` for what is published; absent outside any span and where
/// traces are not set up: pass the event's own on then.
#[must_use]
pub fn current_traceparent() -> Option<String> {
    let context = context_of(&Span::current())?;
    let sampled = context.trace_flags() & TraceFlags::SAMPLED;
    Some(format!("00-{}-{}-{sampled:02x}", context.trace_id(), context.span_id()))
}

fn context_of(span: &Span) -> Option<SpanContext> {
    let context = span.context().span().span_context().clone();
    context.is_valid().then_some(context)
}

fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.split('-');
    let version = hex(parts.next()?, 2)?;
    let trace_id = TraceId::from_hex(hex(parts.next()?, 32)?).ok()?;
    let span_id = SpanId::from_hex(hex(parts.next()?, 16)?).ok()?;
    let flags = u8::from_str_radix(hex(parts.next()?, 2)?, 16).ok()?;
    // A later version may add parts; version 00 has four, and ff is forbidden.
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let state = tracestate
        .filter(|state| state.len() <= TRACESTATE_BYTES_MAX)
        .and_then(|state| TraceState::from_str(state).ok())
        .unwrap_or_default();
    let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    let context = SpanContext::new(trace_id, span_id, flags, true, state);
    context.is_valid().then_some(context)
}

fn hex(text: &str, digits: usize) -> Option<&str> {
    let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == digits && text.bytes().all(lower)).then_some(text)
}
