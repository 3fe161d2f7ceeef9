//! Tables from records, losses as plainly as wins.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::aims;
use crate::cpu::Part;
use crate::machine::Machine;
use crate::record::{Figures, Header, Record};
use crate::results::Kept;
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

/// The whole page.
pub fn page(kept: &[Kept]) -> String {
    let mut page = PREFACE.to_owned();
    page.push_str(&aims::render(kept));
    page.push_str(&machines(kept));
    for Kept { header, records } in kept {
        page.push('\n');
        page.push_str(&render(header, records));
    }
    page
}

/// Where and with what everything was measured.
fn machines(kept: &[Kept]) -> String {
    let mut text = "\n## Where\n\n".to_owned();
    let mut machines: Vec<&Machine> = Vec::new();
    for one in kept {
        if !machines.contains(&&one.header.machine) {
            machines.push(&one.header.machine);
        }
    }
    for machine in &machines {
        let Machine { day, cores, processor, memory_mib, kernel, versions } = machine;
        let gib = *memory_mib as f64 / 1024.0;
        let _ = writeln!(text, "- {day}: {cores} cores of {processor}, {gib:.0} GiB, {kernel}.");
        for version in versions.values() {
            let _ = writeln!(text, "  - {version}");
        }
        if machines.len() > 1 {
            let groups = kept.iter().filter(|one| one.header.machine == **machine);
            let names: Vec<&str> = groups.map(|one| one.header.group.as_str()).collect();
            let _ = writeln!(text, "  - for {}", names.join(", "));
        }
    }
    text.push_str(
        "\nThe peers' settings are in their READMEs, PostgreSQL's that differ from its defaults in \
         `run/src/database.rs`, the sidecar's are the component files and the resiliency of this \
         repository.\n",
    );
    text
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
    let mut text = format!("## {}\n\n{}. Commit {}", header.group, header.about, header.commit);
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

/// A contestant's cells.
pub fn of<'a>(records: &'a [Record], label: &'a str) -> impl Iterator<Item = &'a Record> {
    records.iter().filter(move |record| record.label == label)
}

/// The median over the label's valid cells of what `get` finds in them.
pub fn middle(
    records: &[Record],
    label: &str,
    get: impl Fn(&Figures) -> Option<f64>,
) -> Option<f64> {
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
    let bound = middle(records, label, Figures::percent_of_bound);
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
    if baseline == label {
        return "1".to_owned();
    }
    let ratios = ratios(records, label, baseline, |figures| Some(figures.per_s));
    match (median(&ratios), range(&ratios)) {
        (Some(middle), Some((least, most))) => {
            format!("{middle:.2} ({least:.2}-{most:.2}, n={})", ratios.len())
        }
        _ => "-".to_owned(),
    }
}

/// What `get` finds for one, divided by what it finds for the other in the same round.
pub fn ratios(
    records: &[Record],
    label: &str,
    baseline: &str,
    get: impl Fn(&Figures) -> Option<f64>,
) -> Vec<f64> {
    let by_round = |label| -> BTreeMap<u32, f64> {
        of(records, label)
            .filter_map(|record| Some((record.round, get(record.figures.as_ref()?)?)))
            .collect()
    };
    let theirs = by_round(baseline);
    let own = by_round(label).into_iter();
    own.filter_map(|(round, value)| Some(value / theirs.get(&round)?)).collect()
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
