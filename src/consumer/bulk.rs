//! What a batch needs beside the six steps: a message in it may not be answered RETRY.
//!
//! While the sidecar retries one entry of a batch it delivers nothing else of the topic, and a call
//! without an answer fails the whole batch. So what a single delivery would have the sidecar retry is
//! handed to the store, bytes and all, and recovery tries it again.

use std::sync::Arc;

use super::{Consumer, Origin, incoming, unread};
use crate::event::{Arrival, Event, decode};
use crate::outcome::{Category, Outcome};
use crate::subscription::Subscription;

/// What the sidecar called with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// One delivery.
    Single,
    /// A batch of them, answered together.
    Bulk,
}

impl Consumer {
    /// Takes over what a live delivery in a batch has left open: a run that is still on at the
    /// deadline, a twin that waited for one, a claim that was given back. What is over, claimed or
    /// recovering already stays as it is.
    ///
    /// The run may still be on, and loses its right to write by this, unless it holds a claim. So
    /// there is one effect: that of the run, when it commits before, or that of a recovery.
    pub(crate) async fn hand_over(
        &self,
        subscription: &Subscription,
        arrival: Arrival,
        origin: &Origin,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for decoded in decode(arrival) {
            let outcome = match decoded {
                Ok(event) => self.hand_over_one(subscription, &event, origin).await,
                Err(malformed) => {
                    let reason = malformed.reason.clone();
                    let unread = Arc::new(unread(subscription.name(), malformed, origin));
                    self.file(unread, Category::Invalid, reason).await
                }
            };
            let away = outcome == Outcome::StoreAway;
            outcomes.push(outcome);
            if away {
                break;
            }
        }
        outcomes
    }

    async fn hand_over_one(
        &self,
        subscription: &Subscription,
        event: &Event,
        origin: &Origin,
    ) -> Outcome {
        if subscription.ignores(event.ty()) {
            return Outcome::Ignored;
        }
        let incoming =
            Arc::new(incoming(subscription.name(), subscription.outside_call(), event, origin));
        // Its bytes must not be kept as those of the event that is being handled.
        if self.in_flight.is_another(incoming.key, &incoming.fingerprint) {
            return self.reused(&incoming).await;
        }
        match self.standing(&incoming).await {
            Ok(Some(outcome)) => return outcome,
            Ok(None) => {}
            Err(error) => return self.store_away(&error),
        }
        let written = self.store.hand_over(Arc::clone(&incoming)).await;
        self.outcome_of(&incoming, written, None)
    }
}
