//! The last ten minutes of an outbox, sampled by the process that serves them.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use posthaste_core::store::Counts;
use posthaste_relay::Stats;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::AdminOutbox;

/// How often the relay's counters are read.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);

/// The database is asked at every fifth of them.
const COUNT_EVERY: u32 = 5;

/// Ten minutes.
const POINTS: usize = 300;

/// One moment. Rates are those of the relay in this process, and null without one; counts are the
/// outbox's.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Point {
    at: Timestamp,
    delivered_per_s: Option<f64>,
    failed_per_s: Option<f64>,
    backlog: Option<u64>,
    dead: Option<u64>,
    delivery_p50_ms: Option<f64>,
    delivery_p95_ms: Option<f64>,
}

/// The points, oldest first.
#[derive(Default)]
pub(crate) struct Series {
    points: Mutex<VecDeque<Point>>,
}

impl Series {
    /// The points after this time.
    pub(crate) fn since(&self, since: Option<Timestamp>) -> Vec<Point> {
        let points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        points.iter().filter(|point| since.is_none_or(|since| point.at > since)).cloned().collect()
    }

    fn push(&self, point: Point) {
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        if points.len() == POINTS {
            points.pop_front();
        }
        points.push_back(point);
    }

    /// Samples until it is dropped.
    pub(crate) async fn sample(&self, outbox: &AdminOutbox) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut counts: Option<Counts> = None;
        let mut before: Option<(Instant, Stats)> = None;
        for turn in (0..COUNT_EVERY).cycle() {
            let now = ticks.tick().await;
            if turn == 0 {
                // Without an answer the line has a gap.
                counts = outbox.store.counts(Counts::CAP).await.ok();
            }
            let stats = outbox.relay.as_ref().map(|relay| relay.stats());
            let rate = |counter: fn(&Stats) -> u64| {
                let (then, earlier) = before.as_ref()?;
                let more = counter(stats.as_ref()?).saturating_sub(counter(earlier));
                Some(more as f64 / now.duration_since(*then).as_secs_f64().max(0.001))
            };
            self.push(Point {
                at: Timestamp::now(),
                delivered_per_s: rate(|stats| stats.delivered),
                failed_per_s: rate(|stats| stats.retried + stats.dead),
                backlog: counts.map(|counts| counts.new + counts.sending + counts.retry),
                dead: counts.map(|counts| counts.dead),
                delivery_p50_ms: stats.and_then(|stats| stats.delivery_p50_ms),
                delivery_p95_ms: stats.and_then(|stats| stats.delivery_p95_ms),
            });
            before = stats.map(|stats| (now, stats));
        }
    }
}
