//! Cases, their attempts and their audit log, and gates, as the store keeps and shows them.

use serde::Serialize;

use crate::clock::Timestamp;
use crate::event::MessageKey;
use crate::gate::Gate;
use crate::outcome::{Category, Code};

/// Who made an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptKind {
    /// A delivery by the sidecar.
    Live,
    /// Automatic recovery.
    Recovery,
    /// An operator.
    Redrive,
}

impl AttemptKind {
    /// The stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Recovery => "recovery",
            Self::Redrive => "redrive",
        }
    }
}

/// One recorded attempt.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    /// Counted from 1 over all kinds.
    pub n: u32,
    /// When it was recorded.
    pub at: Timestamp,
    /// Who made it.
    pub kind: AttemptKind,
    /// The safe code it ended with.
    pub code: Code,
}

/// One act on a case.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// Who: an operator, or `backstop`.
    pub actor: String,
    /// What: `quarantined`, `redrive_requested`, `redriving`, `reopened`, `resolved`, `closed`,
    /// `revealed`, `redrive_refused`.
    pub action: String,
    /// More about it, never payload.
    pub detail: Option<String>,
}

/// A case as it is on disk.
#[derive(Clone, Debug)]
pub(crate) struct CaseRow {
    pub id: String,
    pub key: MessageKey,
    pub status: CaseStatus,
    pub category: Category,
    pub reason: Code,
    pub subscription: String,
    pub pubsub: String,
    pub topic: String,
    pub source: String,
    pub event_id: String,
    pub ty: String,
    pub subject: Option<String>,
    pub traceparent: Option<String>,
    pub sightings: u32,
    pub owner: Option<String>,
    pub review_by: Timestamp,
    pub opened_at: Timestamp,
    pub changed_at: Timestamp,
    pub closed_note: Option<String>,
    pub redrive_requested_at: Option<Timestamp>,
    pub attempts: Vec<Attempt>,
}

/// Where a case stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaseStatus {
    /// Waits for a person.
    Open,
    /// An operator's run is on.
    Redriving,
    /// Its effect has committed.
    Resolved,
    /// A person closed it; nothing runs again.
    Closed,
}

impl CaseStatus {
    /// Every status.
    pub const ALL: [Self; 4] = [Self::Open, Self::Redriving, Self::Resolved, Self::Closed];

    /// The stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Redriving => "redriving",
            Self::Resolved => "resolved",
            Self::Closed => "closed",
        }
    }

    /// The status with that name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// Which cases to list.
#[derive(Clone, Debug, Default)]
pub struct CaseFilter {
    /// Only these statuses; empty means every one.
    pub statuses: Vec<CaseStatus>,
    /// Only this category.
    pub category: Option<Category>,
    /// At most so many: unfinished ones first, then the newest.
    pub limit: u32,
}

/// A gate with what waits at it.
#[derive(Clone, Debug)]
pub(crate) struct GateRow {
    pub subscription: String,
    pub code: Code,
    pub gate: Gate,
    /// Messages that wait at it.
    pub waiting: u32,
    pub last_probe_at: Option<Timestamp>,
}

/// What an operator does with a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAct {
    /// Keeps it closed until it is opened by hand: no probes.
    Hold,
    /// Opens it at once, for all that wait.
    Open,
}

impl GateAct {
    /// The stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Open => "open",
        }
    }
}

/// Whether an operator's request was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// On disk.
    Taken,
    /// Refused, and why; the refusal is in the audit log.
    Refused(&'static str),
    /// No such case.
    Unknown,
}
