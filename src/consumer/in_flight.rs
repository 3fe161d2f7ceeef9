//! Which messages this process is handling right now, so that a twin waits instead of running.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::event::{Fingerprint, MessageKey};

type Messages = Arc<Mutex<HashMap<MessageKey, First>>>;

/// The delivery that handles a message.
struct First {
    fingerprint: Fingerprint,
    /// Made by the first twin, for there is nearly never one.
    ended: Option<CancellationToken>,
}

/// Bounded by the deliveries in flight: every entry belongs to one of them.
#[derive(Default)]
pub(crate) struct InFlight {
    messages: Messages,
}

/// Whether a delivery is the first of its message in this process.
pub(crate) enum Entered {
    /// It is; the slot is held until it is dropped.
    First(Slot),
    /// Another is at it; the token is cancelled when that one has ended.
    Twin(CancellationToken),
}

/// The right to handle one message; dropping it lets the twins go on.
pub(crate) struct Slot {
    messages: Messages,
    key: MessageKey,
}

impl InFlight {
    pub(crate) fn enter(&self, key: MessageKey, fingerprint: Fingerprint) -> Entered {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        match messages.entry(key) {
            Entry::Occupied(mut first) => {
                Entered::Twin(first.get_mut().ended.get_or_insert_default().clone())
            }
            Entry::Vacant(vacant) => {
                vacant.insert(First { fingerprint, ended: None });
                Entered::First(Slot { messages: Arc::clone(&self.messages), key })
            }
        }
    }

    /// Whether what is being handled under that key is another event.
    pub(crate) fn is_another(&self, key: MessageKey, fingerprint: &Fingerprint) -> bool {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.get(&key).is_some_and(|first| first.fingerprint != *fingerprint)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let first = self.messages.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        if let Some(ended) = first.and_then(|first| first.ended) {
            ended.cancel();
        }
    }
}
