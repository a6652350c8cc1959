//! Row leases (`none`): the same reads as under shard leases, each of which claims what it finds.

use std::{sync::Arc, time::Instant};

use posthaste_core::{
    Result,
    store::{ClaimedRows, Due, Fetched, Page, RowLease, Wait},
};

use crate::{
    budget::Charge,
    driver::{Done, Driver},
    lanes::{Offered, Origin},
    read::within,
    source::NextRead,
};

/// What a claim has brought.
pub(crate) enum Claimed {
    /// Rows that were free, and how far claims have come.
    Free(ClaimedRows),
    /// A row whose claim had expired.
    Expired(Option<Fetched>),
}

impl Driver {
    /// Row leases: the same three reads, each of which claims what it finds.
    pub(crate) fn claim(&mut self, next: NextRead, reserved: Charge) {
        let claim = self.next_claim();
        let relay = self.shards.relay.clone();
        let store = Arc::clone(&self.store);
        self.expired = self.expired.filter(|sequence| self.lanes.in_hand(*sequence));
        let may_claim_expired = self.expired.is_none();
        let (deadline, cursor) = (self.config.deadline(), self.source.position().sequence);
        self.tasks.spawn(async move {
            let claimed = match &next {
                NextRead::Ahead(from, limit) => {
                    let free = store.claim(&relay, &claim, from, *limit);
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
                    Ok(Claimed::Expired(None))
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
                let count = rows.len();
                let news = self.offer_claimed(rows, Origin::Cold, claim, now);
                self.lanes.stats.cold_enqueued += news as u64;
                // What was given back comes again, and not at once.
                let page =
                    Page { rows: Vec::new(), position, caught_up: caught_up || news < count };
                let generation = self.source.generation();
                match next {
                    NextRead::Late(..) => self.source.read_late(&page, generation, news),
                    _ => self.source.read_ahead(&page, generation, news),
                }
            }
            Some(Claimed::Expired(row)) => {
                let row = row.map(|row| Fetched { wait: Some(Wait::Suspect), ..row });
                self.expired = self.expired.or(row.as_ref().map(|row| row.sequence));
                let news = self.offer_all(row.into_iter().collect(), Origin::Cold, Some(claim));
                // There may be more whose claim has expired.
                let due = Due { rows: Vec::new(), more: None, next: None };
                self.source.read_due(&due, now, news);
                if news > 0 {
                    self.source.more_is_due();
                }
            }
        }
    }

    /// Offers rows that were free. One that is known still was given back, or failed, and the answer to that
    /// write is under way: it is free again in the table, and stays so.
    pub(crate) fn offer_claimed(
        &mut self,
        rows: Vec<Fetched>,
        origin: Origin,
        claim: &Arc<RowLease>,
        now: Instant,
    ) -> usize {
        let count = rows.len();
        let mut known = Vec::new();
        for row in rows {
            let sequence = row.sequence;
            self.highest = self.highest.max(sequence);
            if self.lanes.offer(row, origin, Some(claim), now) == Offered::Ignored {
                known.push(sequence);
            }
        }
        let news = count - known.len();
        if !known.is_empty() {
            let (store, claim) = (Arc::clone(&self.store), Arc::clone(claim));
            let deadline = self.config.deadline();
            self.tasks.spawn(async move {
                let result = within(deadline, store.unclaim(&claim, &known)).await;
                Done::GivenBack { result }
            });
        }
        news
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
        Arc::new(RowLease { token: format!("{}#{}", self.shards.relay.owner(), self.claims) })
    }
}
