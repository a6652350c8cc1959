//! RabbitMQ: what every transport must do, and what only this one promises.

use std::{
    env,
    io::Write,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use lapin::{
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable},
};
use posthaste_core::{
    Envelope, Event, Result,
    transport::{Outcome, Transport},
};
use posthaste_testkit::{
    proxy::Proxy,
    transports::{Destination, Options, Received, Server, Traits, consume, consumer},
};
use posthaste_transports::rabbitmq::{RabbitMq, RabbitMqConfig};
use serde::Deserialize;

use support::{enveloped, given, unique_name};

mod support;

#[derive(Default)]
struct Subject {
    /// Servers of its own: URL and folder.
    private: Mutex<Vec<(String, PathBuf)>>,
}

async fn subject() -> Option<Subject> {
    env::var("POSTHASTE_TEST_RABBITMQ").ok().map(|_| Subject::default())
}

posthaste_testkit::transport_conformance!(subject);

#[async_trait]
impl Destination for Subject {
    fn traits(&self) -> Traits {
        Traits { prefix: "cloudEvents:", binding: Some("amqp"), ..Traits::default() }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_RABBITMQ").expect("the subject was made")
    }

    fn server(&self) -> Server {
        let server = private("");
        self.private.lock().unwrap().push((server.url(), server.folder().to_owned()));
        server
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        let mut config = RabbitMqConfig::from_url(&options.on(url))?;
        config.max_message = options.max_message.unwrap_or(config.max_message);
        Ok(Arc::new(RabbitMq::new(config)?))
    }

    async fn prepare(&self, url: &str, topic: &str) {
        prepare(url, topic).await;
        let private = self.private.lock().unwrap().clone();
        if let Some((_, folder)) = private.iter().find(|(known, _)| known == url) {
            // It may be killed at once, and would forget the queue.
            let settled = Command::new(folder.join("data/settle")).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&settled.stdout), "dumped", "{settled:?}");
        }
    }

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        consume(consumer("rabbitmq"), &["read", url, topic]).await
    }
}

/// A server of its own, with these lines in its configuration instead of the usual limit of its
/// disk.
fn private(settings: &'static str) -> Server {
    let server = env::var("POSTHASTE_TEST_RABBITMQ_SERVER").expect("what starts a server");
    Server::new(
        |port| format!("amqp://posthaste:posthaste@127.0.0.1:{port}"),
        move |port, folder| {
            let mut command = Command::new(&server);
            let settings = settings
                .replace("FOLDER", &folder.display().to_string())
                .replace("TLS_PORT", &tls_port(port).to_string());
            command.arg(port.to_string()).arg(folder).arg(settings);
            command
        },
    )
    .ready_when("Server startup complete")
}

/// Where a server of its own listens for TLS, if it is told to.
fn tls_port(port: u16) -> u16 {
    port - 5_000
}

async fn prepare(url: &str, queue: &str) {
    let _: Vec<Received> = consume(consumer("rabbitmq"), &["prepare", url, queue]).await;
}

fn transport(url: &str) -> RabbitMq {
    RabbitMq::new(RabbitMqConfig::from_url(url).unwrap()).unwrap()
}

/// The shared server's URL.
fn shared() -> Option<String> {
    given("POSTHASTE_TEST_RABBITMQ")
}

#[tokio::test]
async fn a_message_that_no_queue_takes_is_a_retry_and_its_neighbours_are_delivered() {
    let Some(url) = shared() else { return };
    let (queue, nowhere) = (unique_name("taken"), unique_name("nowhere"));
    prepare(&url, &queue).await;
    let transport = transport(&url);
    let mut taken = 0;
    for round in 0_usize..20 {
        let is_taken = |n: usize| !(n * 7 + round).is_multiple_of(3);
        let batch: Vec<_> = (0..200)
            .map(|n| {
                let topic = if is_taken(n) { &queue } else { &nowhere };
                enveloped(Event::builder("OrderPlaced").topic(topic).payload("x"))
            })
            .collect();
        let outcomes = transport.publish(&batch).await;
        for (n, outcome) in outcomes.into_iter().enumerate() {
            if is_taken(n) {
                assert_eq!(outcome, Outcome::Delivered, "event {n} of round {round}");
                taken += 1;
            } else {
                let said =
                    format!("no queue takes routing key {nowhere:?} of the default exchange");
                assert_eq!(outcome, Outcome::retry(said), "event {n} of round {round}");
            }
        }
    }
    let read: Vec<Received> = consume(consumer("rabbitmq"), &["read", &url, &queue]).await;
    assert_eq!(read.len(), taken);
}

