//! Payments over HTTP with idempotency keys: a client that heard nothing sends the request again, and
//! the payment happens once.
//!
//! ```sh
//! cargo run -p posthaste-examples --bin payments
//! curl -i localhost:8080/payments -H 'Authorization: Bearer alice' -H 'Idempotency-Key: "a1"' \
//!     -H 'Content-Type: application/json' -d '{"amount": 1999}'
//! ```
//!
//! Send it twice: the second answer has the same bytes and `Idempotent-Replayed: true`. The payment, its
//! event `PaymentAccepted`, the key and the answer are one transaction.

use std::{net::SocketAddr, str::FromStr, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Request, State},
    http::{StatusCode, request::Parts},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::post,
};
use clap::Parser;
use posthaste::{
    Event, Outbox, TableName,
    idempotency::{IdempotencyLayer, Idempotent},
    stores::{Tables, idempotency::IdempotencyDialect},
};
use serde::{Deserialize, Serialize};
use sqlx::{
    Pool, Postgres, Sqlite,
    postgres::PgPool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool},
};
use uuid::Uuid;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Larger ones are declined.
const LIMIT: i64 = 10_000;

#[derive(Parser, Clone)]
struct Args {
    /// `sqlite:PATH` or `postgres://…`
    #[arg(long, default_value = "sqlite:payments.db")]
    database: String,
    /// The outbox's table, beside which keys are kept
    #[arg(long, default_value = "outbox_event")]
    table: String,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Milliseconds for which a key is locked when its process dies
    #[arg(long, default_value_t = 60_000)]
    lease: u64,
    /// Milliseconds that the bank takes
    #[arg(long, default_value_t = 0)]
    bank: u64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    if args.database.starts_with("sqlite:") {
        let options = SqliteConnectOptions::from_str(&args.database)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10));
        serve(SqlitePool::connect_with(options).await?, args).await
    } else {
        serve(PgPool::connect(&args.database).await?, args).await
    }
}

async fn serve<DB: Payments>(pool: Pool<DB>, args: Args) -> Result<(), Failure> {
    let table: TableName = args.table.parse()?;
    DB::store(pool.clone(), Tables::new(table.clone())).migrate(None).await?;
    DB::make_table(&pool).await?;
    let outbox = Outbox::new(table);
    let layer = IdempotencyLayer::new(outbox.clone(), pool, account)
        .required()
        .lease(Duration::from_millis(args.lease));
    tokio::spawn(purge(layer.clone()));
    let router = Router::new()
        .route("/payments", post(pay::<DB>))
        .layer(layer)
        // What is added last runs first: the layer above needs to know who asks.
        .layer(from_fn(authenticate))
        .with_state(Bank { outbox, takes: Duration::from_millis(args.bank) });
    let listener = tokio::net::TcpListener::bind(args.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}

/// Who asks.
#[derive(Clone, Copy)]
struct Account(&'static str);

/// Tokens and whose they are. A real service asks whoever issues tokens.
const TOKENS: [(&str, Account); 2] =
    [("alice", Account("account-1")), ("bob", Account("account-2"))];

async fn authenticate(mut request: Request, next: Next) -> Response {
    let value = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let token = value.and_then(|value| value.strip_prefix("Bearer "));
    let known = TOKENS.into_iter().find(|(known, _)| Some(*known) == token);
    let Some((_, account)) = known else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(account);
    next.run(request).await
}

/// Whose key it is: the account, never a token, which would be stored, and nothing that a client can choose.
fn account(request: &Parts) -> Option<String> {
    request.extensions.get::<Account>().map(|account| account.0.to_owned())
}

async fn purge<DB: Payments>(layer: IdempotencyLayer<DB>) {
    const STEP: usize = 1000;
    loop {
        match layer.purge(STEP).await {
            Ok(purged) if purged == STEP as u64 => continue,
            Ok(_) => {}
            Err(error) => eprintln!("{error}"),
        }
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
}

struct Bank<DB: Payments> {
    outbox: Outbox<DB>,
    takes: Duration,
}

impl<DB: Payments> Clone for Bank<DB> {
    fn clone(&self) -> Self {
        Self { outbox: self.outbox.clone(), takes: self.takes }
    }
}

#[derive(Deserialize)]
struct Order {
    amount: i64,
}

#[derive(Serialize)]
struct Receipt {
    id: String,
    amount: i64,
    accepted: bool,
}

async fn pay<DB: Payments>(
    State(bank): State<Bank<DB>>,
    Extension(request): Extension<Idempotent<DB>>,
    Json(order): Json<Order>,
) -> Result<Response, Refusal> {
    let receipt = Receipt {
        id: Uuid::now_v7().to_string(),
        amount: order.amount,
        accepted: order.amount <= LIMIT,
    };
    let mut tx = request.begin().await?;
    DB::insert(tx.connection(), &receipt).await?;
    println!("asking the bank about {}", receipt.id);
    tokio::time::sleep(bank.takes).await;
    if receipt.accepted {
        let event =
            Event::builder("PaymentAccepted").aggregate("Payment", &receipt.id).payload(&receipt);
        bank.outbox.enqueue(&mut tx, event.build()?).await?;
    }
    // Also a declined payment is kept, and its answer repeated.
    tx.commit_with_response()?;
    let status = if receipt.accepted { StatusCode::CREATED } else { StatusCode::PAYMENT_REQUIRED };
    Ok((status, Json(receipt)).into_response())
}

/// Dropped with it, the transaction rolls back and the key is free again.
struct Refusal(Failure);

impl<E: Into<Failure>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        eprintln!("{}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// The statements, which both databases understand.
trait Payments: IdempotencyDialect {
    fn make_table(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    fn insert(
        connection: &mut Self::Connection,
        receipt: &Receipt,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

macro_rules! payments {
    ($database:ty) => {
        impl Payments for $database {
            async fn make_table(pool: &Pool<Self>) -> sqlx::Result<()> {
                let create = "create table if not exists payments
                    (id varchar(36) primary key, amount bigint not null, accepted boolean not null)";
                sqlx::query(create).execute(pool).await.map(|_| ())
            }

            async fn insert(
                connection: &mut Self::Connection,
                receipt: &Receipt,
            ) -> sqlx::Result<()> {
                sqlx::query("insert into payments (id, amount, accepted) values ($1, $2, $3)")
                    .bind(&receipt.id)
                    .bind(receipt.amount)
                    .bind(receipt.accepted)
                    .execute(connection)
                    .await
                    .map(|_| ())
            }
        }
    };
}

payments!(Sqlite);
payments!(Postgres);
