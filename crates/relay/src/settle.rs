//! Settle: outcomes become rows, in batches, fenced, one batch at a time.
//!
//! # When things fail
//!
//! A settle that fails is repeated until the lease is lost: an outcome is never turned into another
//! one because it could not be written. The event is delivered twice at worst. What rows keep that somebody has
//! locked is laid aside (`unwritten.rs`), so that it holds back nobody else.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::{
    ErrorKind, Result,
    store::{Fence, Held, RowLease, SettleReport, Settlement, Store, Verdict},
};

use crate::{
    driver::{Done, Driver, RETRY_PAUSE},
    lanes::Unsettled,
    log::field,
    read::within,
    shards::Shards,
};

/// A settle takes what has come together, up to so many batches: the fence is paid once for all.
pub(crate) const SETTLE_BATCHES: usize = 4;

/// A batch with the right to write it.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) parts: Vec<(Fence, Vec<Settlement>)>,
}

impl Batch {
    /// Fences the outcomes. Gives those apart whose shard is no longer ours.
    pub(crate) fn fence(unsettled: Vec<Unsettled>, shards: &Shards) -> (Self, Vec<i64>) {
        let mut stale = Vec::new();
        let mut held: BTreeMap<u16, i64> = BTreeMap::new();
        let mut sharded = Vec::new();
        let mut claimed: Vec<(Arc<RowLease>, Vec<Settlement>)> = Vec::new();
        for Unsettled { settlement, lease } in unsettled {
            match (lease, shards.epoch(settlement.shard)) {
                (Some(lease), _) => match claimed.iter_mut().find(|(known, _)| *known == lease) {
                    Some((_, part)) => part.push(settlement),
                    None => claimed.push((lease, vec![settlement])),
                },
                (None, Some(epoch)) => {
                    held.insert(settlement.shard, epoch);
                    sharded.push(settlement);
                }
                (None, None) => stale.push(settlement.sequence),
            }
        }
        let mut parts: Vec<_> = claimed
            .into_iter()
            .map(|(lease, part)| (Fence::Rows((*lease).clone()), part))
            .collect();
        if !sharded.is_empty() {
            let held = held.into_iter().map(|(shard, epoch)| Held { shard, epoch }).collect();
            parts.push((Fence::Shards { owner: shards.relay.owner(), held }, sharded));
        }
        (Self { parts }, stale)
    }

    /// Writes it. Repeating a part that was written before is harmless.
    pub(crate) async fn write(
        &self,
        store: &dyn Store,
        keep_sent: bool,
        deadline: Duration,
    ) -> Result<SettleReport> {
        let mut total = SettleReport::default();
        for (fence, part) in &self.parts {
            let report = within(deadline, store.settle(fence, part, keep_sent)).await?;
            total.stale_shards.extend(report.stale_shards);
            total.refused.extend(report.refused);
        }
        Ok(total)
    }

    /// What of it is still in hand: a shard that was lost since, and perhaps taken anew, has been
    /// forgotten with all its events, and what is known of them now is not from then.
    fn in_hand(&self, shards: &Shards) -> impl Iterator<Item = i64> {
        self.parts.iter().flat_map(|(fence, part)| {
            let gone: Vec<u16> = leases(fence)
                .iter()
                .filter(|held| shards.epoch(held.shard) != Some(held.epoch))
                .map(|held| held.shard)
                .collect();
            let in_hand = move |settlement: &&Settlement| !gone.contains(&settlement.shard);
            part.iter().filter(in_hand).map(|settlement| settlement.sequence)
        })
    }

    /// The leases of these shards, as it was fenced with them.
    fn held(&self, shards: &[u16]) -> Vec<Held> {
        let held = self.parts.iter().flat_map(|(fence, _)| leases(fence));
        held.filter(|held| shards.contains(&held.shard)).copied().collect()
    }

    /// After which times retries of this batch fall due.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Duration> {
        self.parts.iter().flat_map(|(_, part)| {
            part.iter().filter_map(|settlement| match settlement.verdict {
                Verdict::Retry { after, .. } => Some(after),
                _ => None,
            })
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|(_, part)| part.len()).sum()
    }

    pub(crate) fn sequences(&self) -> impl Iterator<Item = i64> {
        self.parts.iter().flat_map(|(_, part)| part.iter().map(|settlement| settlement.sequence))
    }
}

/// The leases of shards that give the right to write.
fn leases(fence: &Fence) -> &[Held] {
    match fence {
        Fence::Shards { held, .. } => held,
        Fence::Rows(_) => &[],
    }
}

