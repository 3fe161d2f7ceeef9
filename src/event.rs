//! One message as it arrived: what it says about itself, its data, and the bytes it can be decoded
//! from again.
//!
//! **Invariants**
//! - Every [`Event`] is read from its [`Stored`] form, so decoding that form again gives an equal
//!   event; nothing is normalised on the way in.
//! - JSON data stays text: an integer keeps every digit until the handler's own type reads it.
//! - Nothing here panics or recurses with its input, and no `Debug` output holds data.
//!
//! Bytes become events in `event/decode.rs` and `event/data.rs`; identity and equality are in
//! `event/fingerprint.rs`. What to do with a message is not decided here.
#![allow(
    clippy::result_large_err,
    reason = "an event is larger than its fault, so a boxed fault would not make a result smaller"
)]

mod data;
mod decode;
mod fingerprint;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod value_tests;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::clock::Timestamp;
use crate::outcome::Code;

pub use decode::{Arrival, BATCH_EVENTS_MAX, Form, decode};
pub use fingerprint::{Fingerprint, MessageKey};

/// Longest accepted `id`, in bytes.
pub const ID_BYTES_MAX: usize = 1024;

/// Longest accepted `source`, `type` and `subject`, in bytes each.
pub const ATTRIBUTE_BYTES_MAX: usize = 2048;

/// Deepest accepted nesting of data, in levels: what `serde_json` can still read into a value
/// (its recursion limit of 128 refuses the 128th level).
pub const DEPTH_MAX: usize = 127;

/// Largest `recoveryattempt` believed of an incoming event; above it counts as none, so that a
/// wrong number cannot spend a message's whole cap.
pub const RECOVERY_ATTEMPT_MAX: u32 = 10_000;

/// What is kept on disk of a message, so that exactly the same event can be decoded again.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    /// `None`: the body is a structured JSON `CloudEvent`. Otherwise a JSON object of the
    /// attributes, and the body is the data alone (binary mode, or an event the sidecar had
    /// taken apart).
    pub attributes: Option<String>,
    /// The bytes as they were received, a byte order mark included; of a batch, the member's own,
    /// in memory a piece of the whole batch.
    pub body: Bytes,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.attributes.is_some() { "apart" } else { "structured" };
        write!(f, "Stored({mode}, {} bytes)", self.body.len())
    }
}

/// A message that is not a `CloudEvent` we can take, with its bytes and whatever could be read.
#[derive(Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The first rule it breaks.
    pub reason: Code,
    /// The bytes, for the exception queue.
    pub stored: Stored,
    /// `id`, cut to [`ID_BYTES_MAX`]; for people, never to be used as a key.
    pub id: Option<String>,
    /// `source`, cut to [`ATTRIBUTE_BYTES_MAX`].
    pub source: Option<String>,
    /// `type`, cut to [`ATTRIBUTE_BYTES_MAX`].
    pub ty: Option<String>,
    /// `subject`, cut to [`ATTRIBUTE_BYTES_MAX`].
    pub subject: Option<String>,
}

impl fmt::Debug for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Malformed({}, {:?})", self.reason, self.stored)
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

// By hand, because thiserror would take the attribute `source` for the error's cause.
impl std::error::Error for Malformed {}

/// One decoded `CloudEvent` 1.0.
///
/// `id`, `source` and `type` are not blank and within their bounds; everything else is taken
/// leniently and kept as it came.
#[derive(Clone, PartialEq)]
pub struct Event {
    id: String,
    source: String,
    ty: String,
    subject: Option<String>,
    time: Option<String>,
    content_type: Option<String>,
    dataschema: Option<String>,
    extensions: BTreeMap<String, Value>,
    data: Option<Bytes>,
    data_is_json: bool,
    fingerprint: Fingerprint,
    stored: Stored,
}

impl Event {
    /// An event with JSON data in the structured form, for tests of handlers and for publishing;
    /// null data is no data.
    ///
    /// # Errors
    /// [`Malformed`] by the same rules as an event that arrives: a blank or overlong attribute,
    /// data nested deeper than [`DEPTH_MAX`].
    pub fn json(id: &str, source: &str, ty: &str, data: &Value) -> Result<Self, Malformed> {
        let mut members = Map::new();
        for (name, value) in [("id", id), ("source", source), ("type", ty)] {
            members.insert(name.to_owned(), Value::String(value.to_owned()));
        }
        members.insert("specversion".to_owned(), Value::String("1.0".to_owned()));
        let json = Value::String("application/json".to_owned());
        members.insert("datacontenttype".to_owned(), json);
        members.insert("data".to_owned(), data.clone());
        let body = Bytes::from(Value::Object(members).to_string());
        decode::read(Stored { attributes: None, body })
    }

    /// The event that was stored: equal to the one whose [`Event::stored`] it was.
    ///
    /// # Errors
    /// [`Malformed`] with the reason it had when it arrived; a batch is not an event.
    pub fn from_stored(stored: &Stored) -> Result<Self, Malformed> {
        decode::read(stored.clone())
    }

    /// Identifies the event within its source; byte for byte, never trimmed or folded.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where the event comes from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The `type` attribute, which chooses the handler.
    pub fn ty(&self) -> &str {
        &self.ty
    }

    /// What the event is about; an empty one counts as none (Azure Event Grid sends it empty).
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// When it happened, as the producer wrote it; not judged, for it is no part of identity.
    pub fn time(&self) -> Option<&str> {
        self.time.as_deref()
    }

    /// The `datacontenttype` attribute as written, parameters included.
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The `dataschema` attribute.
    pub fn dataschema(&self) -> Option<&str> {
        self.dataschema.as_deref()
    }

