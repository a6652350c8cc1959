//! Idempotency keys, against a running server on each database: one key, one effect, one response.

mod support;

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
use futures_util::future::join_all;
use posthaste::{
    idempotency::{IdempotencyLayer, Idempotent},
    stores::idempotency::IdempotencyDialect,
};
use reqwest::{Client, RequestBuilder};
use support::{Fixture, TestDatabase, event, soon};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::{JoinHandle, spawn},
};
use uuid::Uuid;

trait KeyDatabase: TestDatabase + IdempotencyDialect {}

impl<DB: TestDatabase + IdempotencyDialect> KeyDatabase for DB {}

on_every_database! {
    two_hundred_identical_requests_at_once_take_effect_once,
    a_repeat_gets_status_headers_and_body_with_a_mark,
    a_key_that_stands_for_another_request_is_422,
    a_request_that_is_still_running_is_409_with_retry_after,
    a_missing_or_malformed_key_is_400,
    a_route_can_do_without_a_key,
    a_request_of_nobody_is_403_and_one_that_is_too_large_413,
    tenants_do_not_share_keys,
    a_refusal_that_was_committed_is_repeated,
    a_handler_that_rolls_back_frees_the_key,
    a_handler_that_forgets_to_commit_is_500,
    a_handler_that_panics_frees_the_key,
    a_client_that_hangs_up_frees_the_key,
    a_response_that_is_too_large_undoes_the_effect_or_tells_of_it,
    without_the_transaction_the_response_is_stored_after_the_effect,
    an_overtaken_handler_is_fenced,
    expired_keys_are_forgotten_and_purged_in_steps,
    without_a_database_the_answer_is_503,
}

const MAX: usize = 10_000;

/// A running server, its handlers' gate and their effects.
struct Server<DB: KeyDatabase> {
    shop: Arc<Shop<DB>>,
    layer: IdempotencyLayer<DB>,
    url: String,
    client: Client,
    task: JoinHandle<()>,
}

struct Shop<DB: KeyDatabase> {
    outbox: posthaste::Outbox<DB>,
    insert: String,
    /// How often a handler ran.
    ran: AtomicUsize,
    /// A permit for each request that has arrived at the gate.
    arrived: Semaphore,
    /// A permit for each one that may pass.
    gate: Semaphore,
}

