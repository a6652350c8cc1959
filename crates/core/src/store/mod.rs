//! What a database must do for a relay, as small contracts with one job each.
//!
//! | contract | job |
//! | --- | --- |
//! | [`Schema`] | make the tables, and say whether they fit |
//! | [`Leases`] | who may work on which shard (`per_key`, `global`) |
//! | [`Read`] | find the events of the owned shards, without writing |
//! | [`Claim`] | take single rows (`none`) |
//! | [`Settle`] | write outcomes back, fenced |
//! | [`Inspect`] | show events, counts, attempts |
//! | [`Operate`] | replay, discard, purge |
//! | [`Control`] | pause and resume |
//! | [`Audit`] | remember who changed what |
//! | [`Diagnose`] | say what is wrong with the database |
//! | [`Expire`] | forget what the inbox and idempotency keys no longer need |
//! | [`Wake`] | learn of a commit sooner than the next poll |
//!
//! How a store remembers what was sent is its own affair: nobody outside it assumes a column.
//! A store of a third party proves itself with the conformance suite of `posthaste-testkit`.

mod schema;

mod leases;

mod read;

mod claim;

mod settle;

mod inspect;

mod operate;

mod control;

mod audit;

mod diagnose;

mod expire;

mod wake;

pub use self::{
    audit::{Audit, AuditRecord, Change},
    claim::{Claim, ClaimedRows, ExpiredRow, RowLease, RowsInHand},
    control::{Control, Pausable, Pause},
    diagnose::{Diagnose, Finding, Level, OpenTransaction},
    expire::Expire,
    inspect::{
        Attempt, Counts, EventPage, EventRecord, Filter, Inspect, Overdue, RelayRecord,
        ShardRecord, TenantBacklog, TenantCounts,
    },
    leases::{
        Census, Leases, LiveRelay, OpenBreaker, Relay, RelayOrdering, Report, ShardLease, Stall,
    },
    operate::{Operate, Purged, Selection},
    read::{
        Blocked, BlockedLanes, Due, DueKey, Fetched, HotRow, Identity, LaneKey, LeaveOut, Limit,
        Page, Position, Read, Wait,
    },
    schema::Schema,
    settle::{Fence, Held, Settle, SettleReport, Settlement, Verdict},
    wake::{Listener, Wake},
};

/// Everything a relay needs of a database.
pub trait Store:
    Schema
    + Leases
    + Read
    + Claim
    + Settle
    + Inspect
    + Operate
    + Control
    + Audit
    + Diagnose
    + Expire
    + Wake
    + Send
    + Sync
    + 'static
{
}

impl<T> Store for T where
    T: Schema
        + Leases
        + Read
        + Claim
        + Settle
        + Inspect
        + Operate
        + Control
        + Audit
        + Diagnose
        + Expire
        + Wake
        + Send
        + Sync
        + 'static
{
}
