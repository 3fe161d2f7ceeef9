//! A line between two processes on which answers can be lost: what the caller of a process sees
//! that dies after its commit and before its answer.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};

/// Forwards connections from one port to another.
pub struct Line {
    swallows: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    accepting: JoinHandle<()>,
}

impl Line {
    /// Listens on `from` and connects each caller to `to`.
    pub async fn lay(from: u16, to: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, from)).await.unwrap();
        let swallows = Arc::new(AtomicBool::new(false));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let accepting = tokio::spawn({
            let (swallows, connections) = (Arc::clone(&swallows), Arc::clone(&connections));
            async move {
                loop {
                    let Ok((caller, _)) = listener.accept().await else { return };
                    let connection = tokio::spawn(forward(caller, to, Arc::clone(&swallows)));
                    connections.lock().unwrap().push(connection.abort_handle());
                }
            }
        });
        Self { swallows, connections, accepting }
    }

    /// From now on calls arrive, and no answer does.
    pub fn lose_answers(&self) {
        self.swallows.store(true, Ordering::SeqCst);
    }

    /// Ends every connection, as the death of the process behind it does, and works again.
    pub fn mend(&self) {
        self.close_all();
        self.swallows.store(false, Ordering::SeqCst);
    }

    fn close_all(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.accepting.abort();
        self.close_all();
    }
}

/// Until either side ends; a listener that is not there is a connection that ends at once.
async fn forward(near: TcpStream, to: u16, swallows: Arc<AtomicBool>) {
    let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else { return };
    let (mut calls, mut to_near) = near.into_split();
    let (mut answers, mut to_far) = far.into_split();
    let there = async { tokio::io::copy(&mut calls, &mut to_far).await.map(drop) };
    let back = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = answers.read(&mut buffer).await?;
            if count == 0 {
                return Ok::<_, std::io::Error>(());
            }
            if !swallows.load(Ordering::SeqCst) {
                to_near.write_all(&buffer[..count]).await?;
            }
        }
    };
    tokio::select! {
        _ = there => {}
        _ = back => {}
    }
}
