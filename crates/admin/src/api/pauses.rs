//! What stands still because somebody said so.

use axum::Json;
use posthaste_core::{Error, Key, Result, key::derived_key, limits, store::Pausable};
use posthaste_operate::{PauseLine, check_name};
use serde::{Deserialize, Serialize};

use super::{Changed, ServedOutbox};
use crate::{
    AdminOutbox,
    auth::Caller,
    extract::{JsonOf, Object, PathOf, text},
    problem::{Answer, Problem},
};

/// Longest name of a relay or a destination.
const NAME: usize = 100;

/// Longest note.
const NOTE: usize = 1_000;

#[derive(Serialize)]
pub(super) struct Pauses {
    pauses: Vec<PauseLine>,
}

pub(super) async fn list(ServedOutbox { outbox, .. }: ServedOutbox) -> Answer<Json<Pauses>> {
    let pauses = outbox.store.pauses().await?;
    Ok(Json(Pauses { pauses: pauses.into_iter().map(PauseLine::from).collect() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PauseRequest {
    kind: String,
    name: Option<String>,
    key: Option<Object<KeyOf>>,
    note: Option<String>,
    /// Takes the name of a relay or a destination that nobody knows.
    unknown: Option<bool>,
}

/// The aggregate whose events are to wait.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyOf {
    tenant: Option<String>,
    aggregate_type: String,
    aggregate_id: String,
}

impl KeyOf {
    fn check(&self) -> Result<()> {
        if let Some(tenant) = &self.tenant {
            text("tenant", tenant, limits::TENANT)?;
        }
        text("aggregate_type", &self.aggregate_type, limits::AGGREGATE_TYPE)?;
        text("aggregate_id", &self.aggregate_id, limits::AGGREGATE_ID)
    }

    fn key(&self) -> Key {
        let Self { tenant, aggregate_type, aggregate_id } = self;
        Key::of(&derived_key(tenant.as_deref().unwrap_or_default(), aggregate_type, aggregate_id))
    }

    /// For people: the key itself is a number.
    fn words(&self) -> String {
        let tenant = self.tenant.as_ref().map(|tenant| format!(" of tenant {tenant}"));
        format!("{}/{}{}", self.aggregate_type, self.aggregate_id, tenant.unwrap_or_default())
    }
}

impl PauseRequest {
    /// What is meant, and the note that is kept with it.
    fn read(self) -> Result<(Pausable, Option<String>)> {
        let Self { kind, name, key, note, unknown } = self;
        if let Some(note) = &note {
            text("note", note, NOTE)?;
        }
        if unknown.is_some() && !["relay", "destination"].contains(&kind.as_str()) {
            return Err(Error::invalid("`unknown` is given for a relay or a destination alone"));
        }
        match (kind.as_str(), key) {
            ("key", Some(Object(key))) if name.is_none() => {
                key.check()?;
                let words = key.words();
                let note = note.map_or(words.clone(), |note| format!("{words}: {note}"));
                Ok((Pausable::Key(key.key()), Some(note)))
            }
            (_, Some(_)) => {
                Err(Error::invalid("a key is given for the kind `key` alone, and without a name"))
            }
            (kind, None) => Ok((pausable(kind, name.as_deref())?, note)),
        }
    }
}

fn pausable(kind: &str, name: Option<&str>) -> Result<Pausable> {
    if let Some(name) = name {
        text("name", name, NAME)?;
    }
    Pausable::parse(kind, name.unwrap_or_default())
}

/// Whether a pause changed anything, and whether its name was checked, where it has one that could be.
#[derive(Serialize)]
pub(super) struct Paused {
    changed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<bool>,
}

pub(super) async fn pause(
    served: ServedOutbox,
    caller: Caller,
    JsonOf(request): JsonOf<PauseRequest>,
) -> Answer<Json<Paused>> {
    let insists = request.unknown == Some(true);
    let (what, note) = request.read()?;
    let AdminOutbox { store, destinations, .. } = &*served.outbox;
    let checked = if insists {
        Some(false)
    } else {
        check_name(&**store, &what, destinations, "\"unknown\": true").await?
    };
    let changed = served.operator(caller).pause(&what, note.as_deref()).await?;
    Ok(Json(Paused { changed: u64::from(changed), checked }))
}

#[derive(Deserialize)]
pub(super) struct PausePath {
    kind: String,
    /// `-` for the outbox, which has none.
    name: String,
}

pub(super) async fn resume(
    served: ServedOutbox,
    caller: Caller,
    PathOf(PausePath { kind, name }): PathOf<PausePath>,
) -> Answer<Json<Changed>> {
    let name = if kind == "outbox" && name == "-" { None } else { Some(name.as_str()) };
    let what = pausable(&kind, name).map_err(|_| Problem::not_found("anything so called"))?;
    let changed = served.operator(caller).resume(&what).await?;
    Ok(Json(Changed { changed: u64::from(changed) }))
}
