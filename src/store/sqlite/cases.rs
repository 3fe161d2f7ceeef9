//! Cases and the audit log.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params, params_from_iter};
use uuid::Uuid;

use super::{Sqlite, ledger, rows};
use crate::clock::Timestamp;
use crate::custody::{CaseOpened, Happening, Standing, State};
use crate::event::{MessageKey, Stored};
use crate::outcome::{Category, Code};
use crate::store::sqlite::worker::Kept;
use crate::store::{
    Asked, Attempt, AttemptKind, AuditEntry, CaseFilter, CaseRow, CaseStatus, Incoming,
    Quarantined, StoreError, Written,
};

/// How long a person has before a case is overdue.
const REVIEW_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Who acts when no person does.
const AUTOMATIC: &str = "backstop";

impl Sqlite {
    pub(crate) async fn cases(&self, filter: CaseFilter) -> Result<Vec<CaseRow>, StoreError> {
        let list = move |connection: &Connection| {
            let statuses: Vec<&str> =
                filter.statuses.iter().map(|status| status.as_str()).collect();
            let mut text = format!("{SELECT_CASE} WHERE (?1 IS NULL OR category = ?1)");
            if !statuses.is_empty() {
                let places: Vec<String> =
                    (0..statuses.len()).map(|n| format!("?{}", n + 3)).collect();
                let _ = write!(text, " AND status IN ({})", places.join(", "));
            }
            text.push_str(
                " ORDER BY status IN ('open', 'redriving') DESC, opened_at DESC, id DESC LIMIT ?2",
            );
            let category = filter.category.map(Category::as_str);
            let limit = filter.limit.to_string();
            let bound =
                [category, Some(limit.as_str())].into_iter().chain(statuses.into_iter().map(Some));
            select_cases(connection, &text, params_from_iter(bound))
        };
        self.worker.read(list).await
    }

    pub(crate) async fn cases_by_prefix(&self, prefix: String) -> Result<Vec<CaseRow>, StoreError> {
        let find = move |connection: &Connection| {
            let text =
                format!("{SELECT_CASE} WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id LIMIT 2");
            select_cases(connection, &text, params![prefix])
        };
        self.worker.read(find).await
    }

    pub(crate) async fn audit(&self, exception_id: String) -> Result<Vec<AuditEntry>, StoreError> {
        let read = move |connection: &Connection| {
            let mut statement = connection
                .prepare_cached("SELECT at, actor, action, detail FROM audit WHERE exception_id = ?1 ORDER BY id")
                .map_err(StoreError::away)?;
            let rows = statement
                .query_map([exception_id], |row| {
                    Ok(AuditEntry {
                        at: Timestamp(row.get(0)?),
                        actor: row.get(1)?,
                        action: row.get(2)?,
                        detail: row.get(3)?,
                    })
                })
                .map_err(StoreError::away)?;
            rows.collect::<Result<_, _>>().map_err(StoreError::away)
        };
        self.worker.read(read).await
    }

    pub(crate) async fn reveal(
        &self,
        exception_id: String,
        actor: String,
    ) -> Result<Option<Stored>, StoreError> {
        let reveal = move |connection: &Connection, now| {
            let stored = connection
                .query_row(
                    "SELECT attributes, body FROM message
                     WHERE key = (SELECT key FROM exception WHERE id = ?1)",
                    [&exception_id],
                    |row| {
                        let body: Vec<u8> = row.get(1)?;
                        Ok(Stored { attributes: row.get(0)?, body: Bytes::from(body) })
                    },
                )
                .optional()
                .map_err(StoreError::away)?;
            if stored.is_some() {
                log(connection, &exception_id, &actor, "revealed", None, now)?;
            }
            Ok(Kept::Keep(stored))
        };
        self.worker.write(reveal).await
    }

    pub(crate) async fn request_redrive(
        &self,
        exception_id: String,
        actor: String,
    ) -> Result<Asked, StoreError> {
        let ask = move |connection: &Connection, now| {
            request_redrive(connection, &exception_id, &actor, now)
        };
        self.worker.write(ask).await
    }

