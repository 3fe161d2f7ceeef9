//! SQLite's writer: one transaction for all that is queued, a savepoint for each job.
//!
//! A savepoint costs almost nothing here, so every job has one: what a job undoes, or what fails
//! in it, leaves its neighbours alone. What only the commit can find out (a deferred foreign key)
//! or what ends the whole transaction (`RAISE(ROLLBACK)` in a trigger) fails them all; then each
//! is run once more, in a transaction of its own.

use rusqlite::Connection;

use super::connection::blame;
use crate::clock::{Clock, Timestamp};
use crate::custody::Limits;
use crate::store::StoreError;
use crate::store::ledger::Ledger;
use crate::store::outbox::Log;
use crate::store::writer::{Job, Transactions};

pub(super) struct SqliteWriter {
    pub connection: Connection,
    pub clock: Clock,
    pub limits: Limits,
    pub log: Log,
}

impl Transactions for SqliteWriter {
    fn commit(&mut self, jobs: &mut [Box<dyn Job>]) -> Vec<Result<(), StoreError>> {
        let together = self.transaction(jobs);
        if jobs.len() == 1 || !matches!(together, Err(StoreError::Refused(_))) {
            return vec![together; jobs.len()];
        }
        let mut results = Vec::with_capacity(jobs.len());
        let mut away = None;
        for job in jobs {
            let result = match &away {
                None => self.transaction(std::slice::from_mut(job)),
                Some(error) => Err(StoreError::clone(error)),
            };
            away =
                result.as_ref().err().filter(|error| matches!(error, StoreError::Away(_))).cloned();
            results.push(result);
        }
        results
    }
}

impl SqliteWriter {
    fn transaction(&self, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        // IMMEDIATE: a deferred transaction that turns into a write fails with SQLITE_BUSY_SNAPSHOT,
        // which the busy timeout does not wait out.
        self.run("BEGIN IMMEDIATE")?;
        let now = self.clock.now();
        let ran = jobs.iter_mut().try_for_each(|job| self.in_savepoint(job.as_mut(), now));
        let finished = ran.and_then(|()| self.run("COMMIT"));
        if finished.is_err() && !self.connection.is_autocommit() {
            // Nothing of the batch is on disk and every caller is told so.
            if let Err(error) = self.run("ROLLBACK") {
                tracing::warn!(error = %error, "A failed transaction could not be rolled back.");
            }
        }
        finished
    }

    fn in_savepoint(&self, job: &mut dyn Job, now: Timestamp) -> Result<(), StoreError> {
        self.run("SAVEPOINT delivery")?;
        let (sql, limits, log) = (&self.connection, &self.limits, &self.log);
        let ran = job.run(&Ledger { sql, limits, log, now });
        let keep = matches!(ran, Ok(true));
        let closed = self.run(if keep {
            "RELEASE delivery"
        } else {
            "ROLLBACK TO delivery; RELEASE delivery"
        });
        match (closed, ran) {
            // A full disk ends the whole transaction; that is what the job met, and no fault of it.
            (Err(_), Err(met)) => Err(met),
            (closed, _) => closed,
        }
    }

    fn run(&self, text: &str) -> Result<(), StoreError> {
        self.connection
            .execute_batch(text)
            .map_err(|error| blame(&error).map_or_else(|away| away, StoreError::Refused))
    }
}
