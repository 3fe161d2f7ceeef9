//! SQL on one open transaction, the same for both databases.
//!
//! The store's own statements are written once, in what SQLite and PostgreSQL share, with `$1`,
//! `$2` … for their parameters. A [`Record`] gives its columns from left to right, each as the
//! type the reader wants.

use std::vec;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::effect::Value;
use crate::event::{Fingerprint, MessageKey};
use crate::outcome::Code;
use crate::store::StoreError;
use crate::store::outbox::Log;

/// One open transaction, or committed state to read from.
pub(crate) trait Sql {
    /// Runs a statement of ours and says how many rows it changed.
    fn execute(&self, text: &str, params: &[Param<'_>]) -> Result<u64, StoreError>;

    /// Runs a statement of ours and gives its rows.
    fn records(&self, text: &str, params: &[Param<'_>]) -> Result<Vec<Record>, StoreError>;

    /// Runs a statement of a handler and says how many rows it changed, or the code of what is
    /// wrong with it. The outer error means that the store is away, and nothing about the
    /// statement.
    fn effect(&self, text: &str, params: &[Param<'_>]) -> Result<Result<u64, Code>, StoreError>;

    /// Runs a query of a handler, which must not write.
    fn query(&self, text: &str, params: &[Param<'_>]) -> Result<Vec<Vec<Value>>, StoreError>;

    /// Empties a table of ours as a whole.
    fn empty(&self, table: &str) -> Result<(), StoreError>;

    /// Keeps every other transaction from writing about these messages until this one has ended.
    /// What is read after it is what the last of them left.
    fn lock(&self, keys: &[MessageKey]) -> Result<(), StoreError>;

    /// Like [`Sql::lock`] without waiting: gives the first `max` messages that no other transaction
    /// writes about, in their order, and keeps nobody from the rest.
    fn try_lock(&self, keys: Vec<MessageKey>, max: usize) -> Result<Vec<MessageKey>, StoreError>;

    /// Whether the transaction goes on: a statement can end the one it is part of.
    fn is_open(&self) -> bool;

    /// Like [`Sql::lock`], for the gates. Taken after the messages', never before.
    fn lock_gates(&self) -> Result<(), StoreError>;

    /// Keeps others from appending to this log and from adopting it until this transaction has
    /// ended. Says whether it still belongs to its owner.
    fn lock_log(&self, log: &Log) -> Result<bool, StoreError>;
}

impl dyn Sql + '_ {
    /// The first row that a query of ours gives.
    pub(crate) fn record(
        &self,
        text: &str,
        params: &[Param<'_>],
    ) -> Result<Option<Record>, StoreError> {
        Ok(self.records(text, params)?.into_iter().next())
    }

    /// Whether a query of ours gives any row.
    pub(crate) fn exists(&self, text: &str, params: &[Param<'_>]) -> Result<bool, StoreError> {
        Ok(!self.records(text, params)?.is_empty())
    }

    /// The one value of the one row that a query of ours gives.
    pub(crate) fn value<T: Column>(
        &self,
        text: &str,
        params: &[Param<'_>],
    ) -> Result<T, StoreError> {
        match self.record(text, params)? {
            Some(mut record) => record.take(),
            None => Err(StoreError::Corrupt("a query that always gives a row gave none".into())),
        }
    }

    /// The keys in the first column of what a query of ours gives.
    pub(crate) fn keys(
        &self,
        text: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<MessageKey>, StoreError> {
        self.records(text, params)?.into_iter().map(|mut record| record.take()).collect()
    }
}

/// A parameter of a statement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Param<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'a str),
    Blob(&'a [u8]),
}

/// The parameters of a statement, from values of any type that a column can hold.
macro_rules! params {
    ($($value:expr),* $(,)?) => { &[$($crate::store::sql::Param::from($value)),*] };
}
pub(crate) use params;

impl From<i64> for Param<'_> {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<u32> for Param<'_> {
    fn from(value: u32) -> Self {
        Self::Integer(value.into())
    }
}

impl From<bool> for Param<'_> {
    fn from(value: bool) -> Self {
        Self::Integer(value.into())
    }
}

impl From<Timestamp> for Param<'_> {
    fn from(value: Timestamp) -> Self {
        Self::Integer(value.0)
    }
}

impl<'a> From<&'a str> for Param<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a String> for Param<'a> {
    fn from(value: &'a String) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a [u8]> for Param<'a> {
    fn from(value: &'a [u8]) -> Self {
        Self::Blob(value)
    }
}

impl<'a> From<&'a MessageKey> for Param<'a> {
    fn from(value: &'a MessageKey) -> Self {
        Self::Blob(&value.0)
    }
}

impl<'a> From<&'a Fingerprint> for Param<'a> {
    fn from(value: &'a Fingerprint) -> Self {
        Self::Blob(&value.0)
    }
}

impl<'a> From<&'a Value> for Param<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Integer(integer) => Self::Integer(*integer),
            Value::Real(real) => Self::Real(*real),
            Value::Text(text) => Self::Text(text),
            Value::Blob(blob) => Self::Blob(blob),
        }
    }
}

impl From<Option<Timestamp>> for Param<'_> {
    fn from(value: Option<Timestamp>) -> Self {
        value.map_or(Self::Null, Self::from)
    }
}

impl<'a> From<Option<&'a str>> for Param<'a> {
    fn from(value: Option<&'a str>) -> Self {
        value.map_or(Self::Null, Self::Text)
    }
}

impl<'a> From<&'a Option<String>> for Param<'a> {
    fn from(value: &'a Option<String>) -> Self {
        value.as_deref().map_or(Self::Null, Self::Text)
    }
}

/// A row that was read. Its columns are taken from left to right.
#[derive(Debug)]
pub(crate) struct Record(vec::IntoIter<Value>);

impl Record {
    pub(crate) fn new(columns: Vec<Value>) -> Self {
        Self(columns.into_iter())
    }

    /// The next column.
    pub(crate) fn take<T: Column>(&mut self) -> Result<T, StoreError> {
        self.0
            .next()
            .and_then(T::of)
            .ok_or_else(|| StoreError::Corrupt("a column of another type than expected".into()))
    }
}

/// A type that a column can be read as.
pub(crate) trait Column: Sized {
    /// The value as this type; `None` when it is of another.
    fn of(value: Value) -> Option<Self>;
}

impl Column for i64 {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Integer(integer) => Some(integer),
            _ => None,
        }
    }
}

impl Column for u32 {
    fn of(value: Value) -> Option<Self> {
        i64::of(value).and_then(|integer| Self::try_from(integer).ok())
    }
}

impl Column for u64 {
    fn of(value: Value) -> Option<Self> {
        i64::of(value).and_then(|integer| Self::try_from(integer).ok())
    }
}

impl Column for bool {
    fn of(value: Value) -> Option<Self> {
        i64::of(value).map(|integer| integer != 0)
    }
}

impl Column for Timestamp {
    fn of(value: Value) -> Option<Self> {
        i64::of(value).map(Self)
    }
}

impl Column for String {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Column for Bytes {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Blob(blob) => Some(blob),
            _ => None,
        }
    }
}

impl Column for MessageKey {
    fn of(value: Value) -> Option<Self> {
        Bytes::of(value).and_then(|bytes| Some(Self(bytes.as_ref().try_into().ok()?)))
    }
}

impl Column for Fingerprint {
    fn of(value: Value) -> Option<Self> {
        Bytes::of(value).and_then(|bytes| Some(Self(bytes.as_ref().try_into().ok()?)))
    }
}

impl<T: Column> Column for Option<T> {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::of(value).map(Some),
        }
    }
}