    pub(crate) async fn close(
        &self,
        exception_id: String,
        actor: String,
        note: String,
    ) -> Result<Asked, StoreError> {
        let limits = self.limits;
        let close = move |connection: &Connection, now| {
            let ledger = ledger::Ledger { connection, limits: &limits, now };
            close(&ledger, &exception_id, &actor, &note)
        };
        self.worker.write(close).await
    }
}

/// Takes an operator's request for a redrive, or refuses it; either is in the audit log.
pub(super) fn request_redrive(
    connection: &Connection,
    exception_id: &str,
    actor: &str,
    now: Timestamp,
) -> Result<Kept<Asked>, StoreError> {
    let Some((key, status, category)) = standing(connection, exception_id)? else {
        return Ok(Kept::Undo(Asked::Unknown));
    };
    let refusal = match status {
        CaseStatus::Resolved => Some("it is resolved"),
        CaseStatus::Closed => Some("it is closed"),
        CaseStatus::Redriving => Some("it is being redriven"),
        CaseStatus::Open => category.redrive_blocked(),
    };
    if let Some(why) = refusal {
        log(connection, exception_id, actor, "redrive_refused", Some(why), now)?;
        return Ok(Kept::Keep(Asked::Refused(why)));
    }
    connection
        .execute(
            "UPDATE exception SET redrive_requested_at = ?2, redrive_requested_by = ?3
             WHERE key = ?1 AND status = 'open'",
            params![key.0, now.0, actor],
        )
        .map_err(StoreError::away)?;
    log(connection, exception_id, actor, "redrive_requested", None, now)?;
    Ok(Kept::Keep(Asked::Taken))
}

/// Closes a case, or refuses to; either is in the audit log.
pub(super) fn close(
    ledger: &ledger::Ledger<'_>,
    exception_id: &str,
    actor: &str,
    note: &str,
) -> Result<Kept<Asked>, StoreError> {
    let (connection, now) = (ledger.connection, ledger.now);
    let Some((key, status, _)) = standing(connection, exception_id)? else {
        return Ok(Kept::Undo(Asked::Unknown));
    };
    let refusal = match status {
        CaseStatus::Resolved => Some("it is resolved"),
        CaseStatus::Closed => Some("it is closed"),
        CaseStatus::Redriving => Some("it is being redriven"),
        CaseStatus::Open => None,
    };
    if let Some(why) = refusal {
        log(connection, exception_id, actor, "close_refused", Some(why), now)?;
        return Ok(Kept::Keep(Asked::Refused(why)));
    }
    let Some(incoming) = rows::load_incoming(connection, key)? else {
        return Err(StoreError::Corrupt("an open case without its message".into()));
    };
    match ledger.happen(&incoming, &Happening::Closed, None)? {
        Written::Now(State::Closed) => {}
        Written::Removed | Written::Nothing(Standing::Done) => {
            let why = "its effect has committed";
            log(connection, exception_id, actor, "close_refused", Some(why), now)?;
            return Ok(Kept::Keep(Asked::Refused(why)));
        }
        _ => {
            return Err(StoreError::Corrupt(
                "an open case whose message is not quarantined".into(),
            ));
        }
    }
    connection
        .execute(
            "UPDATE exception SET status = 'closed', closed_note = ?2, changed_at = ?3,
                    redrive_requested_at = NULL WHERE id = ?1",
            params![exception_id, note, now.0],
        )
        .map_err(StoreError::away)?;
    log(connection, exception_id, actor, "closed", None, now)?;
    Ok(Kept::Keep(Asked::Taken))
}

