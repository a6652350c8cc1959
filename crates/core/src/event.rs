//! The event: what an application enqueues. Built once, checked once, then immutable.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::{
    Error, GLOBAL, Key, Result, TypeName,
    header::is_reserved,
    key::derived_key,
    limits::{self, Limits, check_text, check_time},
};

/// Which events an event keeps its order with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ordering {
    /// With the events of the same tenant, aggregate type and aggregate id. An event without an
    /// aggregate id is unordered.
    #[default]
    Aggregate,
    /// With all events that carry this key.
    Key(String),
    /// With none.
    Unordered,
}

/// An event that passed every check, ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub(crate) id: Uuid,
    pub(crate) event_type: String,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) routing_key: Option<String>,
    pub(crate) schema_id: Option<String>,
    pub(crate) schema_version: i32,
    pub(crate) ordering: Ordering,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) payload: Bytes,
    pub(crate) content_type: String,
    pub(crate) occurred_at: Timestamp,
    pub(crate) deliver_at: Option<Timestamp>,
}

impl Event {
    /// Starts an event of this type: a string, or the application's own [`TypeName`].
    ///
    /// ```
    /// use posthaste_core::Event;
    ///
    /// let event = Event::builder("OrderPlaced")
    ///     .aggregate("Order", "42")
    ///     .tenant("acme")
    ///     .header("trace", "7f3a")
    ///     .payload(&serde_json::json!({ "total": 1999 }))
    ///     .build()?;
    /// assert_eq!(event.aggregate_id(), Some("42"));
    /// # Ok::<(), posthaste_core::Error>(())
    /// ```
    pub fn builder(event_type: impl TypeName) -> EventBuilder {
        EventBuilder {
            event: Event {
                id: Uuid::now_v7(),
                event_type: event_type.type_name().into_owned(),
                aggregate_type: GLOBAL.to_owned(),
                aggregate_id: None,
                tenant: None,
                topic: None,
                routing_key: None,
                schema_id: None,
                schema_version: 1,
                ordering: Ordering::Aggregate,
                headers: BTreeMap::new(),
                payload: Bytes::new(),
                content_type: "application/json".to_owned(),
                occurred_at: Timestamp::now(),
                deliver_at: None,
            },
            has_payload: false,
            failure: None,
        }
    }

    /// The id by which consumers recognise a repeat.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// What happened.
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// To what kind of thing it happened; [`GLOBAL`] when to none.
    pub fn aggregate_type(&self) -> &str {
        &self.aggregate_type
    }

