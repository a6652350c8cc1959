//! A consumer on Kafka: offsets are committed after the transaction, and each effect happens once.
//!
//! ```sh
//! cargo run -p posthaste-examples --features kafka --bin consumer_with_inbox_kafka -- \
//!     --brokers 127.0.0.1:9092 --topic Order
//! ```

use std::time::Duration;

use clap::Parser;
use posthaste::message_id;
use rdkafka::{
    ClientConfig, Message,
    consumer::{CommitMode, Consumer, StreamConsumer},
    message::{BorrowedMessage, Headers},
};

use shipments::{CONSUMER, Failure, Shipments, report};

#[path = "../shipments.rs"]
mod shipments;

#[derive(Parser)]
struct Args {
    /// Brokers, separated by commas
    #[arg(long, default_value = "127.0.0.1:9092")]
    brokers: String,
    /// The topic into which a relay publishes
    #[arg(long, default_value = "Order")]
    topic: String,
    /// The consumer's own database
    #[arg(long, default_value = "sqlite:shipping.db")]
    database: String,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let shipments = Shipments::open(&args.database).await?;
    let consumer: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", &args.brokers)
        .set("group.id", CONSUMER)
        .set("auto.offset.reset", "earliest")
        // By hand: on its own the client would acknowledge what was read and not yet handled.
        .set("enable.auto.commit", "false")
        .create()?;
    consumer.subscribe(&[&args.topic])?;
    loop {
        let message = consumer.recv().await?;
        // There is no way to give one message back; those behind it wait.
        while let Err(error) = handle(&shipments, &message).await {
            eprintln!("{error}; it is tried again");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // After the commit. A lost one brings the message again, as a duplicate.
        consumer.commit_message(&message, CommitMode::Async)?;
    }
}

async fn handle(shipments: &Shipments, message: &BorrowedMessage<'_>) -> Result<(), Failure> {
    let header = |name: &str| {
        let mut headers = message.headers()?.iter();
        std::str::from_utf8(headers.find(|header| header.key == name)?.value?).ok()
    };
    let id = message_id(header).ok_or("a message without an id")?;
    let order = std::str::from_utf8(message.payload().unwrap_or_default())?;
    report(order, shipments.ship(id, order).await?);
    Ok(())
}
