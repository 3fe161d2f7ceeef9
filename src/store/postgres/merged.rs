//! Many deliveries in a handful of statements.
//!
//! Deliveries that only insert and upsert rows, of messages that are in no trouble, are written
//! together: one statement for all their inbox keys, one for each shape of their rows, one for
//! their outgoing messages, all sent at once. It is a bet that nothing is in the way. Where it is
//! lost (a key that is known already, a row that is there, a gate), all is undone and the
//! deliveries concerned are written one by one, which decides as always.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::connection::{Answer, Connection, LOCK_LOG, Sent};
use super::values::keep_nul;
use crate::clock::Timestamp;
use crate::custody::Authority;
use crate::effect::{Action, Value};
use crate::event::MessageKey;
use crate::store::memory::inbox_table;
use crate::store::outbox::Log;
use crate::store::statements::{insert_head, quoted, upsert_action};
use crate::store::writer::{Commit, Job};

/// Statements sent at once; more shapes than fit are written one by one.
const STATEMENTS_MAX: usize = 24;

/// Whether the delivery's parts can be written together with those of others.
pub(super) fn is_mergeable(job: &dyn Job) -> bool {
    job.as_commit().is_some_and(|commit| {
        commit.authority == Authority::Delivery
            && commit.outgoing.iter().all(|message| message.due_at.is_none())
            && commit.statements.iter().all(|statement| {
                statement.expected_rows == Some(1)
                    && !matches!(statement.action, Action::Sql { .. })
            })
    })
}

/// What a merged transaction came to before its commit.
pub(super) enum Bet {
    /// Nothing was in the way.
    Won,
    /// These are known already, or in trouble.
    Known(HashSet<MessageKey>),
    /// Something was; what, the deliveries have to find out one by one.
    Lost,
    /// The log of the outbox is another process's now.
    LogLost,
}

/// What the writer remembers to build merged statements: the types of columns, and the topics that
/// have a cursor.
#[derive(Default)]
pub(super) struct Memory {
    columns: HashMap<&'static str, HashMap<String, String>>,
    topics: HashSet<(i64, String, String)>,
}

impl Memory {
    /// The types of a table's columns.
    fn types(
        &mut self,
        connection: &Connection,
        table: &'static str,
    ) -> Result<&HashMap<String, String>, tokio_postgres::Error> {
        if self.columns.get(table).is_none_or(HashMap::is_empty) {
            let types = connection.column_types(&quoted(table))?;
            self.columns.insert(table, types);
        }
        Ok(self.columns.entry(table).or_default())
    }

    /// Forgets the types of columns: a statement built with them has failed.
    pub(super) fn forget_types(&mut self) {
        self.columns.clear();
    }
}

/// Everything but the commit: begins a transaction and sends all statements of the group. Gives
/// the transaction's number with what came of it.
pub(super) fn run(
    connection: &Connection,
    memory: &mut Memory,
    commits: &[&Commit],
    log: &Log,
    now: Timestamp,
    remember_for: Duration,
) -> Result<(String, Bet), tokio_postgres::Error> {
    let mut sending = Vec::new();
    sending.push(locks(connection, commits)?);
    sending.push(inbox(connection, commits, now, remember_for)?);
    sending.push(gates(connection, commits)?);
    let Some(rows) = rows(connection, memory, commits)? else {
        return Ok((String::new(), Bet::Lost));
    };
    let expected: Vec<u64> = rows.iter().map(|(_, expected)| *expected).collect();
    sending.extend(rows.into_iter().map(|(sent, _)| sent));
    let outgoing: u64 = commits.iter().map(|commit| commit.outgoing.len() as u64).sum();
    let new_topics = topics(memory, commits, log);
    if outgoing > 0 {
        sending.extend(cursors(connection, &new_topics, log)?);
        let owned: Vec<Box<dyn ToSql + Sync + Send>> =
            vec![Box::new(log.id), Box::new(log.owner.clone())];
        sending.push(Sent::changing(connection.prepare(LOCK_LOG)?, owned));
        sending.push(outbox(connection, commits, log, now)?);
    }
    if sending.len() > STATEMENTS_MAX {
        return Ok((String::new(), Bet::Lost));
    }
    let (begun, answers) = connection.begin_with(sending)?;
    let number = begun.number;
    let mut answers = answers.into_iter().skip(1);
    let taken: HashSet<MessageKey> = match answers.next() {
        Some(Answer::Keys(keys)) => keys.into_iter().collect(),
        _ => HashSet::new(),
    };
    if taken.len() < commits.len() {
        let keys = commits.iter().map(|commit| commit.incoming.key);
        return Ok((number, Bet::Known(keys.filter(|key| !taken.contains(key)).collect())));
    }
    if !matches!(answers.next(), Some(Answer::Count(0))) {
        return Ok((number, Bet::Lost));
    }
    for wanted in expected {
        if !matches!(answers.next(), Some(Answer::Changed(changed)) if changed == wanted) {
            return Ok((number, Bet::Lost));
        }
    }
    if outgoing > 0 && !matches!(answers.last(), Some(Answer::Changed(n)) if n == outgoing) {
        return Ok((number, Bet::LogLost));
    }
    memory.topics.extend(new_topics);
    Ok((number, Bet::Won))
}

