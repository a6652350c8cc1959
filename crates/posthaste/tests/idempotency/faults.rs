//! What breaks on the way: handlers, clients, connections, leases.

use std::time::Duration;

use axum::{Router, routing::post};
use futures_util::{FutureExt as _, future::join_all};
use posthaste::idempotency::IdempotencyLayer;
use sqlx::{mysql::MySqlPoolOptions, postgres::PgPoolOptions};
use tokio::{net::TcpListener, task::spawn, time::timeout};

use crate::{
    shop::{Answer, EFFECTS, EVENTS, KEYS, KeyDatabase, Server, client},
    support::{Fixture, TestDatabase, soon, url},
};

pub async fn a_refusal_that_was_committed_is_repeated<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let first = server.pay("k", "decline").await;
    assert_eq!(first.status, 402);
    assert!(server.pay("k", "").await.is_repeat_of(&first));
    assert_eq!((server.ran(), fixture.number(EFFECTS).await), (1, 1));
    server.stop(fixture).await;
}

pub async fn a_handler_that_rolls_back_frees_the_key<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    for (behaviour, status) in [("refuse", 400), ("fail", 502)] {
        assert_eq!(server.pay("k", behaviour).await.status, status);
        assert_eq!((fixture.number(EFFECTS).await, fixture.number(KEYS).await), (0, 0));
    }
    assert_eq!(server.pay("k", "").await.status, 201);
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(EVENTS).await), (1, 1));
    server.stop(fixture).await;
}

pub async fn a_handler_that_forgets_to_commit_is_500<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    server.pay("k", "forget").await.is_problem(500, "not-committed");
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(KEYS).await), (0, 0));
    server.stop(fixture).await;
}

pub async fn a_transaction_that_was_handed_back_before_the_handler_was_given_up_is_rolled_back<
    DB: KeyDatabase,
>(
    fixture: &Fixture<DB>,
) {
    let server = Server::start(fixture).await;
    for (behaviour, status) in [("hang", 408), ("die", 500)] {
        assert_eq!(server.pay("k", behaviour).await.status, status);
        let optional = server.client.post(format!("{}/optional/pay", server.url));
        let answer = Answer::of(optional.header("x-do", behaviour).body("42")).await;
        assert_eq!(answer.status, status, "without a key");
        assert_eq!((fixture.number(EFFECTS).await, fixture.number(KEYS).await), (0, 0));
    }
    assert_eq!(server.pay("k", "").await.status, 201, "the key is free");
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(EVENTS).await), (1, 1));
    server.stop(fixture).await;
}

async fn freed<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let free = async { while fixture.number(KEYS).await > 0 {} };
    soon("freeing the key", free).await;
}

pub async fn a_handler_that_panics_frees_the_key<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let request = server.post("/pay", "k", "42").header("x-do", "panic");
    assert!(soon("hanging up", request.send()).await.is_err(), "the connection was cut");
    freed(fixture).await;
    assert_eq!(server.pay("k", "").await.status, 201);
    assert_eq!(fixture.number(EFFECTS).await, 1);
    server.stop(fixture).await;
}

