//! What both databases say of their tables and migrations.

use std::fmt;

use crate::store::{AppMigration, StoreError};

/// The version of the tables that this build works with.
pub(super) fn newest(runner: &refinery::Runner) -> i64 {
    let versions = runner.get_migrations().iter().map(|migration| i64::from(migration.version()));
    versions.max().unwrap_or(0)
}

/// Fails when the tables that were found are of another version than `newest`.
pub(super) fn expect_version(found: i64, newest: i64) -> Result<(), StoreError> {
    if found == newest {
        return Ok(());
    }
    Err(problem(format!(
        "the store's schema is version {found}, this build works with {newest}; run `backstop migrate` with the newer of the two"
    )))
}

/// The store's own migrations did not apply.
pub(super) fn not_migrated(error: &refinery::Error) -> StoreError {
    problem(format!("the store could not be migrated: {error}"))
}

/// What an application's migration is known by once it was applied.
pub(super) fn checksum(migration: &AppMigration) -> [u8; 32] {
    *blake3::hash(migration.sql.as_bytes()).as_bytes()
}

/// Whether an application's migration is still to be applied; `known` is what it was known by when
/// it was. Fails when it was edited since.
pub(super) fn is_due(migration: &AppMigration, known: Option<&[u8]>) -> Result<bool, StoreError> {
    match known {
        None => Ok(true),
        Some(known) if known == checksum(migration) => Ok(false),
        Some(_) => Err(problem(format!(
            "migration `{}` was edited after it was applied; add a new one instead",
            migration.name
        ))),
    }
}

/// An application's migration did not apply.
pub(super) fn not_applied(migration: &AppMigration, error: impl fmt::Display) -> StoreError {
    problem(format!("migration `{}` failed: {error}", migration.name))
}

pub(super) fn problem(text: impl Into<String>) -> StoreError {
    StoreError::Schema(text.into().into())
}
