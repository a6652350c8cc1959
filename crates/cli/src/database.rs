//! Opening an outbox that must be there already.

use std::{path::Path, str::FromStr, sync::Arc};

use posthaste::{Error, ErrorKind, Result, store::Store, stores};
use sqlx::sqlite::SqliteConnectOptions;

use crate::args::DatabaseArgs;

/// Connects to an outbox and checks it: its number of shards comes along. Makes nothing, not even
/// a SQLite file, whatever the URL allows.
pub(crate) async fn open(database: &DatabaseArgs) -> Result<(Arc<dyn Store>, u16)> {
    refuse_missing_file(&database.url)?;
    let store = stores::connect(&database.url, &database.options()).await?;
    let shards = store.check().await?;
    Ok((store, shards))
}

/// Refuses a SQLite file that is not there; connecting could make it.
pub(crate) fn refuse_missing_file(url: &str) -> Result<()> {
    if !url.starts_with("sqlite:") || url.contains("mode=memory") {
        return Ok(());
    }
    // A URL that cannot be read is the store's to refuse.
    let Ok(options) = SqliteConnectOptions::from_str(url) else { return Ok(()) };
    let file: &Path = options.get_filename();
    if file.exists() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!(
            "database file {} is not there; check the path, or make it with `posthaste migrate`",
            file.display()
        ),
    ))
}
