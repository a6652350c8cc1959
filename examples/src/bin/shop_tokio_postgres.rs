//! A shop on tokio-postgres with a pool of deadpool's: an order and its event in one transaction,
//! and the relay, which has a pool of its own, in the same process.

#[path = "../shop.rs"]
mod shop;

use std::sync::Arc;

use posthaste::{
    PostgresOutbox,
    deadpool_postgres::{Manager, Pool},
    stores::{Options, Tables, postgres::PostgresStore},
    tokio_postgres::NoTls,
};
use shop::{BoxedError, Order};

#[tokio::main]
async fn main() -> Result<(), BoxedError> {
    let url = std::env::args().nth(1).ok_or("give the database's URL: postgres://…")?;
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls)).build()?;
    pool.get().await?.batch_execute(shop::ORDERS).await?;
    let tables = Tables::new("outbox_event".parse()?);
    let store = PostgresStore::connect(&url, tables.clone(), &Options::default()).await?;
    let relay = shop::relay(Arc::new(store)).await?;
    let outbox = PostgresOutbox::new(tables.name().clone()).with_hot_path(relay.hot_path());
    shop::serve(relay, move |order| place(pool.clone(), outbox.clone(), order)).await
}

async fn place(pool: Pool, outbox: PostgresOutbox, order: Order) -> Result<i64, BoxedError> {
    let mut client = pool.get().await?;
    let mut tx = client.transaction().await?;
    let insert = "insert into orders (item, quantity) values ($1, $2) returning id";
    let id = tx.query_one(insert, &[&order.item, &order.quantity]).await?.try_get(0)?;
    outbox.enqueue(&mut tx, order.placed(id)?).await?;
    order.pay()?;
    tx.commit().await?;
    outbox.wake();
    Ok(id)
}
