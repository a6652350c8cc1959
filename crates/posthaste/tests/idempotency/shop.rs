//! A shop on loopback whose handlers go wrong as they are told.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Request, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use futures_util::FutureExt;
use posthaste::{
    idempotency::{IdempotencyLayer, Idempotent},
    stores::idempotency::IdempotencyDialect,
};
use reqwest::{Client, RequestBuilder};
use sqlx::Connection;
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::{JoinHandle, spawn},
};
use uuid::Uuid;

use crate::support::{Fixture, TestDatabase, commit_by_mistake, event, soon};

pub trait KeyDatabase: TestDatabase + IdempotencyDialect {}

impl<DB: TestDatabase + IdempotencyDialect> KeyDatabase for DB {}

pub const MAX: usize = 10_000;

/// A running server, its handlers' gate and their effects.
pub struct Server<DB: KeyDatabase> {
    pub shop: Arc<Shop<DB>>,
    pub layer: IdempotencyLayer<DB>,
    pub url: String,
    pub client: Client,
    task: JoinHandle<()>,
}

pub struct Shop<DB: KeyDatabase> {
    outbox: posthaste::Outbox<DB>,
    insert: String,
    /// How often a handler ran.
    ran: AtomicUsize,
    /// A permit for each request that has arrived at the gate.
    pub arrived: Semaphore,
    /// A permit for each one that may pass.
    pub gate: Semaphore,
}

impl<DB: KeyDatabase> Drop for Server<DB> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<DB: KeyDatabase> Server<DB> {
    pub async fn start(fixture: &Fixture<DB>) -> Self {
        Self::start_with(fixture, fixture.outbox(), fixture.pool.clone()).await
    }

