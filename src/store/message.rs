//! Messages on their way in and out, and what the store's writes about them came to.

use std::sync::Arc;

use bytes::Bytes;

use super::AttemptKind;
use crate::clock::Timestamp;
use crate::custody::{Standing, State};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::outcome::{Category, Code};

/// A message as it came in: its identity, where it came from, and its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub key: MessageKey,
    pub fingerprint: Fingerprint,
    pub subscription: String,
    pub pubsub: String,
    pub topic: String,
    pub source: String,
    pub event_id: String,
    pub ty: String,
    pub subject: Option<String>,
    pub traceparent: Option<String>,
    pub stored: Stored,
    /// Its handler calls something that must not be repeated unasked.
    pub once: bool,
    /// What its `recoveryattempt` said.
    pub recovery_attempt: u32,
}

/// What a look at a message found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// The fingerprint it was processed with.
    pub done: Option<Fingerprint>,
    /// Its row: state, fingerprint, live attempts so far.
    pub row: Option<(State, Fingerprint, u32)>,
}

/// What a write about a message came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Nothing was written.
    Nothing(Standing),
    /// It is in this state now.
    Now(State),
    /// It is due for recovery then, or waits at a closed gate.
    Recovering { due_at: Option<Timestamp>, never_attempted: bool },
    /// A case was opened, or opened again.
    Quarantined(Quarantined),
    /// Its row stood beside an inbox key and is gone.
    Removed,
}

/// A case as the poison log needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quarantined {
    pub exception_id: String,
    pub subscription: String,
    pub source: String,
    pub event_id: String,
    pub category: Category,
    pub reason: Code,
    pub attempts: u32,
    /// A redrive opened a known case again.
    pub reopened: bool,
}

/// What a commit came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// Effects, outgoing messages and inbox key are on disk.
    Yes,
    /// It had no right to commit; nothing was written.
    Nothing(Standing),
    /// A statement changed another number of rows than it said and wants the handler run again.
    RowsDiffer,
    /// A statement changed another number of rows than it said and rejects the message.
    Rejected(Code),
    /// A statement failed.
    EffectFailed(Code),
}

/// A claimed run.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub incoming: Arc<Incoming>,
    pub run: i64,
    pub kind: AttemptKind,
    /// The number this attempt will have, from 1.
    pub attempt: u32,
    pub lease_until: Timestamp,
}

/// A message waiting in the outbox.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// The log it is in; 0 until it is written.
    pub log: i64,
    /// Its place in that log; 0 until it is written.
    pub seq: i64,
    pub pubsub: String,
    pub topic: String,
    pub message_id: String,
    /// Messages of its topic with the same one leave one after another.
    pub ordering_key: Option<String>,
    /// When it may leave; absent where it is in a log.
    pub due_at: Option<Timestamp>,
    /// The whole structured CloudEvent.
    pub content: Bytes,
}

impl Outgoing {
    /// The topic of the log that it is in.
    pub(crate) fn at(&self) -> Topic {
        Topic { log: self.log, pubsub: self.pubsub.clone(), name: self.topic.clone() }
    }
}

/// A topic of a log of the outbox: what has a cursor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Topic {
    pub log: i64,
    pub pubsub: String,
    pub name: String,
}

/// A topic where messages wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub topic: Topic,
    /// All up to here is published.
    pub cursor: i64,
    /// The number of the last one.
    pub newest: i64,
}

/// What is to be published now and next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutboxLook {
    pub waiting: Vec<Waiting>,
    /// When the next delayed message is to leave.
    pub next_due: Option<Timestamp>,
}

/// What waits, for the gauges.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backlog {
    pub recovering: u64,
    pub gates_closed: u64,
    pub gates_waiting: u64,
    pub exceptions_open: u64,
    pub outbox_pending: u64,
    pub outbox_oldest: Option<Timestamp>,
    pub outbox_delayed: u64,
}
