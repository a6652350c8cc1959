//! Latencies in little memory: counts in buckets, each some 9 % wider than the one before.

use std::{collections::VecDeque, time::Duration};

/// Buckets for each doubling.
const STEPS: f64 = 8.0;

/// From a microsecond to more than an hour.
const BUCKETS: usize = 256;

/// How many seconds the live figures cover.
const SECONDS: usize = 5;

/// How many latencies fell into which bucket.
#[derive(Clone)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0 }
    }
}

impl Histogram {
    fn add(&mut self, latency: Duration) {
        let micros = (latency.as_secs_f64() * 1e6).max(1.0);
        let bucket = (micros.log2() * STEPS) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
    }

    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
    }

    /// The latency that this part of all stayed below, `None` when there was none.
    pub(super) fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = (self.count as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        // The middle of the bucket.
        Some(Duration::from_secs_f64(((bucket as f64 + 0.5) / STEPS).exp2() / 1e6))
    }
}

/// The latencies of the whole run and of the last seconds.
#[derive(Default)]
pub(super) struct Latencies {
    pub(super) whole: Histogram,
    /// The second that is under way stands last.
    recent: VecDeque<Histogram>,
}

impl Latencies {
    pub(super) fn add(&mut self, latency: Duration) {
        self.whole.add(latency);
        if self.recent.is_empty() {
            self.recent.push_back(Histogram::default());
        }
        if let Some(now) = self.recent.back_mut() {
            now.add(latency);
        }
    }

    /// A second has passed.
    pub(super) fn next_second(&mut self) {
        self.recent.push_back(Histogram::default());
        while self.recent.len() > SECONDS {
            self.recent.pop_front();
        }
    }

    pub(super) fn recent(&self) -> Histogram {
        self.recent.iter().fold(Histogram::default(), |mut all, second| {
            all.merge(second);
            all
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_bucket() {
        let mut histogram = Histogram::default();
        (1..=1_000).for_each(|n| histogram.add(Duration::from_micros(n * 10)));
        for (part, millis) in [(0.5, 5.0), (0.99, 9.9), (1.0, 10.0)] {
            let found = histogram.quantile(part).unwrap().as_secs_f64() * 1e3;
            assert!((found / millis - 1.0).abs() < 0.1, "{part}: {found} ms");
        }
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn old_seconds_leave_the_live_figures() {
        let mut latencies = Latencies::default();
        latencies.add(Duration::from_secs(1));
        (0..SECONDS).for_each(|_| latencies.next_second());
        assert_eq!(latencies.recent().quantile(0.5), None);
        assert!(latencies.whole.quantile(0.5).is_some());
    }
}
