//! The exception queue as people see it: each case with what may be done about it next, and the
//! verbs. The command line is a thin skin over this.
//!
//! **Invariant:** a view holds no payload; showing it is a verb of its own, and audited.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;

use crate::clock::Timestamp;
use crate::outcome::{Category, Code};
use crate::store::{
    Asked, Attempt, AttemptKind, AuditEntry, CaseFilter, CaseRow, CaseStatus, Store, StoreError,
};

/// One case.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// Its id; any unique beginning of it names it.
    pub id: String,
    /// Who has to do what about it.
    pub category: Category,
    /// Why.
    pub reason: Code,
    /// Where it stands.
    pub status: CaseStatus,
    /// The event's `source`; empty when it could not be read.
    pub source: String,
    /// The event's `id`; empty when it could not be read.
    pub event_id: String,
    /// The topic it was published to.
    pub topic: String,
    /// Handler runs by deliveries and automatic recovery.
    pub attempts: usize,
    /// The pub/sub component it came by.
    pub pubsub: String,
    /// The subscription it is for.
    pub subscription: String,
    /// The event's `type`; empty when it could not be read.
    #[serde(rename = "type")]
    pub ty: String,
    /// The event's `subject`.
    pub subject: Option<String>,
    /// Its W3C trace context.
    pub traceparent: Option<String>,
    /// What was to be done with it.
    pub intended_action: String,
    /// The last thing known to have happened to it.
    pub last_confirmed_stage: &'static str,
    /// Every recorded attempt, redrives included: time, kind, code.
    pub attempt_history: Vec<Attempt>,
    /// How often the same bytes have been seen.
    pub sightings: u32,
    /// Who works on it.
    pub owner: Option<String>,
    /// By when a person should have looked at it.
    pub review_by: Timestamp,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// When it last changed.
    pub changed_at: Timestamp,
    /// What is best done next.
    pub next_action: &'static str,
    /// What may not be done, and why.
    pub blocked: Vec<Blocked>,
    /// What the person who closed it wrote.
    pub closed_note: Option<String>,
}

/// An action that is not permitted.
#[derive(Clone, Debug, Serialize)]
pub struct Blocked {
    /// The action.
    pub action: &'static str,
    /// Why not.
    pub why: &'static str,
}

/// A payload that somebody asked to see.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "encoding", content = "content", rename_all = "snake_case")]
pub enum Payload {
    /// It is text.
    Utf8(String),
    /// It is not, so it is shown in base64.
    Base64(String),
}

/// Why a verb did nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExceptionError {
    /// No case has an id that begins so.
    #[error("no case has an id that begins with `{0}`; `backstop exceptions list` shows them")]
    Unknown(String),
    /// More than one case has an id that begins so.
    #[error("more than one case has an id that begins with `{0}`; give more of it")]
    Ambiguous(String),
    /// It is not permitted now; the refusal is in the audit log.
    #[error("case {id}: {why}")]
    Refused {
        /// The case.
        id: String,
        /// Why.
        why: &'static str,
    },
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What became of a redrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Redriven {
    /// Its effect has committed.
    Resolved,
    /// It failed; the case is open again.
    Reopened,
    /// It has not run yet.
    Waiting,
}

