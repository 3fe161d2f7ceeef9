//! Why the store could not do what was asked.

use std::path::PathBuf;
use std::sync::Arc;

use crate::outcome::Code;

/// Why the store could not do what was asked. Cloned to every caller of a failed commit.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database could not be read or written just now. Nothing was written; ask again later.
    #[error("the store cannot be read or written: {0}")]
    Away(Arc<str>),
    /// The database refused the whole transaction for what a statement in it did: a deferred
    /// constraint, a trigger that rolled it back. Nothing was written, and the store is well.
    #[error("the database refused the transaction: {0}")]
    Refused(Code),
    /// Another transaction was in the way. Nothing was written; the writer tries again by itself.
    #[error("another transaction was in the way: {0}")]
    Contended(Arc<str>),
    /// Another process has taken over this one's log of the outbox. Nothing was written.
    #[error("another process has taken over this one's log of the outbox")]
    LogLost,
    /// The store has been shut down.
    #[error("the store has stopped")]
    Stopped,
    /// Another process serves this database.
    #[error("{} is being served by another process; SQLite takes one service a file: stop the other, or give each its own BACKSTOP_STORE_URL", .0.display())]
    InUse(PathBuf),
    /// The database's tables are not those this build works with.
    #[error("{0}")]
    Schema(Arc<str>),
    /// A stored value has no meaning to this build.
    #[error("the store holds a value this build does not understand: {0}")]
    Corrupt(Arc<str>),
}

impl StoreError {
    pub(crate) fn away(error: impl std::fmt::Display) -> Self {
        Self::Away(error.to_string().into())
    }
}