fn locks(connection: &Connection, commits: &[&Commit]) -> Result<Sent, tokio_postgres::Error> {
    let keys: Vec<MessageKey> = commits.iter().map(|commit| commit.incoming.key).collect();
    Ok(Sent::changing(connection.lock_statement()?, vec![Box::new(connection.locks(&keys))]))
}

/// One that had a row, or is done, is not taken. A subquery with a limit is not turned into a join,
/// whose plan, made while the tables were small, would read them whole when they are not.
fn inbox(
    connection: &Connection,
    commits: &[&Commit],
    now: Timestamp,
    remember_for: Duration,
) -> Result<Sent, tokio_postgres::Error> {
    let table = inbox_table(now, remember_for);
    let statement = connection.prepare(&format!(
        "INSERT INTO {table} (key, fingerprint, committed_at)
         SELECT t.key, t.fingerprint, $3::bigint
         FROM unnest($1::bytea[], $2::bytea[]) AS t (key, fingerprint)
         WHERE (SELECT m.key FROM message m WHERE m.key = t.key LIMIT 1) IS NULL
           AND (SELECT i.key FROM inbox i WHERE i.key = t.key LIMIT 1) IS NULL
         ON CONFLICT DO NOTHING RETURNING key"
    ))?;
    let keys: Vec<Vec<u8>> = commits.iter().map(|commit| commit.incoming.key.0.to_vec()).collect();
    let prints: Vec<Vec<u8>> =
        commits.iter().map(|commit| commit.incoming.fingerprint.0.to_vec()).collect();
    Ok(Sent::taking_keys(statement, vec![Box::new(keys), Box::new(prints), Box::new(now.0)]))
}

/// A success opens gates, one by one; where there is any, the deliveries are written so.
fn gates(connection: &Connection, commits: &[&Commit]) -> Result<Sent, tokio_postgres::Error> {
    let statement =
        connection.prepare("SELECT count(*) FROM gate WHERE subscription = ANY($1::text[])")?;
    let names: BTreeSet<&str> =
        commits.iter().map(|commit| commit.incoming.subscription.as_str()).collect();
    let names: Vec<String> = names.into_iter().map(text).collect();
    Ok(Sent::counting(statement, vec![Box::new(names)]))
}

/// The rows of one table and form, by columns.
struct Shape<'a> {
    table: &'static str,
    key: Option<&'a [&'static str]>,
    columns: Vec<&'static str>,
    rows: Vec<Vec<&'a Value>>,
}

/// The deliveries' rows by shape. A delivery's statements stay in their order: the first ones of
/// all go before the second ones of any.
fn shapes<'a>(commits: &[&'a Commit]) -> Vec<Shape<'a>> {
    let mut shapes: Vec<Shape<'a>> = Vec::new();
    let longest = commits.iter().map(|commit| commit.statements.len()).max().unwrap_or(0);
    for place in 0..longest {
        let first = shapes.len();
        for statement in commits.iter().filter_map(|commit| commit.statements.get(place)) {
            let (table, key, row) = match &statement.action {
                Action::Insert { table, row } => (*table, None, row),
                Action::Upsert { table, key, row } => (*table, Some(key.as_slice()), row),
                Action::Sql { .. } => continue,
            };
            let columns: Vec<&'static str> = row.iter().map(|(name, _)| *name).collect();
            let values = row.iter().map(|(_, value)| value).collect();
            let same = |shape: &&mut Shape<'_>| {
                shape.table == table && shape.key == key && shape.columns == columns
            };
            match shapes.iter_mut().skip(first).find(same) {
                Some(shape) => shape.rows.push(values),
                None => shapes.push(Shape { table, key, columns, rows: vec![values] }),
            }
        }
    }
    shapes
}

/// A statement for each shape, and how many rows it has to change. `None` when there is one that
/// cannot be written so.
fn rows(
    connection: &Connection,
    memory: &mut Memory,
    commits: &[&Commit],
) -> Result<Option<Vec<(Sent, u64)>>, tokio_postgres::Error> {
    let mut statements = Vec::new();
    for shape in shapes(commits) {
        let types = memory.types(connection, shape.table)?;
        let (mut casts, mut arrays, mut params) = (Vec::new(), Vec::new(), Vec::new());
        for (place, column) in shape.columns.iter().enumerate() {
            let Some(ty) = types.get(*column) else { return Ok(None) };
            let array = if ty == "bytea" { "bytea[]" } else { "text[]" };
            casts.push(format!("CAST(t.c{place} AS {ty})"));
            arrays.push(format!("${}::{array}", place + 1));
            let values = shape.rows.iter().map(|row| row.get(place).copied());
            let Some(param) = array_of(values, ty == "bytea") else { return Ok(None) };
            params.push(param);
        }
        let names: Vec<String> =
            (0..shape.columns.len()).map(|place| format!("c{place}")).collect();
        let on_conflict = match shape.key {
            None => "DO NOTHING".to_owned(),
            Some(key) => upsert_action(key, &shape.columns),
        };
        let text = format!(
            "{} SELECT {} FROM unnest({}) AS t ({}) ON CONFLICT {on_conflict}",
            insert_head(shape.table, &shape.columns),
            casts.join(", "),
            arrays.join(", "),
            names.join(", "),
        );
        let sent = Sent::changing(connection.prepare(&text)?, params);
        statements.push((sent, shape.rows.len() as u64));
    }
    Ok(Some(statements))
}

