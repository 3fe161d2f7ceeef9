//! Many deliveries in a handful of statements.
//!
//! Deliveries that only insert and upsert rows are written together, by one statement for all they
//! do (`together.rs`), sent at once with what begins the transaction and takes the locks. It is a
//! bet that nothing is in the way. Where it is lost (a key that is known already, a row that is
//! there, a claim that is another's by now), all is undone and the deliveries concerned are written
//! in smaller groups, in the end one by one, which decides as always.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::connection::{Answer, Connection, LOCK_LOG, Params, Sent, Told};
use super::together::together;
use super::values::kept_text;
use crate::clock::Timestamp;
use crate::effect::Action;
use crate::event::MessageKey;
use crate::store::outbox::Log;
use crate::store::statements::quoted;
use crate::store::writer::{Commit, Job};

/// Whether the delivery's parts can be written together with those of others.
pub(super) fn is_mergeable(job: &dyn Job) -> bool {
    job.as_commit().is_some_and(|commit| {
        commit.outgoing.iter().all(|message| message.due_at.is_none())
            && commit.statements.iter().all(|statement| {
                statement.expected_rows == Some(1)
                    && !matches!(statement.action, Action::Sql { .. })
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
    pub(super) fn types(
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
    keys: Vec<MessageKey>,
    /// How many rows each of its shapes changes.
    rows: Vec<i64>,
    outgoing: i64,
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
        let new_topics = topics(memory, commits, at.log);
        let outgoing: usize = commits.iter().map(|commit| commit.outgoing.len()).sum();
        if outgoing > 0 {
            sending.extend(cursors(connection, &new_topics, at.log)?);
            // Before the statement that numbers the messages, which sees what was there before it.
            let owned = (at.log.id, at.log.owner.clone());
            let lock = connection.prepare(LOCK_LOG)?;
            sending.push(Sent::running(lock, vec![Box::new(owned.0), Box::new(owned.1)]));
        }
        let Some((statement, rows)) = together(connection, memory, commits, at)? else {
            return Ok(None);
        };
        sending.push(statement);
        let keys = commits.iter().map(|commit| commit.incoming.key).collect();
        let outgoing = i64::try_from(outgoing).unwrap_or(i64::MAX);
        Ok(Some(Self { sending, keys, rows, outgoing, new_topics }))
    }

    /// Begins a transaction with them. Gives its number with what came of it.
    pub(super) fn begin(
        mut self,
        connection: &Connection,
        memory: &mut Memory,
    ) -> Result<(String, Bet), tokio_postgres::Error> {
        let mut sending = vec![locks(connection, &self.keys)?];
        sending.append(&mut self.sending);
        let (begun, answers) = connection.begin_with(sending)?;
        Ok((begun.number, self.judge(answers.into_iter().last(), memory)))
    }

    /// Runs them within a transaction, after `first`.
    pub(super) fn follow(
        mut self,
        first: &str,
        connection: &Connection,
        memory: &mut Memory,
    ) -> Result<Bet, tokio_postgres::Error> {
        let answers = connection.run_with(first, std::mem::take(&mut self.sending))?;
        Ok(self.judge(answers.into_iter().last(), memory))
    }

    fn judge(self, last: Option<Answer>, memory: &mut Memory) -> Bet {
        let Some(Answer::Told(Told { known, gates, changed, appended })) = last else {
            return Bet::Lost;
        };
        if !known.is_empty() {
            return Bet::Known(known.into_iter().collect());
        }
        if changed != self.rows {
            return Bet::Lost;
        }
        if appended != self.outgoing {
            return Bet::LogLost;
        }
        memory.topics.extend(self.new_topics);
        Bet::Won(if gates == 0 { Gates::None } else { Gates::Some })
    }
}

pub(super) fn locks(
    connection: &Connection,
    keys: &[MessageKey],
) -> Result<Sent, tokio_postgres::Error> {
    Ok(Sent::running(connection.lock_statement()?, vec![Box::new(connection.locks(keys))]))
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
    let pubsubs: Vec<String> = new.iter().map(|(_, pubsub, _)| kept_text(pubsub)).collect();
    let topics: Vec<String> = new.iter().map(|(.., topic)| kept_text(topic)).collect();
    let params: Params = vec![Box::new(log.id), Box::new(pubsubs), Box::new(topics)];
    Ok(Some(Sent::running(statement, params)))
}