    /// To which one it happened.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.aggregate_id.as_deref()
    }

    /// Whose event it is.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// The topic that the application chose, if it did.
    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// The routing key that the application chose, if it did.
    pub fn routing_key(&self) -> Option<&str> {
        self.routing_key.as_deref()
    }

    /// The id of the payload's schema.
    pub fn schema_id(&self) -> Option<&str> {
        self.schema_id.as_deref()
    }

    /// The version of the payload's schema.
    pub fn schema_version(&self) -> i32 {
        self.schema_version
    }

    /// Which events it keeps its order with.
    pub fn ordering(&self) -> &Ordering {
        &self.ordering
    }

    /// Headers that travel with it.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    /// The payload, byte for byte as it was given.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The payload's media type.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// When it happened.
    pub fn occurred_at(&self) -> Timestamp {
        self.occurred_at
    }

    /// Not to be delivered before this time.
    pub fn deliver_at(&self) -> Option<Timestamp> {
        self.deliver_at
    }

    /// The ordering key in full, or `None` when the event is unordered. Derived keys are
    /// length-prefixed, so that no two differ only in where a separator stands.
    pub fn ordering_key(&self) -> Option<String> {
        match &self.ordering {
            Ordering::Unordered => None,
            Ordering::Key(key) => Some(key.clone()),
            Ordering::Aggregate => self.aggregate_id.as_deref().map(|id| {
                derived_key(self.tenant.as_deref().unwrap_or(""), &self.aggregate_type, id)
            }),
        }
    }

    /// The ordering key as lanes know it.
    pub fn key(&self) -> Option<Key> {
        self.ordering_key().map(|key| Key::of(&key))
    }

    /// Sets the tenant when the event has none: an outbox can have a default.
    pub fn with_default_tenant(mut self, tenant: Option<&str>) -> Self {
        if self.tenant.is_none() {
            self.tenant = tenant.map(str::to_owned);
        }
        self
    }

    /// Adds a header, or replaces it. A name that is [reserved](crate::header::is_reserved) is
    /// refused when the event is enqueued.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Back to a builder, to change other fields. Only what is enqueued counts: nobody else sees the
    /// event before.
    pub fn edit(self) -> EventBuilder {
        EventBuilder { event: self, has_payload: true, failure: None }
    }

    /// The event without its payload, for whoever keeps it and does not look at that again.
    pub fn without_payload(mut self) -> Self {
        self.payload = Bytes::new();
        self
    }

    /// Refuses a payload that is larger than the outbox allows, and what was changed after the event
    /// was built: headers, and a tenant that does not fit.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        if self.payload.len() > limits.payload {
            return Err(Error::too_long("payload", self.payload.len(), limits.payload));
        }
        if let Some(tenant) = &self.tenant {
            check_text("tenant", tenant, limits::TENANT)?;
        }
        self.check_headers()
    }

    fn check_headers(&self) -> Result<()> {
        if self.headers.keys().any(String::is_empty) {
            return Err(Error::invalid(
                "header key is empty (length 0); every header needs a name",
            ));
        }
        if let Some(name) = self.headers.keys().find(|name| is_reserved(name)) {
            return Err(Error::invalid(format!(
                "header {name} is reserved: relays write an event's id and metadata under such \
                 names; leave it out, or copy a message's headers with EventBuilder::headers, which \
                 does"
            )));
        }
        let bytes = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > limits::HEADERS {
            return Err(Error::too_long("headers", bytes, limits::HEADERS));
        }
        Ok(())
    }
}

/// Collects the fields of an [`Event`]; [`build`](EventBuilder::build) checks them all.
#[derive(Debug)]
pub struct EventBuilder {
    event: Event,
    has_payload: bool,
    failure: Option<Error>,
}

impl EventBuilder {
    /// The caller's own id instead of a new UUID v7. A ULID converts: `Uuid::from(ulid)`, or
    /// `Uuid::from_u128(ulid.0)`.
    pub fn id(mut self, id: impl Into<Uuid>) -> Self {
        self.event.id = id.into();
        self
    }

    /// Aggregate type and id together.
    pub fn aggregate(self, aggregate_type: impl TypeName, id: impl std::fmt::Display) -> Self {
        self.aggregate_type(aggregate_type).aggregate_id(id)
    }

    /// To what kind of thing it happened.
    pub fn aggregate_type(mut self, aggregate_type: impl TypeName) -> Self {
        self.event.aggregate_type = aggregate_type.type_name().into_owned();
        self
    }

    /// To which one it happened.
    pub fn aggregate_id(mut self, id: impl std::fmt::Display) -> Self {
        self.event.aggregate_id = Some(id.to_string());
        self
    }