#[tokio::test]
async fn side_by_side_each_batch_knows_which_of_its_messages_came_back() {
    let Some(url) = shared() else { return };
    let (queue, nowhere) = (unique_name("taken"), unique_name("nowhere"));
    prepare(&url, &queue).await;
    let transport = Arc::new(transport(&url));
    let batches: Vec<_> = (0..12)
        .map(|number| {
            let topic = if number % 2 == 0 { queue.clone() } else { nowhere.clone() };
            let transport = Arc::clone(&transport);
            tokio::spawn(async move {
                for _ in 0..20 {
                    let event = Event::builder("OrderPlaced").topic(&topic).payload("x");
                    let outcome = transport.publish(&[enveloped(event)]).await.remove(0);
                    assert_eq!(outcome == Outcome::Delivered, number % 2 == 0, "{outcome:?}");
                }
            })
        })
        .collect();
    for batch in batches {
        batch.await.unwrap();
    }
}

/// What the consumer says beside what all consumers say.
#[derive(Deserialize)]
struct Properties {
    id: String,
    r#type: String,
    persistent: bool,
    timestamp: i64,
}

#[tokio::test]
async fn id_type_time_and_persistence_stand_in_their_properties() {
    let Some(url) = shared() else { return };
    let queue = unique_name("properties");
    prepare(&url, &queue).await;
    let mut event = enveloped(
        Event::builder("OrderPlaced").topic("elsewhere").routing_key(&queue).payload("x"),
    );
    event.replay = 2;
    assert_eq!(transport(&url).publish(&[event.clone()]).await, [Outcome::Delivered]);
    let read: Vec<Properties> = consume(consumer("rabbitmq"), &["read", &url, &queue]).await;
    assert_eq!(read[0].id, format!("{}/2", event.event.id()));
    assert_eq!(read[0].r#type, "OrderPlaced");
    assert!(read[0].persistent);
    assert_eq!(read[0].timestamp, event.event.occurred_at().as_second());
}

#[tokio::test]
async fn an_exchange_is_declared_if_asked_for_and_missed_otherwise() {
    let Some(url) = shared() else { return };
    let exchange = unique_name("exchange");
    let event = enveloped(Event::builder("OrderPlaced").topic("orders").payload("x"));
    let batch = vec![event; 3];

    let undeclared = transport(&format!("{url}?exchange={exchange}"));
    let missing = format!("exchange {exchange:?} does not exist");
    for outcome in undeclared.publish(&batch).await {
        assert_eq!(outcome, Outcome::unavailable(&missing));
    }
    assert_eq!(undeclared.check().await.unwrap_err().to_string(), missing);

    let declared = transport(&format!("{url}?exchange={exchange}&declare=topic"));
    let found = declared.check().await.unwrap();
    assert!(found.ends_with(&format!("virtual host /, has exchange {exchange:?}")), "{found}");
    let unbound = format!("no queue takes routing key \"orders\" of exchange {exchange:?}");
    for outcome in undeclared.publish(&batch).await {
        assert_eq!(outcome, Outcome::retry(&unbound), "it is found without a restart");
    }

    let other_kind = transport(&format!("{url}?exchange={exchange}&declare=fanout"));
    let said = other_kind.check().await.unwrap_err().to_string();
    assert!(said.contains("of another kind"), "{said}");
}

#[tokio::test]
async fn what_amqp_cannot_carry_is_dead_and_its_neighbours_go_on() {
    let Some(url) = shared() else { return };
    let queue = unique_name("carried");
    prepare(&url, &queue).await;
    let event = || Event::builder("OrderPlaced").topic(&queue).payload("x");
    let batch = [
        enveloped(event()),
        Envelope { topic: Some("k".repeat(256)), ..enveloped(event()) },
        enveloped(event().header("h".repeat(256), "x")),
        // An event may have so many; a frame has no room for ours beside them.
        enveloped(event().header("large", "x".repeat(131_000))),
        enveloped(event()),
    ];
    let outcomes = transport(&url).publish(&batch).await;
    assert_eq!(outcomes[0], Outcome::Delivered);
    for (outcome, said) in outcomes[1..4].iter().zip(["routing key", "header's name", "headers"]) {
        let Outcome::Dead { error } = outcome else { panic!("{outcome:?}") };
        assert!(error.contains(said) && error.contains("bytes"), "{error}");
    }
    assert_eq!(outcomes[4], Outcome::Delivered);
}

#[tokio::test]
async fn a_virtual_host_that_is_not_there_is_named_as_the_reason() {
    let Some(url) = shared() else { return };
    let error = transport(&format!("{url}/nowhere")).check().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("virtual host"), "{error}");
}

