//! Routes: which destination an event goes to, and under which topic.
//!
//! Routes stand in order, the first that matches wins, and an event has exactly one destination. What
//! no route matches is dead at once, with a reason that names its type and aggregate.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use posthaste_core::{Envelope, Error, Result};

use crate::{destination::Destination, lanes::Routed};

/// A function of the application's that names the topic of an event.
type TopicFunction = Arc<dyn Fn(&Envelope) -> Option<String> + Send + Sync>;

/// Where events go, in order.
///
/// ```
/// use posthaste_relay::{Route, Routes};
///
/// let routes = Routes::new()
///     .route(Route::to("nats").aggregate_type("Order").topic("orders.{event_type}"))
///     .route(Route::to("webhook").tenant("acme").event_type("Invoice*"))
///     .route(Route::to("log"));
/// # let _ = routes;
/// ```
#[derive(Default)]
pub struct Routes {
    routes: Vec<Route>,
}

/// One route: what it matches, and where that goes. Conditions must all hold; in each, `*` stands
/// for any text.
pub struct Route {
    destination: String,
    /// Its number, once the routes are checked.
    index: u16,
    conditions: BTreeMap<Field, String>,
    topic: Topic,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    AggregateType,
    EventType,
    Tenant,
    Header(String),
}

/// Where the topic comes from.
#[derive(Default)]
enum Topic {
    /// The event's own, or its aggregate type.
    #[default]
    Own,
    Template(String),
    /// By aggregate type; what is not in it goes to the default.
    Map {
        topics: BTreeMap<String, String>,
        default: Option<String>,
    },
    Function(TopicFunction),
}

impl Route {
    /// A route to the destination of this name, for every event.
    pub fn to(destination: impl Into<String>) -> Self {
        Self {
            destination: destination.into(),
            index: 0,
            conditions: BTreeMap::new(),
            topic: Topic::Own,
        }
    }

    /// Only for this aggregate type.
    pub fn aggregate_type(self, pattern: impl Into<String>) -> Self {
        self.only(Field::AggregateType, pattern)
    }

    /// Only for this event type.
    pub fn event_type(self, pattern: impl Into<String>) -> Self {
        self.only(Field::EventType, pattern)
    }

    /// Only for this tenant.
    pub fn tenant(self, pattern: impl Into<String>) -> Self {
        self.only(Field::Tenant, pattern)
    }

    /// Only for events with this header.
    pub fn header(self, name: impl Into<String>, pattern: impl Into<String>) -> Self {
        self.only(Field::Header(name.into()), pattern)
    }

    /// The topic: a text in which `{aggregate_type}`, `{aggregate_id}`, `{event_type}`, `{tenant}`,
    /// `{topic}`, `{routing_key}`, `{schema_id}`, `{schema_version}` and `{header.NAME}` stand for
    /// what the event says.
    pub fn topic(mut self, template: impl Into<String>) -> Self {
        self.topic = Topic::Template(template.into());
        self
    }

    /// The topic by aggregate type. What is not in the map goes to the default, a text as in
    /// [`topic`](Self::topic); without one it is dead.
    pub fn topic_map<K: Into<String>, V: Into<String>>(
        mut self,
        topics: impl IntoIterator<Item = (K, V)>,
        default: Option<&str>,
    ) -> Self {
        let topics = topics.into_iter().map(|(of, topic)| (of.into(), topic.into())).collect();
        self.topic = Topic::Map { topics, default: default.map(str::to_owned) };
        self
    }

    /// The topic by a function. An event for which it gives none, or panics, is dead.
    pub fn topic_by(
        mut self,
        function: impl Fn(&Envelope) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.topic = Topic::Function(Arc::new(function));
        self
    }

    fn only(mut self, field: Field, pattern: impl Into<String>) -> Self {
        self.conditions.insert(field, pattern.into());
        self
    }