    /// Whose event it is.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.event.tenant = Some(tenant.into());
        self
    }

    /// Where it is to go.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.event.topic = Some(topic.into());
        self
    }

    /// How the broker is to route it.
    pub fn routing_key(mut self, routing_key: impl Into<String>) -> Self {
        self.event.routing_key = Some(routing_key.into());
        self
    }

    /// Id of the payload's schema, and its version (1 unless set).
    pub fn schema(mut self, id: impl Into<String>, version: i32) -> Self {
        self.event.schema_id = Some(id.into());
        self.event.schema_version = version;
        self
    }

    /// Version of the payload's schema, without an id.
    pub fn schema_version(mut self, version: i32) -> Self {
        self.event.schema_version = version;
        self
    }

    /// Which events it keeps its order with: those of its aggregate, unless set.
    pub fn ordering(mut self, ordering: Ordering) -> Self {
        self.event.ordering = ordering;
        self
    }

    /// Keeps order with all events that carry this key, instead of those of its aggregate.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.event.ordering = Ordering::Key(key.into());
        self
    }

    /// Keeps order with no other event.
    pub fn unordered(mut self) -> Self {
        self.event.ordering = Ordering::Unordered;
        self
    }

    /// One more header. [`build`](Self::build) refuses a name that is
    /// [reserved](crate::header::is_reserved): `posthaste-…`, CloudEvents' prefixes, and those under
    /// which a message's id travels.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.event.headers.insert(name.into(), value.into());
        self
    }

    /// Several more headers, such as those of the message that led to this event. Reserved ones are
    /// left out: they tell of that message, and consumers would take this event for it.
    pub fn headers<N: Into<String>, V: Into<String>>(
        mut self,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let headers = headers.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.event
            .headers
            .extend(headers.filter(|(name, _): &(String, String)| !is_reserved(name)));
        self
    }

    /// The payload as JSON of this value.
    pub fn payload(mut self, value: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(value) {
            Ok(json) => self.set_payload(json.into()),
            Err(error) => {
                self.failure =
                    Some(Error::invalid("payload cannot be written as JSON").with_source(error));
                self
            }
        }
    }

    /// The payload as JSON text that is already written. It is kept byte for byte.
    pub fn raw_json(self, json: impl Into<String>) -> Self {
        self.set_payload(json.into().into())
    }

    /// The payload as bytes of this media type.
    pub fn bytes(mut self, content_type: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        self.event.content_type = content_type.into();
        self.set_payload(payload.into())
    }

    /// The payload's media type, when it is not the one its setter gave.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.event.content_type = content_type.into();
        self
    }

    /// When it happened, instead of now.
    pub fn occurred_at(mut self, at: Timestamp) -> Self {
        self.event.occurred_at = at;
        self
    }

    /// Not to be delivered before this time.
    pub fn deliver_at(mut self, at: Timestamp) -> Self {
        self.event.deliver_at = Some(at);
        self
    }

    fn set_payload(mut self, payload: Bytes) -> Self {
        self.event.payload = payload;
        self.has_payload = true;
        self
    }

    /// Checks every field and gives the event, or the first violation: which field, how long it
    /// is and what the limit is. The payload's size is the outbox's to limit, at enqueue.
    pub fn build(self) -> Result<Event> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if !self.has_payload {
            return Err(Error::invalid(
                "payload is missing; an event without content takes .bytes(content_type, \"\")",
            ));
        }
        let event = self.event;
        check_text("event type", &event.event_type, limits::EVENT_TYPE)?;
        check_text("aggregate type", &event.aggregate_type, limits::AGGREGATE_TYPE)?;
        check_text("content type", &event.content_type, limits::CONTENT_TYPE)?;
        for (field, text, limit) in [
            ("aggregate id", &event.aggregate_id, limits::AGGREGATE_ID),
            ("tenant", &event.tenant, limits::TENANT),
            ("topic", &event.topic, limits::TOPIC),
            ("routing key", &event.routing_key, limits::ROUTING_KEY),
            ("schema id", &event.schema_id, limits::SCHEMA_ID),
        ] {
            if let Some(text) = text {
                check_text(field, text, limit)?;
            }
        }
        if let Ordering::Key(key) = &event.ordering {
            check_text("ordering key", key, limits::ORDERING_KEY)?;
        }
        if event.schema_version < 1 {
            return Err(Error::invalid(format!(
                "schema version is {}, the smallest is 1",
                event.schema_version
            )));
        }
        check_time("time of the event", event.occurred_at)?;
        if let Some(at) = event.deliver_at {
            check_time("time of delivery", at)?;
        }
        event.check_headers()?;
        Ok(event)
    }
}