    pub async fn start_with(
        fixture: &Fixture<DB>,
        outbox: posthaste::Outbox<DB>,
        pool: sqlx::Pool<DB>,
    ) -> Self {
        fixture.sql("create table {events}_effects (n varchar(40) not null)").await;
        let shop = Arc::new(Shop {
            outbox: outbox.clone(),
            insert: fixture.tables.fill("insert into {events}_effects (n) values ('paid')"),
            ran: AtomicUsize::new(0),
            arrived: Semaphore::new(0),
            gate: Semaphore::new(0),
        });
        let layer = IdempotencyLayer::new(outbox, pool, |request| {
            request.headers.get("x-tenant")?.to_str().ok().map(str::to_owned)
        })
        .max_request(MAX)
        .max_response(MAX);
        let routes = || {
            Router::new()
                .route("/pay", post(pay::<DB>).patch(pay::<DB>).get(|| async { "list" }))
                .route("/plain", post(plain::<DB>))
                .with_state(Arc::clone(&shop))
        };
        let router = routes()
            .layer(layer.clone().required())
            .nest("/optional", routes().layer(layer.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let task = spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { shop, layer, url, client: client(), task }
    }

    /// A request of tenant `acme`. What the handler is to do stands in the header `x-do`, which does
    /// not count for the fingerprint.
    pub fn post(&self, path: &str, key: &str, body: &'static str) -> RequestBuilder {
        self.client
            .post(format!("{}{path}", self.url))
            .header("x-tenant", "acme")
            .header("idempotency-key", format!("\"{key}\""))
            .body(body)
    }

    pub async fn pay(&self, key: &str, behaviour: &str) -> Answer {
        Answer::of(self.post("/pay", key, "42").header("x-do", behaviour)).await
    }

    pub fn ran(&self) -> usize {
        self.shop.ran.load(Ordering::SeqCst)
    }

    pub async fn stop(self, fixture: &Fixture<DB>) {
        fixture.sql("drop table {events}_effects").await;
    }
}

pub const EFFECTS: &str = "select count(*) from {events}_effects";
pub const EVENTS: &str = "select count(*) from {events}";
pub const KEYS: &str = "select count(*) from {idempotency}";

/// Pays in the request's transaction, and goes wrong as it is told.
async fn pay<DB: KeyDatabase>(
    State(shop): State<Arc<Shop<DB>>>,
    Extension(request): Extension<Idempotent<DB>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    shop.ran.fetch_add(1, Ordering::SeqCst);
    let behaviour = headers.get("x-do").map_or("", |value| value.to_str().unwrap());
    if behaviour == "wait" {
        shop.arrived.add_permits(1);
        shop.gate.acquire().await.unwrap().forget();
    }
    let mut tx = request.begin().await.unwrap();
    DB::run_on(tx.connection(), shop.insert.clone()).await.unwrap();
    shop.outbox.enqueue(&mut tx, event("payment", 1)).await.unwrap();
    let receipt = format!("{} paid: {}", String::from_utf8_lossy(&body), Uuid::now_v7());
    let status = match behaviour {
        "refuse" => return (StatusCode::BAD_REQUEST, "refused").into_response(),
        "fail" => return (StatusCode::BAD_GATEWAY, "failed").into_response(),
        "forget" => return (StatusCode::CREATED, receipt).into_response(),
        "panic" => panic!("as it was told"),
        "cut" => {
            let cut = if DB::NAME == "MySQL" {
                "kill connection_id()"
            } else {
                "select pg_terminate_backend(pg_backend_pid())"
            };
            DB::run_on(tx.connection(), cut.to_owned()).await.unwrap_err();
            StatusCode::CREATED
        }
        "ignore" => {
            // As a server ends a transaction, and the handler does not look.
            let ended = if DB::NAME == "MySQL" { "rollback" } else { "select 1 / 0" };
            let _ = DB::run_on(tx.connection(), ended.to_owned()).await;
            StatusCode::CREATED
        }
        // Polled once, each is dropped half-way. One that was done is taken back.
        "give-up" => {
            while tx.savepoint().now_or_never().is_some() {}
            StatusCode::CREATED
        }
        "give-up-the-drivers" => {
            while tx.connection().begin().now_or_never().is_some() {}
            StatusCode::CREATED
        }
        "mistake" | "mistake-and-fail" => {
            commit_by_mistake::<DB>(tx.connection(), 1).await;
            if behaviour == "mistake-and-fail" {
                return (StatusCode::BAD_GATEWAY, "failed").into_response();
            }
            StatusCode::CREATED
        }
        // Placeholders and a column that the server is still to describe: nobody has prepared it
        // before.
        "give-up-2" | "give-up-8" => {
            let placeholders =
                if behaviour == "give-up-2" { "?, ?" } else { "?, ?, ?, ?, ?, ?, ?, ?" };
            let query = || format!("select concat({placeholders}) as c{}", Uuid::now_v7().simple());
            while DB::run_on(tx.connection(), query()).now_or_never().is_some() {}
            StatusCode::CREATED
        }
        "decline" => StatusCode::PAYMENT_REQUIRED,
        // As a layer for timeouts, or for panics, answers when it gives up on a handler.
        "hang" => StatusCode::REQUEST_TIMEOUT,
        "die" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::CREATED,
    };
    tx.commit_with_response().unwrap();
    let receipt = if behaviour == "large" { "x".repeat(MAX + 1) } else { receipt };
    let headers =
        [("x-receipt", "7"), ("set-cookie", "session=secret"), ("keep-alive", "timeout=9")];
    (status, headers, receipt).into_response()
}

/// Takes effect in memory, without the request's transaction.
async fn plain<DB: KeyDatabase>(
    State(shop): State<Arc<Shop<DB>>>,
    request: Request<Body>,
) -> Response {
    let n = shop.ran.fetch_add(1, Ordering::SeqCst);
    match request.headers().get("x-do").map_or("", |value| value.to_str().unwrap()) {
        "later" => StatusCode::TOO_MANY_REQUESTS.into_response(),
        "large" => "x".repeat(MAX + 1).into_response(),
        _ => format!("run {n}").into_response(),
    }
}

/// A client that could do TLS too, as the destination `http` makes it.
pub fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

#[derive(Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub async fn of(request: RequestBuilder) -> Self {
        let response = soon("an answer", request.send()).await.unwrap();
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: soon("a body", response.bytes()).await.unwrap().to_vec(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn is_repeat_of(&self, first: &Self) -> bool {
        self.header("idempotent-replayed") == Some("true")
            && (self.status, &self.body) == (first.status, &first.body)
    }

    /// It is a problem of this status, and its type ends so.
    #[track_caller]
    pub fn is_problem(&self, status: u16, kind: &str) {
        assert_eq!(self.status, status, "{:?}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], status);
        let named = problem["type"].as_str().unwrap().ends_with(&format!("#{kind}"));
        assert!(named && problem["title"].is_string(), "{problem}");
    }
}