    fn matches(&self, envelope: &Envelope) -> bool {
        let event = &envelope.event;
        self.conditions.iter().all(|(field, pattern)| {
            let text = match field {
                Field::AggregateType => Some(event.aggregate_type()),
                Field::EventType => Some(event.event_type()),
                Field::Tenant => event.tenant(),
                Field::Header(name) => event.headers().get(name).map(String::as_str),
            };
            text.is_some_and(|text| matches(pattern, text))
        })
    }

    /// Every event that matches `other` matches this one.
    fn covers(&self, other: &Self) -> bool {
        self.conditions.iter().all(|(field, pattern)| {
            other.conditions.get(field).is_some_and(|narrower| matches(pattern, narrower))
        })
    }

    /// Every event has a type and an aggregate type; a tenant and a header it may lack.
    fn takes_every_event(&self) -> bool {
        self.conditions.iter().all(|(field, pattern)| {
            matches!(field, Field::AggregateType | Field::EventType) && matches(pattern, "")
        })
    }

    fn topic_of(&self, envelope: &Envelope) -> Result<Option<String>, String> {
        match &self.topic {
            Topic::Own => Ok(None),
            Topic::Template(template) => filled(template, envelope).map(Some),
            Topic::Map { topics, default } => {
                let of = envelope.event.aggregate_type();
                match (topics.get(of), default) {
                    (Some(topic), _) => Ok(Some(topic.clone())),
                    (None, Some(default)) => filled(default, envelope).map(Some),
                    (None, None) => {
                        Err(format!("no topic for aggregate {of} at {}", self.destination))
                    }
                }
            }
            // The panic's message can quote the payload: it stays out of the error.
            Topic::Function(function) => {
                match catch_unwind(AssertUnwindSafe(|| function(envelope))) {
                    Ok(Some(topic)) => Ok(Some(topic)),
                    Ok(None) => {
                        Err(format!("the application names no topic at {}", self.destination))
                    }
                    Err(_) => Err(format!(
                        "the application's topic function panicked at {}",
                        self.destination
                    )),
                }
            }
        }
    }
}

impl Routes {
    /// No routes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route behind the others.
    pub fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// Refuses routes that cannot work: an unknown destination, an unknown placeholder, a route that
    /// can never match because an earlier one takes everything it would.
    pub(crate) fn checked(mut self, destinations: &[Destination]) -> Result<Self> {
        if self.routes.is_empty() {
            return Err(Error::invalid("there are no routes; every event would be dead at once"));
        }
        for (number, route) in (1..).zip(&mut self.routes) {
            let known = destinations.iter().position(|d| d.name() == route.destination);
            let Some(index) = known else {
                let names: Vec<&str> = destinations.iter().map(Destination::name).collect();
                return Err(Error::invalid(format!(
                    "route {number} goes to {:?}, which is no destination; there are {}",
                    route.destination,
                    names.join(", ")
                )));
            };
            route.index = index as u16;
            let templates = match &route.topic {
                Topic::Template(template) => Some(template),
                Topic::Map { default, .. } => default.as_ref(),
                Topic::Own | Topic::Function(_) => None,
            };
            if let Some(template) = templates {
                check_template(template).map_err(|problem| {
                    Error::invalid(format!("topic {template:?} of route {number}: {problem}"))
                })?;
            }
        }
        for (later, route) in self.routes.iter().enumerate() {
            if let Some(earlier) = self.routes[..later].iter().position(|e| e.covers(route)) {
                return Err(Error::invalid(format!(
                    "route {} can never match: route {} before it takes everything it would",
                    later + 1,
                    earlier + 1
                )));
            }
        }
        Ok(self)
    }

    /// Returns the name of the destination that an event goes to, or why it goes nowhere. A relay gives an
    /// event up as dead where this is an error.
    pub fn destination_of(&self, envelope: &Envelope) -> Result<&str, String> {
        let route = self.first(envelope)?;
        route.topic_of(envelope)?;
        Ok(&route.destination)
    }

