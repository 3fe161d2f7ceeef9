//! One delivery in each form in which the sidecar can hand it over.
//!
//! An input is the body alone, or `name=value` pairs and then the body, each behind the last with a
//! NUL byte between them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;

use super::checks;
use crate::event::{Arrival, Form, decode};

/// Tries one input.
///
/// # Panics
/// When a promise is broken.
pub fn envelope(input: &[u8]) {
    let mut pairs: Vec<&[u8]> = input.split(|byte| *byte == 0).collect();
    let body = Bytes::copy_from_slice(pairs.pop().unwrap_or_default());
    let metadata: BTreeMap<String, String> = pairs
        .into_iter()
        .map(|pair| {
            let pair = String::from_utf8_lossy(pair).into_owned();
            let (name, value) = pair.split_once('=').unwrap_or((&pair, ""));
            (name.to_owned(), value.to_owned())
        })
        .collect();

    for result in decode(Arrival { body: body.clone(), form: taken_apart(&metadata) }) {
        checks::check(&result);
    }
    let whole = Bytes::copy_from_slice(input);
    let bare = Form::Broker { metadata: BTreeMap::new() };
    for (body, form) in [(whole, bare), (body, Form::Broker { metadata })] {
        for result in decode(Arrival { body, form }) {
            checks::check(&result);
        }
    }
}

/// The same names and values as an event that the sidecar has taken apart; what reads as JSON is
/// JSON.
fn taken_apart(metadata: &BTreeMap<String, String>) -> Form {
    let text = |name: &str| metadata.get(&format!("ce_{name}")).cloned().unwrap_or_default();
    let extensions = metadata.iter().map(|(name, value)| {
        let name = name.strip_prefix("ce_").unwrap_or(name).to_owned();
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.clone()));
        (name, value)
    });
    Form::TakenApart {
        id: text("id"),
        source: text("source"),
        ty: text("type"),
        specversion: text("specversion"),
        content_type: text("datacontenttype"),
        extensions: extensions.collect(),
    }
}
