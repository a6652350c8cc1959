//! A database in memory that keeps the contract of `posthaste_core::store`.
//!
//! It is the model of what the SQL stores promise, written for reading: one lock, rows in a map, each call
//! one step. Transactions end in any order, so events become visible behind the readers' cursors, as on
//! PostgreSQL and MySQL. A server can be replaced by an older copy of itself ([`Server::fail_over`]).
//!
//! | file | contract |
//! | --- | --- |
//! | `write.rs` | transactions, savepoints, `enqueue` |
//! | `read.rs`, `context.rs` | `Read` |
//! | `leases.rs` | `Leases` |
//! | `claim.rs` | `Claim` |
//! | `settle.rs` | `Settle` |
//! | `inspect.rs` | `Inspect` |
//! | `operate.rs` | `Operate` |
//! | `edit.rs` | none: what happens past the store |
//! | `rest.rs` | `Schema`, `Control`, `Audit`, `Diagnose`, `Expire`, `Wake` |

mod claim;
mod context;
mod edit;
mod inspect;
mod leases;
mod operate;
mod read;
mod rest;
mod row;
mod settle;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use posthaste_core::{
    Error, ErrorKind, Result,
    store::{Attempt, AuditRecord, Pause, Position, Report},
};
use tokio::sync::Notify;
use uuid::Uuid;

pub use self::{row::Row, write::Transaction};

/// `not_before` of an event that waits for its lane or for an operator.
pub const FOR_EVER: i64 = i64::MAX;

/// Microseconds since 1970, by the database's clock.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Told of each verdict: the event, which delivery of it, and what was written.
pub type Witness = Arc<dyn Fn(Uuid, u32, &'static str) + Send + Sync>;

/// A database server: what all of its clients see.
#[derive(Clone)]
pub struct Server {
    data: Arc<Mutex<Data>>,
    clock: Clock,
    /// Told of each commit and each end of a transaction.
    changed: Arc<Notify>,
    /// How many rows one read walks over at most.
    walk: usize,
    witness: Option<Witness>,
    /// The name of the outbox, for messages.
    outbox: Arc<str>,
}

/// All that a server holds.
#[derive(Clone)]
pub(crate) struct Data {
    /// Rises when a server begins a new life, with what it had on its disk.
    life: u64,
    /// The number of shards, once the tables are made.
    shards: Option<u16>,
    /// The version of the tables.
    version: i32,
    next_sequence: i64,
    next_transaction: u64,
    /// Transactions that have written and not ended.
    open: BTreeSet<u64>,
    rows: BTreeMap<i64, Row>,
    by_id: BTreeMap<Uuid, i64>,
    /// Events with a `not_before`.
    waiting: BTreeSet<i64>,
    /// Rows that somebody has locked.
    locked: BTreeSet<i64>,
    leases: Vec<Lease>,
    relays: BTreeMap<String, RelayRow>,
    attempts: BTreeMap<i64, Vec<(u32, Attempt)>>,
    pauses: Vec<Pause>,
    audit: Vec<AuditRecord>,
    purge_position: i64,
    /// Rows walked over by reads, for whoever asks what they cost.
    walked: u64,
    /// Events that were deleted because they were sent.
    deleted: Vec<Uuid>,
}

/// A shard's row.
#[derive(Debug, Clone, Default)]
struct Lease {
    locked_by: Option<String>,
    locked_until: i64,
    epoch: i64,
    mark: Position,
}

/// A relay's row.
#[derive(Debug, Clone)]
struct RelayRow {
    name: String,
    ordering: posthaste_core::store::RelayOrdering,
    lease: i64,
    reserved: i64,
    started_at: i64,
    heartbeat_at: i64,
    report: Report,
}

impl Server {
    /// An empty server with this clock.
    pub fn new(clock: Clock) -> Self {
        let data = Data {
            life: 1,
            shards: None,
            version: 0,
            next_sequence: 1,
            next_transaction: 1,
            open: BTreeSet::new(),
            rows: BTreeMap::new(),
            by_id: BTreeMap::new(),
            waiting: BTreeSet::new(),
            locked: BTreeSet::new(),
            leases: Vec::new(),
            relays: BTreeMap::new(),
            attempts: BTreeMap::new(),
            pauses: Vec::new(),
            audit: Vec::new(),
            purge_position: 0,
            walked: 0,
            deleted: Vec::new(),
        };
        Self {
            data: Arc::new(Mutex::new(data)),
            clock,
            changed: Arc::new(Notify::new()),
            walk: 50_000,
            witness: None,
            outbox: "outbox_event".into(),
        }
    }

    /// How many rows one read walks over at most: 50,000 unless set.
    #[must_use]
    pub fn with_walk(mut self, rows: usize) -> Self {
        self.walk = rows.max(1);
        self
    }

    /// A client of this server: one for each process.
    pub fn store(&self) -> MemoryStore {
        MemoryStore {
            server: self.clone(),
            life: Arc::new(AtomicU64::new(0)),
            beyond: Arc::new(AtomicI64::new(0)),
        }
    }

    /// What is on the disk now. Transactions that are open are not part of it.
    pub fn backup(&self) -> Backup {
        Backup(self.lock().clone())
    }

    /// Another server answers from now on, with older data. What was open is rolled back, and what was
    /// committed since the backup is lost. False, and nothing, when the backup is of an earlier life: a
    /// server that was replaced does not come back with what the other one has lost.
    pub fn fail_over(&self, backup: &Backup) -> bool {
        let mut data = self.lock();
        if data.life != backup.0.life {
            return false;
        }
        let life = data.life + 1;
        *data = backup.0.clone();
        data.life = life;
        data.locked.clear();
        for transaction in std::mem::take(&mut data.open) {
            data.undo(transaction, 0);
        }
        drop(data);
        self.changed.notify_waiters();
        true
    }

    /// The committed rows, in the order of their sequence.
    pub fn rows(&self) -> Vec<Row> {
        let data = self.lock();
        data.rows.values().filter(|row| data.is_visible(row)).cloned().collect()
    }

    /// The events that were deleted because they were sent.
    pub fn deleted(&self) -> Vec<Uuid> {
        self.lock().deleted.clone()
    }

    /// The time, by the server's clock.
    pub fn time(&self) -> i64 {
        self.now()
    }

    /// Told of each verdict that is written.
    #[must_use]
    pub fn with_witness(mut self, witness: Witness) -> Self {
        self.witness = Some(witness);
        self
    }

    /// How many rows all reads have walked over.
    pub fn walked(&self) -> u64 {
        self.lock().walked
    }

    /// Somebody locks these rows, as an operator's open transaction does.
    pub fn lock_rows(&self, sequences: &[i64]) {
        self.lock().locked.extend(sequences);
    }

    /// The locks end.
    pub fn unlock_rows(&self) {
        self.lock().locked.clear();
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> i64 {
        (self.clock)()
    }

    fn witness(&self, id: Uuid, replay: u32, verdict: &'static str) {
        if let Some(witness) = &self.witness {
            witness(id, replay, verdict);
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("life", &self.lock().life).finish_non_exhaustive()
    }
}

/// A copy of all that a server held at a moment.
#[derive(Clone)]
pub struct Backup(Data);

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup").field("rows", &self.0.rows.len()).finish_non_exhaustive()
    }
}

/// One process' way to a [`Server`].
#[derive(Debug, Clone)]
pub struct MemoryStore {
    server: Server,
    /// The life of the server in which this process took its leases; 0 before.
    life: Arc<AtomicU64>,
    /// Where its next look beyond the cursor begins.
    beyond: Arc<AtomicI64>,
}

impl MemoryStore {
    /// The data, if the server is the one from which the leases are.
    fn same_server(&self) -> Result<MutexGuard<'_, Data>> {
        let data = self.server.lock();
        let life = self.life.load(Ordering::Relaxed);
        if life != 0 && life != data.life {
            return Err(moved());
        }
        Ok(data)
    }
}

