//! PostgreSQL's writer: one transaction for all that is queued.
//!
//! Each job has a savepoint, at most [`SAVEPOINTS_MAX`] to a transaction: a backend keeps the
//! numbers of 64 subtransactions at hand, and past that every snapshot has to look them up
//! (PostgreSQL 15 documentation, section 66.3).
//!
//! **Invariants**
//! - The messages of a transaction are locked before anything is read, in one order for everybody,
//!   so two replicas never wait for one another in a circle over them.
//! - What another transaction was in the way of is run again, a bounded number of times, and counts
//!   for nobody.
//! - A connection lost during a commit leaves no doubt: the database is asked what became of the
//!   transaction, by its number.

use std::thread;
use std::time::{Duration, Instant};

use super::connect::Connector;
use super::connection::{Connection, blame, fault};
use super::process::{self, Clocks};
use crate::clock::Timestamp;
use crate::custody::Limits;
use crate::event::MessageKey;
use crate::store::StoreError;
use crate::store::ledger::Ledger;
use crate::store::outbox::Log;
use crate::store::writer::{Job, Transactions};

/// Jobs with a savepoint each in one transaction.
const SAVEPOINTS_MAX: usize = 60;
/// How often a transaction is run that another one is in the way of.
const RUNS_MAX: u32 = 5;
/// How long the database may leave open what became of a commit.
const DOUBT_MAX: Duration = Duration::from_secs(10);

pub(super) struct PostgresWriter {
    pub connector: Connector,
    pub clocks: Clocks,
    pub limits: Limits,
    pub log: Log,
    /// Opened when it is needed, and again after it was lost.
    pub connection: Option<Connection>,
}

/// Why a transaction did not commit.
enum Failure {
    /// It was rolled back.
    Undone(StoreError),
    /// The connection was lost while it committed.
    InDoubt(String),
}

/// Whether a transaction leaves anything behind.
enum Kept {
    Something,
    Nothing,
}

/// Whether what was in a job's way is gone when all of them run again.
fn runs_again(error: &StoreError) -> bool {
    matches!(error, StoreError::Contended(_) | StoreError::LogLost)
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Undone(error)
    }
}

impl Transactions for PostgresWriter {
    fn commit(&mut self, jobs: &mut [Box<dyn Job>]) -> Vec<Result<(), StoreError>> {
        let mut results = Vec::with_capacity(jobs.len());
        for jobs in jobs.chunks_mut(SAVEPOINTS_MAX) {
            match self.certainly(jobs) {
                Err(StoreError::Refused(_)) if jobs.len() > 1 => {
                    // Only the commit found it out (a deferred constraint): each on its own.
                    results.extend(jobs.chunks_mut(1).map(|job| self.certainly(job)));
                }
                result => results.extend(std::iter::repeat_n(result, jobs.len())),
            }
        }
        results
    }
}

impl PostgresWriter {
    /// Runs a transaction until it is certain whether it is on disk.
    fn certainly(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        let mut runs = 0;
        loop {
            runs += 1;
            let fresh = self.connection.is_none();
            let failure = match self.transaction(jobs) {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure {
                Failure::Undone(StoreError::Contended(why)) if runs < RUNS_MAX => {
                    tracing::debug!(error = %why, runs, "A transaction is run again.");
                }
                Failure::Undone(StoreError::Contended(why)) => return Err(StoreError::Away(why)),
                Failure::Undone(StoreError::LogLost) if runs < RUNS_MAX => {
                    let connection = match self.connection.take() {
                        Some(known) => known,
                        None => self.connect()?,
                    };
                    self.log = process::logs(&connection, &self.log.owner)?.of_writer;
                    self.connection = Some(connection);
                }
                Failure::Undone(StoreError::Away(why)) => {
                    // A connection that had been idle may have been cut long ago.
                    let stale = !fresh && runs == 1 && self.is_lost();
                    self.connection = None;
                    if !stale {
                        return Err(StoreError::Away(why));
                    }
                }
                Failure::Undone(error) => return Err(error),
                Failure::InDoubt(number) => {
                    self.connection = None;
                    if self.has_committed(&number)? {
                        return Ok(());
                    }
                    if runs >= RUNS_MAX {
                        return Err(StoreError::away("the connection was lost at every commit"));
                    }
                }
            }
        }
    }

    fn is_lost(&self) -> bool {
        self.connection.as_ref().is_none_or(Connection::is_closed)
    }

    fn transaction(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        let connection = match self.connection.take().filter(|known| !known.is_closed()) {
            Some(known) => known,
            None => self.connect()?,
        };
        let (time, number) = connection.begin().map_err(|error| fault(&error))?;
        let now = self.clocks.tell(Timestamp(time));
        let ran = self.run(&connection, jobs, now);
        let connection = self.connection.insert(connection);
        let ended = match ran {
            Ok(Kept::Something) => connection.commit(),
            _ => connection.roll_back(),
        };
        match (ran, ended) {
            (Ok(_), Ok(())) => Ok(()),
            (Ok(Kept::Nothing), Err(error)) => Err(fault(&error).into()),
            (Ok(Kept::Something), Err(error))
                if error.code().is_none() || connection.is_closed() =>
            {
                Err(Failure::InDoubt(number))
            }
            (Ok(Kept::Something), Err(error)) => Err(match blame(&error) {
                Ok(code) => StoreError::Refused(code).into(),
                Err(error) => error.into(),
            }),
            (Err(error), ended) => {
                if ended.is_err() {
                    self.connection = None;
                }
                Err(error.into())
            }
        }
    }

    fn run(
        &self,
        connection: &Connection,
        jobs: &mut [Box<dyn Job>],
        now: Timestamp,
    ) -> Result<Kept, StoreError> {
        let ledger = Ledger { sql: connection, limits: &self.limits, log: &self.log, now };
        let keys: Vec<MessageKey> = jobs.iter().filter_map(|job| job.key()).collect();
        if !keys.is_empty() {
            ledger.sql.lock(&keys)?;
        }
        if let [job] = jobs {
            return match job.run(&ledger) {
                Ok(true) => Ok(Kept::Something),
                Err(error) if runs_again(&error) => Err(error),
                Ok(false) | Err(_) => Ok(Kept::Nothing),
            };
        }
        for job in jobs {
            connection.run("SAVEPOINT delivery").map_err(|error| fault(&error))?;
            let close = match job.run(&ledger) {
                Ok(true) => "RELEASE delivery",
                Err(error) if runs_again(&error) => return Err(error),
                Ok(false) | Err(_) => "ROLLBACK TO delivery; RELEASE delivery",
            };
            connection.run(close).map_err(|error| fault(&error))?;
        }
        Ok(Kept::Something)
    }

    fn connect(&self) -> Result<Connection, StoreError> {
        self.connector.runtime.block_on(self.connector.connect())
    }

    /// Whether the transaction with that number is on disk.
    fn has_committed(&mut self, number: &str) -> Result<bool, StoreError> {
        let until = Instant::now() + DOUBT_MAX;
        loop {
            let status = self.connect().and_then(|connection| {
                let status = connection.status_of(number).map_err(|error| fault(&error))?;
                self.connection = Some(connection);
                Ok(status)
            });
            match status.as_ref().map(Option::as_deref) {
                Ok(Some("committed")) => return Ok(true),
                Ok(Some("aborted")) => return Ok(false),
                _ if Instant::now() < until => thread::sleep(Duration::from_millis(100)),
                _ => {
                    // Whoever comes again meets what is on disk.
                    return Err(StoreError::away("what became of a commit cannot be known yet"));
                }
            }
        }
    }
}