impl<DB: KeyDatabase> Drop for Server<DB> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<DB: KeyDatabase> Server<DB> {
    async fn start(fixture: &Fixture<DB>) -> Self {
        fixture.sql("create table {events}_effects (n varchar(40) not null)").await;
        let shop = Arc::new(Shop {
            outbox: fixture.outbox(),
            insert: fixture.tables.fill("insert into {events}_effects (n) values ('paid')"),
            ran: AtomicUsize::new(0),
            arrived: Semaphore::new(0),
            gate: Semaphore::new(0),
        });
        let layer = IdempotencyLayer::new(fixture.outbox(), fixture.pool.clone(), |request| {
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
    fn post(&self, path: &str, key: &str, body: &'static str) -> RequestBuilder {
        self.client
            .post(format!("{}{path}", self.url))
            .header("x-tenant", "acme")
            .header("idempotency-key", format!("\"{key}\""))
            .body(body)
    }

    async fn pay(&self, key: &str, behaviour: &str) -> Answer {
        Answer::of(self.post("/pay", key, "42").header("x-do", behaviour)).await
    }

    fn ran(&self) -> usize {
        self.shop.ran.load(Ordering::SeqCst)
    }

    async fn stop(self, fixture: &Fixture<DB>) {
        fixture.sql("drop table {events}_effects").await;
    }
}

const EFFECTS: &str = "select count(*) from {events}_effects";
const EVENTS: &str = "select count(*) from {events}";
const KEYS: &str = "select count(*) from {idempotency}";

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
        "decline" => StatusCode::PAYMENT_REQUIRED,
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
fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    async fn of(request: RequestBuilder) -> Self {
        let response = soon("an answer", request.send()).await.unwrap();
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: soon("a body", response.bytes()).await.unwrap().to_vec(),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn is_repeat_of(&self, first: &Self) -> bool {
        self.header("idempotent-replayed") == Some("true")
            && (self.status, &self.body) == (first.status, &first.body)
    }

    /// It is a problem of this status, and its type ends so.
    #[track_caller]
    fn is_problem(&self, status: u16, kind: &str) {
        assert_eq!(self.status, status, "{:?}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], status);
        let named = problem["type"].as_str().unwrap().ends_with(&format!("#{kind}"));
        assert!(named && problem["title"].is_string(), "{problem}");
    }
}

async fn two_hundred_identical_requests_at_once_take_effect_once<DB: KeyDatabase>(
    fixture: &Fixture<DB>,
) {
    let server = Server::start(fixture).await;
    let answers = join_all((0..200).map(|_| server.pay("k", ""))).await;
    for answer in &answers {
        if answer.status == 409 {
            answer.is_problem(409, "key-in-use");
        } else {
            assert_eq!(answer.status, 201, "{answer:?}");
        }
    }
    let is_first =
        |answer: &&Answer| answer.status == 201 && answer.header("idempotent-replayed").is_none();
    let firsts: Vec<&Answer> = answers.iter().filter(is_first).collect();
    assert_eq!(firsts.len(), 1, "one of them was the first");
    let repeats = join_all((0..200).map(|_| server.pay("k", ""))).await;
    assert!(repeats.iter().all(|repeat| repeat.is_repeat_of(firsts[0])));
    for counted in [EFFECTS, EVENTS, KEYS] {
        assert_eq!(fixture.number(counted).await, 1, "{counted}");
    }
    assert_eq!(server.ran(), 1);
    server.stop(fixture).await;
}

async fn a_repeat_gets_status_headers_and_body_with_a_mark<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let first = server.pay("k", "").await;
    assert_eq!((first.status, first.header("x-receipt")), (201, Some("7")));
    assert_eq!(first.header("set-cookie"), Some("session=secret"), "the first is left alone");
    assert_eq!(first.header("idempotent-replayed"), None);
    let repeat = server.pay("k", "").await;
    assert!(repeat.is_repeat_of(&first), "{repeat:?}");
    for name in ["x-receipt", "content-type", "content-length"] {
        assert_eq!(repeat.header(name), first.header(name));
    }
    assert_eq!(repeat.header("set-cookie"), None);
    assert_eq!(repeat.header("keep-alive"), None);
    let leaked = "select count(*) from {idempotency} where headers like '%secret%'";
    assert_eq!(fixture.number(leaked).await, 0);
    let other = server.pay("other", "").await;
    assert_ne!(other.body, first.body, "another key is another payment");
    assert_eq!(fixture.number(EFFECTS).await, 2);
    server.stop(fixture).await;
}

async fn a_key_that_stands_for_another_request_is_422<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let first = server.pay("k", "").await;
    let url = format!("{}/pay", server.url);
    let patch = server.client.patch(url).header("x-tenant", "acme").header("idempotency-key", "k");
    for other in [
        server.post("/pay", "k", "43"),
        server.post("/pay?currency=eur", "k", "42"),
        server.post("/plain", "k", "42"),
        patch.body("42"),
    ] {
        Answer::of(other).await.is_problem(422, "key-reused");
    }
    assert!(server.pay("k", "").await.is_repeat_of(&first));
    assert_eq!(server.ran(), 1);
    server.stop(fixture).await;
}

async fn a_request_that_is_still_running_is_409_with_retry_after<DB: KeyDatabase>(
    fixture: &Fixture<DB>,
) {
    let server = Server::start(fixture).await;
    let first = server.post("/pay", "k", "42").header("x-do", "wait");
    let first = spawn(Answer::of(first));
    soon("the first", server.shop.arrived.acquire()).await.unwrap().forget();
    let second = server.pay("k", "").await;
    second.is_problem(409, "key-in-use");
    assert_eq!(second.header("retry-after"), Some("1"));
    Answer::of(server.post("/pay", "k", "43")).await.is_problem(422, "key-reused");
    server.shop.gate.add_permits(1);
    let first = first.await.unwrap();
    assert_eq!(first.status, 201);
    assert!(server.pay("k", "").await.is_repeat_of(&first));
    assert_eq!((server.ran(), fixture.number(EFFECTS).await), (1, 1));
    server.stop(fixture).await;
}

async fn a_missing_or_malformed_key_is_400<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let url = format!("{}/pay", server.url);
    let post = || server.client.post(&url).header("x-tenant", "acme").body("42");
    Answer::of(post()).await.is_problem(400, "key-missing");
    let long = "k".repeat(256);
    for key in ["", "\"\"", "\"k", "a b", &long] {
        Answer::of(post().header("idempotency-key", key)).await.is_problem(400, "key-malformed");
    }
    assert_eq!(server.ran(), 0);
    let list = Answer::of(server.client.get(&url)).await;
    assert_eq!((list.status, &list.body[..]), (200, &b"list"[..]), "reading needs no key");
    server.stop(fixture).await;
}

async fn a_route_can_do_without_a_key<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let url = format!("{}/optional/pay", server.url);
    let post = |behaviour: &'static str| {
        Answer::of(server.client.post(&url).header("x-do", behaviour).body("42"))
    };
    for _ in 0..2 {
        assert_eq!(post("").await.status, 201);
    }
    assert_eq!(post("fail").await.status, 502);
    post("forget").await.is_problem(500, "not-committed");
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(KEYS).await), (2, 0));
    for _ in 0..2 {
        assert_eq!(Answer::of(server.post("/optional/pay", "k", "42")).await.status, 201);
    }
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(KEYS).await), (3, 1));
    server.stop(fixture).await;
}

