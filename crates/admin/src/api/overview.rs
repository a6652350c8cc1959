//! How outboxes stand.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State};
use posthaste_core::store::{Counts, TenantCounts};
use posthaste_operate::{Overview, doctor::STALL_AFTER};
use serde::Serialize;

use super::{Served, ServedOutbox};
use crate::problem::Answer;

/// How long a database may take to say how many shards there are; shorter than the dashboard waits for the
/// list.
const PATIENCE: Duration = Duration::from_millis(1_500);

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
    // Side by side and for a short time: one that is out of reach must not hide the others.
    let check = |ServedOutbox { outbox, .. }: &ServedOutbox| {
        let store = Arc::clone(&outbox.store);
        tokio::spawn(async move { tokio::time::timeout(PATIENCE, store.check()).await.ok()?.ok() })
    };
    let checks: Vec<_> = served.iter().map(check).collect();
    let mut outboxes = Vec::new();
    for (ServedOutbox { outbox, .. }, check) in served.iter().zip(checks) {
        let shards = check.await.ok().flatten();
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
