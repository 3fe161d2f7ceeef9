//! One statement that does all of a group of deliveries.
//!
//! It is made of common table expressions, one for the rows of claimed runs that go, one for the
//! inbox keys, one for each shape of the deliveries' rows, one for their outgoing messages. They
//! see the database as it was before all of them, and none sees what another does: two that touch
//! the same row fail, or change another number of rows than they should, and the group is then
//! written in smaller parts.

use std::collections::{BTreeSet, HashMap};

use tokio_postgres::types::ToSql;

use super::connection::{Connection, Params, Sent};
use super::merged::{At, Memory};
use super::values::kept_text;
use crate::custody::Authority;
use crate::effect::{Action, Value};
use crate::store::memory::inbox_table;
use crate::store::statements::{insert_head, upsert_action};
use crate::store::writer::Commit;

/// Shapes of rows in one statement; groups with more are written in smaller parts.
const SHAPES_MAX: usize = 24;

/// The statement of a group, and how many rows each of its shapes has to change. `None` when the
/// group cannot be written so.
pub(super) fn together(
    connection: &Connection,
    memory: &mut Memory,
    commits: &[&Commit],
    at: At<'_>,
) -> Result<Option<(Sent, Vec<i64>)>, tokio_postgres::Error> {
    let shapes = shapes(commits);
    if shapes.len() > SHAPES_MAX {
        return Ok(None);
    }
    let mut whole = Whole::default();
    whole.take(commits, at);
    let names: BTreeSet<&str> =
        commits.iter().map(|commit| commit.incoming.subscription.as_str()).collect();
    let names: Vec<String> = names.into_iter().map(kept_text).collect();
    let gates = whole.param(names);
    let mut rows = Vec::new();
    for shape in &shapes {
        let types = memory.types(connection, shape.table)?;
        let Some(text) = whole.shape(shape, types) else { return Ok(None) };
        whole.parts.push(format!("shape_{} AS ({text} RETURNING 1)", rows.len()));
        rows.push(i64::try_from(shape.rows.len()).unwrap_or(i64::MAX));
    }
    whole.append(commits, at);
    let changed: Vec<String> =
        (0..rows.len()).map(|n| format!("(SELECT count(*) FROM shape_{n})")).collect();
    let text = format!(
        "WITH {} SELECT ARRAY({}), (SELECT count(*) FROM gate WHERE subscription = ANY({gates}::text[])),
             ARRAY[{}]::bigint[], {}",
        whole.parts.join(", "),
        whole.not_taken.join(" UNION ALL "),
        changed.join(", "),
        whole.appended,
    );
    let statement = connection.prepare(&text)?;
    Ok(Some((Sent::telling(statement, whole.params), rows)))
}

/// The statement while it is put together.
struct Whole {
    parts: Vec<String>,
    params: Params,
    /// What gives the keys that are known already, in trouble, or no longer ours.
    not_taken: Vec<String>,
    /// What gives the number of messages that were appended.
    appended: String,
}

impl Default for Whole {
    fn default() -> Self {
        let (parts, params, not_taken) = Default::default();
        Self { parts, params, not_taken, appended: "0::bigint".to_owned() }
    }
}

impl Whole {
    /// The place of one more parameter.
    fn param(&mut self, value: impl ToSql + Sync + Send + 'static) -> String {
        self.boxed(Box::new(value))
    }

    fn boxed(&mut self, value: Box<dyn ToSql + Sync + Send>) -> String {
        self.params.push(value);
        format!("${}", self.params.len())
    }

