//! Who may work on which shard, by the server's clock.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Census, Held, Leases, LiveRelay, Position, Relay, Report, ShardLease},
};

use super::{Data, MemoryStore, RelayRow, micros};

impl Data {
    /// A lease that counts: not over, and its relay has not reported from the future, as when the clock was
    /// set back.
    fn owner(&self, shard: usize, now: i64) -> Option<&str> {
        let lease = self.leases.get(shard)?;
        let owner = lease.locked_by.as_deref()?;
        let of_the_future =
            self.relays.get(owner).is_some_and(|relay| relay.heartbeat_at - relay.lease > now);
        (lease.locked_until > now && !of_the_future).then_some(owner)
    }

    /// Whether this lease is still the relay's.
    pub(super) fn holds(&self, owner: &str, held: Held) -> bool {
        self.leases.get(usize::from(held.shard)).is_some_and(|lease| {
            lease.locked_by.as_deref() == Some(owner) && lease.epoch == held.epoch
        })
    }
}

#[async_trait]
impl Leases for MemoryStore {
    async fn heartbeat(&self, relay: &Relay, reserved: i64) -> Result<Census> {
        let now = self.server.now();
        let mut data = self.server.lock();
        let row = data.relays.entry(relay.owner()).or_insert_with(|| RelayRow {
            name: relay.name.clone(),
            ordering: relay.ordering,
            lease: micros(relay.lease),
            reserved,
            started_at: now,
            heartbeat_at: now,
            report: Report::default(),
        });
        row.heartbeat_at = now;
        row.lease = micros(relay.lease);
        row.reserved = row.reserved.max(reserved);
        let owners: Vec<_> =
            data.leases.iter().filter_map(|lease| lease.locked_by.clone()).collect();
        data.relays.retain(|owner, relay| {
            relay.heartbeat_at + relay.lease * 10 + 3_600_000_000 >= now || owners.contains(owner)
        });
        let is_live = |row: &RelayRow| {
            row.heartbeat_at + row.lease > now && row.heartbeat_at - row.lease < now
        };
        let live = data.relays.iter().filter(|(_, row)| is_live(row));
        let live =
            live.map(|(owner, row)| LiveRelay { owner: owner.clone(), ordering: row.ordering });
        let owners = (0..data.leases.len()).map(|shard| data.owner(shard, now).map(str::to_owned));
        Ok(Census { live: live.collect(), owners: owners.collect() })
    }

    async fn acquire(&self, relay: &Relay, wanted: &[u16]) -> Result<Vec<ShardLease>> {
        let now = self.server.now();
        let owner = relay.owner();
        let mut data = self.server.lock();
        self.life.store(data.life, Ordering::Relaxed);
        let newest = data.newest();
        let mut leases = Vec::new();
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        for shard in wanted {
            let index = usize::from(shard);
            if data.owner(index, now).is_some_and(|other| other != owner) {
                continue;
            }
            let Some(lease) = data.leases.get(index) else { continue };
            let last = lease.locked_by.clone().filter(|last| *last != owner);
            let suspect_to = last.map(|last| {
                data.relays.get(&last).map_or(i64::MAX, |relay| relay.reserved).min(newest)
            });
            let lease = &mut data.leases[index];
            lease.epoch += 1;
            lease.locked_by = Some(owner.clone());
            lease.locked_until = now.saturating_add(micros(relay.lease));
            let held = Held { shard, epoch: lease.epoch };
            leases.push(ShardLease { held, mark: lease.mark.clone(), suspect_to });
        }
        Ok(leases)
    }

    async fn renew(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<Vec<u16>> {
        let now = self.server.now();
        let owner = relay.owner();
        let mut data = self.same_server()?;
        let mut renewed = Vec::new();
        for held in held {
            if data.holds(&owner, *held) {
                let lease = &mut data.leases[usize::from(held.shard)];
                lease.locked_until = now.saturating_add(micros(relay.lease));
                lease.mark = mark.clone();
                renewed.push(held.shard);
            }
        }
        Ok(renewed)
    }

    async fn release(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<()> {
        let owner = relay.owner();
        let mut data = self.same_server()?;
        for held in held {
            if data.holds(&owner, *held) {
                let lease = &mut data.leases[usize::from(held.shard)];
                lease.locked_by = None;
                lease.locked_until = 0;
                lease.mark = mark.clone();
            }
        }
        Ok(())
    }

    async fn report_state(&self, relay: &Relay, report: &Report) -> Result<()> {
        if let Some(row) = self.server.lock().relays.get_mut(&relay.owner()) {
            row.report = report.clone();
        }
        Ok(())
    }

    async fn retire(&self, relay: &Relay) -> Result<()> {
        self.server.lock().relays.remove(&relay.owner());
        Ok(())
    }
}
