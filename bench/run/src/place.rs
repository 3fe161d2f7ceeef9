//! Where a whole run works: a directory in memory, the programs it starts, and the shim.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::database::Kind;

/// The parts that do not change from cell to cell.
pub struct Place {
    /// On tmpfs; removed at the end.
    pub root: PathBuf,
    /// The suite's own directory in the repository.
    pub bench: PathBuf,
    /// Where our programs are: those built with this one.
    pub programs: PathBuf,
    /// Where the peers' programs are.
    pub peers: PathBuf,
    /// The sidecar's program, where there is one.
    pub daprd: Option<PathBuf>,
    /// PostgreSQL's programs, where there are any.
    pub postgres: Option<PathBuf>,
    /// Who runs PostgreSQL when we are root: it refuses to be.
    pub postgres_user: Option<(u32, u32)>,
}

impl Place {
    /// Makes the directory and looks for the programs.
    pub fn prepare() -> anyhow::Result<Self> {
        let bench = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no directory")?;
        let programs = std::env::current_exe()?.parent().context("no directory")?.to_owned();
        let root = PathBuf::from(format!("/dev/shm/backstop-bench-{}", std::process::id()));
        std::fs::create_dir_all(&root)?;
        let place = Self {
            root,
            bench: bench.to_owned(),
            peers: bench.join("peers/bin"),
            programs,
            daprd: std::env::var_os("DAPRD").map(PathBuf::from),
            postgres: newest_postgres(),
            postgres_user: if rustix::process::getuid().is_root() {
                postgres_user()?
            } else {
                None
            },
        };
        place.compile_shim()?;
        Ok(place)
    }

    /// The library that delays fsync; it lies where PostgreSQL's user can read it.
    pub fn shim(&self) -> PathBuf {
        self.root.join("delay.so")
    }

    fn compile_shim(&self) -> anyhow::Result<()> {
        let source = self.bench.join("shim/delay.c");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(self.shim())
            .arg(source)
            .arg("-ldl")
            .status()
            .context("a C compiler is needed for the fsync delay (cc)")?;
        ensure!(status.success(), "the fsync shim does not compile");
        Ok(())
    }

    /// Where a database with so many rows of dedup memory is kept for the other rounds of a group.
    pub fn preloaded(&self, kind: Kind, rows: u64) -> PathBuf {
        self.root.join("preloaded").join(format!("{kind:?}-{rows}"))
    }

    /// Removes those databases.
    pub fn forget_preloaded(&self) {
        let _ = std::fs::remove_dir_all(self.root.join("preloaded"));
    }

    /// Removes the directory.
    pub fn clear(&self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn newest_postgres() -> Option<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let versions = installed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let newest: u32 = versions.max()?;
    Some(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
}

fn postgres_user() -> anyhow::Result<Option<(u32, u32)>> {
    let accounts = std::fs::read_to_string("/etc/passwd")?;
    let Some(line) = accounts.lines().find(|line| line.starts_with("postgres:")) else {
        return Ok(None);
    };
    let fields: Vec<&str> = line.split(':').collect();
    let number = |at: usize| fields.get(at).and_then(|text| text.parse().ok());
    Ok(number(2).zip(number(3)))
}
