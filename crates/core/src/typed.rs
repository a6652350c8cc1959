//! Events as types of the application's: written as JSON, read back with their version.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
/// JSON of any shape, as [`upcast`](TypedEvent::upcast) sees a payload.
pub use serde_json::Value;

use crate::{Event, EventBuilder, Failure, GLOBAL, Ordering, Result, TypeName};

/// When an event of a newer version comes again. A deployment takes minutes.
const NEWER_AGAIN: Duration = Duration::from_secs(30);

/// A type of the application's that is one kind of event.
///
/// It says once what would otherwise be said at every enqueue and in every handler. The derive
/// macro `Event` writes it; by hand it is this:
///
/// ```
/// use posthaste_core::{Event, TypedEvent, typed::Value};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { order: u64, currency: String }
///
/// impl TypedEvent for OrderPlaced {
///     const TYPE: &'static str = "OrderPlaced";
///     const VERSION: i32 = 2;
///     const AGGREGATE: &'static str = "Order";
///
///     fn aggregate_id(&self) -> Option<String> {
///         Some(self.order.to_string())
///     }
///
///     // Version 1 knew one currency only.
///     fn upcast(version: i32, mut payload: Value) -> Option<Value> {
///         (version == 1).then(|| { payload["currency"] = "EUR".into(); payload })
///     }
/// }
///
/// let event = Event::of(&OrderPlaced { order: 42, currency: "CHF".into() }).build()?;
/// assert_eq!((event.schema_version(), event.aggregate_id()), (2, Some("42")));
/// assert_eq!(event.decode::<OrderPlaced>().unwrap().currency, "CHF");
/// let old = OrderPlaced::decode(1, br#"{"order":41}"#).unwrap();
/// assert_eq!(old.currency, "EUR");
/// # Ok::<(), posthaste_core::Error>(())
/// ```
pub trait TypedEvent {
    /// The event type, as it is stored and as routes match it.
    const TYPE: &'static str;

    /// The version of the payload that this type writes.
    const VERSION: i32 = 1;

    /// To what kind of thing it happens.
    const AGGREGATE: &'static str = GLOBAL;

    /// To which one it happened.
    fn aggregate_id(&self) -> Option<String> {
        None
    }

    /// Which events it keeps its order with.
    fn ordering(&self) -> Ordering {
        Ordering::Aggregate
    }

    /// Makes a payload of `version` one of `version + 1`; `None` when that version is not known any
    /// more. It is asked once for each step up to [`VERSION`](Self::VERSION). A number beyond 64 bits
    /// has lost digits here, as JSON of this shape always has; so carry such numbers as text.
    fn upcast(version: i32, payload: Value) -> Option<Value> {
        let _ = (version, payload);
        None
    }

    /// Reads a payload of this version. What cannot be read never will be: the failure is
    /// permanent, and says nothing of the payload but where it went wrong. A version that is newer
    /// than [`VERSION`](Self::VERSION) is retried after 30 s, and no attempt is counted: while a
    /// deployment is under way, writers know it before handlers do.
    fn decode(version: i32, payload: &[u8]) -> Result<Self, Failure>
    where
        Self: DeserializeOwned,
    {
        let unreadable = |error: serde_json::Error| {
            Failure::dead_because(format!(
                "the payload of {} version {version} does not fit (line {} column {})",
                Self::TYPE,
                error.line(),
                error.column()
            ))
        };
        if version == Self::VERSION {
            return serde_json::from_slice(payload).map_err(unreadable);
        }
        let not_known = || {
            format!(
                "version {version} of {} is not known here, version {} is",
                Self::TYPE,
                Self::VERSION
            )
        };
        if version > Self::VERSION {
            return Err(Failure::retry_after_because(not_known(), NEWER_AGAIN));
        }
        let unknown = || Failure::dead_because(not_known());
        // Rows can be written by hand: a version far below 1 would be lifted for ever.
        if version < 1 {
            return Err(unknown());
        }
        let mut value = serde_json::from_slice(payload).map_err(unreadable)?;
        for older in version..Self::VERSION {
            value = Self::upcast(older, value).ok_or_else(unknown)?;
        }
        serde_json::from_value(value).map_err(|_| {
            Failure::dead_because(format!(
                "the payload of {} version {version} does not fit version {}",
                Self::TYPE,
                Self::VERSION
            ))
        })
    }
}

impl<T: TypedEvent> TypedEvent for &T {
    const TYPE: &'static str = T::TYPE;
    const VERSION: i32 = T::VERSION;
    const AGGREGATE: &'static str = T::AGGREGATE;

    fn aggregate_id(&self) -> Option<String> {
        T::aggregate_id(self)
    }

    fn ordering(&self) -> Ordering {
        T::ordering(self)
    }

    fn upcast(version: i32, payload: Value) -> Option<Value> {
        T::upcast(version, payload)
    }
}

/// What can be enqueued: an event, a builder with its fields, a [`TypedEvent`], or the short form
/// of an event that belongs to no aggregate, its type and its payload.
///
/// ```
/// use posthaste_core::IntoEvent;
///
/// let event = ("DayEnded", &serde_json::json!({ "orders": 7 })).into_event()?;
/// assert_eq!(&event.payload()[..], br#"{"orders":7}"#);
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be enqueued",
    note = "an event is an `Event`, an `EventBuilder`, a pair of type and payload, or a type that \
            implements `TypedEvent` (`#[derive(Event)]`) and `serde::Serialize`"
)]
pub trait IntoEvent {
    /// The event, checked.
    fn into_event(self) -> Result<Event>;
}

impl IntoEvent for Event {
    fn into_event(self) -> Result<Event> {
        Ok(self)
    }
}

