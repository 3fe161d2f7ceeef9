//! A line to the server that can be cut, at once or at the next commit.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Where a commit is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Cut {
    /// Not at all.
    Nowhere,
    /// The server never hears of it.
    Before,
    /// The server has committed, and its answer is lost.
    After,
    /// The server is still at it.
    During,
}

#[derive(Clone)]
pub(super) struct Proxy {
    pub port: u16,
    at_commit: Arc<AtomicU8>,
    cuts: watch::Sender<u32>,
    pub commits_cut: Arc<AtomicU16>,
}

impl Proxy {
    pub(super) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Self {
            port: listener.local_addr().unwrap().port(),
            at_commit: Arc::default(),
            cuts: watch::Sender::new(0),
            commits_cut: Arc::default(),
        };
        let serving = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await.unwrap();
                tokio::spawn(serving.clone().carry(client, server));
            }
        });
        proxy
    }

    /// Cuts all connections there are.
    pub(super) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts the connection of the next commit there.
    pub(super) fn cut_next_commit(&self, cut: Cut) {
        self.at_commit.store(cut as u8, Ordering::SeqCst);
    }

    async fn carry(self, mut client: TcpStream, mut server: TcpStream) {
        let mut cut = self.cuts.subscribe();
        let (mut from_client, mut from_server) = (vec![0; 65_536], vec![0; 65_536]);
        let mut answer_lost = false;
        loop {
            tokio::select! {
                _ = cut.changed() => return,
                read = client.read(&mut from_client) => {
                    let Ok(1..) = read else { return };
                    let sent = &from_client[..read.unwrap()];
                    if sent.windows(7).any(|word| word == b"COMMIT\0") {
                        match self.at_commit.swap(Cut::Nowhere as u8, Ordering::SeqCst) {
                            1 => {
                                self.commits_cut.fetch_add(1, Ordering::SeqCst);
                                return;
                            }
                            2 => answer_lost = true,
                            3 => {
                                self.commits_cut.fetch_add(1, Ordering::SeqCst);
                                server.write_all(sent).await.unwrap();
                                return;
                            }
                            _ => {}
                        }
                    }
                    if server.write_all(sent).await.is_err() { return }
                }
                read = server.read(&mut from_server) => {
                    let Ok(1..) = read else { return };
                    if answer_lost {
                        self.commits_cut.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    if client.write_all(&from_server[..read.unwrap()]).await.is_err() { return }
                }
            }
        }
    }
}
