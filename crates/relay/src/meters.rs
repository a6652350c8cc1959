//! The meters of one relay, through the facade `metrics`: handles are made once for each label and
//! kept, so that an event costs a look into a small map.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use posthaste_core::{
    Envelope,
    metric::{self, Labelled},
    store::{Counts, TenantCounts},
    transport::Outcome,
};

use crate::{Stats, observe};

pub(crate) struct Meters {
    outbox: String,
    topics: Mutex<Labelled<Arc<Topic>>>,
    tenants: Mutex<Labelled<Arc<Tenant>>>,
    tenant_limit: usize,
    breakers: Vec<Gauge>,
    relay: RelayMeters,
    counts: CountMeters,
}

/// What every relay says of itself.
struct RelayMeters {
    hot_enqueued: Counter,
    hot_dropped: Counter,
    cold_enqueued: Counter,
    stale_settles: Counter,
    hot_queue: Gauge,
    cold_queue: Gauge,
    memory: Gauge,
    shards_owned: Gauge,
    stalled: Gauge,
    stall_age: Gauge,
    relays_alive: Gauge,
}

/// What the housekeeper says of the outbox.
struct CountMeters {
    pending: Gauge,
    retry: Gauge,
    locked: Gauge,
    dead: Gauge,
    estimated: Gauge,
    oldest: Gauge,
}

/// A tenant's backlog, added up before it is told: several tenants can share it.
struct Tenant {
    backlog: AtomicU64,
    gauge: Gauge,
}

struct Topic {
    results: [Counter; 4],
    dead: Counter,
    dispatch: Histogram,
    delivery: Histogram,
}

impl Meters {
    pub(crate) fn new(outbox: &str, destinations: &[String], tenant_limit: usize) -> Self {
        observe::describe();
        let counter = |name: &'static str| counter!(name, metric::OUTBOX => outbox.to_owned());
        let gauge = |name: &'static str| gauge!(name, metric::OUTBOX => outbox.to_owned());
        let breaker = |destination: &String| {
            gauge!(
                metric::BREAKER_STATE,
                metric::OUTBOX => outbox.to_owned(),
                "destination" => destination.clone()
            )
        };
        Self {
            topics: Mutex::new(Labelled::new(metric::TOPICS)),
            tenants: Mutex::new(Labelled::new(tenant_limit)),
            tenant_limit,
            breakers: destinations.iter().map(breaker).collect(),
            relay: RelayMeters {
                hot_enqueued: counter(metric::HOT_ENQUEUED_TOTAL),
                hot_dropped: counter(metric::HOT_DROPPED_TOTAL),
                cold_enqueued: counter(metric::COLD_ENQUEUED_TOTAL),
                stale_settles: counter(metric::STALE_SETTLES_TOTAL),
                hot_queue: gauge(metric::HOT_QUEUE_DEPTH),
                cold_queue: gauge(metric::COLD_QUEUE_DEPTH),
                memory: gauge(metric::MEMORY_BYTES),
                shards_owned: gauge(metric::SHARDS_OWNED),
                stalled: gauge(metric::STALLED_EVENTS),
                stall_age: gauge(metric::STALL_AGE_SECONDS),
                relays_alive: gauge(metric::RELAYS_ALIVE),
            },
            counts: CountMeters {
                pending: gauge(metric::PENDING_COUNT),
                retry: gauge(metric::RETRY_COUNT),
                locked: gauge(metric::LOCKED_COUNT),
                dead: gauge(metric::DEAD_COUNT),
                estimated: gauge(metric::COUNTS_ESTIMATED),
                oldest: gauge(metric::OLDEST_PENDING_SECONDS),
            },
            outbox: outbox.to_owned(),
        }
    }

    /// A destination has answered for these, after so long; each delivered one has its latency.
    pub(crate) fn published(
        &self,
        batch: &[Envelope],
        outcomes: &[Outcome],
        took: Duration,
        latency: impl Fn(&Envelope) -> Option<Duration>,
    ) {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        for (envelope, outcome) in batch.iter().zip(outcomes) {
            let topic = topics.get(envelope.topic(), |topic| self.topic(topic));
            let result = match outcome {
                Outcome::Delivered => 0,
                Outcome::Retry { .. } | Outcome::TimedOut { .. } => 1,
                Outcome::Dead { .. } => 2,
                Outcome::Unavailable { .. } => 3,
            };
            topic.results[result].increment(1);
            topic.dispatch.record(took);
            if let Some(latency) = latency(envelope).filter(|_| result == 0) {
                topic.delivery.record(latency);
            }
        }
    }

    /// An event of this topic was given up on.
    pub(crate) fn dead(&self, topic: &str) {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        topics.get(topic, |topic| self.topic(topic)).dead.increment(1);
    }

