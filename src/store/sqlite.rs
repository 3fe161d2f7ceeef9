//! SQLite: the embedded default. WAL, `synchronous=FULL`, one writer thread, one service a file.
//!
//! **Invariants**
//! - Only one service opens a file: a lock file beside it is held for the life of the process and
//!   freed by the system when the process ends, however it ends.
//! - Whatever an earlier process left running is nobody's: its leases are over at the next start.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use crate::clock::{Clock, Timestamp};
use crate::custody::Limits;
use crate::store::outbox::Log;
use crate::store::schema;
use crate::store::statements::ends_transaction;
use crate::store::writer::Writer;
use crate::store::{AppMigration, OpenAs, StoreError};

mod connection;
#[cfg(test)]
mod model;
mod reader;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod transactions;

use reader::Reader;
use transactions::SqliteWriter;

mod embedded {
    refinery::embed_migrations!("src/store/migrations/sqlite");
}

/// How long a statement waits for another process's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The write-ahead log is cut back to this after a checkpoint.
const WAL_BYTES_MAX: u32 = 64 << 20;

#[derive(Clone)]
pub(crate) struct Sqlite {
    pub(crate) writer: Writer,
    pub(crate) reader: Reader,
    pub(crate) clock: Clock,
    /// When this was opened, if the service before ended without saying so.
    pub(crate) crash_seen: Option<Timestamp>,
    /// Held, never read: dropping it lets another service in.
    _lock: Option<Arc<File>>,
}

impl Sqlite {
    pub(crate) fn open(
        path: &Path,
        open_as: OpenAs,
        migrations: &[AppMigration],
        limits: Limits,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let lock = match open_as {
            OpenAs::Service => {
                create_private(path)?;
                Some(Arc::new(lock(path)?))
            }
            OpenAs::Operator if path.exists() => None,
            OpenAs::Operator => {
                let problem = format!(
                    "there is no store at {}; start the service once, or set BACKSTOP_STORE_URL to its database",
                    path.display()
                );
                return Err(StoreError::Schema(problem.into()));
            }
        };
        let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let after_crash = match open_as {
            OpenAs::Service => {
                migrate(&mut connection, migrations, clock.now())?;
                take_over(&connection)?
            }
            OpenAs::Operator => {
                check_schema(&connection)?;
                false
            }
        };
        let reader = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let writer = Writer::start(SqliteWriter {
            connection,
            clock: clock.clone(),
            limits,
            log: Log::only(),
        })
        .map_err(StoreError::away)?;
        let reader = Reader::start(reader).map_err(StoreError::away)?;
        let crash_seen = after_crash.then(|| clock.now());
        Ok(Self { writer, reader, clock, crash_seen, _lock: lock })
    }
}

/// Makes the directory and an empty file that only its owner may read: it will hold payloads.
fn create_private(path: &Path) -> Result<(), StoreError> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(|error| cannot_open(path, &error))?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(path).map(drop).map_err(|error| cannot_open(path, &error))
}

fn cannot_open(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::away(format!("{}: {error}", path.display()))
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock_path = PathBuf::from(name);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&lock_path)
        .map_err(|error| cannot_open(&lock_path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(cannot_open(&lock_path, &error)),
    }
}

fn connect(path: &Path, access: OpenFlags) -> Result<Connection, StoreError> {
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|error| StoreError::away(format!("{}: {error}", path.display())))?;
    configure(&connection, access.contains(OpenFlags::SQLITE_OPEN_READ_WRITE))?;
    Ok(connection)
}

fn configure(connection: &Connection, writes: bool) -> Result<(), StoreError> {
    connection.busy_timeout(BUSY_TIMEOUT).map_err(StoreError::away)?;
    connection.set_prepared_statement_cache_capacity(128);
    if writes {
        connection.pragma_update(None, "journal_mode", "WAL").map_err(StoreError::away)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(StoreError::away)?;
        connection
            .pragma_update(None, "journal_size_limit", WAL_BYTES_MAX)
            .map_err(StoreError::away)?;
    }
    connection.pragma_update(None, "foreign_keys", true).map_err(StoreError::away)?;
    connection.pragma_update(None, "trusted_schema", false).map_err(StoreError::away)
}

fn migrate(
    connection: &mut Connection,
    migrations: &[AppMigration],
    now: Timestamp,
) -> Result<(), StoreError> {
    embedded::migrations::runner().run(connection).map_err(|error| schema::not_migrated(&error))?;
    for migration in migrations {
        apply_once(connection, migration, now)?;
    }
    Ok(())
}

fn apply_once(
    connection: &mut Connection,
    migration: &AppMigration,
    now: Timestamp,
) -> Result<(), StoreError> {
    let transaction = connection.transaction().map_err(StoreError::away)?;
    let known: Option<Vec<u8>> = transaction
        .query_row("SELECT checksum FROM app_migration WHERE name = ?1", [migration.name], |row| {
            row.get(0)
        })
        .optional()
        .map_err(StoreError::away)?;
    if !schema::is_due(migration, known.as_deref())? {
        return Ok(());
    }
    if ends_transaction(migration.sql) {
        return Err(schema::problem(format!(
            "migration `{}`: ON CONFLICT ROLLBACK would undo other deliveries; use ABORT",
            migration.name
        )));
    }
    transaction
        .execute_batch(migration.sql)
        .map_err(|error| schema::not_applied(migration, error))?;
    transaction
        .execute(
            "INSERT INTO app_migration (name, checksum, applied_at) VALUES (?1, ?2, ?3)",
            params![migration.name, schema::checksum(migration), now.0],
        )
        .map_err(StoreError::away)?;
    transaction.commit().map_err(StoreError::away)
}

/// An operator's tool never changes the schema; it says when the schema is not its own.
fn check_schema(connection: &Connection) -> Result<(), StoreError> {
    let found: Option<i64> = connection
        .query_row("SELECT max(version) FROM refinery_schema_history", [], |row| row.get(0))
        .unwrap_or(None);
    match found {
        Some(found) => {
            schema::expect_version(found, schema::newest(&embedded::migrations::runner()))
        }
        None => Err(schema::problem(
            "the file is not a Backstop store; run `backstop migrate` to make it one",
        )),
    }
}

/// Ends the leases of an earlier process, which the lock says is gone, and says whether it ended
/// without a word. The mark of this one's start is set by `Store::serving`.
fn take_over(connection: &Connection) -> Result<bool, StoreError> {
    connection
        .execute("UPDATE message SET lease_until = 0 WHERE lease_until IS NOT NULL", [])
        .map_err(StoreError::away)?;
    connection
        .query_row("SELECT state = 'serving' FROM process", [], |row| row.get(0))
        .map_err(StoreError::away)
}
