//! The first service of the README, word for word.

use posthaste::relay::{Config, Relay};
use posthaste::sqlx::{self, Sqlite, SqlitePool};
use posthaste::transports::log::{Format, LogTransport};
use posthaste::{Dialect, Event, Outbox, stores::Tables};
use std::sync::Arc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = SqlitePool::connect("sqlite:shop.db?mode=rwc").await?;
    sqlx::query("create table if not exists orders (total int)").execute(&pool).await?;
    let store = Sqlite::store(pool.clone(), Tables::new("outbox_event".parse()?));
    store.migrate(None).await?;

    let relay = Relay::new(store, Arc::new(LogTransport::stdout(Format::Text)), Config::default())?;
    relay.start().await?;
    let outbox = Outbox::new("outbox_event".parse()?).with_hot_path(relay.hot_path());

    let mut tx = outbox.begin(&pool).await?;
    let order = sqlx::query("insert into orders values (1999)").execute(tx.connection()).await?;
    let event = Event::builder("OrderPlaced")
        .aggregate("Order", order.last_insert_rowid())
        .payload("a book, by tomorrow");
    outbox.enqueue(&mut tx, event).await?;
    tx.commit().await?; // the order and its event, or neither

    tokio::signal::ctrl_c().await?;
    relay.stop().await?; // what is in flight ends, leases are released
    Ok(())
}