async fn a_request_of_nobody_is_403_and_one_that_is_too_large_413<DB: KeyDatabase>(
    fixture: &Fixture<DB>,
) {
    let server = Server::start(fixture).await;
    let url = format!("{}/pay", server.url);
    let nobody = server.client.post(&url).header("idempotency-key", "k").body("42");
    Answer::of(nobody).await.is_problem(403, "no-scope");
    let large = server.post("/pay", "k", "").body("x".repeat(MAX + 1));
    Answer::of(large).await.is_problem(413, "request-too-large");
    let tenant = "t".repeat(101);
    let nameless = server.client.post(&url).header("idempotency-key", "k");
    Answer::of(nameless.header("x-tenant", tenant)).await.is_problem(500, "database");
    assert_eq!((server.ran(), fixture.number(KEYS).await), (0, 0));
    let fits = server.post("/pay", "k", "").body("x".repeat(MAX));
    // The receipt repeats the body, and is too large by that.
    Answer::of(fits).await.is_problem(500, "response-too-large");
    server.stop(fixture).await;
}

async fn tenants_do_not_share_keys<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let url = format!("{}/pay", server.url);
    for tenant in ["acme", "Acme", "globex"] {
        let request = server.client.post(&url).header("x-tenant", tenant);
        let answer = Answer::of(request.header("idempotency-key", "k").body("42")).await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (201, None), "{tenant}");
    }
    assert_eq!(fixture.number(EFFECTS).await, 3);
    server.stop(fixture).await;
}

async fn a_refusal_that_was_committed_is_repeated<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let first = server.pay("k", "decline").await;
    assert_eq!(first.status, 402);
    assert!(server.pay("k", "").await.is_repeat_of(&first));
    assert_eq!((server.ran(), fixture.number(EFFECTS).await), (1, 1));
    server.stop(fixture).await;
}

async fn a_handler_that_rolls_back_frees_the_key<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    for (behaviour, status) in [("refuse", 400), ("fail", 502)] {
        assert_eq!(server.pay("k", behaviour).await.status, status);
        assert_eq!((fixture.number(EFFECTS).await, fixture.number(KEYS).await), (0, 0));
    }
    assert_eq!(server.pay("k", "").await.status, 201);
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(EVENTS).await), (1, 1));
    server.stop(fixture).await;
}

async fn a_handler_that_forgets_to_commit_is_500<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    server.pay("k", "forget").await.is_problem(500, "not-committed");
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(KEYS).await), (0, 0));
    server.stop(fixture).await;
}

async fn freed<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let free = async { while fixture.number(KEYS).await > 0 {} };
    soon("freeing the key", free).await;
}

async fn a_handler_that_panics_frees_the_key<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let request = server.post("/pay", "k", "42").header("x-do", "panic");
    assert!(soon("hanging up", request.send()).await.is_err(), "the connection was cut");
    freed(fixture).await;
    assert_eq!(server.pay("k", "").await.status, 201);
    assert_eq!(fixture.number(EFFECTS).await, 1);
    server.stop(fixture).await;
}

async fn a_client_that_hangs_up_frees_the_key<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let client = client();
    let request = server.post("/pay", "k", "42").header("x-do", "wait").build().unwrap();
    let request = spawn(async move { client.execute(request).await });
    soon("the request", server.shop.arrived.acquire()).await.unwrap().forget();
    request.abort();
    freed(fixture).await;
    assert_eq!(server.pay("k", "").await.status, 201);
    assert_eq!(fixture.number(EFFECTS).await, 1);
    server.stop(fixture).await;
}

async fn a_response_that_is_too_large_undoes_the_effect_or_tells_of_it<DB: KeyDatabase>(
    fixture: &Fixture<DB>,
) {
    let server = Server::start(fixture).await;
    server.pay("k", "large").await.is_problem(500, "response-too-large");
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(KEYS).await), (0, 0));
    assert_eq!(server.pay("k", "").await.status, 201, "the key is free");

    let plain = || Answer::of(server.post("/plain", "p", "42").header("x-do", "large"));
    let ran = server.ran();
    let first = plain().await;
    first.is_problem(500, "response-too-large");
    assert!(String::from_utf8_lossy(&first.body).contains("was carried out"));
    assert!(plain().await.is_repeat_of(&first), "and it is not carried out again");
    assert_eq!(server.ran(), ran + 1);
    server.stop(fixture).await;
}