/// Opens the message's case, or opens it again after a redrive, with its audit entry.
pub(super) fn open(
    connection: &Connection,
    incoming: &Incoming,
    opened: &CaseOpened,
    now: Timestamp,
) -> Result<Quarantined, StoreError> {
    let key = incoming.key.0;
    let unfinished: Option<(String, String)> = connection
        .query_row(
            "SELECT id, category FROM exception WHERE key = ?1 AND status IN ('open', 'redriving')",
            [key],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .map_err(StoreError::away)?;
    let reopened = unfinished.is_some();
    let (id, category) = if let Some((id, category)) = unfinished {
        let category = opened.category.map_or_else(|| parse_category(&category), Ok)?;
        connection
            .execute(
                "UPDATE exception SET status = 'open', category = ?2, reason = ?3, changed_at = ?4
                 WHERE id = ?1",
                params![id, category.as_str(), opened.reason.as_str(), now.0],
            )
            .map_err(StoreError::away)?;
        log(connection, &id, AUTOMATIC, "reopened", Some(opened.reason.as_str()), now)?;
        (id, category)
    } else {
        let id = Uuid::now_v7().to_string();
        let category = opened.category.unwrap_or(Category::Exhausted);
        insert(connection, &id, incoming, category, &opened.reason, now)?;
        log(connection, &id, AUTOMATIC, "quarantined", Some(opened.reason.as_str()), now)?;
        (id, category)
    };
    let attempts = connection
        .query_row("SELECT count(*) FROM attempt WHERE key = ?1", [key], |row| row.get(0))
        .map_err(StoreError::away)?;
    Ok(Quarantined {
        exception_id: id,
        subscription: incoming.subscription.clone(),
        source: incoming.source.clone(),
        event_id: incoming.event_id.clone(),
        category,
        reason: opened.reason.clone(),
        attempts,
        reopened,
    })
}

fn insert(
    connection: &Connection,
    id: &str,
    incoming: &Incoming,
    category: Category,
    reason: &Code,
    now: Timestamp,
) -> Result<(), StoreError> {
    connection
        .execute(
            "INSERT INTO exception (id, key, status, category, reason, subscription, pubsub, topic,
                 source, event_id, type, subject, traceparent, sightings, review_by, opened_at, changed_at)
             VALUES (?1, ?2, 'open', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 1, ?13, ?14, ?14)",
            params![
                id, incoming.key.0, category.as_str(), reason.as_str(), incoming.subscription,
                incoming.pubsub, incoming.topic, incoming.source, incoming.event_id, incoming.ty,
                incoming.subject, incoming.traceparent, now.plus(REVIEW_WITHIN).0, now.0
            ],
        )
        .map(drop)
        .map_err(StoreError::away)
}

/// The same bytes were seen again, and are filed already.
pub(super) fn count_sighting(connection: &Connection, key: MessageKey) -> Result<(), StoreError> {
    connection
        .execute(
            "UPDATE exception SET sightings = sightings + 1
             WHERE id = (SELECT id FROM exception WHERE key = ?1 ORDER BY opened_at DESC LIMIT 1)",
            [key.0],
        )
        .map(drop)
        .map_err(StoreError::away)
}

/// Its effect has committed. Says whether there was an unfinished case.
pub(super) fn resolve(
    connection: &Connection,
    key: MessageKey,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let resolved: Option<String> = connection
        .query_row(
            "UPDATE exception SET status = 'resolved', changed_at = ?2, redrive_requested_at = NULL
             WHERE key = ?1 AND status IN ('open', 'redriving') RETURNING id",
            params![key.0, now.0],
            |row| row.get(0),
        )
        .optional()
        .map_err(StoreError::away)?;
    match resolved {
        Some(id) => log(connection, &id, AUTOMATIC, "resolved", None, now).map(|()| true),
        None => Ok(false),
    }
}

/// The request has been seen; it is not carried out twice.
pub(super) fn take_request(connection: &Connection, key: MessageKey) -> Result<(), StoreError> {
    connection
        .execute("UPDATE exception SET redrive_requested_at = NULL WHERE key = ?1", [key.0])
        .map(drop)
        .map_err(StoreError::away)
}

/// An operator's run is on.
pub(super) fn redriving(
    connection: &Connection,
    key: MessageKey,
    now: Timestamp,
) -> Result<(), StoreError> {
    let id: Option<String> = connection
        .query_row(
            "UPDATE exception SET status = 'redriving', changed_at = ?2
             WHERE key = ?1 AND status = 'open' RETURNING id",
            params![key.0, now.0],
            |row| row.get(0),
        )
        .optional()
        .map_err(StoreError::away)?;
    match id {
        Some(id) => log(connection, &id, AUTOMATIC, "redriving", None, now),
        None => Ok(()),
    }
}

