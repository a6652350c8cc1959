//! Topics of routes that a relay accepts and that lose events: entries of a map that no event uses, templates
//! that not every event can fill.

use jiff::Timestamp;
use posthaste::{
    Envelope, Event,
    relay::{Route, Routes},
};

use crate::config::{RouteSettings, Settings};

/// Placeholders for which every event has a value.
const ALWAYS: [&str; 3] = ["aggregate_type", "event_type", "schema_version"];

/// What an operator should know of the topics of these routes. A relay has accepted them.
pub(super) fn notes(settings: &Settings) -> Vec<String> {
    let served = |name: &String| settings.outboxes.iter().any(|outbox| outbox.name == *name);
    (1..)
        .zip(&settings.routes)
        .filter(|(_, route)| route.outbox.as_ref().is_none_or(served))
        .flat_map(|(number, route)| of_route(number, route))
        .collect()
}

fn of_route(number: usize, route: &RouteSettings) -> Vec<String> {
    let entries = route.topics.iter().flat_map(|(of, topic)| of_entry(number, route, of, topic));
    let mut notes: Vec<String> = entries.collect();
    match &route.topic {
        Some(template) => notes.extend(lacking(template, route).map(|name| {
            format!(
                "routes[{number}].topic needs {{{name}}}; an event of this route that has none is \
                 dead at once"
            )
        })),
        None if !has_all(route) => notes.push(format!(
            "routes[{number}].topics is for some aggregate types; an event of another one is dead \
             at once (`topic` is for the rest)"
        )),
        None => {}
    }
    notes
}

/// What is odd about one entry of a map.
fn of_entry(number: usize, route: &RouteSettings, of: &str, topic: &str) -> Vec<String> {
    let entry = format!("routes[{number}].topics.{of}");
    let mut notes = Vec::new();
    if of.contains('*') {
        notes.push(format!("{entry} is no pattern; it is for the aggregate type {of:?} alone"));
    } else if let Some(pattern) = &route.aggregate_type
        && !takes(pattern, of)
    {
        notes.push(format!("{entry} is never used; the route takes aggregate type {pattern:?}"));
    }
    if topic.contains('{') {
        notes.push(format!(
            "{entry} is the topic {topic:?} as it stands; only `topic` has placeholders"
        ));
    }
    notes
}

/// Whether a map without a default has an entry for all that comes this way.
fn has_all(route: &RouteSettings) -> bool {
    let only = route.aggregate_type.as_ref();
    route.topics.is_empty() || only.is_some_and(|only| route.topics.contains_key(only))
}

/// Whether a route for this pattern takes an event of this aggregate type.
fn takes(pattern: &str, aggregate_type: &str) -> bool {
    let event = Event::builder("Any").aggregate_type(aggregate_type).raw_json("{}").build();
    // Nobody can write an event of a type that is refused.
    let Ok(event) = event else { return false };
    let envelope = Envelope {
        sequence: 0,
        attempts: 0,
        replay: 0,
        created_at: Timestamp::UNIX_EPOCH,
        topic: None,
        event,
    };
    let routes = Routes::new().route(Route::to("here").aggregate_type(pattern));
    routes.destination_of(&envelope).is_ok()
}

/// The placeholders that an event may have nothing for, unless a condition of the route asks for it.
fn lacking<'t>(template: &'t str, route: &RouteSettings) -> impl Iterator<Item = &'t str> {
    let names = template.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    names.filter(move |name| match name.strip_prefix("header.") {
        Some(header) => !route.header.contains_key(header),
        None if *name == "tenant" => route.tenant.is_none(),
        None => !ALWAYS.contains(name),
    })
}