#[tokio::test]
async fn a_message_beyond_the_servers_own_limit_is_dead_and_its_neighbours_are_delivered() {
    let Some(_) = shared() else { return };
    let server = limited().await;
    let transport = transport(&server.url());
    // What was written to a closed channel arrives early or late, and then ends the connection.
    for round in 0..40 {
        let batch = [1, 100, 100_000, 1, 200_000, 1].map(sized);
        let outcomes = transport.publish(&batch).await;
        for (n, outcome) in outcomes.iter().enumerate() {
            if [2, 4].contains(&n) {
                let Outcome::Dead { error } = outcome else { panic!("round {round}: {outcome:?}") };
                assert!(error.contains("too large"), "{error}");
            } else {
                assert_eq!(*outcome, Outcome::Delivered, "event {n} of round {round}");
            }
        }
    }
}

#[tokio::test]
async fn a_channel_that_one_of_several_closed_ends_its_connection_and_one_of_an_event_alone_does_not()
 {
    let Some(_) = shared() else { return };
    let server = limited().await;
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port())).await.unwrap();
    let transport = transport(&format!("amqp://posthaste:posthaste@{}", proxy.address()));
    // The server reads the large one first: it confirms nothing before.
    let outcomes = transport.publish(&[100_000, 1].map(sized)).await;
    assert!(matches!(outcomes[0], Outcome::Dead { .. }), "{outcomes:?}");
    assert_eq!(outcomes[1], Outcome::Delivered);
    assert_eq!(proxy.connections(), 3, "shared, both over their own, each alone over the next");
    for _ in 0..3 {
        let outcomes = transport.publish(&[sized(100_000)]).await;
        assert!(matches!(outcomes[0], Outcome::Dead { .. }), "{outcomes:?}");
        assert_eq!(transport.publish(&[sized(1)]).await, [Outcome::Delivered]);
    }
    assert_eq!(proxy.connections(), 4, "the shared one is made anew, once");
}

/// A server that takes messages of up to 64 KiB, and has a queue.
async fn limited() -> Server {
    let mut server = private("max_message_size = 65536\ndisk_free_limit.absolute = 50MB");
    server.start().await;
    prepare(&server.url(), "limited").await;
    server
}

/// An event for its queue with so many bytes.
fn sized(size: usize) -> Envelope {
    enveloped(Event::builder("OrderPlaced").topic("limited").payload(&"x".repeat(size)))
}

/// One user, who may publish to topics that begin with `allowed`; a queue takes all of them.
const TOPICS: &str = r##"{
    "vhosts": [{"name": "/"}],
    "users": [{"name": "posthaste", "password": "posthaste", "tags": "administrator"}],
    "permissions": [
        {"user": "posthaste", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [
        {"user": "posthaste", "vhost": "/", "exchange": "amq.topic", "write": "^allowed", "read": ".*"}
    ],
    "queues": [
        {"name": "all", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}}
    ],
    "bindings": [{
        "source": "amq.topic", "vhost": "/", "destination": "all", "destination_type": "queue",
        "routing_key": "#", "arguments": {}
    }]
}"##;

