//! The kept inputs, and for a few seconds changes of them: as much of the search that `fuzz/run.sh`
//! makes as fits into every run of the tests, without its compiler and its guidance by coverage.

use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::{batch, configuration, envelope};

/// How long one target is tried with inputs that are new in each run.
const LASTS: Duration = Duration::from_secs(if cfg!(feature = "soak") { 60 } else { 2 });
/// Inputs that are the same in each run.
const FIXED: usize = 2000;
/// As in `fuzz/run.sh`.
const INPUT_BYTES_MAX: usize = 4096;
/// Changes of one input at most.
const CHANGES_MAX: usize = 6;
/// What syntax is made of.
const SYNTAX: &[u8] = b"\0\"\\{}[]:,=-+.0129eEtn \n\r\t\xef\xbb\xbf\xc3\xa9\xff\x7f";

#[test]
fn an_event_keeps_its_promises_whatever_the_kept_inputs_and_changes_of_them_say() {
    Search::new("envelope", "event", envelope).run();
}

#[test]
fn a_batch_keeps_its_promises_whatever_the_kept_inputs_and_changes_of_them_say() {
    Search::new("batch", "event", batch).run();
}

#[test]
fn the_configuration_keeps_its_promises_whatever_the_kept_inputs_and_changes_of_them_say() {
    Search::new("configuration", "configuration", configuration).run();
}

/// A target, and what its inputs are made of.
struct Search {
    target: &'static str,
    try_one: fn(&[u8]),
    kept: Vec<(String, Vec<u8>)>,
    words: Vec<Vec<u8>>,
}

impl Search {
    fn new(target: &'static str, dictionary: &str, try_one: fn(&[u8])) -> Self {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        let kept = files_in(&fuzz.join("corpus").join(target));
        let dictionary = fs::read_to_string(fuzz.join("dictionaries").join(dictionary)).unwrap();
        let words: Vec<Vec<u8>> = dictionary.lines().filter_map(word).collect();
        assert!(!kept.is_empty() && !words.is_empty());
        Self { target, try_one, kept, words }
    }

    fn run(&self) {
        for (name, input) in &self.kept {
            self.told(&format!("corpus/{}/{name}", self.target), input);
        }
        let began = Instant::now();
        self.changed(1, &mut |tried| tried < FIXED);
        let until = Instant::now() + LASTS;
        let fresh = RandomState::new().hash_one(0);
        let tried = self.changed(fresh, &mut |_| Instant::now() < until);
        eprintln!("{}: {} inputs in {:.1?}", self.target, FIXED + tried, began.elapsed());
    }

    /// Tries changed inputs for as long as they are wanted, and says how many those were.
    fn changed(&self, seed: u64, wanted: &mut dyn FnMut(usize) -> bool) -> usize {
        let bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
        let mut chance = Chance(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let mut tried = 0;
        while wanted(tried) {
            let input = self.change(&mut chance);
            self.told(&format!("input {tried} of seed {seed}"), &input);
            tried += 1;
        }
        tried
    }

    fn change(&self, chance: &mut Chance) -> Vec<u8> {
        let mut input = chance.one_of(&self.kept).1.clone();
        // Rather few: most inputs shall still be read.
        let most = chance.below(CHANGES_MAX);
        for _ in 0..=chance.below(most + 1) {
            let at = chance.below(input.len() + 1);
            let end = (at + chance.below(16)).min(input.len());
            match chance.below(7) {
                0 => drop(input.drain(at..end)),
                1 => drop(input.splice(at..end, chance.one_of(&self.words).iter().copied())),
                2 => input.insert(at, *chance.one_of(SYNTAX)),
                3 if at < input.len() => input[at] ^= 1 << chance.below(8),
                6 if at < input.len() => input[at] = *chance.one_of(SYNTAX),
                4 => drop(input.splice(at..at, input[at..end].repeat(1 + chance.below(200)))),
                _ => {
                    let other = &chance.one_of(&self.kept).1;
                    let from = chance.below(other.len() + 1);
                    input.truncate(at);
                    input.extend(&other[from..]);
                }
            }
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    /// Tries an input; one that fails is printed.
    fn told(&self, name: &str, input: &[u8]) {
        let telling = Telling { target: self.target, name, input };
        (self.try_one)(input);
        drop(telling);
    }
}

/// Prints the input that is being tried when the thread panics.
struct Telling<'a> {
    target: &'a str,
    name: &'a str,
    input: &'a [u8],
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (target, name) = (self.target, self.name);
            let mut octal = String::new();
            for byte in self.input {
                let _ = write!(octal, "\\{byte:03o}");
            }
            let shown = self.input.escape_ascii();
            eprintln!(
                "{target}, {name}: {shown}\nkeep: printf '{octal}' >fuzz/corpus/{target}/NAME"
            );
        }
    }
}

struct Chance(TestRng);

impl Chance {
    /// One of `0..bound`.
    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap();
        usize::try_from(self.0.next_u64() % bound).unwrap()
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Names and contents, by name.
fn files_in(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    };
    paths.iter().map(named).collect()
}

/// The word of a line of libFuzzer's dictionaries: in double quotes, with `\\`, `\"` and `\xNN`.
fn word(line: &str) -> Option<Vec<u8>> {
    let text = line.strip_prefix('"')?.strip_suffix('"')?;
    let mut word = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).unwrap();
                (u8::from_str_radix(digits, 16).unwrap(), after)
            }
            (b'\\', [escaped, after @ ..]) => (*escaped, after),
            (plain, after) => (*plain, after),
        };
        word.push(byte);
        rest = after;
    }
    Some(word)
}
