//! Cases and the audit log.

use std::time::Duration;

use uuid::Uuid;

use super::ledger::Ledger;
use super::rows;
use super::sql::{Param, Record, Sql, params};
use crate::clock::Timestamp;
use crate::custody::{CaseOpened, Happening, Standing, State};
use crate::event::{MessageKey, Stored};
use crate::outcome::{Category, Code};
use crate::store::writer::Kept;
use crate::store::{
    Asked, Attempt, AttemptKind, AuditEntry, CaseFilter, CaseRow, CaseStatus, Incoming,
    Quarantined, StoreError, Written,
};

/// How long a person has before a case is overdue.
const REVIEW_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Who acts when no person does.
const AUTOMATIC: &str = "backstop";

/// Cases by filter, unfinished ones first, then the newest.
pub(super) fn list(sql: &dyn Sql, filter: &CaseFilter) -> Result<Vec<CaseRow>, StoreError> {
    let mut params: Vec<Param<'_>> = vec![filter.limit.into()];
    let mut conditions = Vec::new();
    if let Some(category) = filter.category {
        params.push(category.as_str().into());
        conditions.push(format!("category = ${}", params.len()));
    }
    if !filter.statuses.is_empty() {
        let mut places = Vec::new();
        for status in &filter.statuses {
            params.push(status.as_str().into());
            places.push(format!("${}", params.len()));
        }
        conditions.push(format!("status IN ({})", places.join(", ")));
    }
    let condition = if conditions.is_empty() {
        String::new()
    } else {
        format!("WHERE {}", conditions.join(" AND "))
    };
    let text = format!(
        "{SELECT_CASE} {condition}
         ORDER BY status IN ('open', 'redriving') DESC, opened_at DESC, id DESC LIMIT $1"
    );
    select_cases(sql, &text, &params)
}

/// The cases whose id begins with `prefix`, at most two.
pub(super) fn by_prefix(sql: &dyn Sql, prefix: &str) -> Result<Vec<CaseRow>, StoreError> {
    let length = i64::try_from(prefix.chars().count()).unwrap_or(i64::MAX);
    let text = format!("{SELECT_CASE} WHERE substr(id, 1, $1) = $2 ORDER BY id LIMIT 2");
    select_cases(sql, &text, params![length, prefix])
}

/// What was done about a case, oldest first.
pub(super) fn audit(sql: &dyn Sql, exception_id: &str) -> Result<Vec<AuditEntry>, StoreError> {
    let found = sql.records(
        "SELECT at, actor, action, detail FROM audit WHERE exception_id = $1 ORDER BY id",
        params![exception_id],
    )?;
    found
        .into_iter()
        .map(|mut record| {
            Ok(AuditEntry {
                at: record.take()?,
                actor: record.take()?,
                action: record.take()?,
                detail: record.take()?,
            })
        })
        .collect()
}

/// The exact bytes of a case's message; that they were shown is in the audit log.
pub(super) fn reveal(
    sql: &dyn Sql,
    exception_id: &str,
    actor: &str,
    now: Timestamp,
) -> Result<Option<Stored>, StoreError> {
    let found = sql.record(
        "SELECT attributes, body FROM message WHERE key = (SELECT key FROM exception WHERE id = $1)",
        params![exception_id],
    )?;
    let Some(mut record) = found else { return Ok(None) };
    log(sql, exception_id, actor, "revealed", None, now)?;
    Ok(Some(Stored { attributes: record.take()?, body: record.take()? }))
}

/// Takes an operator's request for a redrive, or refuses it; either is in the audit log.
pub(super) fn request_redrive(
    sql: &dyn Sql,
    exception_id: &str,
    actor: &str,
    now: Timestamp,
) -> Result<Kept<Asked>, StoreError> {
    let Some((key, status, category)) = standing(sql, exception_id)? else {
        return Ok(Kept::Undo(Asked::Unknown));
    };
    let refusal = match status {
        CaseStatus::Resolved => Some("it is resolved"),
        CaseStatus::Closed => Some("it is closed"),
        CaseStatus::Redriving => Some("it is being redriven"),
        CaseStatus::Open => category.redrive_blocked(),
    };
    if let Some(why) = refusal {
        log(sql, exception_id, actor, "redrive_refused", Some(why), now)?;
        return Ok(Kept::Keep(Asked::Refused(why)));
    }
    sql.execute(
        "UPDATE exception SET redrive_requested_at = $2, redrive_requested_by = $3
         WHERE key = $1 AND status = 'open'",
        params![&key, now, actor],
    )?;
    log(sql, exception_id, actor, "redrive_requested", None, now)?;
    Ok(Kept::Keep(Asked::Taken))
}

