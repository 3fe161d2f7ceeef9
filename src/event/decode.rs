//! Bytes to events: structured JSON, a JSON batch, binary mode, and what the sidecar took apart.
//!
//! **Invariants**
//! - Every arrival gives an answer for each of its events: an [`Event`], or a [`Malformed`] with
//!   the bytes and the first rule it breaks. Nothing is guessed, unquoted or unwrapped.
//! - One rule book ([`read`]) for every form, and it reads from the stored form.
//!
//! An arrival is bounded by the transport's decode limit and header limit, which this file does
//! not know; work is linear in its size, and a batch is bounded by [`BATCH_EVENTS_MAX`] as well.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::data::{Data, Declared, bytes_content, structured_content};
use super::fingerprint::canonical;
use super::{ATTRIBUTE_BYTES_MAX, Event, ID_BYTES_MAX, Malformed, Stored};
use crate::outcome::{Code, reason};

/// Most members of one batch; a longer array is filed whole, because three bytes of it would cost
/// hundreds in memory.
pub const BATCH_EVENTS_MAX: usize = 10_000;

/// One message of a delivery, as the sidecar handed it over.
#[derive(Clone)]
pub struct Arrival {
    /// The broker's bytes, or the data of an event the sidecar took apart.
    pub body: Bytes,
    /// What came beside the body.
    pub form: Form,
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.form {
            Form::Broker { .. } => "broker",
            Form::TakenApart { .. } => "taken apart",
        };
        write!(f, "Arrival({form}, {} bytes)", self.body.len())
    }
}

/// How an event is spread over a delivery.
#[derive(Clone)]
pub enum Form {
    /// A raw subscription: the broker's own bytes.
    Broker {
        /// The broker's metadata. Attributes of the binary mode are found under one of these
        /// prefixes, in either case, told by its `specversion`; the others are ignored:
        /// - `ce_`: `CloudEvents` Kafka binding 3.2.3.1, and dapr `pkg/runtime/subscription`,
        ///   `BinaryCloudEventHeaderPrefix`; values as they come, also when the Kafka component
        ///   is told to `escapeHeaders`;
        /// - `ce-`: HTTP binding 3.1.3.1 and NATS binding, values percent-encoded;
        /// - `cloudEvents:` and `cloudEvents_`: AMQP binding 3.1.3.1. The colon is refused in
        ///   gRPC metadata, so it is only met in the entries of a bulk delivery.
        ///
        /// The content type is `content-type`, else Service Bus's `metadata.contenttype`, else a
        /// `datacontenttype` attribute. The sidecar does not forward the first one over gRPC
        /// (dapr `pkg/messaging/v1/util.go`), and the call's own `application/grpc` says nothing
        /// about the event: without any, data that is JSON counts as JSON and other data as bytes.
        ///
        /// With a content type of `application/cloudevents…` the body is a structured event,
        /// whatever the metadata says (Kafka binding 1.3.1 and 3.3.3).
        metadata: BTreeMap<String, String>,
    },
    /// A subscription without `rawPayload`: the sidecar has parsed the event already, and an
    /// empty string means that the attribute was missing or no string.
    TakenApart {
        /// `TopicEventRequest.id`.
        id: String,
        /// `TopicEventRequest.source`.
        source: String,
        /// `TopicEventRequest.type`.
        ty: String,
        /// `TopicEventRequest.spec_version`.
        specversion: String,
        /// `TopicEventRequest.data_content_type`.
        content_type: String,
        /// Every other attribute; numbers have been through a double.
        extensions: Map<String, Value>,
    },
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker { metadata } => write!(f, "Broker({} entries)", metadata.len()),
            Self::TakenApart { .. } => f.write_str("TakenApart"),
        }
    }
}

/// Every event of one arrival, each judged alone, in order; none for an empty batch.
pub fn decode(arrival: Arrival) -> Vec<Result<Event, Malformed>> {
    let attributes = match arrival.form {
        Form::Broker { metadata } => match binary_attributes(&metadata) {
            None => return broker_bytes(arrival.body),
            Some(attributes) => attributes,
        },
        Form::TakenApart { id, source, ty, specversion, content_type, mut extensions } => {
            let named = [
                ("id", id),
                ("source", source),
                ("type", ty),
                ("specversion", specversion),
                ("datacontenttype", content_type),
            ];
            for (name, value) in named {
                extensions.remove(name);
                if !value.is_empty() {
                    extensions.insert(name.to_owned(), Value::String(value));
                }
            }
            extensions
        }
    };
    let attributes = Some(Value::Object(attributes).to_string());
    vec![read(Stored { attributes, body: arrival.body })]
}

