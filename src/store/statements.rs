//! What a handler's effects look like in SQL, and what can be wrong with them.

use crate::effect::{Action, Otherwise, Statement, Value};
use crate::outcome::Code;
use crate::store::StoreError;
use crate::store::sql::{Param, Sql};

/// Rows one query of a handler may return.
const QUERY_ROWS_MAX: usize = 10_000;
/// Rows to read of a handler's query: enough to know that there are too many.
pub(super) const QUERY_ROWS_READ: usize = QUERY_ROWS_MAX + 1;

/// A handler's query would write.
pub(super) fn query_writes() -> StoreError {
    StoreError::away("a query must not write; return the write as an effect")
}

/// The rows of a handler's query, unless there are too many.
pub(super) fn bounded<T>(rows: Vec<T>) -> Result<Vec<T>, StoreError> {
    if rows.len() > QUERY_ROWS_MAX {
        return Err(StoreError::away("a query returned more than 10,000 rows; narrow it"));
    }
    Ok(rows)
}

/// Why a statement did not do what it said.
pub(super) enum Refusal {
    /// It changed another number of rows.
    Rows(Otherwise),
    /// The database refused it.
    Failed(Code),
}

/// Runs one statement; the outer error means the store is away and nothing about the statement.
pub(super) fn run(sql: &dyn Sql, statement: &Statement) -> Result<Result<(), Refusal>, StoreError> {
    let (text, params) = match &statement.action {
        Action::Insert { table, row } => (insert_text(table, row, "DO NOTHING"), columns(row)),
        Action::Upsert { table, key, row } => {
            let names: Vec<&str> = row.iter().map(|(name, _)| *name).collect();
            (insert_text(table, row, &upsert_action(key, &names)), columns(row))
        }
        Action::Sql { text, params } => {
            (text.to_string(), params.iter().map(Param::from).collect())
        }
    };
    match sql.effect(&text, &params)? {
        Err(code) => Ok(Err(Refusal::Failed(code))),
        Ok(changed) => match statement.expected_rows {
            Some(expected) if expected != changed => {
                Ok(Err(Refusal::Rows(statement.otherwise.clone())))
            }
            _ => Ok(Ok(())),
        },
    }
}

/// Whether SQL could end the transaction it is part of, and every neighbour's delivery with it.
pub(super) fn ends_transaction(sql: &str) -> bool {
    let words: Vec<String> = sql.split_whitespace().map(str::to_ascii_lowercase).collect();
    words.windows(2).any(|pair| {
        matches!(pair, [before, word] if word.starts_with("rollback") && (before == "or" || before == "conflict"))
    })
}

fn columns<'a>(row: &'a [(&'static str, Value)]) -> Vec<Param<'a>> {
    row.iter().map(|(_, value)| Param::from(value)).collect()
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `INSERT INTO` a table's columns, up to the values.
pub(super) fn insert_head(table: &str, columns: &[&str]) -> String {
    let names: Vec<String> = columns.iter().map(|name| quoted(name)).collect();
    format!("INSERT INTO {} ({})", quoted(table), names.join(", "))
}

fn insert_text(table: &str, row: &[(&'static str, Value)], on_conflict: &str) -> String {
    let columns: Vec<&str> = row.iter().map(|(name, _)| *name).collect();
    let places: Vec<String> = (1..=row.len()).map(|n| format!("${n}")).collect();
    format!(
        "{} VALUES ({}) ON CONFLICT {on_conflict}",
        insert_head(table, &columns),
        places.join(", "),
    )
}

/// What an upsert does about the row that is there.
pub(super) fn upsert_action(key: &[&str], columns: &[&str]) -> String {
    let key_columns: Vec<String> = key.iter().map(|name| quoted(name)).collect();
    let mut others: Vec<&str> =
        columns.iter().filter(|name| !key.contains(name)).copied().collect();
    if others.is_empty() {
        // Nothing but the key: keep the row, still counted as changed.
        others.extend(key.first());
    }
    let sets: Vec<String> = others
        .iter()
        .map(|name| {
            let name = quoted(name);
            format!("{name} = excluded.{name}")
        })
        .collect();
    format!("({}) DO UPDATE SET {}", key_columns.join(", "), sets.join(", "))
}
