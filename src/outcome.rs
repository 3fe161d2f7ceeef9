//! What can become of a message, and why: the closed vocabulary that the store's columns, the
//! metrics, the logs, the command line and the documentation share.
//!
//! **Invariant:** nothing here ever holds payload, credentials or personal data; a [`Code`] is
//! short, snake_case and chosen by a programmer, never taken from an error text.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// Longest accepted [`Code`], in bytes.
pub const CODE_BYTES_MAX: usize = 64;

/// A stable snake_case code that says why something happened, such as `out_of_stock`.
///
/// Codes end up in columns, log fields and metric labels, so they are short and never built from
/// data: lower-case ASCII letters, digits and underscores, beginning with a letter, at most
/// [`CODE_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Code(Cow<'static, str>);

impl Code {
    /// A code known when the program is written.
    ///
    /// # Panics
    /// When the text is not a well-formed code; in a `const` that is a compile error.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        assert!(
            is_well_formed(text.as_bytes()),
            "a code is snake_case ASCII, begins with a letter and has at most 64 bytes"
        );
        Self(Cow::Borrowed(text))
    }

    /// A code from outside the program (a column, another service's answer); `None` when it is
    /// not well-formed, so that foreign text can never reach a log or a label.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_well_formed(text.as_bytes()).then(|| Self(Cow::Owned(text.to_owned())))
    }

    /// The code's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[allow(clippy::indexing_slicing, reason = "within the length, and a const fn has no iterator")]
const fn is_well_formed(text: &[u8]) -> bool {
    if text.is_empty() || text.len() > CODE_BYTES_MAX || !text[0].is_ascii_lowercase() {
        return false;
    }
    let mut at = 1;
    while at < text.len() {
        let byte = text[at];
        if !(byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            return false;
        }
        at += 1;
    }
    true
}

/// Why a case was opened; decides who has to do what about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// The event can never fit its contract: to be corrected at its source or closed.
    Invalid,
    /// The handler said never.
    Rejected,
    /// Every automatic attempt failed.
    Exhausted,
    /// A call outside the transaction may or may not have happened: to be reconciled.
    OutcomeUnknown,
    /// Same identity as an earlier message, other data.
    ReusedId,
    /// Its `expiration` had passed before it could be handled.
    Expired,
    /// No handler of the subscription takes its type.
    Unrouted,
    /// A dead letter that belongs to another topic.
    Foreign,
    /// Larger than the subscription accepts.
    TooLarge,
    /// Every run of it ended with the process.
    CrashedProcess,
    /// The broker refused a message of the outbox for good.
    PublishRejected,
}

impl Category {
    /// Every category, in the order of the documentation.
    pub const ALL: [Self; 11] = [
        Self::Invalid,
        Self::Rejected,
        Self::Exhausted,
        Self::OutcomeUnknown,
        Self::ReusedId,
        Self::Expired,
        Self::Unrouted,
        Self::Foreign,
        Self::TooLarge,
        Self::CrashedProcess,
        Self::PublishRejected,
    ];

