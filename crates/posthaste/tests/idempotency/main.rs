//! Idempotency keys, against a running server on each database: one key, one effect, one response.

#[path = "../support/mod.rs"]
mod support;

mod shop;

mod faults;

mod hang_ups;

use futures_util::future::join_all;
use tokio::task::spawn;

use faults::{
    a_client_that_hangs_up_frees_the_key, a_handler_that_forgets_to_commit_is_500,
    a_handler_that_gives_a_savepoint_up_is_500_and_its_key_free,
    a_handler_that_panics_frees_the_key, a_handler_that_rolls_back_frees_the_key,
    a_handler_whose_transaction_the_driver_has_committed_takes_no_effect_again,
    a_refusal_that_was_committed_is_repeated,
    a_response_that_is_too_large_undoes_the_effect_or_tells_of_it,
    a_transaction_that_was_handed_back_before_the_handler_was_given_up_is_rolled_back,
    an_overtaken_handler_is_fenced, expired_keys_are_forgotten_and_purged_in_steps,
    without_a_database_the_answer_is_503,
    without_the_transaction_the_response_is_stored_after_the_effect,
};
use shop::{Answer, EFFECTS, EVENTS, KEYS, KeyDatabase, MAX, Server};
use support::{Fixture, soon};

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
    a_handler_that_gives_a_savepoint_up_is_500_and_its_key_free,
    a_handler_whose_transaction_the_driver_has_committed_takes_no_effect_again,
    a_handler_that_panics_frees_the_key,
    a_client_that_hangs_up_frees_the_key,
    a_response_that_is_too_large_undoes_the_effect_or_tells_of_it,
    without_the_transaction_the_response_is_stored_after_the_effect,
    an_overtaken_handler_is_fenced,
    a_transaction_that_was_handed_back_before_the_handler_was_given_up_is_rolled_back,
    expired_keys_are_forgotten_and_purged_in_steps,
    without_a_database_the_answer_is_503,
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
    let nameless = server.client.post(&url).header("idempotency-key", "k").body("42");
    Answer::of(nameless.header("x-tenant", "")).await.is_problem(403, "no-scope");
    assert_eq!((server.ran(), fixture.number(KEYS).await), (0, 0));
    let fits = server.post("/pay", "k", "").body("x".repeat(MAX));
    // The receipt repeats the body, and is too large by that.
    Answer::of(fits).await.is_problem(500, "response-too-large");
    server.stop(fixture).await;
}

async fn tenants_do_not_share_keys<DB: KeyDatabase>(fixture: &Fixture<DB>) {
    let server = Server::start(fixture).await;
    let url = format!("{}/pay", server.url);
    let long = "t".repeat(101);
    let longer = "t".repeat(102);
    for tenant in ["acme", "Acme", "globex", &long, &longer] {
        let request = server.client.post(&url).header("x-tenant", tenant);
        let answer = Answer::of(request.header("idempotency-key", "k").body("42")).await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (201, None), "{tenant}");
    }
    assert_eq!(fixture.number(EFFECTS).await, 5);
    // A scope that is too long to be stored is known again all the same.
    let repeat = server.client.post(&url).header("x-tenant", &long).header("idempotency-key", "k");
    let repeat = Answer::of(repeat.body("42")).await;
    assert_eq!((repeat.status, repeat.header("idempotent-replayed")), (201, Some("true")));
    server.stop(fixture).await;
}
