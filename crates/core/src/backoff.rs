//! How long a failed event waits before it is tried again.

use std::{fmt, sync::Arc, time::Duration};

/// A source of jitter: numbers in `0.0..1.0`. Injected, so that tests know what comes.
pub type Random = Arc<dyn Fn() -> f64 + Send + Sync>;

/// No event waits longer than this, whoever asked for it: times are added to clocks, and a sum that
/// is too large for one ends the program.
pub const LONGEST_WAIT: Duration = Duration::from_hours(365 * 24);

/// The waiting time after the nth failure.
#[derive(Clone)]
pub enum Backoff {
    /// `min(cap, base · 2^(n−1))` times a jitter between 0.5 and 1.5.
    Exponential {
        /// The wait after the first failure, before jitter.
        base: Duration,
        /// The longest wait, before jitter.
        cap: Duration,
    },
    /// Always the same.
    Fixed(Duration),
    /// The caller's own: from the number of failures so far (1, 2, …) to the wait.
    Custom(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

impl Backoff {
    /// The wait after failure number `failures` (1 is the first), at most [`LONGEST_WAIT`].
    pub fn wait(&self, failures: u32, random: &Random) -> Duration {
        let wait = match self {
            Self::Exponential { base, cap } => {
                let doublings = failures.saturating_sub(1).min(31);
                let wait = base.saturating_mul(1 << doublings).min(*cap).min(LONGEST_WAIT);
                wait.mul_f64(0.5 + random().clamp(0.0, 1.0))
            }
            Self::Fixed(wait) => *wait,
            Self::Custom(wait) => wait(failures),
        };
        wait.min(LONGEST_WAIT)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::Exponential { base: Duration::from_millis(200), cap: Duration::from_mins(1) }
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exponential { base, cap } => write!(f, "Exponential({base:?}..{cap:?})"),
            Self::Fixed(wait) => write!(f, "Fixed({wait:?})"),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// Jitter from the process's own generator.
pub fn system_random() -> Random {
    Arc::new(fastrand::f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn always(value: f64) -> Random {
        Arc::new(move || value)
    }

    #[test]
    fn exponential_doubles_up_to_the_cap() {
        let backoff = Backoff::default();
        let waits: Vec<_> = [1, 2, 3, 9, 10, 64, u32::MAX]
            .map(|n| backoff.wait(n, &always(0.5)).as_millis())
            .into();
        assert_eq!(waits, [200, 400, 800, 51_200, 60_000, 60_000, 60_000]);
    }

    #[test]
    fn jitter_lies_between_half_and_one_and_a_half() {
        let backoff = Backoff::default();
        assert_eq!(backoff.wait(1, &always(0.0)), Duration::from_millis(100));
        assert_eq!(backoff.wait(1, &always(1.0)), Duration::from_millis(300));
    }

    #[test]
    fn no_wait_is_longer_than_a_year() {
        let exponential = Backoff::Exponential { base: Duration::MAX, cap: Duration::MAX };
        let custom = Backoff::Custom(Arc::new(|_| Duration::MAX));
        for backoff in [exponential, Backoff::Fixed(Duration::MAX), custom] {
            assert!(backoff.wait(9, &always(1.0)) <= LONGEST_WAIT, "{backoff:?}");
        }
    }

    #[test]
    fn the_callers_own_backoff_is_asked_with_the_number_of_failures() {
        let backoff = Backoff::Custom(Arc::new(|n| Duration::from_secs(u64::from(n))));
        assert_eq!(backoff.wait(7, &always(0.0)), Duration::from_secs(7));
        assert_eq!(Backoff::Fixed(Duration::ZERO).wait(3, &always(1.0)), Duration::ZERO);
    }
}
