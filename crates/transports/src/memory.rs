//! Keeps what was delivered in memory: for tests, demos and benchmarks.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use posthaste_core::{
    Envelope,
    transport::{Acceptance, Capabilities, Outcome, Transport},
};
use tokio::sync::watch;

/// Decides what becomes of an event before it counts as delivered.
type Script = Box<dyn Fn(&Envelope) -> Outcome + Send + Sync>;

/// Accepts everything at once and remembers it. Clones share their memory.
#[derive(Clone)]
pub struct MemoryTransport(Arc<Inner>);

struct Inner {
    delivered: Mutex<Vec<Envelope>>,
    /// How many were delivered; tests wait on it.
    count: watch::Sender<usize>,
    script: Option<Script>,
    max_batch: usize,
}

impl MemoryTransport {
    /// Delivers everything.
    pub fn new() -> Self {
        Self::build(None, 500)
    }

    /// Lets a function decide each event's outcome, one event a publish, so that one event's
    /// failure or panic is its own.
    pub fn scripted(script: impl Fn(&Envelope) -> Outcome + Send + Sync + 'static) -> Self {
        Self::build(Some(Box::new(script)), 1)
    }

    fn build(script: Option<Script>, max_batch: usize) -> Self {
        Self(Arc::new(Inner {
            delivered: Mutex::default(),
            count: watch::Sender::new(0),
            script,
            max_batch,
        }))
    }

    /// What was delivered so far, in order.
    pub fn delivered(&self) -> Vec<Envelope> {
        self.0.delivered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until at least this many were delivered.
    pub async fn wait_for(&self, count: usize) {
        let mut watching = self.0.count.subscribe();
        // The sender lives as long as `self`: waiting cannot fail.
        let _ = watching.wait_for(|delivered| *delivered >= count).await;
    }
}

impl Default for MemoryTransport {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Transport for MemoryTransport {
    fn name(&self) -> &str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: self.0.max_batch,
            acceptance: Acceptance::Prefix,
            ..Capabilities::default()
        }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut accepted = Vec::with_capacity(batch.len());
        for envelope in batch {
            let outcome = match &self.0.script {
                Some(script) => script(envelope),
                None => Outcome::Delivered,
            };
            if outcome == Outcome::Delivered {
                accepted.push(envelope.clone());
            }
            outcomes.push(outcome);
        }
        let mut delivered = self.0.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        delivered.append(&mut accepted);
        // Under the lock: told later, a smaller number could take the place of a greater one.
        self.0.count.send_replace(delivered.len());
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use posthaste_core::Event;

    use super::*;

    #[test]
    fn what_is_published_side_by_side_never_counts_for_less() {
        const THREADS: usize = 4;
        const EACH: usize = 20_000;

        let event = Event::builder("T").raw_json("{}").build().unwrap();
        let created_at = event.occurred_at();
        let envelope =
            Envelope { sequence: 1, attempts: 0, replay: 0, created_at, topic: None, event };
        let transport = MemoryTransport::new();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let mut known = 0;
                    for _ in 0..EACH {
                        runtime.block_on(transport.publish(std::slice::from_ref(&envelope)));
                        let count = *transport.0.count.borrow();
                        assert!(count > known, "{count} behind {known}");
                        known = count;
                    }
                });
            }
        });
        assert_eq!(*transport.0.count.borrow(), THREADS * EACH);
    }
}
