//! Row leases (`none`): the same reads as under shard leases, each of which claims what it finds.

use std::{sync::Arc, time::Instant};

use posthaste_core::{
    Result,
    store::{ClaimedRows, Due, ExpiredRow, Fetched, Limit, Page, RowLease, Wait},
};

use crate::{
    budget::Charge,
    driver::{Done, Driver},
    lanes::{Feed, Offered, Origin},
    read::{TWO_KINDS, within},
    source::NextRead,
};

/// The claims that are under way, each since when. What they bring is not among the rows that are renewed
/// meanwhile: its leases count from then.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Vec<(Arc<RowLease>, Instant)>);

impl UnderWay {
    fn begin(&mut self, claim: &Arc<RowLease>, now: Instant) {
        self.0.push((Arc::clone(claim), now));
    }

    /// It was answered, or failed.
    pub(crate) fn end(&mut self, claim: &Arc<RowLease>) {
        self.0.retain(|(known, _)| known != claim);
    }

    /// From when the leases of all rows count that are listed now, and of those to come.
    pub(crate) fn listed_at(&self, now: Instant) -> Instant {
        self.0.iter().map(|(_, since)| *since).fold(now, Instant::min)
    }
}

/// What became of claimed rows.
pub(crate) struct Taken {
    /// They are in hand now.
    pub(crate) news: usize,
    /// They were in hand already.
    known: usize,
}

/// What a claim has brought.
pub(crate) enum Claimed {
    /// Rows that were free, and how far claims have come.
    Free(ClaimedRows),
    /// A row whose claim had expired.
    Expired(ExpiredRow),
}

impl Driver {
    /// Whether the leases on rows are ours for certain. Without a renewal nothing more is claimed: what is
    /// claimed would have to be given back.
    pub(crate) fn owns_rows(&self, now: Instant) -> bool {
        now + self.config.margin() < self.rows_until
    }

    /// Row leases: the same three reads, each of which claims what it finds.
    pub(crate) fn claim(&mut self, next: NextRead, reserved: Charge) {
        let claim = self.next_claim();
        let relay = self.shards.relay.clone();
        let store = Arc::clone(&self.store);
        let may_claim_expired = self.expired.is_none();
        let (deadline, cursor) = (self.config.deadline(), self.source.position().sequence);
        self.tasks.spawn(async move {
            let claimed = match &next {
                NextRead::Ahead(from, limit) => {
                    let limit = Limit { rows: limit.rows.max(TWO_KINDS), ..*limit };
                    let free = store.claim(&relay, &claim, from, limit);
                    within(deadline, free).await.map(Claimed::Free)
                }
                NextRead::Late(from, limit) => {
                    let free = store.claim_late(&relay, &claim, from, *limit);
                    within(deadline, free).await.map(Claimed::Free)
                }
                // One at a time: an event whose dispatch kills its process is alone when it does.
                NextRead::Due(..) if may_claim_expired => {
                    let expired = store.claim_expired(&relay, &claim, cursor);
                    within(deadline, expired).await.map(Claimed::Expired)
                }
                // What is passed over under row leases is written back instead: nobody is behind.
                NextRead::Due(..) | NextRead::Replays(..) | NextRead::Behind { .. } => {
                    Ok(Claimed::Expired(ExpiredRow::default()))
                }
            };
            Done::Claimed { claim, next, claimed, reserved }
        });
    }

    pub(crate) fn claimed(
        &mut self,
        claim: &Arc<RowLease>,
        next: &NextRead,
        claimed: Result<Claimed>,
        now: Instant,
    ) {
        match self.came(claimed, "claiming", now) {
            None => {}
            Some(Claimed::Free(ClaimedRows { rows, position, caught_up })) => {
                let Taken { news, known } = self.offer_claimed(rows, Origin::Cold, claim, now);
                self.lanes.stats.cold_enqueued += news as u64;
                // What was given back comes again, and not at once.
                let page = Page { rows: Vec::new(), position, caught_up: caught_up || known > 0 };
                let generation = self.source.generation();
                let before = self.source.position().sequence;
                match next {
                    NextRead::Late(..) => self.source.read_late(&page, generation, news),
                    _ => self.source.read_ahead(&page, generation, news),
                }
                if self.once && self.source.position().sequence > before {
                    // Claims that have expired are looked for up to here.
                    self.source.more_is_due();
                }
            }
            Some(Claimed::Expired(ExpiredRow { row, more })) => {
                let none = row.is_none();
                // The lease of one that is in hand has ended, and is ours again.
                let row = row.filter(|row| !self.lanes.adopt(row, claim));
                let row = row.map(|row| Fetched { wait: Some(Wait::Suspect), ..row });
                let sequence = row.as_ref().map(|row| row.sequence);
                let news = self.offer_all(row.into_iter().collect(), Origin::Due, Some(claim));
                if news > 0 {
                    self.expired = self.expired.or(sequence);
                } else {
                    // Another event has its number here.
                    self.unclaim(claim, sequence.into_iter().collect(), false);
                }
                let due = Due { rows: Vec::new(), more: None, next: None };
                self.source.read_due(&due, now, news);
                // A pass ends only when all were looked at; others go on with the next poll.
                if self.once && none && more {
                    self.source.more_is_due();
                }
            }
        }
    }

