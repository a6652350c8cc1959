//! Relays, who of them holds what, and what they see of their destinations.

use std::collections::BTreeMap;

use axum::Json;
use jiff::Timestamp;
use posthaste_core::store::{OpenBreaker, Pausable};
use posthaste_operate::{RelayLine, ShardLine};
use serde::Serialize;

use super::ServedOutbox;
use crate::problem::Answer;

#[derive(Serialize)]
pub(super) struct Relays {
    relays: Vec<RelayLine>,
}

pub(super) async fn relays(ServedOutbox { outbox, .. }: ServedOutbox) -> Answer<Json<Relays>> {
    let store = &*outbox.store;
    let (now, shards) = (store.now().await?, store.shards().await?);
    let line = |relay| RelayLine::new(relay, &shards, now);
    Ok(Json(Relays { relays: store.relays().await?.into_iter().map(line).collect() }))
}

#[derive(Serialize)]
pub(super) struct Shards {
    shards: Vec<ShardLine>,
}

pub(super) async fn shards(ServedOutbox { outbox, .. }: ServedOutbox) -> Answer<Json<Shards>> {
    Ok(Json(Shards {
        shards: outbox.store.shards().await?.into_iter().map(ShardLine::from).collect(),
    }))
}

#[derive(Serialize)]
pub(super) struct Destinations {
    destinations: Vec<DestinationLine>,
}

#[derive(Serialize)]
struct DestinationLine {
    name: String,
    paused: bool,
    breakers: Vec<BreakerLine>,
}

#[derive(Serialize)]
struct BreakerLine {
    relay: String,
    state: String,
    since: Timestamp,
    error: String,
}

/// Those that this process knows, those that a living relay has trouble with, and those that are
/// paused.
pub(super) async fn destinations(
    ServedOutbox { outbox, .. }: ServedOutbox,
) -> Answer<Json<Destinations>> {
    let mut known: BTreeMap<String, (bool, Vec<BreakerLine>)> = BTreeMap::new();
    for name in &outbox.destinations {
        known.entry(name.clone()).or_default();
    }
    for relay in outbox.store.relays().await?.into_iter().filter(|relay| relay.alive) {
        for OpenBreaker { destination, state, since, error } in relay.breakers {
            let line = BreakerLine { relay: relay.name.clone(), state, since, error };
            known.entry(destination).or_default().1.push(line);
        }
    }
    for pause in outbox.store.pauses().await? {
        if let Pausable::Destination(name) = pause.what {
            known.entry(name).or_default().0 = true;
        }
    }
    let line = |(name, (paused, breakers))| DestinationLine { name, paused, breakers };
    Ok(Json(Destinations { destinations: known.into_iter().map(line).collect() }))
}