pub async fn a_client_that_hangs_up_frees_the_key<DB: KeyDatabase>(fixture: &Fixture<DB>) {
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

pub async fn a_response_that_is_too_large_undoes_the_effect_or_tells_of_it<DB: KeyDatabase>(
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

pub async fn without_the_transaction_the_response_is_stored_after_the_effect<DB: KeyDatabase>(
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

/// As with a timeout around a savepoint. The driver rolls back the whole transaction with it: a response that was
/// written then would be stored, and the effect would not.
pub async fn a_handler_that_gives_a_savepoint_up_is_500_and_its_key_free<DB: KeyDatabase>(
    fixture: &Fixture<DB>,
) {
    let server = Server::start(fixture).await;
    for behaviour in ["give-up", "give-up-the-drivers"] {
        server.pay("k", behaviour).await.is_problem(500, "database");
        let stored = fixture.number(&format!("{KEYS} where status is not null")).await;
        assert_eq!(stored, 0, "{behaviour}: a response without its effect");
        freed(fixture).await;
        let optional = server.client.post(format!("{}/optional/pay", server.url));
        let answer = Answer::of(optional.header("x-do", behaviour).body("42")).await;
        answer.is_problem(500, "database");
        assert_eq!((fixture.number(EFFECTS).await, fixture.number(EVENTS).await), (0, 0));
    }
    assert_eq!(server.pay("k", "").await.status, 201, "the key is free");
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(EVENTS).await), (1, 1));
    server.stop(fixture).await;
}

/// As with a timeout around a savepoint in another one, which the handler then releases: the driver
/// sends the commit of the whole transaction for it. There is an effect without its response, and a
/// repeat must not add another one.
pub async fn a_handler_whose_transaction_the_driver_has_committed_takes_no_effect_again<
    DB: KeyDatabase,
>(
    fixture: &Fixture<DB>,
) {
    let server = Server::start(fixture).await;
    for (n, behaviour) in ["mistake", "mistake-and-fail"].into_iter().enumerate() {
        let first = server.pay(behaviour, behaviour).await;
        let effects = n as i64 + 1;
        let taken = (fixture.number(EFFECTS).await, fixture.number(EVENTS).await);
        assert_eq!(taken, (effects, effects), "{behaviour}: the driver has committed it");
        let repeat = server.pay(behaviour, "").await;
        assert_eq!(fixture.number(EFFECTS).await, effects, "{behaviour}: took effect twice");
        first.is_problem(500, "outcome-unknown");
        assert!(repeat.is_repeat_of(&first), "{behaviour}: {repeat:?}");
    }
    assert_eq!(server.pay("k", "").await.status, 201);
    server.stop(fixture).await;
}

/// The lease ends under a slow handler, and a repeat overtakes it: the late one is rolled back.
pub async fn an_overtaken_handler_is_fenced<DB: KeyDatabase>(fixture: &Fixture<DB>) {
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

pub async fn expired_keys_are_forgotten_and_purged_in_steps<DB: KeyDatabase>(
    fixture: &Fixture<DB>,
) {
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

pub async fn without_a_database_the_answer_is_503<DB: KeyDatabase>(_: &Fixture<DB>) {
    let gone = DB::fixture().await;
    let layer =
        IdempotencyLayer::new(gone.outbox(), gone.pool.clone(), |_| Some("acme".to_owned()));
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

/// The server would answer the commit with success, and MySQL would store the response besides.
async fn a_handler_that_passes_over_the_end_of_its_transaction_is_500<DB: KeyDatabase>() {
    let fixture = DB::fixture().await;
    let server = Server::start(&fixture).await;
    server.pay("k", "ignore").await.is_problem(500, "database");
    freed(&fixture).await;
    let optional = server.client.post(format!("{}/optional/pay", server.url));
    Answer::of(optional.header("x-do", "ignore").body("42")).await.is_problem(500, "database");
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(EVENTS).await), (0, 0));
    assert_eq!(server.pay("k", "").await.status, 201, "the key is free");
    server.stop(&fixture).await;
    fixture.clean().await;
}

#[tokio::test]
async fn on_postgres_a_handler_that_passes_over_the_end_of_its_transaction_is_500() {
    a_handler_that_passes_over_the_end_of_its_transaction_is_500::<sqlx::Postgres>().await;
}

#[tokio::test]
async fn on_mariadb_a_handler_that_passes_over_the_end_of_its_transaction_is_500() {
    a_handler_that_passes_over_the_end_of_its_transaction_is_500::<sqlx::MySql>().await;
}

/// The driver has lost its place in the answers: whoever stores the response would never return,
/// with the transaction's locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_a_handler_that_gives_a_statement_up_is_answered_soon_and_its_key_free() {
    let fixture = <sqlx::MySql as TestDatabase>::fixture().await;
    let server = Server::start(&fixture).await;
    for behaviour in ["give-up-2", "give-up-8"] {
        let limit = Duration::from_secs(20);
        let answer = timeout(limit, server.pay("k", behaviour)).await.expect(behaviour);
        answer.is_problem(503, "unavailable");
        freed(&fixture).await;
        let optional = server.client.post(format!("{}/optional/pay", server.url));
        let answer = Answer::of(optional.header("x-do", behaviour).body("42"));
        let answer = timeout(limit, answer).await.expect(behaviour);
        answer.is_problem(503, "unavailable");
        assert_eq!((fixture.number(EFFECTS).await, fixture.number(EVENTS).await), (0, 0));
    }
    assert_eq!(server.pay("k", "").await.status, 201, "the key is free");
    assert_eq!((fixture.number(EFFECTS).await, fixture.number(EVENTS).await), (1, 1));
    server.stop(&fixture).await;
    fixture.clean().await;
}

/// A pool on which nothing commits by itself: a claim that is not committed locks its key for
/// everybody, the handler's own response included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_keys_are_claimed_on_a_pool_on_which_nothing_commits_by_itself() {
    let fixture = <sqlx::MySql as TestDatabase>::fixture().await;
    let pool = MySqlPoolOptions::new()
        .max_connections(4)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let set = "set autocommit = 0, innodb_lock_wait_timeout = 2";
                sqlx::raw_sql(set).execute(connection).await.map(drop)
            })
        })
        .connect(&url("POSTHASTE_TEST_MARIADB"))
        .await
        .unwrap();
    let server = Server::start_with(&fixture, fixture.outbox(), pool.clone()).await;
    let mut answers = Vec::new();
    for n in 0..8 {
        let (first, repeat) =
            (server.pay(&format!("k{n}"), "").await, server.pay(&format!("k{n}"), "").await);
        answers.push((first.status, repeat.is_repeat_of(&first)));
    }
    assert_eq!(answers, [(201, true); 8]);
    for counted in [EFFECTS, EVENTS, KEYS] {
        assert_eq!(fixture.number(counted).await, 8, "{counted}");
    }
    pool.close().await;
    server.stop(&fixture).await;
    fixture.clean().await;
}

