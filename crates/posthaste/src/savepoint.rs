//! A part of a transaction that can be taken back.

use posthaste_core::{Error, ErrorKind, Result};
use posthaste_stores::Dialect;
use sqlx::Pool;

use crate::{
    EnqueueIn,
    hook::{Hooks, Moment, Written},
    level::Level,
    transaction::Batches,
};

/// A savepoint of an [`OutboxTransaction`](crate::OutboxTransaction). What is enqueued in it goes
/// with it when it is rolled back or dropped; kept, it ends as its transaction does.
pub struct Savepoint<'t, DB: Dialect> {
    // Before `batches`: the rollback is under way when the hooks are told of it.
    inner: Level<'t, DB>,
    pool: Pool<DB>,
    batches: Batches,
    /// Those of the transaction.
    outer: &'t mut Batches,
}

impl<'t, DB: Dialect> Savepoint<'t, DB> {
    pub(crate) fn new(inner: Level<'t, DB>, pool: Pool<DB>, outer: &'t mut Batches) -> Self {
        Self { inner, pool, batches: Batches::default(), outer }
    }

    /// The connection, for queries: `query.execute(savepoint.connection())`.
    pub fn connection(&mut self) -> &mut DB::Connection {
        self.inner.transaction()
    }

    /// Keeps what was done since. It is committed with the transaction.
    pub async fn release(self) -> Result<()> {
        let Self { mut inner, pool: _, mut batches, outer } = self;
        if inner.has_ended().await {
            (outer.end, batches.end) = (Moment::Unknown, Moment::Unknown);
        }
        if outer.is_torn() {
            return Err(Error::new(
                ErrorKind::State,
                "a call that wrote in the savepoint was given up half-way; it was rolled back",
            ));
        }
        // Whoever gives up here does not learn whether it was kept.
        outer.writing(true);
        inner.release().await?;
        outer.writing(false);
        outer.take_over(&mut batches);
        Ok(())
    }

    /// Takes back what was done since, and goes on with the transaction.
    pub async fn rollback(self) -> Result<()> {
        let Self { mut inner, mut batches, outer, .. } = self;
        if inner.has_ended().await {
            (outer.end, batches.end) = (Moment::Unknown, Moment::Unknown);
        }
        // After an error nobody knows what is left of the transaction.
        outer.writing(true);
        inner.rollback().await?;
        outer.writing(false);
        Ok(())
    }
}

impl<DB: Dialect> EnqueueIn<DB> for Savepoint<'_, DB> {
    fn connection(&mut self) -> &mut DB::Connection {
        self.inner.transaction()
    }

    fn pool(&self) -> Option<&Pool<DB>> {
        Some(&self.pool)
    }

    fn writing(&mut self, under_way: bool) {
        // One that is given up half-way leaves the connection as no rollback to the savepoint mends it.
        if !DB::in_transaction(self.inner.transaction()) {
            self.ended();
        }
        self.outer.writing(under_way);
    }

    fn ended(&mut self) {
        (self.outer.end, self.batches.end) = (Moment::Unknown, Moment::Unknown);
    }

    fn remember(&mut self, written: Vec<Written>, hooks: &Hooks) {
        self.batches.add(written, hooks);
    }
}
