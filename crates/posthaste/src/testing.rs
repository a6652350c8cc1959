//! Help for an application's own tests: an outbox without a server, a relay that moves only when the
//! test says so, and assertions about what was enqueued.
//!
//! ```
//! use posthaste::{Event, assert_enqueued, assert_not_enqueued, testing::TestOutbox};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> posthaste::Result<()> {
//! let test = TestOutbox::new().await?;
//!
//! let mut tx = test.outbox().begin(test.pool()).await?;
//! let placed = Event::builder("OrderPlaced").aggregate("Order", 42).raw_json("{}").build()?;
//! test.outbox().enqueue(&mut tx, placed).await?;
//! tx.commit().await?;
//!
//! assert_enqueued!(test, "OrderPlaced", aggregate_id = 42);
//! assert_not_enqueued!(test, "OrderCancelled");
//! assert_eq!(test.deliver().await?.len(), 1);
//! assert!(test.deliver().await?.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! The assertions work on any store, so that a test on the application's own PostgreSQL can use them
//! as well. Backoff and delays are the database's to decide; what the relay itself waits for is
//! driven by a [`ManualClock`](crate::clock::ManualClock).

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use posthaste_core::{
    Envelope, Error, ErrorKind, Result, TableName,
    store::{Filter, Store},
    transport::Transport,
};
use posthaste_relay::{Config, Relay};
use posthaste_stores::{Dialect, Tables};
use posthaste_transports::memory::MemoryTransport;
use sqlx::{
    Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::Outbox;

/// How many events an assertion reads at a time.
const PAGE: usize = 500;

/// An outbox that a test has for itself: SQLite on a file that lies in memory where the system has a
/// place for that, and is removed with this. Not a stand-in but a real store, which passes the
/// conformance suite: transactions, savepoints, order and retries are as in production.
pub struct TestOutbox {
    outbox: Outbox<Sqlite>,
    pool: SqlitePool,
    store: Arc<dyn Store>,
    // Last: what uses the file goes first.
    _folder: Folder,
}

impl TestOutbox {
    /// A new one, with its tables made.
    pub async fn new() -> Result<Self> {
        let folder = Folder::new()?;
        let file = SqliteConnectOptions::new()
            .filename(folder.0.join("outbox.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // It need not survive a power cut.
            .synchronous(SqliteSynchronous::Off);
        let pool = SqlitePoolOptions::new().max_connections(8).connect_with(file).await.map_err(
            |error| {
                Error::new(ErrorKind::Unavailable, "no database for a test could be opened")
                    .with_source(error)
            },
        )?;
        let tables = Tables::new(TableName::default());
        let store = Sqlite::store(pool.clone(), tables.clone());
        store.migrate(None).await?;
        Ok(Self { outbox: Outbox::new(tables.name().clone()), pool, store, _folder: folder })
    }

    /// The outbox, as the application holds it.
    pub fn outbox(&self) -> &Outbox<Sqlite> {
        &self.outbox
    }

    /// The database; the application's own tables may be made in it.
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// The store, for a relay of the test's own.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// A relay that hands over to this transport, and only in
    /// [`relay_once`](posthaste_relay::Relay::relay_once).
    pub fn relay(&self, transport: Arc<dyn Transport>) -> Result<Relay> {
        Relay::new(Arc::clone(&self.store), transport, Config::default())
    }

    /// One pass of a relay that accepts everything. Gives what it delivered, in order.
    pub async fn deliver(&self) -> Result<Vec<Envelope>> {
        let memory = MemoryTransport::new();
        self.relay(Arc::new(memory.clone()))?.relay_once().await?;
        Ok(memory.delivered())
    }
}

impl AsRef<dyn Store> for TestOutbox {
    fn as_ref(&self) -> &(dyn Store + 'static) {
        &*self.store
    }
}

/// The events of an outbox that pass a filter, oldest first, whatever became of them.
pub async fn events(store: &impl AsRef<dyn Store>, filter: &Filter) -> Result<Vec<Envelope>> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = store.as_ref().events(filter, before, PAGE).await?;
        for record in page.events {
            // A list has no payloads.
            let record = match record.event_id {
                Some(id) => store.as_ref().event(id).await?.unwrap_or(record),
                None => record,
            };
            found.push(record.content.map_err(|error| Error::new(ErrorKind::State, error))?);
        }
        before = page.next;
        if before.is_none() {
            found.reverse();
            return Ok(found);
        }
    }
}

/// What an assertion says when it fails: everything that is there, without payloads.
#[doc(hidden)]
pub async fn told(store: &impl AsRef<dyn Store>) -> String {
    let all = match events(store, &Filter::default()).await {
        Ok(all) => all,
        Err(error) => return error.to_string(),
    };
    if all.is_empty() {
        return "the outbox is empty".to_owned();
    }
    let lines = all.iter().map(|Envelope { event, .. }| {
        let aggregate_id = event.aggregate_id().unwrap_or("-");
        let tenant = event.tenant().unwrap_or("-");
        let aggregate_type = event.aggregate_type();
        format!("  {} of {aggregate_type} {aggregate_id}, tenant {tenant}", event.event_type())
    });
    format!("the outbox holds\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// Fails unless an event of this type was enqueued and committed, with these fields
/// (`aggregate_type`, `aggregate_id`, `tenant`) if they are given. Gives the events that match, oldest
/// first. For `async` tests.
///
/// ```
/// # use posthaste::{Event, assert_enqueued, testing::TestOutbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> posthaste::Result<()> {
/// # let test = TestOutbox::new().await?;
/// # let mut tx = test.outbox().begin(test.pool()).await?;
/// # let placed = Event::builder("OrderPlaced").aggregate("Order", 42).tenant("acme");
/// # test.outbox().enqueue(&mut tx, placed.raw_json("{}").build()?).await?;
/// # tx.commit().await?;
/// let found = assert_enqueued!(test, "OrderPlaced", aggregate_id = 42, tenant = "acme");
/// assert_eq!(found.len(), 1);
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! assert_enqueued {
    ($store:expr, $event_type:expr $(, $field:ident = $value:expr)* $(,)?) => {{
        let found = $crate::__enqueued!($store, $event_type $(, $field = $value)*);
        if found.is_empty() {
            panic!(
                "no {} with {:?} was enqueued; {}",
                $event_type,
                [$(concat!(stringify!($field), " = ", stringify!($value))),*] as [&str; _],
                $crate::testing::told(&$store).await
            );
        }
        found
    }};
}

/// Fails if an event of this type was enqueued and committed, with these fields if they are given.
/// For `async` tests.
#[macro_export]
macro_rules! assert_not_enqueued {
    ($store:expr, $event_type:expr $(, $field:ident = $value:expr)* $(,)?) => {{
        let found = $crate::__enqueued!($store, $event_type $(, $field = $value)*);
        assert!(found.is_empty(), "{} was enqueued {} times", $event_type, found.len());
    }};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __enqueued {
    ($store:expr, $event_type:expr $(, $field:ident = $value:expr)*) => {
        match $crate::testing::events(
            &$store,
            &$crate::store::Filter {
                event_type: Some($event_type.to_string()),
                $($field: Some($value.to_string()),)*
                ..$crate::store::Filter::default()
            },
        )
        .await
        {
            Ok(found) => found,
            Err(error) => panic!("the outbox cannot be read: {error}"),
        }
    };
}

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = parent.join(format!("posthaste-test-{}", uuid::Uuid::now_v7().simple()));
        fs::create_dir(&folder).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "no folder for a test could be made")
                .with_source(error)
        })?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left behind is small, and a test that ends cannot do more.
        let _ = fs::remove_dir_all(&self.0);
    }
}
