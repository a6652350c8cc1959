//! What all events of a piece of work have in common, so that domain events stay small.

use std::{collections::BTreeMap, sync::Arc};

/// Whatever serde can write, its type forgotten: it implements `serde::Serialize`.
pub use erased_serde::Serialize as Payload;
use posthaste_core::{Error, Event, Result};

use super::{Aggregate, Raised};

/// Adds to a raised event what it does not say itself: aggregate type and id, tenant, headers, and
/// the form of its payload.
#[derive(Clone)]
pub struct Context {
    tenant: Option<String>,
    headers: BTreeMap<String, String>,
    serializer: Arc<dyn Serializer>,
}

impl Default for Context {
    fn default() -> Self {
        Self { tenant: None, headers: BTreeMap::new(), serializer: Arc::new(Json) }
    }
}

impl Context {
    /// Adds the aggregate only, and writes payloads as JSON.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whose events they are.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Who did it: the header `operator`.
    pub fn operator(self, operator: impl Into<String>) -> Self {
        self.header("operator", operator)
    }

    /// The W3C trace context that it is part of: the header `traceparent`. With the feature
    /// `trace` the current span's is added by itself.
    pub fn trace(self, traceparent: impl Into<String>) -> Self {
        self.header("traceparent", traceparent)
    }

    /// One more header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Writes payloads in another form than JSON.
    pub fn serializer(mut self, serializer: impl Serializer) -> Self {
        self.serializer = Arc::new(serializer);
        self
    }

    /// The event to enqueue of one that this aggregate raised. Its id and time are those of the
    /// moment when it was raised.
    pub fn event<A: Aggregate>(&self, aggregate: &A, raised: &Raised) -> Result<Event> {
        self.event_of(A::TYPE, &aggregate.aggregate_id(), raised)
    }

    pub(super) fn event_of(
        &self,
        aggregate_type: &str,
        aggregate_id: &str,
        raised: &Raised,
    ) -> Result<Event> {
        let event = &raised.event;
        let payload = self.serializer.serialize(event.payload()).map_err(|error| {
            Error::invalid(format!("the payload of {} cannot be written", raised.event_type()))
                .with_source(error)
        })?;
        let builder = Event::builder(raised.event_type())
            .id(raised.id())
            .occurred_at(raised.occurred_at())
            .schema_version(event.version())
            .ordering(event.ordering())
            .headers(self.headers.clone())
            .bytes(self.serializer.content_type(), payload);
        // One that names an aggregate itself keeps it: what happens to an order can tell of its invoice.
        let builder = match event.aggregate_id() {
            Some(own) => builder.aggregate(event.aggregate_type(), own),
            None => builder.aggregate(aggregate_type, aggregate_id),
        };
        let builder = match &self.tenant {
            Some(tenant) => builder.tenant(tenant),
            None => builder,
        };
        builder.build()
    }
}

/// The form in which payloads are written.
pub trait Serializer: Send + Sync + 'static {
    /// The media type of what it writes.
    fn content_type(&self) -> &str;

    /// Writes a payload. An error is the commit's; nothing is written then.
    fn serialize(
        &self,
        payload: &dyn Payload,
    ) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;
}

/// Payloads as JSON, which is what typed events are read back from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl Serializer for Json {
    fn content_type(&self) -> &str {
        "application/json"
    }

    fn serialize(
        &self,
        payload: &dyn Payload,
    ) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::to_vec(payload)?)
    }
}
