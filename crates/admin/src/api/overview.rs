//! How outboxes stand.

use axum::{Json, extract::State};
use posthaste_core::store::{Counts, TenantCounts};
use posthaste_operate::{Overview, doctor::STALL_AFTER};
use serde::Serialize;

use super::{Served, ServedOutbox};
use crate::problem::Answer;

#[derive(Serialize)]
pub(super) struct Outboxes {
    outboxes: Vec<OutboxLine>,
}

#[derive(Serialize)]
struct OutboxLine {
    name: String,
    database: &'static str,
    /// `None` while the database cannot be asked.
    shards: Option<u16>,
}

pub(super) async fn outboxes(State(served): State<Served>) -> Json<Outboxes> {
    let mut outboxes = Vec::new();
    for ServedOutbox { outbox, .. } in served.iter() {
        // One that is out of reach must not hide the others.
        let shards = outbox.store.check().await.ok();
        let (name, database) = (outbox.name.clone(), outbox.store.database());
        outboxes.push(OutboxLine { name, database, shards });
    }
    Json(Outboxes { outboxes })
}

pub(super) async fn overview(ServedOutbox { outbox, .. }: ServedOutbox) -> Answer<Json<Overview>> {
    Ok(Json(Overview::read(&*outbox.store, &outbox.name, STALL_AFTER).await?))
}

pub(super) async fn tenants(
    ServedOutbox { outbox, .. }: ServedOutbox,
) -> Answer<Json<TenantCounts>> {
    Ok(Json(outbox.store.counts_by_tenant(Counts::CAP).await?))
}
