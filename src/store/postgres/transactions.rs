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

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::connect::Connector;
use super::connection::{Begun, Connection, blame, fault, refusal};
use super::halves;
use super::merged::{self, At, Bet, Flight, Gates, Memory};
use super::process::{self, Clocks};
use crate::clock::Timestamp;
use crate::custody::Limits;
use crate::event::MessageKey;
use crate::store::StoreError;
use crate::store::gates;
use crate::store::ledger::Ledger;
use crate::store::outbox::Log;
use crate::store::writer::{Commit, Job, Transactions};

/// Jobs with a savepoint each in one transaction.
const SAVEPOINTS_MAX: usize = 60;
/// How often a transaction is run that another one is in the way of.
const RUNS_MAX: u32 = 5;
/// How long the database may leave open what became of a commit.
const DOUBT_MAX: Duration = Duration::from_secs(10);
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(100);

pub(super) struct PostgresWriter {
    pub connector: Connector,
    pub clocks: Clocks,
    pub limits: Limits,
    pub log: Log,
    pub memory: Memory,
    /// Opened when it is needed, and again after it was lost.
    pub connection: Option<Connection>,
}

/// Ends a transaction.
fn end(connection: &Connection, keeps: bool, number: String) -> Result<(), Failure> {
    if !keeps {
        return connection.roll_back().map_err(|error| fault(&error).into());
    }
    match connection.commit() {
        Ok(()) => Ok(()),
        Err(error) if error.code().is_none() || connection.is_closed() => {
            Err(Failure::InDoubt(number))
        }
        Err(error) => Err(refusal(&error).into()),
    }
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

/// A job and, once that is known, whether it is on disk.
struct Pending<'a> {
    job: &'a mut Box<dyn Job>,
    result: Option<Result<(), StoreError>>,
}

impl Pending<'_> {
    fn is_on_disk(&mut self) {
        self.job.was_committed();
        self.result = Some(Ok(()));
    }
}

