//! Child processes that do not outlive us, and how to wait until one is ready.
//!
//! Each child leads a process group of its own, so that a Ctrl-C in the terminal does not reach it
//! and what it starts can be stopped with it. Dropping a [`Process`] stops the group; on Linux the
//! child also dies when we are killed, if `setpriv` (util-linux) is there.

#![allow(dead_code, reason = "the demo and the tests each use a part of this file")]

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process_group};

/// How long a dropped process may take to end before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Lines of output that are kept.
const TAIL_LINES: usize = 2000;
/// Lines of output that an error shows.
const LINES_SHOWN: usize = 15;

/// What is to be started.
#[derive(Debug)]
pub struct Launch {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    env_forgotten: Vec<String>,
    directory: Option<PathBuf>,
    log: Option<PathBuf>,
    echo: bool,
}

impl Launch {
    /// The program at this path (or on PATH), called `name` in messages.
    pub fn new(name: &str, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            env_forgotten: Vec::new(),
            directory: None,
            log: None,
            echo: false,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds variables to the environment, which is otherwise ours. A later one wins.
    #[must_use]
    pub fn env<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter();
        self.env.extend(variables.map(|(n, v)| (n.as_ref().to_owned(), v.as_ref().to_owned())));
        self
    }

    /// Takes the variables whose names begin so out of the environment, unless [`Self::env`] adds
    /// them: what a developer has set for something else must not change what this does.
    #[must_use]
    pub fn forget_env(mut self, prefixes: &[&str]) -> Self {
        self.env_forgotten.extend(prefixes.iter().map(|&prefix| prefix.to_owned()));
        self
    }

    /// Where it runs.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Writes its output to this file as well; the file is begun anew.
    #[must_use]
    pub fn log_to(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// Shows its output on our standard error, each line with the name before it.
    #[must_use]
    pub fn echo(mut self) -> Self {
        self.echo = true;
        self
    }

    /// Starts it.
    ///
    /// Call this from a thread that lasts (a test, a runtime's worker): on Linux the child dies
    /// with the thread that started it.
    ///
    /// # Errors
    /// When the log cannot be written or the program cannot be started.
    pub fn start(self) -> anyhow::Result<Process> {
        let log = match &self.log {
            Some(path) => Some(
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?,
            ),
            None => None,
        };
        let program = resolve(&self.program)?;
        let started = self.command(&program).spawn();
        let mut child = started
            .with_context(|| format!("{} ({}) cannot be started", self.name, program.display()))?;
        let output = Arc::new(Output {
            echo: self.echo.then(|| self.name.clone()),
            lines: Mutex::new(Lines { log, ..Lines::default() }),
            changed: Condvar::new(),
        });
        if let Some(stdout) = child.stdout.take() {
            Output::follow(&output, stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            Output::follow(&output, stderr);
        }
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.context("a process without an id")?;
        Ok(Process { name: self.name, child, group, output, ended: None })
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = match find_on_path("setpriv") {
            Some(setpriv) if cfg!(target_os = "linux") => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                command
            }
            _ => Command::new(program),
        };
        command
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        #[allow(clippy::disallowed_methods, reason = "passed on to a child, not read")]
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if self.env_forgotten.iter().any(|prefix| text.starts_with(prefix.as_str())) {
                command.env_remove(&name);
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }
}

/// When a process counts as ready.
#[derive(Clone, Debug)]
pub enum Ready {
    /// Something listens there.
    Tcp(SocketAddr),
    /// A GET of this URL answers 2xx.
    Http(String),
    /// A line of its output contains this.
    Line(String),
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "it listens on {address}"),
            Self::Http(url) => write!(f, "{url} answers 2xx"),
            Self::Line(text) => write!(f, "it prints `{text}`"),
        }
    }
}