/// One column of many rows, as text or as bytes; `None` when a value is of the other kind.
fn array_of<'a>(
    values: impl Iterator<Item = Option<&'a Value>>,
    bytes: bool,
) -> Option<Box<dyn ToSql + Sync + Send>> {
    if bytes {
        let values = values.map(|value| match value? {
            Value::Null => Some(None),
            Value::Blob(blob) => Some(Some(blob.to_vec())),
            _ => None,
        });
        return Some(Box::new(values.collect::<Option<Vec<Option<Vec<u8>>>>>()?));
    }
    let values = values.map(|value| match value? {
        Value::Null => Some(None),
        Value::Integer(integer) => Some(Some(integer.to_string())),
        Value::Real(real) => Some(Some(real.to_string())),
        Value::Text(text) => Some(Some(text.clone())),
        Value::Blob(_) => None,
    });
    Some(Box::new(values.collect::<Option<Vec<Option<String>>>>()?))
}

/// The topics of outgoing messages that have perhaps no cursor yet.
fn topics(memory: &Memory, commits: &[&Commit], log: &Log) -> BTreeSet<(i64, String, String)> {
    let outgoing = commits.iter().flat_map(|commit| &commit.outgoing);
    outgoing
        .map(|message| (log.id, message.pubsub.clone(), message.topic.clone()))
        .filter(|topic| !memory.topics.contains(topic))
        .collect()
}

fn cursors(
    connection: &Connection,
    new: &BTreeSet<(i64, String, String)>,
    log: &Log,
) -> Result<Option<Sent>, tokio_postgres::Error> {
    if new.is_empty() {
        return Ok(None);
    }
    let statement = connection.prepare(
        "INSERT INTO relay_cursor (log, pubsub, topic, seq)
         SELECT $1::bigint, t.pubsub, t.topic, 0 FROM unnest($2::text[], $3::text[]) AS t (pubsub, topic)
         ON CONFLICT DO NOTHING",
    )?;
    let pubsubs: Vec<String> = new.iter().map(|(_, pubsub, _)| text(pubsub)).collect();
    let topics: Vec<String> = new.iter().map(|(.., topic)| text(topic)).collect();
    let params: Vec<Box<dyn ToSql + Sync + Send>> =
        vec![Box::new(log.id), Box::new(pubsubs), Box::new(topics)];
    Ok(Some(Sent::changing(statement, params)))
}

fn outbox(
    connection: &Connection,
    commits: &[&Commit],
    log: &Log,
    now: Timestamp,
) -> Result<Sent, tokio_postgres::Error> {
    let statement = connection.prepare(
        "WITH log AS (
             SELECT greatest(last_seq, (SELECT max(seq) FROM outbox WHERE log = $1)) AS last
             FROM outbox_log WHERE id = $1 AND owner = $2)
         INSERT INTO outbox
             (log, seq, pubsub, topic, message_id, ordering_key, content, created_at)
         SELECT $1, log.last + t.place, t.pubsub, t.topic, t.message_id, t.ordering_key, t.content,
                $8::bigint
         FROM log, unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[])
             WITH ORDINALITY AS t (pubsub, topic, message_id, ordering_key, content, place)",
    )?;
    let outgoing = || commits.iter().flat_map(|commit| &commit.outgoing);
    let pubsubs: Vec<String> = outgoing().map(|message| text(&message.pubsub)).collect();
    let topics: Vec<String> = outgoing().map(|message| text(&message.topic)).collect();
    let ids: Vec<String> = outgoing().map(|message| text(&message.message_id)).collect();
    let keys: Vec<Option<String>> =
        outgoing().map(|message| message.ordering_key.as_deref().map(text)).collect();
    let contents: Vec<Vec<u8>> = outgoing().map(|message| message.content.to_vec()).collect();
    let params: Vec<Box<dyn ToSql + Sync + Send>> = vec![
        Box::new(log.id),
        Box::new(log.owner.clone()),
        Box::new(pubsubs),
        Box::new(topics),
        Box::new(ids),
        Box::new(keys),
        Box::new(contents),
        Box::new(now.0),
    ];
    Ok(Sent::changing(statement, params))
}

/// A text as it is kept.
fn text(text: &str) -> String {
    keep_nul(text).into_owned()
}
