//! What a relay does by itself, and sooner when asked.

use axum::Json;
use serde::Serialize;

use super::{Nothing, ServedOutbox};
use crate::{auth::Caller, extract::JsonOf, problem::Answer};

/// How many events one step of a purge looks at.
const PURGE_BATCH: usize = 500;

/// Whether any relay could be told.
#[derive(Serialize)]
pub(super) struct Woken {
    woken: bool,
}

/// Lets the relays look for events now.
pub(super) async fn poll(
    ServedOutbox { outbox, .. }: ServedOutbox,
    JsonOf(_): JsonOf<Nothing>,
) -> Answer<Json<Woken>> {
    if let Some(relay) = &outbox.relay {
        relay.wake();
    }
    let told = outbox.store.wake().await?;
    Ok(Json(Woken { woken: told || outbox.relay.is_some() }))
}

#[derive(Serialize)]
pub(super) struct Deleted {
    deleted: u64,
}

pub(super) async fn purge(
    served: ServedOutbox,
    caller: Caller,
    JsonOf(_): JsonOf<Nothing>,
) -> Answer<Json<Deleted>> {
    let deleted = served.operator(caller).purge(served.outbox.retention, PURGE_BATCH).await?;
    Ok(Json(Deleted { deleted }))
}