impl IntoEvent for EventBuilder {
    fn into_event(self) -> Result<Event> {
        self.build()
    }
}

impl<N: TypeName, P: Serialize> IntoEvent for (N, P) {
    fn into_event(self) -> Result<Event> {
        Event::builder(self.0).payload(&self.1).build()
    }
}

impl<T: TypedEvent + Serialize> IntoEvent for T {
    fn into_event(self) -> Result<Event> {
        Event::of(&self).build()
    }
}

impl Event {
    /// Starts an event with all that a [`TypedEvent`] says of itself, so that tenant, topic, headers
    /// and the rest can be added.
    pub fn of<T: TypedEvent + Serialize>(event: &T) -> EventBuilder {
        let builder = Self::builder(T::TYPE)
            .aggregate_type(T::AGGREGATE)
            .schema_version(T::VERSION)
            .ordering(event.ordering())
            .payload(event);
        match event.aggregate_id() {
            Some(id) => builder.aggregate_id(id),
            None => builder,
        }
    }

    /// The typed event that was enqueued. Another type, a version that is no longer known and a payload
    /// that does not fit are permanent failures: a handler passes them on with `?`, and the event
    /// is dead. A version that is newer than the type's is a failure that is retried, and counts no
    /// attempt.
    pub fn decode<T: TypedEvent + DeserializeOwned>(&self) -> Result<T, Failure> {
        if self.event_type() != T::TYPE {
            return Err(Failure::dead_because(format!(
                "the event is {}, not {}",
                self.event_type(),
                T::TYPE
            )));
        }
        let media_type = self.content_type().split(';').next().unwrap_or_default().trim();
        if media_type != "application/json" && !media_type.ends_with("+json") {
            return Err(Failure::dead_because(format!(
                "the payload of {} is {media_type}, not JSON",
                T::TYPE
            )));
        }
        T::decode(self.schema_version(), self.payload())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::transport::Outcome;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Paid {
        order: String,
        cents: u64,
        currency: String,
    }

    impl TypedEvent for Paid {
        const TYPE: &'static str = "Paid";
        const VERSION: i32 = 3;
        const AGGREGATE: &'static str = "Order";

        fn aggregate_id(&self) -> Option<String> {
            Some(self.order.clone())
        }

        /// Version 2 counted in cents, version 3 names the currency.
        fn upcast(version: i32, mut payload: Value) -> Option<Value> {
            match version {
                1 => payload["cents"] = (payload["euros"].as_u64()? * 100).into(),
                2 => payload["currency"] = "EUR".into(),
                _ => return None,
            }
            Some(payload)
        }
    }

    fn paid() -> Paid {
        Paid { order: "7".to_owned(), cents: 500, currency: "EUR".to_owned() }
    }

    fn refusal(version: i32, payload: &str) -> String {
        let failure = Paid::decode(version, payload.as_bytes()).unwrap_err();
        assert!(failure.is_permanent());
        failure.reason().to_owned()
    }

    #[test]
    fn a_typed_event_comes_back_as_it_went() {
        let event = (&paid()).into_event().unwrap();
        assert_eq!((event.event_type(), event.schema_version()), ("Paid", 3));
        assert_eq!((event.aggregate_type(), event.aggregate_id()), ("Order", Some("7")));
        assert_eq!(event.decode::<Paid>().unwrap(), paid());
    }

    #[test]
    fn older_versions_are_lifted_step_by_step() {
        assert_eq!(Paid::decode(1, br#"{"order":"7","euros":5}"#).unwrap(), paid());
        assert_eq!(Paid::decode(2, br#"{"order":"7","cents":500}"#).unwrap(), paid());
    }

    #[test]
    fn a_version_that_is_newer_is_retried_and_counts_no_attempt() {
        let failure = Paid::decode(4, b"{}").unwrap_err();
        assert!(!failure.is_permanent());
        assert_eq!(failure.reason(), "version 4 of Paid is not known here, version 3 is");
        assert!(matches!(failure.into_outcome(), Outcome::Retry { after: Some(_), .. }));
    }

    #[test]
    fn an_unknown_version_is_a_permanent_failure_that_names_it() {
        assert_eq!(refusal(0, "{}"), "version 0 of Paid is not known here, version 3 is");
    }

    #[test]
    fn a_payload_that_does_not_fit_is_a_permanent_failure_that_does_not_quote_it() {
        let marker = "marker-77aa";
        let reason = refusal(3, &format!("{{\"order\":\"7\",\"cents\":\"{marker}\"}}"));
        assert!(reason.contains("Paid version 3") && reason.contains("column"), "{reason}");
        assert!(!reason.contains(marker), "{reason}");
        let reason = refusal(2, &format!("{{\"order\":\"7\",\"cents\":\"{marker}\"}}"));
        assert_eq!(reason, "the payload of Paid version 2 does not fit version 3");
        assert!(refusal(1, "not JSON").contains("line 1"));
    }

    #[test]
    fn another_type_and_another_format_are_not_taken_for_it() {
        let other = ("Refunded", &paid()).into_event().unwrap();
        let reason = other.decode::<Paid>().unwrap_err();
        assert_eq!(reason.reason(), "the event is Refunded, not Paid");
        let bytes = Event::of(&paid()).bytes("application/msgpack", "x").build().unwrap();
        let reason = bytes.decode::<Paid>().unwrap_err();
        assert_eq!(reason.reason(), "the payload of Paid is application/msgpack, not JSON");
        let json = Event::of(&paid()).content_type("application/json; charset=utf-8");
        assert_eq!(json.build().unwrap().decode::<Paid>().unwrap(), paid());
    }
}
