//! Serves the API and the dashboard of an outbox in which something happens all the time: a writer, a
//! relay, a destination that refuses some events, and one that cannot be reached.
//!
//! ```text
//! cargo run -p posthaste-admin --example serve -- [URL] [ADDRESS] [VIEWER_TOKEN OPERATOR_TOKEN]
//! ```
//!
//! `URL` is `sqlite` (a file of its own, removed at the end) or that of a PostgreSQL database.

use std::{env, sync::Arc, time::Duration};

use async_trait::async_trait;
use posthaste::{
    Dialect, Event, Outbox,
    relay::{Config, Destination, Relay, Retention, Route, Routes},
    transport::{Outcome, Transport},
};
use posthaste_admin::{Admin, AdminConfig, AdminOutbox, Role, Token};
use posthaste_core::{Envelope, Secret, backoff::Backoff};
use posthaste_testkit::tables;
use sqlx::{Pool, Postgres, Sqlite};

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let mut config = AdminConfig {
        listen: argument(1).unwrap_or("127.0.0.1:9464").parse()?,
        ..AdminConfig::default()
    };
    for (index, name, role) in [(2, "vera", Role::Viewer), (3, "oscar", Role::Operator)] {
        if let Some(secret) = argument(index) {
            config.tokens.push(Token { name: name.into(), role, secret: Secret::new(secret) });
        }
    }
    match argument(0).unwrap_or("sqlite") {
        "sqlite" => {
            let file = env::temp_dir().join(format!("posthaste-serve-{}.db", std::process::id()));
            let url = format!("sqlite:{}?mode=rwc", file.display());
            let served = serve::<Sqlite>(Pool::connect(&url).await?, config).await;
            for suffix in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
            }
            served
        }
        url => serve::<Postgres>(Pool::connect(url).await?, config).await,
    }
}

async fn serve<DB: Dialect>(pool: Pool<DB>, config: AdminConfig) -> Result<(), Failed>
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let names = tables::unique("serve");
    let store = DB::store(pool.clone(), names.clone());
    store.migrate(None).await?;
    let orders = Scripted { name: "orders", script: take_order };
    let mail = Scripted { name: "mail", script: |_| Outcome::unavailable("connection refused") };
    let relay = Arc::new(Relay::routed(
        Arc::clone(&store),
        vec![Destination::new(Arc::new(orders)), Destination::new(Arc::new(mail))],
        Routes::new()
            .route(Route::to("mail").event_type("MailRequested"))
            .route(Route::to("orders")),
        Config {
            name: "relay-one".to_owned(),
            backoff: Backoff::Fixed(Duration::from_secs(2)),
            max_attempts: 3,
            ..Config::default()
        },
    )?);
    relay.start().await?;
    let writer = tokio::spawn(write(pool.clone(), Outbox::<DB>::new(names.name().clone())));

    let outbox = AdminOutbox {
        name: "shop".to_owned(),
        store,
        relay: Some(Arc::clone(&relay)),
        destinations: vec!["orders".to_owned(), "mail".to_owned()],
        routes: None,
        retention: Retention::default(),
    };
    let admin = Admin::new(vec![outbox], config)?;
    let listener = admin.bind().await?;
    println!("listening on http://{}", listener.local_addr()?);
    admin
        .serve(listener, async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;

    writer.abort();
    relay.stop().await?;
    tables::drop_outbox(&pool, &names).await?;
    Ok(())
}

/// A destination that answers as it is told.
struct Scripted {
    name: &'static str,
    script: fn(&Envelope) -> Outcome,
}

#[async_trait]
impl Transport for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        batch.iter().map(self.script).collect()
    }
}

/// Most go; some fail at first, some for good until they are replayed.
fn take_order(envelope: &Envelope) -> Outcome {
    match envelope.event.event_type() {
        "OrderLost" if envelope.replay == 0 => Outcome::dead("no such order"),
        "OrderShaky" if envelope.attempts == 0 => Outcome::retry("the warehouse is counting"),
        _ => Outcome::Delivered,
    }
}

/// Ten events a second, for some tenants.
async fn write<DB: Dialect>(pool: Pool<DB>, outbox: Outbox<DB>) -> Result<(), Failed>
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    for number in 0_u32.. {
        ticks.tick().await;
        let event_type = match fastrand::u32(..100) {
            0..3 => "OrderLost",
            3..8 => "OrderShaky",
            8..10 => "MailRequested",
            _ => "OrderPlaced",
        };
        let event = Event::builder(event_type)
            .aggregate("Order", number / 3)
            .tenant(["acme", "globex", "initech"][fastrand::usize(..3)])
            .header("source", "example")
            .payload(
                &serde_json::json!({ "order": number / 3, "total": fastrand::u32(100..90_000) }),
            )
            .build()?;
        let mut transaction = pool.begin().await?;
        outbox.enqueue(&mut transaction, event).await?;
        transaction.commit().await?;
    }
    Ok(())
}
