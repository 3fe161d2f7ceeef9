//! What is tried on the decoder, on batches and on the configuration, with any bytes as input.
//!
//! The fuzz targets in `fuzz/` are these functions; `cargo test` tries the kept inputs and changes
//! of them. It exists only in tests and under `--cfg fuzzing`, which cargo-fuzz sets, and is no part
//! of the interface.
#![allow(clippy::expect_used, reason = "a promise that is broken ends the run")]

mod batch;
mod checks;
mod configuration;
mod envelope;
#[cfg(test)]
mod tests;

pub use batch::batch;
pub use configuration::configuration;
pub use envelope::envelope;