    /// The stable snake_case name: column, label and command-line value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Rejected => "rejected",
            Self::Exhausted => "exhausted",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::ReusedId => "reused_id",
            Self::Expired => "expired",
            Self::Unrouted => "unrouted",
            Self::Foreign => "foreign",
            Self::TooLarge => "too_large",
            Self::CrashedProcess => "crashed_process",
            Self::PublishRejected => "publish_rejected",
        }
    }

    /// Why a case of this category may not be redriven; `None` when it may.
    #[must_use]
    pub const fn redrive_blocked(self) -> Option<&'static str> {
        match self {
            Self::OutcomeUnknown => {
                Some("its outcome is unknown: reconcile it with the destination, then close it")
            }
            Self::PublishRejected => Some(
                "the sidecar refused it, not a handler: mend the component and publish it anew",
            ),
            Self::Foreign => Some("it belongs to another topic"),
            Self::Invalid
            | Self::Rejected
            | Self::Exhausted
            | Self::ReusedId
            | Self::Expired
            | Self::Unrouted
            | Self::TooLarge
            | Self::CrashedProcess => None,
        }
    }

    /// The category with that name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.as_str() == text)
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What became of one message of one delivery. Not an error: every delivery has one.
///
/// The sidecar's answer follows from it in exactly one place (`sidecar::callback`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its effects, its inbox row and its outgoing messages have committed.
    Processed,
    /// It had been processed before; nothing ran.
    Duplicate,
    /// The store already owns it (recovering, running, quarantined, closed, redriving), or it is
    /// over; nothing ran.
    Linked,
    /// Its type is one the subscription declares it ignores.
    Ignored,
    /// A case about it is on disk.
    Quarantined(Category),
    /// The failure and the event's bytes are on disk, and recovery will run it.
    Recovering,
    /// The failure and the event's bytes are on disk, and the sidecar is to retry.
    Retrying(Code),
    /// A twin of it was still in flight at the deadline; nothing was written.
    Busy,
    /// Nothing could be written; the sidecar keeps it.
    StoreAway,
}

impl Outcome {
    /// The stable snake_case name, for labels: a closed set.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Processed => "processed",
            Self::Duplicate => "duplicate",
            Self::Linked => "linked",
            Self::Ignored => "ignored",
            Self::Quarantined(_) => "quarantined",
            Self::Recovering => "recovering",
            Self::Retrying(_) => "retrying",
            Self::Busy => "busy",
            Self::StoreAway => "store_away",
        }
    }
}

