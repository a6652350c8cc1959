//! Row leases (`none`): the same reads as under shard leases, each of which claims what it finds.

use std::{sync::Arc, time::Instant};

use posthaste_core::{
    Result,
    store::{Due, Fetched, Page, Position, RowLease, Wait},
};

use crate::{
    budget::Charge,
    driver::{Done, Driver},
    lanes::Origin,
    read::within,
    source::NextRead,
};

impl Driver {
    /// Row leases start at the lowest mark: everything before is settled.
    pub(crate) async fn start_rows(&mut self) -> Result<()> {
        let shards = within(self.config.deadline(), self.store.shards()).await?;
        let mark = shards.iter().map(|shard| shard.mark).min().unwrap_or(0);
        let to = Position { sequence: mark, context: String::new() };
        let store = &self.store;
        self.source.rewind(to, |positions| store.join(positions));
        Ok(())
    }

    /// Row leases: the same three reads, each of which claims what it finds.
    pub(crate) fn claim(&mut self, next: NextRead, reserved: Charge) {
        let claim = self.next_claim();
        let relay = self.shards.relay.clone();
        let store = Arc::clone(&self.store);
        self.expired = self.expired.filter(|sequence| self.lanes.in_hand(*sequence));
        let may_claim_expired = self.expired.is_none();
        let (deadline, cursor) = (self.config.deadline(), self.source.position().sequence);
        self.tasks.spawn(async move {
            let rows = match &next {
                NextRead::Ahead(from, limit) => {
                    within(deadline, store.claim(&relay, &claim, from, *limit))
                        .await
                        .map(|claimed| (claimed.rows, claimed.position))
                }
                NextRead::Late(from, limit) => {
                    within(deadline, store.claim_late(&relay, &claim, from, *limit))
                        .await
                        .map(|claimed| (claimed.rows, claimed.position))
                }
                // One at a time: an event whose dispatch kills its process is alone when it does.
                NextRead::Due(..) if may_claim_expired => {
                    let expired = store.claim_expired(&relay, &claim, cursor);
                    within(deadline, expired).await.map(|row| {
                        let rows = row.map(|row| Fetched { wait: Some(Wait::Suspect), ..row });
                        (rows.into_iter().collect(), Position::default())
                    })
                }
                // What is passed over under row leases is written back instead: nobody is behind.
                NextRead::Due(..) | NextRead::Behind { .. } => {
                    Ok((Vec::new(), Position::default()))
                }
            };
            Done::Claimed { claim, next, rows, reserved }
        });
    }

    pub(crate) fn claimed(
        &mut self,
        claim: &Arc<RowLease>,
        next: &NextRead,
        rows: Result<(Vec<Fetched>, Position)>,
        now: Instant,
    ) {
        let Some((rows, position)) = self.came(rows, "claiming", now) else {
            return;
        };
        if matches!(next, NextRead::Due(..)) {
            self.expired = self.expired.or(rows.first().map(|row| row.sequence));
        }
        // Each kind of rows may take half of the bytes.
        let bytes = rows.iter().fold(0_usize, |bytes, row| bytes.saturating_add(row.bytes));
        let limit = next.limit();
        let caught_up = rows.len() < limit.rows && bytes < limit.bytes / 2;
        let news = self.offer_all(rows, Origin::Cold, Some(claim));
        match next {
            NextRead::Ahead(..) => {
                let page = Page { rows: Vec::new(), position, caught_up };
                self.source.read_ahead(&page, self.source.generation(), news);
            }
            NextRead::Late(..) => {
                let page = Page { rows: Vec::new(), position, caught_up: true };
                self.source.read_late(&page, self.source.generation(), news);
            }
            NextRead::Due(..) | NextRead::Behind { .. } => {
                // There may be more whose claim has expired.
                let due = Due { rows: Vec::new(), more: None, next: None };
                self.source.read_due(&due, now, news);
                if news > 0 {
                    self.source.more_is_due();
                }
            }
        }
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