    /// What has changed since the last sample.
    pub(crate) fn sampled(&self, last: &Stats, now: &Stats) {
        let RelayMeters { hot_enqueued, hot_dropped, cold_enqueued, stale_settles, .. } =
            &self.relay;
        for (counter, last, now) in [
            (hot_enqueued, last.hot_enqueued, now.hot_enqueued),
            (hot_dropped, last.hot_dropped, now.hot_dropped),
            (cold_enqueued, last.cold_enqueued, now.cold_enqueued),
            (stale_settles, last.stale_settles, now.stale_settles),
        ] {
            counter.increment(now.saturating_sub(last));
        }
        self.relay.hot_queue.set(now.hot_queue as f64);
        self.relay.cold_queue.set(now.cold_queue as f64);
        self.relay.memory.set(now.memory as f64);
        self.relay.shards_owned.set(f64::from(now.shards_owned));
        self.relay.stalled.set(now.stalled as f64);
        self.relay.stall_age.set(now.stall_age_s.unwrap_or_default());
    }

    /// The breaker of the destination with this number: 0 closed, 1 half-open, 2 open.
    pub(crate) fn breaker(&self, destination: usize, state: u8) {
        if let Some(gauge) = self.breakers.get(destination) {
            gauge.set(f64::from(state));
        }
    }

    pub(crate) fn relays_alive(&self, count: usize) {
        self.relay.relays_alive.set(count as f64);
    }

    /// How the outbox stands. `None` when that is another relay's to say: what was said here must not
    /// stand beside it for ever.
    pub(crate) fn counted(&self, counted: Option<(&Counts, Option<Duration>)>) {
        let CountMeters { pending, retry, locked, dead, estimated, oldest } = &self.counts;
        let gauges = [pending, retry, locked, dead, estimated, oldest];
        let values = match counted {
            Some((counts, age)) => [
                counts.new as f64,
                counts.retry as f64,
                counts.sending as f64,
                counts.dead as f64,
                f64::from(u8::from(counts.estimated)),
                age.unwrap_or_default().as_secs_f64(),
            ],
            None => [f64::NAN; 6],
        };
        for (gauge, value) in gauges.into_iter().zip(values) {
            gauge.set(value);
        }
        if counted.is_none() {
            self.tenants(None);
        }
    }

    /// The backlog by tenant; `None` when that is another relay's to say.
    pub(crate) fn tenants(&self, counts: Option<&TenantCounts>) {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(counts) = counts else {
            tenants.values().for_each(|tenant| tenant.gauge.set(f64::NAN));
            return;
        };
        tenants.values().for_each(|tenant| tenant.backlog.store(0, Ordering::Relaxed));
        for backlog in &counts.tenants {
            let name = backlog.tenant.as_deref().unwrap_or_default();
            let tenant = tenants.get(name, |name| self.tenant(name));
            tenant.backlog.fetch_add(backlog.events, Ordering::Relaxed);
        }
        for tenant in tenants.values() {
            tenant.gauge.set(tenant.backlog.load(Ordering::Relaxed) as f64);
        }
    }

    /// How many tenants have a label of their own.
    pub(crate) fn tenant_limit(&self) -> usize {
        self.tenant_limit
    }

    /// So many rows of this kind were removed.
    pub(crate) fn purged(&self, kind: &'static str, rows: u64) {
        counter!(
            metric::PURGED_TOTAL,
            metric::OUTBOX => self.outbox.clone(),
            "kind" => kind
        )
        .increment(rows);
    }

    fn tenant(&self, tenant: &str) -> Arc<Tenant> {
        let gauge = gauge!(
            metric::TENANT_PENDING_COUNT,
            metric::OUTBOX => self.outbox.clone(),
            "tenant" => tenant.to_owned()
        );
        Arc::new(Tenant { backlog: AtomicU64::new(0), gauge })
    }

    fn topic(&self, topic: &str) -> Arc<Topic> {
        let labels = [(metric::OUTBOX, self.outbox.clone()), (metric::TOPIC, topic.to_owned())];
        let result = |result: &'static str| {
            counter!(
                metric::DISPATCH_TOTAL,
                metric::OUTBOX => self.outbox.clone(),
                metric::TOPIC => topic.to_owned(),
                "result" => result
            )
        };
        Arc::new(Topic {
            results: metric::RESULTS.map(result),
            dead: counter!(metric::DEAD_TOTAL, &labels),
            dispatch: histogram!(metric::DISPATCH_LATENCY_SECONDS, &labels),
            delivery: histogram!(metric::DELIVERY_LATENCY_SECONDS, &labels),
        })
    }
}