    /// Whether one of the routes takes every event. Where none does, an event that no route matches is
    /// dead as soon as a relay reads it.
    pub fn takes_every_event(&self) -> bool {
        self.routes.iter().any(Route::takes_every_event)
    }

    /// The event's destination and topic, or why it has none.
    pub(crate) fn find(&self, envelope: &Envelope) -> Result<Routed, String> {
        let route = self.first(envelope)?;
        Ok(Routed { destination: route.index, topic: route.topic_of(envelope)? })
    }

    fn first(&self, envelope: &Envelope) -> Result<&Route, String> {
        let event = &envelope.event;
        self.routes.iter().find(|route| route.matches(envelope)).ok_or_else(|| {
            format!(
                "no route for {} of {} {}",
                event.event_type(),
                event.aggregate_type(),
                event.aggregate_id().unwrap_or("without an id")
            )
        })
    }
}

/// Whether the text matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|start| text.strip_prefix(start)) else {
        return false;
    };
    let Some(end) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(end)
}

/// The parts of a template: texts and placeholders in turns, starting with a text.
fn parts(template: &str) -> Result<Vec<(&str, Option<&str>)>, String> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((text, behind)) = rest.split_once('{') {
        let (name, behind) =
            behind.split_once('}').ok_or("a brace is opened and not closed".to_owned())?;
        parts.push((text, Some(name)));
        rest = behind;
    }
    parts.push((rest, None));
    Ok(parts)
}

const PLACEHOLDERS: [&str; 8] = [
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "tenant",
    "topic",
    "routing_key",
    "schema_id",
    "schema_version",
];

fn check_template(template: &str) -> Result<(), String> {
    if template.is_empty() {
        return Err("it is empty".to_owned());
    }
    for name in parts(template)?.into_iter().filter_map(|(_, name)| name) {
        let header = name.strip_prefix("header.").is_some_and(|name| !name.is_empty());
        if !header && !PLACEHOLDERS.contains(&name) {
            return Err(format!(
                "placeholder {{{name}}} is not known; there are {} and header.NAME",
                PLACEHOLDERS.join(", ")
            ));
        }
    }
    Ok(())
}

fn filled(template: &str, envelope: &Envelope) -> Result<String, String> {
    let event = &envelope.event;
    let mut topic = String::with_capacity(template.len());
    for (text, name) in parts(template)? {
        topic.push_str(text);
        let Some(name) = name else { continue };
        let version;
        let value = match name {
            "aggregate_type" => Some(event.aggregate_type()),
            "aggregate_id" => event.aggregate_id(),
            "event_type" => Some(event.event_type()),
            "tenant" => event.tenant(),
            "topic" => event.topic(),
            "routing_key" => event.routing_key(),
            "schema_id" => event.schema_id(),
            "schema_version" => {
                version = event.schema_version().to_string();
                Some(version.as_str())
            }
            _ => name
                .strip_prefix("header.")
                .and_then(|name| event.headers().get(name))
                .map(String::as_str),
        };
        match value {
            Some(value) => topic.push_str(value),
            None => return Err(format!("its topic needs {name}, and the event has none")),
        }
    }
    Ok(topic)
}

#[cfg(test)]
mod tests {
    use posthaste_core::{
        Event,
        transport::{Outcome, Transport},
    };

    use super::*;

    struct Named(&'static str);

    #[async_trait::async_trait]
    impl Transport for Named {
        fn name(&self) -> &str {
            self.0
        }

        async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
            vec![Outcome::Delivered; batch.len()]
        }
    }

    fn destinations() -> Vec<Destination> {
        ["a", "b"].map(|name| Destination::new(Arc::new(Named(name)))).into()
    }

    fn placed() -> Envelope {
        let event = Event::builder("OrderPlaced")
            .aggregate("Order", "7")
            .tenant("acme")
            .header("region", "eu")
            .raw_json("{}")
            .build()
            .unwrap();
        Envelope {
            sequence: 1,
            attempts: 0,
            replay: 0,
            created_at: event.occurred_at(),
            topic: None,
            event,
        }
    }

