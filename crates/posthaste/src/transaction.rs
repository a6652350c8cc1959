//! A transaction that tells the relay what it committed.

use std::ops::{Deref, DerefMut};

use posthaste_core::{Error, ErrorKind, Event, Result};
use posthaste_stores::{Dialect, Enqueued};
use sqlx::{Pool, Transaction};

use crate::{EnqueueIn, notify::Notifier};

/// A driver's transaction that remembers what was enqueued in it. After a commit the relay in this
/// process gets it at once, and relays elsewhere are woken. Dropping it rolls back and hands over
/// nothing.
pub struct OutboxTransaction<DB: Dialect> {
    inner: Transaction<'static, DB>,
    pool: Pool<DB>,
    notifier: Notifier<DB>,
    enqueued: Vec<(i64, u32)>,
}

impl<DB: Dialect> OutboxTransaction<DB> {
    pub(crate) fn new(
        inner: Transaction<'static, DB>,
        pool: Pool<DB>,
        notifier: Notifier<DB>,
    ) -> Self {
        Self { inner, pool, notifier, enqueued: Vec::new() }
    }

    /// The connection, for queries: `query.execute(tx.connection())`.
    pub fn connection(&mut self) -> &mut DB::Connection {
        &mut self.inner
    }

    /// Commits, then hands over what was enqueued. When the result of the commit is unknown, the
    /// relay is only woken: it finds by itself whether there is anything.
    pub async fn commit(self) -> Result<()> {
        let Self { inner, pool, notifier, enqueued } = self;
        match inner.commit().await {
            Ok(()) => {
                notifier.committed(&pool, enqueued);
                Ok(())
            }
            Err(error) => {
                notifier.wake(&pool);
                Err(Error::new(
                    ErrorKind::Unavailable,
                    "the commit failed, or its result is unknown",
                )
                .with_source(error))
            }
        }
    }

    /// Rolls back: nothing was enqueued.
    pub async fn rollback(self) -> Result<()> {
        self.inner.rollback().await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the rollback failed").with_source(error)
        })
    }
}

impl<DB: Dialect> Deref for OutboxTransaction<DB> {
    type Target = Transaction<'static, DB>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl<DB: Dialect> DerefMut for OutboxTransaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

impl<DB: Dialect> EnqueueIn<DB> for OutboxTransaction<DB> {
    fn connection(&mut self) -> &mut DB::Connection {
        &mut self.inner
    }

    fn remember(&mut self, events: &[Event], enqueued: &[Enqueued]) {
        if !self.notifier.wants_details() {
            self.enqueued.extend(enqueued.iter().map(|e| (e.sequence, 0)));
            return;
        }
        self.enqueued.extend(events.iter().zip(enqueued).filter(|(_, e)| !e.duplicate).map(
            |(event, e)| {
                let key = event.ordering_key();
                (e.sequence, posthaste_core::key::shard_hash(key.as_deref(), event.id()))
            },
        ));
    }
}