fn binary_attributes(metadata: &BTreeMap<String, String>) -> Option<Map<String, Value>> {
    if !metadata.keys().any(|key| ends_with_ignoring_case(key, "specversion")) {
        return None;
    }
    let lower: BTreeMap<String, &str> =
        metadata.iter().map(|(key, value)| (key.to_ascii_lowercase(), value.as_str())).collect();
    let content_type = ["content-type", "metadata.contenttype"]
        .into_iter()
        .filter_map(|key| lower.get(key))
        .find(|value| !value.is_empty() && !value.starts_with("application/grpc"));
    if content_type
        .is_some_and(|text| text.to_ascii_lowercase().starts_with("application/cloudevents"))
    {
        return None;
    }
    let prefix = ["ce_", "ce-", "cloudevents:", "cloudevents_"]
        .into_iter()
        .find(|prefix| lower.contains_key(&format!("{prefix}specversion")))?;
    let mut attributes = Map::new();
    for (key, value) in &lower {
        if let Some(name) = key.strip_prefix(prefix).filter(|name| !name.is_empty()) {
            let value = if prefix == "ce-" { percent_decoded(value) } else { (*value).to_owned() };
            attributes.insert(name.to_owned(), Value::String(value));
        }
    }
    if let Some(content_type) = content_type {
        let content_type = Value::String((*content_type).to_owned());
        attributes.insert("datacontenttype".to_owned(), content_type);
    }
    Some(attributes)
}

fn ends_with_ignoring_case(text: &str, end: &str) -> bool {
    let start = text.len().checked_sub(end.len());
    start.and_then(|start| text.get(start..)).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}

/// Undoes `%xx`; text that does not come out as UTF-8, or in which a `%` means itself, stays.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|code| std::str::from_utf8(code).ok())
            .filter(|code| *first == b'%' && code.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// A structured event, or a batch of them.
fn broker_bytes(body: Bytes) -> Vec<Result<Event, Malformed>> {
    let batch = match json_text(&body) {
        Ok(text) if text.starts_with('[') => serde_json::from_str::<Batch<'_>>(text).ok(),
        _ => None,
    };
    match batch {
        Some(Batch { is_longer: true, .. }) => {
            let stored = Stored { attributes: None, body: body.clone() };
            vec![Err(malformed(reason::BATCH_TOO_LONG, stored, Seen::default()))]
        }
        Some(Batch { members, .. }) => {
            let stored =
                |member: &RawValue| Stored { attributes: None, body: part(&body, member.get()) };
            members.into_iter().map(|member| read(stored(member))).collect()
        }
        None => vec![read(Stored { attributes: None, body })],
    }
}

/// The members of a JSON array as they are written.
struct Batch<'a> {
    members: Vec<&'a RawValue>,
    is_longer: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Batch<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Batch<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Batch<'de>, A::Error> {
                let mut members = Vec::new();
                while members.len() < BATCH_EVENTS_MAX {
                    match array.next_element()? {
                        Some(member) => members.push(member),
                        None => return Ok(Batch { members, is_longer: false }),
                    }
                }
                let mut is_longer = false;
                while array.next_element::<IgnoredAny>()?.is_some() {
                    is_longer = true;
                }
                Ok(Batch { members, is_longer })
            }
        }

        deserializer.deserialize_seq(Members)
    }
}

/// The event in its stored form, by one rule book for every form it can arrive in.
pub(super) fn read(stored: Stored) -> Result<Event, Malformed> {
    let mut seen = Seen::default();
    match judge(&stored, &mut seen) {
        Ok((head, data)) => Ok(Event {
            fingerprint: data.fingerprint,
            id: head.id,
            source: head.source,
            ty: head.ty,
            subject: head.subject,
            time: head.time,
            content_type: head.content_type,
            dataschema: head.dataschema,
            extensions: head.extensions,
            data: data.bytes,
            data_is_json: data.is_json,
            stored,
        }),
        Err(reason) => Err(malformed(reason, stored, seen)),
    }
}

/// What could be read of an event that is filed.
#[derive(Default)]
struct Seen {
    id: Option<String>,
    source: Option<String>,
    ty: Option<String>,
    subject: Option<String>,
}

fn malformed(reason: Code, stored: Stored, seen: Seen) -> Malformed {
    let Seen { id, source, ty, subject } = seen;
    Malformed { reason, stored, id, source, ty, subject }
}

fn judge(stored: &Stored, seen: &mut Seen) -> Result<(Head, Data), Code> {
    let text = match &stored.attributes {
        Some(attributes) => attributes.as_str(),
        None => json_text(&stored.body)?,
    };
    let members = members(text)?;
    let judged = head_and_data(stored, &members);
    if judged.is_err() {
        *seen = Seen {
            id: cut(&members, "id", ID_BYTES_MAX),
            source: cut(&members, "source", ATTRIBUTE_BYTES_MAX),
            ty: cut(&members, "type", ATTRIBUTE_BYTES_MAX),
            subject: cut(&members, "subject", ATTRIBUTE_BYTES_MAX),
        };
    }
    judged
}

fn head_and_data(stored: &Stored, members: &Members<'_>) -> Result<(Head, Data), Code> {
    let head = head(members)?;
    let declared = Declared::of(head.content_type.as_deref());
    let content = match stored.attributes {
        Some(_) => bytes_content(declared, stored.body.clone())?,
        None => structured_content(declared, members, &stored.body)?,
    };
    let data = Data::new(&head.ty, content);
    Ok((head, data))
}

