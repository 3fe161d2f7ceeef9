//! What a handler wants done, as data: rows to write and messages to publish.
//!
//! Effects are values, so a handler is tested without a database, and the store commits them
//! together with the inbox key. Nothing here runs SQL or publishes.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::outcome::Code;

/// A value for a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// A 64-bit integer.
    Integer(i64),
    /// A double.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Bytes),
}

macro_rules! value_from {
    ($($from:ty => $make:expr;)+) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                $make(value)
            }
        })+
    };
}

value_from! {
    i64 => Value::Integer;
    i32 => |value| Value::Integer(i64::from(value));
    u32 => |value| Value::Integer(i64::from(value));
    bool => |value| Value::Integer(i64::from(value));
    f64 => Value::Real;
    String => Value::Text;
    &str => |value: &str| Value::Text(value.to_owned());
    &String => |value: &String| Value::Text(value.clone());
    Vec<u8> => |value| Value::Blob(Bytes::from(value));
    Bytes => Value::Blob;
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// What a statement does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Insert { table: &'static str, row: Vec<(&'static str, Value)> },
    Upsert { table: &'static str, key: Vec<&'static str>, row: Vec<(&'static str, Value)> },
    Sql { text: Cow<'static, str>, params: Vec<Value> },
}

/// What follows when a statement changed another number of rows than expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    Rerun,
    Reject(Code),
}

/// One write, with what it expects of the database.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    pub(crate) action: Action,
    pub(crate) expected_rows: Option<u64>,
    pub(crate) otherwise: Otherwise,
}

/// Adds a row. A row that is there already (any unique constraint) is left as it is and counts as
/// no row changed; one row is expected.
#[must_use]
pub fn insert<const N: usize>(table: &'static str, row: [(&'static str, Value); N]) -> Statement {
    Statement::new(Action::Insert { table, row: row.into() }, Some(1))
}

