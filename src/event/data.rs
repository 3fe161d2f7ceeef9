//! The data of an event: what its content type makes of it, and what it may not be.
//!
//! Nothing is guessed, unquoted or unwrapped: data that breaks a rule is a reason to file the
//! event, and the bytes stay as they came.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

use super::Fingerprint;
use super::decode::{Members, is_json, json_text, members, part, present, string, trimmed};
use super::fingerprint::canonical;
use crate::outcome::{Code, reason};

/// What the content type says about the data.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Declared {
    Json,
    Other,
    /// No content type: the `data` member of a structured event is JSON (section 3.1.2), and any
    /// other data is JSON if it reads as JSON.
    Nothing,
}

impl Declared {
    /// JSON is `*/json` and `*/*+json`, parameters and case aside (JSON format, section 3.1.1).
    pub(super) fn of(content_type: Option<&str>) -> Self {
        let Some(content_type) = content_type else {
            return Self::Nothing;
        };
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        let subtype = media_type.rsplit_once('/').map_or("", |(_, subtype)| subtype);
        let subtype = subtype.to_ascii_lowercase();
        if subtype == "json" || subtype.ends_with("+json") { Self::Json } else { Self::Other }
    }
}

/// Data that may be handed on.
pub(super) enum Content {
    Nothing,
    Json { text: Bytes, canonical: Vec<u8> },
    Other(Bytes),
}

/// The data of an [`super::Event`].
pub(super) struct Data {
    pub(super) bytes: Option<Bytes>,
    pub(super) is_json: bool,
    pub(super) fingerprint: Fingerprint,
}

impl Data {
    pub(super) fn new(ty: &str, content: Content) -> Self {
        let (bytes, is_json, fingerprint) = match content {
            Content::Nothing => (None, false, Fingerprint::of_nothing(ty)),
            Content::Json { text, canonical } => {
                (Some(text), true, Fingerprint::of_json(ty, &canonical))
            }
            Content::Other(bytes) => {
                let fingerprint = Fingerprint::of_bytes(ty, &bytes);
                (Some(bytes), false, fingerprint)
            }
        };
        Self { bytes, is_json, fingerprint }
    }
}

/// Padding is optional: producers leave it out, and nothing is ambiguous without it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

pub(super) fn structured_content(
    declared: Declared,
    members: &Members<'_>,
    body: &Bytes,
) -> Result<Content, Code> {
    match (present(members, "data"), present(members, "data_base64")) {
        (Some(_), Some(_)) => Err(reason::AMBIGUOUS_DATA),
        (None, None) => Ok(Content::Nothing),
        (None, Some(encoded)) => {
            let encoded = string(encoded).ok_or(reason::INVALID_BASE64)?;
            let bytes = BASE64.decode(encoded).map_err(|_| reason::INVALID_BASE64)?;
            bytes_content(declared, Bytes::from(bytes))
        }
        // A string is the text itself; anything else has no meaning under such a content type
        // (JSON format, section 3.1.2) and stays as it is written. Half a surrogate pair is no
        // text.
        (Some(data), None) if declared == Declared::Other => match string(data) {
            Some(text) => bytes_content(declared, Bytes::from(text)),
            None if data.get().starts_with('"') => Err(reason::MALFORMED_JSON),
            None => bytes_content(declared, part(body, data.get())),
        },
        (Some(data), None) => json_content(part(body, data.get()), data.get()),
    }
}

/// Data that is a body of its own.
pub(super) fn bytes_content(declared: Declared, bytes: Bytes) -> Result<Content, Code> {
    if bytes.is_empty() {
        return Ok(Content::Nothing);
    }
    if declared == Declared::Other {
        return Ok(Content::Other(bytes));
    }
    match json_text(&bytes) {
        Ok(text) if is_json(text) => json_content(part(&bytes, text), text),
        _ if declared == Declared::Nothing => Ok(Content::Other(bytes)),
        Ok(_) => Err(reason::MALFORMED_JSON),
        Err(reason) => Err(reason),
    }
}

/// `text` is one valid JSON value and the same as `bytes`.
fn json_content(bytes: Bytes, text: &str) -> Result<Content, Code> {
    if text == "null" {
        return Ok(Content::Nothing);
    }
    if is_envelope(text) {
        return Err(reason::NESTED_ENVELOPE);
    }
    let canonical = canonical(text).map_err(|_| reason::TOO_DEEP)?;
    Ok(Content::Json { text: bytes, canonical })
}

/// What the sidecar makes of a publish of `application/json` whose body is not JSON: it wraps the
/// bytes as a string and says nothing (components-contrib `pubsub/envelope.go`,
/// `NewCloudEventsEnvelope`: on an error of `unmarshalPrecise`, `ceData = string(data)`). A string
/// that is itself whole JSON was meant as a string and stays one.
pub(super) fn is_broken_json_in_a_string(text: &str) -> bool {
    if !text.starts_with('"') {
        return false;
    }
    let Ok(inner) = serde_json::from_str::<String>(text) else {
        return false;
    };
    inner.trim_start().starts_with(['{', '[']) && !is_json(trimmed(&inner))
}

/// Whether the data is a whole `CloudEvent`, wrapped into another on its way. The search spares
/// nearly all data the second parse; a name spelt with escapes goes unnoticed.
fn is_envelope(text: &str) -> bool {
    text.contains("\"specversion\"")
        && members(text).is_ok_and(|members| {
            let names = ["specversion", "id", "source", "type"];
            names.into_iter().all(|name| present(&members, name).is_some())
        })
}
