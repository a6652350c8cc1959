//! A process' way to the database: every call takes time, and can be lost.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Key, Result,
    store::{
        Attempt, Audit, AuditRecord, Blocked, BlockedLanes, Census, Change, Claim, ClaimedRows,
        Control, Counts, Diagnose, Due, DueKey, EventPage, EventRecord, Expire, ExpiredRow, Fence,
        Fetched, Filter, Finding, Held, HotRow, Identity, Inspect, LaneKey, Leases, LeaveOut,
        Limit, Listener, OpenTransaction, Operate, Overdue, Page, Pausable, Pause, Position,
        Purged, Read, Relay, RelayRecord, Report, RowLease, RowsInHand, Schema, Selection, Settle,
        SettleReport, Settlement, ShardLease, ShardRecord, TenantCounts, Verdict, Wait, Wake,
    },
};
use uuid::Uuid;

use crate::{database::MemoryStore, fence::Fences, judge::Promise, process::Process};

/// A store as one process sees it.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    pub(crate) process: Process,
    pub(crate) store: MemoryStore,
    pub(crate) fences: Fences,
}

fn shards_of(held: &[Held]) -> String {
    let shards: Vec<u16> = held.iter().map(|held| held.shard).collect();
    format!("{shards:?}")
}

fn settled(fence: &Fence, batch: &[Settlement]) -> String {
    let held = match fence {
        Fence::Shards { held, .. } => shards_of(held),
        Fence::Rows(RowLease { token }) => {
            token.rsplit_once('#').map_or(String::new(), |(_, claim)| format!("claim {claim}"))
        }
    };
    let sequences: Vec<i64> = batch.iter().map(|event| event.sequence).collect();
    format!("{sequences:?} by {held}")
}

/// Each contract's calls, passed on through [`Process::call`].
macro_rules! passed_on {
    ($($contract:ident { $(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)* })*) => {$(
        #[async_trait]
        impl $contract for Wire {
            $(
                async fn $name(&self, $($arg: $type),*) -> Result<$answer> {
                    self.process.call(stringify!($name), String::new(), self.store.$name($($arg),*)).await
                }
            )*
        }
    )*};
}

passed_on! {
    Inspect {
        fn event(id: Uuid) -> Option<EventRecord>;
        fn events(filter: &Filter, before: Option<i64>, limit: usize) -> EventPage;
        fn attempts(sequence: i64) -> Vec<Attempt>;
        fn counts(cap: u64) -> Counts;
        fn counts_by_tenant(cap: u64) -> TenantCounts;
        fn held_by(sequence: i64) -> Option<EventRecord>;
        fn count_sent() -> u64;
        fn oldest_pending() -> Option<Duration>;
        fn overdue(after: i64, examine: usize, age: Duration) -> Overdue;
        fn still_overdue(sequences: &[i64], age: Duration) -> Vec<EventRecord>;
        fn shards() -> Vec<ShardRecord>;
        fn relays() -> Vec<RelayRecord>;
    }
    Operate {
        fn replay(selection: &Selection) -> u64;
        fn discard(selection: &Selection) -> u64;
        fn purge(sent: Duration, dead: Option<Duration>, batch: usize, cursor: Option<i64>) -> Purged;
    }
    Control {
        fn pauses() -> Vec<Pause>;
        fn pause(what: &Pausable, by: &str, note: Option<&str>) -> bool;
        fn resume(what: &Pausable) -> bool;
    }
    Audit {
        fn audit_begin(change: &Change) -> i64;
        fn audit_end(id: i64, affected: u64, error: Option<&str>) -> ();
        fn audits(before: Option<i64>, limit: usize) -> Vec<AuditRecord>;
    }
    Diagnose {
        fn now() -> Timestamp;
        fn open_transactions(limit: usize) -> Vec<OpenTransaction>;
        fn diagnose() -> Vec<Finding>;
    }
    Expire {
        fn purge_inbox(older_than: Duration, limit: usize) -> u64;
        fn purge_idempotency(limit: usize) -> u64;
    }
}

#[async_trait]
impl Leases for Wire {
    async fn heartbeat(&self, relay: &Relay, reserved: i64) -> Result<Census> {
        self.process.call("heartbeat", String::new(), self.store.heartbeat(relay, reserved)).await
    }