/// Adds a row, or overwrites the other columns of the one that has the same `key` columns.
#[must_use]
pub fn upsert<const K: usize, const N: usize>(
    table: &'static str,
    key: [&'static str; K],
    row: [(&'static str, Value); N],
) -> Statement {
    Statement::new(Action::Upsert { table, key: key.into(), row: row.into() }, Some(1))
}

/// Any one statement, with `$1`, `$2` … for its parameters. Expects nothing until
/// [`Statement::expect_rows`] says so.
#[must_use]
pub fn sql<const N: usize>(text: impl Into<Cow<'static, str>>, params: [Value; N]) -> Statement {
    Statement::new(Action::Sql { text: text.into(), params: params.into() }, None)
}

impl Statement {
    fn new(action: Action, expected_rows: Option<u64>) -> Self {
        Self { action, expected_rows, otherwise: Otherwise::Rerun }
    }

    /// Says how many rows it must change; otherwise nothing of this delivery is written and the
    /// handler runs again, which is not counted as an attempt, or the message is rejected.
    #[must_use]
    pub fn expect_rows(mut self, rows: u64) -> Self {
        self.expected_rows = Some(rows);
        self
    }

    /// Another number of rows runs the handler again, a few times within the deadline: the
    /// default, for a decision that rested on a row that has changed since it was read.
    #[must_use]
    pub fn or_rerun(mut self) -> Self {
        self.otherwise = Otherwise::Rerun;
        self
    }

    /// Another number of rows rejects the message with this code.
    #[must_use]
    pub fn or_reject(mut self, code: Code) -> Self {
        self.otherwise = Otherwise::Reject(code);
        self
    }
}

/// A message to publish, through the outbox, when the delivery has committed.
///
/// Its `source` is the consumer, its `id` follows from the message that caused it, so that a
/// repeated publish is recognised downstream; the trace goes on from the event.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub(crate) topic: String,
    pub(crate) pubsub: Option<String>,
    pub(crate) ty: String,
    pub(crate) subject: Option<String>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) delay: Option<Duration>,
    pub(crate) data: Json,
    pub(crate) extensions: Map<String, Json>,
}

impl Message {
    /// A message of type `ty` with JSON data, for `topic` on the component the event came by.
    #[must_use]
    pub fn new(topic: impl Into<String>, ty: impl Into<String>, data: Json) -> Self {
        Self {
            topic: topic.into(),
            pubsub: None,
            ty: ty.into(),
            subject: None,
            ordering_key: None,
            delay: None,
            data,
            extensions: Map::new(),
        }
    }

    /// Sends it through another pub/sub component than the event came by.
    #[must_use]
    pub fn pubsub(mut self, component: impl Into<String>) -> Self {
        self.pubsub = Some(component.into());
        self
    }

    /// Sets the CloudEvents `subject`.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Asks for order: messages to one topic with the same key leave one after another, in the order
    /// in which this process committed them, also when one of them fails; those behind it wait until
    /// it has left, or has a case because it can never leave. Messages without a key have no order.
    ///
    /// The key is given to the sidecar as `partitionKey` as well, for brokers with partitions; where
    /// it is not printable ASCII of at most 128 characters, a hash of it is.
    ///
    /// Another replica's messages of the same key are in a log of their own: what has to be in order
    /// over all replicas needs a version, or a broker that gives a key's events to one of them.
    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// Keeps it back for that long, counted from the commit by the store's clock; it leaves within
    /// about a second after. Among messages of its key its place is where it then is.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Adds a CloudEvents extension attribute.
    ///
    /// # Errors
    /// When the name is not lower-case ASCII letters and digits, at most 20 of them (CloudEvents
    /// 1.0, "Attribute Naming Convention"), or is one of the attributes set elsewhere: other
    /// consumers would refuse the event.
    pub fn extension(
        mut self,
        name: &str,
        value: impl Into<Json>,
    ) -> Result<Self, InvalidExtensionName> {
        let legal = (1..=20).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if !legal || RESERVED.contains(&name) {
            return Err(InvalidExtensionName(name.chars().take(40).collect()));
        }
        self.extensions.insert(name.to_owned(), value.into());
        Ok(self)
    }
}

const RESERVED: [&str; 12] = [
    "id",
    "source",
    "type",
    "specversion",
    "subject",
    "time",
    "data",
    "datacontenttype",
    "dataschema",
    "traceparent",
    "traceid",
    "tracestate",
];

/// A name that CloudEvents does not allow for an extension attribute.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is not a CloudEvents extension name: use 1 to 20 lower-case letters and digits, and no standard attribute"
)]
pub struct InvalidExtensionName(String);

/// Everything one delivery does, committed as a whole or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    pub(crate) statements: Vec<Statement>,
    pub(crate) messages: Vec<Message>,
}

impl Effects {
    /// Nothing yet; returned as it is, the delivery only leaves its inbox row.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a write, made after the ones before it.
    #[must_use]
    pub fn write(mut self, statement: Statement) -> Self {
        self.statements.push(statement);
        self
    }

    /// Adds a message to publish, after those before it with the same
    /// [ordering key](Message::ordering_key) on the same topic.
    #[must_use]
    pub fn publish(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }
}

/// Turns any serialisable value into JSON data for a [`Message`].
///
/// # Errors
/// When the value does not serialise to JSON (a map whose keys are not strings, say).
pub fn json(value: &impl Serialize) -> Result<Json, serde_json::Error> {
    serde_json::to_value(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_name_that_others_would_refuse_never_gets_into_a_message() {
        let message = || Message::new("t", "x.y", Json::Null);
        assert!(message().extension("causationid", "1").is_ok());
        for bad in ["example-ext", "MyExt", "", "id", "traceparent", "aaaaaaaaaaaaaaaaaaaaa"] {
            assert!(message().extension(bad, "1").is_err(), "{bad}");
        }
    }
}
