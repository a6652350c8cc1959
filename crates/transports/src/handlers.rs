//! Handlers in the same process: exactly one for each (aggregate type, event type).

use std::collections::HashMap;

use async_trait::async_trait;
use posthaste_core::{
    Envelope, Error, Failure, GLOBAL, Result, TypeName, TypedEvent,
    transport::{Outcome, Transport},
};
use serde::de::DeserializeOwned;

use crate::receiver::{Receiver, receiver, typed_receiver};

/// Hands each event to the one handler of its aggregate type and event type.
///
/// An event that has no handler is dead at once: waiting would not bring one. A handler that
/// panics has failed, and the event comes again.
///
/// A handler that takes longer than the relay's dispatch timeout is dropped at the `await` where it stands,
/// and its event comes again. One that blocks is not dropped, and holds a thread of the relay's
/// runtime: use `tokio::task::spawn_blocking`.
///
/// ```
/// use posthaste_core::Failure;
/// use posthaste_transports::handlers::Handlers;
///
/// let handlers = Handlers::new("orders")
///     .on("Order", "OrderPlaced", async |envelope| {
///         println!("{} was placed", envelope.event.aggregate_id().unwrap_or_default());
///         Ok(())
///     })?
///     .on_global("DayEnded", async |_| Err(Failure::retry("the books are closed")))?;
/// # Ok::<(), posthaste_core::Error>(())
/// ```
pub struct Handlers {
    name: String,
    handlers: HashMap<(String, String), Receiver>,
}

impl Handlers {
    /// No handlers yet. The name appears in logs, attempts and status.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), handlers: HashMap::new() }
    }

    /// The handler of these events. A second one for the same is an error.
    pub fn on<F>(
        self,
        aggregate_type: impl TypeName,
        event_type: impl TypeName,
        handler: impl Fn(Envelope) -> F + Send + Sync + 'static,
    ) -> Result<Self>
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.add(aggregate_type, event_type, receiver(handler))
    }

    /// The handler of a [`TypedEvent`]; it gets the event as it was enqueued, older versions lifted. One of
    /// a version that is no longer known, or whose payload does not fit, is dead. One of a newer version
    /// comes again, and no attempt is counted.
    ///
    /// ```
    /// # use posthaste_core::TypedEvent;
    /// # use posthaste_transports::handlers::Handlers;
    /// # #[derive(serde::Deserialize)] struct OrderPlaced { total: u64 }
    /// # impl TypedEvent for OrderPlaced { const TYPE: &'static str = "OrderPlaced"; }
    /// let handlers = Handlers::new("orders").on_event(async |placed: OrderPlaced, _| {
    ///     println!("an order of {}", placed.total);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), posthaste_core::Error>(())
    /// ```
    pub fn on_event<T, F>(
        self,
        handler: impl Fn(T, Envelope) -> F + Send + Sync + 'static,
    ) -> Result<Self>
    where
        T: TypedEvent + DeserializeOwned + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.add(T::AGGREGATE, T::TYPE, typed_receiver(handler))
    }

    fn add(
        mut self,
        aggregate_type: impl TypeName,
        event_type: impl TypeName,
        receiver: Receiver,
    ) -> Result<Self> {
        let aggregate_type = aggregate_type.type_name().into_owned();
        let event_type = event_type.type_name().into_owned();
        let of = (aggregate_type, event_type);
        if self.handlers.contains_key(&of) {
            let (aggregate_type, event_type) = of;
            return Err(Error::invalid(format!(
                "{event_type} of {aggregate_type} has a handler already; one event has exactly one"
            )));
        }
        self.handlers.insert(of, receiver);
        Ok(self)
    }

    /// The handler of events that belong to no aggregate.
    pub fn on_global<F>(
        self,
        event_type: impl TypeName,
        handler: impl Fn(Envelope) -> F + Send + Sync + 'static,
    ) -> Result<Self>
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.on(GLOBAL, event_type, handler)
    }

    async fn handle(&self, envelope: &Envelope) -> Outcome {
        let event = &envelope.event;
        let of = (event.aggregate_type().to_owned(), event.event_type().to_owned());
        let Some(handler) = self.handlers.get(&of) else {
            return Outcome::dead(format!("no handler for {} of {}", of.1, of.0));
        };
        match handler(envelope.clone()).await {
            Ok(()) => Outcome::Delivered,
            Err(failure) => failure.into_outcome(),
        }
    }
}

/// One event a publish, so that a slow handler delays no other key and a panic is its event's own.
#[async_trait]
impl Transport for Handlers {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for envelope in batch {
            outcomes.push(self.handle(envelope).await);
        }
        outcomes
    }
}
