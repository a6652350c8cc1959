//! What the examples share: a folder for their databases.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};

/// What an example's `main` gives.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Where an example keeps its databases: the folder named on the command line, or a new one that is
/// removed at the end.
pub struct Folder {
    path: PathBuf,
    temporary: bool,
}

impl Folder {
    /// The folder of this run.
    pub fn open() -> io::Result<Self> {
        let named = env::args_os().nth(1).map(PathBuf::from);
        let temporary = named.is_none();
        let path = named.unwrap_or_else(|| {
            env::temp_dir().join(format!("posthaste-example-{}", uuid::Uuid::now_v7()))
        });
        fs::create_dir_all(&path)?;
        Ok(Self { path, temporary })
    }

    /// The place of this file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Opens a database of `SQLite`, or makes it.
pub async fn sqlite(file: &Path) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    Ok(SqlitePool::connect_with(options).await?)
}
