//! A shop on diesel-async: an order and its event in one transaction, and the relay, which has a
//! pool of its own, in the same process. Pure Rust: it needs no libpq.

#[path = "../shop.rs"]
mod shop;

use std::sync::Arc;

use diesel::ExpressionMethods;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use posthaste::{
    PostgresOutbox,
    stores::{Options, Tables, postgres::PostgresStore},
};
use shop::{BoxedError, Order};
use tokio::sync::Mutex;

diesel::table! {
    /// What was ordered.
    orders (id) {
        /// Given by the database.
        id -> BigInt,
        /// What.
        item -> Text,
        /// How many.
        quantity -> Integer,
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxedError> {
    let url = std::env::args().nth(1).ok_or("give the database's URL: postgres://…")?;
    let mut connection = AsyncPgConnection::establish(&url).await?;
    connection.batch_execute(shop::ORDERS).await?;
    let tables = Tables::new("outbox_event".parse()?);
    let store = PostgresStore::connect(&url, tables.clone(), &Options::default()).await?;
    let relay = shop::relay(Arc::new(store)).await?;
    let outbox = PostgresOutbox::new(tables.name().clone()).with_hot_path(relay.hot_path());
    // One connection is enough for a small shop; diesel-async has pools for a larger one.
    let connection = Arc::new(Mutex::new(connection));
    let place = move |order: Order| {
        let (connection, outbox) = (Arc::clone(&connection), outbox.clone());
        async move { place(&mut *connection.lock().await, outbox, order).await }
    };
    shop::serve(relay, place).await
}

async fn place(
    connection: &mut AsyncPgConnection,
    outbox: PostgresOutbox,
    order: Order,
) -> Result<i64, BoxedError> {
    let placed = connection.transaction(async |connection| {
        let id: i64 = diesel::insert_into(orders::table)
            .values((orders::item.eq(&order.item), orders::quantity.eq(order.quantity)))
            .returning(orders::id)
            .get_result(connection)
            .await?;
        outbox.enqueue(connection, order.placed(id)?).await?;
        order.pay()?;
        Ok::<_, BoxedError>(id)
    });
    let id = placed.await?;
    outbox.wake();
    Ok(id)
}
