//! The names of all metrics, in one place, and what keeps their labels few.

use std::collections::HashMap;

/// Events written, by topic. Counted when they are written: a transaction that rolls back was counted,
/// too.
pub const ENQUEUE_TOTAL: &str = "outbox_enqueue_total";
/// Answers of destinations, by topic and [`result`](RESULTS).
pub const DISPATCH_TOTAL: &str = "outbox_dispatch_total";
/// How long a destination took to answer, by topic.
pub const DISPATCH_LATENCY_SECONDS: &str = "outbox_dispatch_latency_seconds";
/// From insert, or from the time an event was delayed to, to acknowledgement, by topic. Replays are
/// left out.
pub const DELIVERY_LATENCY_SECONDS: &str = "outbox_delivery_latency_seconds";
/// Events given up on, by topic.
pub const DEAD_TOTAL: &str = "outbox_dead_total";
/// Events that wait for their first delivery.
pub const PENDING_COUNT: &str = "outbox_pending_count";
/// Events that failed and will be tried again.
pub const RETRY_COUNT: &str = "outbox_retry_count";
/// Events claimed under a row lease (ordering `none`).
pub const LOCKED_COUNT: &str = "outbox_locked_count";
/// Dead events.
pub const DEAD_COUNT: &str = "outbox_dead_count";
/// 1 when the counts above are estimates, because there is more than is counted.
pub const COUNTS_ESTIMATED: &str = "outbox_counts_estimated";
/// The backlog of a tenant, for the first few tenants that had one; the others are `other`.
pub const TENANT_PENDING_COUNT: &str = "outbox_tenant_pending_count";
/// The age of the oldest event that could be delivered and is not.
pub const OLDEST_PENDING_SECONDS: &str = "outbox_oldest_pending_seconds";
/// Events that came over the hot path.
pub const HOT_ENQUEUED_TOTAL: &str = "outbox_hot_enqueued_total";
/// Events that found the hot queue full and were left to the poller.
pub const HOT_DROPPED_TOTAL: &str = "outbox_hot_dropped_total";
/// Events that came from polls.
pub const COLD_ENQUEUED_TOTAL: &str = "outbox_cold_enqueued_total";
/// Events from the hot path that wait in this relay.
pub const HOT_QUEUE_DEPTH: &str = "outbox_hot_queue_depth";
/// Events from polls that wait in this relay.
pub const COLD_QUEUE_DEPTH: &str = "outbox_cold_queue_depth";
/// Bytes of events in a relay's memory, all copies counted.
pub const MEMORY_BYTES: &str = "outbox_memory_bytes";
/// Shards that this relay owns.
pub const SHARDS_OWNED: &str = "outbox_shards_owned";
/// Events that could be handed over and are not, for no reason that this relay knows.
pub const STALLED_EVENTS: &str = "outbox_stalled_events";
/// For how long the first of them stalls; 0 when there is none.
pub const STALL_AGE_SECONDS: &str = "outbox_stall_age_seconds";
/// Relays of the outbox that are alive, as this one sees it.
pub const RELAYS_ALIVE: &str = "outbox_relays_alive";
/// Outcomes that were refused because the lease was lost.
pub const STALE_SETTLES_TOTAL: &str = "outbox_stale_settles_total";
/// 0 closed, 1 half-open, 2 open, by destination.
pub const BREAKER_STATE: &str = "outbox_breaker_state";
/// Rows removed past their retention, by kind: `event`, `inbox`, `idempotency`.
pub const PURGED_TOTAL: &str = "outbox_purged_total";
/// Messages that an inbox had handled before.
pub const INBOX_DUPLICATES_TOTAL: &str = "outbox_inbox_duplicates_total";

/// The label of an outbox: its name in the configuration, or its table.
pub const OUTBOX: &str = "outbox";
/// The label of a topic.
pub const TOPIC: &str = "topic";
/// The values of the label `result` of [`DISPATCH_TOTAL`].
pub const RESULTS: [&str; 4] = ["success", "retry", "dead", "unavailable"];

/// How many topics have a label of their own.
pub const TOPICS: usize = 100;

/// What stands for all labels beyond the limit.
pub const OTHER: &str = "other";

/// Something for each label, up to a limit; all beyond it share one called [`OTHER`].
#[derive(Debug)]
pub struct Labelled<T> {
    of: HashMap<String, T>,
    limit: usize,
}

impl<T: Clone> Labelled<T> {
    /// For at most so many labels.
    pub fn new(limit: usize) -> Self {
        Self { of: HashMap::new(), limit }
    }

    /// What belongs to this label, made when it is first met.
    pub fn get(&mut self, label: &str, make: impl FnOnce(&str) -> T) -> T {
        if let Some(known) = self.of.get(label) {
            return known.clone();
        }
        if self.of.len() >= self.limit && label != OTHER {
            return self.get(OTHER, make);
        }
        let made = make(label);
        self.of.insert(label.to_owned(), made.clone());
        made
    }

    /// All there are.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.of.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_beyond_the_limit_share_one() {
        let mut names = Labelled::new(2);
        let met: Vec<String> =
            ["a", "b", "c", "d", "a"].map(|label| names.get(label, str::to_owned)).into();
        assert_eq!(met, ["a", "b", OTHER, OTHER, "a"]);
        assert_eq!(names.values().count(), 3);
    }
}
