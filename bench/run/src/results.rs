//! What is kept: a file of lines for each group in `bench/results/`, so that one group can be run
//! again without the others, and the page made from all of them.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::place::Place;
use crate::record::{Header, Record};
use crate::stats::median;
use crate::{group, report};

/// One group's lines.
pub struct Kept {
    /// Of which run they are.
    pub header: Header,
    /// Its cells.
    pub records: Vec<Record>,
}

/// The directory of lines, and the page.
pub struct Results {
    directory: PathBuf,
    page: PathBuf,
}

impl Results {
    /// Those in the repository.
    pub fn of(place: &Place) -> Self {
        Self { directory: place.bench.join("results"), page: place.bench.join("RESULTS.md") }
    }

    fn path(&self, group: &str) -> PathBuf {
        self.directory.join(format!("{group}.jsonl"))
    }

    /// Whether something is kept of this group.
    pub fn has(&self, group: &str) -> bool {
        self.path(group).exists()
    }

    /// Replaces what is kept of a group, as a whole or not at all.
    pub fn keep(&self, header: &Header, records: &[Record]) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        let path = self.path(&header.group);
        let part = path.with_extension("part");
        let mut file = std::fs::File::create(&part)?;
        writeln!(file, "{}", serde_json::to_string(header)?)?;
        for record in records {
            writeln!(file, "{}", serde_json::to_string(record)?)?;
        }
        Ok(std::fs::rename(part, path)?)
    }

    /// What is kept of a group.
    pub fn read(&self, group: &str) -> anyhow::Result<Kept> {
        let path = self.path(group);
        let text = std::fs::read_to_string(&path)?;
        let mut lines = text.lines();
        let header = lines.next().with_context(|| format!("{} is empty", path.display()))?;
        let header: Header = serde_json::from_str(header)?;
        let records: Vec<Record> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Kept { header, records })
    }

    /// Everything that is kept, in the order in which groups run.
    pub fn all(&self) -> anyhow::Result<Vec<Kept>> {
        let names = group::all().into_iter().map(|group| group.name);
        names.filter(|name| self.has(name)).map(|name| self.read(&name)).collect()
    }

    /// Makes the page from everything that is kept; tells where it is.
    pub fn write_page(&self) -> anyhow::Result<PathBuf> {
        std::fs::write(&self.page, report::page(&self.all()?))?;
        Ok(self.page.clone())
    }
}

/// The median of what a contestant reached in a group that is kept.
pub fn reached_per_s(place: &Place, group: &str) -> Option<f64> {
    let kept = Results::of(place).read(group).ok()?;
    let first = kept.records.first()?.label.clone();
    let values: Vec<f64> = kept
        .records
        .iter()
        .filter(|record| record.label == first)
        .filter_map(|record| Some(record.figures.as_ref()?.per_s))
        .collect();
    median(&values)
}
