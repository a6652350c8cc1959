//! A service that only writes. The relay is another process: `posthaste relay --url … --to …`.
//! Such a service names a database as its only feature and compiles no relay and no transport.

use posthaste::{Dialect, Event, Hook, Outbox, Refusal, stores::Tables};
use posthaste_examples::{Folder, Result, sqlite};
use sqlx::{Connection, Sqlite};

/// Every event says which service wrote it.
struct Signature;

impl Hook for Signature {
    fn before_write(&self, events: Vec<Event>) -> std::result::Result<Vec<Event>, Refusal> {
        Ok(events.into_iter().map(|event| event.with_header("service", "shop")).collect())
    }
}

#[tokio::main]
async fn main() -> Result {
    let folder = Folder::open()?;
    let pool = sqlite(&folder.file("shop.db")).await?;
    sqlx::raw_sql("create table if not exists orders (id integer primary key)")
        .execute(&pool)
        .await?;
    // Usually a step of the deployment: `posthaste migrate --url …`.
    let store = Sqlite::store(pool.clone(), Tables::new("outbox_event".parse()?));
    store.migrate(None).await?;
    let outbox = Outbox::new("outbox_event".parse()?).with_hook(Signature);

    // A transaction of the outbox's: relays elsewhere are woken by its commit.
    let mut tx = outbox.begin(&pool).await?;
    let order = sqlx::query("insert into orders default values").execute(tx.connection()).await?;
    let event = Event::builder("OrderPlaced").aggregate("Order", order.last_insert_rowid());
    outbox.enqueue(&mut tx, event.payload("a book, by tomorrow")).await?;
    tx.commit().await?;

    // In a transaction of the driver's own an event commits with its rows, too; the next poll finds it. The
    // short form: a type and a payload.
    let mut tx = pool.begin().await?;
    outbox.enqueue(&mut tx, ("DayEnded", &[("orders", 1)])).await?;
    // What a savepoint takes back was never written.
    let mut attempt = tx.begin().await?;
    outbox.enqueue(&mut attempt, ("NeverHappened", "")).await?;
    attempt.rollback().await?;
    tx.commit().await?;

    let waiting = store.counts(u64::MAX).await?.new;
    println!("{waiting} events wait for a relay");
    pool.close().await;
    Ok(())
}
