//! The outbox: an append-only log with one cursor a topic.

use bytes::Bytes;
use rusqlite::{Connection, params};

use super::{Sqlite, ledger};
use crate::clock::Timestamp;
use crate::custody::{Authority, Happening};
use crate::event::{Fingerprint, MessageKey, Stored};
use crate::outcome::{Category, reason};
use crate::store::sqlite::worker::Kept;
use crate::store::{Incoming, Outgoing, Quarantined, StoreError, Written};

impl Sqlite {
    pub(crate) async fn outbox_pending(&self, max: u32) -> Result<Vec<Vec<Outgoing>>, StoreError> {
        self.worker.read(move |connection| pending(connection, max)).await
    }

    pub(crate) async fn outbox_published(&self, last: Outgoing) -> Result<(), StoreError> {
        let publish =
            move |connection: &Connection, _| move_cursor(connection, &last).map(Kept::Keep);
        self.worker.write(publish).await
    }

    pub(crate) async fn outbox_refused(
        &self,
        refused: Outgoing,
        source: String,
    ) -> Result<Quarantined, StoreError> {
        let limits = self.limits;
        let refuse = move |connection: &Connection, now| {
            let ledger = ledger::Ledger { connection, limits: &limits, now };
            let incoming = as_incoming(&refused, source);
            let happening = Happening::Refused(
                Authority::Delivery,
                Category::PublishRejected,
                reason::PUBLISH_REJECTED,
            );
            match ledger.happen(&incoming, &happening, None)? {
                Written::Quarantined(case) => {
                    move_cursor(connection, &refused)?;
                    Ok(Kept::Keep(case))
                }
                _ => Err(StoreError::Corrupt(
                    "an unpublished message that has a case already".into(),
                )),
            }
        };
        self.worker.write(refuse).await
    }
}

/// Appends one message; the log's number is the next one, given only if the transaction commits.
pub(super) fn append(
    connection: &Connection,
    message: &Outgoing,
    now: Timestamp,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO relay_cursor (pubsub, topic, seq) VALUES (?1, ?2, 0)",
        )
        .and_then(|mut insert| insert.execute(params![message.pubsub, message.topic]))
        .map_err(StoreError::away)?;
    connection
        .prepare_cached(
            "INSERT INTO outbox (pubsub, topic, message_id, content, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        )
        .and_then(|mut insert| {
            insert.execute(params![message.pubsub, message.topic, message.message_id, &message.content[..], now.0])
        })
        .map_err(StoreError::away)?;
    Ok(())
}

fn pending(connection: &Connection, max: u32) -> Result<Vec<Vec<Outgoing>>, StoreError> {
    let mut cursors = connection
        .prepare_cached("SELECT pubsub, topic, seq FROM relay_cursor")
        .map_err(StoreError::away)?;
    let cursors: Vec<(String, String, i64)> = cursors
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .and_then(Iterator::collect)
        .map_err(StoreError::away)?;
    let mut topics = Vec::new();
    for (pubsub, topic, cursor) in cursors {
        // Reads along outbox_topic from the cursor on, never what is published already.
        let mut next = connection
            .prepare_cached(
                "SELECT seq, message_id, content FROM outbox
                 WHERE pubsub = ?1 AND topic = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4",
            )
            .map_err(StoreError::away)?;
        let rows = next
            .query_map(params![pubsub, topic, cursor, max], |row| {
                let content: Vec<u8> = row.get(2)?;
                Ok(Outgoing {
                    seq: row.get(0)?,
                    pubsub: pubsub.clone(),
                    topic: topic.clone(),
                    message_id: row.get(1)?,
                    content: Bytes::from(content),
                })
            })
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(StoreError::away)?;
        if !rows.is_empty() {
            topics.push(rows);
        }
    }
    Ok(topics)
}

fn move_cursor(connection: &Connection, last: &Outgoing) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "UPDATE relay_cursor SET seq = max(seq, ?3) WHERE pubsub = ?1 AND topic = ?2",
        )
        .and_then(|mut update| update.execute(params![last.pubsub, last.topic, last.seq]))
        .map(drop)
        .map_err(StoreError::away)
}

/// The row under which a refused message is filed: its subscription is the outbox.
fn as_incoming(refused: &Outgoing, source: String) -> Incoming {
    const OUTBOX: &str = "outbox";
    Incoming {
        key: MessageKey::of(OUTBOX, &source, &refused.message_id),
        fingerprint: Fingerprint([0; 16]),
        subscription: OUTBOX.to_owned(),
        pubsub: refused.pubsub.clone(),
        topic: refused.topic.clone(),
        source,
        event_id: refused.message_id.clone(),
        ty: String::new(),
        subject: None,
        traceparent: None,
        stored: Stored { attributes: None, body: refused.content.clone() },
        once: false,
        recovery_attempt: 0,
    }
}
