//! How an outbox stands, on one page. As quick with a million events as with none: counts are exact up
//! to a cap, and say when they are not.

use std::time::Duration;

use jiff::Timestamp;
use posthaste_core::{
    Result,
    store::{Counts, OpenBreaker, Pause, RelayRecord, ShardRecord, Store, TenantBacklog},
};
use serde::Serialize;

use crate::doctor::{StallLine, stalls};

/// How an outbox stands. Ages are in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Overview {
    /// Its name.
    pub outbox: String,
    /// The database's family.
    pub database: &'static str,
    /// How many events are in which state.
    pub counts: Counts,
    /// How many sent events are kept, when somebody counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// For how long the oldest event that could be delivered has waited.
    pub oldest_pending_s: Option<f64>,
    /// Events that could be delivered and are not.
    pub stalls: Vec<StallLine>,
    /// The backlog by tenant, the largest first.
    pub backlog_by_tenant: Vec<TenantBacklog>,
    /// The backlog by tenant is that of the oldest events only.
    pub backlog_estimated: bool,
    /// The relays that have reported lately.
    pub relays: Vec<RelayLine>,
    /// The shards.
    pub shards: ShardCounts,
    /// What is paused.
    pub pauses: Vec<PauseLine>,
}

/// A relay as an overview shows it.
#[derive(Debug, Clone, Serialize)]
pub struct RelayLine {
    /// Its name.
    pub name: String,
    /// This run of it, as shards name their owner.
    pub owner: String,
    /// Its last report is younger than its lease.
    pub alive: bool,
    /// How it divides the work.
    pub ordering: String,
    /// Its version.
    pub version: String,
    /// How many shards it holds.
    pub shards: usize,
    /// How long ago it reported.
    pub heartbeat_age_s: f64,
    /// Since when it runs.
    pub started_at: Timestamp,
    /// Which of its destinations take nothing.
    pub breakers: Vec<OpenBreaker>,
}

/// How many shards have an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ShardCounts {
    /// All of them.
    pub total: usize,
    /// Held by a relay.
    pub held: usize,
    /// Held by nobody.
    pub free: usize,
}

/// A pause as programs read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PauseLine {
    /// `outbox`, `relay`, `destination` or `key`.
    pub kind: &'static str,
    /// Which; empty for the outbox.
    pub name: String,
    /// Why, and for a key which one it is.
    pub note: Option<String>,
    /// By whom.
    pub by: String,
    /// Since when.
    pub since: Timestamp,
}

impl From<Pause> for PauseLine {
    fn from(pause: Pause) -> Self {
        let Pause { what, note, by, since } = pause;
        Self { kind: what.kind(), name: what.name(), note, by, since }
    }
}

impl Overview {
    /// Asks the store. `outbox` is the name to show. An event that waits for no reason for longer than
    /// `stall_after` stalls.
    pub async fn read(
        store: &dyn Store,
        outbox: impl Into<String>,
        stall_after: Duration,
    ) -> Result<Self> {
        let now = store.now().await?;
        let counts = store.counts(Counts::CAP).await?;
        let oldest = store.oldest_pending().await?;
        let stalls = stalls(store, stall_after).await?;
        let tenants = store.counts_by_tenant(Counts::CAP).await?;
        let shards = store.shards().await?;
        let relays = store.relays().await?;
        let pauses = store.pauses().await?;
        let held = shards.iter().filter(|shard| shard.locked_by.is_some()).count();
        Ok(Self {
            outbox: outbox.into(),
            database: store.database(),
            counts,
            sent: None,
            oldest_pending_s: oldest.map(|age| age.as_secs_f64()),
            stalls,
            backlog_by_tenant: tenants.tenants,
            backlog_estimated: tenants.estimated,
            relays: relays.into_iter().map(|relay| RelayLine::new(relay, &shards, now)).collect(),
            shards: ShardCounts { total: shards.len(), held, free: shards.len() - held },
            pauses: pauses.into_iter().map(PauseLine::from).collect(),
        })
    }
}

impl RelayLine {
    /// The relay, with the shards that it holds of these. `now` is by the database's clock.
    pub fn new(relay: RelayRecord, shards: &[ShardRecord], now: Timestamp) -> Self {
        let held = shards.iter().filter(|shard| shard.locked_by.as_ref() == Some(&relay.owner));
        Self {
            shards: held.count(),
            heartbeat_age_s: now.duration_since(relay.heartbeat_at).as_secs_f64().max(0.0),
            name: relay.name,
            owner: relay.owner,
            alive: relay.alive,
            ordering: relay.ordering,
            version: relay.version,
            started_at: relay.started_at,
            breakers: relay.breakers,
        }
    }
}
