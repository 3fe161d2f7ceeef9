//! Many deliveries in a handful of statements.
//!
//! Deliveries that only insert and upsert rows are written together: one statement for all their
//! inbox keys, one for each shape of their rows, one for their outgoing messages, all sent at once.
//! It is a bet that nothing is in the way. Where it is lost (a key that is known already, a row that
//! is there, a claim that is another's by now), all is undone and the deliveries concerned are
//! written in smaller groups, in the end one by one, which decides as always.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::connection::{Answer, Connection, Sent};
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
        commit.statements.iter().all(|statement| {
            statement.expected_rows == Some(1) && !matches!(statement.action, Action::Sql { .. })
        })
    })
}

/// What statements sent together came to.
pub(super) enum Bet {
    /// Nothing was in the way.
    Won(Gates),
    /// These are known already, in trouble, or no longer ours.
    Known(HashSet<MessageKey>),
    /// Something was; what, the deliveries have to find out in smaller groups.
    Lost,
    /// The log of the outbox is another process's now.
    LogLost,
}

/// Whether the deliveries' subscriptions have gates, which a success opens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gates {
    None,
    Some,
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

/// Where and when a group is written.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub log: &'a Log,
    pub now: Timestamp,
    pub remember_for: Duration,
}

/// The statements of a group, but for its locks, its beginning and its end.
pub(super) struct Flight {
    sending: Vec<Sent>,
    keys: HashSet<MessageKey>,
    /// Of claimed runs, whose rows go.
    claimed: HashSet<MessageKey>,
    /// How many rows each statement of a shape changes.
    rows: Vec<u64>,
    outgoing: u64,
    new_topics: BTreeSet<(i64, String, String)>,
}

impl Flight {
    /// `None` when the group cannot be written so.
    pub(super) fn of(
        connection: &Connection,
        memory: &mut Memory,
        commits: &[&Commit],
        at: At<'_>,
    ) -> Result<Option<Self>, tokio_postgres::Error> {
        let mut sending = Vec::new();
        let mut claimed = HashSet::new();
        if let Some(runs) = Claimed::of(connection, commits)? {
            claimed = runs.keys;
            sending.push(runs.remove);
            sending.push(inbox(connection, commits, at)?);
            sending.push(runs.forget);
        } else {
            sending.push(inbox(connection, commits, at)?);
        }
        sending.push(gates(connection, commits)?);
        let Some(shapes) = rows(connection, memory, commits)? else { return Ok(None) };
        let rows = shapes.iter().map(|(_, expected)| *expected).collect();
        sending.extend(shapes.into_iter().map(|(sent, _)| sent));
        let outgoing: u64 = commits.iter().map(|commit| commit.outgoing.len() as u64).sum();
        let new_topics = topics(memory, commits, at.log);
        if outgoing > 0 {
            sending.extend(cursors(connection, &new_topics, at.log)?);
            sending.push(outbox(connection, commits, at)?);
        }
        if sending.len() > STATEMENTS_MAX {
            return Ok(None);
        }
        let keys = commits.iter().map(|commit| commit.incoming.key).collect();
        Ok(Some(Self { sending, keys, claimed, rows, outgoing, new_topics }))
    }

    /// Begins a transaction with them. Gives its number with what came of it.
    pub(super) fn begin(
        mut self,
        connection: &Connection,
        memory: &mut Memory,
    ) -> Result<(String, Bet), tokio_postgres::Error> {
        let mut sending = vec![locks(connection, self.keys.iter().copied())?];
        sending.append(&mut self.sending);
        let (begun, answers) = connection.begin_with(sending)?;
        Ok((begun.number, self.judge(answers.into_iter().skip(1), memory)))
    }

    /// Runs them within a transaction, after `first`.
    pub(super) fn follow(
        mut self,
        first: &str,
        connection: &Connection,
        memory: &mut Memory,
    ) -> Result<Bet, tokio_postgres::Error> {
        let answers = connection.run_with(first, std::mem::take(&mut self.sending))?;
        Ok(self.judge(answers.into_iter(), memory))
    }

    fn judge(self, mut answers: impl Iterator<Item = Answer>, memory: &mut Memory) -> Bet {
        let mut taken = |wanted: &HashSet<MessageKey>| {
            let taken: HashSet<MessageKey> = match answers.next() {
                Some(Answer::Keys(keys)) => keys.into_iter().collect(),
                _ => HashSet::new(),
            };
            wanted.difference(&taken).copied().collect::<HashSet<_>>()
        };
        let mut known = if self.claimed.is_empty() { HashSet::new() } else { taken(&self.claimed) };
        known.extend(taken(&self.keys));
        if !known.is_empty() {
            return Bet::Known(known);
        }
        if !self.claimed.is_empty() {
            // Their attempts go with them, however many there are.
            answers.next();
        }
        let gates = match answers.next() {
            Some(Answer::Count(0)) => Gates::None,
            Some(Answer::Count(_)) => Gates::Some,
            _ => return Bet::Lost,
        };
        for wanted in self.rows {
            if !matches!(answers.next(), Some(Answer::Changed(changed)) if changed == wanted) {
                return Bet::Lost;
            }
        }
        let appended = answers.last();
        if self.outgoing > 0 && !matches!(appended, Some(Answer::Changed(n)) if n == self.outgoing)
        {
            return Bet::LogLost;
        }
        memory.topics.extend(self.new_topics);
        Bet::Won(gates)
    }
}

