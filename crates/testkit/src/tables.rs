//! Outboxes that nobody else uses: unique names, and an end for all their tables.

use futures_util::future::BoxFuture;
use posthaste_stores::Tables;
use sqlx::{AssertSqlSafe, Database, Executor, Pool};

use crate::names;

/// An outbox name that no other test has: `prefix_` and 16 random characters. The prefix says in a
/// database full of leftovers whose they are.
///
/// # Panics
///
/// When the prefix is not the beginning of a table name (see [`TableName`](posthaste_core::TableName)) of at
/// most 20 characters.
pub fn unique(prefix: &str) -> Tables {
    Tables::new(names::unique(prefix))
}

/// Drops the tables of an outbox, as far as they are there.
pub async fn drop_outbox<DB: Database>(pool: &Pool<DB>, tables: &Tables) -> Result<(), sqlx::Error>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let mut connection = pool.acquire().await?;
    for sql in tables.drops(DB::NAME) {
        query::<DB>(&mut connection, sql).await?;
    }
    Ok(())
}

/// Runs plain SQL, any number of statements, as an operator at a prompt would.
pub async fn run<DB: Database>(pool: &Pool<DB>, sql: String) -> Result<(), sqlx::Error>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let mut connection = pool.acquire().await?;
    query::<DB>(&mut connection, sql).await.map(drop)
}

/// Runs plain SQL, any number of statements, and gives how many rows came back.
pub(crate) fn query<DB: Database>(
    connection: &mut DB::Connection,
    sql: String,
) -> BoxFuture<'_, Result<usize, sqlx::Error>>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    Box::pin(async move {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        Ok(rows.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_outboxes_never_share_a_name() {
        let names: std::collections::HashSet<String> =
            (0..1000).map(|_| unique("t").name().qualified()).collect();
        assert_eq!(names.len(), 1000);
    }

    #[test]
    fn the_longest_prefix_leaves_room_for_the_suffixes() {
        assert_eq!(unique(&"p".repeat(20)).name().bare().len(), 37);
    }
}