fn commits_of<'a>(pending: &'a [&mut Pending<'_>]) -> Vec<&'a Commit> {
    pending.iter().filter_map(|one| one.job.as_commit()).collect()
}

impl Transactions for PostgresWriter {
    fn commit(&mut self, jobs: &mut [Box<dyn Job>]) -> Vec<Result<(), StoreError>> {
        let mut pending: Vec<Pending<'_>> =
            jobs.iter_mut().map(|job| Pending { job, result: None }).collect();
        self.commit_merged(&mut pending);
        self.commit_one_by_one(&mut pending);
        let results = pending.into_iter().map(|one| one.result);
        results.map(|result| result.unwrap_or(Err(StoreError::Stopped))).collect()
    }
}

impl PostgresWriter {
    /// Commits what can be written together. What has no result afterwards is to be written one
    /// by one.
    fn commit_merged(&mut self, pending: &mut [Pending<'_>]) {
        let mut seen = HashSet::new();
        let mut merged: Vec<&mut Pending<'_>> = pending
            .iter_mut()
            .filter(|one| merged::is_mergeable(&**one.job) && seen.insert(one.job.key()))
            .collect();
        // The second time without those that were known the first time.
        for _ in 0..2 {
            let commits = commits_of(&merged);
            if commits.is_empty() {
                return;
            }
            let mut bet = Bet::Lost;
            let result = self.certainly(|writer| {
                // What becomes of it when the commit is in doubt and turns out to be on disk.
                bet = Bet::Won(Gates::None);
                bet = writer.merged(&commits)?;
                Ok(())
            });
            match (result, bet) {
                (Ok(()), Bet::Won(_)) => return merged.iter_mut().for_each(|one| one.is_on_disk()),
                (Ok(()), Bet::Known(known)) => {
                    merged.retain(|one| one.job.key().is_none_or(|key| !known.contains(&key)));
                }
                (Err(error @ StoreError::Away(_)), _) => {
                    return merged.iter_mut().for_each(|one| one.result = Some(Err(error.clone())));
                }
                // Something is wrong with one of them, or was in the way for long.
                _ => break,
            }
        }
        self.commit_in_halves(&mut merged);
    }

    /// Commits those that are in nobody's way, after all of them together could not be.
    fn commit_in_halves(&mut self, merged: &mut [&mut Pending<'_>]) {
        let commits = commits_of(merged);
        if commits.len() < halves::WORTH_IT {
            return;
        }
        let mut written = Vec::new();
        let result = self.certainly(|writer| {
            written = Vec::new();
            writer.halves(&commits, &mut written)
        });
        for (place, one) in merged.iter_mut().enumerate() {
            match &result {
                Ok(()) if written.contains(&place) => one.is_on_disk(),
                Err(error @ StoreError::Away(_)) => one.result = Some(Err(error.clone())),
                _ => {}
            }
        }
    }

    fn commit_one_by_one(&mut self, pending: &mut [Pending<'_>]) {
        let mut rest: Vec<&mut Pending<'_>> =
            pending.iter_mut().filter(|one| one.result.is_none()).collect();
        for chunk in rest.chunks_mut(SAVEPOINTS_MAX) {
            let result = self.certainly(|writer| writer.transaction(chunk));
            if chunk.len() > 1 && matches!(result, Err(StoreError::Refused(_))) {
                // Only the commit found it out (a deferred constraint): each on its own.
                for one in chunk {
                    let alone = std::slice::from_mut(one);
                    let result = self.certainly(|writer| writer.transaction(alone));
                    one.result = Some(result);
                }
            } else {
                for one in chunk {
                    one.result = Some(result.clone());
                }
            }
        }
    }

    /// One merged transaction, unless something is in the way.
    fn merged(&mut self, commits: &[&Commit]) -> Result<Bet, Failure> {
        let connection = self.take_connection()?;
        let at =
            At { log: &self.log, now: self.clocks.now(), remember_for: self.limits.remember_for };
        let ran = match Flight::of(&connection, &mut self.memory, commits, at) {
            Ok(None) => return Ok(self.kept(connection, Bet::Lost)),
            Ok(Some(flight)) => flight.begin(&connection, &mut self.memory),
            Err(error) => Err(error),
        };
        let (number, bet) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                self.memory.forget_types();
                self.abandon(connection);
                return blame(&error).map(|_| Bet::Lost).map_err(Failure::from);
            }
        };
        let keeps = match bet {
            Bet::Won(Gates::Some) => {
                if let Err(error) = self.open_gates(&connection, commits) {
                    self.abandon(connection);
                    return Err(error.into());
                }
                true
            }
            Bet::Won(Gates::None) => true,
            Bet::Known(_) | Bet::Lost | Bet::LogLost => false,
        };
        let connection = self.connection.insert(connection);
        end(connection, keeps, number)?;
        if matches!(bet, Bet::LogLost) {
            return Err(StoreError::LogLost.into());
        }
        Ok(bet)
    }

    /// One transaction with those that are in nobody's way; `written` are their places.
    fn halves(&mut self, commits: &[&Commit], written: &mut Vec<usize>) -> Result<(), Failure> {
        let connection = self.take_connection()?;
        let at =
            At { log: &self.log, now: self.clocks.now(), remember_for: self.limits.remember_for };
        let ran = halves::run(&connection, &mut self.memory, commits, at).and_then(|ran| {
            let kept: Vec<&Commit> =
                ran.written.iter().filter_map(|place| commits.get(*place).copied()).collect();
            if ran.gates == Gates::Some {
                self.open_gates(&connection, &kept)?;
            }
            Ok(ran)
        });
        match ran {
            Ok(ran) => {
                let keeps = !ran.written.is_empty();
                *written = ran.written;
                let connection = self.connection.insert(connection);
                end(connection, keeps, ran.number)
            }
            Err(error) => {
                self.abandon(connection);
                Err(error.into())
            }
        }
    }

    /// What the deliveries' success means for the gates of their subscriptions.
    fn open_gates(&self, connection: &Connection, commits: &[&Commit]) -> Result<(), StoreError> {
        let ledger = Ledger {
            sql: connection,
            limits: &self.limits,
            log: &self.log,
            now: self.clocks.now(),
        };
        let mut open = HashSet::new();
        for commit in commits {
            let subscription = commit.incoming.subscription.as_str();
            if !open.contains(subscription) && !gates::succeeded(&ledger, subscription)? {
                open.insert(subscription);
            }
        }
        Ok(())
    }

    /// Keeps a connection that is in no transaction.
    fn kept(&mut self, connection: Connection, bet: Bet) -> Bet {
        self.connection = Some(connection);
        bet
    }

    /// Undoes what a connection was in the middle of, and keeps it if that was possible.
    fn abandon(&mut self, connection: Connection) {
        let whole = !connection.is_in_transaction() || connection.roll_back().is_ok();
        self.connection = Some(connection).filter(|_| whole);
    }

    /// Does something again until it is certain whether it is on disk.
    fn certainly(
        &mut self,
        mut run: impl FnMut(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), StoreError> {
        let mut runs = 0;
        loop {
            runs += 1;
            let fresh = self.connection.is_none();
            let failure = match run(self) {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure {
                Failure::Undone(StoreError::Contended(why)) if runs < RUNS_MAX => {
                    tracing::debug!(error = %why, runs, "A transaction is run again.");
                }
                Failure::Undone(StoreError::Contended(why)) => return Err(StoreError::Away(why)),
                Failure::Undone(StoreError::LogLost) if runs < RUNS_MAX => {
                    let connection = self.take_connection()?;
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

    fn take_connection(&mut self) -> Result<Connection, StoreError> {
        match self.connection.take().filter(|known| !known.is_closed()) {
            Some(known) => Ok(known),
            None => self.connect(),
        }
    }

    fn is_lost(&self) -> bool {
        self.connection.as_ref().is_none_or(Connection::is_closed)
    }

    /// One transaction with a savepoint a job.
    fn transaction(&mut self, pending: &mut [&mut Pending<'_>]) -> Result<(), Failure> {
        let connection = self.take_connection()?;
        let Begun { time, number } = connection.begin().map_err(|error| fault(&error))?;
        let now = self.clocks.tell(time);
        match self.run(&connection, pending, now) {
            Ok(kept) => {
                let connection = self.connection.insert(connection);
                end(connection, matches!(kept, Kept::Something), number)
            }
            Err(error) => {
                self.abandon(connection);
                Err(error.into())
            }
        }
    }

    fn run(
        &self,
        connection: &Connection,
        pending: &mut [&mut Pending<'_>],
        now: Timestamp,
    ) -> Result<Kept, StoreError> {
        let ledger = Ledger { sql: connection, limits: &self.limits, log: &self.log, now };
        let keys: Vec<MessageKey> = pending.iter().filter_map(|one| one.job.key()).collect();
        if !keys.is_empty() {
            ledger.sql.lock(&keys)?;
        }
        if let [one] = pending {
            return match one.job.run(&ledger) {
                Ok(true) => Ok(Kept::Something),
                Err(error) if runs_again(&error) => Err(error),
                Ok(false) | Err(_) => Ok(Kept::Nothing),
            };
        }
        connection.run("SAVEPOINT delivery").map_err(|error| fault(&error))?;
        for one in pending {
            // The end of one and the beginning of the next are one way there and back.
            let close = match one.job.run(&ledger) {
                Ok(true) => "RELEASE delivery; SAVEPOINT delivery",
                Err(error) if runs_again(&error) => return Err(error),
                Ok(false) | Err(_) => "ROLLBACK TO delivery",
            };
            connection.run(close).map_err(|error| fault(&error))?;
        }
        Ok(Kept::Something)
    }

    fn connect(&self) -> Result<Connection, StoreError> {
        self.connector.driver.block_on(self.connector.connect())
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
                // Made inside: a timer belongs to the runtime it is made in.
                _ if Instant::now() < until => {
                    self.connector.driver.block_on(async { sleep(ASK_EVERY).await });
                }
                _ => {
                    // Whoever comes again meets what is on disk.
                    return Err(StoreError::away("what became of a commit cannot be known yet"));
                }
            }
        }
    }
}
