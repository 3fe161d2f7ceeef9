//! Runs statements and queries of handlers, and sorts what can go wrong with them.

use std::fmt::Write as _;

use bytes::Bytes;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql, params_from_iter};

use crate::effect::{Action, Otherwise, Statement, Value};
use crate::outcome::{Code, reason};
use crate::store::StoreError;

/// Rows one query of a handler may return.
const QUERY_ROWS_MAX: usize = 10_000;

/// Why a statement did not do what it said.
pub(crate) enum Refusal {
    /// It changed another number of rows.
    Rows(Otherwise),
    /// The database refused it.
    Failed(Code),
}

/// Runs one statement; the outer error means the store is away and nothing about the statement.
pub(crate) fn run(
    connection: &Connection,
    statement: &Statement,
) -> Result<Result<(), Refusal>, StoreError> {
    let (text, params) = match &statement.action {
        Action::Insert { table, row } => (insert_text(table, row, "DO NOTHING"), columns(row)),
        Action::Upsert { table, key, row } => (upsert_text(table, key, row), columns(row)),
        Action::Sql { text, params } => (text.to_string(), params.iter().collect()),
    };
    match execute(connection, &text, &params)? {
        Err(code) => Ok(Err(Refusal::Failed(code))),
        Ok(changed) => match statement.expected_rows {
            Some(expected) if expected != changed => {
                Ok(Err(Refusal::Rows(statement.otherwise.clone())))
            }
            _ => Ok(Ok(())),
        },
    }
}

/// Runs one statement of SQL and says how many rows it changed.
pub(crate) fn execute(
    connection: &Connection,
    text: &str,
    params: &[&Value],
) -> Result<Result<u64, Code>, StoreError> {
    if ends_transaction(text) {
        return Ok(Err(reason::EFFECT_FAILED));
    }
    let ran = connection.prepare_cached(text).and_then(|mut prepared| {
        // Transaction control counts as read-only: refusing what does not write keeps a handler
        // from ending the transaction it is part of.
        if prepared.readonly() {
            return Ok(None);
        }
        prepared.execute(params_from_iter(params)).map(Some)
    });
    match ran {
        Ok(Some(changed)) => Ok(Ok(changed as u64)),
        Ok(None) => Ok(Err(reason::EFFECT_FAILED)),
        Err(error) => blame(error).map(Err),
    }
}

/// Whether SQL could roll the whole transaction back, and every neighbour's delivery with it.
pub(super) fn ends_transaction(sql: &str) -> bool {
    let words: Vec<String> = sql.split_whitespace().map(str::to_ascii_lowercase).collect();
    words.windows(2).any(|pair| {
        matches!(pair, [before, word] if word.starts_with("rollback") && (before == "or" || before == "conflict"))
    })
}

/// Runs one query. Fails as a whole when it returns more than [`QUERY_ROWS_MAX`] rows.
pub(crate) fn query(
    connection: &Connection,
    text: &str,
    params: &[Value],
) -> Result<Vec<Vec<Value>>, StoreError> {
    let mut prepared = connection.prepare_cached(text).map_err(StoreError::away)?;
    let width = prepared.column_count();
    if !prepared.readonly() || width == 0 {
        return Err(StoreError::away("a query must not write; return the write as an effect"));
    }
    let mut found = prepared.query(params_from_iter(params)).map_err(StoreError::away)?;
    let mut rows = Vec::new();
    while let Some(row) = found.next().map_err(StoreError::away)? {
        if rows.len() == QUERY_ROWS_MAX {
            return Err(StoreError::away("a query returned more than 10,000 rows; narrow it"));
        }
        let mut values = Vec::with_capacity(width);
        for column in 0..width {
            values.push(owned(row.get_ref(column).map_err(StoreError::away)?));
        }
        rows.push(values);
    }
    Ok(rows)
}

/// Tells the statement's own fault from the store's.
fn blame(error: rusqlite::Error) -> Result<Code, StoreError> {
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

fn columns<'a>(row: &'a [(&'static str, Value)]) -> Vec<&'a Value> {
    row.iter().map(|(_, value)| value).collect()
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn insert_text(table: &str, row: &[(&'static str, Value)], on_conflict: &str) -> String {
    let names: Vec<String> = row.iter().map(|(name, _)| quoted(name)).collect();
    let places: Vec<String> = (1..=row.len()).map(|n| format!("?{n}")).collect();
    format!(
        "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT {on_conflict}",
        quoted(table),
        names.join(", "),
        places.join(", "),
    )
}

fn upsert_text(table: &str, key: &[&'static str], row: &[(&'static str, Value)]) -> String {
    let key_columns: Vec<String> = key.iter().map(|name| quoted(name)).collect();
    let mut action = format!("({}) DO UPDATE SET ", key_columns.join(", "));
    let mut first = true;
    for (name, _) in row.iter().filter(|(name, _)| !key.contains(name)) {
        let name = quoted(name);
        let comma = if first { "" } else { ", " };
        first = false;
        let _ = write!(action, "{comma}{name} = excluded.{name}");
    }
    if first {
        // Nothing but the key: keep the row, still counted as changed.
        let name = key.first().map(|name| quoted(name)).unwrap_or_default();
        let _ = write!(action, "{name} = excluded.{name}");
    }
    insert_text(table, row, &action)
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

impl ToSql for Value {
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