    async fn acquire(&self, relay: &Relay, wanted: &[u16]) -> Result<Vec<ShardLease>> {
        let effect = async {
            let leases = self.store.acquire(relay, wanted).await;
            let given = leases.as_deref().unwrap_or_default();
            self.fences.acquired(&relay.owner(), given);
            leases
        };
        self.process.call("acquire", format!("{wanted:?}"), effect).await
    }

    async fn renew(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<Vec<u16>> {
        self.process
            .call(
                "renew",
                format!("{} to {}", shards_of(held), mark.sequence),
                self.store.renew(relay, held, mark),
            )
            .await
    }

    async fn release(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<()> {
        let effect = async {
            let released = self.store.release(relay, held, mark).await;
            if released.is_ok() {
                self.fences.released(&relay.owner(), held);
            }
            released
        };
        self.process.call("release", shards_of(held), effect).await
    }

    async fn report_state(&self, relay: &Relay, report: &Report) -> Result<()> {
        self.process
            .call("report_state", String::new(), self.store.report_state(relay, report))
            .await
    }

    async fn retire(&self, relay: &Relay) -> Result<()> {
        self.process.call("retire", String::new(), self.store.retire(relay)).await
    }
}

impl Wire {
    fn claimed<'a>(&self, lease: &RowLease, rows: impl IntoIterator<Item = &'a Fetched>) {
        self.fences.claimed(lease, rows);
    }
}

#[async_trait]
impl Claim for Wire {
    async fn claim(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        let effect = async {
            let claimed = self.store.claim(relay, lease, from, limit).await;
            self.claimed(lease, claimed.iter().flat_map(|claimed| &claimed.rows));
            claimed
        };
        self.process.call("claim", format!("after {}", from.sequence), effect).await
    }

    async fn claim_late(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        let effect = async {
            let claimed = self.store.claim_late(relay, lease, from, limit).await;
            self.claimed(lease, claimed.iter().flat_map(|claimed| &claimed.rows));
            claimed
        };
        self.process.call("claim_late", format!("after {}", from.sequence), effect).await
    }

    async fn claim_expired(
        &self,
        relay: &Relay,
        lease: &RowLease,
        until: i64,
    ) -> Result<ExpiredRow> {
        let effect = async {
            let expired = self.store.claim_expired(relay, lease, until).await;
            self.claimed(lease, expired.iter().flat_map(|expired| &expired.row));
            expired
        };
        self.process.call("claim_expired", format!("until {until}"), effect).await
    }

    async fn claim_hot(
        &self,
        relay: &Relay,
        lease: &RowLease,
        sequences: &[i64],
    ) -> Result<Vec<Fetched>> {
        let effect = async {
            let claimed = self.store.claim_hot(relay, lease, sequences).await;
            self.claimed(lease, claimed.iter().flatten());
            claimed
        };
        self.process.call("claim_hot", format!("{sequences:?}"), effect).await
    }

    async fn renew_rows(&self, relay: &Relay, rows: &[RowsInHand]) -> Result<()> {
        self.process.call("renew_rows", String::new(), self.store.renew_rows(relay, rows)).await
    }

    async fn unclaim(&self, lease: &RowLease, sequences: &[i64]) -> Result<()> {
        let effect = async {
            let unclaimed = self.store.unclaim(lease, sequences).await;
            self.fences.unclaimed(lease, sequences);
            unclaimed
        };
        self.process.call("unclaim", format!("{sequences:?}"), effect).await
    }
}

#[async_trait]
impl Settle for Wire {
    async fn settle(
        &self,
        fence: &Fence,
        batch: &[Settlement],
        keep_sent: bool,
    ) -> Result<SettleReport> {
        let effect = async {
            let report = self.store.settle(fence, batch, keep_sent).await;
            if let Ok(report) = &report {
                for stale in self.fences.stale(fence, batch, report) {
                    self.process.broke(
                        Promise::StaleOwnersAreFenced,
                        stale.identity.id,
                        format!("#{} was settled by a stale owner", stale.sequence),
                    );
                }
                let accepted = batch.iter().filter(|one| !report.refused.contains(&one.sequence));
                for one in accepted.filter(|one| one.verdict == Verdict::Sent) {
                    let Identity { id: Some(id), replay } = one.identity else { continue };
                    if !self.process.has_acknowledgement(id, replay) {
                        self.process.broke(
                            Promise::SentWasTaken,
                            Some(id),
                            format!(
                                "#{} is settled as sent without an acknowledgement",
                                one.sequence
                            ),
                        );
                    }
                }
            }
            report
        };
        self.process.call("settle", settled(fence, batch), effect).await
    }

