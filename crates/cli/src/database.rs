//! Opening an outbox that must be there already.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use posthaste::{
    Error, ErrorKind, Result,
    store::Store,
    stores::{self, Options, Tables, postgres::PostgresStore},
};
use sqlx::sqlite::SqliteConnectOptions;

use crate::{config::OutboxSettings, failure};

/// Connects to an outbox and checks it: its number of shards comes along. Makes nothing, not even
/// a SQLite file, whatever the URL allows.
pub(crate) async fn open(outbox: &OutboxSettings) -> Result<(Arc<dyn Store>, u16)> {
    refuse_missing_file(outbox.url.expose())?;
    let store = connect(outbox).await?;
    let shards = store.check().await?;
    Ok((store, shards))
}

/// Connects, whatever the database holds.
pub(crate) async fn connect(outbox: &OutboxSettings) -> Result<Arc<dyn Store>> {
    let url = outbox.url.expose();
    failure::keep_secret(url);
    let options = options(outbox);
    match &outbox.listen_url {
        None => stores::connect(url, &options).await,
        Some(listen) => {
            failure::keep_secret(listen.expose());
            let tables = Tables::new(outbox.table.clone());
            let store = PostgresStore::connect(url, tables, &options).await?;
            Ok(Arc::new(store.with_listen_url(listen.expose())))
        }
    }
}

/// How to connect.
pub(crate) fn options(outbox: &OutboxSettings) -> Options {
    Options { table: outbox.table.clone(), ..Options::default() }
}

/// Refuses a SQLite file that is not there; connecting could make it.
pub(crate) fn refuse_missing_file(url: &str) -> Result<()> {
    match sqlite_file(url) {
        Some(file) if file.is_dir() => {
            Err(not_found(format!("{} is a folder, not a database file", file.display())))
        }
        Some(file) if !file.exists() => Err(not_found(format!(
            "database file {} is not there; check the path, or make it with `posthaste migrate`",
            file.display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses a SQLite file whose folder is not there: nobody makes that.
pub(crate) fn refuse_missing_folder(url: &str) -> Result<()> {
    let file = sqlite_file(url);
    match file.as_deref().and_then(Path::parent) {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(not_found(format!("folder {} is not there; make it first", folder.display())))
        }
        _ => Ok(()),
    }
}

/// The file that a URL names, unless it is another database's, one in memory, or wrong in a way
/// that is the store's to refuse.
fn sqlite_file(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?.trim_start_matches("//");
    if path.is_empty() || path.starts_with(":memory:") || path.contains("mode=memory") {
        return None;
    }
    let options = SqliteConnectOptions::from_str(url).ok()?;
    Some(options.get_filename().to_owned())
}

fn not_found(message: String) -> Error {
    Error::new(ErrorKind::NotFound, message)
}
