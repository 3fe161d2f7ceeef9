//! What was aimed at, and what was reached: the first table of the page.

use std::fmt::Write as _;

use crate::record::{Figures, Record};
use crate::report::{middle, of, ratios};
use crate::results::Kept;
use crate::stats::{median, range};

/// Something that was aimed at.
struct Aim {
    /// In words.
    about: &'static str,
    /// In which group it is measured.
    group: &'static str,
    /// Of whom.
    label: &'static str,
    /// Against whom; nobody for a figure of its own.
    against: Option<&'static str>,
    /// What is compared.
    figure: Figure,
    /// The bound: at least, or at most.
    wanted: Wanted,
}

#[derive(Clone, Copy)]
enum Figure {
    PerS,
    /// CPU of consumer and database: theirs divided by ours.
    TimesLessCpu,
    P99,
    PeakMib,
    More(&'static str),
}

#[derive(Clone, Copy)]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

use Figure::{More, P99, PeakMib, PerS, TimesLessCpu};
use Wanted::{AtLeast, AtMost};

const fn times(
    about: &'static str,
    group: &'static str,
    label: &'static str,
    against: &'static str,
    least: f64,
) -> Aim {
    Aim { about, group, label, against: Some(against), figure: PerS, wanted: AtLeast(least) }
}

const fn less_cpu(about: &'static str, group: &'static str, label: &'static str) -> Aim {
    let against = Some("go-tx");
    Aim { about, group, label, against, figure: TimesLessCpu, wanted: AtLeast(5.0) }
}

const fn p99(about: &'static str, group: &'static str) -> Aim {
    let against = Some("go-tx");
    Aim { about, group, label: "backstop", against, figure: P99, wanted: AtMost(1.0) }
}

const fn own(about: &'static str, group: &'static str, figure: Figure, wanted: Wanted) -> Aim {
    Aim { about, group, label: "backstop", against: None, figure, wanted }
}

const BULK: &str = "backstop, bulk";

/// All aims; the issue that asked for them is where the numbers are from.
const AIMS: &[Aim] = &[
    times("direct, 64 in flight, PostgreSQL, fsync 0", "direct.pg.0.64", "backstop", "go-tx", 3.5),
    times(
        "direct, 64 in flight, PostgreSQL, fsync 1 ms",
        "direct.pg.1ms.64",
        "backstop",
        "go-tx",
        4.0,
    ),
    times(
        "the same against one CTE an event, fsync 0",
        "direct.pg.0.64",
        "backstop",
        "go-cte",
        2.2,
    ),
    times(
        "the same against one CTE an event, fsync 1 ms",
        "direct.pg.1ms.64",
        "backstop",
        "go-cte",
        2.2,
    ),
    times("through daprd, PostgreSQL, fsync 0", "daprd.pg.0", "backstop", "go-tx", 2.5),
    times("through daprd, PostgreSQL, fsync 1 ms", "daprd.pg.1ms", "backstop", "go-tx", 2.5),
    times("the same against one CTE an event, fsync 0", "daprd.pg.0", "backstop", "go-cte", 1.6),
    times(
        "the same against one CTE an event, fsync 1 ms",
        "daprd.pg.1ms",
        "backstop",
        "go-cte",
        1.6,
    ),
    times(
        "through daprd, bulk against the peer's single delivery, fsync 0",
        "daprd.pg.0",
        BULK,
        "go-tx",
        4.0,
    ),
    times(
        "through daprd, bulk against the peer's single delivery, fsync 1 ms",
        "daprd.pg.1ms",
        BULK,
        "go-tx",
        4.0,
    ),
    times("through daprd, SQLite, fsync 1 ms", "daprd.sqlite.1ms", "backstop", "go-tx", 12.0),
    times("through daprd, SQLite, fsync 0", "daprd.sqlite.0", "backstop", "go-tx", 1.35),
    times(
        "SQLite, fsync 0, against a consumer that does nothing",
        "daprd.sqlite.0",
        "backstop",
        "nothing",
        0.85,
    ),
    times(
        "SQLite, fsync 1 ms, against a consumer that does nothing",
        "daprd.sqlite.1ms",
        "backstop",
        "nothing",
        0.85,
    ),
    less_cpu(
        "CPU an event (consumer and database), times less, direct",
        "direct.pg.0.64",
        "backstop",
    ),
    less_cpu("CPU an event, times less, direct, fsync 1 ms", "direct.pg.1ms.64", "backstop"),
    less_cpu("CPU an event, times less, through daprd", "daprd.pg.0", "backstop"),
    less_cpu("CPU an event, times less, through daprd in bulk", "daprd.pg.0", BULK),
    times(
        "10 million keys remembered against one thousand, PostgreSQL",
        "growth.pg.0",
        "backstop, 10000000 rows",
        "backstop, 1000 rows",
        0.9,
    ),
    times(
        "10 million keys remembered against one thousand, SQLite",
        "growth.sqlite.0",
        "backstop, 10000000 rows",
        "backstop, 1000 rows",
        0.9,
    ),
    times(
        "relay against a SKIP LOCKED delete, an old snapshot open",
        "relay.pg.0",
        "backstop",
        "go-tx",
        50.0,
    ),
    own("peak MiB with 10,000 in flight, PostgreSQL", "parked.pg.0", PeakMib, AtMost(150.0)),
    own("peak MiB with 10,000 in flight, SQLite", "parked.sqlite.0", PeakMib, AtMost(150.0)),
    own(
        "seconds until 10,000 dead letters recovered, PostgreSQL",
        "recovery.pg.0",
        More("secs_until_recovered"),
        AtMost(10.0),
    ),
    own(
        "seconds until 10,000 dead letters recovered, SQLite",
        "recovery.sqlite.0",
        More("secs_until_recovered"),
        AtMost(10.0),
    ),
    p99("p99 at half load, divided by the peer's, PostgreSQL, fsync 0", "open.pg.0"),
    p99("p99 at half load, divided by the peer's, PostgreSQL, fsync 1 ms", "open.pg.1ms"),
    p99("p99 at half load, divided by the peer's, SQLite, fsync 0", "open.sqlite.0"),
    p99("p99 at half load, divided by the peer's, SQLite, fsync 1 ms", "open.sqlite.1ms"),
    times(
        "messages a second against Dapr's own outbox",
        "outbox.pg.0",
        "backstop",
        "dapr-outbox",
        1.0,
    ),
];

impl Figure {
    fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            PerS => Some(figures.per_s),
            TimesLessCpu => figures.app_and_database_us().map(|micros| 1.0 / micros),
            P99 => figures.p99_us.map(|micros| micros as f64),
            PeakMib => figures.resident_peak_mib,
            More(name) => figures.more.get(name).copied(),
        }
    }
}

