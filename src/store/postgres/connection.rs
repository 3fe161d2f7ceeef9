//! A PostgreSQL connection as [`Sql`], and whose fault an error is.
//!
//! The store's work is written for one thread that waits for each statement, so a connection is
//! used from a thread that may block, never from an async task.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use futures::future::join_all;
use futures::{StreamExt, pin_mut};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use super::connect::Driver;
use super::values::{Read, keep_nul, nul_again};
use crate::clock::Timestamp;
use crate::effect::Value;
use crate::event::MessageKey;
use crate::outcome::{Code, reason};
use crate::store::StoreError;
use crate::store::outbox::Log;
use crate::store::sql::{Param, Record, Sql};
use crate::store::statements::{QUERY_ROWS_READ, bounded, query_writes};

/// Prepared statements a connection keeps; past it all are forgotten.
const PREPARED_MAX: usize = 512;

/// A connection, in the hands of one thread at a time.
pub(super) struct Connection {
    client: Client,
    driver: Driver,
    in_transaction: Cell<bool>,
    prepared: RefCell<HashMap<String, Statement>>,
    /// Put before every key, so that stores in one database do not wait for one another.
    lock_space: i64,
    /// A handler's statement that fails leaves the transaction usable.
    isolates: bool,
}

impl Connection {
    pub(super) fn new(client: Client, driver: Driver, lock_space: i64, isolates: bool) -> Self {
        Self {
            client,
            driver,
            in_transaction: Cell::new(false),
            prepared: RefCell::default(),
            lock_space,
            isolates,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Whether it was left in the middle of something.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.in_transaction.get()
    }

    /// Runs SQL without parameters.
    pub(super) fn run(&self, text: &str) -> Result<(), Error> {
        self.driver.block_on(self.client.batch_execute(text))
    }

    /// Begins a transaction.
    pub(super) fn begin(&self) -> Result<Begun, Error> {
        self.begin_with(Vec::new()).map(|(begun, _)| begun)
    }

    /// Begins a transaction with these statements, all sent at once, and gives their answers in
    /// their order.
    pub(super) fn begin_with(&self, sending: Vec<Sent>) -> Result<(Begun, Vec<Answer>), Error> {
        let about = self.prepare(NOW_AND_NUMBER)?;
        self.in_transaction.set(true);
        self.driver.block_on(async {
            // Polled for the first time in this order, and so sent in it.
            let (began, about, answers) = tokio::join!(
                self.client.batch_execute("BEGIN"),
                self.client.query_one(&about, &[]),
                join_all(sending.into_iter().map(|sent| sent.by(&self.client))),
            );
            began?;
            let about = about?;
            let transaction =
                Begun { time: Timestamp(about.try_get(0)?), number: about.try_get(1)? };
            Ok((transaction, answers.into_iter().collect::<Result<_, _>>()?))
        })
    }

    /// Runs SQL without parameters and then these statements, all sent at once, and gives their
    /// answers in their order.
    pub(super) fn run_with(&self, first: &str, sending: Vec<Sent>) -> Result<Vec<Answer>, Error> {
        self.driver.block_on(async {
            let (ran, answers) = tokio::join!(
                self.client.batch_execute(first),
                join_all(sending.into_iter().map(|sent| sent.by(&self.client))),
            );
            ran?;
            answers.into_iter().collect()
        })
    }

    /// The types of a table's columns, in SQL.
    pub(super) fn column_types(&self, table: &str) -> Result<HashMap<String, String>, Error> {
        let text = "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
            WHERE attrelid = to_regclass($1::text) AND attnum > 0 AND NOT attisdropped";
        let rows = self.driver.block_on(self.client.query(text, &[&table]))?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// What [`Sql::lock`] runs, for numbers that [`Connection::locks`] gives.
    pub(super) fn lock_statement(&self) -> Result<Statement, Error> {
        self.prepare("SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k")
    }

    /// Begins a transaction that writes nothing, whatever its statements say.
    pub(super) fn begin_reading(&self) -> Result<(), Error> {
        self.in_transaction.set(true);
        self.run("BEGIN READ ONLY")
    }

    /// Ends the transaction, keeping what it wrote.
    pub(super) fn commit(&self) -> Result<(), Error> {
        self.run("COMMIT")?;
        self.in_transaction.set(false);
        Ok(())
    }

    /// Ends the transaction, undoing what it wrote.
    pub(super) fn roll_back(&self) -> Result<(), Error> {
        self.run("ROLLBACK")?;
        self.in_transaction.set(false);
        Ok(())
    }

    /// What became of the transaction with that number.
    pub(super) fn status_of(&self, number: &str) -> Result<Option<String>, Error> {
        let status = "SELECT pg_xact_status($1::text::xid8)";
        self.driver.block_on(self.client.query_one(status, &[&number]))?.try_get(0)
    }

    pub(super) fn prepare(&self, text: &str) -> Result<Statement, Error> {
        if let Some(known) = self.prepared.borrow().get(text) {
            return Ok(known.clone());
        }
        let statement = self.driver.block_on(self.client.prepare(text))?;
        let mut prepared = self.prepared.borrow_mut();
        if prepared.len() >= PREPARED_MAX {
            prepared.clear();
        }
        prepared.insert(text.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement and says how many rows it changed.
    fn change(&self, text: &str, params: &[Param<'_>]) -> Result<u64, Error> {
        let statement = self.prepare(text)?;
        self.driver.block_on(self.client.execute_raw(&statement, dynamic(params)))
    }

    /// The first `max` rows of a statement.
    fn select(
        &self,
        text: &str,
        params: &[Param<'_>],
        max: usize,
    ) -> Result<Vec<Vec<Value>>, Error> {
        let statement = self.prepare(text)?;
        self.driver.block_on(async {
            let found = self.client.query_raw(&statement, dynamic(params)).await?;
            pin_mut!(found);
            let mut rows = Vec::new();
            while rows.len() < max
                && let Some(row) = found.next().await
            {
                rows.push(values_of(&row?)?);
            }
            Ok(rows)
        })
    }

    /// Runs a handler's statement so that its failure leaves the transaction usable, where the
    /// handler is there to go on.
    fn isolated<T, E: From<StoreError>>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if !self.isolates {
            return work();
        }
        self.run("SAVEPOINT statement").map_err(|error| fault(&error))?;
        let result = work();
        let close = match result {
            Ok(_) => "RELEASE statement",
            Err(_) => "ROLLBACK TO statement; RELEASE statement",
        };
        self.run(close).map_err(|error| fault(&error))?;
        result
    }

    /// The numbers of the messages' locks: everybody's in the same order, so that nobody waits in
    /// a circle.
    pub(super) fn locks(&self, keys: &[MessageKey]) -> Vec<i64> {
        let mut locks: Vec<i64> = keys.iter().map(|key| self.lock_of(*key)).collect();
        locks.sort_unstable();
        locks.dedup();
        locks
    }

    fn lock_of(&self, key: MessageKey) -> i64 {
        key.seed().cast_signed() ^ self.lock_space
    }
}

/// A transaction that has begun.
pub(super) struct Begun {
    /// The database's time.
    pub time: Timestamp,
    /// The transaction's number, by which it can be asked for later.
    pub number: String,
}

/// A statement's parameters, in the order of their places.
pub(super) type Params = Vec<Box<dyn ToSql + Sync + Send>>;

/// A statement with its parameters, to be sent with others.
pub(super) struct Sent {
    statement: Statement,
    params: Params,
    wants: Wants,
}

/// What is wanted of a statement's answer.
#[derive(Clone, Copy)]
enum Wants {
    Nothing,
    Told,
}

/// What a statement sent with others came to.
pub(super) enum Answer {
    /// It was run.
    Ran,
    /// What the statement of a group tells.
    Told(Told),
}

/// What became of a group that was written by one statement.
pub(super) struct Told {
    /// The keys that are known already, in trouble, or no longer ours.
    pub known: Vec<MessageKey>,
    /// How many gates its subscriptions have.
    pub gates: i64,
    /// How many rows were changed, by shape.
    pub changed: Vec<i64>,
    /// How many messages were appended to the outbox.
    pub appended: i64,
}

impl Told {
    fn of(row: &Row) -> Result<Self, Error> {
        let keys: Vec<&[u8]> = row.try_get(0)?;
        let known =
            keys.iter().map(|key| MessageKey((*key).try_into().unwrap_or_default())).collect();
        let (gates, changed, appended) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        Ok(Self { known, gates, changed, appended })
    }
}

impl Sent {
    pub(super) fn running(statement: Statement, params: Params) -> Self {
        Self { statement, params, wants: Wants::Nothing }
    }

    pub(super) fn telling(statement: Statement, params: Params) -> Self {
        Self { statement, params, wants: Wants::Told }
    }

    async fn by(self, client: &Client) -> Result<Answer, Error> {
        let params: Vec<&(dyn ToSql + Sync)> =
            self.params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect();
        Ok(match self.wants {
            Wants::Nothing => {
                client.execute(&self.statement, &params).await?;
                Answer::Ran
            }
            Wants::Told => {
                Answer::Told(Told::of(&client.query_one(&self.statement, &params).await?)?)
            }
        })
    }
}

const NOW_AND_NUMBER: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    pg_current_xact_id()::text";

fn dynamic<'a>(params: &'a [Param<'a>]) -> impl ExactSizeIterator<Item = &'a (dyn ToSql + Sync)> {
    params.iter().map(|param| param as &(dyn ToSql + Sync))
}

pub(super) fn values_of(row: &Row) -> Result<Vec<Value>, Error> {
    (0..row.len()).map(|column| row.try_get(column).map(|Read(value)| value)).collect()
}

impl Sql for Connection {
    fn execute(&self, text: &str, params: &[Param<'_>]) -> Result<u64, StoreError> {
        with_nul_kept(params, |params| self.change(text, params)).map_err(|error| fault(&error))
    }

    fn records(&self, text: &str, params: &[Param<'_>]) -> Result<Vec<Record>, StoreError> {
        let rows = with_nul_kept(params, |params| self.select(text, params, usize::MAX));
        let rows = rows.map_err(|error| fault(&error))?;
        Ok(rows.into_iter().map(|row| Record::new(with_nul_again(row))).collect())
    }

    fn effect(&self, text: &str, params: &[Param<'_>]) -> Result<Result<u64, Code>, StoreError> {
        if !begins_with(text, &["insert", "update", "delete", "merge", "with"]) {
            return Ok(Err(reason::EFFECT_FAILED));
        }
        match self.isolated(|| {
            judged(self.change(text, params)).map_err(Refusal::Store)?.map_err(Refusal::Code)
        }) {
            Ok(changed) => Ok(Ok(changed)),
            Err(Refusal::Code(code)) => Ok(Err(code)),
            Err(Refusal::Store(error)) => Err(error),
        }
    }

    fn query(&self, text: &str, params: &[Param<'_>]) -> Result<Vec<Vec<Value>>, StoreError> {
        if !begins_with(text, &["select", "with", "values", "table"]) {
            return Err(query_writes());
        }
        let select = || self.select(text, params, QUERY_ROWS_READ).map_err(|error| fault(&error));
        bounded(self.isolated(select)?)
    }

    fn empty(&self, table: &str) -> Result<(), StoreError> {
        // It waits for every reader, and everybody else waits behind it: not for long.
        let text = format!("SET LOCAL lock_timeout = '200ms'; TRUNCATE {table}");
        self.run(&text).map_err(|error| fault(&error))
    }

    fn lock(&self, keys: &[MessageKey]) -> Result<(), StoreError> {
        let locks = self.locks(keys);
        let lock = || {
            let statement = self.lock_statement()?;
            self.driver.block_on(self.client.execute(&statement, &[&locks]))
        };
        lock().map(drop).map_err(|error| fault(&error))
    }

    fn try_lock(&self, keys: Vec<MessageKey>, max: usize) -> Result<Vec<MessageKey>, StoreError> {
        if keys.is_empty() {
            return Ok(keys);
        }
        let locks: Vec<i64> = keys.iter().map(|key| self.lock_of(*key)).collect();
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let lock = || {
            // What unnest gives is there before the first row is tried, and none is tried past the
            // limit.
            let text = "SELECT place FROM unnest($1::bigint[]) WITH ORDINALITY AS t (k, place)
                WHERE pg_try_advisory_xact_lock(k) LIMIT $2";
            let statement = self.prepare(text)?;
            let rows = self.driver.block_on(self.client.query(&statement, &[&locks, &max]))?;
            rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, Error>>()
        };
        let places = lock().map_err(|error| fault(&error))?;
        let nth = |place: i64| keys.get(usize::try_from(place).ok()?.checked_sub(1)?).copied();
        Ok(places.into_iter().filter_map(nth).collect())
    }

    fn is_open(&self) -> bool {
        // Only a lost connection ends a transaction here; a statement that fails does not.
        !self.client.is_closed()
    }

    fn lock_gates(&self) -> Result<(), StoreError> {
        let lock = || {
            let statement = self.prepare("SELECT pg_advisory_xact_lock($1)")?;
            self.driver.block_on(self.client.execute(&statement, &[&self.lock_space]))
        };
        lock().map(drop).map_err(|error| fault(&error))
    }

    fn lock_log(&self, log: &Log) -> Result<bool, StoreError> {
        let lock = || {
            let statement = self.prepare(LOCK_LOG)?;
            self.driver.block_on(self.client.execute(&statement, &[&log.id, &log.owner]))
        };
        lock().map(|locked| locked > 0).map_err(|error| fault(&error))
    }
}

/// What [`Sql::lock_log`] runs. The row stays as it is, so no versions of it pile up.
pub(super) const LOCK_LOG: &str =
    "SELECT id FROM outbox_log WHERE id = $1 AND owner = $2 FOR UPDATE";

/// Why a handler's statement changed nothing.
enum Refusal {
    Code(Code),
    Store(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn with_nul_kept<T>(params: &[Param<'_>], run: impl FnOnce(&[Param<'_>]) -> T) -> T {
    let kept: Vec<_> = params
        .iter()
        .map(|param| match param {
            Param::Text(text) => Some(keep_nul(text)),
            _ => None,
        })
        .collect();
    let params: Vec<Param<'_>> = params
        .iter()
        .zip(&kept)
        .map(|(param, kept)| kept.as_deref().map_or(*param, Param::Text))
        .collect();
    run(&params)
}

fn with_nul_again(row: Vec<Value>) -> Vec<Value> {
    let again = |value| match value {
        Value::Text(text) => Value::Text(nul_again(text)),
        other => other,
    };
    row.into_iter().map(again).collect()
}

/// Whether SQL begins with one of these words.
fn begins_with(text: &str, words: &[&str]) -> bool {
    let first = text
        .split(|character: char| !character.is_ascii_alphabetic())
        .find(|word| !word.is_empty());
    text.trim_start().starts_with(|character: char| character.is_ascii_alphabetic())
        && first.is_some_and(|first| words.iter().any(|word| first.eq_ignore_ascii_case(word)))
}

/// Tells a handler's statement's own fault from the store's.
fn judged(ran: Result<u64, Error>) -> Result<Result<u64, Code>, StoreError> {
    match ran {
        Ok(changed) => Ok(Ok(changed)),
        Err(error) => blame(&error).map(Err),
    }
}

/// The fault of a statement of ours, which is the store's.
pub(super) fn fault(error: &Error) -> StoreError {
    match blame(error) {
        Err(fault) => fault,
        Ok(code) => {
            // Its message may quote what was to be stored.
            let state = error.code().map_or("none", SqlState::code);
            StoreError::away(format!("a statement of ours failed: {code}, SQLSTATE {state}"))
        }
    }
}

/// Tells the statement's own fault from the store's.
pub(super) fn blame(error: &Error) -> Result<Code, StoreError> {
    let Some(state) = error.code() else {
        // Not an answer of the database: the connection, or a value that does not fit its column.
        let unfit = std::error::Error::source(error).is_some()
            && !error.is_closed()
            && is_conversion(error);
        return if unfit { Ok(reason::EFFECT_FAILED) } else { Err(StoreError::away(told(error))) };
    };
    if [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::LOCK_NOT_AVAILABLE,
    ]
    .contains(state)
    {
        return Err(StoreError::Contended(told(error).into()));
    }
    let (class, state) = (state.code().get(..2).unwrap_or_default(), state);
    match class {
        "23" => Ok(reason::EFFECT_CONSTRAINT),
        "08" | "53" | "57" | "58" | "XX" if *state != SqlState::QUERY_CANCELED => {
            Err(StoreError::away(told(error)))
        }
        _ if *state == SqlState::READ_ONLY_SQL_TRANSACTION => Err(StoreError::away(told(error))),
        _ => Ok(reason::EFFECT_FAILED),
    }
}

fn is_conversion(error: &Error) -> bool {
    let text = error.to_string();
    text.starts_with("error serializing parameter")
        || text.starts_with("error deserializing column")
}

/// The fault of a commit that the database answered and did not make.
pub(super) fn refusal(error: &Error) -> StoreError {
    blame(error).map_or_else(|away| away, StoreError::Refused)
}

/// What the database or the connection says of trouble that is not about data.
pub(super) fn told(error: &Error) -> String {
    match error.as_db_error() {
        Some(answer) => format!("{} ({})", answer.message(), answer.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