impl Store {
    /// The cases that match: unfinished ones first, then the newest.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub async fn exceptions(&self, filter: CaseFilter) -> Result<Vec<Case>, StoreError> {
        Ok(self.cases(filter).await?.into_iter().map(view).collect())
    }

    /// The case whose id begins with `prefix`.
    ///
    /// # Errors
    /// [`ExceptionError::Unknown`] or [`ExceptionError::Ambiguous`], or the store's.
    pub async fn exception(&self, prefix: &str) -> Result<Case, ExceptionError> {
        let mut found = self.cases_by_prefix(prefix.to_owned()).await?;
        match (found.pop(), found.is_empty()) {
            (Some(case), true) => Ok(view(case)),
            (Some(_), false) => Err(ExceptionError::Ambiguous(prefix.to_owned())),
            (None, _) => Err(ExceptionError::Unknown(prefix.to_owned())),
        }
    }

    /// What was done about a case, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub async fn exception_audit(&self, id: &str) -> Result<Vec<AuditEntry>, StoreError> {
        self.audit(id.to_owned()).await
    }

    /// The exact payload of a case; the look is written to the audit log. `None` when none is kept.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read or the look cannot be written down.
    pub async fn reveal_payload(
        &self,
        id: &str,
        actor: &str,
    ) -> Result<Option<Payload>, StoreError> {
        let stored = self.reveal(id.to_owned(), actor.to_owned()).await?;
        Ok(stored.map(|stored| match std::str::from_utf8(&stored.body) {
            Ok(text) => Payload::Utf8(text.to_owned()),
            Err(_) => Payload::Base64(BASE64.encode(&stored.body)),
        }))
    }

    /// Asks for a case's message to be run again, by the service, once. A failure opens the case
    /// again; automatic recovery does not apply.
    ///
    /// # Errors
    /// [`ExceptionError::Refused`] when it is not permitted now, or the store's.
    pub async fn redrive_exception(&self, id: &str, actor: &str) -> Result<(), ExceptionError> {
        taken(id, &self.request_redrive(id.to_owned(), actor.to_owned()).await?)
    }

    /// Closes a case with a note: nothing runs again, a late delivery included.
    ///
    /// # Errors
    /// [`ExceptionError::Refused`] when it is not permitted now, or the store's.
    pub async fn close_exception(
        &self,
        id: &str,
        actor: &str,
        note: &str,
    ) -> Result<(), ExceptionError> {
        taken(id, &self.close(id.to_owned(), actor.to_owned(), note.to_owned()).await?)
    }

    /// Waits until a redrive that was asked for has ended, at most `patience`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn redrive_ended(
        &self,
        id: &str,
        patience: Duration,
    ) -> Result<Redriven, ExceptionError> {
        const LOOK_EVERY: Duration = Duration::from_millis(100);
        let until = tokio::time::Instant::now() + patience;
        loop {
            let rows = self.cases_by_prefix(id.to_owned()).await?;
            let case = rows.first().ok_or_else(|| ExceptionError::Unknown(id.to_owned()))?;
            match case.status {
                CaseStatus::Resolved => return Ok(Redriven::Resolved),
                CaseStatus::Closed => return Ok(Redriven::Reopened),
                CaseStatus::Open if case.redrive_requested_at.is_none() => {
                    return Ok(Redriven::Reopened);
                }
                CaseStatus::Open | CaseStatus::Redriving => {}
            }
            if tokio::time::Instant::now() >= until {
                return Ok(Redriven::Waiting);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn taken(id: &str, asked: &Asked) -> Result<(), ExceptionError> {
    match *asked {
        Asked::Taken => Ok(()),
        Asked::Unknown => Err(ExceptionError::Unknown(id.to_owned())),
        Asked::Refused(why) => Err(ExceptionError::Refused { id: id.to_owned(), why }),
    }
}

const fn next_action(category: Category) -> &'static str {
    match category {
        Category::Invalid => "mend the publisher and have it publish a correct event; then close",
        Category::Rejected => "settle it with whoever owns the data; then redrive or close",
        Category::Exhausted => "mend what failed; then redrive",
        Category::OutcomeUnknown => "ask the destination whether it happened; then close",
        Category::ReusedId => {
            "have the publisher give each event its own id; then redrive or close"
        }
        Category::Expired => "decide whether it still matters; then redrive or close",
        Category::Unrouted => {
            "deploy a handler for its type, or declare the type ignored; then redrive or close"
        }
        Category::Foreign => "find who publishes to this dead-letter topic; then close",
        Category::TooLarge => "raise the limit or shrink the event; then redrive or close",
        Category::CrashedProcess => "find out why it ends the process; then redrive",
        Category::PublishRejected => "mend the component or the message; then close",
    }
}

/// The last thing known to have happened, by what opened the case.
const fn last_confirmed_stage(category: Category) -> &'static str {
    match category {
        Category::Invalid | Category::Foreign | Category::TooLarge => "received",
        Category::ReusedId | Category::Expired | Category::Unrouted => "decoded",
        Category::Rejected | Category::Exhausted | Category::CrashedProcess => "validated",
        Category::OutcomeUnknown => "called",
        Category::PublishRejected => "committed",
    }
}

fn view(row: CaseRow) -> Case {
    let (next, blocked) = match row.status {
        CaseStatus::Open => {
            let why = row.category.redrive_blocked();
            (
                next_action(row.category),
                why.map(|why| Blocked { action: "redrive", why }).into_iter().collect(),
            )
        }
        CaseStatus::Redriving => {
            let why = "a run is on";
            (
                "wait for the run",
                vec![Blocked { action: "redrive", why }, Blocked { action: "close", why }],
            )
        }
        CaseStatus::Resolved | CaseStatus::Closed => {
            let why = "the case is over";
            ("none", vec![Blocked { action: "redrive", why }, Blocked { action: "close", why }])
        }
    };
    let attempts =
        row.attempts.iter().filter(|attempt| attempt.kind != AttemptKind::Redrive).count();
    Case {
        id: row.id,
        category: row.category,
        reason: row.reason,
        status: row.status,
        source: row.source,
        event_id: row.event_id,
        topic: row.topic,
        attempts,
        pubsub: row.pubsub,
        intended_action: format!(
            "handle {} in {}",
            if row.ty.is_empty() { "an event" } else { &row.ty },
            row.subscription
        ),
        subscription: row.subscription,
        ty: row.ty,
        subject: row.subject,
        traceparent: row.traceparent,
        last_confirmed_stage: last_confirmed_stage(row.category),
        attempt_history: row.attempts,
        sightings: row.sightings,
        owner: row.owner,
        review_by: row.review_by,
        opened_at: row.opened_at,
        changed_at: row.changed_at,
        next_action: next,
        blocked,
        closed_note: row.closed_note,
    }
}
