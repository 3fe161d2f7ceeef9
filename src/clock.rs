//! Wall time for leases, due times and ages, as microseconds since the Unix epoch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// Microseconds since the Unix epoch: how both databases store a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The time that much later; stays at the largest time instead of overflowing.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, as CloudEvents writes a time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time:.6}"),
            Err(_) => write!(f, "{} us", self.0),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where the time comes from: the system, or a test's hand.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's wall clock.
    #[default]
    System,
    /// Moves only when told to; shared by its clones.
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// A clock that stands at `start` until [`Clock::advance`] moves it.
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self::Manual(Arc::new(AtomicI64::new(start.0)))
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match self {
            #[allow(
                clippy::disallowed_methods,
                reason = "the one place that reads the system's clock"
            )]
            Self::System => {
                let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(0).plus(elapsed)
            }
            Self::Manual(micros) => Timestamp(micros.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock forward; a system clock goes its own way.
    pub fn advance(&self, by: Duration) {
        if let Self::Manual(micros) = self {
            micros.store(self.now().plus(by).0, Ordering::SeqCst);
        }
    }
}
