//! Where the demo works: a database file of its own that is removed at the end, or tables of its
//! own in the database that `--url` names, dropped at the end.

use std::{future::Future, path::PathBuf};

use posthaste::{Dialect, Error, ErrorKind, Result, stores::Tables};
use posthaste_testkit::tables::drop_outbox;
use sqlx::{Database, Executor, MySql, Pool, Postgres, Sqlite, pool::PoolOptions};

/// A folder that is removed with everything in it when it is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self> {
        let name = format!("posthaste-demo-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(|error| {
            let message = format!("folder {} cannot be made", path.display());
            Error::new(ErrorKind::State, message).with_source(error)
        })?;
        Ok(Self(path))
    }

    pub(super) fn url(&self) -> String {
        format!("sqlite:{}", self.0.join("shop.db").display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is the temporary folder's to lose.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Connections of the shop's own, to where the store is connected.
pub(super) async fn shop_pool<DB: Database>(store: &Pool<DB>) -> Result<Pool<DB>> {
    PoolOptions::new()
        .max_connections(8)
        .connect_with((*store.connect_options()).clone())
        .await
        .map_err(failed("the shop could not connect"))
}

type Wrote = sqlx::Result<()>;

/// The shop's own table beside the outbox, in each dialect.
pub(super) trait ShopDatabase: Dialect {
    /// Writes a new order.
    fn place<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        order: i64,
    ) -> impl Future<Output = Wrote> + Send + 'c;

    /// Writes an order's next state.
    fn advance<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        order: i64,
        state: &'c str,
    ) -> impl Future<Output = Wrote> + Send + 'c;
}

macro_rules! shop_database {
    ($database:ty, $place:literal, $advance:literal) => {
        impl ShopDatabase for $database {
            async fn place<'c>(
                connection: &'c mut Self::Connection,
                tables: &'c Tables,
                order: i64,
            ) -> Wrote {
                sqlx::query(tables.sql($place)).bind(order).execute(connection).await.map(drop)
            }

            async fn advance<'c>(
                connection: &'c mut Self::Connection,
                tables: &'c Tables,
                order: i64,
                state: &'c str,
            ) -> Wrote {
                let query = sqlx::query(tables.sql($advance)).bind(state).bind(order);
                query.execute(connection).await.map(drop)
            }
        }
    };
}

shop_database!(
    Sqlite,
    "insert into {bare}_orders (id, state) values (?, 'OrderPlaced')",
    "update {bare}_orders set state = ? where id = ?"
);

shop_database!(
    Postgres,
    "insert into {bare}_orders (id, state) values ($1, 'OrderPlaced')",
    "update {bare}_orders set state = $1 where id = $2"
);

shop_database!(
    MySql,
    "insert into {bare}_orders (id, state) values (?, 'OrderPlaced')",
    "update {bare}_orders set state = ? where id = ?"
);

const CREATE: &str =
    "create table {bare}_orders (id bigint primary key, state varchar(40) not null)";

const DROP: &str = "drop table if exists {bare}_orders";

/// Makes the shop's table.
pub(super) async fn create<DB: Database>(pool: &Pool<DB>, tables: &Tables) -> Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    execute(pool, tables, CREATE).await.map_err(failed("making the demo's tables failed"))
}

/// Drops the shop's table and the outbox.
pub(super) async fn remove<DB: Database>(pool: &Pool<DB>, tables: &Tables) -> Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let failed = || failed("dropping the demo's tables failed");
    execute(pool, tables, DROP).await.map_err(failed())?;
    drop_outbox(pool, tables).await.map_err(failed())
}

async fn execute<DB: Database>(
    pool: &Pool<DB>,
    tables: &Tables,
    statement: &'static str,
) -> sqlx::Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let mut connection = pool.acquire().await?;
    connection.execute(sqlx::raw_sql(tables.sql(statement))).await.map(drop)
}

fn failed(message: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| Error::new(ErrorKind::Database, message).with_source(error)
}
