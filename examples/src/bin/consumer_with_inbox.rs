//! A consumer on NATS JetStream: acknowledged after the commit, and each effect once.
//!
//! The server delivers a message again when the consumer died before it acknowledged, and a relay
//! that died may have published it twice. The inbox answers both.
//!
//! ```sh
//! cargo run -p posthaste-examples --bin consumer_with_inbox -- --nats nats://127.0.0.1:4222 --stream shop
//! ```

use std::time::Duration;

use async_nats::{
    HeaderValue,
    jetstream::{self, AckKind, consumer::pull},
};
use clap::Parser;
use futures_util::StreamExt;
use posthaste::message_id;

use shipments::{CONSUMER, Failure, Shipments, report};

#[path = "../nats.rs"]
mod nats;
#[path = "../shipments.rs"]
mod shipments;

#[derive(Parser)]
struct Args {
    /// The server
    #[arg(long, default_value = "nats://127.0.0.1:4222")]
    nats: String,
    /// The stream into which a relay publishes
    #[arg(long, default_value = "shop")]
    stream: String,
    /// The consumer's own database
    #[arg(long, default_value = "sqlite:shipping.db")]
    database: String,
    /// Seconds after which the server delivers again what was not acknowledged
    #[arg(long, default_value_t = 30)]
    ack_wait: u64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let shipments = Shipments::open(&args.database).await?;
    let context = jetstream::new(nats::connect(&args.nats).await?);
    let config = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        ack_wait: Duration::from_secs(args.ack_wait),
        ..pull::Config::default()
    };
    let stream = context.get_stream(&args.stream).await?;
    let consumer = stream.get_or_create_consumer(CONSUMER, config).await?;
    let mut messages = consumer.messages().await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        match handle(&shipments, &message).await {
            // After the commit: a crash in between brings the message again, as a duplicate.
            Ok(()) => message.ack().await?,
            Err(error) => {
                eprintln!("{error}; the message comes again");
                message.ack_with(AckKind::Nak(Some(Duration::from_secs(1)))).await?;
            }
        }
    }
    Ok(())
}

async fn handle(shipments: &Shipments, message: &jetstream::Message) -> Result<(), Failure> {
    let header = |name: &str| message.headers.as_ref()?.get(name).map(HeaderValue::as_str);
    let id = message_id(header).ok_or("a message without an id")?;
    let order = std::str::from_utf8(&message.payload)?;
    report(order, shipments.ship(id, order).await?);
    Ok(())
}
