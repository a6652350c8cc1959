//! The end: what is in flight may end, leases are released, the relay is forgotten.

use std::time::Duration;

use crate::{
    Stats,
    driver::{Driver, Stopping},
};

impl Driver {
    /// Claims end; what is in flight may end; what waits is forgotten or given back.
    pub(crate) fn begin_stop(&mut self) {
        self.wanted.clear();
        self.let_go(self.clock.now());
        let mark = self.mark();
        self.stopping = Some(Stopping { until: self.clock.now() + self.config.drain, mark });
        for held in self.shards.held() {
            self.lanes.close_shard(held.shard);
        }
    }

    /// Never while a heartbeat is under way: one that arrives after the farewell would keep this relay
    /// alive for a lease, and the others would leave it its share.
    pub(crate) fn finished(&self) -> bool {
        match &self.stopping {
            Some(stopping) => {
                let drained = !self.is_claiming()
                    && self.lanes.in_flight() == 0
                    && self.lanes.unsettled() == 0
                    && !self.settling
                    && self.unwritten.is_empty()
                    && !self.acquiring
                    && !self.handing_over
                    && !self.ticking;
                drained || self.clock.now() >= stopping.until
            }
            None if self.once && self.ticking => false,
            None if self.once && self.lanes.stands_behind_a_pause() => {
                self.lanes.unsettled() == 0 && !self.settling && self.unwritten.is_empty()
            }
            None if self.once && self.stands_by() => {
                self.pauses.known()
                    && self.lanes.in_flight() == 0
                    && self.lanes.unsettled() == 0
                    && !self.settling
                    && !self.acquiring
                    && !self.handing_over
                    && self.shards.is_empty()
            }
            None if self.once => {
                let stats = *self.wires.stats.borrow();
                let nothing_owned = self.acquired_once
                    && !self.acquiring
                    && self.wanted.is_empty()
                    && !self.by_rows()
                    && self.shards.reading().is_empty();
                stats.idle || nothing_owned
            }
            None => false,
        }
    }

    /// Rows are being claimed, or given back: they would stay claimed for a lease.
    fn is_claiming(&self) -> bool {
        let claims = self.source.is_reading() || !self.hot_reads.is_empty();
        self.by_rows() && (claims || self.giving_back > 0)
    }

    /// Releases what is held and forgets the relay, also when an error ended it.
    pub(crate) async fn finish(mut self) -> Stats {
        let mark = self.mark();
        self.tasks.abort_all();
        self.hot_reads.clear();
        let held = self.shards.held();
        let relay = self.shards.relay.clone();
        let end = async {
            if !held.is_empty() {
                self.store.release(&relay, &held, &mark).await?;
            }
            self.store.retire(&relay).await?;
            self.store.notify().await
        };
        match tokio::time::timeout(self.config.drain.max(Duration::from_secs(1)), end).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "leases were not released; they expire"),
            Err(_) => tracing::warn!("leases were not released in time; they expire"),
        }
        self.wires.duty.set(false);
        self.tell();
        self.observer.meters.relays_alive(0);
        self.publish_stats();
        *self.wires.stats.borrow()
    }
}
