//! The clock that all processes of a machine share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time since an earlier [`now`].
pub fn since(earlier: u64) -> Duration {
    Duration::from_nanos(now().saturating_sub(earlier))
}
