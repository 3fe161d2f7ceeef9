//! Waiting for a condition instead of for a time.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Enough for anything that happens at once, also on a machine with other things to do.
pub const SOON: Duration = Duration::from_secs(30);
/// Enough for what takes a full run of the sidecar's retries, or several.
pub const LATER: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks until `look` answers `Ok`; fails with what it answered last.
pub async fn eventually<T, E: Debug>(
    patience: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let began = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(last) if began.elapsed() > patience => {
                panic!("waited {} s for: {what}\n  last seen: {last:?}", patience.as_secs())
            }
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Looks until `look` answers `wanted`.
pub async fn becomes<W: Debug, S: Debug + PartialEq<W>>(
    patience: Duration,
    what: &str,
    wanted: W,
    mut look: impl AsyncFnMut() -> S,
) {
    eventually(patience, &format!("{what} = {wanted:?}"), async || {
        let seen = look().await;
        if seen == wanted { Ok(()) } else { Err(seen) }
    })
    .await;
}
