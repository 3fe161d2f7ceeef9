//! What must hold of every answer of the decoder, whatever it was given.

use serde_json::value::RawValue;

use crate::{ATTRIBUTE_BYTES_MAX, Event, ID_BYTES_MAX, Malformed, reason};

/// An event, or its fault, is within its bounds and can be decoded again from what is kept of it.
pub(super) fn check(result: &Result<Event, Malformed>) {
    match result {
        Ok(event) => {
            assert!(!event.id().trim().is_empty() && event.id().len() <= ID_BYTES_MAX);
            for text in [event.source(), event.ty()] {
                assert!(!text.trim().is_empty() && text.len() <= ATTRIBUTE_BYTES_MAX);
            }
            assert!(event.subject().is_none_or(|text| text.len() <= ATTRIBUTE_BYTES_MAX));
            assert!(event.recovery_attempt() <= 10_000);
            assert!(event.traceparent().is_some() || event.tracestate().is_none());
            let _ = (event.expires_at(), event.topic(), event.holds_broken_json());
            match event.data() {
                Some(data) if event.data_is_json() => {
                    assert!(serde_json::from_slice::<&RawValue>(data).is_ok(), "JSON it is not");
                }
                Some(data) => assert!(!data.is_empty(), "no bytes are no data"),
                None => assert!(!event.data_is_json()),
            }
            assert!(Event::from_stored(event.stored()).as_ref() == Ok(event), "another event");
        }
        // Filed whole, and a batch is no event.
        Err(fault) if fault.reason == reason::BATCH_TOO_LONG => {}
        Err(fault) => {
            assert!(fault.id.as_ref().is_none_or(|text| text.len() <= ID_BYTES_MAX));
            for text in [&fault.source, &fault.ty, &fault.subject] {
                assert!(text.as_ref().is_none_or(|text| text.len() <= ATTRIBUTE_BYTES_MAX));
            }
            assert!(Event::from_stored(&fault.stored).as_ref() == Err(fault), "another fault");
        }
    }
}
