//! A bounded set of label values: whoever comes too late shares one.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

/// The label of everything beyond the bound, as the OpenTelemetry conventions spell it; no code
/// can be called so.
pub const OTHER: &str = "_OTHER";

#[derive(Debug)]
pub(super) struct Labels {
    max: usize,
    known: RwLock<HashSet<String>>,
}

impl Labels {
    /// At most `max` values, these among them from the start.
    pub(super) fn with_known(max: usize, known: impl IntoIterator<Item = &'static str>) -> Self {
        Self { max, known: RwLock::new(known.into_iter().map(str::to_owned).collect()) }
    }

    /// The text itself, or [`OTHER`] when the set is full of others.
    pub(super) fn label(&self, text: &str) -> String {
        let is_known = |known: &HashSet<String>| known.contains(text);
        if is_known(&self.known.read().unwrap_or_else(PoisonError::into_inner)) {
            return text.to_owned();
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if is_known(&known) || known.len() < self.max {
            known.insert(text.to_owned());
            return text.to_owned();
        }
        OTHER.to_owned()
    }
}