    /// Any other attribute by its exact name; null is absent.
    ///
    /// Integers beyond 64 bits arrive as the nearest double here (`CloudEvents` integers have 32
    /// bits); the stored bytes keep every digit.
    pub fn extension(&self, name: &str) -> Option<&Value> {
        self.extensions.get(name)
    }

    /// The data: JSON text for JSON content, the bytes otherwise.
    ///
    /// `None` for no data at all, for JSON `null` and for zero bytes: the protocol bindings and
    /// the sidecar cannot tell these apart, so neither do we. (The JSON format does tell a null
    /// payload from an absent one, section 3.1.1; we do not.)
    pub fn data(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }

    /// Whether [`Event::data`] is a JSON document by its content type, and checked to be one.
    pub fn data_is_json(&self) -> bool {
        self.data_is_json
    }

    /// Whether the data is a JSON string that holds broken JSON: what the sidecar makes of a
    /// publish whose body is not JSON. A handler that takes strings may get such a one rightly, so
    /// only who wanted something else calls it malformed.
    pub(crate) fn holds_broken_json(&self) -> bool {
        let text = self.data.as_deref().and_then(|data| std::str::from_utf8(data).ok());
        self.data_is_json && text.is_some_and(data::is_broken_json_in_a_string)
    }

    /// What to keep on disk for [`Event::from_stored`].
    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Equal for equal type and data, however the JSON was laid out.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The W3C trace parent: `traceparent`, else the older `traceid` attribute of Dapr.
    ///
    /// `None` when malformed or all zero, as the sidecar stamps it on an untraced event.
    pub fn traceparent(&self) -> Option<&str> {
        ["traceparent", "traceid"]
            .into_iter()
            .filter_map(|name| self.text(name))
            .find(|value| is_trace_parent(value))
    }

    /// The W3C trace state as it came; `None` without a valid trace parent, which it belongs to.
    pub fn tracestate(&self) -> Option<&str> {
        self.traceparent().and_then(|_| self.text("tracestate"))
    }

    /// The topic it was published to, stamped by the publishing sidecar; on a dead letter still
    /// the original one.
    pub fn topic(&self) -> Option<&str> {
        self.text("topic")
    }

    /// When it is too late to handle it (`expiration`, RFC 3339, stamped by the sidecar for a
    /// `ttlInSeconds`); never when absent or unreadable, as for the sidecar itself
    /// (components-contrib `pubsub/envelope.go`, `HasExpired`).
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.text("expiration").and_then(instant)
    }

    /// Recoveries spent elsewhere (`recoveryattempt`, a JSON number or a decimal string); 0 when
    /// absent, negative, fractional, above 10,000 or anything else.
    pub fn recovery_attempt(&self) -> u32 {
        match self.extension("recoveryattempt") {
            Some(Value::Number(number)) => whole(number),
            Some(Value::String(text)) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok()
            }
            _ => None,
        }
        .filter(|attempt| *attempt <= RECOVERY_ATTEMPT_MAX)
        .unwrap_or(0)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.extension(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("type", &self.ty)
            .field("fingerprint", &self.fingerprint)
            .field("stored", &self.stored)
            .finish_non_exhaustive()
    }
}

/// A whole number of 32 bits; also one written `3.0`, for numbers the sidecar took apart arrive
/// as doubles.
fn whole(number: &serde_json::Number) -> Option<u32> {
    let exact = number.as_u64().and_then(|number| u32::try_from(number).ok());
    exact.or_else(|| {
        let double = number.as_f64().filter(|double| double.fract() == 0.0)?;
        format!("{double:.0}").parse().ok()
    })
}

/// W3C Trace Context, section 3.2: `version-traceid-parentid-flags` in lower-case hex, neither id
/// all zero; a later version may append fields, version ff is forbidden.
fn is_trace_parent(text: &str) -> bool {
    let mut fields = text.split('-');
    let mut hex = |digits: usize| {
        fields.next().filter(|field| {
            field.len() == digits
                && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let (Some(version), Some(trace), Some(parent), Some(_)) = (hex(2), hex(32), hex(16), hex(2))
    else {
        return false;
    };
    let is_set = |id: &str| id.bytes().any(|byte| byte != b'0');
    let ends_here = fields.next().is_none();
    version != "ff" && (ends_here || version != "00") && is_set(trace) && is_set(parent)
}

/// An RFC 3339 time. The shape is checked first because jiff also reads other notations (a time
/// without seconds, a zone in brackets), which the sidecar would not take for a time.
fn instant(text: &str) -> Option<Timestamp> {
    if !is_rfc3339(text.as_bytes()) {
        return None;
    }
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp(time.as_microsecond()))
}

fn is_rfc3339(text: &[u8]) -> bool {
    let fits = |text: &[u8], shape: &[u8]| {
        text.len() == shape.len()
            && text.iter().zip(shape).all(|(byte, wanted)| match wanted {
                b'0' => byte.is_ascii_digit(),
                b'T' => matches!(byte, b'T' | b't'),
                b'+' => matches!(byte, b'+' | b'-'),
                _ => byte == wanted,
            })
    };
    let Some((seconds, rest)) = text.split_at_checked(b"0000-00-00T00:00:00".len()) else {
        return false;
    };
    let offset = match rest.split_first() {
        Some((b'.', fraction)) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            fraction.get(digits..).unwrap_or_default()
        }
        _ => rest,
    };
    fits(seconds, b"0000-00-00T00:00:00")
        && (matches!(offset, b"Z" | b"z") || fits(offset, b"+00:00"))
}
