//! Kafka: what every transport must do, and what only this one promises.
//!
//! The server is Tansu, which speaks Kafka's protocol. What it cannot do (logins, a limit of its own
//! for messages, topics that stay missing, errors on demand) is tested beside the transport, on the client
//! library's mock.

use std::{env, net::SocketAddr, path::Path, process::Command, sync::Arc};

use async_trait::async_trait;
use posthaste_core::{
    Event, Result,
    transport::{Outcome, Transport},
};
use posthaste_testkit::transports::{
    Destination, Options, Received, Server, Traits, consume, consumer,
};
use posthaste_transports::kafka::{Kafka, KafkaConfig};

use support::{built, envelope, given};

mod support;

#[cfg(feature = "kafka-tls")]
#[path = "kafka/tls.rs"]
mod tls;

struct Subject;

async fn subject() -> Option<Subject> {
    env::var("POSTHASTE_TEST_KAFKA").ok().map(|_| Subject)
}

posthaste_testkit::transport_conformance!(subject);

#[async_trait]
impl Destination for Subject {
    fn traits(&self) -> Traits {
        Traits {
            prefix: "ce_",
            binding: Some("kafka"),
            keys: true,
            // The server knows no users.
            credentials: false,
            ..Traits::default()
        }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_KAFKA").expect("the subject was made")
    }

    fn server(&self) -> Server {
        let server = env::var("POSTHASTE_TEST_KAFKA_SERVER").expect("the path of tansu");
        Server::new(
            |port| format!("kafka://127.0.0.1:{port}"),
            move |port, folder| {
                let listener = format!("tcp://127.0.0.1:{port}");
                let mut command = Command::new(&server);
                command.args(["broker", "--listener-url", &listener]);
                command.args(["--advertised-listener-url", &listener]);
                match env::var("POSTHASTE_TEST_BUCKETS") {
                    Ok(buckets) => in_bucket(&mut command, &buckets, folder),
                    // Relative to the server's own folder.
                    Err(_) => command.args(["--storage-engine", "sqlite://tansu.db"]),
                };
                command
            },
        )
    }

    fn server_behind(&self, proxy: SocketAddr) -> Option<Server> {
        let server = env::var("POSTHASTE_TEST_KAFKA_SERVER").expect("the path of tansu");
        Some(Server::new(
            |port| format!("kafka://127.0.0.1:{port}"),
            move |port, _| {
                let mut command = Command::new(&server);
                command.args(["broker", "--listener-url", &format!("tcp://127.0.0.1:{port}")]);
                command.args(["--advertised-listener-url", &format!("tcp://{proxy}")]);
                command.args(["--storage-engine", "memory://tansu/"]);
                command
            },
        ))
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        let mut config = KafkaConfig::from_url(&options.on(url))?;
        // The server has no limit, so it is the producer's that is tested.
        if let Some(limit) = options.max_message {
            config.max_message = limit;
        }
        Ok(Arc::new(Kafka::new(config)?))
    }

    async fn prepare(&self, url: &str, topic: &str) {
        let _: Vec<Received> = consume(consumer("kafka"), &["prepare", place(url), topic]).await;
    }

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        consume(consumer("kafka"), &["read", place(url), topic]).await
    }
}

/// Keeps the server's data where they outlive it. Servers share the bucket: each is a cluster.
fn in_bucket<'c>(command: &'c mut Command, buckets: &str, folder: &Path) -> &'c mut Command {
    let cluster = folder.file_name().and_then(|name| name.to_str()).expect("a folder has a name");
    command
        .args(["--cluster-id", cluster, "--storage-engine", "s3://tansu/"])
        .env("AWS_ENDPOINT", buckets)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_CONDITIONAL_PUT", "etag")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "posthaste")
        .env("AWS_SECRET_ACCESS_KEY", "posthaste")
}

/// What other clients call `bootstrap.servers`.
fn place(url: &str) -> &str {
    url.strip_prefix("kafka://").expect("the URL is one of Kafka")
}

/// Where the shared server is, with these parameters.
fn shared(parameters: &str) -> Option<Kafka> {
    let url = given("POSTHASTE_TEST_KAFKA")?;
    Some(Kafka::new(KafkaConfig::from_url(&format!("{url}?{parameters}")).unwrap()).unwrap())
}

