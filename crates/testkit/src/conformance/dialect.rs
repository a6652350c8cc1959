//! Databases that sqlx speaks to, with the stores of `posthaste-stores`.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use posthaste_core::{Enqueued, Error, ErrorKind, Event, Result, TableName, store::Store};
use posthaste_stores::{Dialect, Tables};
use sqlx::{Connection, Executor, Pool, Transaction};

use super::{Database, Edit, PlainEvent, Sql, Subject, Writer};
use crate::tables::query;

/// Runs plain SQL on a connection and gives how many rows came back.
type Query<DB> = for<'c> fn(
    &'c mut <DB as sqlx::Database>::Connection,
    String,
) -> BoxFuture<'c, Result<usize, sqlx::Error>>;

type MakeStore<DB> = Box<dyn Fn(Pool<DB>, Tables) -> Arc<dyn Store> + Send + Sync>;

impl Subject {
    /// The dialect's own store on this pool, with 8 shards, late commits and concurrent writers.
    /// The pool should give at least 10 connections: cases hold several transactions open.
    ///
    /// ```no_run
    /// # use posthaste_stores::Dialect;
    /// # use posthaste_testkit::conformance::Subject;
    /// # use sqlx::{Executor, Pool};
    /// # fn on<DB: Dialect>(pool: Pool<DB>) -> Subject
    /// # where for<'c> &'c mut DB::Connection: Executor<'c, Database = DB> {
    /// Subject::new(pool)                  // PostgreSQL, MySQL
    /// # }
    /// # fn on_sqlite<DB: Dialect>(pool: Pool<DB>) -> Subject
    /// # where for<'c> &'c mut DB::Connection: Executor<'c, Database = DB> {
    /// Subject::new(pool).single_writer()  // SQLite
    /// # }
    /// ```
    pub fn new<DB: Dialect>(pool: Pool<DB>) -> Self
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    {
        Self::on(SqlxDatabase::new(pool))
    }
}

/// A database that sqlx speaks to, with the tables of `posthaste-stores`. [`Subject::new`] makes
/// one where nothing is to be set.
pub struct SqlxDatabase<DB: Dialect> {
    pool: Pool<DB>,
    query: Query<DB>,
    /// SQL for the time in a column, so many hours later, or earlier when they are negative.
    moved: fn(&str, i64) -> String,
    make_store: MakeStore<DB>,
}

