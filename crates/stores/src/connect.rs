//! Choosing a store by its URL.

use std::sync::Arc;

use posthaste_core::{Error, Result, TableName, store::Store};

use crate::Tables;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::failure::not_connected;

/// How long a call waits for a connection before it fails as unavailable.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const ACQUIRE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// How to connect.
#[derive(Debug, Clone)]
pub struct Options {
    /// The outbox's table.
    pub table: TableName,
    /// Most connections that the pool opens.
    pub connections: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { table: TableName::default(), connections: 8 }
    }
}

/// Opens the store that the URL names: `postgres://…`, `mysql://…` (also `mariadb://…`) or
/// `sqlite:…`. The message of an error never repeats the URL: it can hold a password.
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql", feature = "sqlite")),
    allow(unused_variables, reason = "without a database there is nothing to open")
)]
pub async fn connect(url: &str, options: &Options) -> Result<Arc<dyn Store>> {
    let scheme = url.split(':').next().unwrap_or_default();
    let tables = Tables::new(options.table.clone());
    match scheme {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            Ok(Arc::new(crate::postgres::PostgresStore::connect(url, tables, options).await?))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            Ok(Arc::new(crate::mysql::MySqlStore::connect(url, tables, options).await?))
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(crate::sqlite::SqliteStore::connect(url, tables, options).await?)),
        // Those that are compiled in have been matched above.
        #[allow(unreachable_patterns)]
        _ => Err(unknown(scheme)),
    }
}

/// All migrations of the database that the URL names, as SQL. Connects to nothing: of the URL only
/// the scheme counts. Called inside a Tokio runtime, as everything that holds a pool.
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql", feature = "sqlite")),
    allow(unused_variables, reason = "without a database there is nothing to open")
)]
pub fn migrations_sql(url: &str, options: &Options, shards: Option<u16>) -> Result<String> {
    let scheme = url.split(':').next().unwrap_or_default();
    let tables = Tables::new(options.table.clone());
    match scheme {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let nowhere = sqlx::postgres::PgConnectOptions::new_without_pgpass();
            unconnected::<sqlx::Postgres>(nowhere, tables).migrations_sql(shards)
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let nowhere = sqlx::mysql::MySqlConnectOptions::new();
            unconnected::<sqlx::MySql>(nowhere, tables).migrations_sql(shards)
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let nowhere = sqlx::sqlite::SqliteConnectOptions::new();
            unconnected::<sqlx::Sqlite>(nowhere, tables).migrations_sql(shards)
        }
        _ => Err(unknown(scheme)),
    }
}

/// A store that knows its dialect and would connect at its first query.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn unconnected<DB: crate::Dialect>(
    nowhere: <DB::Connection as sqlx::Connection>::Options,
    tables: Tables,
) -> Arc<dyn Store> {
    DB::store(sqlx::pool::PoolOptions::new().connect_lazy_with(nowhere), tables)
}

/// Opens a pool, or says why not: a pool tries again until its time is up, and then no longer
/// knows what was wrong.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) async fn open_pool<DB: sqlx::Database>(
    pool: sqlx::pool::PoolOptions<DB>,
    options: <DB::Connection as sqlx::Connection>::Options,
    doing: &'static str,
) -> Result<sqlx::Pool<DB>> {
    let error = match pool.connect_with(options.clone()).await {
        Err(error @ sqlx::Error::PoolTimedOut) => error,
        opened => return opened.map_err(not_connected::<DB>(doing)),
    };
    let again = <DB::Connection as sqlx::Connection>::connect_with(&options);
    let reason = match tokio::time::timeout(std::time::Duration::from_secs(1), again).await {
        Ok(Err(reason)) => reason,
        _ => error,
    };
    Err(not_connected::<DB>(doing)(reason))
}

/// Refuses a URL whose login is not percent-encoded: the rest of a password would be taken for a database's
/// name or a parameter, which drivers write into their logs.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn check_login(url: &str) -> Result<()> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    let mut names = query.split('&').map(|pair| pair.split('=').next().unwrap_or_default());
    if path.contains('@') || names.any(|name| name.contains('@')) {
        return Err(Error::invalid(
            "the database URL has an @ behind its host: percent-encode a password that has /, ? or # in \
             it, and an @ in the database's name as %40",
        ));
    }
    Ok(())
}

fn unknown(scheme: &str) -> Error {
    match scheme {
        "postgres" | "postgresql" | "mysql" | "mariadb" | "sqlite" => Error::invalid(format!(
            "support for {scheme} is not compiled in; build with the feature of that name"
        )),
        // A text without a scheme may be anything, a password included.
        _ if scheme.len() > 20 || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            Error::invalid(
                "a database URL begins with postgres://, mysql://, mariadb:// or sqlite:",
            )
        }
        _ => Error::invalid(format!(
            "database URL has the unknown scheme {scheme:?}; use postgres://, mysql://, \
             mariadb:// or sqlite:"
        )),
    }
}

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;

    #[test]
    fn a_login_that_is_not_encoded_is_refused_and_not_quoted() {
        for url in ["postgres://me:12/hush@host/db", "mysql://me:12?hush@host/db"] {
            let error = check_login(url).unwrap_err().to_string();
            assert!(error.contains("percent-encode") && !error.contains("hush"), "{error}");
        }
        for url in [
            "postgres://me:p%40ss@host:5432/db?sslmode=require",
            "postgres://host/db?user=me@company&host=/run/postgresql",
            "mysql://me:pass@host",
        ] {
            check_login(url).unwrap();
        }
        let error = unknown("hush@host/db").to_string();
        assert!(!error.contains("hush"), "{error}");
    }
}
