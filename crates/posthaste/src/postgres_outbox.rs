//! The handle for applications whose driver is not sqlx 0.9.

use std::sync::Arc;

use posthaste_core::{
    Enqueued, Error, ErrorKind, Event, IntoEvent, Limits, Result, TableName,
    enqueue::{
        Found, Written, answers, missing, pieces,
        postgres::{STATEMENT_BYTES, Statements},
        refuse_two_of_one_id,
    },
};

use crate::{check::checked, drivers::PostgresTransaction, meter::Meter};

/// Writes events of one outbox in PostgreSQL through any driver: tokio-postgres, deadpool-postgres,
/// diesel-async and sea-orm with the features of these names, sqlx 0.8 with the crate
/// `posthaste-sqlx-08`. What it promises is what `Outbox` promises. Cheap to clone.
///
/// It keeps no session state, so it works behind a transaction pooler; of the drivers only sea-orm
/// prepares statements under names that outlive the transaction.
///
#[cfg_attr(feature = "tokio-postgres", doc = "```no_run")]
#[cfg_attr(not(feature = "tokio-postgres"), doc = "```ignore")]
/// use posthaste::{Event, PostgresOutbox, tokio_postgres::Client};
///
/// # async fn example(mut client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = PostgresOutbox::new("outbox_event".parse()?);
///
/// let mut tx = client.transaction().await?;
/// tx.execute("insert into orders (id) values (42)", &[]).await?;
/// let event = Event::builder("OrderPlaced").aggregate("Order", 42).raw_json("{}").build()?;
/// outbox.enqueue(&mut tx, event).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// There are no hooks: they belong to transactions of ours, and this driver has its own.
///
/// # After the commit
/// The driver commits, so nobody is told and the relay's next poll finds the event. To be
/// faster, call [`wake`](Self::wake) after the commit when the relay is in this process; for
/// relays elsewhere run `select pg_notify($1, '')` with the outbox's
/// [channel](TableName::channel), after the commit and outside of the transaction: inside, it
/// would serialise every commit of the server.
#[derive(Clone)]
pub struct PostgresOutbox {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    table: TableName,
    statements: Statements,
    limits: Limits,
    default_tenant: Option<String>,
    meter: Arc<Meter>,
    #[cfg(feature = "relay")]
    hot: Option<posthaste_relay::HotPath>,
}

impl Inner {
    async fn write(
        &self,
        transaction: &mut impl PostgresTransaction,
        events: &[Event],
    ) -> Result<Vec<Enqueued>> {
        let mut enqueued = Vec::with_capacity(events.len());
        for piece in pieces(events, usize::MAX, STATEMENT_BYTES) {
            let written = transaction.insert(&self.statements, piece).await?;
            let written: Written = written.into_iter().collect();
            let known = match missing(piece, &written) {
                ids if ids.is_empty() => Found::new(),
                ids => {
                    let known = transaction.find_known(&self.statements, &ids).await?;
                    known.into_iter().collect()
                }
            };
            enqueued.extend(answers(piece, written, &known)?);
        }
        Ok(enqueued)
    }
}

impl PostgresOutbox {
    /// The outbox of this table, with default limits.
    pub fn new(table: TableName) -> Self {
        Self {
            inner: Arc::new(Inner {
                statements: Statements::of(&table),
                meter: Arc::new(Meter::new(&table)),
                table,
                limits: Limits::default(),
                default_tenant: None,
                #[cfg(feature = "relay")]
                hot: None,
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

    /// The relay in this process, for [`wake`](Self::wake). Call it before the outbox is cloned.
    #[cfg(feature = "relay")]
    pub fn with_hot_path(self, hot: posthaste_relay::HotPath) -> Self {
        self.change(|inner| inner.hot = Some(hot))
    }

    fn change(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.inner);
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// The outbox's table.
    pub fn table(&self) -> &TableName {
        &self.inner.table
    }

    /// Writes an event in the caller's transaction: it commits or rolls back with everything else. It
    /// is an event, a builder, a typed event, or a type and a payload. The same event id again writes nothing and gives the first sequence.
    pub async fn enqueue(
        &self,
        transaction: &mut impl PostgresTransaction,
        event: impl IntoEvent,
    ) -> Result<Enqueued> {
        let mut enqueued = self.enqueue_all(transaction, vec![event]).await?;
        enqueued.pop().ok_or_else(|| Error::new(ErrorKind::Database, "the insert answered nothing"))
    }

    /// Writes events in the caller's transaction, in this order, in one statement (with
    /// sea-orm in one each). After an error the transaction can only be rolled back, as after that of any
    /// statement.
    pub async fn enqueue_all(
        &self,
        transaction: &mut impl PostgresTransaction,
        events: Vec<impl IntoEvent>,
    ) -> Result<Vec<Enqueued>> {
        let inner = &*self.inner;
        let events = checked(events, inner.limits, inner.default_tenant.as_deref())?;
        refuse_two_of_one_id(&events)?;
        let enqueued = match inner.write(transaction, &events).await {
            Err(error) => {
                // The server knows of no conflict: it would commit the events that were written,
                // and the application's rows without their event.
                transaction.fail(&inner.statements).await;
                return Err(error);
            }
            Ok(enqueued) => enqueued,
        };
        let written = events.iter().zip(&enqueued).filter(|(_, enqueued)| !enqueued.duplicate);
        inner.meter.enqueued(written.map(|(event, _)| event));
        Ok(enqueued)
    }

    /// Something may have been committed: the relay in this process looks at once.
    #[cfg(feature = "relay")]
    pub fn wake(&self) {
        if let Some(hot) = &self.inner.hot {
            hot.wake();
        }
    }
}
