//! A process' way to the database: every call takes time, and can be lost.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Key, Result,
    store::{
        Attempt, Audit, AuditRecord, Blocked, BlockedLanes, Census, Change, Claim, ClaimedRows,
        Control, Counts, Diagnose, Due, DueKey, EventPage, EventRecord, Expire, ExpiredRow, Fence,
        Fetched, Filter, Finding, Held, HotRow, Inspect, LaneKey, Leases, LeaveOut, Limit,
        Listener, OpenTransaction, Operate, Overdue, Page, Pausable, Pause, Position, Purged, Read,
        Relay, RelayRecord, Report, RowLease, RowsInHand, Schema, Selection, Settle, SettleReport,
        Settlement, ShardLease, ShardRecord, TenantCounts, Wait, Wake,
    },
};
use uuid::Uuid;

use crate::{database::MemoryStore, process::Process};

/// A store as one process sees it.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    pub(crate) process: Process,
    pub(crate) store: MemoryStore,
}

/// Each contract's calls, passed on through [`Process::call`].
macro_rules! passed_on {
    ($($contract:ident { $(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)* })*) => {$(
        #[async_trait]
        impl $contract for Wire {
            $(
                async fn $name(&self, $($arg: $type),*) -> Result<$answer> {
                    self.process.call(self.store.$name($($arg),*)).await
                }
            )*
        }
    )*};
}

passed_on! {
    Leases {
        fn heartbeat(relay: &Relay, reserved: i64) -> Census;
        fn acquire(relay: &Relay, wanted: &[u16]) -> Vec<ShardLease>;
        fn renew(relay: &Relay, held: &[Held], mark: &Position) -> Vec<u16>;
        fn release(relay: &Relay, held: &[Held], mark: &Position) -> ();
        fn report_state(relay: &Relay, report: &Report) -> ();
        fn retire(relay: &Relay) -> ();
    }
    Claim {
        fn claim(relay: &Relay, lease: &RowLease, from: &Position, limit: Limit) -> ClaimedRows;
        fn claim_late(relay: &Relay, lease: &RowLease, from: &Position, limit: Limit) -> ClaimedRows;
        fn claim_expired(relay: &Relay, lease: &RowLease, until: i64) -> ExpiredRow;
        fn claim_hot(relay: &Relay, lease: &RowLease, sequences: &[i64]) -> Vec<Fetched>;
        fn renew_rows(relay: &Relay, rows: &[RowsInHand]) -> ();
        fn unclaim(lease: &RowLease, sequences: &[i64]) -> ();
    }
    Settle {
        fn settle(fence: &Fence, batch: &[Settlement], keep_sent: bool) -> SettleReport;
        fn locked(sequences: &[i64]) -> Vec<i64>;
    }
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
impl Read for Wire {
    async fn read_on(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        self.process.call(self.store.read_on(shards, from, limit)).await
    }

    async fn read_late(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        self.process.call(self.store.read_late(shards, from, limit)).await
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
        self.process.call(self.store.read_due_but(shards, after, limit, but)).await
    }

    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>> {
        self.process.call(self.store.read_hot(sequences, from)).await
    }

    async fn read_beyond(
        &self,
        shards: &[u16],
        from: &Position,
        but: &HashSet<Key>,
        limit: Limit,
    ) -> Result<Vec<i64>> {
        self.process.call(self.store.read_beyond(shards, from, but, limit)).await
    }

    async fn read_held(
        &self,
        destination: &str,
        key: Key,
        after: i64,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        self.process.call(self.store.read_held(destination, key, after, limit)).await
    }

    async fn read_lane(
        &self,
        lane: &LaneKey,
        after: Option<(Wait, i64)>,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        self.process.call(self.store.read_lane(lane, after, limit)).await
    }

    async fn read_blockers(&self, limit: Limit) -> Result<Vec<Fetched>> {
        self.process.call(self.store.read_blockers(limit)).await
    }

    async fn read_blocked(
        &self,
        shards: &[u16],
        after: Option<&LaneKey>,
        limit: usize,
    ) -> Result<BlockedLanes> {
        self.process.call(self.store.read_blocked(shards, after, limit)).await
    }

    async fn still_blocked(&self, lanes: &[LaneKey]) -> Result<Vec<Blocked>> {
        self.process.call(self.store.still_blocked(lanes)).await
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
        self.process.call(self.store.migrate(shards)).await
    }

    fn migrations_sql(&self, shards: Option<u16>) -> Result<String> {
        self.store.migrations_sql(shards)
    }

    async fn check(&self) -> Result<u16> {
        self.process.call(self.store.check()).await
    }
}

#[async_trait]
impl Wake for Wire {
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        self.process.call(self.store.listen()).await
    }

    async fn notify(&self) -> Result<bool> {
        self.process.call(self.store.notify()).await
    }
}
