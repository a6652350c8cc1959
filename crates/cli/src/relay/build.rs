//! From settings to destinations and routes.

use posthaste::{
    Error, Result,
    relay::{Destination, Relay, Route, Routes},
    stores::{self, Options},
};
use posthaste_admin::Admin;

use super::topics;
use crate::{
    config::{OutboxSettings, RouteSettings, Settings},
    destination,
};

/// All destinations, not connected yet.
pub(super) fn destinations(settings: &Settings) -> Result<Vec<Destination>> {
    let mut destinations = Vec::new();
    for (index, configured) in settings.destinations.iter().enumerate() {
        let transport = destination::configured(configured).map_err(|error| {
            match &settings.destinations[index].name {
                Some(name) => Error::new(error.kind(), format!("destinations.{name}: {error}")),
                None => error,
            }
        })?;
        let mut destination = Destination::new(transport);
        if let Some(rate) = configured.rate {
            destination = destination.with_rate(u32::try_from(rate).unwrap_or(u32::MAX));
        }
        if let Some(publishes) = configured.concurrency {
            destination = destination.with_concurrency(publishes);
        }
        destinations.push(destination);
    }
    Ok(destinations)
}

/// The destinations and routes of one outbox.
pub(super) fn routing(
    settings: &Settings,
    outbox: &OutboxSettings,
    destinations: &[Destination],
) -> Result<(Vec<Destination>, Routes)> {
    let names: Vec<&str> = destinations.iter().map(Destination::name).collect();
    let (used, routes) = routes(settings, outbox, &names)?;
    Ok((used.into_iter().map(|index| destinations[index].clone()).collect(), routes))
}

/// The routes of one outbox to destinations of these names, and which of them it uses. Without routes
/// everything goes to the only destination.
pub(crate) fn routes(
    settings: &Settings,
    outbox: &OutboxSettings,
    names: &[&str],
) -> Result<(Vec<usize>, Routes)> {
    let all = [RouteSettings::everything()];
    let configured = if settings.routes.is_empty() { &all[..] } else { settings.routes.as_slice() };
    let mut routes = Routes::new();
    let mut used = Vec::new();
    let mut count = 0;
    for (number, route) in (1..).zip(configured) {
        if let Some(other) = &route.outbox
            && !settings.outbox_names.contains(other)
        {
            return Err(Error::invalid(format!(
                "routes[{number}].outbox {other:?} is no outbox; there are {}",
                settings.outbox_names.join(", ")
            )));
        }
        if route.outbox.as_ref().is_some_and(|name| *name != outbox.name) {
            continue;
        }
        let destination = destination_of(number, route, names)?;
        routes = routes.route(built(number, route, names[destination])?);
        count += 1;
        if !used.contains(&destination) {
            used.push(destination);
        }
    }
    if count == 0 {
        return Err(Error::invalid(format!(
            "no route is for outbox {}; add one, or leave out the outbox of another",
            outbox.name
        )));
    }
    Ok((used, routes))
}

/// The place of the route's destination among these names.
fn destination_of(number: usize, route: &RouteSettings, names: &[&str]) -> Result<usize> {
    match (&route.to, names) {
        (Some(to), _) => names.iter().position(|name| name == to).ok_or_else(|| {
            Error::invalid(format!(
                "routes[{number}].to {to:?} is no destination; there are {}",
                names.join(", ")
            ))
        }),
        (None, [_]) => Ok(0),
        (None, _) => Err(Error::invalid(format!(
            "there are several destinations ({}); say with [[routes]] which events go to which",
            names.join(", ")
        ))),
    }
}

fn built(number: usize, settings: &RouteSettings, to: &str) -> Result<Route> {
    let mut route = Route::to(to);
    if let Some(pattern) = &settings.aggregate_type {
        route = route.aggregate_type(pattern);
    }
    if let Some(pattern) = &settings.event_type {
        route = route.event_type(pattern);
    }
    if let Some(pattern) = &settings.tenant {
        route = route.tenant(pattern);
    }
    for (name, pattern) in &settings.header {
        route = route.header(name, pattern);
    }
    match (&settings.topic, settings.topics.is_empty()) {
        (Some(topic), true) => Ok(route.topic(topic)),
        (None, true) => Ok(route),
        // With a map, the topic is for what is not in it.
        (default, false) if default.as_deref() != Some("") => {
            Ok(route.topic_map(&settings.topics, default.as_deref()))
        }
        _ => Err(Error::invalid(format!("routes[{number}].topic is empty"))),
    }
}

/// What an operator should know of settings that work: which outboxes have no route that takes every event,
/// and which topics leave events out.
pub(crate) fn build_notes(settings: &Settings) -> Vec<String> {
    let names = settings.destination_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let note = |outbox: &OutboxSettings| {
        let (_, routes) = routes(settings, outbox, &names).ok()?;
        (!routes.takes_every_event()).then(|| {
            format!(
                "outbox {}: no route takes every event; an event that none matches is dead at once \
                 (a last route with only `to` takes the rest)",
                outbox.name
            )
        })
    };
    settings.outboxes.iter().filter_map(note).chain(topics::notes(settings)).collect()
}

/// What is wrong with the routes alone: also where a destination's URL cannot be read.
pub(crate) fn route_problems(settings: &Settings) -> Vec<String> {
    let names = settings.destination_names();
    if names.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut problems = Vec::new();
    for outbox in &settings.outboxes {
        let Err(error) = routes(settings, outbox, &names) else { continue };
        let problem = error.to_string();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    problems
}

/// What a relay would refuse of these settings, without a database: on one in memory, which it is
/// not asked to open.
pub(crate) async fn build_problems(settings: &Settings) -> Vec<String> {
    let destinations = match destinations(settings) {
        Ok(destinations) => destinations,
        Err(error) => return vec![error.to_string()],
    };
    // Certificates are read, and nothing is served.
    let admin = settings.admin.config(None).map(|config| Admin::new(Vec::new(), config));
    let unserved = admin.and_then(Result::err).map(|error| error.to_string());
    let mut problems: Vec<String> = unserved.into_iter().collect();
    for outbox in &settings.outboxes {
        let built = async {
            let (destinations, routes) = routing(settings, outbox, &destinations)?;
            let store =
                stores::connect("sqlite:file:posthaste_check?mode=memory", &Options::default())
                    .await?;
            Relay::routed(store, destinations, routes, settings.relay_config(outbox)).map(drop)
        };
        if let Err(error) = built.await {
            let problem = error.to_string();
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }
    problems
}
