//! The consumer on NATS, killed half-way.

use std::{collections::HashSet, time::Duration};

use crate::support::{Database, Program, given, soon};
use async_nats::{
    HeaderMap,
    jetstream::{self, consumer::pull, stream},
};
use uuid::Uuid;

#[path = "../../src/nats.rs"]
mod nats;
const ORDERS: usize = 100;

#[tokio::test]
async fn every_order_is_shipped_once_although_messages_repeat_and_the_consumer_is_killed() {
    let (url, name) =
        (given("POSTHASTE_TEST_NATS"), format!("example_{}", Uuid::now_v7().simple()));
    let context = jetstream::new(nats::connect(&url).await.unwrap());
    let config = stream::Config {
        name: name.clone(),
        subjects: vec![name.clone()],
        ..stream::Config::default()
    };
    let stream = context.create_stream(config).await.unwrap();
    for _ in 0..3 {
        for n in 0..ORDERS {
            let mut headers = HeaderMap::new();
            headers.insert("posthaste-id", format!("0190a5c4-7c1e-7000-8000-{n:012x}"));
            let order = format!("order-{n}").into();
            context
                .publish_with_headers(name.clone(), headers, order)
                .await
                .unwrap()
                .await
                .unwrap();
        }
    }

    let database = Database::new();
    let place = database.url();
    let args = ["--nats", &url, "--stream", &name, "--database", &place, "--ack-wait", "1"];
    let start = || Program::start(env!("CARGO_BIN_EXE_consumer_with_inbox"), &args);
    let mut consumer = start();
    let mut shipped = HashSet::new();
    for _ in 0..ORDERS / 2 {
        assert!(shipped.insert(consumer.line().await), "shipped twice");
    }
    consumer.kill().await;

    let consumer = start();
    soon("consuming", async {
        loop {
            let state = stream.get_consumer::<pull::Config>("shipping").await.unwrap();
            let info = state.get_info().await.unwrap();
            if info.num_pending == 0 && info.num_ack_pending == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let orders: Vec<String> = sqlx::query_scalar("select order_id from shipments")
        .fetch_all(&database.pool().await)
        .await
        .unwrap();
    assert_eq!(orders.len(), ORDERS);
    assert_eq!(orders.iter().collect::<HashSet<_>>().len(), ORDERS);
    consumer.kill().await;
    context.delete_stream(&name).await.unwrap();
}