/// Declares our own codes once: a constant each, and the table the documentation is made from.
macro_rules! reasons {
    ($($name:ident = $text:literal, $meaning:literal;)+) => {
        $(#[doc = $meaning] pub const $name: Code = Code::new($text);)+
        /// Every code of ours with its meaning, in the order of the documentation.
        pub const ALL: &[(&str, &str)] = &[$(($text, $meaning)),+];
    };
}

/// The codes Backstop itself gives; an application adds its own with [`Code::new`].
pub mod reason {
    use super::Code;

    reasons! {
        MALFORMED_JSON = "malformed_json", "The bytes, or the data under a JSON content type, are not JSON.";
        INVALID_UTF8 = "invalid_utf8", "The bytes are not UTF-8, so they cannot be JSON.";
        NOT_A_CLOUDEVENT = "not_a_cloudevent", "JSON without a `specversion`: a bare payload on a topic that expects CloudEvents.";
        EVENT_GRID_SCHEMA = "event_grid_schema", "An event in the Event Grid schema; deliver it in the CloudEvents schema instead.";
        UNSUPPORTED_SPECVERSION = "unsupported_specversion", "A `specversion` other than 1.0.";
        MISSING_ID = "missing_id", "No `id`, or a blank one.";
        MISSING_SOURCE = "missing_source", "No `source`, or a blank one.";
        MISSING_TYPE = "missing_type", "No `type`, or a blank one.";
        INVALID_ATTRIBUTE = "invalid_attribute", "A required attribute or a content type that is not a string (an `id` that is a number, say), or an extension that no value can hold.";
        ID_TOO_LONG = "id_too_long", "An `id` above 1,024 bytes.";
        ATTRIBUTE_TOO_LONG = "attribute_too_long", "A `source`, `type` or `subject` above 2,048 bytes.";
        AMBIGUOUS_DATA = "ambiguous_data", "Both `data` and `data_base64`.";
        INVALID_BASE64 = "invalid_base64", "A `data_base64` that is not base64.";
        TOO_DEEP = "too_deep", "JSON nested deeper than 127 levels.";
        BATCH_TOO_LONG = "batch_too_long", "A JSON array with more than 10,000 events.";
        DATA_MISSING = "data_missing", "No data, where the type expects some.";
        CONTENT_TYPE_NOT_JSON = "content_type_not_json", "A content type that is not JSON, where the handler takes JSON.";
        NESTED_ENVELOPE = "nested_envelope", "The data is itself a whole CloudEvent: wrapped twice on its way.";
        SCHEMA_VIOLATION = "schema_violation", "The data does not satisfy the JSON Schema of its type.";
        DATA_NOT_DECODABLE = "data_not_decodable", "The data satisfies its schema but not the handler's own type.";
        UNKNOWN_TYPE = "unknown_type", "No handler of the subscription takes this `type`.";
        UNKNOWN_TOPIC = "unknown_topic", "A delivery for a topic that no subscription of this process takes.";
        EXPIRED = "expired", "Its `expiration` had passed.";
        FOREIGN_TOPIC = "foreign_topic", "A dead letter that was published to another topic.";
        REUSED_ID = "reused_id", "The identity of an earlier message with other data.";
        HANDLER_PANICKED = "handler_panicked", "The handler panicked.";
        HANDLER_TIMED_OUT = "handler_timed_out", "The handler was still running at its time limit.";
        HANDLER_FAILED = "handler_failed", "The handler returned an error without a code of its own.";
        HANDLER_MISSING = "handler_missing", "A stored message whose subscription or type this process does not handle.";
        EFFECT_CONSTRAINT = "effect_constraint", "An effect violated a constraint of the database.";
        EFFECT_FAILED = "effect_failed", "An effect's SQL failed.";
        EFFECT_ROWS = "effect_rows", "An effect changed another number of rows than it said, also when run again.";
        TRANSACTION_TIMED_OUT = "transaction_timed_out", "An interactive transaction passed its time limit.";
        RUN_LOST = "run_lost", "A run that never reported: its process ended, or its lease ran out.";
        LEASE_TOO_SHORT = "lease_too_short", "Too little of the lease was left to begin a run; nothing was called or counted.";
        DRAINING = "draining", "The process was stopping before the run began; nothing was called or counted.";
        RETRIES_EXHAUSTED = "retries_exhausted", "The sidecar gave up retrying; recovery takes over.";
        RECOVERIES_EXHAUSTED = "recoveries_exhausted", "Every automatic recovery is spent.";
        RECOVERY_AGE_EXCEEDED = "recovery_age_exceeded", "Too old for another automatic recovery.";
        STORE_AWAY = "store_away", "The store could not be read or written; no attempt is counted.";
        OUTCOME_UNKNOWN = "outcome_unknown", "An outside call may or may not have happened, and it may not be repeated unasked.";
        PUBLISH_REJECTED = "publish_rejected", "The sidecar refused the outgoing message for good.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_short_snake_case_and_begins_with_a_letter() {
        for good in ["a", "out_of_stock", "http_503", &"x".repeat(CODE_BYTES_MAX)] {
            assert!(Code::parse(good).is_some(), "{good}");
        }
        for bad in ["", "_a", "1a", "Out", "a-b", "a b", "é", &"x".repeat(CODE_BYTES_MAX + 1)] {
            assert!(Code::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn every_category_has_a_name_that_leads_back_to_it() {
        for category in Category::ALL {
            assert_eq!(Category::parse(category.as_str()), Some(category));
        }
        assert_eq!(Category::parse("nonsense"), None);
    }

    #[test]
    fn the_page_of_codes_shows_every_code_and_category() {
        let page = include_str!("../docs/CODES.md");
        let mut rows = String::new();
        for (code, meaning) in reason::ALL {
            rows.push_str("| `");
            rows.push_str(code);
            rows.push_str("` | ");
            rows.push_str(meaning);
            rows.push_str(" |\n");
        }
        assert!(page.contains(&rows), "docs/CODES.md needs these rows:\n{rows}");
        for category in Category::ALL {
            assert!(page.contains(&format!("| `{category}` |")), "{category}");
        }
    }
}
