//! Time, as the log sees it. The only place in this crate that asks the system for it.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Microseconds since 1970; may go back.
    fn wall_us(&self) -> u64;
    /// Microseconds since some moment; never goes back.
    fn mono_us(&self) -> u64;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn wall_us(&self) -> u64 {
        // A clock before 1970 reads as 0, which the log refuses as a clock that went back.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn mono_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