pub(super) fn locks(
    connection: &Connection,
    keys: impl Iterator<Item = MessageKey>,
) -> Result<Sent, tokio_postgres::Error> {
    let keys: Vec<MessageKey> = keys.collect();
    Ok(Sent::changing(connection.lock_statement()?, vec![Box::new(connection.locks(&keys))]))
}

/// What removes the rows of claimed runs, and then their attempts. A claim that is another's by
/// now, or one with a case to be resolved, is not taken.
struct Claimed {
    keys: HashSet<MessageKey>,
    remove: Sent,
    forget: Sent,
}

impl Claimed {
    /// `None` when there are no claimed runs among them.
    fn of(
        connection: &Connection,
        commits: &[&Commit],
    ) -> Result<Option<Self>, tokio_postgres::Error> {
        let runs: Vec<(MessageKey, i64)> = commits
            .iter()
            .filter_map(|commit| match commit.authority {
                Authority::Run(run) => Some((commit.incoming.key, run)),
                Authority::Delivery => None,
            })
            .collect();
        if runs.is_empty() {
            return Ok(None);
        }
        let keys: Vec<Vec<u8>> = runs.iter().map(|(key, _)| key.0.to_vec()).collect();
        let numbers: Vec<i64> = runs.iter().map(|(_, run)| *run).collect();
        let remove = connection.prepare(
            "DELETE FROM message m USING unnest($1::bytea[], $2::bigint[]) AS t (key, run)
         WHERE m.key = t.key AND m.run = t.run AND m.state = 'running'
           AND (SELECT e.key FROM exception e WHERE e.key = t.key
                AND e.status IN ('open', 'redriving') LIMIT 1) IS NULL
         RETURNING m.key",
        )?;
        let forget = connection.prepare(
            "DELETE FROM attempt a USING unnest($1::bytea[]) AS t (key)
         WHERE a.key = t.key
           AND (SELECT e.key FROM exception e WHERE e.key = t.key LIMIT 1) IS NULL",
        )?;
        Ok(Some(Self {
            keys: runs.into_iter().map(|(key, _)| key).collect(),
            remove: Sent::taking_keys(remove, vec![Box::new(keys.clone()), Box::new(numbers)]),
            forget: Sent::changing(forget, vec![Box::new(keys)]),
        }))
    }
}

/// One that had a row, or is done, is not taken. A subquery with a limit is not turned into a join,
/// whose plan, made while the tables were small, would read them whole when they are not.
fn inbox(
    connection: &Connection,
    commits: &[&Commit],
    at: At<'_>,
) -> Result<Sent, tokio_postgres::Error> {
    let table = inbox_table(at.now, at.remember_for);
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
    Ok(Sent::taking_keys(statement, vec![Box::new(keys), Box::new(prints), Box::new(at.now.0)]))
}

/// Whether the deliveries' subscriptions have gates.
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
    at: At<'_>,
) -> Result<Sent, tokio_postgres::Error> {
    let statement = connection.prepare(
        "WITH moved AS (
             UPDATE outbox_log SET last_seq = last_seq + cardinality($3::text[])
             WHERE id = $1 AND owner = $2 RETURNING last_seq - cardinality($3::text[]) AS before)
         INSERT INTO outbox (log, seq, pubsub, topic, message_id, content, created_at)
         SELECT $1, moved.before + t.place, t.pubsub, t.topic, t.message_id, t.content, $7::bigint
         FROM moved, unnest($3::text[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY
             AS t (pubsub, topic, message_id, content, place)",
    )?;
    let outgoing = || commits.iter().flat_map(|commit| &commit.outgoing);
    let pubsubs: Vec<String> = outgoing().map(|message| text(&message.pubsub)).collect();
    let topics: Vec<String> = outgoing().map(|message| text(&message.topic)).collect();
    let ids: Vec<String> = outgoing().map(|message| text(&message.message_id)).collect();
    let contents: Vec<Vec<u8>> = outgoing().map(|message| message.content.to_vec()).collect();
    let params: Vec<Box<dyn ToSql + Sync + Send>> = vec![
        Box::new(at.log.id),
        Box::new(at.log.owner.clone()),
        Box::new(pubsubs),
        Box::new(topics),
        Box::new(ids),
        Box::new(contents),
        Box::new(at.now.0),
    ];
    Ok(Sent::changing(statement, params))
}

/// A text as it is kept.
fn text(text: &str) -> String {
    keep_nul(text).into_owned()
}
