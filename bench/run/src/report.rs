//! Tables from records, losses as plainly as wins.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

use crate::cpu::Part;
use crate::record::{Figures, Header, Record};
use crate::stats::{median, range};

/// More stolen time than this is told under the table, in per cent.
const STOLEN_PERCENT_TOLD: f64 = 2.0;
/// More than this of the machine's CPU for other programs is told under the table, in per cent.
const OTHERS_PERCENT_TOLD: f64 = 5.0;

const PREFACE: &str = "# Results

Made by `make bench` from the lines in `results/`; do not edit. How each cell is made, and what is
compared with what: [README.md](README.md). Ratios are medians of the ratios within a round, with the
smallest and largest in brackets; other figures are medians over rounds. CPU is in microseconds an
event. \"Bound\" is the share reached of what the cell's CPU, its calls in flight and its fsync delay
allow at best. A ratio below 1 is a loss.
";

/// The whole page, from a directory of results.
pub fn render_directory(results: &Path) -> anyhow::Result<String> {
    let mut page = PREFACE.to_owned();
    let mut paths: Vec<_> = std::fs::read_dir(results)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    for path in paths {
        let text = std::fs::read_to_string(&path)?;
        let mut lines = text.lines();
        let header = lines.next().with_context(|| format!("{} is empty", path.display()))?;
        let header: Header = serde_json::from_str(header)?;
        let records: Vec<Record> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        page.push('\n');
        page.push_str(&render(&header, &records));
    }
    Ok(page)
}

/// One group's table.
pub fn render(header: &Header, records: &[Record]) -> String {
    let mut labels: Vec<&str> = Vec::new();
    for record in records {
        // The first round has everybody in the group's own order.
        if !labels.contains(&record.label.as_str()) {
            labels.push(&record.label);
        }
    }
    let baseline = labels.first().copied().unwrap_or_default();
    let mut text = format!(
        "## {}\n\n{}. Commit {}, {} cores",
        header.group, header.about, header.commit, header.cores
    );
    let _ = write!(text, ", {} s a cell.\n\n    {}\n\n", header.secs, header.command);
    text.push_str("| | events/s | ratio | p50 / p99 ms | CPU app / db / daprd / redis / load | bound | fsyncs per 1,000 | peak MiB |\n");
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    for label in &labels {
        row(&mut text, records, baseline, label);
    }
    more(&mut text, records, &labels);
    notes(&mut text, records);
    text
}

fn of<'a>(records: &'a [Record], label: &'a str) -> impl Iterator<Item = &'a Record> {
    records.iter().filter(move |record| record.label == label)
}

/// The median over the label's valid cells of what `get` finds in them.
fn middle(records: &[Record], label: &str, get: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> =
        of(records, label).filter_map(|record| get(record.figures.as_ref()?)).collect();
    median(&values)
}

fn row(text: &mut String, records: &[Record], baseline: &str, label: &str) {
    let Some(per_s) = middle(records, label, |figures| Some(figures.per_s)) else {
        let _ = writeln!(text, "| {label} | **void** | | | | | | |");
        return;
    };
    let part = |part: Part| {
        let value = middle(records, label, |figures| figures.cpu_us.get(&part).copied());
        value.map_or("-".to_owned(), |value| format!("{value:.0}"))
    };
    let millis = |get: fn(&Figures) -> Option<u64>| {
        let value = middle(records, label, |figures| get(figures).map(|micros| micros as f64));
        value.map_or("-".to_owned(), |value| format!("{:.1}", value / 1e3))
    };
    let bound = middle(records, label, |figures| {
        figures.bound_per_s.map(|bound| figures.per_s * 100.0 / bound)
    });
    let plain = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
    let _ = writeln!(
        text,
        "| {label} | {per_s:.0} | {} | {} / {} | {} / {} / {} / {} / {} | {} | {} | {} |",
        ratio(records, baseline, label),
        millis(|figures| figures.p50_us),
        millis(|figures| figures.p99_us),
        part(Part::App),
        part(Part::Database),
        part(Part::Daprd),
        part(Part::Redis),
        part(Part::Load),
        bound.map_or("-".to_owned(), |bound| format!("{bound:.0} %")),
        plain(middle(records, label, |figures| figures.fsyncs_per_1000)),
        plain(middle(records, label, |figures| figures.resident_peak_mib)),
    );
}

/// Events a second, divided by the baseline's in the same round.
fn ratio(records: &[Record], baseline: &str, label: &str) -> String {
    let by_round = |label| -> BTreeMap<u32, f64> {
        of(records, label)
            .filter_map(|record| Some((record.round, record.figures.as_ref()?.per_s)))
            .collect()
    };
    let (theirs, own) = (by_round(baseline), by_round(label));
    let ratios: Vec<f64> =
        own.iter().filter_map(|(round, value)| Some(value / theirs.get(round)?)).collect();
    match (median(&ratios), range(&ratios)) {
        _ if baseline == label => "1".to_owned(),
        (Some(middle), Some((least, most))) => {
            format!("{middle:.2} ({least:.2}-{most:.2}, n={})", ratios.len())
        }
        _ => "-".to_owned(),
    }
}

/// What only some cells have.
fn more(text: &mut String, records: &[Record], labels: &[&str]) {
    let mut lines = String::new();
    for label in labels {
        let mut names: Vec<&String> = of(records, label)
            .filter_map(|record| record.figures.as_ref())
            .flat_map(|figures| figures.more.keys())
            .collect();
        names.sort();
        names.dedup();
        let values: Vec<String> = names
            .into_iter()
            .filter_map(|name| {
                let value = middle(records, label, |figures| figures.more.get(name).copied())?;
                let digits = usize::from(value < 100.0);
                Some(format!("{} {value:.digits$}", name.replace('_', " ")))
            })
            .collect();
        if !values.is_empty() {
            let _ = writeln!(lines, "- {label}: {}", values.join(", "));
        }
    }
    if !lines.is_empty() {
        let _ = write!(text, "\n{lines}");
    }
}

fn notes(text: &mut String, records: &[Record]) {
    let mut reasons: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for record in records {
        if let Some(reason) = &record.void {
            *reasons.entry((&record.label, reason)).or_default() += 1;
        }
    }
    if !reasons.is_empty() {
        text.push_str("\nVoid cells:\n\n");
    }
    for ((label, reason), times) in reasons {
        let _ = writeln!(text, "- {label} ({times}): {reason}");
    }
    let figures = || records.iter().filter_map(|record| record.figures.as_ref());
    let stolen = figures().map(|figures| figures.stolen_percent).fold(0.0, f64::max);
    if stolen > STOLEN_PERCENT_TOLD {
        let _ =
            writeln!(text, "\nThe hypervisor took up to {stolen:.0} % of the machine meanwhile.");
    }
    let most = figures().map(|figures| figures.others_percent).fold(0.0, f64::max);
    if most > OTHERS_PERCENT_TOLD {
        let _ = writeln!(
            text,
            "\nOther programs took up to {most:.0} % of the machine while this was measured."
        );
    }
}