fn log(
    connection: &Connection,
    exception_id: &str,
    actor: &str,
    action: &str,
    detail: Option<&str>,
    now: Timestamp,
) -> Result<(), StoreError> {
    connection
        .execute(
            "INSERT INTO audit (at, actor, action, exception_id, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![now.0, actor, action, exception_id, detail],
        )
        .map(drop)
        .map_err(StoreError::away)
}

fn standing(
    connection: &Connection,
    id: &str,
) -> Result<Option<(MessageKey, CaseStatus, Category)>, StoreError> {
    let found: Option<([u8; 16], String, String)> = connection
        .query_row("SELECT key, status, category FROM exception WHERE id = ?1", [id], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()
        .map_err(StoreError::away)?;
    match found {
        None => Ok(None),
        Some((key, status, category)) => {
            Ok(Some((MessageKey(key), parse_status(&status)?, parse_category(&category)?)))
        }
    }
}

const SELECT_CASE: &str = "SELECT id, key, status, category, reason, subscription, pubsub, topic,
    source, event_id, type, subject, traceparent, sightings, owner, review_by, opened_at, changed_at,
    closed_note, redrive_requested_at FROM exception";

fn select_cases(
    connection: &Connection,
    text: &str,
    bound: impl rusqlite::Params,
) -> Result<Vec<CaseRow>, StoreError> {
    let mut statement = connection.prepare(text).map_err(StoreError::away)?;
    let mut rows = statement.query(bound).map_err(StoreError::away)?;
    let mut cases = Vec::new();
    while let Some(row) = rows.next().map_err(StoreError::away)? {
        let mut case = read_case(row).map_err(StoreError::away)??;
        case.attempts = attempts(connection, case.key)?;
        cases.push(case);
    }
    Ok(cases)
}

fn read_case(row: &SqlRow<'_>) -> rusqlite::Result<Result<CaseRow, StoreError>> {
    let status: String = row.get(2)?;
    let category: String = row.get(3)?;
    let reason: String = row.get(4)?;
    let (status, category, reason) =
        match (parse_status(&status), parse_category(&category), parse_code(&reason)) {
            (Ok(status), Ok(category), Ok(reason)) => (status, category, reason),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => return Ok(Err(error)),
        };
    Ok(Ok(CaseRow {
        id: row.get(0)?,
        key: MessageKey(row.get(1)?),
        status,
        category,
        reason,
        subscription: row.get(5)?,
        pubsub: row.get(6)?,
        topic: row.get(7)?,
        source: row.get(8)?,
        event_id: row.get(9)?,
        ty: row.get(10)?,
        subject: row.get(11)?,
        traceparent: row.get(12)?,
        sightings: row.get(13)?,
        owner: row.get(14)?,
        review_by: Timestamp(row.get(15)?),
        opened_at: Timestamp(row.get(16)?),
        changed_at: Timestamp(row.get(17)?),
        closed_note: row.get(18)?,
        redrive_requested_at: row.get::<_, Option<i64>>(19)?.map(Timestamp),
        attempts: Vec::new(),
    }))
}

fn attempts(connection: &Connection, key: MessageKey) -> Result<Vec<Attempt>, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT n, at, kind, code FROM attempt WHERE key = ?1 ORDER BY n")
        .map_err(StoreError::away)?;
    let rows = statement
        .query_map([key.0], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?))
        })
        .map_err(StoreError::away)?;
    rows.map(|row| {
        let (n, at, kind, code) = row.map_err(StoreError::away)?;
        let kind = match kind.as_str() {
            "live" => AttemptKind::Live,
            "recovery" => AttemptKind::Recovery,
            _ => AttemptKind::Redrive,
        };
        Ok(Attempt { n, at: Timestamp(at), kind, code: parse_code(&code)? })
    })
    .collect()
}

fn parse_status(text: &str) -> Result<CaseStatus, StoreError> {
    CaseStatus::parse(text).ok_or_else(|| StoreError::Corrupt("a case's status".into()))
}

fn parse_category(text: &str) -> Result<Category, StoreError> {
    Category::parse(text).ok_or_else(|| StoreError::Corrupt("a case's category".into()))
}

fn parse_code(text: &str) -> Result<Code, StoreError> {
    Code::parse(text).ok_or_else(|| StoreError::Corrupt("a stored code".into()))
}