impl Driver {
    pub(crate) fn settle(&mut self) {
        if self.resting {
            return;
        }
        let now = self.clock.now();
        self.ask_again(now);
        if self.settling {
            return;
        }
        let Some(batch) = self.next_batch(now) else { return };
        self.settling = true;
        if !self.unwritten.is_wary(now) {
            return self.write(batch);
        }
        let sequences: Vec<i64> = batch.sequences().collect();
        let (store, deadline) = (Arc::clone(&self.store), self.config.deadline());
        self.tasks.spawn(async move {
            let locked = within(deadline, store.locked(&sequences)).await;
            Done::Locked { batch, locked }
        });
    }

    fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        loop {
            let batch = if let Some(piece) = self.unwritten.next() {
                piece
            } else {
                let unsettled = self.lanes.next_settlements(SETTLE_BATCHES * self.config.batch);
                if unsettled.is_empty() {
                    return None;
                }
                let (batch, stale) = Batch::fence(unsettled, &self.shards);
                self.lanes.stats.stale_settles += stale.len() as u64;
                self.lanes.refused(stale);
                batch
            };
            let (batch, _) = self.unwritten.take_locked(batch, &[], now);
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    /// Asks whether rows that somebody had locked are free, beside the other settles.
    fn ask_again(&mut self, now: Instant) {
        if let Some(asked) = self.unwritten.asks(now) {
            let (store, deadline) = (Arc::clone(&self.store), self.config.deadline());
            self.tasks.spawn(async move {
                let locked = within(deadline, store.locked(&asked)).await;
                Done::StillLocked { asked, locked }
            });
        }
    }

    fn write(&mut self, batch: Batch) {
        let (store, keep_sent) = (Arc::clone(&self.store), self.keep_sent);
        let deadline = self.config.deadline();
        // Each part is a call of its own.
        let patience = deadline * (batch.parts.len() as u32 + 1);
        self.tasks.spawn_within(patience, async move {
            let report = batch.write(&*store, keep_sent, deadline).await;
            Done::Settled { batch, report }
        });
    }

    /// Which rows of a batch somebody has locked.
    pub(crate) fn found_locked(&mut self, batch: Batch, locked: Result<Vec<i64>>) {
        self.settling = false;
        match locked {
            Ok(locked) => {
                if let Some(sequence) = locked.first() {
                    tracing::warn!(
                        sequence,
                        events = locked.len(),
                        "rows of events are locked by somebody else; their outcomes wait"
                    );
                }
                let (batch, suspects) =
                    self.unwritten.take_locked(batch, &locked, self.clock.now());
                for sequence in suspects {
                    self.lanes.cannot_record(sequence);
                }
                if !batch.is_empty() {
                    self.settling = true;
                    self.write(batch);
                }
            }
            Err(error) => {
                self.pulse.settled(self.clock.now(), true);
                self.database_failed("asking for locked rows", &error);
                if error.kind() != ErrorKind::TimedOut {
                    self.unwritten.put_back(batch);
                } else if let Some(alone) = self.unwritten.divided(batch) {
                    // It is written as it is: that says as much.
                    self.settling = true;
                    return self.write(alone);
                }
                self.rest();
            }
        }
    }

    pub(crate) fn still_locked(&mut self, asked: &[i64], locked: Result<Vec<i64>>) {
        let locked = locked.unwrap_or_else(|error| {
            tracing::debug!(%error, "it is not known whether rows are still locked");
            asked.to_vec()
        });
        self.unwritten.answered(asked, &locked, self.clock.now());
    }

    pub(crate) fn settled(&mut self, batch: Batch, report: Result<SettleReport>) {
        self.settling = false;
        let now = self.clock.now();
        self.pulse.settled(now, report.is_err());
        match report {
            Ok(report) => self.written(&batch, &report),
            Err(error) => {
                self.database_failed("settling", &error);
                // Outcomes stay as they are and are written again.
                if error.kind() != ErrorKind::TimedOut {
                    self.unwritten.put_back(batch);
                } else if let Some(sequence) = self.unwritten.timed_out(batch, now) {
                    tracing::warn!(
                        sequence,
                        "the outcome of an event cannot be written in time; it waits"
                    );
                    self.lanes.cannot_record(sequence);
                }
                self.rest();
            }
        }
    }

    /// What is in the table counts from here on, and what was refused is forgotten.
    fn written(&mut self, batch: &Batch, report: &SettleReport) {
        if !report.refused.is_empty() {
            tracing::warn!(
                events = report.refused.len(),
                shards = ?report.stale_shards,
                "settle refused: the lease was lost"
            );
        }
        let refused: BTreeSet<i64> = report.refused.iter().copied().collect();
        self.log_failures(batch, &refused);
        let again = self.settle_again(batch, &refused);
        self.lanes.stats.stale_settles += (refused.len() - again.len()) as u64;
        let (stale, written): (Vec<i64>, Vec<i64>) = batch
            .in_hand(&self.shards)
            .filter(|sequence| !again.contains(sequence))
            .partition(|sequence| refused.contains(sequence));
        self.lanes.refused(stale);
        self.lanes.settled(written, self.clock.now());
        self.fall_behind();
        for wait in batch.waits() {
            self.source.expect_due(self.clock.now() + wait);
        }
        let lost = self.shards.lost(&batch.held(&report.stale_shards));
        self.lose(&lost);
    }

    /// What was refused because its event was claimed anew meanwhile is written under that claim.
    fn settle_again(&mut self, batch: &Batch, refused: &BTreeSet<i64>) -> BTreeSet<i64> {
        let mut again = BTreeSet::new();
        for (fence, part) in batch.parts.iter().filter(|_| !refused.is_empty()) {
            let Fence::Rows(lease) = fence else { continue };
            for settlement in part.iter().filter(|one| refused.contains(&one.sequence)) {
                if self.lanes.settle_again(settlement, lease) {
                    again.insert(settlement.sequence);
                }
            }
        }
        again
    }

    /// Says what failed, once it is written: every death, and the first retries of a batch.
    fn log_failures(&mut self, batch: &Batch, refused: &BTreeSet<i64>) {
        let mut retries = 0_usize;
        for settlement in batch.parts.iter().flat_map(|(_, part)| part) {
            let Settlement { sequence, attempts, verdict, .. } = settlement;
            // Most batches have nothing but successes.
            let brief = if self.briefs.is_empty() { None } else { self.briefs.remove(sequence) };
            if refused.contains(sequence) {
                continue;
            }
            match verdict {
                Verdict::Dead { error, destination, .. } => {
                    let topic = brief.as_ref().map(|brief| &brief.topic);
                    self.observer.meters.dead(topic.map_or("", String::as_str));
                    tracing::error!(
                        sequence,
                        event.id = field(brief.as_ref().map(|brief| &brief.id)),
                        topic = field(topic),
                        aggregate_type = field(brief.as_ref().map(|brief| &brief.aggregate_type)),
                        attempts,
                        tenant = field(brief.as_ref().and_then(|brief| brief.tenant.as_ref())),
                        %destination,
                        %error,
                        "dead: given up on"
                    );
                }
                Verdict::Retry { error, destination, .. } => {
                    retries += 1;
                    if retries > RETRIES_NAMED {
                        continue;
                    }
                    tracing::info!(
                        sequence,
                        event.id = field(brief.as_ref().map(|brief| &brief.id)),
                        topic = field(brief.as_ref().map(|brief| &brief.topic)),
                        aggregate_type = field(brief.as_ref().map(|brief| &brief.aggregate_type)),
                        attempts,
                        tenant = field(brief.as_ref().and_then(|brief| brief.tenant.as_ref())),
                        %destination,
                        %error,
                        "not delivered; trying again"
                    );
                }
                _ => {}
            }
        }
        if retries > RETRIES_NAMED {
            tracing::info!(
                events = retries - RETRIES_NAMED,
                "not delivered, more than are named; trying again"
            );
        }
    }

    /// A pause before the database is asked to write again.
    pub(crate) fn rest(&mut self) {
        if !self.resting {
            self.resting = true;
            self.tasks.spawn(async {
                tokio::time::sleep(RETRY_PAUSE).await;
                Done::Rested
            });
        }
    }
}

/// So many retries of a batch have a line of their own: while many fail, the others are counted.
const RETRIES_NAMED: usize = 5;

#[cfg(test)]
mod tests {
    use posthaste_core::store::{Identity, Position, Relay, RelayOrdering, ShardLease};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn an_answer_counts_for_shards_that_were_ours_all_the_time() {
        let relay = Relay {
            name: "a".to_owned(),
            instance: Uuid::nil(),
            ordering: RelayOrdering::PerKey,
            lease: Duration::from_secs(30),
        };
        let mut shards = Shards::new(relay, 3, Duration::from_secs(3));
        let lease = |shard, epoch| ShardLease {
            held: Held { shard, epoch },
            mark: Position::default(),
            suspect_to: None,
        };
        let now = std::time::Instant::now();
        shards.acquired(&[lease(0, 1), lease(1, 1), lease(2, 1)], now);
        let unsettled = (0..3).map(|shard| Unsettled {
            settlement: Settlement {
                sequence: i64::from(shard) + 10,
                identity: Identity::default(),
                shard,
                attempts: 0,
                verdict: Verdict::Sent,
            },
            lease: None,
        });
        let (batch, _) = Batch::fence(unsettled.collect(), &shards);
        assert_eq!(batch.in_hand(&shards).collect::<Vec<_>>(), [10, 11, 12]);
        shards.lost(&batch.held(&[0, 1]));
        shards.acquired(&[lease(1, 2)], now);
        assert_eq!(batch.in_hand(&shards).collect::<Vec<_>>(), [12]);
    }
}