#[tokio::test]
async fn a_routing_key_that_is_not_allowed_is_a_retry_and_its_neighbours_are_delivered() {
    let Some(_) = shared() else { return };
    let mut server =
        private("disk_free_limit.absolute = 50MB\nload_definitions = FOLDER/definitions.json");
    std::fs::write(server.folder().join("definitions.json"), TOPICS).unwrap();
    server.start().await;
    let transport = transport(&format!("{}?exchange=amq.topic", server.url()));
    let event = |topic: &str| enveloped(Event::builder("OrderPlaced").topic(topic).payload("x"));
    let forbidden = [event("forbidden.a"), event("forbidden.b")];
    let why = "not authorized to publish to exchange \"amq.topic\" with this routing key";
    let mut last = Vec::new();
    for places in [[50, 60], [3, 150]] {
        let mut batch: Vec<_> = (0..200).map(|_| event("allowed.x")).collect();
        for (place, event) in places.into_iter().zip(&forbidden) {
            batch[place] = event.clone();
        }
        for (n, outcome) in transport.publish(&batch).await.into_iter().enumerate() {
            let expected =
                if places.contains(&n) { Outcome::retry(why) } else { Outcome::Delivered };
            assert_eq!(outcome, expected, "event {n}");
        }
        last = batch;
    }
    let read: Vec<Properties> =
        consume(consumer("rabbitmq"), &["read", &server.url(), "all"]).await;
    let times = |envelope: &Envelope| {
        let id = envelope.event.id().to_string();
        read.iter().filter(|message| message.id == id).count()
    };
    for (n, envelope) in last.iter().enumerate() {
        let expected = usize::from(n != 3 && n != 150);
        assert_eq!(times(envelope), expected, "event {n}, when the others were known");
    }
}

