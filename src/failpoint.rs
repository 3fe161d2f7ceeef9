//! Places where a test can end the process, as a crash would. Compiled in only with the feature
//! `failpoints`; without it every call is nothing.
//!
//! `FAILPOINT=name` ends the process when that place is reached, `FAILPOINT=name@3` at the third
//! time. With `FAILPOINT_WHILE=file` what has reached it waits there for as long as the file exists,
//! and then goes on.

/// The numbered gaps of ARCHITECTURE.md, "Life of a delivery".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// The claim is on disk, the handler has not begun.
    Claimed,
    /// The handler has returned, nothing is committed.
    Handled,
    /// The commit is on disk, the sidecar has no answer.
    Committed,
    /// A failure is on disk, the sidecar has no answer.
    FailureWritten,
    /// The dead letter is taken in, the sidecar has no answer.
    DeadLetterTaken,
    /// A case is on disk, the sidecar has no answer.
    Quarantined,
    /// The sidecar took a message, the cursor has not moved.
    Published,
    /// A recovery run has committed.
    RecoveryCommitted,
    /// A redrive is claimed, its handler has not begun.
    RedriveClaimed,
}

impl Gap {
    #[cfg(feature = "failpoints")]
    const fn as_str(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Handled => "handled",
            Self::Committed => "committed",
            Self::FailureWritten => "failure_written",
            Self::DeadLetterTaken => "dead_letter_taken",
            Self::Quarantined => "quarantined",
            Self::Published => "published",
            Self::RecoveryCommitted => "recovery_committed",
            Self::RedriveClaimed => "redrive_claimed",
        }
    }
}

/// Ends the process here if a test asked for it.
#[cfg(not(feature = "failpoints"))]
pub(crate) const fn reached(_: Gap) {}

/// Ends the process here, or waits, if a test asked for it.
#[cfg(feature = "failpoints")]
#[allow(clippy::disallowed_methods, reason = "a test's own switches, in no shipped build")]
pub(crate) fn reached(gap: Gap) {
    use std::path::Path;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    static WANTED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static TIMES: AtomicU32 = AtomicU32::new(0);

    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("FAILPOINT").ok()?;
        let (name, times) = text.split_once('@').unwrap_or((&text, "1"));
        Some((name.to_owned(), times.parse().ok()?))
    });
    let Some((name, times)) = wanted else { return };
    if name != gap.as_str() || TIMES.fetch_add(1, Ordering::SeqCst) + 1 != *times {
        return;
    }
    let Some(file) = std::env::var_os("FAILPOINT_WHILE") else {
        tracing::error!(gap = gap.as_str(), "A test ends the process here.");
        std::process::abort();
    };
    tracing::error!(gap = gap.as_str(), "A test has this run wait here.");
    tokio::task::block_in_place(|| {
        while Path::new(&file).exists() {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    });
    tracing::error!(gap = gap.as_str(), "A test lets this run go on.");
}
