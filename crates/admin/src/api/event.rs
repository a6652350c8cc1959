//! One event: its history, its payload, another try or the end for it.

use axum::{Json, http::StatusCode};
use base64::{Engine, engine::general_purpose::STANDARD};
use posthaste_core::store::{Attempt, EventRecord};
use posthaste_operate::{
    EventDetail,
    doctor::{Explanation, explain},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Changed, Nothing, ServedOutbox};
use crate::{
    AdminOutbox,
    auth::{Caller, must_see_payloads},
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
    attempts: Vec<Attempt>,
    explanation: Explanation,
}

pub(super) async fn show(
    served: ServedOutbox,
    PathOf(path): PathOf<EventPath>,
) -> Answer<Json<EventAnswer>> {
    let id = path.id()?;
    let AdminOutbox { store, destinations, .. } = &*served.outbox;
    let record = store.event(id).await?;
    let routes = served.outbox.routes();
    let explanation = explain(&**store, id, destinations, routes.as_deref()).await?;
    let Some(record) = record else {
        // The doctor knows more than that it is not there: whose transaction may still hold it.
        return Err(Problem::new(StatusCode::NOT_FOUND, explanation.sentence));
    };
    let attempts = store.attempts(record.sequence).await?;
    Ok(Json(EventAnswer { event: EventDetail::new(&record), attempts, explanation }))
}

#[derive(Serialize)]
pub(super) struct Payload {
    content_type: String,
    encoding: &'static str,
    payload: String,
}

/// For operators with a token alone: a payload may hold what others must not see.
pub(super) async fn payload(
    served: ServedOutbox,
    caller: Caller,
    PathOf(path): PathOf<EventPath>,
) -> Answer<Json<Payload>> {
    must_see_payloads(&caller)?;
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
