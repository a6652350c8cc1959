//! One event: its history, its payload, another try or the end for it.

use std::collections::BTreeMap;

use axum::{Json, http::StatusCode};
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use posthaste_core::{
    Event,
    store::{Attempt, EventRecord},
};
use posthaste_operate::doctor::{Explanation, explain};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Changed, Nothing, ServedOutbox, events::EventLine};
use crate::{
    AdminOutbox,
    auth::{Caller, must_operate},
    extract::{JsonOf, PathOf},
    problem::{Answer, Problem},
};

#[derive(Deserialize)]
pub(super) struct EventPath {
    id: String,
}

impl EventPath {
    fn id(&self) -> Answer<Uuid> {
        self.id.parse().map_err(|_| Problem::unreadable("the id in the path is not a UUID"))
    }
}

async fn find(served: &ServedOutbox, path: &EventPath) -> Answer<EventRecord> {
    let id = path.id()?;
    let found = served.outbox.store.event(id).await?;
    found.ok_or_else(|| Problem::not_found(format!("event {id}")))
}

#[derive(Serialize)]
pub(super) struct EventAnswer {
    event: EventDetail,
    attempts: Vec<AttemptLine>,
    explanation: Explanation,
}

#[derive(Serialize)]
struct EventDetail {
    #[serde(flatten)]
    line: EventLine,
    headers: BTreeMap<String, String>,
    content_type: Option<String>,
    schema_id: Option<String>,
    schema_version: Option<i32>,
    routing_key: Option<String>,
    ordering_key: Option<String>,
}

#[derive(Serialize)]
struct AttemptLine {
    attempt: u32,
    at: Timestamp,
    relay: String,
    destination: String,
    error: String,
}

impl From<Attempt> for AttemptLine {
    fn from(Attempt { attempt, at, relay, destination, error }: Attempt) -> Self {
        Self { attempt, at, relay, destination, error }
    }
}

pub(super) async fn show(
    served: ServedOutbox,
    PathOf(path): PathOf<EventPath>,
) -> Answer<Json<EventAnswer>> {
    let id = path.id()?;
    let AdminOutbox { store, destinations, .. } = &*served.outbox;
    let record = store.event(id).await?;
    let explanation = explain(&**store, id, destinations).await?;
    let Some(record) = record else {
        // The doctor knows more than that it is not there: whose transaction may still hold it.
        return Err(Problem::new(StatusCode::NOT_FOUND, explanation.sentence));
    };
    let attempts = store.attempts(record.sequence).await?;
    let event = record.content.as_ref().ok().map(|envelope| &envelope.event);
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Ok(Json(EventAnswer {
        event: EventDetail {
            line: EventLine::new(&record),
            headers: event.map(|event| event.headers().clone()).unwrap_or_default(),
            content_type: owned(event.map(Event::content_type)),
            schema_id: owned(event.and_then(|event| event.schema_id())),
            schema_version: event.map(Event::schema_version),
            routing_key: owned(event.and_then(|event| event.routing_key())),
            ordering_key: event.and_then(Event::ordering_key),
        },
        attempts: attempts.into_iter().map(AttemptLine::from).collect(),
        explanation,
    }))
}

#[derive(Serialize)]
pub(super) struct Payload {
    content_type: String,
    encoding: &'static str,
    payload: String,
}

/// For operators alone: a payload may hold what a viewer must not see.
pub(super) async fn payload(
    served: ServedOutbox,
    caller: Caller,
    PathOf(path): PathOf<EventPath>,
) -> Answer<Json<Payload>> {
    must_operate(&caller)?;
    let record = find(&served, &path).await?;
    let Ok(envelope) = record.content else {
        return Err(Problem::not_found("a payload that can be decoded"));
    };
    let bytes = envelope.event.payload();
    let (encoding, payload) = match std::str::from_utf8(bytes) {
        Ok(text) => ("utf8", text.to_owned()),
        Err(_) => ("base64", STANDARD.encode(bytes)),
    };
    tracing::info!(by = %caller.name, event.id = %envelope.event.id(), "payload shown");
    let content_type = envelope.event.content_type().to_owned();
    Ok(Json(Payload { content_type, encoding, payload }))
}

pub(super) async fn replay(
    served: ServedOutbox,
    caller: Caller,
    PathOf(path): PathOf<EventPath>,
    JsonOf(_): JsonOf<Nothing>,
) -> Answer<Json<Changed>> {
    served.operator(caller).replay(path.id()?).await?;
    Ok(Json(Changed { changed: 1 }))
}

pub(super) async fn discard(
    served: ServedOutbox,
    caller: Caller,
    PathOf(path): PathOf<EventPath>,
    JsonOf(_): JsonOf<Nothing>,
) -> Answer<Json<Changed>> {
    served.operator(caller).discard(path.id()?).await?;
    Ok(Json(Changed { changed: 1 }))
}
