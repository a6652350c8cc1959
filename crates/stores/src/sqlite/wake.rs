//! Learning of commits: SQLite counts them for every connection but the one that made them.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Listener, Wake},
};
use sqlx::{ConnectOptions, SqliteConnection};
use tokio::time::sleep;

use super::SqliteStore;
use crate::failure::failed;

/// How often the number of commits is asked for. It stands in shared memory: an answer costs some
/// microseconds and no disk.
const INTERVAL: Duration = Duration::from_millis(5);

#[async_trait]
impl Wake for SqliteStore {
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        // Not from the pool: the listener keeps its connection. Two hundred statements a second
        // are nobody's business in a log.
        let options = (*self.reader.connect_options()).clone().disable_statement_logging();
        let mut connection = options.connect().await.map_err(failed("listening"))?;
        let seen = data_version(&mut connection).await?;
        Ok(Some(Box::new(SqliteListener { connection, seen })))
    }

    /// Nothing to do: the commit itself was the signal.
    async fn notify(&self) -> Result<bool> {
        Ok(true)
    }

    /// Commits a write that changes nothing. SQLite leaves a page alone that is written as it was, and a
    /// commit of no page does not count: so a number changes, and changes back.
    async fn wake(&self) -> Result<bool> {
        const DOING: &str = "waking the relays";
        const WRITES: [&str; 2] = [
            "update {meta} set purge_position = purge_position + 1 where id = 1",
            "update {meta} set purge_position = purge_position - 1 where id = 1",
        ];

        let mut transaction = self.begin(DOING).await?;
        for write in WRITES {
            let write = sqlx::query(self.tables.sql(write));
            write.execute(&mut *transaction).await.map_err(failed(DOING))?;
        }
        transaction.commit().await.map_err(failed(DOING))?;
        Ok(true)
    }
}

struct SqliteListener {
    /// Closed with the listener.
    connection: SqliteConnection,
    /// The number at the last wake-up. A change while nobody waited is found by the next wait.
    seen: i64,
}

#[async_trait]
impl Listener for SqliteListener {
    async fn wait(&mut self) -> Result<()> {
        loop {
            let version = data_version(&mut self.connection).await?;
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            sleep(INTERVAL).await;
        }
    }
}

async fn data_version(connection: &mut SqliteConnection) -> Result<i64> {
    sqlx::query_scalar("pragma data_version")
        .fetch_one(connection)
        .await
        .map_err(failed("listening"))
}
