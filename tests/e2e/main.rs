//! The service behind a real sidecar and a real broker, broken on purpose in every way that a
//! user has been promised to survive.
//!
//! Each test starts a world of its own (`harness.rs`): a Redis, a daprd with the files that are
//! shipped, the service binary and an inventory that does as it is told. What a test shortens of
//! the shipped settings it says where it does so. No test skips: where daprd or Redis are missing
//! it fails and says how to get them, and so it does where it may not mount the disk that gets full.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says so"
)]

mod batches;
mod breaker;
mod bulk;
mod cooldown;
mod crash_loops;
mod crashes;
mod dead_letters;
mod dependency_away;
mod duplicates;
mod exhausted;
#[cfg(feature = "failpoints")]
mod gaps;
mod harness;
mod in_memory;
mod malformed;
mod outbox;
mod processes_away;
mod redelivery;
mod replicas;
mod retries;
mod sample;
mod sidecar;
mod stops;
mod store_away;

#[path = "../../examples/local/dapr_yaml.rs"]
mod dapr_yaml;
#[path = "../../examples/local/inventory.rs"]
mod inventory;
#[path = "../support/postgres.rs"]
#[allow(dead_code, reason = "the store's own tests use more of it")]
mod postgres;
#[path = "../../examples/local/process.rs"]
mod process;
