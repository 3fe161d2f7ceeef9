//! What the store is told of an arriving message: its identity, where it came from, its bytes.

use super::Origin;
use crate::event::{Event, Fingerprint, Malformed, MessageKey};
use crate::store::Incoming;
use crate::subscription::{OutsideCall, Subscription};

/// The sidecar stamps the topic an event was published to. A dead letter keeps the stamp of its
/// topic; one that carries another's came here by mistake. A wildcard topic has many stamps.
pub(super) fn is_foreign(
    subscription: &Subscription,
    event: &Event,
    dead_letter_topic: &str,
) -> bool {
    let own = subscription.topic_name();
    let wildcard = own.contains(['*', '#', '+', '>']);
    event.topic().is_some_and(|stamp| !wildcard && stamp != own && stamp != dead_letter_topic)
}

/// The name under which deliveries for unknown topics are filed.
pub(super) const UNKNOWN: &str = "unknown";

pub(super) fn incoming(
    subscription: &str,
    call: OutsideCall,
    event: &Event,
    origin: &Origin,
) -> Incoming {
    Incoming {
        key: MessageKey::of(subscription, event.source(), event.id()),
        fingerprint: event.fingerprint(),
        subscription: subscription.to_owned(),
        pubsub: origin.pubsub.clone(),
        topic: origin.topic.clone(),
        source: event.source().to_owned(),
        event_id: event.id().to_owned(),
        ty: event.ty().to_owned(),
        subject: event.subject().map(str::to_owned),
        traceparent: event.traceparent().map(str::to_owned),
        stored: event.stored().clone(),
        once: call == OutsideCall::Once,
        recovery_attempt: event.recovery_attempt(),
    }
}

/// What cannot be read has no identity: it is keyed by its bytes, and seeing them again counts a
/// sighting of the same case.
pub(super) fn unread(subscription: &str, malformed: Malformed, origin: &Origin) -> Incoming {
    let key = MessageKey::of_bytes(subscription, &malformed.stored.body);
    Incoming {
        key,
        fingerprint: Fingerprint(key.0),
        subscription: subscription.to_owned(),
        pubsub: origin.pubsub.clone(),
        topic: origin.topic.clone(),
        source: malformed.source.unwrap_or_default(),
        event_id: malformed.id.unwrap_or_default(),
        ty: malformed.ty.unwrap_or_default(),
        subject: malformed.subject,
        traceparent: None,
        stored: malformed.stored,
        once: false,
        recovery_attempt: 0,
    }
}