impl Aim {
    fn values(&self, records: &[Record]) -> Vec<f64> {
        match self.against {
            Some(against) => {
                ratios(records, self.label, against, |figures| self.figure.of(figures))
            }
            None => of(records, self.label)
                .filter_map(|record| self.figure.of(record.figures.as_ref()?))
                .collect(),
        }
    }

    fn verdict(&self, reached: f64) -> &'static str {
        let met = match self.wanted {
            AtLeast(least) => reached >= least,
            AtMost(most) => reached <= most,
        };
        if met { "reached" } else { "**missed**" }
    }

    fn row(&self, kept: Option<&Kept>) -> String {
        let wanted = match self.wanted {
            AtLeast(least) => format!("≥ {least}"),
            AtMost(most) => format!("≤ {most}"),
        };
        let against = self.against.map(|who| format!(" (against {who})")).unwrap_or_default();
        let about = format!("{}{against}", self.about);
        let Some(Kept { header, records }) = kept else {
            let command = format!("make bench ARGS='--only {}'", self.group);
            return format!("| {about} | {wanted} | not measured | | | `{command}` |\n");
        };
        let command = &header.command;
        let values = self.values(records);
        let (Some(reached), Some((low, high))) = (median(&values), range(&values)) else {
            return format!("| {about} | {wanted} | **void** | | | `{command}` |\n");
        };
        let bound = middle(records, self.label, Figures::percent_of_bound);
        let bound = bound.map_or("-".to_owned(), |bound| format!("{bound:.0} %"));
        let verdict = self.verdict(reached);
        let n = values.len();
        let (reached, low, high) = (rounded(reached), rounded(low), rounded(high));
        format!(
            "| {about} | {wanted} | {reached} ({low} to {high}, n={n}) | {verdict} | {bound} | `{command}` |\n"
        )
    }
}

fn rounded(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// The table of aims, and how large the noise was.
pub fn render(kept: &[Kept]) -> String {
    let of_group = |name: &str| kept.iter().find(|one| one.header.group == name);
    let mut text = "\n## What was aimed at\n\n".to_owned();
    text.push_str(
        "Events a second divided by the other's, unless the first column says something else; the \
         median over rounds, with the smallest and the largest.\n\n\
         | aim | wanted | measured | | of the bound | command |\n|---|---|---|---|---|---|\n",
    );
    for aim in AIMS {
        text.push_str(&aim.row(of_group(aim.group)));
    }
    if let Some(noise) = of_group("noise") {
        let get: [(&str, fn(&Figures) -> Option<f64>); 3] = [
            ("events a second", |figures| PerS.of(figures)),
            ("CPU an event", Figures::app_and_database_us),
            ("p99", |figures| P99.of(figures)),
        ];
        text.push_str("\nThe noise floor: one peer divided by itself (group `noise`) gave\n\n");
        for (name, get) in get {
            let values = ratios(&noise.records, "go-tx again", "go-tx", get);
            if let (Some(middle), Some((low, high))) = (median(&values), range(&values)) {
                let n = values.len();
                let _ = writeln!(text, "- {name}: {middle:.2} ({low:.2} to {high:.2}, n={n})");
            }
        }
        text.push_str("\nDifferences within that range mean nothing.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group;

    #[test]
    fn every_aim_is_about_a_group_and_contestants_that_there_are() {
        let groups = group::all();
        for aim in AIMS {
            let group = groups.iter().find(|group| group.name == aim.group);
            let group = group.unwrap_or_else(|| panic!("no group {}", aim.group));
            for label in std::iter::once(aim.label).chain(aim.against) {
                let there = group.contestants.iter().any(|one| one.label == label);
                assert!(there, "{} has no {label}", aim.group);
            }
        }
    }

    #[test]
    fn cpu_is_told_as_how_many_times_less() {
        let of = |micros: f64| {
            let cpu_us = [(crate::cpu::Part::App, micros)].into();
            Figures { cpu_us, ..Figures::default() }
        };
        let (ours, theirs) = (TimesLessCpu.of(&of(40.0)), TimesLessCpu.of(&of(200.0)));
        assert!((ours.unwrap() / theirs.unwrap() - 5.0).abs() < 1e-9);
    }
}