/// Closes a case, or refuses to; either is in the audit log.
pub(super) fn close(
    ledger: &Ledger<'_>,
    exception_id: &str,
    actor: &str,
    note: &str,
) -> Result<Kept<Asked>, StoreError> {
    let (sql, now) = (ledger.sql, ledger.now);
    let Some((key, status, _)) = standing(sql, exception_id)? else {
        return Ok(Kept::Undo(Asked::Unknown));
    };
    let refusal = match status {
        CaseStatus::Resolved => Some("it is resolved"),
        CaseStatus::Closed => Some("it is closed"),
        CaseStatus::Redriving => Some("it is being redriven"),
        CaseStatus::Open => None,
    };
    if let Some(why) = refusal {
        log(sql, exception_id, actor, "close_refused", Some(why), now)?;
        return Ok(Kept::Keep(Asked::Refused(why)));
    }
    let Some(incoming) = rows::load_incoming(sql, key)? else {
        return Err(StoreError::Corrupt("an open case without its message".into()));
    };
    match ledger.happen(&incoming, &Happening::Closed, None)? {
        Written::Now(State::Closed) => {}
        Written::Removed | Written::Nothing(Standing::Done) => {
            let why = "its effect has committed";
            log(sql, exception_id, actor, "close_refused", Some(why), now)?;
            return Ok(Kept::Keep(Asked::Refused(why)));
        }
        _ => {
            return Err(StoreError::Corrupt(
                "an open case whose message is not quarantined".into(),
            ));
        }
    }
    sql.execute(
        "UPDATE exception SET status = 'closed', closed_note = $2, changed_at = $3,
                redrive_requested_at = NULL WHERE id = $1",
        params![exception_id, note, now],
    )?;
    log(sql, exception_id, actor, "closed", None, now)?;
    Ok(Kept::Keep(Asked::Taken))
}

/// Opens the message's case, or opens it again after a redrive, with its audit entry.
pub(super) fn open(
    sql: &dyn Sql,
    incoming: &Incoming,
    opened: &CaseOpened,
    now: Timestamp,
) -> Result<Quarantined, StoreError> {
    let key = &incoming.key;
    let unfinished = sql.record(
        "SELECT id, category FROM exception WHERE key = $1 AND status IN ('open', 'redriving')",
        params![key],
    )?;
    let reopened = unfinished.is_some();
    let (id, category) = if let Some(mut record) = unfinished {
        let (id, category): (String, String) = (record.take()?, record.take()?);
        let category = opened.category.map_or_else(|| parse_category(&category), Ok)?;
        sql.execute(
            "UPDATE exception SET status = 'open', category = $2, reason = $3, changed_at = $4
             WHERE id = $1",
            params![&id, category.as_str(), opened.reason.as_str(), now],
        )?;
        log(sql, &id, AUTOMATIC, "reopened", Some(opened.reason.as_str()), now)?;
        (id, category)
    } else {
        let id = Uuid::now_v7().to_string();
        let category = opened.category.unwrap_or(Category::Exhausted);
        insert(sql, &id, incoming, category, &opened.reason, now)?;
        log(sql, &id, AUTOMATIC, "quarantined", Some(opened.reason.as_str()), now)?;
        (id, category)
    };
    let attempts = sql.value("SELECT count(*) FROM attempt WHERE key = $1", params![key])?;
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
    sql: &dyn Sql,
    id: &str,
    incoming: &Incoming,
    category: Category,
    reason: &Code,
    now: Timestamp,
) -> Result<(), StoreError> {
    sql.execute(
        "INSERT INTO exception (id, key, status, category, reason, subscription, pubsub, topic,
             source, event_id, type, subject, traceparent, sightings, review_by, opened_at, changed_at)
         VALUES ($1, $2, 'open', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 1, $13, $14, $14)",
        params![
            id,
            &incoming.key,
            category.as_str(),
            reason.as_str(),
            &incoming.subscription,
            &incoming.pubsub,
            &incoming.topic,
            &incoming.source,
            &incoming.event_id,
            &incoming.ty,
            &incoming.subject,
            &incoming.traceparent,
            now.plus(REVIEW_WITHIN),
            now
        ],
    )
    .map(drop)
}

/// The same bytes were seen again, and are filed already.
pub(super) fn count_sighting(sql: &dyn Sql, key: MessageKey) -> Result<(), StoreError> {
    sql.execute(
        "UPDATE exception SET sightings = sightings + 1
         WHERE id = (SELECT id FROM exception WHERE key = $1 ORDER BY opened_at DESC LIMIT 1)",
        params![&key],
    )
    .map(drop)
}

