//! The unit of work: one transaction for the rows of aggregates and for the events they raised.

use posthaste_core::{Event, Result};
use posthaste_stores::{Dialect, Enqueued};
use sqlx::Pool;

use super::{Aggregate, Context, aggregate::Log};
use crate::{Outbox, OutboxTransaction};

/// A transaction that writes, when it commits, all that the aggregates it tracks have raised: in
/// the order in which they raised it, whichever of them did.
///
/// Until then the events stay with their aggregates, and they leave them only when the commit is
/// certain. After one that failed, or whose result is unknown, another unit of work can track the
/// same aggregates: the events keep their ids, so one that was committed after all is not written
/// a second time.
pub struct UnitOfWork<DB: Dialect> {
    outbox: Outbox<DB>,
    transaction: OutboxTransaction<DB>,
    context: Context,
    tracked: Vec<Tracked>,
}

struct Tracked {
    aggregate_type: &'static str,
    aggregate_id: String,
    log: Log,
}

impl<DB: Dialect> UnitOfWork<DB> {
    /// Begins a transaction. Dropping it rolls back.
    pub async fn begin(outbox: &Outbox<DB>, pool: &Pool<DB>) -> Result<Self> {
        Ok(Self {
            outbox: outbox.clone(),
            transaction: outbox.begin(pool).await?,
            context: Context::default(),
            tracked: Vec::new(),
        })
    }

    /// What is added to every event.
    pub fn with_context(mut self, context: Context) -> Self {
        self.context = context;
        self
    }

    /// The connection, for queries: `query.execute(work.connection())`.
    pub fn connection(&mut self) -> &mut DB::Connection {
        self.transaction.connection()
    }

    /// The transaction, for what is enqueued without an aggregate.
    pub fn transaction(&mut self) -> &mut OutboxTransaction<DB> {
        &mut self.transaction
    }

    /// Writes on commit what this aggregate has raised and will raise until then. Twice is as good as
    /// once.
    pub fn track<A: Aggregate>(&mut self, aggregate: &A) {
        let log = aggregate.events().log();
        if self.tracked.iter().any(|tracked| tracked.log.is(log)) {
            return;
        }
        self.tracked.push(Tracked {
            aggregate_type: A::TYPE,
            aggregate_id: aggregate.aggregate_id(),
            log: log.clone(),
        });
    }

    /// Writes the events and commits. With an error nothing was written, or it is not known, and the
    /// events are still with their aggregates.
    pub async fn commit(mut self) -> Result<Vec<Enqueued>> {
        let (events, written) = self.collect()?;
        let enqueued = self.outbox.enqueue_all(&mut self.transaction, events).await?;
        // Without events there was no insert to fail: the commit is an error when a statement has.
        self.transaction.commit().await?;
        for (tracked, up_to) in self.tracked.iter().zip(written) {
            tracked.log.lock().retain(|raised| Some(raised.number) > up_to);
        }
        Ok(enqueued)
    }

    /// Rolls back. The events are still with their aggregates.
    pub async fn rollback(self) -> Result<()> {
        self.transaction.rollback().await
    }

    /// The events to write, and up to which number they are in each log: more may be raised while
    /// the commit is under way.
    fn collect(&self) -> Result<(Vec<Event>, Vec<Option<u64>>)> {
        let mut events = Vec::new();
        let mut written = Vec::with_capacity(self.tracked.len());
        for Tracked { aggregate_type, aggregate_id, log } in &self.tracked {
            let log = log.lock();
            for raised in log.iter() {
                let event = self.context.event_of(aggregate_type, aggregate_id, raised)?;
                events.push((raised.number, event));
            }
            written.push(log.last().map(|raised| raised.number));
        }
        events.sort_by_key(|(number, _)| *number);
        Ok((events.into_iter().map(|(_, event)| event).collect(), written))
    }
}
