//! Who we are to the sidecar, learned once: the consumer's name, and which component carries each
//! dead-letter topic.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Metadata};
use crate::backoff::Backoff;
use crate::observe::Observer;

/// The wait between two questions to a sidecar that does not answer yet.
const ASK_AGAIN: Backoff =
    Backoff { first: Duration::from_millis(100), max: Duration::from_secs(2) };

/// So many questions without an answer, some five seconds, are told once.
const SILENT_AFTER: u32 = 7;

/// Known once the sidecar has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The consumer's name: part of the dead-letter topic's name and the source of what it
    /// publishes.
    pub consumer: Arc<str>,
    components: BTreeSet<String>,
}

impl Identity {
    pub(crate) fn new(configured: Option<&str>, metadata: Metadata) -> Self {
        let consumer = configured.map_or(metadata.app_id, str::to_owned);
        Self { consumer: consumer.into(), components: metadata.components.into_iter().collect() }
    }

    /// One dead-letter topic for each consumer of a topic, so that no one reads another's.
    pub(crate) fn dead_letter_topic(&self, topic: &str) -> String {
        format!("{topic}-{}-dead", self.consumer)
    }

    /// Whether `other` is the dead-letter topic of a topic.
    pub(crate) fn is_dead_letter_topic(&self, other: &str, topic: &str) -> bool {
        let rest = other.strip_prefix(topic).and_then(|rest| rest.strip_suffix("-dead"));
        rest.and_then(|rest| rest.strip_prefix('-')) == Some(&self.consumer)
    }

    /// Where the broker puts what can never reach us even as a dead letter.
    pub(crate) fn unreadable_topic(&self, topic: &str) -> String {
        format!("{topic}-{}-unreadable", self.consumer)
    }

    /// The component that carries the dead-letter topic: a second one of the same broker, without
    /// a breaker, if it is loaded.
    pub(crate) fn dead_letter_component(&self, pubsub: &str) -> Option<String> {
        let second = second_component(pubsub);
        self.components.contains(&second).then_some(second)
    }
}

/// The name under which the second component is looked for.
pub(crate) fn second_component(pubsub: &str) -> String {
    format!("{pubsub}-dead")
}

/// Whether `other` is the second component of `pubsub`.
pub(crate) fn is_second_component(other: &str, pubsub: &str) -> bool {
    other.strip_prefix(pubsub) == Some("-dead")
}

/// Asks until the sidecar answers, and then tells everybody who waits; ends early at `stop`.
pub(crate) async fn learn(
    client: Client,
    configured: Option<String>,
    observer: Observer,
    told: watch::Sender<Option<Arc<Identity>>>,
    stop: CancellationToken,
) {
    let mut asked = 0_u32;
    loop {
        let answer = tokio::select! {
            () = stop.cancelled() => return,
            answer = client.metadata() => answer,
        };
        // A sidecar that is still loading has no components yet, and would make the second one
        // look missing.
        if let Ok(metadata) = answer
            && !metadata.components.is_empty()
            && (configured.is_some() || !metadata.app_id.is_empty())
        {
            let (app_id, version) = (metadata.app_id.clone(), metadata.runtime_version.clone());
            let identity = Identity::new(configured.as_deref(), metadata);
            observer.sidecar_found(&app_id, &version, &identity.consumer);
            told.send_replace(Some(Arc::new(identity)));
            return;
        }
        let pause = ASK_AGAIN.delay(asked, 0);
        asked = asked.saturating_add(1);
        if asked == SILENT_AFTER {
            observer.sidecar_silent(client.endpoint());
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