    async fn locked(&self, sequences: &[i64]) -> Result<Vec<i64>> {
        self.process.call("locked", String::new(), self.store.locked(sequences)).await
    }
}

#[async_trait]
impl Read for Wire {
    async fn read_on(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        self.process
            .call(
                "read_on",
                format!("{shards:?} after {} {}", from.sequence, from.context),
                self.store.read_on(shards, from, limit),
            )
            .await
    }

    async fn read_late(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        self.process
            .call(
                "read_late",
                format!("{shards:?} after {} {}", from.sequence, from.context),
                self.store.read_late(shards, from, limit),
            )
            .await
    }

    fn join(&self, positions: &[Position]) -> Position {
        self.store.join(positions)
    }

    async fn read_due_but(
        &self,
        shards: &[u16],
        after: Option<DueKey>,
        limit: Limit,
        but: &LeaveOut,
    ) -> Result<Due> {
        self.process
            .call(
                "read_due_but",
                format!("{shards:?} after {after:?}"),
                self.store.read_due_but(shards, after, limit, but),
            )
            .await
    }

    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>> {
        self.process
            .call(
                "read_hot",
                format!("{sequences:?} after {} {}", from.sequence, from.context),
                self.store.read_hot(sequences, from),
            )
            .await
    }

    async fn read_beyond(
        &self,
        shards: &[u16],
        from: &Position,
        but: &HashSet<Key>,
        limit: Limit,
    ) -> Result<Vec<i64>> {
        self.process
            .call(
                "read_beyond",
                format!("{shards:?} after {} {}", from.sequence, from.context),
                self.store.read_beyond(shards, from, but, limit),
            )
            .await
    }

    async fn read_held(
        &self,
        destination: &str,
        key: Key,
        after: i64,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        self.process
            .call(
                "read_held",
                format!("{destination} {:04x} after {after}", key.0 as u16),
                self.store.read_held(destination, key, after, limit),
            )
            .await
    }

    async fn read_lane(
        &self,
        lane: &LaneKey,
        after: Option<(Wait, i64)>,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        self.process
            .call(
                "read_lane",
                format!("{} {:04x}", lane.destination, lane.key.0 as u16),
                self.store.read_lane(lane, after, limit),
            )
            .await
    }

    async fn read_blockers(&self, limit: Limit) -> Result<Vec<Fetched>> {
        self.process.call("read_blockers", String::new(), self.store.read_blockers(limit)).await
    }

    async fn read_blocked(
        &self,
        shards: &[u16],
        after: Option<&LaneKey>,
        limit: usize,
    ) -> Result<BlockedLanes> {
        self.process
            .call("read_blocked", String::new(), self.store.read_blocked(shards, after, limit))
            .await
    }

    async fn still_blocked(&self, lanes: &[LaneKey]) -> Result<Vec<Blocked>> {
        self.process.call("still_blocked", String::new(), self.store.still_blocked(lanes)).await
    }
}

#[async_trait]
impl Schema for Wire {
    fn database(&self) -> &'static str {
        self.store.database()
    }

    fn table(&self) -> String {
        self.store.table()
    }

    async fn migrate(&self, shards: Option<u16>) -> Result<Vec<i32>> {
        self.process.call("migrate", String::new(), self.store.migrate(shards)).await
    }

    fn migrations_sql(&self, shards: Option<u16>) -> Result<String> {
        self.store.migrations_sql(shards)
    }

    async fn check(&self) -> Result<u16> {
        self.process.call("check", String::new(), self.store.check()).await
    }
}

#[async_trait]
impl Wake for Wire {
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        self.process.call("listen", String::new(), self.store.listen()).await
    }

    async fn notify(&self) -> Result<bool> {
        self.process.call("notify", String::new(), self.store.notify()).await
    }
}
