//! The tables that a bench makes, fills and drops: its own, and never anybody else's.

use std::{marker::PhantomData, path::PathBuf, sync::Arc};

use posthaste::{
    Error, Result, TableName,
    relay::Config,
    store::{RelayOrdering, Store},
    stores::{self, Options, Tables},
};
use sqlx::{Connection, Pool, pool::PoolOptions};

use super::{
    args::Common,
    report::progress,
    target::{Content, Target, failed},
};

/// The business table of `enqueue`.
const ORDERS: &str = "{events}_orders";

/// A database with room for one bench.
pub(super) struct Ground<DB: Target> {
    pub(super) url: String,
    /// The outbox that most benches fill.
    pub(super) tables: Tables,
    /// A second one, for the large backlog of `growth`.
    pub(super) large: Tables,
    pub(super) content: Content,
    pub(super) ordering: RelayOrdering,
    pub(super) batch: usize,
    /// What the server calls itself.
    pub(super) version: String,
    /// A SQLite file that was not there before.
    made_file: Option<PathBuf>,
    database: PhantomData<fn() -> DB>,
}

impl<DB: Target> Ground<DB> {
    /// Takes names that nobody uses. A name of the caller's that could be somebody's is refused.
    pub(super) async fn claim(common: &Common) -> Result<Self> {
        let name = match &common.table {
            Some(name) if name.bare().starts_with("bench_") => name.clone(),
            Some(name) => {
                return Err(Error::invalid(format!(
                    "table {name} is not a bench's own: a bench drops its tables; give a name \
                     that starts with bench_, or none"
                )));
            }
            None => format!("bench_{:08x}_outbox", fastrand::u32(..)).parse()?,
        };
        let large: TableName = name.with_suffix("_large").parse()?;
        let url = DB::url(&common.url);
        let mut ground = Self {
            made_file: DB::missing_file(&url),
            url,
            tables: Tables::new(name),
            large: Tables::new(large),
            content: Content { keys: common.keys, types: 1, payload: payload(common.payload) },
            ordering: common.ordering,
            batch: common.batch as usize,
            version: String::new(),
            database: PhantomData,
        };
        // Connects as a relay does: a URL that is no good is refused in the same words.
        let store = ground.store(&ground.tables).await?;
        if ground.made_file.is_none() {
            ground.refuse_taken().await?;
        }
        store.migrate(None).await?;
        ground.version =
            DB::version(&mut ground.connection().await?).await.map_err(failed("connecting"))?;
        Ok(ground)
    }

    async fn refuse_taken(&self) -> Result<()> {
        let mut connection = self.connection().await?;
        for tables in [&self.tables, &self.large] {
            for table in Tables::ALL.into_iter().chain([ORDERS]) {
                let sql = tables.fill(&format!("select 1 from {table} where 1 = 0"));
                match DB::execute(&mut connection, sql).await {
                    Err(error) if DB::is_missing_table(&error) => {}
                    Err(error) => return Err(failed("looking for the table")(error)),
                    Ok(()) => {
                        return Err(Error::invalid(format!(
                            "table {} is there already and may be somebody's: a bench makes its \
                             own; give another name, or none",
                            tables.fill(table)
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// The relay's side of an outbox, opened as `posthaste relay` opens it.
    pub(super) async fn store(&self, tables: &Tables) -> Result<Arc<dyn Store>> {
        let options = Options { table: tables.name().clone(), ..Options::default() };
        stores::connect(&self.url, &options).await
    }

    /// A connection outside of all pools.
    pub(super) async fn connection(&self) -> Result<DB::Connection> {
        DB::Connection::connect(&self.url).await.map_err(failed("connecting"))
    }

    /// A pool such as an application has.
    pub(super) async fn pool(&self, connections: u32) -> Result<Pool<DB>> {
        let options = PoolOptions::<DB>::new().max_connections(connections);
        options.connect(&self.url).await.map_err(failed("connecting"))
    }

    /// The settings of a relay under measurement: the defaults, and what the bench was told.
    pub(super) fn config(&self, delete: bool) -> Config {
        let mut config = Config { ordering: self.ordering, batch: self.batch, ..Config::default() };
        if delete {
            config.housekeeping.retention.sent = std::time::Duration::ZERO;
        }
        config
    }

    /// Makes the outbox anew with so many pending events. Whoever is measured next starts from the
    /// same state as whoever was measured last.
    pub(super) async fn refill(&self, tables: &Tables, events: u64) -> Result<()> {
        progress(format_args!("filling {} with {events} events", tables.name()));
        let mut connection = self.connection().await?;
        drop_tables::<DB>(&mut connection, tables).await?;
        // Before the filling, not after it: an event is usually sent in the same checkpoint cycle
        // in which it was written, and its page goes into the log once.
        DB::checkpoint(&mut connection).await.map_err(failed("writing a checkpoint"))?;
        self.store(tables).await?.migrate(None).await?;
        DB::fill(&mut connection, tables, &self.content, events)
            .await
            .map_err(failed("filling the table"))?;
        DB::tidy(&mut connection, tables).await.map_err(failed("tidying the table"))
    }

    /// Makes the business table of `enqueue`.
    pub(super) async fn make_orders(&self) -> Result<()> {
        let sql = "create table {events}_orders (
            id bigint not null primary key, customer varchar(100) not null, total bigint not null)";
        DB::execute(&mut self.connection().await?, self.tables.fill(sql))
            .await
            .map_err(failed("making the business table"))
    }

    /// Drops everything that was made.
    pub(super) async fn leave(&self) -> Result<()> {
        let mut connection = self.connection().await?;
        drop_tables::<DB>(&mut connection, &self.tables).await?;
        drop_tables::<DB>(&mut connection, &self.large).await?;
        let _ = connection.close().await;
        if let Some(file) = &self.made_file {
            for suffix in ["", "-wal", "-shm"] {
                let mut path = file.clone().into_os_string();
                path.push(suffix);
                // What SQLite removed itself is not there any more.
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(())
    }
}

async fn drop_tables<DB: Target>(connection: &mut DB::Connection, tables: &Tables) -> Result<()> {
    let orders = tables.fill(&format!("drop table if exists {ORDERS}"));
    for sql in tables.drops(DB::NAME).into_iter().chain([orders]) {
        DB::execute(connection, sql).await.map_err(failed("dropping the bench's tables"))?;
    }
    Ok(())
}

/// JSON of this many bytes, random so that no database can compress it away.
fn payload(bytes: usize) -> Vec<u8> {
    let around = r#"{"note":""}"#.len();
    let text = |count| -> String { (0..count).map(|_| fastrand::alphanumeric()).collect() };
    match bytes.checked_sub(around) {
        Some(inner) => format!(r#"{{"note":"{}"}}"#, text(inner)).into_bytes(),
        None => "1".repeat(bytes).into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_of_the_length_asked_for() {
        for bytes in [1, 10, 11, 12, 300, 5000] {
            let payload = payload(bytes);
            assert_eq!(payload.len(), bytes);
            assert!(serde_json::from_slice::<serde_json::Value>(&payload).is_ok(), "{bytes}");
        }
    }
}
