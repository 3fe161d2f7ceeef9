//! What the sidecar sends, turned into what the core takes: pure functions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use dapr::dapr::proto::runtime::v1 as api;
use dapr::dapr::proto::runtime::v1::topic_event_bulk_request_entry::Event as BulkEvent;
use prost_types::value::Kind;
use serde_json::{Map, Number, Value as Json};
use tonic::metadata::{KeyAndValueRef, MetadataMap};

use crate::event::{Arrival, Form};

/// A raw subscription's event is the broker's bytes in an envelope the sidecar made up: this type,
/// this source, this content type (components-contrib v1.18.3, `pubsub/envelope.go`).
/// Anything else has been taken apart by the sidecar.
pub(super) fn arrival_of(
    event: api::TopicEventRequest,
    metadata: BTreeMap<String, String>,
) -> Arrival {
    let made_up = event.r#type == "com.dapr.event.sent"
        && event.source == "Dapr"
        && event.data_content_type == "application/octet-stream";
    let form = if made_up {
        Form::Broker { metadata }
    } else {
        Form::TakenApart {
            id: event.id,
            source: event.source,
            ty: event.r#type,
            specversion: event.spec_version,
            content_type: event.data_content_type,
            extensions: json_map(event.extensions.unwrap_or_default()),
        }
    };
    Arrival { body: Bytes::from(event.data), form }
}

pub(super) fn bulk_arrival(
    event: Option<BulkEvent>,
    own: HashMap<String, String>,
    content_type: &str,
    shared: &BTreeMap<String, String>,
) -> Option<Arrival> {
    match event? {
        BulkEvent::Bytes(bytes) => {
            let mut metadata = shared.clone();
            metadata.extend(own.into_iter().map(|(name, value)| (name.to_lowercase(), value)));
            if !content_type.is_empty() {
                metadata.insert("content-type".to_owned(), content_type.to_owned());
            }
            Some(Arrival { body: Bytes::from(bytes), form: Form::Broker { metadata } })
        }
        BulkEvent::CloudEvent(event) => Some(Arrival {
            body: Bytes::from(event.data),
            form: Form::TakenApart {
                id: event.id,
                source: event.source,
                ty: event.r#type,
                specversion: event.spec_version,
                content_type: event.data_content_type,
                extensions: json_map(event.extensions.unwrap_or_default()),
            },
        }),
    }
}

pub(super) fn metadata_of(metadata: &MetadataMap) -> BTreeMap<String, String> {
    metadata
        .iter()
        .filter_map(|entry| match entry {
            KeyAndValueRef::Ascii(name, value) => {
                Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
            }
            KeyAndValueRef::Binary(..) => None,
        })
        .collect()
}

fn json_map(fields: prost_types::Struct) -> Map<String, Json> {
    fields.fields.into_iter().map(|(name, value)| (name, json(value, 0))).collect()
}

/// Values nested deeper than this are cut off: an attribute is a scalar by the specification.
const EXTENSION_DEPTH_MAX: u32 = 16;

fn json(value: prost_types::Value, depth: u32) -> Json {
    match value.kind {
        _ if depth > EXTENSION_DEPTH_MAX => Json::Null,
        None | Some(Kind::NullValue(_)) => Json::Null,
        // Every number is a double here; a whole one is written as an integer again.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < 9.0e15 =>
        {
            #[allow(clippy::cast_possible_truncation, reason = "whole and within 2^53")]
            Json::from(number as i64)
        }
        Some(Kind::NumberValue(number)) => {
            Number::from_f64(number).map_or(Json::Null, Json::Number)
        }
        Some(Kind::StringValue(text)) => Json::String(text),
        Some(Kind::BoolValue(flag)) => Json::Bool(flag),
        Some(Kind::StructValue(fields)) => Json::Object(
            fields.fields.into_iter().map(|(name, value)| (name, json(value, depth + 1))).collect(),
        ),
        Some(Kind::ListValue(list)) => {
            Json::Array(list.values.into_iter().map(|value| json(value, depth + 1)).collect())
        }
    }
}

/// The value of `grpc-timeout`: at most eight digits and a unit (gRPC over HTTP/2, "Requests").
pub(super) fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

/// Whether a delivered topic is the subscribed one, or lies under its MQTT wildcard.
pub(super) fn matches_topic(subscribed: &str, delivered: &str) -> bool {
    if !subscribed.contains(['+', '#']) {
        return subscribed == delivered;
    }
    let (mut wanted, mut levels) = (subscribed.split('/'), delivered.split('/'));
    loop {
        match (wanted.next(), levels.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(wanted), Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sidecars_timeout_is_read_in_every_unit() {
        for (text, millis) in [
            ("1H", 3_600_000),
            ("2M", 120_000),
            ("3S", 3_000),
            ("4m", 4),
            ("5000u", 5),
            ("6000000n", 6),
        ] {
            assert_eq!(grpc_timeout(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "S", "1", "1x", "-1S", "123456789S", "é"] {
            assert_eq!(grpc_timeout(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_mqtt_wildcard_takes_the_topics_under_it_and_no_others() {
        for (subscribed, delivered, expected) in [
            ("orders", "orders", true),
            ("orders", "orders/eu", false),
            ("orders/+", "orders/eu", true),
            ("orders/+", "orders/eu/1", false),
            ("orders/#", "orders/eu/1", true),
            ("orders/+/new", "orders/eu/new", true),
            ("orders/+/new", "orders/eu/old", false),
        ] {
            assert_eq!(matches_topic(subscribed, delivered), expected, "{subscribed} {delivered}");
        }
    }
}
