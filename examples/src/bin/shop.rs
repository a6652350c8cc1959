//! A shop on sqlx: an order and its event in one transaction, and the relay in the same process.
//!
//! ```sh
//! cargo run -p posthaste-examples --bin shop -- postgres://…
//! cargo run -p posthaste-examples --bin shop -- --sqlite shop.db
//! curl -d '{"item": "book", "quantity": 1}' -H 'content-type: application/json' http://127.0.0.1:PORT/orders
//! ```

#[path = "../shop.rs"]
mod shop;

use posthaste::{Dialect, Outbox, stores::Tables};
use shop::{BoxedError, Order};
use sqlx::{
    PgPool, Postgres, Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};

#[tokio::main]
async fn main() -> Result<(), BoxedError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [flag, file] if flag == "--sqlite" => on_sqlite(file).await,
        [url] => on_postgres(url).await,
        _ => Err("shop postgres://… | shop --sqlite FILE".into()),
    }
}

/// The same code for both databases; only sqlx's types differ.
macro_rules! place {
    ($outbox:expr, $pool:expr, $order:expr) => {{
        let mut tx = $outbox.begin(&$pool).await?;
        let insert = "insert into orders (item, quantity) values ($1, $2) returning id";
        let id: i64 = sqlx::query_scalar(insert)
            .bind(&$order.item)
            .bind($order.quantity)
            .fetch_one(tx.connection())
            .await?;
        $outbox.enqueue(&mut tx, $order.placed(id)?).await?;
        $order.pay()?;
        // From here the relay has the event, without a poll.
        tx.commit().await?;
        Ok(id)
    }};
}

async fn on_postgres(url: &str) -> Result<(), BoxedError> {
    let pool = PgPool::connect(url).await?;
    sqlx::query(shop::ORDERS).execute(&pool).await?;
    let tables = Tables::new("outbox_event".parse()?);
    let relay = shop::relay(Postgres::store(pool.clone(), tables.clone())).await?;
    let outbox: Outbox<Postgres> =
        Outbox::new(tables.name().clone()).with_hot_path(relay.hot_path());
    let place = move |order: Order| {
        let (outbox, pool) = (outbox.clone(), pool.clone());
        async move { place!(outbox, pool, order) }
    };
    shop::serve(relay, place).await
}

async fn on_sqlite(file: &str) -> Result<(), BoxedError> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePool::connect_with(options).await?;
    let orders = "create table if not exists orders (
        id integer primary key, item text not null, quantity int not null)";
    sqlx::query(orders).execute(&pool).await?;
    let tables = Tables::new("outbox_event".parse()?);
    let relay = shop::relay(Sqlite::store(pool.clone(), tables.clone())).await?;
    let outbox: Outbox<Sqlite> = Outbox::new(tables.name().clone()).with_hot_path(relay.hot_path());
    let place = move |order: Order| {
        let (outbox, pool) = (outbox.clone(), pool.clone());
        async move { place!(outbox, pool, order) }
    };
    shop::serve(relay, place).await
}
