//! Looking at an outbox.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Result, Status,
    store::{
        Attempt, Counts, EventPage, EventRecord, Filter, Inspect, Overdue, RelayRecord,
        ShardRecord, TenantBacklog, TenantCounts,
    },
};
use uuid::Uuid;

use super::{Data, FOR_EVER, MemoryStore, Row, micros};

/// Rows that one page of a list examines at most.
const WINDOW: usize = 10_000;

impl Row {
    /// Whether it matches a filter.
    pub(super) fn matches(&self, filter: &Filter, now: i64) -> bool {
        let is = |asked: &Option<String>, has: Option<&str>| {
            asked.as_deref().is_none_or(|asked| has == Some(asked))
        };
        let event = &self.event;
        filter.status.is_none_or(|status| status == self.status(now))
            && is(&filter.event_type, Some(event.event_type()))
            && is(&filter.aggregate_type, Some(event.aggregate_type()))
            && is(&filter.aggregate_id, event.aggregate_id())
            && is(&filter.tenant, event.tenant())
            && filter.created_from.is_none_or(|from| self.created_at >= from.as_microsecond())
            && filter.created_before.is_none_or(|before| self.created_at < before.as_microsecond())
    }
}

impl Data {
    /// The backlog: above the lowest mark, and whatever waits.
    fn backlog(&self, cap: u64) -> impl Iterator<Item = &Row> {
        let unsettled = |row: &&Row| self.is_visible(row) && row.is_unsettled();
        let fresh = self.rows.range(self.floor() + 1..).map(|(_, row)| row);
        let fresh = fresh.filter(|row| row.not_before.is_none()).filter(unsettled);
        let waiting = self.waiting().filter(|row| row.is_unsettled());
        fresh.chain(waiting).take(usize::try_from(cap).unwrap_or(usize::MAX).saturating_add(1))
    }

    /// Due for `age`, or held although nothing holds it: `None` when it is neither.
    fn overdue(&self, row: &Row, now: i64, age: i64) -> bool {
        let old = row.is_unsettled()
            && row.locked_until.is_none_or(|until| until <= now)
            && row.created_at <= now.saturating_sub(age);
        let due = row.not_before.is_none_or(|at| at <= now.saturating_sub(age));
        old && (due || self.is_first_held(row))
    }

    /// The first held event of a lane that nothing blocks.
    fn is_first_held(&self, row: &Row) -> bool {
        let Some(lane) = row.lane().filter(|_| row.is_held() && row.not_before == Some(FOR_EVER))
        else {
            return false;
        };
        let of_lane = || self.waiting().filter(move |other| other.lane() == Some(lane));
        let blocked = of_lane().any(|other| other.is_waiting_blocker() || other.is_parked());
        let first = of_lane().find(|other| other.is_held() && other.not_before == Some(FOR_EVER));
        !blocked && first.is_some_and(|first| first.sequence == row.sequence)
    }
}

fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}

#[async_trait]
impl Inspect for MemoryStore {
    async fn event(&self, id: Uuid) -> Result<Option<EventRecord>> {
        let now = self.server.now();
        let data = self.server.lock();
        let row = data.by_id.get(&id).and_then(|sequence| data.visible(*sequence));
        Ok(row.map(|row| row.record(now, true)))
    }