    fn refused(routes: Routes) -> String {
        match routes.checked(&destinations()) {
            Ok(_) => panic!("it was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text) in
            [("*", ""), ("Order*", "Order"), ("*Placed", "OrderPlaced"), ("O*r*d", "OrderPlaced")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("Order", "Orders"), ("*x*", "abc"), ("a*a", "a"), ("", "a")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_route_that_matches_wins() {
        let routes = Routes::new()
            .route(Route::to("b").event_type("Invoice*"))
            .route(Route::to("b").header("region", "us"))
            .route(
                Route::to("a")
                    .event_type("Order*")
                    .tenant("acme")
                    .topic("{tenant}.{header.region}"),
            )
            .route(Route::to("b"))
            .checked(&destinations())
            .unwrap();
        let routed = routes.find(&placed()).unwrap();
        assert_eq!(routed, Routed { destination: 0, topic: Some("acme.eu".to_owned()) });
    }

    #[test]
    fn an_event_without_a_route_says_its_type_and_aggregate() {
        let routes =
            Routes::new().route(Route::to("a").tenant("other")).checked(&destinations()).unwrap();
        assert_eq!(routes.find(&placed()).unwrap_err(), "no route for OrderPlaced of Order 7");
    }

    #[test]
    fn a_route_takes_every_event_when_its_patterns_match_any_text() {
        for (route, every) in [
            (Route::to("a"), true),
            (Route::to("a").event_type("*").aggregate_type("**"), true),
            (Route::to("a").event_type("Order*"), false),
            (Route::to("a").tenant("*"), false),
            (Route::to("a").header("region", "*"), false),
        ] {
            assert_eq!(Routes::new().route(route).takes_every_event(), every);
        }
        assert!(!Routes::new().takes_every_event());
    }

    #[test]
    fn topics_come_from_a_map_a_default_or_a_function() {
        let topic = |route: Route| {
            let routes = Routes::new().route(route).checked(&destinations()).unwrap();
            routes.find(&placed()).map(|routed| routed.topic.unwrap_or_default())
        };
        let map = |default| Route::to("a").topic_map([("Customer", "customers")], default);
        assert_eq!(topic(map(Some("rest.{aggregate_type}"))).unwrap(), "rest.Order");
        assert_eq!(topic(map(None)).unwrap_err(), "no topic for aggregate Order at a");
        let by_id = Route::to("a").topic_by(|e| e.event.aggregate_id().map(str::to_owned));
        assert_eq!(topic(by_id).unwrap(), "7");
        assert_eq!(
            topic(Route::to("a").topic("x.{routing_key}")).unwrap_err(),
            "its topic needs routing_key, and the event has none"
        );
    }

    #[test]
    fn a_topic_function_that_panics_is_the_reason_why_its_event_has_no_topic() {
        let panics = Route::to("a").topic_by(|_| panic!("hush"));
        let routes = Routes::new().route(panics).checked(&destinations()).unwrap();
        let reason = routes.find(&placed()).unwrap_err();
        assert_eq!(reason, "the application's topic function panicked at a");
    }

    #[test]
    fn routes_that_cannot_work_are_refused() {
        let message = refused(Routes::new().route(Route::to("c")));
        assert_eq!(message, "route 1 goes to \"c\", which is no destination; there are a, b");
        let message = refused(Routes::new().route(Route::to("a").topic("x.{colour}")));
        assert!(message.contains("placeholder {colour} is not known"), "{message}");
        let shadowed = Routes::new()
            .route(Route::to("a").event_type("Order*"))
            .route(Route::to("b").event_type("OrderPlaced").tenant("acme"));
        let message = refused(shadowed);
        assert!(message.contains("route 2 can never match: route 1"), "{message}");
        assert!(refused(Routes::new()).contains("no routes"));
    }
}
