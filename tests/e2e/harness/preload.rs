//! C loaded in front of the service's C library (`preload/`): what the machine under a process does
//! can be changed while the process runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Setup, World};

/// A source in `preload/`, compiled at most once.
pub(super) struct Preload {
    name: &'static str,
    library: OnceLock<PathBuf>,
}

pub(super) static DISK: Preload = Preload::of("disk");
static CLOCK: Preload = Preload::of("clock");

impl Preload {
    const fn of(name: &'static str) -> Self {
        Self { name, library: OnceLock::new() }
    }

    /// The variable that has it loaded.
    pub(super) fn env(&self) -> (String, String) {
        let library = self.library.get_or_init(|| self.compile());
        ("LD_PRELOAD".to_owned(), library.to_str().unwrap().to_owned())
    }

    /// What the service's environment has to say for a clock that jumps.
    pub(super) fn env_of_clock(&self, directory: &Path) -> [(String, String); 2] {
        let file = clock_file(directory).to_str().unwrap().to_owned();
        [self.env(), (CLOCK_AHEAD.to_owned(), file)]
    }

    fn compile(&self) -> PathBuf {
        let source = format!("tests/e2e/harness/preload/{}.c", self.name);
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-{}.so", self.name));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library);
        let compiled = cc.arg(super::top().join(source)).arg("-ldl").output();
        let compiled = compiled.expect("cc, without which SQLite could not be compiled either");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        library
    }
}

impl Setup {
    /// The service's wall clock will jump, when [`World::time_passes`] is called.
    #[must_use]
    pub fn with_a_clock_that_jumps(mut self) -> Self {
        self.clock = Some(&CLOCK);
        self
    }
}

impl World {
    /// Puts the service's wall clock so far ahead.
    pub fn time_passes(&self, ahead: Duration) {
        assert!(self.run.app_env.contains_key(CLOCK_AHEAD), "with_a_clock_that_jumps");
        std::fs::write(clock_file(self.directory.path()), ahead.as_secs().to_string()).unwrap();
    }
}

/// The variable that names [`clock_file`].
const CLOCK_AHEAD: &str = "CLOCK_AHEAD";

/// The file that tells the service's C library how far its clock is ahead.
fn clock_file(directory: &Path) -> PathBuf {
    directory.join("clock-ahead")
}