/// A running child process; dropping it stops it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: std::process::Child,
    group: Pid,
    output: Arc<Output>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, which is its group's as well.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Sends a signal to it and everything it started. One that has ended is left alone.
    pub fn signal(&mut self, signal: Signal) {
        // Until it has been waited for, its id cannot belong to another process.
        if matches!(self.ended(), Ok(None)) {
            // The only failure is that it has ended in the meantime.
            let _gone = kill_process_group(self.group, signal);
        }
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// When it ends before that, or the time is up; the error shows its last lines.
    pub async fn wait_until(&mut self, ready: Ready, patience: Duration) -> anyhow::Result<()> {
        let client =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build()?;
        let deadline = Instant::now() + patience;
        loop {
            let is_ready = match &ready {
                Ready::Tcp(address) => tokio::net::TcpStream::connect(address).await.is_ok(),
                Ready::Http(url) => {
                    let answer = client.get(url).send().await;
                    answer.is_ok_and(|answer| answer.status().is_success())
                }
                Ready::Line(text) => self.output.contains(text),
            };
            // What listens there may be somebody else's, so being ready takes being alive.
            if let Some(status) = self.ended()? {
                anyhow::bail!(
                    "{} ended ({status}) before {ready}\n{}",
                    self.name,
                    self.last_lines()
                );
            }
            if is_ready {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "{} is not ready after {} s: waited until {ready}\n{}",
                self.name,
                patience.as_secs_f64(),
                self.last_lines()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// When the time is up; the error shows its last lines.
    pub async fn wait(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "{} has not ended after {} s\n{}",
                self.name,
                patience.as_secs_f64(),
                self.last_lines()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asks it to end (SIGTERM), and kills what is left of it after `limit`.
    ///
    /// # Errors
    /// When the system cannot say how it ended.
    pub async fn stop(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM);
        if let Ok(status) = self.wait(limit).await {
            return Ok(status);
        }
        self.kill()
    }

    /// Kills it at once (SIGKILL).
    ///
    /// # Errors
    /// When the system cannot say how it ended.
    pub fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Its output so far, both streams, oldest line first; bounded.
    pub fn lines(&self) -> Vec<String> {
        self.output.lock().tail.iter().cloned().collect()
    }

    /// Its last lines, as errors show them.
    pub fn last_lines(&self) -> String {
        // A process that just ended may have lines on their way.
        self.output.settle();
        let lines = self.lines();
        if lines.is_empty() {
            return "it printed nothing".to_owned();
        }
        let shown = lines.get(lines.len().saturating_sub(LINES_SHOWN)..).unwrap_or_default();
        format!("its last lines:\n  {}", shown.join("\n  "))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_LIMIT;
        while matches!(self.ended(), Ok(None)) && Instant::now() < deadline {
            std::thread::park_timeout(LOOK_EVERY);
        }
        // Whether or not that worked, there is nobody left to tell.
        drop(self.kill());
    }
}

/// What a process has printed.
#[derive(Debug)]
struct Output {
    /// The name to show lines under.
    echo: Option<String>,
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    tail: VecDeque<String>,
    log: Option<File>,
    streams_open: usize,
}

impl Output {
    /// Reads a stream to its end, on a thread of its own: a full pipe would stop the process.
    fn follow(output: &Arc<Self>, stream: impl Read + Send + 'static) {
        output.lock().streams_open += 1;
        let output = Arc::clone(output);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
                output.take(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
            output.lock().streams_open -= 1;
            output.changed.notify_all();
        });
    }

    fn take(&self, line: &str) {
        if let Some(name) = &self.echo {
            // Nobody is left to tell when even that fails.
            drop(writeln!(std::io::stderr(), "{name} | {line}"));
        }
        let mut lines = self.lock();
        if let Some(log) = &mut lines.log {
            drop(writeln!(log, "{line}"));
        }
        if lines.tail.len() == TAIL_LINES {
            lines.tail.pop_front();
        }
        lines.tail.push_back(line.to_owned());
    }

    fn contains(&self, text: &str) -> bool {
        self.lock().tail.iter().any(|line| line.contains(text))
    }

    /// Waits a moment for the streams to end.
    fn settle(&self) {
        let moment = Duration::from_millis(200);
        let waited =
            self.changed.wait_timeout_while(self.lock(), moment, |lines| lines.streams_open > 0);
        drop(waited);
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ports nobody listens on, each handed out once. They lie below the range the system takes for
/// outgoing connections, so none of those can be in the way a moment later.
///
/// # Errors
/// When there are none.
pub fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static HANDED_OUT: Mutex<Option<(u32, HashSet<u16>)>> = Mutex::new(None);
    let mut state = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    // Processes that look at the same time begin far apart.
    let (next, taken) =
        state.get_or_insert_with(|| (std::process::id().wrapping_mul(97), HashSet::new()));
    let mut ports = [0; N];
    for port in &mut ports {
        let found = (0..COUNT).find_map(|_| {
            *next = next.wrapping_add(1);
            let candidate = u16::try_from(FIRST + *next % COUNT).ok()?;
            (!taken.contains(&candidate) && is_free(candidate)).then_some(candidate)
        });
        *port = found.context("no port is free")?;
        taken.insert(*port);
    }
    Ok(ports)
}

/// Whether nobody listens on this port, on any address.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// The absolute path of a program given by its path or by its name on PATH.
///
/// # Errors
/// When there is no such program.
pub fn resolve(program: &Path) -> anyhow::Result<PathBuf> {
    if program.components().count() == 1
        && let Some(found) = program.to_str().and_then(find_on_path)
    {
        return Ok(found);
    }
    let path = std::path::absolute(program)?;
    anyhow::ensure!(is_program(&path), "{} is not a program that can be run", program.display());
    Ok(path)
}

/// The first program of this name on PATH.
pub fn find_on_path(program: &str) -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "PATH is the system's, not a setting of ours")]
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}
