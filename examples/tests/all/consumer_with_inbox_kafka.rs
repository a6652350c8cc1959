//! The consumer on Kafka.

use std::collections::HashSet;

use crate::support::{Database, Program, given};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
    util::Timeout,
};
use uuid::Uuid;

const ORDERS: usize = 50;

#[tokio::test]
async fn every_order_is_shipped_once_although_messages_repeat() {
    let url = given("POSTHASTE_TEST_KAFKA");
    let brokers = url.trim_start_matches("kafka://");
    let topic = format!("example_{}", Uuid::now_v7().simple());
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let new = NewTopic::new(&topic, 1, TopicReplication::Fixed(1));
    admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let producer: FutureProducer = config.create().unwrap();
    for _ in 0..3 {
        for n in 0..ORDERS {
            let (id, order) = (format!("0190a5c4-7c1e-7000-8000-{n:012x}"), format!("order-{n}"));
            let headers = OwnedHeaders::new().insert(Header { key: "ce_id", value: Some(&id) });
            let record = FutureRecord::<str, _>::to(&topic).payload(&order).headers(headers);
            producer.send(record, Timeout::Never).await.unwrap();
        }
    }

    let database = Database::new();
    let args = ["--brokers", brokers, "--topic", &topic, "--database", &database.url()];
    let mut consumer = Program::start(env!("CARGO_BIN_EXE_consumer_with_inbox_kafka"), &args);
    let mut shipped = HashSet::new();
    let mut duplicates = 0;
    while shipped.len() + duplicates < 3 * ORDERS {
        match consumer.line().await {
            line if line.starts_with("duplicate ") => duplicates += 1,
            line => assert!(shipped.insert(line), "shipped twice"),
        }
    }
    consumer.kill().await;
    let rows: i64 = sqlx::query_scalar("select count(*) from shipments")
        .fetch_one(&database.pool().await)
        .await
        .unwrap();
    assert_eq!((shipped.len(), duplicates, rows), (ORDERS, 2 * ORDERS, ORDERS as i64));
    admin.delete_topics(&[&topic], &AdminOptions::new()).await.unwrap();
}
