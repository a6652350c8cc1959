//! What the shops share: an order, its event, the web server, and the relay in the same process.
//! How an order is placed is what they differ in.

use std::{future::Future, sync::Arc};

use axum::{Json, Router, http::StatusCode, routing::post};
use posthaste::{
    Event,
    relay::{Config, Relay},
    store::Store,
    transports::log::{Format, LogTransport},
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Deserialize, Serialize)]
pub struct Order {
    pub item: String,
    pub quantity: i32,
}

impl Order {
    /// The event that tells of it.
    pub fn placed(&self, id: i64) -> posthaste::Result<Event> {
        Event::builder("OrderPlaced").aggregate("Order", id).payload(self).build()
    }

    /// Comes last in the transaction: when it is refused, there is no order and no event.
    pub fn pay(&self) -> Result<(), BoxedError> {
        if self.quantity < 1 {
            return Err(Refused.into());
        }
        Ok(())
    }
}

/// The payment was refused.
#[derive(Debug)]
pub struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("there is nothing to pay")
    }
}

impl std::error::Error for Refused {}

/// Makes the outbox's tables and gives a relay that writes a line for each event.
pub async fn relay(store: Arc<dyn Store>) -> Result<Relay, BoxedError> {
    store.migrate(None).await?;
    Ok(Relay::new(store, Arc::new(LogTransport::stdout(Format::Text)), Config::default())?)
}

/// Serves `POST /orders` until it is interrupted; then the relay ends in order.
pub async fn serve<F, P>(relay: Relay, place: F) -> Result<(), BoxedError>
where
    F: Fn(Order) -> P + Clone + Send + Sync + 'static,
    P: Future<Output = Result<i64, BoxedError>> + Send,
{
    let route = post(async move |Json(order): Json<Order>| match place(order).await {
        Ok(id) => (StatusCode::CREATED, format!("order {id}\n")),
        Err(error) if error.is::<Refused>() => {
            (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n"))
        }
        Err(error) => {
            eprintln!("an order was not placed: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, "try again\n".to_owned())
        }
    });
    relay.start().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, Router::new().route("/orders", route))
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    relay.stop().await?;
    Ok(())
}

/// The orders, on PostgreSQL.
pub const ORDERS: &str = "create table if not exists orders (
    id bigint generated always as identity primary key, item text not null, quantity int not null)";
