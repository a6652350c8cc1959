//! What is put to the test: a database, and what it can do.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use posthaste_core::{TableName, store::Store};

use super::{Database, outbox::Outbox};
use crate::names;

/// A database under test, and what it can do: capabilities choose which cases apply.
///
/// With the feature `sqlx`, `Subject::new` takes a pool; [`Subject::on`] takes any [`Database`].
pub struct Subject {
    pub(super) database: Arc<dyn Database>,
    pub(super) shards: u16,
    pub(super) late_commits: bool,
    pub(super) concurrent_writers: bool,
    pub(super) skips_locked: bool,
    /// What a case has made, to be dropped when it is over.
    made: Mutex<Vec<TableName>>,
    /// Such as the folder in which the database lives: dropped last.
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl Subject {
    /// A database with 8 shards, late commits and concurrent writers.
    pub fn on(database: impl Database) -> Self {
        Self {
            database: Arc::new(database),
            shards: 8,
            late_commits: true,
            concurrent_writers: true,
            skips_locked: true,
            made: Mutex::default(),
            kept: Vec::new(),
        }
    }

    /// With how many shards outboxes are made: 8 unless set.
    pub fn shards(mut self, shards: u16) -> Self {
        self.shards = shards;
        self
    }

    /// A database in which a sequence never becomes visible after a higher one.
    pub fn without_late_commits(mut self) -> Self {
        self.late_commits = false;
        self
    }

    /// A database with one writer at a time, such as `SQLite`: one shard, no late commits, and no
    /// case in which a second transaction writes while the first is open.
    pub fn single_writer(mut self) -> Self {
        self.concurrent_writers = false;
        self.skips_locked = false;
        self.without_late_commits().shards(1)
    }

    /// A database that cannot leave out rows that others have locked: whoever wants one waits for
    /// it.
    pub fn without_skip_locked(mut self) -> Self {
        self.skips_locked = false;
        self
    }

    /// Keeps something alive until the case is over, such as the folder of a database file.
    pub fn keep(mut self, guard: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(guard));
        self
    }

    /// A store for this outbox, as another process would make it.
    pub(super) fn store(&self, outbox: &TableName) -> Arc<dyn Store> {
        self.database.store(outbox)
    }

    /// A fresh outbox, migrated.
    pub(super) async fn outbox(&self) -> Outbox {
        let outbox = self.unmigrated();
        outbox.store.migrate(Some(self.shards)).await.unwrap();
        outbox
    }

    /// A fresh outbox whose tables nobody has made. What is made under its name is dropped in the
    /// end.
    pub(super) fn unmigrated(&self) -> Outbox {
        let name = names::unique("conformance");
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        Outbox {
            store: self.store(&name),
            name,
            database: Arc::clone(&self.database),
            shards: self.shards,
        }
    }

    /// Drops what was made. What cannot be dropped stays: the case has its verdict.
    pub(super) async fn clean(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for outbox in &made {
            let _ = self.database.drop_outbox(outbox).await;
        }
        self.database.close().await;
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("dialect", &self.database.sql().map(super::Sql::dialect))
            .field("shards", &self.shards)
            .field("late_commits", &self.late_commits)
            .field("concurrent_writers", &self.concurrent_writers)
            .field("skips_locked", &self.skips_locked)
            .finish_non_exhaustive()
    }
}