async fn without_the_transaction_the_response_is_stored_after_the_effect<DB: KeyDatabase>(
    fixture: &Fixture<DB>,
) {
    let server = Server::start(fixture).await;
    let plain = |behaviour: &'static str| {
        Answer::of(server.post("/plain", "k", "42").header("x-do", behaviour))
    };
    assert_eq!(plain("later").await.status, 429);
    let first = plain("").await;
    assert_eq!((first.status, &first.body[..]), (200, &b"run 1"[..]), "429 was not stored");
    assert!(plain("").await.is_repeat_of(&first));
    assert_eq!(server.ran(), 2);
    server.stop(fixture).await;
}

/// The lease ends under a slow handler, and a repeat overtakes it: the late one is rolled back.
async fn an_overtaken_handler_is_fenced<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let slow = server.post("/pay", "k", "42").header("x-do", "wait");
    let slow = spawn(Answer::of(slow));
    soon("the slow one", server.shop.arrived.acquire()).await.unwrap().forget();
    let earlier = Fixture::<DB>::earlier("locked_until", 1);
    fixture.sql(&format!("update {{idempotency}} set locked_until = {earlier}")).await;

    Answer::of(server.post("/pay", "k", "43")).await.is_problem(422, "key-reused");
    let quick = server.pay("k", "").await;
    assert_eq!((quick.status, quick.header("idempotent-replayed")), (201, None));
    server.shop.gate.add_permits(1);
    slow.await.unwrap().is_problem(409, "key-in-use");
    assert_eq!(server.ran(), 2, "both ran");
    for counted in [EFFECTS, EVENTS] {
        assert_eq!(fixture.number(counted).await, 1, "and one of them counts: {counted}");
    }
    assert!(server.pay("k", "").await.is_repeat_of(&quick));
    server.stop(fixture).await;
}

async fn expired_keys_are_forgotten_and_purged_in_steps<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    for n in 0..7 {
        assert_eq!(server.pay(&format!("old{n}"), "").await.status, 201);
    }
    assert_eq!(server.layer.purge(10).await.unwrap(), 0);
    let earlier = Fixture::<DB>::earlier("expires_at", 25);
    fixture.sql(&format!("update {{idempotency}} set expires_at = {earlier}")).await;
    let anew = Answer::of(server.post("/pay", "old0", "another request")).await;
    assert_eq!((anew.status, anew.header("idempotent-replayed")), (201, None), "forgotten");

    assert_eq!(server.layer.purge(4).await.unwrap(), 4);
    assert_eq!(fixture.store.purge_idempotency(4).await.unwrap(), 2);
    assert_eq!(fixture.store.purge_idempotency(4).await.unwrap(), 0);
    let repeat = Answer::of(server.post("/pay", "old0", "another request")).await;
    assert!(repeat.is_repeat_of(&anew), "what has not expired is kept");
    server.stop(fixture).await;
}

async fn without_a_database_the_answer_is_503<DB: KeyDatabase>(_: &Fixture<DB>) {
    let gone = DB::fixture().await;
    let layer = IdempotencyLayer::new(gone.outbox(), gone.pool.clone(), |_| Some(String::new()));
    let router = Router::new().route("/", post(|| async { "never" })).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let task = spawn(async move { axum::serve(listener, router).await.unwrap() });
    let pool = gone.pool.clone();
    gone.clean().await;
    pool.close().await;
    let answer = Answer::of(client().post(url).header("idempotency-key", "k")).await;
    answer.is_problem(503, "unavailable");
    assert_eq!(answer.header("retry-after"), Some("1"));
    task.abort();
}

async fn a_handler_whose_connection_is_cut_is_503_and_its_key_free<DB: KeyDatabase>() {
    let fixture = DB::fixture().await;
    let server = Server::start(&fixture).await;
    server.pay("k", "cut").await.is_problem(503, "unavailable");
    freed(&fixture).await;
    assert_eq!(fixture.number(EFFECTS).await, 0);
    assert_eq!(server.pay("k", "").await.status, 201);
    assert_eq!((server.ran(), fixture.number(EFFECTS).await), (2, 1));
    server.stop(&fixture).await;
    fixture.clean().await;
}

#[tokio::test]
async fn on_postgres_a_handler_whose_connection_is_cut_is_503_and_its_key_free() {
    a_handler_whose_connection_is_cut_is_503_and_its_key_free::<sqlx::Postgres>().await;
}

#[tokio::test]
async fn on_mariadb_a_handler_whose_connection_is_cut_is_503_and_its_key_free() {
    a_handler_whose_connection_is_cut_is_503_and_its_key_free::<sqlx::MySql>().await;
}
