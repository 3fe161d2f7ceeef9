//! Trouble with the disk under the store, and its end.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;

use super::preload::DISK;
use super::store::Database;
use super::{Setup, World};

/// So large is a disk that gets full; what is on it is memory.
const SMALL_DISK: &str = "size=16m,mode=0700";

/// Why the store cannot write, or hardly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The file system has no room: a small one of its own (tmpfs), and ballast on it.
    Full,
    /// The file system is read-only. The kernel refuses to make one so while a file on it is open
    /// for writing, and where an error made it so there is no way back without unmounting it; so
    /// the C library's calls fail with the kernel's error instead (`preload/disk.c`).
    ReadOnly,
    /// Each sync takes so much longer (`preload/disk.c`).
    Slow(Duration),
    /// Another program has the database's write lock.
    Locked,
}

/// The disk that a world's store is on.
pub(super) struct Disk {
    trouble: Trouble,
    directory: PathBuf,
    /// The file that tells the service's C library of the trouble.
    told: PathBuf,
    is_mounted: bool,
}

/// The trouble lasts until this is dropped.
#[must_use]
pub struct Broken {
    file: Option<PathBuf>,
    /// Held, never read.
    _lock: Option<Connection>,
}

impl Setup {
    /// The store's disk will have this trouble, when [`World::break_store`] is called.
    #[must_use]
    pub fn on_a_disk_that_will_be(mut self, trouble: Trouble) -> Self {
        self.trouble = Some(trouble);
        self
    }
}

impl World {
    /// From now on the store has the trouble that was announced, until what this returns is dropped.
    pub fn break_store(&self) -> Broken {
        let disk = self.disk.as_ref().expect("a world without trouble: on_a_disk_that_will_be");
        disk.fail(&self.database)
    }
}

impl Disk {
    /// Makes the directory in which the store will be.
    pub(super) fn prepare(trouble: Trouble, directory: &Path, told: PathBuf) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let is_mounted = trouble == Trouble::Full;
        if is_mounted {
            let mounted = Command::new("mount")
                .args(["-t", "tmpfs", "-o", SMALL_DISK, "tmpfs"])
                .arg(directory)
                .output();
            let mounted = match mounted {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
                Err(error) => Err(error.to_string()),
            };
            mounted
                .expect("a disk that gets full is a small one that root mounts: run this as root");
        }
        Self { trouble, directory: directory.to_owned(), told, is_mounted }
    }

    /// What the service's environment has to say for it.
    pub(super) fn env(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        match self.trouble {
            Trouble::Full | Trouble::Locked => Vec::new(),
            Trouble::ReadOnly | Trouble::Slow(_) => vec![
                DISK.env(),
                ("DISK_DIRECTORY".to_owned(), text(&self.directory)),
                ("DISK_TROUBLE".to_owned(), text(&self.told)),
            ],
        }
    }

    fn fail(&self, database: &Database) -> Broken {
        let (file, lock) = match self.trouble {
            Trouble::Full => (Some(fill(&self.directory)), None),
            Trouble::ReadOnly => (Some(self.tell("read-only")), None),
            Trouble::Slow(late) => (Some(self.tell(&late.as_millis().to_string())), None),
            Trouble::Locked => (None, Some(database.hold())),
        };
        Broken { file, _lock: lock }
    }

    fn tell(&self, text: &str) -> PathBuf {
        std::fs::write(&self.told, text).unwrap();
        self.told.clone()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // Whether or not that works, there is nobody left to tell.
            drop(Command::new("umount").arg(&self.directory).status());
        }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            std::fs::remove_file(file).expect("the end of the trouble");
        }
    }
}

/// Writes until there is no room left.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("ballast");
    let mut file = File::create(&path).unwrap();
    for size in [64 * 1024, 1] {
        let full = std::iter::repeat_with(|| file.write_all(&vec![0; size])).find_map(Result::err);
        assert_eq!(full.map(|error| error.kind()), Some(ErrorKind::StorageFull));
    }
    path
}
