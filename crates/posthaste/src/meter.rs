//! What writers and inboxes count, through the facade `metrics` where the feature of that name is on.

#[cfg(feature = "metrics")]
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "metrics")]
use posthaste_core::metric::{self, Labelled};
use posthaste_core::{Event, TableName};

/// Counts the events that are written to one outbox, by topic.
pub(crate) struct Meter {
    #[cfg(feature = "metrics")]
    outbox: String,
    #[cfg(feature = "metrics")]
    topics: Mutex<Labelled<metrics::Counter>>,
}

#[cfg(feature = "metrics")]
impl Meter {
    pub(crate) fn new(table: &TableName) -> Self {
        Self { outbox: table.to_string(), topics: Mutex::new(Labelled::new(metric::TOPICS)) }
    }

    /// These were written; whether they are committed, nobody knows yet.
    pub(crate) fn enqueued<'e>(&self, events: impl Iterator<Item = &'e Event>) {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            let topic = event.topic().unwrap_or(event.aggregate_type());
            let counter = topics.get(topic, |topic| {
                metrics::counter!(
                    metric::ENQUEUE_TOTAL,
                    metric::OUTBOX => self.outbox.clone(),
                    metric::TOPIC => topic.to_owned()
                )
            });
            counter.increment(1);
        }
    }
}

#[cfg(not(feature = "metrics"))]
#[allow(clippy::unused_self, reason = "the same calls as with the feature")]
impl Meter {
    pub(crate) fn new(_: &TableName) -> Self {
        Self {}
    }

    pub(crate) fn enqueued<'e>(&self, _: impl Iterator<Item = &'e Event>) {}
}

/// An inbox had handled a message before.
#[cfg(feature = "sqlx")]
pub(crate) fn duplicate(table: &TableName) {
    #[cfg(feature = "metrics")]
    metrics::counter!(metric::INBOX_DUPLICATES_TOTAL, metric::OUTBOX => table.to_string())
        .increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = table;
}
