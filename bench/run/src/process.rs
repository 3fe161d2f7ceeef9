//! A program started for one cell: its output goes to a file, it is ended with the cell, and a cell
//! that fails can show its last lines.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// How long a program may take to end after it was asked to.
const END_LIMIT: Duration = Duration::from_secs(30);
/// How much of its output a failure shows.
const TAIL_LINES: usize = 6;

/// A running program.
pub struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

/// A command whose environment holds only what is said here, and PATH.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

impl Process {
    /// Starts it; its output goes to `NAME.log` in `directory`.
    pub fn start(
        name: &'static str,
        mut command: Command,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
        Ok(Self { name, child, log })
    }

    /// Its process id; 0 when it has ended.
    pub fn id(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// An error when it has ended already.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("{} ended ({status}): {}", self.name, self.tail());
        }
        Ok(())
    }

    /// Asks it to end with `signal`, and ends it if it does not.
    pub async fn end(mut self, signal: Signal) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            kill_process(pid, signal)?;
        }
        if tokio::time::timeout(END_LIMIT, self.child.wait()).await.is_err() {
            self.child.kill().await?;
            anyhow::bail!("{} did not end within {} s", self.name, END_LIMIT.as_secs());
        }
        Ok(())
    }

    /// The last lines of its output.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join(" | ")
    }
}

/// Ports that are free now.
pub fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    let mut ports = [0; N];
    // All are held until all are known, so that no two are the same.
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}