/// Behind a pooler that lends out connections by the transaction, to more than it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_transaction_pooler_keys_are_claimed_stored_given_back_and_purged() {
    const CLIENTS: usize = 50;

    let fixture = <sqlx::Postgres as TestDatabase>::fixture().await;
    let pool = PgPoolOptions::new()
        .max_connections(CLIENTS as u32)
        .connect(&url("POSTHASTE_TEST_PGBOUNCER"))
        .await
        .unwrap();
    let outbox = fixture.outbox().without_named_statements();
    let server = Server::start_with(&fixture, outbox, pool.clone()).await;
    let answers = join_all((0..CLIENTS).map(async |n| {
        let key = format!("k{n}");
        let plain = |behaviour: &'static str| {
            Answer::of(server.post("/plain", &key, "42").header("x-do", behaviour))
                .map(|answer| answer.status)
        };
        [plain("later").await, plain("").await]
    }))
    .await;
    assert_eq!(answers, vec![[429, 200]; CLIENTS]);
    let earlier = Fixture::<sqlx::Postgres>::earlier("expires_at", 100_000);
    fixture.sql(&format!("update {{idempotency}} set expires_at = {earlier}")).await;
    let purges = join_all((0..CLIENTS).map(|_| server.layer.purge(CLIENTS))).await;
    let purged: u64 = purges.into_iter().map(Result::unwrap).sum();
    assert_eq!(purged, CLIENTS as u64);
    server.stop(&fixture).await;
    pool.close().await;
    fixture.clean().await;
}
