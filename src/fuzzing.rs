//! What the fuzz targets in `fuzz/` reach of this crate that nobody else does.
//!
//! It exists only under `--cfg fuzzing`, which cargo-fuzz sets, and is no part of the interface.

use crate::event::Event;
pub use crate::event::{Arrival, Form, decode};

/// Whether the data is broken JSON that the sidecar wrapped into a string.
pub fn holds_broken_json(event: &Event) -> bool {
    event.holds_broken_json()
}
