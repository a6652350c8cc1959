//! What is put to the test: a database, a store on it, and what they can do.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::BoxFuture;
use posthaste_core::store::Store;
use posthaste_stores::{Dialect, Tables};
use sqlx::{Database, Executor, Pool};

use super::outbox::Outbox;
use crate::tables::{self, query};

/// Runs plain SQL on a connection and gives how many rows came back.
pub(super) type Query<DB> = for<'c> fn(
    &'c mut <DB as Database>::Connection,
    String,
) -> BoxFuture<'c, Result<usize, sqlx::Error>>;

/// SQL for the time in a column, so many hours earlier.
pub(super) type Earlier = fn(&str, u32) -> String;

type MakeStore<DB> = Box<dyn Fn(Pool<DB>, Tables) -> Arc<dyn Store> + Send + Sync>;

/// A store on a real database, and what that database can do: capabilities choose which cases
/// apply.
///
/// ```no_run
/// # use posthaste_stores::Dialect;
/// # use posthaste_testkit::conformance::Subject;
/// # use sqlx::{Executor, Pool};
/// # fn on<DB: Dialect>(pool: Pool<DB>) -> Subject<DB>
/// # where for<'c> &'c mut DB::Connection: Executor<'c, Database = DB> {
/// Subject::new(pool)                  // PostgreSQL, MySQL
/// # }
/// # fn on_sqlite<DB: Dialect>(pool: Pool<DB>) -> Subject<DB>
/// # where for<'c> &'c mut DB::Connection: Executor<'c, Database = DB> {
/// Subject::new(pool).single_writer()  // SQLite
/// # }
/// ```
pub struct Subject<DB: Dialect> {
    pub(super) pool: Pool<DB>,
    pub(super) query: Query<DB>,
    pub(super) shards: u16,
    pub(super) late_commits: bool,
    pub(super) concurrent_writers: bool,
    pub(super) skips_locked: bool,
    earlier: Earlier,
    make_store: MakeStore<DB>,
    /// What a case has made, to be dropped when it is over.
    made: Mutex<Vec<Tables>>,
    /// Such as the folder in which the database lives: dropped last.
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl<DB: Dialect> Subject<DB> {
    /// The dialect's own store on this pool, with 8 shards, late commits and concurrent writers.
    /// The pool should give at least 10 connections: cases hold several transactions open.
    pub fn new(pool: Pool<DB>) -> Self
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    {
        Self {
            pool,
            query: query::<DB>,
            shards: 8,
            late_commits: true,
            concurrent_writers: true,
            skips_locked: true,
            earlier: earlier_by_name(DB::NAME),
            make_store: Box::new(DB::store),
            made: Mutex::default(),
            kept: Vec::new(),
        }
    }

    /// Another store than the dialect's own, or one that is set up otherwise.
    pub fn store_with(
        mut self,
        make: impl Fn(Pool<DB>, Tables) -> Arc<dyn Store> + Send + Sync + 'static,
    ) -> Self {
        self.make_store = Box::new(make);
        self
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

    /// A database that cannot leave out rows that others have locked: whoever wants one waits for it.
    pub fn without_skip_locked(mut self) -> Self {
        self.skips_locked = false;
        self
    }

    /// How this database's SQL says that a column's time is so many hours earlier, for cases that
    /// need old events. Known for PostgreSQL, MySQL and `SQLite`.
    pub fn earlier_with(mut self, earlier: fn(&str, u32) -> String) -> Self {
        self.earlier = earlier;
        self
    }

    /// Keeps something alive until the case is over, such as the folder of a database file.
    pub fn keep(mut self, guard: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(guard));
        self
    }

    /// A name that nothing has been made under yet. What is made under it is dropped in the end.
    pub(super) fn unused(&self) -> Tables {
        let tables = tables::unique("conformance");
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(tables.clone());
        tables
    }

    /// A store for these tables, as another process would make it.
    pub(super) fn store(&self, tables: &Tables) -> Arc<dyn Store> {
        (self.make_store)(self.pool.clone(), tables.clone())
    }

    /// A fresh outbox, migrated.
    pub(super) async fn outbox(&self) -> Outbox<DB> {
        let outbox = self.unmigrated();
        outbox.store.migrate(Some(self.shards)).await.unwrap();
        outbox
    }

    /// A fresh outbox whose tables nobody has made.
    pub(super) fn unmigrated(&self) -> Outbox<DB> {
        let tables = self.unused();
        Outbox {
            store: self.store(&tables),
            tables,
            pool: self.pool.clone(),
            query: self.query,
            shards: self.shards,
            earlier: self.earlier,
        }
    }

    /// Drops what was made. A table that cannot be dropped stays: the case has its verdict.
    pub(super) async fn clean(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        let Ok(mut connection) = self.pool.acquire().await else { return };
        for outbox in &made {
            let business = outbox.fill("drop table if exists {events}_business");
            for drop in outbox.drops(DB::NAME).into_iter().chain([business]) {
                let _ = (self.query)(&mut connection, drop).await;
            }
        }
        drop(connection);
        self.pool.close().await;
    }
}

fn earlier_by_name(database: &str) -> Earlier {
    match database {
        "MySQL" => |column, hours| format!("{column} - interval {hours} hour"),
        "SQLite" => |column, hours| format!("{column} - {}", u64::from(hours) * 3_600_000_000),
        _ => |column, hours| format!("{column} - interval '{hours}' hour"),
    }
}

impl<DB: Dialect> fmt::Debug for Subject<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("database", &DB::NAME)
            .field("shards", &self.shards)
            .field("late_commits", &self.late_commits)
            .field("concurrent_writers", &self.concurrent_writers)
            .field("skips_locked", &self.skips_locked)
            .finish_non_exhaustive()
    }
}
