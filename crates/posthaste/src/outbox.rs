//! The handle that an application holds to write events.

use std::sync::Arc;

use posthaste_core::{Error, ErrorKind, Event, Limits, Result, TableName};
use posthaste_stores::{Dialect, Enqueued, Tables};
use sqlx::{Pool, Transaction};

use crate::{OutboxTransaction, check::checked, notify::Notifier};

/// Writes events of one outbox. Cheap to clone.
///
/// ```no_run
/// use posthaste::{Event, Outbox};
///
/// # async fn example(pool: sqlx::Pool<sqlx::Sqlite>) -> Result<(), Box<dyn std::error::Error>>
/// # where sqlx::Sqlite: posthaste::Dialect {
/// let outbox = Outbox::new("outbox_event".parse()?);
///
/// let mut tx = outbox.begin(&pool).await?;
/// sqlx::query("insert into orders (id) values (42)").execute(tx.connection()).await?;
/// let event = Event::builder("OrderPlaced").aggregate("Order", 42).raw_json("{}").build()?;
/// outbox.enqueue(&mut tx, event).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
pub struct Outbox<DB: Dialect> {
    inner: Arc<Inner<DB>>,
}

struct Inner<DB: Dialect> {
    tables: Tables,
    limits: Limits,
    default_tenant: Option<String>,
    notifier: Notifier<DB>,
}

impl<DB: Dialect> Clone for Outbox<DB> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<DB: Dialect> Outbox<DB> {
    /// The outbox of this table, with default limits.
    pub fn new(table: TableName) -> Self {
        let tables = Tables::new(table);
        let notifier = Notifier::new(tables.clone());
        Self {
            inner: Arc::new(Inner {
                tables,
                limits: Limits::default(),
                default_tenant: None,
                notifier,
            }),
        }
    }

    /// Other limits. Call it before the outbox is cloned.
    pub fn with_limits(self, limits: Limits) -> Self {
        self.change(|inner| inner.limits = limits)
    }

    /// The tenant of events that name none. Call it before the outbox is cloned.
    pub fn with_default_tenant(self, tenant: impl Into<String>) -> Self {
        let tenant = tenant.into();
        self.change(|inner| inner.default_tenant = Some(tenant))
    }

    /// Prepares nothing under a name on PostgreSQL: for a pool that goes through a transaction
    /// pooler which does not follow prepared statements, such as PgBouncer before 1.21. It costs a
    /// round trip with each call. Call it before the outbox is cloned.
    pub fn without_named_statements(self) -> Self {
        self.change(|inner| inner.tables = inner.tables.without_named_statements())
    }

    /// Hands committed events to a relay in this process. Call it before the outbox is cloned.
    #[cfg(feature = "relay")]
    pub fn with_hot_path(self, hot: posthaste_relay::HotPath) -> Self {
        self.change(|inner| inner.notifier.set_hot_path(hot))
    }

    fn change(self, change: impl FnOnce(&mut Inner<DB>)) -> Self {
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(shared) => Inner {
                tables: shared.tables.clone(),
                limits: shared.limits,
                default_tenant: shared.default_tenant.clone(),
                notifier: shared.notifier.clone(),
            },
        };
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// Begins a transaction that remembers what is enqueued in it and hands it over after commit.
    /// A plain driver transaction is equally safe, only without the hot path.
    pub async fn begin(&self, pool: &Pool<DB>) -> Result<OutboxTransaction<DB>> {
        let transaction = DB::begin(pool).await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "no transaction could be begun").with_source(error)
        })?;
        Ok(OutboxTransaction::new(transaction, pool.clone(), self.inner.notifier.clone()))
    }

    /// Writes an event in the caller's transaction: it commits or rolls back with everything else.
    /// The same event id again writes nothing and gives the first sequence.
    pub async fn enqueue(
        &self,
        transaction: &mut impl EnqueueIn<DB>,
        event: Event,
    ) -> Result<Enqueued> {
        let mut enqueued = self.enqueue_all(transaction, vec![event]).await?;
        enqueued.pop().ok_or_else(|| Error::new(ErrorKind::Database, "the insert answered nothing"))
    }

    /// Writes events in the caller's transaction, in this order, in one statement.
    pub async fn enqueue_all(
        &self,
        transaction: &mut impl EnqueueIn<DB>,
        events: Vec<Event>,
    ) -> Result<Vec<Enqueued>> {
        let events = self.checked(events)?;
        let enqueued = DB::enqueue(transaction.connection(), &self.inner.tables, &events).await?;
        transaction.remember(&events, &enqueued);
        Ok(enqueued)
    }

    /// Writes events on a bare connection. Refused when no transaction is open on it, as far as
    /// the driver can tell: outside of one, events and business rows would not commit together.
    pub async fn enqueue_on_connection(
        &self,
        connection: &mut DB::Connection,
        events: Vec<Event>,
    ) -> Result<Vec<Enqueued>> {
        if !DB::in_transaction(connection) {
            return Err(Error::new(
                ErrorKind::State,
                "no transaction is open on this connection; begin one, so that the event commits \
                 with the rows it tells about",
            ));
        }
        let events = self.checked(events)?;
        DB::enqueue(connection, &self.inner.tables, &events).await
    }

    fn checked(&self, events: Vec<Event>) -> Result<Vec<Event>> {
        checked(events, self.inner.limits, self.inner.default_tenant.as_deref())
    }
}

/// A transaction that events can be enqueued in: sqlx's own, or ours.
pub trait EnqueueIn<DB: Dialect>: Send {
    /// The connection that the transaction is open on.
    fn connection(&mut self) -> &mut DB::Connection;

    /// What was enqueued in it.
    fn remember(&mut self, events: &[Event], enqueued: &[Enqueued]);
}

impl<DB: Dialect> EnqueueIn<DB> for Transaction<'_, DB> {
    fn connection(&mut self) -> &mut DB::Connection {
        &mut *self
    }

    fn remember(&mut self, _: &[Event], _: &[Enqueued]) {}
}