    async fn events(
        &self,
        filter: &Filter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<EventPage> {
        let now = self.server.now();
        let data = self.server.lock();
        let mut page = EventPage::default();
        let rows = data.rows.range(..before.unwrap_or(i64::MAX)).rev().map(|(_, row)| row);
        for row in rows.filter(|row| data.is_visible(row)) {
            if page.events.len() >= limit {
                page.next = page.events.last().map(|event| event.sequence);
                break;
            }
            if page.examined as usize >= WINDOW {
                page.next = Some(row.sequence + 1);
                break;
            }
            page.examined += 1;
            if row.matches(filter, now) {
                page.events.push(row.record(now, false));
            }
        }
        Ok(page)
    }

    async fn attempts(&self, sequence: i64) -> Result<Vec<Attempt>> {
        let data = self.server.lock();
        let mut attempts = data.attempts.get(&sequence).cloned().unwrap_or_default();
        attempts.sort_by_key(|(replay, attempt)| (*replay, attempt.attempt));
        Ok(attempts.into_iter().map(|(_, attempt)| attempt).collect())
    }

    async fn counts(&self, cap: u64) -> Result<Counts> {
        let now = self.server.now();
        let data = self.server.lock();
        let mut counts = Counts::default();
        for row in data.backlog(cap) {
            match row.status(now) {
                Status::New => {
                    counts.new += 1;
                    counts.held += u64::from(row.is_held());
                }
                Status::Sending => counts.sending += 1,
                Status::Retry if row.is_held() && row.attempts == 0 => counts.new += 1,
                Status::Retry => counts.retry += 1,
                Status::Sent | Status::Dead | Status::Discarded => {}
            }
        }
        let dead = data
            .rows
            .values()
            .filter(|row| data.is_visible(row) && row.status(now) == Status::Dead);
        counts.dead =
            dead.take(usize::try_from(cap).unwrap_or(usize::MAX).saturating_add(1)).count() as u64;
        let others = counts.sending + counts.retry;
        if counts.new + others > cap {
            counts.estimated = true;
            let above = (data.newest() - data.floor()).max(0) as u64;
            counts.new = counts.new.max(above.saturating_sub(others));
        }
        counts.estimated |= counts.dead > cap;
        Ok(counts)
    }

    async fn counts_by_tenant(&self, cap: u64) -> Result<TenantCounts> {
        let data = self.server.lock();
        let mut groups = BTreeMap::<Option<String>, u64>::new();
        for row in data.backlog(cap) {
            *groups.entry(row.event.tenant().map(str::to_owned)).or_default() += 1;
        }
        let estimated = groups.values().sum::<u64>() > cap;
        let mut tenants: Vec<TenantBacklog> =
            groups.into_iter().map(|(tenant, events)| TenantBacklog { tenant, events }).collect();
        tenants.sort_by(|a, b| b.events.cmp(&a.events).then_with(|| a.tenant.cmp(&b.tenant)));
        Ok(TenantCounts { tenants, estimated })
    }

    async fn held_by(&self, sequence: i64) -> Result<Option<EventRecord>> {
        let now = self.server.now();
        let data = self.server.lock();
        let held = data.visible(sequence).filter(|row| row.is_held());
        let Some(lane) = held.and_then(Row::lane) else { return Ok(None) };
        let holder = data.waiting().find(|row| {
            row.sequence != sequence
                && row.lane() == Some(lane)
                && (row.is_waiting_blocker() || row.is_parked())
        });
        Ok(holder.map(|row| row.record(now, false)))
    }

    async fn count_sent(&self) -> Result<u64> {
        let data = self.server.lock();
        let sent = data.rows.values().filter(|row| data.is_visible(row) && row.sent_at.is_some());
        Ok(sent.count() as u64)
    }

    async fn oldest_pending(&self) -> Result<Option<Duration>> {
        let now = self.server.now();
        let data = self.server.lock();
        let since = data.rows.values().filter(|row| data.is_visible(row) && row.is_unsettled());
        let since = since.filter_map(|row| match row.not_before {
            None => Some(row.created_at),
            Some(at) => (at <= now).then_some(at.max(row.created_at)),
        });
        Ok(since.min().map(|since| Duration::from_micros((now - since).max(0) as u64)))
    }

    async fn overdue(&self, after: i64, examine: usize, age: Duration) -> Result<Overdue> {
        let now = self.server.now();
        let data = self.server.lock();
        let (mut events, mut examined, mut last) = (Vec::new(), 0, None);
        for row in data.rows.range(after + 1..).map(|(_, row)| row) {
            if !data.is_visible(row) {
                continue;
            }
            if examined as usize >= examine || events.len() >= Overdue::MOST {
                break;
            }
            examined += 1;
            last = Some(row.sequence);
            if data.overdue(row, now, micros(age)) {
                events.push(row.record(now, false));
            }
        }
        Ok(Overdue::walked(events, examine, (examined, last)))
    }

    async fn still_overdue(&self, sequences: &[i64], age: Duration) -> Result<Vec<EventRecord>> {
        let now = self.server.now();
        let data = self.server.lock();
        let mut sequences = sequences.to_vec();
        sequences.sort_unstable();
        let rows = sequences.into_iter().filter_map(|sequence| data.visible(sequence));
        let overdue = rows.filter(|row| data.overdue(row, now, micros(age)));
        Ok(overdue.map(|row| row.record(now, false)).collect())
    }

    async fn shards(&self) -> Result<Vec<ShardRecord>> {
        let now = self.server.now();
        let data = self.server.lock();
        let shards = data.leases.iter().enumerate().map(|(shard, lease)| {
            let valid = lease.locked_until > now;
            ShardRecord {
                shard: shard as u16,
                locked_by: lease.locked_by.clone().filter(|_| valid),
                locked_until: (valid && lease.locked_by.is_some())
                    .then(|| time(lease.locked_until)),
                epoch: lease.epoch,
                mark: lease.mark.sequence,
            }
        });
        Ok(shards.collect())
    }

    async fn relays(&self) -> Result<Vec<RelayRecord>> {
        let now = self.server.now();
        let data = self.server.lock();
        let relays = data.relays.iter().map(|(owner, row)| RelayRecord {
            name: row.name.clone(),
            owner: owner.clone(),
            ordering: row.ordering.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: time(row.started_at),
            heartbeat_at: time(row.heartbeat_at),
            alive: row.heartbeat_at + row.lease > now,
            breakers: row.report.breakers.clone(),
            stalls: row.report.stalls.clone(),
        });
        Ok(relays.collect())
    }
}