    /// The inbox keys, and the rows of claimed runs, which go with their attempts.
    ///
    /// A key that is there, or that has a row which is no claim of ours, is not taken; nor is a claim
    /// with a case to be resolved. A subquery with a limit is not turned into a join, whose plan,
    /// made while the tables were small, would read them whole when they are not.
    fn take(&mut self, commits: &[&Commit], at: At<'_>) {
        let bytes = |commit: &&Commit| commit.incoming.key.0.to_vec();
        let keys = self.param(commits.iter().map(bytes).collect::<Vec<_>>());
        let prints: Vec<Vec<u8>> =
            commits.iter().map(|commit| commit.incoming.fingerprint.0.to_vec()).collect();
        let prints = self.param(prints);
        let now = self.param(at.now.0);
        let runs: Vec<(Vec<u8>, i64)> = commits
            .iter()
            .filter_map(|commit| match commit.authority {
                Authority::Run(run) => Some((bytes(commit), run)),
                Authority::Delivery => None,
            })
            .collect();
        let mut free =
            "(SELECT m.key FROM message m WHERE m.key = t.key LIMIT 1) IS NULL".to_owned();
        if !runs.is_empty() {
            let (claimed, runs): (Vec<Vec<u8>>, Vec<i64>) = runs.into_iter().unzip();
            let (claimed, runs) = (self.param(claimed), self.param(runs));
            free = format!("(t.key = ANY({claimed}::bytea[]) OR {free})");
            self.parts.push(format!(
                "removed AS (
                     DELETE FROM message m
                     USING unnest({claimed}::bytea[], {runs}::bigint[]) AS t (key, run)
                     WHERE m.key = t.key AND m.run = t.run AND m.state = 'running'
                       AND (SELECT e.key FROM exception e WHERE e.key = t.key
                            AND e.status IN ('open', 'redriving') LIMIT 1) IS NULL
                     RETURNING m.key),
                 forgotten AS (
                     DELETE FROM attempt a USING unnest({claimed}::bytea[]) AS t (key)
                     WHERE a.key = t.key
                       AND (SELECT e.key FROM exception e WHERE e.key = t.key LIMIT 1) IS NULL)"
            ));
            self.not_taken.push(format!(
                "SELECT k FROM unnest({claimed}::bytea[]) AS k WHERE k NOT IN (SELECT key FROM removed)"
            ));
        }
        let table = inbox_table(at.now, at.remember_for);
        self.parts.push(format!(
            "taken AS (
                 INSERT INTO {table} (key, fingerprint, committed_at)
                 SELECT t.key, t.fingerprint, {now}::bigint
                 FROM unnest({keys}::bytea[], {prints}::bytea[]) AS t (key, fingerprint)
                 WHERE {free} AND (SELECT i.key FROM inbox i WHERE i.key = t.key LIMIT 1) IS NULL
                 ON CONFLICT DO NOTHING RETURNING key)"
        ));
        self.not_taken.push(format!(
            "SELECT k FROM unnest({keys}::bytea[]) AS k WHERE k NOT IN (SELECT key FROM taken)"
        ));
    }

    /// The rows of one shape. `None` when one of them cannot be written so.
    fn shape(&mut self, shape: &Shape<'_>, types: &HashMap<String, String>) -> Option<String> {
        let (mut casts, mut arrays, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (place, column) in shape.columns.iter().enumerate() {
            let ty = types.get(*column)?;
            let array = if ty == "bytea" { "bytea[]" } else { "text[]" };
            let values = shape.rows.iter().map(|row| row.get(place).copied());
            let param = self.boxed(array_of(values, ty == "bytea")?);
            casts.push(format!("CAST(t.c{place} AS {ty})"));
            arrays.push(format!("{param}::{array}"));
            names.push(format!("c{place}"));
        }
        let on_conflict = match shape.key {
            None => "DO NOTHING".to_owned(),
            Some(key) => upsert_action(key, &shape.columns),
        };
        Some(format!(
            "{} SELECT {} FROM unnest({}) AS t ({}) ON CONFLICT {on_conflict}",
            insert_head(shape.table, &shape.columns),
            casts.join(", "),
            arrays.join(", "),
            names.join(", "),
        ))
    }

    /// The outgoing messages, with the next numbers of the log, which is locked.
    fn append(&mut self, commits: &[&Commit], at: At<'_>) {
        let outgoing = || commits.iter().flat_map(|commit| &commit.outgoing);
        if outgoing().next().is_none() {
            return;
        }
        let log = self.param(at.log.id);
        let owner = self.param(at.log.owner.clone());
        let now = self.param(at.now.0);
        let pubsubs = self.param(outgoing().map(|m| kept_text(&m.pubsub)).collect::<Vec<_>>());
        let topics = self.param(outgoing().map(|m| kept_text(&m.topic)).collect::<Vec<_>>());
        let ids = self.param(outgoing().map(|m| kept_text(&m.message_id)).collect::<Vec<_>>());
        let keys: Vec<Option<String>> =
            outgoing().map(|m| m.ordering_key.as_deref().map(kept_text)).collect();
        let keys = self.param(keys);
        let contents = self.param(outgoing().map(|m| m.content.to_vec()).collect::<Vec<_>>());
        self.parts.push(format!(
            "log AS (
                 SELECT greatest(last_seq, (SELECT max(seq) FROM outbox WHERE log = {log}::bigint)) AS last
                 FROM outbox_log WHERE id = {log}::bigint AND owner = {owner}::text),
             appended AS (
                 INSERT INTO outbox
                     (log, seq, pubsub, topic, message_id, ordering_key, content, created_at)
                 SELECT {log}::bigint, log.last + t.place, t.pubsub, t.topic, t.message_id,
                        t.ordering_key, t.content, {now}::bigint
                 FROM log, unnest({pubsubs}::text[], {topics}::text[], {ids}::text[],
                                  {keys}::text[], {contents}::bytea[])
                     WITH ORDINALITY AS t (pubsub, topic, message_id, ordering_key, content, place)
                 RETURNING 1)"
        ));
        "(SELECT count(*) FROM appended)".clone_into(&mut self.appended);
    }
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
        // Always the same statement for the same shapes.
        if let Some(new) = shapes.get_mut(first..) {
            new.sort_by(|a, b| (a.table, &a.columns, a.key).cmp(&(b.table, &b.columns, b.key)));
        }
    }
    shapes
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