pub(super) type Members<'a> = BTreeMap<String, &'a RawValue>;

/// The members of a JSON object; of one given twice the last, as in Go and in the sidecar.
pub(super) fn members(text: &str) -> Result<Members<'_>, Code> {
    if text.starts_with('{') {
        return serde_json::from_str(text).map_err(|_| reason::MALFORMED_JSON);
    }
    Err(if is_json(text) { reason::NOT_A_CLOUDEVENT } else { reason::MALFORMED_JSON })
}

/// A member that is there; null counts as absent (JSON format, section 2.2).
pub(super) fn present<'a>(members: &Members<'a>, name: &str) -> Option<&'a RawValue> {
    members.get(name).copied().filter(|value| value.get() != "null")
}

pub(super) fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

fn cut(members: &Members<'_>, name: &str, bytes_max: usize) -> Option<String> {
    let mut text = string(present(members, name)?)?;
    text.truncate(text.floor_char_boundary(bytes_max));
    Some(text)
}

/// The attributes, judged.
struct Head {
    id: String,
    source: String,
    ty: String,
    subject: Option<String>,
    time: Option<String>,
    content_type: Option<String>,
    dataschema: Option<String>,
    extensions: BTreeMap<String, Value>,
}

fn head(members: &Members<'_>) -> Result<Head, Code> {
    let has = |name| present(members, name).is_some();
    match present(members, "specversion").map(string) {
        Some(Some(version)) if version == "1.0" => {}
        Some(_) => return Err(reason::UNSUPPORTED_SPECVERSION),
        // "Event Grid event schema": its events have no `specversion`, but always these two.
        None if has("eventType") && has("eventTime") => return Err(reason::EVENT_GRID_SCHEMA),
        None => return Err(reason::NOT_A_CLOUDEVENT),
    }
    let required = |name, missing: &Code| {
        let value = present(members, name).ok_or_else(|| missing.clone())?;
        let value = string(value).ok_or(reason::INVALID_ATTRIBUTE)?;
        if value.trim().is_empty() { Err(missing.clone()) } else { Ok(value) }
    };
    let optional = |name| present(members, name).and_then(string).filter(|text| !text.is_empty());
    let id = required("id", &reason::MISSING_ID)?;
    if id.len() > ID_BYTES_MAX {
        return Err(reason::ID_TOO_LONG);
    }
    let source = required("source", &reason::MISSING_SOURCE)?;
    let ty = required("type", &reason::MISSING_TYPE)?;
    let subject = optional("subject");
    let is_long = |text: &String| text.len() > ATTRIBUTE_BYTES_MAX;
    if is_long(&source) || is_long(&ty) || subject.as_ref().is_some_and(is_long) {
        return Err(reason::ATTRIBUTE_TOO_LONG);
    }
    // The one optional attribute that says how to read the rest, so it may not be misread.
    if present(members, "datacontenttype").is_some_and(|value| string(value).is_none()) {
        return Err(reason::INVALID_ATTRIBUTE);
    }
    let (content_type, time) = (optional("datacontenttype"), optional("time"));
    let (dataschema, extensions) = (optional("dataschema"), extensions(members)?);
    Ok(Head { id, source, ty, subject, time, content_type, dataschema, extensions })
}

const CORE: [&str; 10] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "data_base64",
];

/// Every other attribute, whatever its name and JSON type.
fn extensions(members: &Members<'_>) -> Result<BTreeMap<String, Value>, Code> {
    let mut extensions = BTreeMap::new();
    for (name, value) in members {
        if CORE.contains(&name.as_str()) || value.get() == "null" {
            continue;
        }
        // Refused are nesting beyond the limit, half a surrogate pair and a number beyond a double.
        let value =
            serde_json::from_str(value.get()).map_err(|_| match canonical(value.get()) {
                Err(_) => reason::TOO_DEEP,
                Ok(_) => reason::INVALID_ATTRIBUTE,
            })?;
        extensions.insert(name.clone(), value);
    }
    Ok(extensions)
}

/// The text without a byte order mark and outer white space.
pub(super) fn json_text(bytes: &[u8]) -> Result<&str, Code> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map(trimmed).map_err(|_| reason::INVALID_UTF8)
}

pub(super) fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r'])
}

/// Checks the syntax, in constant stack whatever the nesting (`serde_json` `de.rs`,
/// `ignore_value`).
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The piece of `whole` that `text` is, sharing its memory; a copy when it is no piece of it.
pub(super) fn part(whole: &Bytes, text: &str) -> Bytes {
    let start = (text.as_ptr() as usize).checked_sub(whole.as_ptr() as usize);
    match start.and_then(|start| Some(start..start.checked_add(text.len())?)) {
        Some(range) if range.end <= whole.len() => whole.slice(range),
        _ => Bytes::copy_from_slice(text.as_bytes()),
    }
}
