//! A SQLite connection as [`Sql`], and whose fault an error is.

use bytes::Bytes;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, Statement, ToSql};

use crate::effect::Value;
use crate::event::MessageKey;
use crate::outcome::{Code, reason};
use crate::store::StoreError;
use crate::store::outbox::Log;
use crate::store::sql::{Param, Record, Sql};
use crate::store::statements::{QUERY_ROWS_READ, bounded, ends_transaction, query_writes};

impl Sql for Connection {
    fn execute(&self, text: &str, params: &[Param<'_>]) -> Result<u64, StoreError> {
        let mut prepared = self.prepare_cached(text).map_err(StoreError::away)?;
        bind(&mut prepared, params)
            .and_then(|()| prepared.raw_execute())
            .map(|changed| changed as u64)
            .map_err(StoreError::away)
    }

    fn records(&self, text: &str, params: &[Param<'_>]) -> Result<Vec<Record>, StoreError> {
        let mut prepared = self.prepare_cached(text).map_err(StoreError::away)?;
        bind(&mut prepared, params)
            .and_then(|()| rows_of(&mut prepared, usize::MAX))
            .map(|rows| rows.into_iter().map(Record::new).collect())
            .map_err(StoreError::away)
    }

    fn effect(&self, text: &str, params: &[Param<'_>]) -> Result<Result<u64, Code>, StoreError> {
        if ends_transaction(text) {
            return Ok(Err(reason::EFFECT_FAILED));
        }
        let ran = self.prepare_cached(text).and_then(|mut prepared| {
            // Transaction control counts as read-only: refusing what does not write keeps a handler
            // from ending the transaction it is part of.
            if prepared.readonly() {
                return Ok(None);
            }
            bind(&mut prepared, params)?;
            prepared.raw_execute().map(Some)
        });
        match ran {
            Ok(Some(changed)) => Ok(Ok(changed as u64)),
            Ok(None) => Ok(Err(reason::EFFECT_FAILED)),
            Err(error) => blame(&error).map(Err),
        }
    }

    fn query(&self, text: &str, params: &[Param<'_>]) -> Result<Vec<Vec<Value>>, StoreError> {
        let mut prepared = self.prepare_cached(text).map_err(StoreError::away)?;
        if !prepared.readonly() || prepared.column_count() == 0 {
            return Err(query_writes());
        }
        let rows = bind(&mut prepared, params)
            .and_then(|()| rows_of(&mut prepared, QUERY_ROWS_READ))
            .map_err(StoreError::away)?;
        bounded(rows)
    }

    fn empty(&self, table: &str) -> Result<(), StoreError> {
        // Without a condition SQLite drops the pages as a whole.
        Sql::execute(self, &format!("DELETE FROM {table}"), &[]).map(drop)
    }

    /// There is one writer.
    fn lock(&self, _: &[MessageKey]) -> Result<(), StoreError> {
        Ok(())
    }

    fn try_lock(
        &self,
        mut keys: Vec<MessageKey>,
        max: usize,
    ) -> Result<Vec<MessageKey>, StoreError> {
        keys.truncate(max);
        Ok(keys)
    }

    fn is_open(&self) -> bool {
        !self.is_autocommit()
    }

    fn lock_gates(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn lock_log(&self, _: &Log) -> Result<bool, StoreError> {
        Ok(true)
    }
}

/// Binds `$3` and `?3` to the third parameter, and a bare `?` to the one in its place. SQLite
/// itself takes `$3` for a name like any other.
fn bind(prepared: &mut Statement<'_>, params: &[Param<'_>]) -> rusqlite::Result<()> {
    let wanted = prepared.parameter_count();
    for index in 1..=wanted {
        let number = prepared
            .parameter_name(index)
            .and_then(|name| name.strip_prefix('$'))
            .and_then(|number| number.parse().ok())
            .unwrap_or(index);
        let param = number.checked_sub(1).and_then(|place| params.get(place));
        let param = param.ok_or(rusqlite::Error::InvalidParameterCount(params.len(), wanted))?;
        prepared.raw_bind_parameter(index, param)?;
    }
    Ok(())
}

fn rows_of(prepared: &mut Statement<'_>, max: usize) -> rusqlite::Result<Vec<Vec<Value>>> {
    let width = prepared.column_count();
    let mut found = prepared.raw_query();
    let mut rows = Vec::new();
    while rows.len() < max
        && let Some(row) = found.next()?
    {
        let values = (0..width).map(|column| row.get_ref(column).map(owned));
        rows.push(values.collect::<Result<_, _>>()?);
    }
    Ok(rows)
}

/// Tells the statement's own fault from the store's.
pub(super) fn blame(error: &rusqlite::Error) -> Result<Code, StoreError> {
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) => Ok(reason::EFFECT_CONSTRAINT),
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::OutOfMemory
            | ErrorCode::ReadOnly
            | ErrorCode::SystemIoFailure
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::DiskFull
            | ErrorCode::CannotOpen
            | ErrorCode::NotADatabase,
        ) => Err(StoreError::away(error)),
        _ => Ok(reason::EFFECT_FAILED),
    }
}

fn owned(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(integer) => Value::Integer(integer),
        ValueRef::Real(real) => Value::Real(real),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(blob) => Value::Blob(Bytes::copy_from_slice(blob)),
    }
}

impl ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(integer) => ValueRef::Integer(*integer),
            Self::Real(real) => ValueRef::Real(*real),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(blob) => ValueRef::Blob(blob),
        }))
    }
}
