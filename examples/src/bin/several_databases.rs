//! Two databases in one process: each has its own outbox and its own relay, and the hot path of one
//! knows nothing of the other.

use std::sync::Arc;

use posthaste::{
    Dialect, Envelope, Event, Outbox,
    relay::{Config, Relay},
    stores::Tables,
    transports::handlers::Handlers,
};
use posthaste_examples::{Folder, Result, sqlite};
use sqlx::{Sqlite, SqlitePool};
use tokio::sync::mpsc;

/// One database with what belongs to it.
struct Site {
    pool: SqlitePool,
    outbox: Outbox<Sqlite>,
    relay: Relay,
}

impl Site {
    async fn open(
        folder: &Folder,
        name: &'static str,
        delivered: mpsc::UnboundedSender<String>,
    ) -> Result<Self> {
        let pool = sqlite(&folder.file(&format!("{name}.db"))).await?;
        let store = Sqlite::store(pool.clone(), Tables::new("outbox_event".parse()?));
        store.migrate(None).await?;
        let handlers =
            Handlers::new(name).on("Order", "OrderPlaced", move |envelope: Envelope| {
                let order = envelope.event.aggregate_id().unwrap_or_default();
                let told = delivered.send(format!("{name}: order {order}"));
                async { Ok(told?) }
            })?;
        // Both tables have the same name: without one of its own each relay's metrics would be the other's, too.
        let config = Config { outbox: name.to_owned(), ..Config::default() };
        let relay = Relay::new(store, Arc::new(handlers), config)?;
        relay.start().await?;
        let outbox = Outbox::new("outbox_event".parse()?).with_hot_path(relay.hot_path());
        Ok(Self { pool, outbox, relay })
    }

    async fn place(&self, order: u64) -> Result {
        let mut tx = self.outbox.begin(&self.pool).await?;
        let placed = Event::builder("OrderPlaced").aggregate("Order", order).payload(&());
        self.outbox.enqueue(&mut tx, placed).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn close(self) -> Result {
        self.relay.stop().await?;
        self.pool.close().await;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result {
    let folder = Folder::open()?;
    let (sender, mut delivered) = mpsc::unbounded_channel();
    let bern = Site::open(&folder, "bern", sender.clone()).await?;
    let oslo = Site::open(&folder, "oslo", sender).await?;
    for order in 1..=2 {
        bern.place(order).await?;
        oslo.place(10 * order).await?;
    }
    for _ in 0..4 {
        if let Some(line) = delivered.recv().await {
            println!("{line}");
        }
    }
    bern.close().await?;
    oslo.close().await
}
