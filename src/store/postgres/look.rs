//! Looks at messages, many in one query: all that wait are asked for together.

use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{Client, Row};

use super::connect::Connector;
use super::connection::{fault, values_of};
use crate::event::MessageKey;
use crate::store::sql::Record;
use crate::store::{Look, StoreError, rows};

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
async fn look_at(
    connector: &Connector,
    connection: &mut Option<Ready>,
    keys: &[MessageKey],
) -> Result<Vec<Look>, StoreError> {
    let bytes: Vec<&[u8]> = keys.iter().map(|key| &key.0[..]).collect();
    loop {
        let known = connection.take().filter(|ready| !ready.client.is_closed());
        let fresh = known.is_none();
        let ready = if let Some(ready) = known {
            ready
        } else {
            let client = connector.client().await?;
            let statement = client.prepare(LOOK).await.map_err(|error| fault(&error))?;
            Ready { client, statement }
        };
        match ready.client.query(&ready.statement, &[&bytes]).await {
            Ok(rows) => {
                *connection = Some(ready);
                return rows.iter().map(look_of).collect();
            }
            Err(error) if fresh || error.code().is_some() => return Err(fault(&error)),
            Err(_) => {}
        }
    }
}

const LOOK: &str = "SELECT i.fingerprint, m.state, m.fingerprint, m.attempts
    FROM unnest($1::bytea[]) WITH ORDINALITY AS asked (key, place)
    LEFT JOIN inbox i ON i.key = asked.key
    LEFT JOIN message m ON m.key = asked.key
    ORDER BY asked.place";

fn look_of(row: &Row) -> Result<Look, StoreError> {
    let mut record = Record::new(values_of(row).map_err(|error| fault(&error))?);
    let done = record.take()?;
    let row = match record.take::<Option<String>>()? {
        None => None,
        Some(state) => Some((rows::parse_state(&state)?, record.take()?, record.take()?)),
    };
    Ok(Look { done, row })
}
