//! A table for each module: two outboxes in one database. One transaction writes to both, and each
//! is delivered by a relay of its own.

use std::sync::Arc;

use posthaste::{
    Dialect, Envelope, Event, Outbox, TableName,
    relay::{Config, Relay},
    stores::Tables,
    transports::handlers::Handlers,
};
use posthaste_examples::{Folder, Result, sqlite};
use sqlx::{Sqlite, SqlitePool};

/// The relay of one module, with the module's own handler.
async fn relay(pool: &SqlitePool, table: &TableName, event_type: &'static str) -> Result<Relay> {
    let store = Sqlite::store(pool.clone(), Tables::new(table.clone()));
    store.migrate(None).await?;
    let module = table.to_string();
    let handlers = Handlers::new(&module).on("Order", event_type, move |envelope: Envelope| {
        let order = envelope.event.aggregate_id().unwrap_or_default().to_owned();
        println!("{module}: {event_type} {order}");
        async { Ok(()) }
    })?;
    Ok(Relay::new(store, Arc::new(handlers), Config::default())?)
}

#[tokio::main]
async fn main() -> Result {
    let folder = Folder::open()?;
    let pool = sqlite(&folder.file("shop.db")).await?;
    let (orders_table, billing_table): (TableName, TableName) =
        ("orders_outbox".parse()?, "billing_outbox".parse()?);
    let orders_relay = relay(&pool, &orders_table, "OrderPlaced").await?;
    let billing_relay = relay(&pool, &billing_table, "InvoiceDue").await?;
    let (orders, billing) = (Outbox::new(orders_table), Outbox::new(billing_table));

    for order in 1..=2 {
        let mut tx = orders.begin(&pool).await?;
        let placed = Event::builder("OrderPlaced").aggregate("Order", order).payload(&());
        orders.enqueue(&mut tx, placed).await?;
        let due = Event::builder("InvoiceDue").aggregate("Order", order).payload(&());
        billing.enqueue(&mut tx, due).await?;
        tx.commit().await?;
    }

    let delivered = orders_relay.relay_once().await?.delivered;
    println!("orders delivered {delivered}");
    let delivered = billing_relay.relay_once().await?.delivered;
    println!("billing delivered {delivered}");
    pool.close().await;
    Ok(())
}