impl<DB: Dialect> SqlxDatabase<DB> {
    /// The dialect's own store on this pool.
    pub fn new(pool: Pool<DB>) -> Self
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    {
        Self {
            pool,
            query: query::<DB>,
            moved: moved_by_name(DB::NAME),
            make_store: Box::new(DB::store),
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

    /// How this database's SQL says that a column's time is so many hours later, or earlier when
    /// they are negative, for cases that need old events. Known for PostgreSQL, MySQL and `SQLite`.
    pub fn times_moved_with(mut self, moved: fn(&str, i64) -> String) -> Self {
        self.moved = moved;
        self
    }

    /// The statement that makes a change.
    fn statement(&self, edit: Edit<'_>) -> String {
        let later = |column: &str, hours: u32| {
            format!("{column} = {}", (self.moved)(column, i64::from(hours)))
        };
        match edit {
            Edit::Age { id, hours } => {
                let columns = ["created_at", "sent_at", "dead_at", "discarded_at"].map(|column| {
                    format!("{column} = {}", (self.moved)(column, -i64::from(hours)))
                });
                format!("update {{events}} set {} where event_id = '{id}'", columns.join(", "))
            }
            Edit::Delete { sequences } => {
                format!("delete from {{events}} where sequence in ({})", list(sequences))
            }
            Edit::MarkSent => "update {events} set sent_at = created_at".to_owned(),
            Edit::PostponeRowLease { sequence, hours } => {
                let set = later("locked_until", hours);
                format!("update {{events}} set {set} where sequence = {sequence}")
            }
            Edit::PostponeShardLeases { hours } => {
                format!("update {{shards}} set {}", later("locked_until", hours))
            }
            Edit::PostponeHeartbeat { owner, hours } => {
                let set = later("heartbeat_at", hours);
                format!("update {{relays}} set {set} where owner = '{owner}'")
            }
            Edit::SetVersion(version) => format!("update {{meta}} set version = {version}"),
            Edit::Insert(event) => insert(event),
        }
    }
}

fn moved_by_name(database: &str) -> fn(&str, i64) -> String {
    match database {
        "MySQL" => |column, hours| format!("{column} + interval {hours} hour"),
        "SQLite" => |column, hours| format!("{column} + {}", hours * 3_600_000_000),
        _ => |column, hours| format!("{column} + interval '{hours}' hour"),
    }
}

fn list(sequences: &[i64]) -> String {
    sequences.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

/// An insert with the columns that are set.
fn insert(event: &PlainEvent) -> String {
    let columns = [
        ("event_id", Some(event.id.to_string())),
        ("event_type", Some("ByHand".to_owned())),
        ("payload", Some(event.payload.clone())),
        ("headers", event.headers.clone()),
        ("tenant", event.tenant.clone()),
        ("aggregate_type", event.aggregate_type.clone()),
        ("aggregate_id", event.aggregate_id.clone()),
        ("ordering_key", event.ordering_key.clone()),
    ];
    let set = columns.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
    let (names, values): (Vec<_>, Vec<_>) =
        set.map(|(name, value)| (name, format!("'{}'", value.replace('\'', "''")))).unzip();
    format!("insert into {{events}} ({}) values ({})", names.join(", "), values.join(", "))
}

#[async_trait]
impl<DB: Dialect> Database for SqlxDatabase<DB> {
    fn store(&self, outbox: &TableName) -> Arc<dyn Store> {
        (self.make_store)(self.pool.clone(), Tables::new(outbox.clone()))
    }

    async fn begin(&self, outbox: &TableName) -> Result<Box<dyn Writer>> {
        Ok(Box::new(SqlxWriter {
            transaction: self.pool.begin().await.map_err(failed)?,
            tables: Tables::new(outbox.clone()),
            query: self.query,
        }))
    }

    async fn edit(&self, outbox: &TableName, edit: Edit<'_>) -> Result<()> {
        let sql = self.fill(outbox, &self.statement(edit));
        self.run(sql).await.map(drop)
    }

    fn sql(&self) -> Option<&dyn Sql> {
        Some(self)
    }

    fn has_accounts(&self) -> bool {
        DB::NAME != "SQLite"
    }

    async fn drop_outbox(&self, outbox: &TableName) -> Result<()> {
        let tables = Tables::new(outbox.clone());
        let business = tables.fill("drop table if exists {events}_business");
        let mut connection = self.pool.acquire().await.map_err(failed)?;
        let mut outcome = Ok(());
        // Each as far as it can be dropped.
        for drop in tables.drops(DB::NAME).into_iter().chain([business]) {
            outcome =
                outcome.and((self.query)(&mut connection, drop).await.map_err(failed).map(|_| ()));
        }
        outcome
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

#[async_trait]
impl<DB: Dialect> Sql for SqlxDatabase<DB> {
    fn dialect(&self) -> &'static str {
        DB::NAME
    }

    fn fill(&self, outbox: &TableName, template: &str) -> String {
        Tables::new(outbox.clone()).fill(template)
    }

    async fn run(&self, sql: String) -> Result<usize> {
        let mut connection = self.pool.acquire().await.map_err(failed)?;
        (self.query)(&mut connection, sql).await.map_err(failed)
    }

    async fn in_transaction(&self) -> Result<[bool; 5]> {
        let mut connection = self.pool.acquire().await.map_err(failed)?;
        let before = DB::in_transaction(&mut connection);
        let mut transaction = connection.begin().await.map_err(failed)?;
        let inside = DB::in_transaction(&mut transaction);
        let mut savepoint = transaction.begin().await.map_err(failed)?;
        let deeper = DB::in_transaction(&mut savepoint);
        savepoint.commit().await.map_err(failed)?;
        let out_again = DB::in_transaction(&mut transaction);
        transaction.commit().await.map_err(failed)?;
        let after = DB::in_transaction(&mut connection);
        Ok([before, inside, deeper, out_again, after])
    }
}

struct SqlxWriter<DB: Dialect> {
    transaction: Transaction<'static, DB>,
    tables: Tables,
    query: Query<DB>,
}

#[async_trait]
impl<DB: Dialect> Writer for SqlxWriter<DB> {
    async fn enqueue(&mut self, events: &[Event]) -> Result<Vec<Enqueued>> {
        DB::enqueue(&mut self.transaction, &self.tables, events).await
    }

    async fn enqueue_and_undo(&mut self, events: &[Event]) -> Result<()> {
        let mut savepoint = self.transaction.begin().await.map_err(failed)?;
        DB::enqueue(&mut savepoint, &self.tables, events).await?;
        savepoint.rollback().await.map_err(failed)
    }

    async fn count(&mut self) -> Result<usize> {
        self.sql(self.tables.fill("select 1 from {events}")).await
    }

    async fn lock(&mut self, sequences: &[i64]) -> Result<()> {
        for sequence in sequences {
            // One statement each: MySQL can walk over a small table for several, and locks all that
            // it meets.
            let update = format!("update {{events}} set attempts = 1 where sequence = {sequence}");
            self.sql(self.tables.fill(&update)).await?;
        }
        Ok(())
    }

    async fn sql(&mut self, sql: String) -> Result<usize> {
        (self.query)(&mut self.transaction, sql).await.map_err(failed)
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.transaction.commit().await.map_err(failed)
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        self.transaction.rollback().await.map_err(failed)
    }
}

/// Cases that look at the kind of an error ask the store or `enqueue`, not the driver.
fn failed(error: sqlx::Error) -> Error {
    Error::new(ErrorKind::Database, error.to_string()).with_source(error)
}

impl<DB: Dialect> fmt::Debug for SqlxDatabase<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxDatabase").field("dialect", &DB::NAME).finish_non_exhaustive()
    }
}
