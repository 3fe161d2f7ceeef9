//! What a handler's effects look like in SQL, and what can be wrong with them.

use std::fmt::Write as _;

use crate::effect::{Action, Otherwise, Statement, Value};
use crate::outcome::Code;
use crate::store::StoreError;
use crate::store::sql::{Param, Sql};

/// Rows one query of a handler may return.
pub(super) const QUERY_ROWS_MAX: usize = 10_000;

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
        Action::Upsert { table, key, row } => (upsert_text(table, key, row), columns(row)),
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

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn insert_text(table: &str, row: &[(&'static str, Value)], on_conflict: &str) -> String {
    let names: Vec<String> = row.iter().map(|(name, _)| quoted(name)).collect();
    let places: Vec<String> = (1..=row.len()).map(|n| format!("${n}")).collect();
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
