//! Domain-driven: aggregates raise events and know nothing of an outbox; a unit of work saves them
//! and writes what they raised in one transaction.

use std::sync::Arc;

use posthaste::{
    Dialect, Envelope, Event, Outbox,
    domain::{Aggregate, Context, Events, UnitOfWork},
    relay::{Config, Relay},
    stores::Tables,
    transports::handlers::Handlers,
};
use posthaste_examples::{Folder, Result, sqlite};
use serde::{Deserialize, Serialize};
use sqlx::{Sqlite, SqliteConnection, SqlitePool};

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "Order")]
struct OrderPlaced {
    cents: i64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "Account")]
struct MoneyReserved {
    cents: i64,
}

struct Order {
    id: i64,
    cents: i64,
    events: Events,
}

impl Order {
    fn place(id: i64, cents: i64) -> Self {
        let mut order = Self { id, cents, events: Events::new() };
        order.raise(OrderPlaced { cents });
        order
    }

    async fn save(&self, connection: &mut SqliteConnection) -> Result {
        sqlx::query("insert into orders (id, cents) values (?, ?)")
            .bind(self.id)
            .bind(self.cents)
            .execute(connection)
            .await?;
        Ok(())
    }
}

impl Aggregate for Order {
    const TYPE: &'static str = "Order";

    fn aggregate_id(&self) -> String {
        self.id.to_string()
    }

    fn events(&self) -> &Events {
        &self.events
    }
}

struct Account {
    owner: String,
    balance: i64,
    events: Events,
}

impl Account {
    fn reserve(&mut self, cents: i64) {
        self.balance -= cents;
        self.raise(MoneyReserved { cents });
    }

    async fn save(&self, connection: &mut SqliteConnection) -> Result {
        sqlx::query("insert or replace into accounts (owner, balance) values (?, ?)")
            .bind(&self.owner)
            .bind(self.balance)
            .execute(connection)
            .await?;
        Ok(())
    }
}

impl Aggregate for Account {
    const TYPE: &'static str = "Account";

    fn aggregate_id(&self) -> String {
        self.owner.clone()
    }

    fn events(&self) -> &Events {
        &self.events
    }
}

/// The use case: all of it, or nothing.
async fn save(
    outbox: &Outbox<Sqlite>,
    pool: &SqlitePool,
    order: &Order,
    account: &Account,
) -> Result<usize> {
    let context = Context::new().tenant("acme").operator("ada");
    let mut work = UnitOfWork::begin(outbox, pool).await?.with_context(context);
    work.track(order);
    work.track(account);
    order.save(work.connection()).await?;
    account.save(work.connection()).await?;
    Ok(work.commit().await?.len())
}

#[tokio::main]
async fn main() -> Result {
    let folder = Folder::open()?;
    let pool = sqlite(&folder.file("shop.db")).await?;
    sqlx::raw_sql(
        "create table if not exists orders (id integer primary key, cents integer);
         create table if not exists accounts (owner text primary key,
             balance integer check (balance >= 0))",
    )
    .execute(&pool)
    .await?;
    let store = Sqlite::store(pool.clone(), Tables::new("outbox_event".parse()?));
    store.migrate(None).await?;
    let outbox = Outbox::new("outbox_event".parse()?);

    let mut account = Account { owner: "grace".to_owned(), balance: 1_000, events: Events::new() };
    let order = Order::place(1, 2_500);
    account.reserve(2_500);
    if save(&outbox, &pool, &order, &account).await.is_err() {
        let kept = order.events.len() + account.events.len();
        println!("the account is empty: nothing is saved, {kept} events stay in memory");
    }
    account.balance = 500;
    println!("saved with {} events", save(&outbox, &pool, &order, &account).await?);

    let handlers = Handlers::new("shop")
        .on_event(async |placed: OrderPlaced, envelope: Envelope| {
            let order = envelope.event.aggregate_id().unwrap_or_default().to_owned();
            println!("order {order} was placed for {} cents", placed.cents);
            Ok(())
        })?
        .on_event(async |reserved: MoneyReserved, envelope: Envelope| {
            let owner = envelope.event.aggregate_id().unwrap_or_default().to_owned();
            let operator = &envelope.event.headers()["operator"];
            println!("{operator} reserved {} cents of {owner}", reserved.cents);
            Ok(())
        })?;
    let relay = Relay::new(store, Arc::new(handlers), Config::default())?;
    println!("{} events delivered", relay.relay_once().await?.delivered);
    pool.close().await;
    Ok(())
}
