//! An event bus in the same process: every subscriber of an event gets it, and can refuse it.

use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use futures_util::{FutureExt, future::join_all};
use posthaste_core::{
    Envelope, Failure, TypeName,
    transport::{Outcome, Transport},
};

use crate::receiver::{Receiver, receiver};

/// Gives each event to all its subscribers.
///
/// All of them run, side by side, whatever becomes of the others, and the event is delivered when
/// all of them took it. When some failed, their reasons are joined, and the event comes again to
/// *all*: subscribers see an event at least once, as destinations do. No attempt is counted when each
/// of those that may still take it named a time; the last of these times counts. An event that nobody
/// subscribed to is an error of its own, and comes again: a subscriber may be on its way.
///
/// All have the relay's dispatch timeout together: what is not done by then is dropped at the `await` where
/// it stands. One that blocks is not dropped, and holds a thread of the relay's runtime: use
/// `tokio::task::spawn_blocking`.
///
/// ```
/// use posthaste_transports::bus::EventBus;
///
/// let bus = EventBus::new("bus")
///     .subscribe("mail", "OrderPlaced", async |_| Ok(()))
///     .subscribe_all("audit", async |envelope| {
///         println!("{}", envelope.event.event_type());
///         Ok(())
///     });
/// ```
pub struct EventBus {
    name: String,
    subscribers: Vec<Subscriber>,
}

struct Subscriber {
    name: String,
    /// `None` wants every event.
    event_type: Option<String>,
    receive: Receiver,
}

impl Subscriber {
    fn wants(&self, envelope: &Envelope) -> bool {
        self.event_type.as_deref().is_none_or(|wanted| wanted == envelope.event.event_type())
    }

    /// Why it refused the event, if it did. A panic is a refusal; its message can quote the event
    /// and stays out.
    async fn refusal(&self, envelope: Envelope) -> Option<Failure> {
        // The call itself can panic, before there is a future.
        let received = AssertUnwindSafe(async { (self.receive)(envelope).await }).catch_unwind();
        received.await.unwrap_or_else(|_| Err(Failure::retry("panicked"))).err()
    }
}

impl EventBus {
    /// Nobody has subscribed yet. The name appears in logs, attempts and status.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), subscribers: Vec::new() }
    }

    /// Subscribes to one event type, whatever the aggregate.
    pub fn subscribe<F>(
        mut self,
        name: impl Into<String>,
        event_type: impl TypeName,
        receive: impl Fn(Envelope) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.add(name.into(), Some(event_type.type_name().into_owned()), receiver(receive));
        self
    }

    /// Subscribes to every event.
    pub fn subscribe_all<F>(
        mut self,
        name: impl Into<String>,
        receive: impl Fn(Envelope) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.add(name.into(), None, receiver(receive));
        self
    }

    fn add(&mut self, name: String, event_type: Option<String>, receive: Receiver) {
        self.subscribers.push(Subscriber { name, event_type, receive });
    }

    async fn give(&self, envelope: &Envelope) -> Outcome {
        let wanting: Vec<_> =
            self.subscribers.iter().filter(|subscriber| subscriber.wants(envelope)).collect();
        if wanting.is_empty() {
            let event_type = envelope.event.event_type();
            return Outcome::retry(format!("nobody has subscribed to {event_type}"));
        }
        let refusals = join_all(wanting.into_iter().map(async |subscriber| {
            Some((&subscriber.name, subscriber.refusal(envelope.clone()).await?))
        }))
        .await;
        let refusals: Vec<_> = refusals.into_iter().flatten().collect();
        if refusals.is_empty() {
            return Outcome::Delivered;
        }
        let reasons: Vec<String> = refusals
            .iter()
            .map(|(name, failure)| format!("{name}: {}", failure.reason()))
            .collect();
        let error = reasons.join("; ");
        // As long as one of them may still take it, it comes again.
        let passing = refusals.iter().filter(|(_, failure)| !failure.is_permanent());
        let times: Vec<_> = passing.map(|(_, failure)| failure.after()).collect();
        if times.is_empty() {
            return Outcome::Dead { error };
        }
        // The last of the times that they named. One that named none counts an attempt.
        let times: Option<Vec<_>> = times.into_iter().collect();
        Outcome::Retry { error, after: times.and_then(|times| times.into_iter().max()) }
    }
}

/// One event a publish, so that a slow subscriber delays no other key.
#[async_trait]
impl Transport for EventBus {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for envelope in batch {
            outcomes.push(self.give(envelope).await);
        }
        outcomes
    }
}
