//! Looks at messages, many in one query: all that wait are asked for together.

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{Client, Row};

use super::connect::Connector;
use super::connection::fault;
use crate::custody::State;
use crate::event::{Fingerprint, MessageKey};
use crate::store::{Look, StoreError};

/// Looks that may wait; beyond it callers wait their turn.
const QUEUE_MAX: usize = 4096;
/// Looks in one query.
const BATCH_MAX: usize = 256;

type Asked = (MessageKey, oneshot::Sender<Result<Look, StoreError>>);

/// A handle on the task that looks, which ends when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Lookout {
    asked: mpsc::Sender<Asked>,
}

impl Lookout {
    pub(super) fn start(connector: Connector) -> Self {
        let (asked, waiting) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(run(connector, waiting));
        Self { asked }
    }

    pub(super) async fn look(&self, key: MessageKey) -> Result<Look, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.asked.send((key, answer)).await.map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }
}

async fn run(connector: Connector, mut waiting: mpsc::Receiver<Asked>) {
    let mut connection = None;
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let keys: Vec<MessageKey> = batch.iter().map(|(key, _)| *key).collect();
        let looks = look_at(&connector, &mut connection, &keys).await;
        for (place, (_, answer)) in batch.drain(..).enumerate() {
            let look = match &looks {
                Ok(looks) => Ok(looks.get(place).cloned().unwrap_or_default()),
                Err(error) => Err(error.clone()),
            };
            // A caller that has gone away does not need its answer.
            drop(answer.send(look));
        }
    }
}

struct Ready {
    client: Client,
    statement: tokio_postgres::Statement,
}

/// One look for each key, in their order. A connection that had been cut is opened again once.
fn look_at<'a>(
    connector: &'a Connector,
    connection: &'a mut Option<Ready>,
    keys: &'a [MessageKey],
) -> BoxFuture<'a, Result<Vec<Look>, StoreError>> {
    Box::pin(async move {
        let known = connection.take().filter(|ready| !ready.client.is_closed());
        let fresh = known.is_none();
        let ready = if let Some(ready) = known {
            ready
        } else {
            let client = connector.client().await?;
            let statement = client.prepare(LOOK).await.map_err(|error| fault(&error))?;
            Ready { client, statement }
        };
        let bytes: Vec<&[u8]> = keys.iter().map(|key| &key.0[..]).collect();
        match ready.client.query(&ready.statement, &[&bytes]).await {
            Ok(rows) => {
                *connection = Some(ready);
                rows.iter().map(look_of).collect()
            }
            Err(error) if !fresh && error.code().is_none() => {
                drop(ready);
                look_at(connector, connection, keys).await
            }
            Err(error) => Err(fault(&error)),
        }
    })
}

const LOOK: &str = "SELECT i.fingerprint, m.state, m.fingerprint, m.attempts
    FROM unnest($1::bytea[]) WITH ORDINALITY AS asked (key, place)
    LEFT JOIN inbox i ON i.key = asked.key
    LEFT JOIN message m ON m.key = asked.key
    ORDER BY asked.place";

fn look_of(row: &Row) -> Result<Look, StoreError> {
    let corrupt = |_| StoreError::Corrupt("a row of the inbox or of a message".into());
    let fingerprint = |bytes: &[u8]| -> Result<Fingerprint, StoreError> {
        let bytes = bytes.try_into();
        bytes.map(Fingerprint).map_err(|_| StoreError::Corrupt("a fingerprint's length".into()))
    };
    let done: Option<&[u8]> = row.try_get(0).map_err(corrupt)?;
    let state: Option<&str> = row.try_get(1).map_err(corrupt)?;
    let row = match state {
        None => None,
        Some(state) => {
            let state = State::parse(state)
                .ok_or_else(|| StoreError::Corrupt("a message's state".into()))?;
            let attempts: i64 = row.try_get(3).map_err(corrupt)?;
            let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
            Some((state, fingerprint(row.try_get(2).map_err(corrupt)?)?, attempts))
        }
    };
    Ok(Look { done: done.map(fingerprint).transpose()?, row })
}
