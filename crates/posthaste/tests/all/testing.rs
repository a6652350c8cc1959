//! The help for applications' tests, as an application would use it.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use posthaste::{
    Event, assert_enqueued, assert_not_enqueued, testing::TestOutbox, transport::Outcome,
    transports::memory::MemoryTransport,
};

fn event(event_type: &str, order: u32) -> Event {
    Event::builder(event_type)
        .aggregate("Order", order)
        .tenant("acme")
        .raw_json(r#"{"marker":"hush"}"#)
        .build()
        .unwrap()
}

async fn committed(test: &TestOutbox, events: Vec<Event>) {
    let mut tx = test.outbox().begin(test.pool()).await.unwrap();
    test.outbox().enqueue_all(&mut tx, events).await.unwrap();
    tx.commit().await.unwrap();
}

/// What a failed assertion says.
async fn failure(assertion: impl Future<Output = ()>) -> String {
    let panic = AssertUnwindSafe(assertion).catch_unwind().await.expect_err("it should fail");
    *panic.downcast::<String>().expect("a message")
}

#[tokio::test]
async fn what_was_committed_is_found_by_its_type_and_fields() {
    let test = TestOutbox::new().await.unwrap();
    committed(&test, vec![event("OrderPlaced", 1), event("OrderPlaced", 2)]).await;
    let found = assert_enqueued!(test, "OrderPlaced");
    let ids: Vec<_> = found.iter().map(|found| found.event.aggregate_id()).collect();
    assert_eq!(ids, [Some("1"), Some("2")]);
    assert_eq!(assert_enqueued!(test, "OrderPlaced", aggregate_id = 2, tenant = "acme").len(), 1);
    assert_not_enqueued!(test, "OrderPlaced", aggregate_id = 3);
    assert_not_enqueued!(test, "OrderCancelled");
}

#[tokio::test]
async fn what_was_rolled_back_is_not() {
    let test = TestOutbox::new().await.unwrap();
    let mut tx = test.outbox().begin(test.pool()).await.unwrap();
    test.outbox().enqueue(&mut tx, event("OrderPlaced", 1)).await.unwrap();
    assert_not_enqueued!(test, "OrderPlaced");
    tx.rollback().await.unwrap();
    assert_not_enqueued!(test, "OrderPlaced");
}

#[tokio::test]
async fn a_failed_assertion_says_what_is_there_and_no_payload() {
    let test = TestOutbox::new().await.unwrap();
    let said = failure(async { drop(assert_enqueued!(test, "OrderPlaced")) }).await;
    assert!(said.contains("the outbox is empty"), "{said}");
    committed(&test, vec![event("OrderPlaced", 1)]).await;
    let said =
        failure(async { drop(assert_enqueued!(test, "OrderPlaced", aggregate_id = 7)) }).await;
    assert!(said.contains("OrderPlaced of Order 1, tenant acme"), "{said}");
    assert!(said.contains("aggregate_id = 7") && !said.contains("hush"), "{said}");
    let said = failure(async { assert_not_enqueued!(test, "OrderPlaced") }).await;
    assert!(said.contains("1 times"), "{said}");
}

#[tokio::test]
async fn a_relay_moves_only_when_the_test_says_so() {
    let test = TestOutbox::new().await.unwrap();
    committed(&test, vec![event("OrderPlaced", 1), event("OrderPaid", 1)]).await;
    let delivered = test.deliver().await.unwrap();
    let types: Vec<_> = delivered.iter().map(|envelope| envelope.event.event_type()).collect();
    assert_eq!(types, ["OrderPlaced", "OrderPaid"]);
    assert!(test.deliver().await.unwrap().is_empty());

    committed(&test, vec![event("OrderShipped", 1)]).await;
    let refusing = MemoryTransport::scripted(|_| Outcome::dead("no such customer"));
    let stats = test.relay(Arc::new(refusing)).unwrap().relay_once().await.unwrap();
    assert_eq!(stats.dead, 1);
}

#[tokio::test]
async fn tests_do_not_see_each_other() {
    let (one, other) = (TestOutbox::new().await.unwrap(), TestOutbox::new().await.unwrap());
    committed(&one, vec![event("OrderPlaced", 1)]).await;
    assert_not_enqueued!(other, "OrderPlaced");
}
