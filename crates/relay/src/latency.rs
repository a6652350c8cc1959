//! How long deliveries took in the last seconds, in few bytes: counts in buckets that grow by a
//! twelfth, in two halves that take turns.

use std::time::{Duration, Instant};

/// Buckets to a doubling.
const STEPS: f64 = 8.0;

/// From a microsecond to a month.
const BUCKETS: usize = 42 * STEPS as usize;

/// How long one half is filled.
const HALF: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Latencies {
    halves: [Vec<u32>; 2],
    filling: usize,
    since: Instant,
}

impl Latencies {
    pub(crate) fn new(now: Instant) -> Self {
        Self { halves: [vec![0; BUCKETS], vec![0; BUCKETS]], filling: 0, since: now }
    }

    pub(crate) fn record(&mut self, latency: Duration, now: Instant) {
        self.turn(now);
        let micros = (latency.as_micros() as f64).max(1.0);
        let bucket = (micros.log2() * STEPS) as usize;
        let count = &mut self.halves[self.filling][bucket.min(BUCKETS - 1)];
        *count = count.saturating_add(1);
    }

    /// Below this many milliseconds lie the given shares of the deliveries of the last 5 to 10
    /// seconds; `None` when there were none.
    pub(crate) fn quantiles<const N: usize>(
        &mut self,
        shares: [f64; N],
        now: Instant,
    ) -> [Option<f64>; N] {
        self.turn(now);
        let counts = || (0..BUCKETS).map(|b| u64::from(self.halves[0][b] + self.halves[1][b]));
        let total: u64 = counts().sum();
        shares.map(|share| {
            let mut rest = ((total as f64 * share).ceil() as u64).max(1);
            let bucket = counts().position(|count| {
                let found = count >= rest;
                rest = rest.saturating_sub(count);
                found
            })?;
            Some(((bucket as f64 + 0.5) / STEPS).exp2() / 1_000.0)
        })
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed < HALF {
            return;
        }
        self.filling = 1 - self.filling;
        self.halves[self.filling].fill(0);
        if passed >= HALF * 2 {
            self.halves[1 - self.filling].fill(0);
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_twelfth_and_forget_what_is_old() {
        let start = Instant::now();
        let mut latencies = Latencies::new(start);
        for millis in 1..=100 {
            latencies.record(Duration::from_millis(millis), start);
        }
        let [Some(p50), Some(p95)] = latencies.quantiles([0.5, 0.95], start) else {
            panic!("there were deliveries");
        };
        assert!((45.0..=55.0).contains(&p50), "{p50}");
        assert!((87.0..=103.0).contains(&p95), "{p95}");
        let [still] = latencies.quantiles([0.5], start + HALF);
        assert!(still.is_some());
        assert_eq!(latencies.quantiles([0.5], start + HALF * 3), [None]);
    }
}
