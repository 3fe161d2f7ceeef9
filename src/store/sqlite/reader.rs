//! The thread that owns SQLite's connection for reading: the latest committed state.

use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::store::StoreError;
use crate::store::sql::Sql;

/// Reads that may wait; beyond it callers wait their turn.
const QUEUE_MAX: usize = 4096;

type Read = Box<dyn FnOnce(&Connection) + Send>;

/// A handle on the reader thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Reader {
    reads: mpsc::Sender<Read>,
}

impl Reader {
    pub(super) fn start(connection: Connection) -> std::io::Result<Self> {
        let (reads, mut queued) = mpsc::channel::<Read>(QUEUE_MAX);
        thread::Builder::new().name("backstop-reader".into()).spawn(move || {
            while let Some(read) = queued.blocking_recv() {
                read(&connection);
            }
        })?;
        Ok(Self { reads })
    }

    /// Runs `work` on the latest committed state.
    pub(crate) async fn read<R: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Sql) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let read: Read = Box::new(move |connection| drop(answer.send(work(connection))));
        self.reads.send(read).await.map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }
}
