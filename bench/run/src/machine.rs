//! On what and with what it was measured.

use std::collections::BTreeMap;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::place::Place;

/// The machine, and the versions of what is not built from this repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Cores that all programs of a cell share.
    pub cores: usize,
    /// The processor's name.
    pub processor: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The day.
    pub day: String,
    /// Versions, by program.
    pub versions: BTreeMap<String, String>,
}

impl Machine {
    /// Looks at this one; what cannot be found out is left out.
    pub fn look(place: &Place) -> Self {
        let field = |file: &str, name: &str| -> Option<String> {
            let text = std::fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib = memory.and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
        let mut programs = vec![
            ("rustc", first_line("rustc", "--version")),
            ("go", first_line("go", "version")),
            ("node", first_line("node", "--version")),
            ("redis", first_line("redis-server", "--version")),
        ];
        if let Some(postgres) = &place.postgres {
            programs.push(("postgres", first_line(postgres.join("postgres"), "--version")));
        }
        if let Some(daprd) = &place.daprd {
            programs.push(("daprd", first_line(daprd, "--version")));
        }
        let versions = programs.into_iter().filter_map(|(name, version)| {
            let version = version?;
            Some((name.to_owned(), version))
        });
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_default(),
            memory_mib: kib.unwrap_or_default() / 1024,
            kernel: first_line("uname", "-sr").unwrap_or_default(),
            day: first_line("date", "+%Y-%m-%d").unwrap_or_default(),
            versions: versions.collect(),
        }
    }
}

fn first_line(program: impl AsRef<std::ffi::OsStr>, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned())
}