/// Its effect has committed. Says whether there was an unfinished case.
pub(super) fn resolve(sql: &dyn Sql, key: MessageKey, now: Timestamp) -> Result<bool, StoreError> {
    let resolved = sql.record(
        "UPDATE exception SET status = 'resolved', changed_at = $2, redrive_requested_at = NULL
         WHERE key = $1 AND status IN ('open', 'redriving') RETURNING id",
        params![&key, now],
    )?;
    let Some(mut record) = resolved else { return Ok(false) };
    log(sql, &record.take::<String>()?, AUTOMATIC, "resolved", None, now)?;
    Ok(true)
}

/// The request has been seen; it is not carried out twice.
pub(super) fn take_request(sql: &dyn Sql, key: MessageKey) -> Result<(), StoreError> {
    sql.execute("UPDATE exception SET redrive_requested_at = NULL WHERE key = $1", params![&key])
        .map(drop)
}

/// An operator's run is on.
pub(super) fn redriving(sql: &dyn Sql, key: MessageKey, now: Timestamp) -> Result<(), StoreError> {
    let on = sql.record(
        "UPDATE exception SET status = 'redriving', changed_at = $2
         WHERE key = $1 AND status = 'open' RETURNING id",
        params![&key, now],
    )?;
    match on {
        Some(mut record) => log(sql, &record.take::<String>()?, AUTOMATIC, "redriving", None, now),
        None => Ok(()),
    }
}

fn log(
    sql: &dyn Sql,
    exception_id: &str,
    actor: &str,
    action: &str,
    detail: Option<&str>,
    now: Timestamp,
) -> Result<(), StoreError> {
    sql.execute(
        "INSERT INTO audit (at, actor, action, exception_id, detail) VALUES ($1, $2, $3, $4, $5)",
        params![now, actor, action, exception_id, detail],
    )
    .map(drop)
}

/// Where a case stands, with its message kept from others.
fn standing(
    sql: &dyn Sql,
    id: &str,
) -> Result<Option<(MessageKey, CaseStatus, Category)>, StoreError> {
    let key = sql.record("SELECT key FROM exception WHERE id = $1", params![id])?;
    let Some(mut record) = key else { return Ok(None) };
    let key: MessageKey = record.take()?;
    sql.lock(&[key])?;
    let found = sql.record("SELECT status, category FROM exception WHERE id = $1", params![id])?;
    let Some(mut record) = found else { return Ok(None) };
    let (status, category): (String, String) = (record.take()?, record.take()?);
    Ok(Some((key, parse_status(&status)?, parse_category(&category)?)))
}

const SELECT_CASE: &str = "SELECT id, key, status, category, reason, subscription, pubsub, topic,
    source, event_id, type, subject, traceparent, sightings, owner, review_by, opened_at, changed_at,
    closed_note, redrive_requested_at FROM exception";

fn select_cases(
    sql: &dyn Sql,
    text: &str,
    params: &[Param<'_>],
) -> Result<Vec<CaseRow>, StoreError> {
    let mut cases = Vec::new();
    for record in sql.records(text, params)? {
        let mut case = read_case(record)?;
        case.attempts = attempts(sql, case.key)?;
        cases.push(case);
    }
    Ok(cases)
}

fn read_case(mut record: Record) -> Result<CaseRow, StoreError> {
    Ok(CaseRow {
        id: record.take()?,
        key: record.take()?,
        status: parse_status(&record.take::<String>()?)?,
        category: parse_category(&record.take::<String>()?)?,
        reason: parse_code(&record.take::<String>()?)?,
        subscription: record.take()?,
        pubsub: record.take()?,
        topic: record.take()?,
        source: record.take()?,
        event_id: record.take()?,
        ty: record.take()?,
        subject: record.take()?,
        traceparent: record.take()?,
        sightings: record.take()?,
        owner: record.take()?,
        review_by: record.take()?,
        opened_at: record.take()?,
        changed_at: record.take()?,
        closed_note: record.take()?,
        redrive_requested_at: record.take()?,
        attempts: Vec::new(),
    })
}

fn attempts(sql: &dyn Sql, key: MessageKey) -> Result<Vec<Attempt>, StoreError> {
    let found = sql.records(
        "SELECT n, at, kind, code FROM attempt WHERE key = $1 ORDER BY n",
        params![&key],
    )?;
    found
        .into_iter()
        .map(|mut record| {
            Ok(Attempt {
                n: record.take()?,
                at: record.take()?,
                kind: match record.take::<String>()?.as_str() {
                    "live" => AttemptKind::Live,
                    "recovery" => AttemptKind::Recovery,
                    _ => AttemptKind::Redrive,
                },
                code: parse_code(&record.take::<String>()?)?,
            })
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