fn unique(prefix: &str) -> String {
    format!("{prefix}-{:016x}", fastrand::u64(..))
}

fn error(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Delivered => "",
        Outcome::Retry { error, .. }
        | Outcome::TimedOut { error }
        | Outcome::Dead { error }
        | Outcome::Unavailable { error, .. } => error,
    }
}

#[tokio::test]
async fn every_compression_is_read_by_an_independent_client() {
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let Some(kafka) = shared(&format!("compression={compression}")) else { return };
        let topic = unique(compression);
        Subject.prepare(&Subject.url(), &topic).await;
        let batch: Vec<_> = (0..50).map(|_| envelope(&topic, "a")).collect();
        for outcome in kafka.publish(&batch).await {
            assert_eq!(outcome, Outcome::Delivered, "{compression}");
        }
        let received = Subject.read(&Subject.url(), &topic).await;
        assert_eq!(received.len(), 50, "{compression}");
        assert!(received.iter().all(|message| message.body == b"hello"), "{compression}");
    }
}

#[tokio::test]
async fn an_event_without_an_ordering_key_has_no_key_and_one_without_bytes_is_no_tombstone() {
    let Some(kafka) = shared("") else { return };
    let topic = unique("keyless");
    Subject.prepare(&Subject.url(), &topic).await;
    let mut event = built(Event::builder("OrderPlaced").topic(&topic));
    event.event = Event::builder("OrderPlaced")
        .topic(&topic)
        .bytes("text/plain", Vec::new())
        .build()
        .unwrap();
    assert_eq!(kafka.publish(&[event]).await, [Outcome::Delivered]);
    let received = Subject.read(&Subject.url(), &topic).await;
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].key, None);
    assert!(received[0].body.is_empty());
}

#[tokio::test]
async fn a_topic_that_cannot_be_one_is_dead_and_the_next_one_goes_on() {
    let Some(kafka) = shared("") else { return };
    let topic = unique("fine");
    Subject.prepare(&Subject.url(), &topic).await;
    let long = "x".repeat(250);
    let batch = [
        envelope("orders placed", "a"),
        envelope("Zürich", "a"),
        envelope("..", "a"),
        envelope(&long, "a"),
        envelope(&topic, "a"),
    ];
    let outcomes = kafka.publish(&batch).await;
    for outcome in &outcomes[..4] {
        assert!(matches!(outcome, Outcome::Dead { .. }), "{outcome:?}");
        assert!(error(outcome).contains("no Kafka topic"), "{outcome:?}");
    }
    assert_eq!(outcomes[4], Outcome::Delivered);
}

#[tokio::test]
async fn check_counts_brokers_and_topics() {
    let Some(kafka) = shared("") else { return };
    let topic = unique("counted");
    Subject.prepare(&Subject.url(), &topic).await;
    let found = kafka.check().await.unwrap();
    assert!(found.contains("brokers: 1, topics: "), "{found}");
    assert!(!found.contains("topics: 0"), "{found}");
    assert!(found.contains("with a single replica"), "{found}");
}

#[tokio::test]
async fn no_header_of_the_event_stands_beside_one_of_ours() {
    let Some(kafka) = shared("format=cloudevents-binary") else { return };
    let topic = unique("headers");
    Subject.prepare(&Subject.url(), &topic).await;
    let mut envelope = built(Event::builder("OrderPlaced").topic(&topic));
    // The builder leaves reserved names out, and `enqueue` refuses them; a table can hold older ones.
    for (name, value) in [("ce_type", "theirs"), ("CE_Type", "theirs"), ("theirs", "kept")] {
        envelope.event = envelope.event.with_header(name, value);
    }
    assert_eq!(kafka.publish(&[envelope]).await, [Outcome::Delivered]);
    let received = Subject.read(&Subject.url(), &topic).await;
    let of = |name: &str| -> Vec<&str> {
        let is_it = |known: &str| known.eq_ignore_ascii_case(name);
        let headers = received[0].headers.iter().filter(|(known, _)| is_it(known));
        headers.map(|(_, value)| &**value).collect()
    };
    assert_eq!((of("ce_type"), of("theirs")), (vec!["OrderPlaced"], vec!["kept"]));
}
