//! What a user writes: an async function from a typed event to effects, or an error that says
//! whether another attempt makes sense.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::effect::{Message, Value};
use crate::event::Event;
use crate::outcome::{Code, reason};
use crate::store::{Session, Store, StoreError};

/// Why a handler did not produce effects.
///
/// `?` on any error makes a transient one: everything is rolled back, so trying again is safe.
/// Only the code is kept; the text of the original error is dropped, because it may hold payload
/// or credentials.
pub struct HandlerError {
    pub(crate) kind: Kind,
    pub(crate) code: Code,
    /// The type of the original error, for the log: names of types are safe, texts are not.
    pub(crate) origin: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Transient,
    NotSent,
    Rejected,
}

impl HandlerError {
    /// It failed now and may work later. In a handler that calls something outside which must not
    /// be repeated ([`OutsideCall::Once`](crate::OutsideCall::Once)) the outcome counts as unknown.
    #[must_use]
    pub const fn transient(code: Code) -> Self {
        Self { kind: Kind::Transient, code, origin: None }
    }

    /// It failed before anything left this process: may be tried again whatever the handler calls.
    #[must_use]
    pub const fn not_sent(code: Code) -> Self {
        Self { kind: Kind::NotSent, code, origin: None }
    }

    /// It will never work: the message is quarantined with this code, without another attempt.
    #[must_use]
    pub const fn reject(code: Code) -> Self {
        Self { kind: Kind::Rejected, code, origin: None }
    }

    /// The safe code.
    #[must_use]
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Whether it rejects the message.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        self.kind == Kind::Rejected
    }
}

impl<E: Into<anyhow::Error>> From<E> for HandlerError {
    fn from(_: E) -> Self {
        Self { kind: Kind::Transient, code: reason::HANDLER_FAILED, origin: Some(type_name::<E>()) }
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.kind, self.code)
    }
}

/// What a handler may know and ask while it runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    event: Arc<Event>,
    attempt: u32,
    action_id: Arc<str>,
    until: Instant,
    store: Option<Store>,
}

impl Context {
    pub(crate) fn new(
        event: Arc<Event>,
        attempt: u32,
        action_id: Arc<str>,
        until: Instant,
        store: Store,
    ) -> Self {
        Self { event, attempt, action_id, until, store: Some(store) }
    }

    /// A context without a store, for a handler's unit test: its first attempt, with 20 seconds,
    /// and every query fails.
    #[must_use]
    pub fn detached(event: Event) -> Self {
        let action_id = Arc::from(event.id());
        let until = Instant::now() + Duration::from_secs(20);
        Self { event: Arc::new(event), attempt: 1, action_id, until, store: None }
    }

    /// The whole message: identity, attributes, extensions, exact data.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The number of this attempt, from 1, over live deliveries, recoveries and redrives.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The same for every attempt of one message: the idempotency key for a call outside.
    #[must_use]
    pub fn action_id(&self) -> &str {
        &self.action_id
    }

    /// How long this attempt may still take.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Reads committed rows, each as values in the order of its columns. Every query stands for
    /// itself: what it read may have changed by the time the effects commit, which is what
    /// [`Statement::expect_rows`](crate::Statement::expect_rows) is for.
    ///
    /// # Errors
    /// When the store cannot be read, the SQL is wrong or writes, or more than 10,000 rows match.
    pub async fn query(
        &self,
        sql: impl Into<String>,
        params: impl Into<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>, StoreError> {
        match &self.store {
            Some(store) => store.query(sql.into(), params.into()).await,
            None => Err(StoreError::Stopped),
        }
    }
}

/// The open transaction of one delivery, for a handler that must read, decide and write in one.
///
/// It keeps the store's writer for itself, for at most five seconds: call nothing slow while
/// holding it. The inbox key is written last, and everything commits when the handler returns `Ok`.
pub struct Tx {
    session: Session,
    messages: Vec<Message>,
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl Tx {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, messages: Vec::new() }
    }

    pub(crate) fn into_parts(self) -> (Session, Vec<Message>) {
        (self.session, self.messages)
    }

    /// Runs one statement, with `$1`, `$2` … for its parameters, and says how many rows it changed.
    ///
    /// # Errors
    /// Transient: `effect_constraint` or `effect_failed` when the database refuses the statement.
    pub async fn execute(
        &mut self,
        sql: impl Into<String>,
        params: impl Into<Vec<Value>>,
    ) -> Result<u64, HandlerError> {
        self.session.execute(sql.into(), params.into()).await?.map_err(HandlerError::transient)
    }

    /// Runs one query inside the transaction; rows are values in the order of the columns.
    ///
    /// # Errors
    /// When the transaction is over, the SQL is wrong or writes, or more than 10,000 rows match.
    pub async fn query(
        &mut self,
        sql: impl Into<String>,
        params: impl Into<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>, HandlerError> {
        Ok(self.session.query(sql.into(), params.into()).await?)
    }

    /// Adds a message to the outbox of this transaction.
    pub fn publish(&mut self, message: Message) {
        self.messages.push(message);
    }
}
