//! The load generator's parts that the orchestrator needs too: which events there are, so that it
//! can audit what became of them, and what a run reports.

pub mod event;
pub mod report;
