//! The load generator, run as a program of its own so that its CPU time can be told apart.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

pub use load::report::Line;

use crate::place::Place;
use crate::process;

/// A running generator.
pub struct Generator {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Generator {
    /// Starts it with the arguments that `add` adds.
    pub fn start(
        place: &Place,
        directory: &Path,
        add: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        let mut command = process::command(place.programs.join("load"));
        add(&mut command);
        let log = std::fs::File::create(directory.join("load.log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().context("the load generator cannot be started")?;
        let stdout = child.stdout.take().context("no output of the load generator")?;
        Ok(Self { child, lines: BufReader::new(stdout).lines() })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Its next line, for which it has `limit`.
    pub async fn next(&mut self, limit: Duration) -> anyhow::Result<Line> {
        let line = tokio::time::timeout(limit, self.lines.next_line()).await;
        let line = line.context("the load generator says nothing")??;
        let line = line.context("the load generator ended early: see load.log")?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Its last line, whatever comes before.
    pub async fn done(&mut self, limit: Duration) -> anyhow::Result<load::report::Done> {
        loop {
            if let Line::Done(done) = self.next(limit).await? {
                return Ok(done);
            }
        }
    }
}
