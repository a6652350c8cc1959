//! Payments over HTTP, as a client sees them, and as it sees a server that dies.

use crate::support::{Database, Program, given, soon};
use reqwest::{Client, Response};
use serde_json::{Value, json};

async fn start(args: &[&str]) -> (Program, String) {
    let args = [args, &["--listen", "127.0.0.1:0"]].concat();
    let mut program = Program::start(env!("CARGO_BIN_EXE_payments"), &args);
    let line = program.line().await;
    let url = line.strip_prefix("listening on ").expect("the address").to_owned();
    (program, format!("{url}/payments"))
}

fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

async fn pay(url: &str, key: &str, amount: i64) -> Response {
    let request = client()
        .post(url)
        .header("authorization", "Bearer alice")
        .header("idempotency-key", format!("\"{key}\""))
        .json(&json!({ "amount": amount }));
    soon("a payment", request.send()).await.unwrap()
}

async fn a_repeat_gets_the_first_receipt(database: &[&str]) {
    let (_program, url) = start(database).await;
    for (key, amount, status) in [("accepted", 1999, 201), ("declined", 10_001, 402)] {
        let first = pay(&url, key, amount).await;
        assert_eq!(first.status(), status);
        let first: Value = first.json().await.unwrap();
        assert_eq!(first["accepted"], status == 201);
        let repeat = pay(&url, key, amount).await;
        assert_eq!(repeat.status(), status);
        assert_eq!(repeat.headers()["idempotent-replayed"], "true");
        assert_eq!(repeat.json::<Value>().await.unwrap(), first);
    }
    assert_eq!(pay(&url, "accepted", 2000).await.status(), 422);
    let nobody = client().post(&url).header("idempotency-key", "k").send().await.unwrap();
    assert_eq!(nobody.status(), 401);
}

#[tokio::test]
async fn a_repeat_gets_the_first_receipt_on_sqlite() {
    let database = Database::new();
    a_repeat_gets_the_first_receipt(&["--database", &database.url()]).await;
    let rows = "select (select count(*) from payments), (select count(*) from outbox_event)";
    let rows: (i64, i64) = sqlx::query_as(rows).fetch_one(&database.pool().await).await.unwrap();
    assert_eq!(rows, (2, 1), "two payments, and an event for the one that was accepted");
    let scopes = "select distinct scope from outbox_event_idempotency";
    let scopes: Vec<String> =
        sqlx::query_scalar(scopes).fetch_all(&database.pool().await).await.unwrap();
    assert_eq!(scopes, ["account-1"], "whose the token is, never the token");
}

#[tokio::test]
async fn a_repeat_gets_the_first_receipt_on_postgres() {
    let url = given("POSTHASTE_TEST_POSTGRES");
    let tables = posthaste_testkit::tables::unique("payments");
    let table = tables.name().to_string();
    a_repeat_gets_the_first_receipt(&["--database", &url, "--table", &table]).await;
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    posthaste_testkit::tables::drop_outbox(&pool, &tables).await.unwrap();
    sqlx::query("drop table payments").execute(&pool).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_killed_in_the_handler_leaves_the_key_usable() {
    let database = Database::new();
    let place = database.url();
    let common = ["--database", &place, "--lease", "500"];
    let (mut program, url) = start(&[&common[..], &["--bank", "600000"]].concat()).await;
    let running = tokio::spawn(async move { client_that_is_cut_off(&url).await });
    assert!(program.line().await.starts_with("asking the bank"), "it is in its transaction");
    program.kill().await;
    assert!(running.await.unwrap(), "the client heard nothing");

    let (_program, url) = start(&common).await;
    let receipt = soon("a retry", async {
        loop {
            let answer = pay(&url, "k", 1999).await;
            if answer.status() != 409 {
                return answer;
            }
            assert_eq!(answer.headers()["retry-after"], "1");
        }
    })
    .await;
    assert_eq!(receipt.status(), 201);
    assert!(!receipt.headers().contains_key("idempotent-replayed"), "the killed one left nothing");
    let paid: i64 = sqlx::query_scalar("select count(*) from payments")
        .fetch_one(&database.pool().await)
        .await
        .unwrap();
    assert_eq!(paid, 1);
}

async fn client_that_is_cut_off(url: &str) -> bool {
    let request = client()
        .post(url)
        .header("authorization", "Bearer alice")
        .header("idempotency-key", "k")
        .json(&json!({ "amount": 1999 }));
    soon("being cut off", request.send()).await.is_err()
}
