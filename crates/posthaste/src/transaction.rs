//! A transaction that tells the outbox's hooks how it ended.

use std::{
    mem::take,
    ops::{Deref, DerefMut},
};

use posthaste_core::{Error, ErrorKind, Result};
use posthaste_stores::{Dialect, is_rolled_back};
use sqlx::{Connection, Pool, Transaction, error::DatabaseError};

use crate::{
    EnqueueIn, Savepoint,
    hook::{Hooks, Moment, Written},
};

/// A driver's transaction that remembers what was enqueued in it, until it ends. After a commit the
/// relay in this process gets it at once, relays elsewhere are woken, and the application's
/// [hooks](crate::Hook) are told. Dropping it rolls back.
///
/// What is enqueued in a savepoint of the driver's (`tx.begin()`) is as safe, but not remembered: the
/// driver does not tell what becomes of it. [`savepoint`](Self::savepoint) does.
pub struct OutboxTransaction<DB: Dialect> {
    // Before `batches`: the rollback is under way when the hooks are told of it.
    inner: Transaction<'static, DB>,
    pool: Pool<DB>,
    batches: Batches,
}

impl<DB: Dialect> OutboxTransaction<DB> {
    pub(crate) fn new(inner: Transaction<'static, DB>, pool: Pool<DB>) -> Self {
        Self { inner, pool, batches: Batches::default() }
    }

    /// The connection, for queries: `query.execute(tx.connection())`.
    pub fn connection(&mut self) -> &mut DB::Connection {
        &mut self.inner
    }

    /// Begins a part that can be taken back.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, DB>> {
        let inner = self.inner.begin().await;
        let inner = inner.map_err(|error| commit_failed(error, "no savepoint could be set"))?;
        Ok(Savepoint::new(inner, self.pool.clone(), &mut self.batches))
    }

    /// Commits, then hands over what was enqueued. When the result of the commit is unknown, the
    /// relay is only woken: it finds by itself whether there is anything.
    ///
    /// PostgreSQL answers the commit of a transaction in which a statement has failed with success, and
    /// rolls it back. Where the application's hooks would be told of such a commit, one more
    /// question to the server makes it the error that it is.
    pub async fn commit(self) -> Result<()> {
        let Self { mut inner, pool: _, mut batches } = self;
        let told = batches.written.iter().any(|(hooks, _)| hooks.has_application_hooks());
        if told && DB::has_failed(&mut inner).await {
            // The hooks are told when the rollback is under way.
            drop(inner);
            return Err(Error::new(
                ErrorKind::Database,
                "a statement has failed in the transaction; it was rolled back",
            ));
        }
        // From here on it is unknown until it is known: nobody may wait for the answer.
        batches.end = Moment::Unknown;
        match inner.commit().await {
            Ok(()) => {
                batches.end = Moment::Committed;
                Ok(())
            }
            Err(error) if is_rolled_back(&error) => {
                batches.end = Moment::RolledBack;
                Err(commit_failed(error, "the database refused the commit; it was rolled back"))
            }
            Err(error) => Err(commit_failed(error, "the result of the commit is unknown")),
        }
    }

    /// Rolls back: nothing was enqueued, whatever the database answers.
    pub async fn rollback(self) -> Result<()> {
        self.inner.rollback().await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the rollback failed").with_source(error)
        })
    }
}

/// A violated constraint stays violated; after anything else trying again may help.
pub(crate) fn commit_failed(error: sqlx::Error, message: &'static str) -> Error {
    let kind = match error.as_database_error().map(DatabaseError::kind) {
        None | Some(sqlx::error::ErrorKind::Other) => ErrorKind::Unavailable,
        Some(_) => ErrorKind::Database,
    };
    Error::new(kind, message).with_source(error)
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

    fn pool(&self) -> Option<&Pool<DB>> {
        Some(&self.pool)
    }

    fn remember(&mut self, written: Vec<Written>, hooks: &Hooks) {
        self.batches.add(written, hooks);
    }
}

/// What was written in a transaction, each batch with the hooks of its outbox. They are told when
/// this is dropped: a transaction that is given up somewhere has an end as well.
pub(crate) struct Batches {
    written: Vec<(Hooks, Vec<Written>)>,
    end: Moment,
}

impl Default for Batches {
    fn default() -> Self {
        Self { written: Vec::new(), end: Moment::RolledBack }
    }
}

impl Batches {
    pub(crate) fn add(&mut self, mut written: Vec<Written>, hooks: &Hooks) {
        // A bulk load keeps its payloads in memory only for an application that wants them.
        if !hooks.has_application_hooks() {
            let bare = |one: Written| Written { event: one.event.without_payload(), ..one };
            written = written.into_iter().map(bare).collect();
        }
        self.written.push((hooks.clone(), written));
    }

    /// Those of a savepoint that was released: they end as the transaction does.
    pub(crate) fn take_over(&mut self, released: &mut Self) {
        self.written.append(&mut released.written);
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        for (hooks, written) in take(&mut self.written) {
            hooks.after(self.end, &written);
        }
    }
}