    /// One whose claim had expired is done with, or its outcome waits for a locked row: the next one is looked for
    /// at once.
    pub(crate) fn expired_is_settled(&mut self) {
        let is_done = |sequence| !self.lanes.in_hand(sequence) || self.unwritten.is_aside(sequence);
        if self.expired.is_some_and(is_done) {
            self.expired = None;
            self.source.more_is_due();
        }
    }

    /// Offers rows that were free. One that is known still was given back, or failed, and the answer to that
    /// write is under way: it is free again in the table, and stays so. When no destination takes events,
    /// they are offered until one can be tried, first what was not tried yet; the others stay free.
    pub(crate) fn offer_claimed(
        &mut self,
        rows: Vec<Fetched>,
        origin: Origin,
        claim: &Arc<RowLease>,
        now: Instant,
    ) -> Taken {
        let probes = self.lanes.feed() == Feed::Probes;
        let rows = if probes { self.lanes.by_turn(rows) } else { rows };
        let (mut news, mut known, mut surplus) = (0, Vec::new(), Vec::new());
        for row in rows {
            let sequence = row.sequence;
            if probes && self.lanes.feed() != Feed::Probes {
                surplus.push(sequence);
                continue;
            }
            self.highest = self.highest.max(sequence);
            match self.lanes.offer(row, origin, Some(claim), now) {
                Offered::Ignored => known.push(sequence),
                Offered::Accepted | Offered::Held => news += 1,
            }
        }
        let taken = Taken { news, known: known.len() };
        self.unclaim(claim, known, false);
        self.unclaim(claim, surplus, true);
        taken
    }

    /// Gives rows back that nobody has seen. With `again` a sweep looks for them at once.
    fn unclaim(&mut self, claim: &Arc<RowLease>, sequences: Vec<i64>, again: bool) {
        if sequences.is_empty() {
            return;
        }
        self.giving_back += 1;
        let (store, claim) = (Arc::clone(&self.store), Arc::clone(claim));
        let deadline = self.config.deadline();
        self.tasks.spawn(async move {
            let result = within(deadline, store.unclaim(&claim, &sequences)).await;
            Done::GivenBack { result, again }
        });
    }

    pub(crate) fn claim_hot(&mut self, sequences: Vec<i64>, bytes: usize) {
        if sequences.is_empty() {
            return;
        }
        let claim = self.next_claim();
        let reserved = self.lanes.budget().reserve(bytes);
        let (store, relay) = (Arc::clone(&self.store), self.shards.relay.clone());
        let deadline = self.config.deadline();
        self.hot_reads.push(Box::pin(async move {
            let rows = within(deadline, store.claim_hot(&relay, &claim, &sequences)).await;
            Done::HotClaimed { claim, rows, reserved }
        }));
    }

    pub(crate) fn next_claim(&mut self) -> Arc<RowLease> {
        self.claims += 1;
        let token = format!("{}#{}", self.shards.relay.owner(), self.claims);
        let claim = Arc::new(RowLease { token });
        self.claiming.begin(&claim, self.clock.now());
        claim
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn leases_count_from_the_oldest_claim_that_is_under_way_when_rows_are_listed() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let claim = |number: u32| Arc::new(RowLease { token: format!("r#{number}") });
        let mut claiming = UnderWay::default();
        assert_eq!(claiming.listed_at(at(1)), at(1));
        claiming.begin(&claim(1), at(1));
        claiming.begin(&claim(2), at(2));
        assert_eq!(claiming.listed_at(at(3)), at(1));
        claiming.end(&claim(1));
        assert_eq!(claiming.listed_at(at(3)), at(2));
        claiming.end(&claim(2));
        assert_eq!(claiming.listed_at(at(3)), at(3));
    }
}
