//! A JSON array of whatever there is: every member is judged as if it had come alone.
//!
//! An input is the members, with a NUL byte between two of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::checks;
use crate::event::{Arrival, Event, Form, Stored, decode};

/// Tries one input.
///
/// # Panics
/// When a promise is broken.
pub fn batch(input: &[u8]) {
    let members: Vec<&[u8]> = input.split(|byte| *byte == 0).collect();
    let mut body = b"[".to_vec();
    body.extend(members.join(b",".as_slice()));
    body.push(b']');
    let form = Form::Broker { metadata: BTreeMap::new() };
    let results = decode(Arrival { body: Bytes::from(body), form });
    results.iter().for_each(checks::check);

    // Only what is JSON by itself is one member of the array for sure: `1,2` is two.
    let alone = members.iter().map(|member| serde_json::from_slice::<&RawValue>(member));
    let Ok(alone) = alone.collect::<Result<Vec<_>, _>>() else { return };
    assert_eq!(results.len(), alone.len(), "one answer for each member");
    for (result, member) in results.iter().zip(alone) {
        let body = Bytes::copy_from_slice(member.get().as_bytes());
        let stored = Stored { attributes: None, body };
        assert!(*result == Event::from_stored(&stored), "its neighbours made a difference");
    }
}
