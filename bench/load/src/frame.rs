//! Calls encoded ahead: a request is encoded once with a placeholder for the event's id, and each
//! event is a copy of those bytes with its id put in.

use std::collections::HashMap;

use anyhow::ensure;
use bytes::{Buf, BufMut, Bytes};
use dapr::dapr::proto::runtime::v1 as api;
use dapr::dapr::proto::runtime::v1::topic_event_bulk_request_entry::Event as BulkEvent;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use load::event::{self, ID_LEN, Kind, PUBSUB, SOURCE, Stream, TRACE, TYPE};

/// How the sidecar hands an event over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// The broker's bytes, for a subscription with `rawPayload`.
    Raw,
    /// Taken apart by the sidecar, for any other.
    Cooked,
}

const PLACEHOLDER: &str = "@@id@@@@@@@@@@@@@@@@@@@@@@@@@@@@";

/// An encoded request with holes for the id.
struct Template {
    bytes: Vec<u8>,
    holes: Vec<usize>,
}

impl Template {
    fn new(bytes: Vec<u8>) -> anyhow::Result<Self> {
        let windows = bytes.windows(ID_LEN).enumerate();
        let holes: Vec<usize> =
            windows.filter(|(_, at)| *at == PLACEHOLDER.as_bytes()).map(|(at, _)| at).collect();
        ensure!(!holes.is_empty(), "a request without its event's id");
        Ok(Self { bytes, holes })
    }

    fn filled(&self, id: &str) -> Vec<u8> {
        let mut frame = self.bytes.clone();
        for hole in &self.holes {
            frame[*hole..*hole + ID_LEN].copy_from_slice(id.as_bytes());
        }
        frame
    }
}

/// The requests of one stream.
pub struct Frames {
    stream: Stream,
    good: Template,
    poison: Template,
    transient: Template,
    form: Form,
    topic: String,
}

impl Frames {
    /// Encodes one request of each kind.
    pub fn new(stream: Stream, form: Form, topic: &str) -> anyhow::Result<Self> {
        let of = |kind| Template::new(single(form, topic, kind).encode_to_vec());
        Ok(Self {
            stream,
            good: of(Kind::Good)?,
            poison: of(Kind::Poison)?,
            transient: of(Kind::Transient)?,
            form,
            topic: topic.to_owned(),
        })
    }

    /// The call that delivers event `n`.
    pub fn one(&self, n: u64) -> Bytes {
        let template = match self.stream.kind(n) {
            Kind::Good => &self.good,
            Kind::Poison => &self.poison,
            Kind::Transient => &self.transient,
        };
        Bytes::from(template.filled(&self.stream.id(n)))
    }

    /// The call that delivers these events in bulk; an entry's id is the event's number.
    pub fn many(&self, events: &[u64]) -> Bytes {
        let entries = events.iter().map(|n| {
            let (id, kind) = (self.stream.id(*n), self.stream.kind(*n));
            let (event, content_type) = match self.form {
                Form::Raw => (
                    BulkEvent::Bytes(event::cloud_event(&id, kind).into_bytes()),
                    "application/octet-stream",
                ),
                Form::Cooked => (
                    BulkEvent::CloudEvent(api::TopicEventCeRequest {
                        id: id.clone(),
                        source: SOURCE.to_owned(),
                        r#type: TYPE.to_owned(),
                        spec_version: "1.0".to_owned(),
                        data_content_type: "application/json".to_owned(),
                        data: event::data(&id, kind).into_bytes(),
                        extensions: None,
                    }),
                    "application/cloudevents+json",
                ),
            };
            api::TopicEventBulkRequestEntry {
                entry_id: n.to_string(),
                content_type: content_type.to_owned(),
                metadata: HashMap::new(),
                event: Some(event),
            }
        });
        let request = api::TopicEventBulkRequest {
            id: self.stream.id(events.first().copied().unwrap_or_default()),
            entries: entries.collect(),
            metadata: HashMap::new(),
            topic: self.topic.clone(),
            pubsub_name: PUBSUB.to_owned(),
            r#type: "com.dapr.event.sent.bulk".to_owned(),
            path: String::new(),
        };
        Bytes::from(request.encode_to_vec())
    }
}

/// A delivery as daprd 1.18 makes it.
fn single(form: Form, topic: &str, kind: Kind) -> api::TopicEventRequest {
    let common = api::TopicEventRequest {
        id: PLACEHOLDER.to_owned(),
        spec_version: "1.0".to_owned(),
        topic: topic.to_owned(),
        pubsub_name: PUBSUB.to_owned(),
        ..Default::default()
    };
    match form {
        Form::Raw => api::TopicEventRequest {
            source: "Dapr".to_owned(),
            r#type: "com.dapr.event.sent".to_owned(),
            data_content_type: "application/octet-stream".to_owned(),
            data: event::cloud_event(PLACEHOLDER, kind).into_bytes(),
            ..common
        },
        Form::Cooked => api::TopicEventRequest {
            source: SOURCE.to_owned(),
            r#type: TYPE.to_owned(),
            data_content_type: "application/json".to_owned(),
            data: event::data(PLACEHOLDER, kind).into_bytes(),
            extensions: Some(prost_types::Struct {
                fields: [("traceid", TRACE), ("traceparent", TRACE), ("tracestate", "")]
                    .map(|(name, value)| (name.to_owned(), text(value)))
                    .into_iter()
                    .chain([("time".to_owned(), text("2026-11-30T12:00:00Z"))])
                    .collect(),
            }),
            ..common
        },
    }
}

fn text(value: &str) -> prost_types::Value {
    prost_types::Value { kind: Some(prost_types::value::Kind::StringValue(value.to_owned())) }
}

/// Sends bytes as they are; reads an answer of type `A`.
pub struct Ready<A>(std::marker::PhantomData<A>);

impl<A> Default for Ready<A> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<A: Message + Default + Send + 'static> Codec for Ready<A> {
    type Encode = Bytes;
    type Decode = A;
    type Encoder = Ready<A>;
    type Decoder = Ready<A>;

    fn encoder(&mut self) -> Self::Encoder {
        Self::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Self::default()
    }
}

impl<A: Message + Default + Send + 'static> Encoder for Ready<A> {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl<A: Message + Default + Send + 'static> Decoder for Ready<A> {
    type Item = A;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<A>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        A::decode(bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_frame_is_the_request_with_that_id() {
        for (form, holes) in [(Form::Raw, 3), (Form::Cooked, 2)] {
            let stream = Stream::new(1, false);
            let frames = Frames::new(stream, form, "bench").unwrap();
            assert_eq!(frames.good.holes.len(), holes);
            let request = api::TopicEventRequest::decode(frames.one(5)).unwrap();
            let data = String::from_utf8(request.data).unwrap();
            assert_eq!(request.id, stream.id(5));
            assert!(data.contains(&format!("\"orderId\":\"{}\"", stream.id(5))), "{data}");
            assert!(!data.contains('@'), "{data}");
        }
    }
}
