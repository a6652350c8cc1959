//! What all cases need: a topic of their own, events for it, and words for what became of them.

use std::{sync::Arc, time::Duration};

use posthaste_core::{
    Envelope, Event,
    transport::{Outcome, Transport},
};
use uuid::Uuid;

use super::{Destination, Options, Received, Server, Traits};

/// Between two tries of an event that was not delivered.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Timeouts for cases in which nobody answers.
pub(super) fn impatient() -> Options {
    Options {
        connect_timeout: Some(Duration::from_secs(2)),
        publish_timeout: Some(Duration::from_secs(2)),
        ..Options::default()
    }
}

/// A topic on a server, for one case.
pub(super) struct Topic<'a> {
    pub(super) destination: &'a dyn Destination,
    pub(super) traits: Traits,
    pub(super) url: String,
    pub(super) name: String,
}

impl<'a> Topic<'a> {
    /// On the server that all cases share, made ready.
    pub(super) async fn shared(destination: &'a dyn Destination) -> Self {
        let topic = Self::at(destination, destination.url());
        topic.prepare().await;
        topic
    }

    /// On a server of the case's own, which may be down: not made ready.
    pub(super) fn on(destination: &'a dyn Destination, server: &Server) -> Self {
        Self::at(destination, server.url())
    }

    fn at(destination: &'a dyn Destination, url: String) -> Self {
        let random = Uuid::now_v7().as_u128() as u64;
        let name = format!("conformance-{random:016x}");
        Self { destination, traits: destination.traits(), url, name }
    }

    pub(super) async fn prepare(&self) {
        self.destination.prepare(&self.url, &self.name).await;
    }

    pub(super) fn transport(&self, options: &Options) -> Arc<dyn Transport> {
        self.destination
            .transport(&self.url, options)
            .unwrap_or_else(|error| panic!("the transport cannot be made: {error}"))
    }

    pub(super) async fn read(&self) -> Vec<Received> {
        let received = self.destination.read(&self.url, &self.name).await;
        for message in &received {
            assert_eq!(message.topic, self.name, "a message of another topic");
        }
        received
    }

    /// An event of a key.
    pub(super) fn event(&self, key: &str, payload: impl Into<Vec<u8>>) -> Envelope {
        let payload = payload.into();
        envelope(
            Event::builder("OrderPlaced")
                .aggregate("Order", key)
                .topic(&self.name)
                .bytes("application/octet-stream", payload)
                .build()
                .unwrap(),
        )
    }

    /// So many events of a key.
    pub(super) fn events(&self, key: &str, count: usize) -> Vec<Envelope> {
        (0..count).map(|n| self.event(key, format!("{key} {n}"))).collect()
    }
}

/// The event as a relay would hand it over.
pub(super) fn envelope(event: Event) -> Envelope {
    Envelope {
        sequence: 1,
        attempts: 0,
        replay: 0,
        created_at: event.occurred_at(),
        topic: None,
        event,
    }
}

/// Publishes in batches of the transport's size and gives an outcome for each event.
pub(super) async fn publish(transport: &dyn Transport, events: &[Envelope]) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(events.len());
    for batch in events.chunks(transport.capabilities().max_batch) {
        let answers = transport.publish(batch).await;
        assert_eq!(answers.len(), batch.len(), "an outcome for each event of a batch");
        outcomes.extend(answers);
    }
    outcomes
}

/// Publishes, and every event is delivered at once.
pub(super) async fn deliver(transport: &dyn Transport, events: &[Envelope]) {
    for (n, outcome) in publish(transport, events).await.into_iter().enumerate() {
        assert_eq!(outcome, Outcome::Delivered, "event {n} of {}", events.len());
    }
}

/// Publishes until all are delivered: a batch at a time, what was not delivered again. An event
/// that dies is a fault.
pub(super) async fn insist(transport: &dyn Transport, events: &[Envelope]) {
    let mut waiting = events.to_vec();
    while !waiting.is_empty() {
        let outcomes = publish(transport, &waiting).await;
        let mut outcomes = outcomes.iter();
        waiting.retain(|_| match outcomes.next() {
            Some(Outcome::Delivered) => false,
            Some(Outcome::Dead { error }) => panic!("dead: {error}"),
            _ => true,
        });
        if !waiting.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// What an outcome says, if it is a failure.
pub(super) fn reason(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Delivered => None,
        Outcome::Retry { error, .. }
        | Outcome::TimedOut { error }
        | Outcome::Dead { error }
        | Outcome::Unavailable { error, .. } => Some(error),
    }
}

/// An error that a person can read: one line, not empty, not a page.
pub(super) fn assert_clear(error: &str) {
    assert!(error.len() > 10 && error.len() < 400, "not a sentence: {error:?}");
    assert!(!error.contains('\n'), "not one line: {error:?}");
}

/// The id that a raw message carries.
pub(super) fn id(message: &Received) -> Uuid {
    message
        .header("posthaste-id")
        .unwrap_or_else(|| panic!("no id in {message:?}"))
        .parse()
        .expect("the id is a UUID")
}

/// The ids of raw messages without repeats: first deliveries, in order.
pub(super) fn first_deliveries(messages: &[Received]) -> Vec<Uuid> {
    let mut seen = std::collections::HashSet::new();
    messages.iter().map(id).filter(|id| seen.insert(*id)).collect()
}

/// Those of the ids that belong to these events.
pub(super) fn of(events: &[Envelope], ids: &[Uuid]) -> Vec<Uuid> {
    let wanted: std::collections::HashSet<Uuid> = events.iter().map(|e| e.event.id()).collect();
    ids.iter().copied().filter(|id| wanted.contains(id)).collect()
}

/// The events' ids.
pub(super) fn ids(events: &[Envelope]) -> Vec<Uuid> {
    events.iter().map(|envelope| envelope.event.id()).collect()
}
