//! The demo's destination: in memory, a little slow, failing now and then, and allergic to some.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste::{
    Envelope,
    transport::{Outcome, Transport},
};

use super::ledger::Ledger;

/// The header of an event that is never accepted.
pub(super) const POISON: &str = "demo-poison";

/// One attempt in so many fails.
const FAILS: u32 = 25;

pub(super) struct Destination {
    ledger: Arc<Ledger>,
}

impl Destination {
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger }
    }
}

#[async_trait]
impl Transport for Destination {
    fn name(&self) -> &str {
        "demo"
    }

    /// One event a publish, as declared by default.
    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for envelope in batch {
            outcomes.push(self.receive(envelope).await);
        }
        outcomes
    }
}

impl Destination {
    async fn receive(&self, envelope: &Envelope) -> Outcome {
        // Time in which a later event of the same order would overtake, if the relay let it.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..1_000))).await;
        let event = &envelope.event;
        if event.headers().contains_key(POISON) {
            return Outcome::retry("the demo's destination cannot read this event");
        }
        if fastrand::u32(..FAILS) == 0 {
            return Outcome::retry("the demo's destination stumbled, on purpose");
        }
        if let Some(order) = order(envelope) {
            // As the relay measures it, and the dashboard shows it. The database's clock may be ahead.
            let waited = Timestamp::now().duration_since(envelope.created_at);
            self.ledger.delivered(order, event.id(), waited.try_into().unwrap_or_default());
        }
        Outcome::Delivered
    }
}

/// Which order an event is about.
pub(super) fn order(envelope: &Envelope) -> Option<i64> {
    envelope.event.aggregate_id()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use posthaste::Event;

    use super::*;

    /// Not from when the destination was asked, nor from when the shop committed.
    #[tokio::test]
    async fn a_latency_counts_from_the_insert_as_the_relays_does() {
        let ledger = Arc::new(Ledger::new());
        let destination = Destination::new(Arc::clone(&ledger));
        ledger.order(7);
        let event = Event::builder("OrderPlaced").aggregate("Order", 7).raw_json("{}");
        let envelope = Envelope {
            sequence: 1,
            attempts: 0,
            replay: 0,
            created_at: Timestamp::now() - SignedDuration::from_secs(1),
            topic: None,
            event: event.build().unwrap(),
        };
        // It stumbles now and then.
        while destination.publish(std::slice::from_ref(&envelope)).await != [Outcome::Delivered] {}
        let (running, latency) = ledger.running();
        assert_eq!(running.delivered, 1);
        // The middle of a bucket, which is 9 % wide.
        let latency = latency.quantile(0.5).unwrap().as_secs_f64();
        assert!((0.9..10.0).contains(&latency), "{latency} s");
    }
}
