//! Reading the table's variables and gathering every problem.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::values;
use super::variables::{ALL, Fallback, Kind, Variable};
use super::{Config, Origin, Setting};

/// A variable that was given: its name, and its value when that is UTF-8.
pub(super) type Given = (String, Result<String, ()>);

const PREFIX: &str = "BACKSTOP_";

/// Why the configuration cannot be used: every problem there is. The cause is the environment;
/// trying again without changing it is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong; never holds a variable's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The variable.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
    /// How a good value looks, or the name that was probably meant.
    pub advice: Option<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => f.write_str("The configuration has a problem:")?,
            n => write!(f, "The configuration has {n} problems:")?,
        }
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.problem)?;
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// Hands out values by the table. After a problem a placeholder stands in for the value, and the
/// [`Config`] around it is never handed out.
pub(super) struct Reader {
    given: BTreeMap<&'static str, String>,
    problems: Vec<Problem>,
    troubled: BTreeSet<&'static str>,
}

impl Reader {
    pub(super) fn new(variables: impl Iterator<Item = Given>) -> Self {
        let mut reader =
            Self { given: BTreeMap::new(), problems: Vec::new(), troubled: BTreeSet::new() };
        for (name, value) in variables {
            match (ALL.iter().find(|variable| variable.name == name), value) {
                (Some(variable), Ok(value)) => reader.give(variable, &value),
                (Some(variable), Err(())) => reader.problem(variable, "is not UTF-8".to_owned()),
                (None, value) => reader.refuse_unknown(&name, &value.unwrap_or_default()),
            }
        }
        reader
    }

    /// The parsed value: the one given, else the default.
    pub(super) fn parsed<T>(
        &mut self,
        variable: &'static Variable,
        placeholder: T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> T {
        self.optional(variable, parse).unwrap_or(placeholder)
    }

    /// The parsed value, when there is one.
    pub(super) fn optional<T>(
        &mut self,
        variable: &'static Variable,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if self.troubled.contains(variable.name) {
            return None;
        }
        let text = match (self.given.get(variable.name), &variable.default) {
            (Some(text), _) => text.as_str(),
            (None, Fallback::Value(text)) => text,
            (None, Fallback::Unset(_)) => return None,
        };
        match parse(text) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.problem(variable, problem);
                None
            }
        }
    }

    pub(super) fn secs(&mut self, variable: &'static Variable) -> Duration {
        let Kind::Secs { min, max } = variable.kind else {
            self.problem(variable, "is not declared as seconds".to_owned());
            return Duration::ZERO;
        };
        self.parsed(variable, Duration::ZERO, |text| values::secs(text, min, max))
    }

    pub(super) fn count<T: TryFrom<u64> + Default>(&mut self, variable: &'static Variable) -> T {
        let Kind::Count { min, max, .. } = variable.kind else {
            self.problem(variable, "is not declared as a number".to_owned());
            return T::default();
        };
        self.parsed(variable, T::default(), |text| values::count(text, min, max))
    }

    pub(super) fn choice<T: Copy + Default>(
        &mut self,
        variable: &'static Variable,
        choices: &[(&str, T)],
    ) -> T {
        self.parsed(variable, T::default(), |text| {
            let chosen = choices.iter().find(|(word, _)| *word == text);
            chosen.map(|(_, value)| *value).ok_or_else(|| {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                format!("must be one of {}", words.join(", "))
            })
        })
    }

    /// Two variables that do not fit together; silent when either is wrong by itself.
    pub(super) fn disagreement(
        &mut self,
        variable: &'static Variable,
        other: &'static Variable,
        say: impl FnOnce(&str) -> (String, String),
    ) {
        if self.troubled.contains(variable.name) || self.troubled.contains(other.name) {
            return;
        }
        let (problem, example) = say(other.name);
        self.file(variable.name, problem, Some(for_example(variable.name, &example)));
    }

    /// Every variable with the value in effect.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let setting = |variable: &&'static Variable| {
            let given = self.given.get(variable.name);
            Setting {
                name: variable.name,
                value: match (given, &variable.default, &variable.kind) {
                    (Some(_), _, Kind::Secret) => "(set)".to_owned(),
                    (Some(text), _, Kind::Url(_)) => values::without_password(text),
                    (Some(text), _, _) => text.clone(),
                    (None, Fallback::Value(text), _) => (*text).to_owned(),
                    (None, Fallback::Unset(means), _) => format!("({})", means.replace('`', "")),
                },
                source: if given.is_some() { Origin::Environment } else { Origin::Default },
                meaning: variable.meaning,
            }
        };
        ALL.iter().map(setting).collect()
    }

    pub(super) fn finish(self, config: Config) -> Result<Config, ConfigError> {
        if self.problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError { problems: self.problems })
        }
    }

    /// Keeps a value, trimmed; empty is not set. A secret is kept as it is, so that a line break
    /// at its end is refused instead of guessed away.
    fn give(&mut self, variable: &'static Variable, value: &str) {
        let trimmed = value.trim();
        if trimmed.is_empty() {
            return;
        }
        let kept = if matches!(variable.kind, Kind::Secret) { value } else { trimmed };
        self.given.insert(variable.name, kept.to_owned());
    }

    fn problem(&mut self, variable: &'static Variable, problem: String) {
        let advice = for_example(variable.name, variable.example);
        self.troubled.insert(variable.name);
        self.file(variable.name, problem, Some(advice));
    }

    fn refuse_unknown(&mut self, name: &str, value: &str) {
        let ours = name.get(..PREFIX.len()).is_some_and(|p| p.eq_ignore_ascii_case(PREFIX));
        if ours && !is_service_link(name, value) {
            let shown: String = name.escape_debug().take(80).collect();
            let advice = nearest(name).map(|known| format!("did you mean {known}?"));
            self.file(&shown, "is not a variable of this service".to_owned(), advice);
        }
    }

    fn file(&mut self, name: &str, problem: String, advice: Option<String>) {
        self.problems.push(Problem { name: name.to_owned(), problem, advice });
    }
}

fn for_example(name: &str, value: &str) -> String {
    format!("for example {name}={value}")
}

/// Whether Kubernetes set it: a Service called `backstop…` gives every pod beside it variables
/// such as `BACKSTOP_SERVICE_HOST` and `BACKSTOP_PORT_8080_TCP_ADDR`.
fn is_service_link(name: &str, value: &str) -> bool {
    let address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let port = ["_TCP_", "_UDP_", "_SCTP_"].iter().any(|part| name.contains(part));
    address
        || name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.contains("_PORT_") && port)
}

/// The known name that is most like this one, when one is like it at all.
fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    let like = |known: &'static str| (distance(&name, known), known);
    let (changes, known) = ALL.iter().map(|variable| like(variable.name)).min()?;
    (changes <= 6 && changes * 3 <= name.len()).then_some(known)
}

/// Levenshtein's distance, for names of a bounded length.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().take(128).enumerate() {
        let mut beside = i + 1;
        let mut next = vec![beside];
        for (right, pair) in b.iter().zip(row.windows(2)) {
            let [diagonal, above] = pair else { continue };
            beside = (diagonal + usize::from(left != *right)).min(above + 1).min(beside + 1);
            next.push(beside);
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}
