//! What both consumers do with a message: one shipment for each order, however often it comes.

use std::{str::FromStr, time::Duration};

use posthaste::{Dialect, Inbox, Once, Outbox, stores::Tables};
use sqlx::{
    Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};

/// Whatever goes wrong in an example.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Who handles the messages: other consumers handle them on their own account.
pub const CONSUMER: &str = "shipping";

/// The table of shipments, and the inbox beside it.
pub struct Shipments {
    pool: SqlitePool,
    inbox: Inbox<Sqlite>,
    outbox: Outbox<Sqlite>,
}

impl Shipments {
    /// Opens the database and makes the tables that are missing.
    pub async fn open(url: &str) -> Result<Self, Failure> {
        let options = SqliteConnectOptions::from_str(url)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePool::connect_with(options).await?;
        let table = "outbox_event".parse()?;
        let inbox = Inbox::new("outbox_event".parse()?);
        let outbox = Outbox::new("outbox_event".parse()?);
        Sqlite::store(pool.clone(), Tables::new(table)).migrate(None).await?;
        sqlx::query("create table if not exists shipments (order_id text not null)")
            .execute(&pool)
            .await?;
        Ok(Self { pool, inbox, outbox })
    }

    /// Ships the order, unless this message was handled before. When it returns, all of it is
    /// committed: now the message can be acknowledged.
    pub async fn ship(&self, message_id: &str, order: &str) -> Result<Once<()>, Failure> {
        let mut tx = self.outbox.begin(&self.pool).await?;
        let outcome = self
            .inbox
            .once(&mut tx, CONSUMER, message_id, async |tx| {
                sqlx::query("insert into shipments (order_id) values ($1)")
                    .bind(order)
                    .execute(&mut **tx)
                    .await?;
                Ok::<_, Failure>(())
            })
            .await?;
        tx.commit().await?;
        Ok(outcome)
    }
}

/// One line for each message, so that a reader sees what happens.
pub fn report(order: &str, outcome: Once<()>) {
    match outcome {
        Once::Ran(()) => println!("shipped {order}"),
        Once::Duplicate => println!("duplicate {order}"),
    }
}
