//! How outboxes stand.

use axum::{Json, extract::State};
use posthaste_core::store::{Counts, TenantBacklog, TenantCounts};
use serde::Serialize;

use super::{
    Served, ServedOutbox,
    pauses::PauseLine,
    relays::{RelayLine, relay_lines},
};
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

#[derive(Serialize)]
pub(super) struct Overview {
    outbox: String,
    database: &'static str,
    counts: Counts,
    oldest_pending_s: Option<f64>,
    backlog_by_tenant: Vec<TenantBacklog>,
    backlog_estimated: bool,
    relays: Vec<RelayLine>,
    shards: Shards,
    pauses: Vec<PauseLine>,
}

#[derive(Serialize)]
struct Shards {
    total: usize,
    held: usize,
    free: usize,
}

pub(super) async fn overview(ServedOutbox { outbox, .. }: ServedOutbox) -> Answer<Json<Overview>> {
    let store = &*outbox.store;
    let shards = store.shards().await?;
    let held = shards.iter().filter(|shard| shard.locked_by.is_some()).count();
    let tenants = store.counts_by_tenant(Counts::CAP).await?;
    Ok(Json(Overview {
        outbox: outbox.name.clone(),
        database: store.database(),
        counts: store.counts(Counts::CAP).await?,
        oldest_pending_s: store.oldest_pending().await?.map(|age| age.as_secs_f64()),
        backlog_by_tenant: tenants.tenants,
        backlog_estimated: tenants.estimated,
        relays: relay_lines(store.relays().await?, &shards),
        shards: Shards { total: shards.len(), held, free: shards.len() - held },
        pauses: store.pauses().await?.into_iter().map(PauseLine::from).collect(),
    }))
}

pub(super) async fn tenants(
    ServedOutbox { outbox, .. }: ServedOutbox,
) -> Answer<Json<TenantCounts>> {
    Ok(Json(outbox.store.counts_by_tenant(Counts::CAP).await?))
}
