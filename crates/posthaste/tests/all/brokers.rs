//! The whole path to real brokers that die under it: enqueue, relay, broker, and a client in another
//! language that reads back what is there.

use std::{
    collections::{BTreeMap, HashSet},
    env, fs,
    process::Command,
    sync::Arc,
    time::Duration,
};

use crate::support::{Fixture, TestDatabase, quick, soon, until};
use posthaste::{
    Event, Outbox,
    relay::Relay,
    store::{Filter, Store},
    transports,
};
use posthaste_testkit::{
    transports::{Received, Server, consume, consumer},
    wait::asked,
};
use sqlx::Postgres;
use tokio::{sync::watch, task::JoinHandle};

/// Events a second while the broker comes and goes.
const RATE: u64 = 500;

/// How long it is gone.
fn outage() -> Duration {
    if env::var_os("POSTHASTE_NIGHTLY").is_some() {
        Duration::from_mins(1)
    } else {
        Duration::from_secs(3)
    }
}

fn given(variable: &str) -> String {
    env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests with scripts/test"))
}

fn nats() -> Server {
    let server = given("POSTHASTE_TEST_NATS_SERVER");
    let server = Server::new(
        |port| format!("nats://127.0.0.1:{port}"),
        move |port, folder| {
            let path = folder.join("server.conf");
            let data = folder.join("data");
            let text = format!(
                "listen: 127.0.0.1:{port}\njetstream {{ store_dir: \"{}\" }}\n",
                data.display()
            );
            fs::write(&path, text).unwrap();
            let mut command = Command::new(&server);
            command.arg("--config").arg(path);
            command
        },
    );
    server.ready_when("Server is ready")
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

/// Event number `n` of its key; the payload says both.
fn event(topic: &str, key: u64, n: u64) -> Event {
    Event::builder("Counted")
        .aggregate("Counter", key)
        .topic(topic)
        .payload(&(key, n))
        .build()
        .unwrap()
}

/// Commits events at the rate, over so many keys, until it is told to stop. Gives how many of each
/// key there are.
fn writer(
    on: &Fixture<Postgres>,
    keys: u64,
) -> (watch::Sender<bool>, JoinHandle<BTreeMap<u64, u64>>) {
    let (stop, mut stopped) = watch::channel(false);
    let (pool, outbox) = (on.pool.clone(), on.outbox());
    let writing = tokio::spawn(async move {
        let mut counts = BTreeMap::new();
        let mut ticks = tokio::time::interval(Duration::from_secs(1).div_f64(RATE as f64 / 5.0));
        for number in 0.. {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.wait_for(|stop| *stop) => break,
            }
            let events = (0..5)
                .map(|n| {
                    let key = (number * 5 + n) % keys;
                    let count = counts.entry(key).or_insert(0);
                    *count += 1;
                    event("counted", key, *count)
                })
                .collect();
            enqueue(&pool, &outbox, events).await;
        }
        counts
    });
    (stop, writing)
}

async fn enqueue(pool: &sqlx::PgPool, outbox: &Outbox<Postgres>, events: Vec<Event>) {
    let mut transaction = outbox.begin(pool).await.unwrap();
    outbox.enqueue_all(&mut transaction, events).await.unwrap();
    transaction.commit().await.unwrap();
}

/// What was read back is everything, and the first deliveries of each key are in order.
fn check(received: &[Received], counts: &BTreeMap<u64, u64>) {
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    let mut ids = HashSet::new();
    for message in received {
        let (key, n): (u64, u64) = serde_json::from_slice(&message.body).unwrap();
        let id = message.header("posthaste-id").expect("the id travels").to_owned();
        let last = seen.entry(key).or_insert(0);
        if ids.insert(id) {
            assert_eq!(n, *last + 1, "key {key} is out of order");
            *last = n;
        }
    }
    assert_eq!(&seen, counts, "something is missing");
}

