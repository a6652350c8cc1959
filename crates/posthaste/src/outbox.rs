//! The handle that an application holds to write events.

use std::sync::Arc;

use posthaste_core::{Error, ErrorKind, Event, IntoEvent, Limits, Result, TableName};
use posthaste_stores::{Dialect, Enqueued, Tables};
use sqlx::{Pool, Transaction};

use crate::{
    OutboxTransaction, check,
    hook::{Hook, Hooks, Moment, Written},
    meter::Meter,
    notify::Notifier,
};

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
    meter: Arc<Meter>,
    /// The application's own.
    application_hooks: Vec<Arc<dyn Hook>>,
    /// The notifier and the application's, as a write meets them.
    hooks: Hooks,
}

impl<DB: Dialect> Clone for Outbox<DB> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<DB: Dialect> Outbox<DB> {
    /// The outbox of this table, with default limits.
    pub fn new(table: TableName) -> Self {
        let meter = Arc::new(Meter::new(&table));
        let tables = Tables::new(table);
        let notifier = Notifier::new(tables.clone());
        Self {
            inner: Arc::new(Inner {
                tables,
                limits: Limits::default(),
                default_tenant: None,
                hooks: Hooks::new(Arc::new(notifier.clone()), &[]),
                notifier,
                meter,
                application_hooks: Vec::new(),
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
    /// round trip with each call. The notification of relays sets nothing in its session either, which is
    /// anybody's there. Call it before the outbox is cloned.
    pub fn without_named_statements(self) -> Self {
        self.change(|inner| inner.tables = inner.tables.without_named_statements())
    }

    /// Hands committed events to a relay in this process. Call it before the outbox is cloned.
    #[cfg(feature = "relay")]
    pub fn with_hot_path(self, hot: posthaste_relay::HotPath) -> Self {
        self.change(|inner| inner.notifier.set_hot_path(hot))
    }

    /// One more hook around the writes, behind those given before. Call it before the outbox is
    /// cloned.
    pub fn with_hook(self, hook: impl Hook) -> Self {
        self.change(|inner| inner.application_hooks.push(Arc::new(hook)))
    }

    /// The tables beside which inbox and idempotency keys are kept.
    #[cfg(feature = "idempotency")]
    pub(crate) fn tables(&self) -> &Tables {
        &self.inner.tables
    }

    /// Whether these hooks are its own: those of another outbox can be the same otherwise.
    #[cfg(feature = "idempotency")]
    pub(crate) fn has_hooks(&self, hooks: &Hooks) -> bool {
        self.inner.hooks.is_same(hooks)
    }

    fn change(self, change: impl FnOnce(&mut Inner<DB>)) -> Self {
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(shared) => Inner {
                tables: shared.tables.clone(),
                limits: shared.limits,
                default_tenant: shared.default_tenant.clone(),
                notifier: shared.notifier.clone(),
                meter: Arc::clone(&shared.meter),
                application_hooks: shared.application_hooks.clone(),
                hooks: shared.hooks.clone(),
            },
        };
        change(&mut inner);
        inner.hooks = Hooks::new(Arc::new(inner.notifier.clone()), &inner.application_hooks);
        Self { inner: Arc::new(inner) }
    }

    /// Begins a transaction that remembers what is enqueued in it and hands it over after commit.
    ///
    /// In a plain driver transaction an event commits or rolls back with its rows just as well. But only one of
    /// `begin` has the hot path and the hooks for its end, leaves its connection fit for the next user when it
    /// is dropped half-way, as with a client that hangs up, and never reports a commit that was none: sqlx
    /// 0.9.0 says Ok to the commit after a failed statement (PostgreSQL) and after a call that was given up.
    pub async fn begin(&self, pool: &Pool<DB>) -> Result<OutboxTransaction<DB>> {
        OutboxTransaction::begin(pool).await
    }

    /// Writes an event in the caller's transaction: it commits or rolls back with everything else.
    /// The same event id again writes nothing and gives the first sequence.
    ///
    /// It takes an [event](struct@Event), a builder, a [typed event](posthaste_core::TypedEvent), or
    /// just a type and a payload: `outbox.enqueue(&mut tx, ("DayEnded", &totals))`.
    ///
    /// `None` when a [hook](Hook) suppressed it, or put others in its place.
    pub async fn enqueue(
        &self,
        transaction: &mut impl EnqueueIn<DB>,
        event: impl IntoEvent,
    ) -> Result<Option<Enqueued>> {
        let event = event.into_event()?;
        let id = event.id();
        let enqueued = self.enqueue_all(transaction, vec![event]).await?;
        Ok(enqueued.into_iter().find(|enqueued| enqueued.id == id))
    }

    /// Writes events in the caller's transaction, in this order, in one statement. Answers with what
    /// was written: these events, unless a [hook](Hook) has changed them.
    ///
    /// An error leaves none of them behind. On PostgreSQL it ends the transaction, as the error of any
    /// statement does; on MySQL and SQLite the transaction goes on, except when it is of kind
    /// [`State`](ErrorKind::State): then there is none any more. A call that is dropped half-way, as by a
    /// timeout around it, may have written some: a transaction of [`begin`](Self::begin) then refuses
    /// its commit, a driver's own must be rolled back.
    pub async fn enqueue_all(
        &self,
        transaction: &mut impl EnqueueIn<DB>,
        events: Vec<impl IntoEvent>,
    ) -> Result<Vec<Enqueued>> {
        let events = self.prepare(events)?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        transaction.writing(true);
        let outcome = self.write(transaction.connection(), events).await;
        transaction.writing(false);
        let (enqueued, written) = outcome?;
        if let Some(pool) = transaction.pool() {
            self.inner.notifier.connect(pool);
        }
        transaction.remember(written, &self.inner.hooks);
        Ok(enqueued)
    }

    /// Writes events on a bare connection. Refused when no transaction is open on it, as far as
    /// the driver can tell: outside of one, events and business rows would not commit together.
    pub async fn enqueue_on_connection(
        &self,
        connection: &mut DB::Connection,
        events: Vec<impl IntoEvent>,
    ) -> Result<Vec<Enqueued>> {
        let events = self.prepare(events)?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.write(connection, events).await?.0)
    }

    /// What is to be written. Hooks see events complete; what they give is completed as well, and
    /// held to the limits.
    fn prepare(&self, events: Vec<impl IntoEvent>) -> Result<Vec<Event>> {
        let events = events.into_iter().map(|event| Ok(self.complete(event.into_event()?)));
        let mut events = events.collect::<Result<Vec<Event>>>()?;
        if self.inner.hooks.has_application_hooks() {
            let changed = self.inner.hooks.before_write(events)?;
            events = changed.into_iter().map(|event| self.complete(event)).collect();
        }
        for event in &events {
            event.check(&self.inner.limits)?;
        }
        Ok(events)
    }

    fn complete(&self, event: Event) -> Event {
        check::completed(event, self.inner.default_tenant.as_deref())
    }

    async fn write(
        &self,
        connection: &mut DB::Connection,
        events: Vec<Event>,
    ) -> Result<(Vec<Enqueued>, Vec<Written>)> {
        if !DB::in_transaction(connection) {
            return Err(Error::new(
                ErrorKind::State,
                "no transaction is open on this connection; begin one, so that the event commits \
                 with the rows it tells about",
            ));
        }
        let enqueued = DB::enqueue(connection, &self.inner.tables, &events).await?;
        let written: Vec<Written> = events
            .into_iter()
            .zip(&enqueued)
            .map(|(event, &Enqueued { sequence, duplicate, .. })| Written {
                event,
                sequence,
                duplicate,
            })
            .collect();
        let new = written.iter().filter(|written| !written.duplicate);
        self.inner.meter.enqueued(new.map(|written| &written.event));
        self.inner.hooks.after(Moment::Written, &written);
        Ok((enqueued, written))
    }
}

/// A transaction that events can be enqueued in: sqlx's own, or ours.
pub trait EnqueueIn<DB: Dialect>: Send {
    /// The connection that the transaction is open on.
    fn connection(&mut self) -> &mut DB::Connection;

    /// The pool that it came from, if it is known.
    fn pool(&self) -> Option<&Pool<DB>> {
        None
    }

    /// A call begins to write in it, or has come to its end: with `true` and never `false` it was given
    /// up half-way. A driver's own transaction cannot refuse its commit, and keeps no note.
    fn writing(&mut self, under_way: bool) {
        let _ = under_way;
    }

    /// The driver has ended it by itself, and nobody knows whether it has committed it. A driver's
    /// own transaction has nobody to tell.
    fn ended(&mut self) {}

    /// What one call wrote in it, and whom to tell how it ends. A driver's own transaction keeps
    /// neither: it does not tell how it ends.
    fn remember(&mut self, written: Vec<Written>, hooks: &Hooks) {
        let _ = (written, hooks);
    }
}

impl<DB: Dialect> EnqueueIn<DB> for Transaction<'_, DB> {
    fn connection(&mut self) -> &mut DB::Connection {
        &mut *self
    }
}
