//! A shop on sea-orm: an order and its event in one transaction, and the relay on the same pool.

#[path = "../shop.rs"]
mod shop;

use posthaste::{Dialect, PostgresOutbox, stores::Tables};
use sea_orm::{
    ActiveModelTrait, ActiveValue::Set, ConnectionTrait, Database, DatabaseConnection,
    TransactionTrait,
};
use shop::{BoxedError, Order};
use sqlx::Postgres;

mod orders {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub item: String,
        pub quantity: i32,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

#[tokio::main]
async fn main() -> Result<(), BoxedError> {
    let url = std::env::args().nth(1).ok_or("give the database's URL: postgres://…")?;
    let database = Database::connect(url).await?;
    database.execute_unprepared(shop::ORDERS).await?;
    let tables = Tables::new("outbox_event".parse()?);
    // sea-orm rests on the same sqlx as the relay's store.
    let pool = database.get_postgres_connection_pool().clone();
    let relay = shop::relay(Postgres::store(pool, tables.clone())).await?;
    let outbox = PostgresOutbox::new(tables.name().clone()).with_hot_path(relay.hot_path());
    shop::serve(relay, move |order| place(database.clone(), outbox.clone(), order)).await
}

async fn place(
    database: DatabaseConnection,
    outbox: PostgresOutbox,
    order: Order,
) -> Result<i64, BoxedError> {
    let mut tx = database.begin().await?;
    let row = orders::ActiveModel {
        item: Set(order.item.clone()),
        quantity: Set(order.quantity),
        ..Default::default()
    };
    let id = row.insert(&tx).await?.id;
    outbox.enqueue(&mut tx, order.placed(id)?).await?;
    order.pay()?;
    tx.commit().await?;
    outbox.wake();
    Ok(id)
}