async fn assert_nothing_counted(store: &dyn Store) {
    let mut before = None;
    let mut looked_at = 0;
    loop {
        let page = store.events(&Filter::default(), before, 500).await.unwrap();
        for record in &page.events {
            assert_eq!(record.attempts, 0, "an outage has burnt an attempt");
            looked_at += 1;
        }
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert!(looked_at > 0, "there was nothing to look at");
    assert_eq!(store.counts(u64::MAX).await.unwrap().dead, 0);
}

/// The broker dies in the middle of the stream and comes back: nothing is lost, nothing is dead, no
/// attempt is counted, order holds, and the backlog does not pile up in memory.
async fn outage_of(mut server: Server, consumer_of: &str, parameters: &str, keys: u64) {
    let on = Postgres::fixture().await;
    server.start().await;
    let transport = transports::open(&format!("{}{parameters}", server.url())).unwrap();
    let relay = Relay::new(on.store(), transport, quick()).unwrap();
    relay.start().await.unwrap();
    let (stop, writing) = writer(&on, keys);
    until(&relay, "deliveries", |stats| stats.delivered >= 300).await;

    server.kill();
    until(&relay, "the breaker to open", |stats| stats.breakers_open == 1).await;
    let mut most = 0;
    let mut watch = relay.watch();
    let gone = tokio::time::timeout(outage(), async {
        loop {
            most = most.max(watch.borrow_and_update().in_memory);
            watch.changed().await.unwrap();
        }
    });
    assert!(gone.await.is_err());
    assert!(most <= 2_000, "{most} events of the backlog are in memory");
    let delivered = relay.stats().delivered;
    server.start().await;
    until(&relay, "the breaker to close", |stats| {
        stats.breakers_open == 0 && stats.delivered > delivered
    })
    .await;
    stop.send_replace(true);
    let counts = soon("the writer", writing).await.unwrap();
    let total: u64 = counts.values().sum();
    let stats =
        until(&relay, "all to be delivered", |stats| stats.delivered >= total && stats.idle).await;
    relay.stop().await.unwrap();
    let received = consume(consumer(consumer_of), &["read", &server.url(), "counted"]).await;
    check(&received, &counts);
    assert_nothing_counted(&*on.store).await;
    println!("{total} events, {} messages, {stats:?}", received.len());
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_nats_loses_nothing_and_burns_no_attempt() {
    let parameters = "?stream=counted&create_stream=true&subjects=counted";
    outage_of(nats(), "nats", parameters, 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_redis_loses_nothing_and_burns_no_attempt() {
    outage_of(redis(), "redis", "", 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hot_key_keeps_its_order_when_redis_is_killed_in_the_middle() {
    outage_of(redis(), "redis", "", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hot_key_keeps_its_order_when_nats_is_killed_in_the_middle() {
    let parameters = "?stream=counted&create_stream=true&subjects=counted&batched=true";
    outage_of(nats(), "nats", parameters, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_starts_while_its_broker_is_down_waits_for_it() {
    let on = Postgres::fixture().await;
    let mut server = redis();
    let transport = transports::open(&server.url()).unwrap();
    let relay = Relay::new(on.store(), transport, quick()).unwrap();
    let events = (1..=200).map(|n| event("counted", n % 10, n.div_ceil(10))).collect();
    on.enqueue(events).await;
    relay.start().await.unwrap();
    until(&relay, "the breaker to open", |stats| stats.breakers_open == 1).await;
    let mut seen = None;
    asked("the report", async || {
        let relays = on.store.relays().await.unwrap();
        seen = relays.into_iter().find_map(|relay| relay.breakers.into_iter().next());
        seen.is_some()
    })
    .await;
    let seen = seen.unwrap();
    assert_eq!(seen.destination, "redis");
    assert!(seen.error.contains("refused"), "{seen:?}");
    server.start().await;
    until(&relay, "all to be delivered", |stats| stats.delivered == 200).await;
    relay.stop().await.unwrap();
    assert_nothing_counted(&*on.store).await;
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_by_hand_ends_although_its_broker_is_down() {
    let on = Postgres::fixture().await;
    on.enqueue((1..=50).map(|n| event("counted", n, 1)).collect()).await;
    let transport = transports::open(&redis().url()).unwrap();
    let relay = Relay::new(on.store(), transport, quick()).unwrap();
    let stats = soon("the pass", relay.relay_once()).await.unwrap();
    assert_eq!((stats.delivered, stats.dead), (0, 0));
    assert_nothing_counted(&*on.store).await;
    let living: Arc<dyn posthaste::transport::Transport> =
        Arc::new(posthaste::transports::memory::MemoryTransport::new());
    let relay = Relay::new(on.store(), living, quick()).unwrap();
    assert_eq!(soon("the pass", relay.relay_once()).await.unwrap().delivered, 50);
    on.clean().await;
}
