//! Of many events, ten that their destination cannot take: too large, forbidden, or such that it hangs up on
//! them. The others are delivered as if these were not there, and these end dead with the true reason.
//!
//! 1,000 events in the usual run. With `POSTHASTE_NIGHTLY=1` 5,000, and the others must come at 0.8 or more of
//! the rate that all have when nothing is wrong with any.

mod command;

use std::{
    collections::HashMap,
    env, fs,
    future::Future,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use command::Folder;
use posthaste::{
    Event, Outbox,
    relay::{Config, Relay, Stats},
    stores::{Options, Tables, sqlite::SqliteStore},
};
use posthaste_testkit::{
    proxy::Proxy,
    transports::{Received, Server, consume, consumer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use uuid::Uuid;

/// So many events cannot be taken.
const UNTAKABLE: usize = 10;

/// A proxy hangs up on this payload.
const POISON: &str = "poison-5f1c0de";

/// The payload that is too large, where something is.
const LARGE: usize = 200_000;

/// Where events go, and where none may.
const TOPIC: &str = "allowed";
const FORBIDDEN: &str = "forbidden";

/// Nothing takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_mins(2);

/// So often it is measured, at night: the best counts, for the machine has other work.
const ROUNDS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    TooLarge,
    Forbidden,
    HungUpOn,
}

/// A destination with a fault, and what its events end with.
struct Case<Read> {
    url: String,
    fault: Fault,
    /// Their last error has this in it.
    reason: &'static str,
    /// A lost connection, or channel, may send events twice.
    repeats: bool,
    /// How often each event arrived since it was last asked.
    read: Read,
}

/// What a run has shown.
struct Run {
    took: Duration,
    stats: Stats,
    sent: Vec<Uuid>,
    refused: Vec<Uuid>,
    /// The last errors of those that died, with the number of attempts.
    reasons: Vec<(String, i64)>,
}

fn nightly() -> bool {
    env::var_os("POSTHASTE_NIGHTLY").is_some()
}

fn events() -> usize {
    if nightly() { 5_000 } else { 1_000 }
}

fn given(variable: &str) -> String {
    env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests with scripts/test"))
}

async fn shows<F: Future<Output = HashMap<Uuid, usize>>>(case: Case<impl Fn() -> F>) {
    let mut ratio: f64 = 0.0;
    for _ in 0..if nightly() { ROUNDS } else { 1 } {
        let undisturbed = run(&case.url, None).await;
        (case.read)().await;
        let disturbed = run(&case.url, Some(case.fault)).await;
        let arrived = (case.read)().await;
        let repeated = disturbed.sent.iter().filter(|id| arrived.get(*id) != Some(&1));
        let repeated: Vec<_> = repeated.map(|id| arrived.get(id).copied().unwrap_or(0)).collect();
        println!(
            "{}: {:?} without, {:?} with ten that are {:?}; breaker opened {} times, {} repeats",
            case.url.split(':').next().unwrap(),
            undisturbed.took,
            disturbed.took,
            case.fault,
            disturbed.stats.breakers_opened,
            repeated.len()
        );
        assert!(repeated.iter().all(|count| *count > 0), "something is missing");
        assert!(case.repeats || repeated.is_empty(), "sent twice: {repeated:?}");
        assert!(disturbed.refused.iter().all(|id| !arrived.contains_key(id)), "and yet it arrived");
        assert_eq!(disturbed.stats.breakers_opened, 0, "the destination was never down");
        for (reason, attempts) in &disturbed.reasons {
            assert!(reason.contains(case.reason), "{reason}");
            assert!(*attempts > 0);
        }
        let share = disturbed.sent.len() as f64 / undisturbed.sent.len() as f64;
        ratio = ratio.max(undisturbed.took.div_duration_f64(disturbed.took) * share);
    }
    assert!(!nightly() || ratio >= 0.8, "at {ratio:.2} of the rate");
}

/// Delivers events to this destination, among them ten with this fault.
async fn run(url: &str, fault: Option<Fault>) -> Run {
    let folder = Folder::new();
    let database = folder.migrated();
    let (mut sent, mut refused) = (Vec::new(), Vec::new());
    let pool = command::pool(&database).await;
    let outbox = Outbox::new("outbox_event".parse().unwrap());
    let mut tx = outbox.begin(&pool).await.unwrap();
    for n in 0..events() {
        let fault = fault.filter(|_| n % (events() / UNTAKABLE) == 7);
        let key = match fault {
            Some(_) => format!("cannot be taken {n}"),
            None => (n % 2_500).to_string(),
        };
        let topic = if fault == Some(Fault::Forbidden) { FORBIDDEN } else { TOPIC };
        let payload = match fault {
            Some(Fault::TooLarge) => vec![b'x'; LARGE],
            Some(Fault::HungUpOn) => POISON.into(),
            _ => b"harmless".to_vec(),
        };
        let event = Event::builder("Counted").aggregate("Counter", key).topic(topic);
        let event = event.bytes("application/octet-stream", payload).build().unwrap();
        if fault.is_some() { &mut refused } else { &mut sent }.push(event.id());
        outbox.enqueue(&mut tx, event).await.unwrap();
    }
    tx.commit().await.unwrap();

    let tables = Tables::new("outbox_event".parse().unwrap());
    let store = SqliteStore::connect(&database, tables, &Options::default()).await.unwrap();
    let transport = posthaste::transports::open(url).unwrap();
    let config = Config { max_attempts: 4, ..Config::default() };
    let relay = Relay::new(Arc::new(store), transport, config).unwrap();
    let mut stats = relay.watch();
    let begun = Instant::now();
    relay.start().await.unwrap();
    let all_sent = stats.wait_for(|stats| stats.delivered >= sent.len() as u64);
    let all_sent = tokio::time::timeout(PATIENCE, all_sent).await.map(|stats| *stats.unwrap());
    all_sent.unwrap_or_else(|_| panic!("the others do not come: {:?}", relay.stats()));
    let took = begun.elapsed();
    // Nobody else is around any more.
    let all_dead = stats.wait_for(|stats| stats.dead >= refused.len() as u64 && stats.idle);
    let all_dead = tokio::time::timeout(PATIENCE, all_dead).await.map(|stats| *stats.unwrap());
    all_dead.unwrap_or_else(|_| panic!("they do not die: {:?}", relay.stats()));
    let stats = relay.stop().await.unwrap();
    assert_eq!((stats.delivered, stats.dead), (sent.len() as u64, refused.len() as u64));
    let dead = "select last_error, attempts from outbox_event where dead_at is not null";
    let reasons: Vec<(String, i64)> = sqlx::query_as(dead).fetch_all(&pool).await.unwrap();
    assert_eq!(reasons.len(), refused.len());
    pool.close().await;
    Run { took, stats, sent, refused, reasons }
}

/// How often each event is among these.
fn counted(received: &[Received]) -> HashMap<Uuid, usize> {
    let mut counts = HashMap::new();
    for message in received {
        let id = message.header("posthaste-id").expect("it is one of ours").parse().unwrap();
        *counts.entry(id).or_default() += 1;
    }
    counts
}

/// A proxy before this server, which hangs up on poison, and the URL through it.
async fn hangs_up(url: &str) -> (Proxy, String) {
    let (before, after) = url.split_once('@').map_or_else(
        || url.split_at(url.find("://").unwrap() + 3),
        |(login, _)| url.split_at(login.len() + 1),
    );
    let end = after.find(['/', '?']).unwrap_or(after.len());
    let (server, path) = after.split_at(end);
    let proxy = Proxy::start(server).await.unwrap();
    proxy.hang_up_on(POISON);
    let through = format!("{before}{}{path}", proxy.address());
    (proxy, through)
}

async fn read(client: &str, url: &str, topic: &str) -> HashMap<Uuid, usize> {
    counted(&consume::<Received>(consumer(client), &["read", url, topic]).await)
}

async fn prepare(client: &str, url: &str, topic: &str) {
    let _: Vec<Received> = consume(consumer(client), &["prepare", url, topic]).await;
}

fn redis() -> Server {
    let server = given("POSTHASTE_TEST_REDIS_SERVER");
    let server = Server::new(
        |port| format!("redis://127.0.0.1:{port}"),
        move |port, folder| {
            let mut command = Command::new(&server);
            command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
            command.arg("--dir").arg(folder);
            command
        },
    );
    server.ready_when("Ready to accept connections")
}

/// What starts a server of its own with these lines in its configuration.
fn launched(variable: &str, scheme: &'static str, settings: &'static str) -> Server {
    let server = given(variable);
    Server::new(
        move |port| format!("{scheme}://posthaste:posthaste@127.0.0.1:{port}"),
        move |port, folder| {
            let mut command = Command::new(&server);
            let settings = settings.replace("FOLDER", &folder.display().to_string());
            command.arg(port.to_string()).arg(folder).arg(settings);
            command
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_hangs_up_on_ten() {
    let mut server = redis();
    server.start().await;
    let (_proxy, url) = hangs_up(&server.url()).await;
    let read = async || read("redis", &server.url(), TOPIC).await;
    let (fault, reason) = (Fault::HungUpOn, "breaks its connection");
    shows(Case { url, fault, reason, repeats: true, read }).await;
}

/// Everybody may write to topics that begin with `allowed`, and only there.
const RABBITMQ: &str = r##"{
    "vhosts": [{"name": "/"}],
    "users": [{"name": "posthaste", "password": "posthaste", "tags": "administrator"}],
    "permissions": [
        {"user": "posthaste", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [
        {"user": "posthaste", "vhost": "/", "exchange": "amq.topic", "write": "^allowed", "read": ".*"}
    ],
    "queues": [
        {"name": "allowed", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}}
    ],
    "bindings": [{
        "source": "amq.topic", "vhost": "/", "destination": "allowed", "destination_type": "queue",
        "routing_key": "#", "arguments": {}
    }]
}"##;

async fn rabbitmq() -> Server {
    let settings = "disk_free_limit.absolute = 50MB\nload_definitions = FOLDER/definitions.json";
    let server = launched("POSTHASTE_TEST_RABBITMQ_SERVER", "amqp", settings);
    fs::write(server.folder().join("definitions.json"), RABBITMQ).unwrap();
    let mut server = server.ready_when("Server startup complete");
    server.start().await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_closes_the_channel_over_ten() {
    let server = rabbitmq().await;
    let url = format!("{}?exchange=amq.topic", server.url());
    let read = async || read("rabbitmq", &server.url(), TOPIC).await;
    let (fault, reason) = (Fault::Forbidden, "not authorized");
    shows(Case { url, fault, reason, repeats: true, read }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_hangs_up_on_ten() {
    let server = rabbitmq().await;
    let (_proxy, url) = hangs_up(&format!("{}?exchange=amq.topic", server.url())).await;
    let read = async || read("rabbitmq", &server.url(), TOPIC).await;
    let (fault, reason) = (Fault::HungUpOn, "breaks its connection");
    shows(Case { url, fault, reason, repeats: true, read }).await;
}

async fn mqtt() -> Server {
    let settings = "message_size_limit 100000\nacl_file FOLDER/acl";
    let server = launched("POSTHASTE_TEST_MQTT_SERVER", "mqtt", settings);
    fs::write(server.folder().join("acl"), "user posthaste\ntopic readwrite allowed\n").unwrap();
    let mut server = server.ready_when("running");
    server.start().await;
    prepare("mqtt", &server.url(), TOPIC).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn mqtt_ends_the_connection_over_ten() {
    let server = mqtt().await;
    let read = async || read("mqtt", &server.url(), TOPIC).await;
    let (fault, reason) = (Fault::TooLarge, "breaks its connection");
    shows(Case { url: server.url(), fault, reason, repeats: true, read }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mqtt_forbids_ten() {
    let server = mqtt().await;
    let read = async || read("mqtt", &server.url(), TOPIC).await;
    let (fault, reason) = (Fault::Forbidden, "not authorized");
    shows(Case { url: server.url(), fault, reason, repeats: false, read }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mqtt_hangs_up_on_ten() {
    let server = mqtt().await;
    let (_proxy, url) = hangs_up(&server.url()).await;
    let read = async || read("mqtt", &server.url(), TOPIC).await;
    let (fault, reason) = (Fault::HungUpOn, "breaks its connection");
    shows(Case { url, fault, reason, repeats: true, read }).await;
}

async fn nats() -> Server {
    let server = given("POSTHASTE_TEST_NATS_SERVER");
    let server = Server::new(
        |port| format!("nats://127.0.0.1:{port}"),
        move |port, folder| {
            let path = folder.join("server.conf");
            let data = folder.join("data");
            let text = format!(
                "listen: 127.0.0.1:{port}\nmax_payload: 100KB\njetstream {{ store_dir: \"{}\" }}\n",
                data.display()
            );
            fs::write(&path, text).unwrap();
            let mut command = Command::new(&server);
            command.arg("--config").arg(path);
            command
        },
    );
    let mut server = server.ready_when("Server is ready");
    server.start().await;
    prepare("nats", &server.url(), TOPIC).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_takes_no_ten_that_are_too_large() {
    let server = nats().await;
    let read = async || read("nats", &server.url(), TOPIC).await;
    let (fault, reason) = (Fault::TooLarge, "too large");
    shows(Case { url: server.url(), fault, reason, repeats: false, read }).await;
}

/// Its stream drops repeats.
#[tokio::test(flavor = "multi_thread")]
async fn nats_hangs_up_on_ten() {
    let server = nats().await;
    let (_proxy, url) = hangs_up(&server.url()).await;
    let read = async || read("nats", &server.url(), TOPIC).await;
    let (fault, reason) = (Fault::HungUpOn, "breaks its connection");
    shows(Case { url, fault, reason, repeats: false, read }).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn kafka_takes_no_ten_that_are_too_large() {
    let server = given("POSTHASTE_TEST_KAFKA_SERVER");
    let mut server = Server::new(
        |port| format!("kafka://127.0.0.1:{port}"),
        move |port, _| {
            let listener = format!("tcp://127.0.0.1:{port}");
            let mut command = Command::new(&server);
            command.args(["broker", "--listener-url", &listener]);
            command.args(["--advertised-listener-url", &listener]);
            command.args(["--storage-engine", "memory://tansu/"]);
            command
        },
    );
    server.start().await;
    let place = format!("127.0.0.1:{}", server.port());
    prepare("kafka", &place, TOPIC).await;
    let url = format!("{}?max_message=100000", server.url());
    let read = async || read("kafka", &place, TOPIC).await;
    let (fault, reason) = (Fault::TooLarge, "too large");
    shows(Case { url, fault, reason, repeats: false, read }).await;
}

/// What a receiver has taken: how often each event.
type Taken = Arc<Mutex<HashMap<Uuid, usize>>>;

/// A receiver that takes no large body, and hangs up on poison.
async fn receiver() -> (String, Taken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("http://{address}/{{topic}}?posthaste.allow_private=true");
    let taken = Taken::default();
    let all = Arc::clone(&taken);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let taken = Arc::clone(&all);
            tokio::spawn(async move { receive(stream, &taken).await });
        }
    });
    (url, taken)
}

/// Answers the requests of one connection, until it hangs up.
async fn receive(mut stream: TcpStream, taken: &Taken) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = read.windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
            (stream.read_buf(&mut read).await.ok()? > 0).then_some(())?;
        };
        let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
        let header = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let length: usize = header("content-length: ")?.parse().ok()?;
        let id: Uuid = header("webhook-id: ")?.parse().ok()?;
        while read.len() < head + length {
            (stream.read_buf(&mut read).await.ok()? > 0).then_some(())?;
        }
        let body: Vec<u8> = read.drain(..head + length).skip(head).collect();
        if body == POISON.as_bytes() {
            return None;
        }
        let status = match () {
            () if body.len() >= LARGE => "413 Content Too Large",
            () if text.starts_with("post /forbidden") => "422 Unprocessable Content",
            () => {
                *taken.lock().unwrap().entry(id).or_default() += 1;
                "200 OK"
            }
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

async fn http(fault: Fault, reason: &'static str) {
    let (url, taken) = receiver().await;
    let read = async || std::mem::take(&mut *taken.lock().unwrap());
    shows(Case { url, fault, reason, repeats: false, read }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_takes_no_ten_that_are_too_large() {
    http(Fault::TooLarge, "413").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_forbids_ten() {
    http(Fault::Forbidden, "422").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_hangs_up_on_ten() {
    http(Fault::HungUpOn, "connection broke").await;
}