#[tokio::test]
async fn a_user_who_may_publish_nothing_is_told_so_as_an_outage() {
    let Some(_) = shared() else { return };
    let mut server =
        private("disk_free_limit.absolute = 50MB\nload_definitions = FOLDER/definitions.json");
    let definitions = TOPICS.replace(r#""write": ".*""#, r#""write": "^all$""#);
    std::fs::write(server.folder().join("definitions.json"), definitions).unwrap();
    server.start().await;
    let transport = transport(&format!("{}?exchange=amq.topic", server.url()));
    let event = |_| enveloped(Event::builder("OrderPlaced").topic("allowed").payload("x"));
    let outcomes = transport.publish(&(0..100).map(event).collect::<Vec<_>>()).await;
    let unavailable = |outcome: &&Outcome| matches!(outcome, Outcome::Unavailable { .. });
    assert!(outcomes.iter().filter(unavailable).count() >= 92, "{outcomes:?}");
    assert!(outcomes.iter().all(|o| o.error().is_some_and(|error| error.contains("authorized"))));
}

#[tokio::test]
async fn a_full_queue_is_unavailable_for_its_event_and_its_neighbours_are_delivered() {
    let Some(url) = shared() else { return };
    let (full, free) = (unique_name("full"), unique_name("free"));
    prepare(&url, &free).await;
    let client = lapin::Connection::connect(&url, lapin::ConnectionProperties::default());
    let channel = client.await.unwrap().create_channel().await.unwrap();
    let mut limits = FieldTable::default();
    limits.insert("x-max-length".into(), AMQPValue::LongInt(1));
    limits.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let options = QueueDeclareOptions::default();
    channel.queue_declare(full.as_str().into(), options, limits).await.unwrap();
    let event = |queue: &str| enveloped(Event::builder("OrderPlaced").topic(queue).payload("x"));
    let transport = transport(&url);
    assert_eq!(transport.publish(&[event(&full)]).await, [Outcome::Delivered]);
    let outcomes = transport.publish(&[event(&free), event(&full), event(&free)]).await;
    assert_eq!((&outcomes[0], &outcomes[2]), (&Outcome::Delivered, &Outcome::Delivered));
    // Without a time the relay would count it, for its neighbours are taken.
    let Outcome::Unavailable { error, after: Some(_) } = &outcomes[1] else {
        panic!("{outcomes:?}")
    };
    assert!(error.contains("queue is full"), "{error}");
}

#[tokio::test]
async fn a_server_that_blocks_publishers_is_unavailable() {
    let Some(_) = shared() else { return };
    // No disk has so much room.
    let mut server = private("disk_free_limit.absolute = 1000000GB");
    server.start().await;
    prepare(&server.url(), "blocked").await;
    let transport = transport(&format!("{}?publish_timeout=1s", server.url()));
    let batch = vec![enveloped(Event::builder("OrderPlaced").topic("blocked").payload("x")); 3];
    for round in 0..3 {
        for outcome in transport.publish(&batch).await {
            let Outcome::Unavailable { error, .. } = outcome else { panic!("{outcome:?}") };
            assert!(error.contains("blocks publishers"), "round {round}: {error}");
        }
    }
    let error = transport.check().await.unwrap_err().to_string();
    assert!(error.contains("blocks publishers"), "{error}");
}

#[tokio::test]
async fn a_certificate_must_be_trusted_and_name_the_host() {
    let Some(_) = shared() else { return };
    let mut server = private(
        "disk_free_limit.absolute = 50MB\n\
         listeners.ssl.1 = 127.0.0.1:TLS_PORT\n\
         ssl_options.certfile = FOLDER/cert.pem\n\
         ssl_options.keyfile = FOLDER/key.pem\n\
         ssl_options.verify = verify_none",
    );
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let ca_file = server.folder().join("cert.pem");
    std::fs::write(&ca_file, certified.cert.pem()).unwrap();
    std::fs::write(server.folder().join("key.pem"), certified.signing_key.serialize_pem()).unwrap();
    server.start().await;
    prepare(&server.url(), "secured").await;
    let event = enveloped(Event::builder("OrderPlaced").topic("secured").payload("x"));
    let port = tls_port(server.port());
    let url = |host: &str| format!("amqps://posthaste:posthaste@{host}:{port}");
    let trusted = format!("{}?ca_file={}", url("localhost"), ca_file.display());
    let outcomes = transport(&trusted).publish(std::slice::from_ref(&event)).await;
    assert_eq!(outcomes, [Outcome::Delivered]);
    let other_name = format!("{}?ca_file={}", url("127.0.0.1"), ca_file.display());
    for wrong in [url("localhost"), other_name] {
        let outcome = transport(&wrong).publish(std::slice::from_ref(&event)).await.remove(0);
        let Outcome::Unavailable { error, .. } = outcome else { panic!("{outcome:?}") };
        assert!(error.contains("TLS failed or the certificate"), "{error}");
    }
}

#[tokio::test]
async fn a_host_that_says_nothing_leaves_time_for_the_next() {
    let Some(url) = shared() else { return };
    let queue = unique_name("next");
    prepare(&url, &queue).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = format!("@{},", silent.local_addr().unwrap());
    let url = format!("{}?connect_timeout=2s", url.replace('@', &first));
    let event = enveloped(Event::builder("OrderPlaced").topic(&queue).payload("x"));
    assert_eq!(transport(&url).publish(&[event]).await, [Outcome::Delivered]);
}

/// How many threads of the client library there are in this process.
fn client_threads() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("lapin"))
        .count()
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_costs_no_thread_for_each_try() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://{}?connect_timeout=100ms", listener.local_addr().unwrap());
    let held = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    for _ in 0..5 {
        let outcomes =
            transport(&url).publish(&[enveloped(Event::builder("OrderPlaced").payload("x"))]).await;
        let Outcome::Unavailable { error, .. } = &outcomes[0] else { panic!("{outcomes:?}") };
        assert!(error.ends_with("no connection within 100ms"), "{error}");
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while client_threads() > 0 {
        assert!(Instant::now() < deadline, "{} threads are left", client_threads());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    held.abort();
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_message_that_comes_back_is_in_no_log() {
    let Some(url) = shared() else { return };
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .init();
    let mark = "not-to-be-seen";
    let event = Event::builder("OrderPlaced").topic(unique_name("nowhere")).payload(mark);
    let outcome = transport(&url).publish(&[enveloped(event)]).await.remove(0);
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");

    let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("lapin"), "something is logged: {logged}");
    let as_numbers = format!("{:?}", mark.as_bytes());
    for trace in [mark, as_numbers.trim_matches(['[', ']'])] {
        assert!(!logged.contains(trace), "the payload is in a log");
    }
}
