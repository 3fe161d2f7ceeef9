//! Any environment: it is read or refused, and what is refused is not repeated.
//!
//! An input is `NAME=value` pairs with a NUL byte between two of them.

use crate::{Config, Origin};

/// Stands in the seeds and in the dictionary for what must not be shown.
const MARK: &str = "hunter2";
/// The variables whose values are never shown.
const SECRETS: [&str; 2] = ["APP_API_TOKEN", "DAPR_API_TOKEN"];

/// Tries one input.
///
/// # Panics
/// When a promise is broken.
pub fn configuration(input: &[u8]) {
    let input = String::from_utf8_lossy(input);
    let variables: Vec<(String, String)> = input
        .split('\0')
        .filter_map(|pair| pair.split_once('='))
        // A name is shown, of course.
        .filter(|(name, _)| !name.contains(MARK))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    match Config::from_vars(variables.clone()) {
        Err(error) => {
            assert!(!error.problems.is_empty());
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(MARK), "a value is repeated");
        }
        Ok(config) => {
            let is_secret = |name: &str| SECRETS.contains(&name);
            let is_marked =
                |(name, value): &(String, String)| value.contains(MARK) && !is_secret(name);
            let settings = config.effective();
            if !variables.iter().any(is_marked) {
                assert!(!format!("{config:?} {settings:?}").contains(MARK), "a secret is shown");
            }
            let given = settings.iter().filter(|setting| {
                setting.source == Origin::Environment && !is_secret(setting.name)
            });
            let again = given.map(|setting| (setting.name.to_owned(), setting.value.clone()));
            let again = Config::from_vars(again).expect("what is in effect is accepted again");
            for (before, after) in settings.iter().zip(again.effective()) {
                assert!(is_secret(before.name) || *before == after, "it is read otherwise");
            }
        }
    }
}
