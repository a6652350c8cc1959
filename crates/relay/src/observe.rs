//! What is seen of a relay's work: metrics, latencies, and a line for each event in the log.
//!
//! Metrics go through the facade `metrics` where the feature of that name is on; whoever wants them
//! installs a recorder before the relay is made. Their names are [`posthaste_core::metric`]'s. Every
//! relay tells its own figures once a second; those of the outbox come from the relay that keeps
//! house, and are `NaN` in the others.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use posthaste_core::{Envelope, transport::Outcome};
use tracing::Level;

pub use posthaste_core::metric::*;

use crate::{
    Stats,
    driver::Driver,
    latency::Latencies,
    log::{Brief, LogTenant, field},
    meters::Meters,
};

/// Buckets that suit both latencies, in seconds: a recorder is told so by its owner.
pub const LATENCY_BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 300.0];

/// How often a relay's own figures are told.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// So many failures are remembered for the log before those that are settled are looked for.
const MOST_BRIEFS: usize = 4_096;

/// Says what each metric means. Done by every relay; a writer without one can call it itself.
#[cfg(feature = "metrics")]
pub fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

    describe_counter!(ENQUEUE_TOTAL, "Events written to the outbox");
    describe_counter!(DISPATCH_TOTAL, "Answers of destinations, by result");
    describe_histogram!(
        DISPATCH_LATENCY_SECONDS,
        Unit::Seconds,
        "How long a destination took to answer"
    );
    describe_histogram!(
        DELIVERY_LATENCY_SECONDS,
        Unit::Seconds,
        "From insert, or the time an event was delayed to, to acknowledgement"
    );
    describe_counter!(DEAD_TOTAL, "Events given up on");
    describe_gauge!(PENDING_COUNT, "Events that wait for their first delivery");
    describe_gauge!(RETRY_COUNT, "Events that failed and will be tried again");
    describe_gauge!(LOCKED_COUNT, "Events claimed under a row lease");
    describe_gauge!(DEAD_COUNT, "Dead events");
    describe_gauge!(COUNTS_ESTIMATED, "1 when the counts are estimates");
    describe_gauge!(TENANT_PENDING_COUNT, "The backlog of a tenant");
    describe_gauge!(
        OLDEST_PENDING_SECONDS,
        Unit::Seconds,
        "Age of the oldest event that could be delivered"
    );
    describe_counter!(HOT_ENQUEUED_TOTAL, "Events that came over the hot path");
    describe_counter!(HOT_DROPPED_TOTAL, "Events that found the hot queue full");
    describe_counter!(COLD_ENQUEUED_TOTAL, "Events that came from polls");
    describe_gauge!(HOT_QUEUE_DEPTH, "Events from the hot path that wait in this relay");
    describe_gauge!(COLD_QUEUE_DEPTH, "Events from polls that wait in this relay");
    describe_gauge!(MEMORY_BYTES, "Bytes of events in this relay's memory, all copies counted");
    describe_gauge!(SHARDS_OWNED, "Shards that this relay owns");
    describe_gauge!(STALLED_EVENTS, "Events that could be handed over and are not");
    describe_gauge!(STALL_AGE_SECONDS, Unit::Seconds, "For how long the first of them stalls");
    describe_gauge!(RELAYS_ALIVE, "Relays of the outbox that are alive, as this one sees it");
    describe_counter!(STALE_SETTLES_TOTAL, "Outcomes refused because the lease was lost");
    describe_gauge!(BREAKER_STATE, "0 closed, 1 half-open, 2 open");
    describe_counter!(PURGED_TOTAL, "Rows removed past their retention");
    describe_counter!(INBOX_DUPLICATES_TOTAL, "Messages that an inbox had handled before");
}

/// Sees every answer of a destination.
pub(crate) struct Observer {
    pub(crate) meters: Meters,
    latencies: Mutex<Latencies>,
    log_tenant: LogTenant,
}

impl Observer {
    pub(crate) fn new(meters: Meters, log_tenant: LogTenant) -> Self {
        Self { meters, latencies: Mutex::new(Latencies::new(Instant::now())), log_tenant }
    }

    /// A destination has answered. Gives what the log will say of those it did not take.
    pub(crate) fn published(
        &self,
        destination: &str,
        batch: &[Envelope],
        outcomes: &[Outcome],
        took: Duration,
    ) -> Vec<(i64, Brief)> {
        let now = Timestamp::now();
        let latency = |envelope: &Envelope| {
            let due = envelope.event.deliver_at().unwrap_or(envelope.created_at);
            let since = due.max(envelope.created_at);
            // The database's clock may be ahead of ours.
            let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            (envelope.replay == 0).then_some(passed)
        };
        self.meters.published(batch, outcomes, took, latency);
        let delivered = || {
            let all = batch.iter().zip(outcomes);
            all.filter(|(_, outcome)| **outcome == Outcome::Delivered).map(|(envelope, _)| envelope)
        };
        {
            let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
            let at = Instant::now();
            delivered().filter_map(latency).for_each(|passed| latencies.record(passed, at));
        }
        if tracing::enabled!(Level::DEBUG) {
            for envelope in delivered() {
                let Brief { id, topic, aggregate_type, tenant } =
                    Brief::of(envelope, self.log_tenant);
                tracing::debug!(
                    event.id = %id,
                    topic,
                    aggregate_type,
                    attempts = envelope.attempts,
                    tenant = field(tenant.as_ref()),
                    destination,
                    "delivered"
                );
            }
        }
        let failed = batch.iter().zip(outcomes).filter(|(_, o)| **o != Outcome::Delivered);
        failed.map(|(e, _)| (e.sequence, Brief::of(e, self.log_tenant))).collect()
    }

    /// Half and 95 of 100 deliveries of the last seconds took less than this, in milliseconds.
    fn quantiles(&self, now: Instant) -> [Option<f64>; 2] {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.quantiles([0.5, 0.95], now)
    }
}

/// When figures were told last, and what they were.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    at: Option<Instant>,
    stats: Stats,
    pub(crate) quantiles: [Option<f64>; 2],
}

impl Driver {
    /// Tells this relay's own figures, once a second.
    pub(crate) fn sample(&mut self, now: Instant) {
        if self.sampled.at.is_some_and(|at| now < at + SAMPLE_INTERVAL) {
            return;
        }
        self.sampled.at = Some(now);
        self.pulse.overdue_at(self.tasks.overdue_at());
        self.sampled.quantiles = self.observer.quantiles(Instant::now());
        self.tell();
        if self.briefs.len() > MOST_BRIEFS {
            let lanes = &self.lanes;
            self.briefs.retain(|sequence, _| lanes.in_hand(*sequence));
        }
    }

    /// Tells this relay's own figures, also the last ones.
    pub(crate) fn tell(&mut self) {
        let stats = self.stats();
        self.observer.meters.sampled(&self.sampled.stats, &stats);
        self.sampled.stats = stats;
        for (index, breaker) in self.lanes.breakers().into_iter().enumerate() {
            let state = match breaker.state {
                "closed" => 0,
                "half_open" => 1,
                _ => 2,
            };
            self.observer.meters.breaker(index, state);
        }
    }
}
