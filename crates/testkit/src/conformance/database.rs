//! What the suite asks of a database: stores, writers' transactions, and changes past the store.

use std::sync::Arc;

use async_trait::async_trait;
use posthaste_core::{Enqueued, Error, Event, Result, TableName, store::Store};
use uuid::Uuid;

/// A database in which cases make outboxes, each under a name of its own.
///
/// Databases that sqlx speaks to have `SqlxDatabase` for it (feature `sqlx`). Any other one
/// implements this trait in its tests:
///
/// ```
/// # use std::sync::Arc;
/// # use posthaste_core::{Result, TableName, store::Store};
/// # use posthaste_testkit::conformance::{Database, Edit, Subject, Writer};
/// struct Mine;
///
/// #[async_trait::async_trait]
/// impl Database for Mine {
///     fn store(&self, outbox: &TableName) -> Arc<dyn Store> {
///         todo!("a store on the outbox of this name")
///     }
///
///     async fn begin(&self, outbox: &TableName) -> Result<Box<dyn Writer>> {
///         todo!("a transaction, and the `enqueue` of this database in it")
///     }
///
///     async fn edit(&self, outbox: &TableName, edit: Edit<'_>) -> Result<()> {
///         todo!("the change, as somebody makes it who does not use the store")
///     }
///
///     async fn drop_outbox(&self, outbox: &TableName) -> Result<()> {
///         todo!("delete all of it")
///     }
/// }
///
/// async fn subject() -> Option<Subject> {
///     Some(Subject::on(Mine))
/// }
///
/// posthaste_testkit::store_conformance!(subject, without sql);
/// # fn main() {}
/// ```
#[async_trait]
pub trait Database: Send + Sync + 'static {
    /// Returns a store for the outbox of this name, as another process would make it. Neither the
    /// outbox nor its tables need to exist.
    fn store(&self, outbox: &TableName) -> Arc<dyn Store>;

    /// Begins a writer's transaction.
    async fn begin(&self, outbox: &TableName) -> Result<Box<dyn Writer>>;

    /// Changes an outbox past its store, and commits the change.
    async fn edit(&self, outbox: &TableName, edit: Edit<'_>) -> Result<()>;

    /// Returns plain SQL where the database has it. Cases that are about SQL itself are marked
    /// `#[sql]` in the list of all cases; `store_conformance!(subject, without sql)` turns these
    /// into ignored tests.
    fn sql(&self) -> Option<&dyn Sql> {
        None
    }

    /// Whether the server knows as whom a connection has logged in. The audit names the account
    /// then.
    fn has_accounts(&self) -> bool {
        false
    }

    /// Deletes the outbox of this name, as far as it exists.
    async fn drop_outbox(&self, outbox: &TableName) -> Result<()>;

    /// Called when the case is over and its outboxes are dropped: closes connections.
    async fn close(&self) {}
}

/// A writer's transaction. Dropped without an end it rolls back.
#[async_trait]
pub trait Writer: Send {
    /// Enqueues in this transaction. An error leaves none of the events behind.
    async fn enqueue(&mut self, events: &[Event]) -> Result<Vec<Enqueued>>;

    /// Sets a savepoint, enqueues, and rolls back to the savepoint.
    async fn enqueue_and_undo(&mut self, events: &[Event]) -> Result<()>;

    /// Counts the events that this transaction sees. Where a transaction keeps the snapshot of its
    /// first read, this read takes it.
    async fn count(&mut self) -> Result<usize>;

    /// Locks the rows of these events until the transaction ends, as an update of them does.
    async fn lock(&mut self, sequences: &[i64]) -> Result<()>;

    /// Runs plain SQL in this transaction, any number of statements, and returns how many rows came
    /// back.
    async fn sql(&mut self, sql: String) -> Result<usize> {
        Err(Error::invalid(format!("this database has no SQL: {sql}")))
    }

    /// Commits.
    async fn commit(self: Box<Self>) -> Result<()>;

    /// Rolls back.
    async fn rollback(self: Box<Self>) -> Result<()>;
}

/// A change of an outbox that no store makes: time that has passed, or somebody with a prompt.
#[derive(Debug, Clone, Copy)]
pub enum Edit<'e> {
    /// Makes an event as old as if all that ever happened to it had happened so many hours earlier:
    /// it was created, and if so sent, given up on, or discarded. The time until which it waits
    /// stays.
    Age {
        /// Which event.
        id: Uuid,
        /// How much older it gets.
        hours: u32,
    },
    /// Deletes these events.
    Delete {
        /// Which.
        sequences: &'e [i64],
    },
    /// Gives every event a time at which it was sent, and changes nothing else of it: those that
    /// waited for a time keep that time.
    MarkSent,
    /// Moves the end of an event's row lease into the future, as if the clock had been set back
    /// since.
    PostponeRowLease {
        /// Which event.
        sequence: i64,
        /// By so many hours.
        hours: u32,
    },
    /// Moves the end of all leases on shards into the future.
    PostponeShardLeases {
        /// By so many hours.
        hours: u32,
    },
    /// Moves the last heartbeat of a relay into the future.
    PostponeHeartbeat {
        /// See [`Relay::owner`](posthaste_core::store::Relay::owner).
        owner: &'e str,
        /// By so many hours.
        hours: u32,
    },
    /// Says that the outbox was made by another version.
    SetVersion(i32),
    /// Writes an event without this library.
    Insert(&'e PlainEvent),
}

/// An event as an application writes it without this library: with the columns that are set here,
/// and with the defaults of the database in all others. Its type is `ByHand`.
#[derive(Debug, Clone, Default)]
pub struct PlainEvent {
    /// `event_id`
    pub id: Uuid,
    /// `payload`
    pub payload: String,
    /// `headers`, which may be anything but the JSON object of strings that they should be.
    pub headers: Option<String>,
    /// `tenant`
    pub tenant: Option<String>,
    /// `aggregate_type`
    pub aggregate_type: Option<String>,
    /// `aggregate_id`
    pub aggregate_id: Option<String>,
    /// `ordering_key`: without one the key comes from the aggregate, an empty one means unordered.
    pub ordering_key: Option<String>,
}

/// Plain SQL on the tables of `posthaste-stores`, as an application without this library or an
/// operator at a prompt sends it.
#[async_trait]
pub trait Sql: Send + Sync {
    /// The dialect, as sqlx names it: `PostgreSQL`, `MySQL`, `SQLite`.
    fn dialect(&self) -> &'static str;

    /// Fills the names of an outbox into a template: `{events}`, `{shards}`, `{meta}`, and so on,
    /// and `{bare}` for the names of indexes.
    fn fill(&self, outbox: &TableName, template: &str) -> String;

    /// Runs any number of statements, and returns how many rows came back.
    async fn run(&self, sql: String) -> Result<usize>;

    /// Asks the driver whether a transaction is open: on a new connection, in a transaction, in a
    /// savepoint, after the savepoint, and after the commit.
    async fn in_transaction(&self) -> Result<[bool; 5]>;
}