/// A duration as the clock counts.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn moved() -> Error {
    Error::new(ErrorKind::Moved, "the server behind the address is another one")
}

impl Data {
    /// Whether a row's transaction has committed. A rolled back one has no rows.
    fn is_visible(&self, row: &Row) -> bool {
        !self.open.contains(&row.transaction)
    }

    fn visible(&self, sequence: i64) -> Option<&Row> {
        self.rows.get(&sequence).filter(|row| self.is_visible(row))
    }

    /// Changes a row, and keeps the index of those that wait.
    fn change(&mut self, sequence: i64, change: impl FnOnce(&mut Row)) {
        let Some(row) = self.rows.get_mut(&sequence) else { return };
        change(row);
        if row.not_before.is_some() {
            self.waiting.insert(sequence);
        } else {
            self.waiting.remove(&sequence);
        }
    }

    fn remove(&mut self, sequence: i64) {
        if let Some(row) = self.rows.remove(&sequence) {
            self.by_id.remove(&row.event.id());
            self.waiting.remove(&sequence);
            self.attempts.remove(&sequence);
        }
    }

    /// Takes back what a transaction has written after this number.
    fn undo(&mut self, transaction: u64, after: i64) {
        let written: Vec<i64> = self
            .rows
            .range(after + 1..)
            .filter(|(_, row)| row.transaction == transaction)
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in written {
            self.remove(sequence);
        }
    }

    /// Visible rows that wait for a time, for their lane, or for an operator.
    fn waiting(&self) -> impl Iterator<Item = &Row> {
        self.waiting.iter().filter_map(|sequence| self.visible(*sequence))
    }

    /// The rows with `after < sequence <= until`.
    fn between(&self, after: i64, until: i64) -> impl DoubleEndedIterator<Item = &Row> {
        self.rows
            .range(after + 1..=until.max(after + 1))
            .map(|(_, row)| row)
            .filter(move |row| row.sequence <= until)
    }

    fn newest(&self) -> i64 {
        let visible = self.rows.iter().rev().find(|(_, row)| self.is_visible(row));
        visible.map_or(0, |(sequence, _)| *sequence)
    }

    /// The lowest mark.
    fn floor(&self) -> i64 {
        self.leases.iter().map(|lease| lease.mark.sequence).min().unwrap_or(0)
    }

    /// Any of these is locked by somebody else.
    fn are_locked(&self, sequences: impl IntoIterator<Item = i64>) -> HashSet<i64> {
        sequences.into_iter().filter(|sequence| self.locked.contains(sequence)).collect()
    }
}
