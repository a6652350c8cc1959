//! A relay's memory is bounded in bytes, whatever waits for it: peak resident memory of the binary with
//! default settings, while events of 1 MiB and a large backlog of one paused key go through it.
//!
//! The receivers judge: each key's events come in order, and all of them come. `POSTHASTE_NIGHTLY=1` runs the
//! full sizes. `POSTHASTE_TEST_RELAY` names another build of the binary to measure.

#![cfg(all(target_os = "linux", feature = "http", feature = "redis"))]

#[path = "../command/mod.rs"]
mod command;

mod ground;

mod receiver;

use std::time::Duration;

use self::{
    ground::{Database, Ground, nightly},
    receiver::{Answers, Stream, Webhooks},
};

/// What a relay may take in all, whatever it delivers.
const MOST: u64 = 160_000_000;

/// What it may take with small events: much less than those of the tests.
const FEW: u64 = 90_000_000;

/// What it may take with as many blocked keys as it keeps in memory.
const SOME: u64 = 120_000_000;

/// The size of a large event.
const MEBIBYTE: usize = 1 << 20;

const KEYS: u64 = 50;

macro_rules! on_databases {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Database::Postgres).await;
            })*
        }

        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Database::MariaDb).await;
            })*
        }
    };
}

on_databases! {
    large_events_go_to_http_within_the_bound,
    large_events_go_to_redis_within_the_bound,
    a_destination_that_never_answers_keeps_the_bound,
    three_destinations_share_the_bound,
    a_paused_key_with_a_large_backlog_keeps_the_bound,
    keys_that_go_on_together_keep_the_bound,
}

/// Beyond a limit of 100,000, parked keys are in the table only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_parked_keys_keeps_the_bound() {
    let ground = Ground::new(Database::Postgres).await;
    let (parked, others) = if nightly() { (1_000_000, 10_000) } else { (20_000, 1_000) };
    ground.write("Parked", parked, parked, 300).await;
    ground.park().await;
    let webhooks = Webhooks::start(Answers::Always).await;
    let relay = ground.relay(&["--to", &webhooks.url, "--on-dead", "park"]);
    ground.write("Other", KEYS, others, 300).await;
    relay.watch("a delivery", async || webhooks.received.events() > 0).await;
    let first = relay.began.elapsed();
    // What follows a parked event is held, also where the relay has to ask for it.
    ground.write("Parked", parked, others, 300).await;
    ground.write("Another", KEYS, others, 300).await;
    relay.until("the others", &webhooks.received, 2 * others).await;
    relay.watch("followers to be held", async || ground.held().await == others).await;
    let said = format!("{}, the first after {first:?}", webhooks.received);
    relay.ends(SOME, &format!("{said}; {parked} keys were parked"));
    webhooks.received.assert_in_order();
    ground.clean().await;
}

/// How many large events: enough to take several times the bound if all of them were in memory.
fn large() -> u64 {
    if nightly() { 5_000 } else { 150 }
}

async fn large_events_go_to_http_within_the_bound(database: Database) {
    let ground = Ground::new(database).await;
    ground.write("Large", KEYS, large(), MEBIBYTE).await;
    let webhooks = Webhooks::start(Answers::Always).await;
    let relay = ground.relay(&["--to", &webhooks.url]);
    relay.until("all events", &webhooks.received, large()).await;
    ground.until_sent(0).await;
    relay.ends(MOST, &format!("{} to HTTP", webhooks.received));
    webhooks.received.assert_in_order();
    ground.clean().await;
}

async fn large_events_go_to_redis_within_the_bound(database: Database) {
    let ground = Ground::new(database).await;
    ground.write("Large", KEYS, large(), MEBIBYTE).await;
    let url = ground::server("POSTHASTE_TEST_REDIS");
    let stream = Stream::start(&url, ground.name()).await;
    let relay = ground.relay(&["--to", &url, "--topic", ground.name()]);
    relay.until("all events", &stream.received, large()).await;
    ground.until_sent(0).await;
    relay.ends(MOST, &format!("{} to Redis", stream.received));
    stream.received.assert_in_order();
    ground.clean().await;
}

async fn a_destination_that_never_answers_keeps_the_bound(database: Database) {
    let ground = Ground::new(database).await;
    ground.write("Large", KEYS, if nightly() { 600 } else { 150 }, MEBIBYTE).await;
    let webhooks = Webhooks::start(Answers::Never).await;
    let relay = ground.relay(&["--to", &webhooks.url]);
    relay.watch("requests", async || webhooks.requests() >= 10).await;
    // Past the timeout of a dispatch in the long form.
    tokio::time::sleep(Duration::from_secs(if nightly() { 100 } else { 5 })).await;
    relay.ends(MOST, &format!("{} requests that nobody answered", webhooks.requests()));
    ground.clean().await;
}

async fn three_destinations_share_the_bound(database: Database) {
    let ground = Ground::new(database).await;
    let each = if nightly() { 600 } else { 60 };
    for kind in ["Hook", "Entry", "Lost"] {
        ground.write(kind, KEYS, each, MEBIBYTE).await;
    }
    let webhooks = Webhooks::start(Answers::Always).await;
    let silent = Webhooks::start(Answers::Never).await;
    let url = ground::server("POSTHASTE_TEST_REDIS");
    let stream = Stream::start(&url, ground.name()).await;
    let settings = format!(
        r#"
        [destinations.hooks]
        url = "{}"
        [destinations.silent]
        url = "{}"
        [destinations.stream]
        url = "{url}"
        [[routes]]
        aggregate_type = "Hook"
        to = "hooks"
        [[routes]]
        aggregate_type = "Lost"
        to = "silent"
        [[routes]]
        aggregate_type = "Entry"
        to = "stream"
        topic = "{}"
        "#,
        webhooks.url,
        silent.url,
        ground.name()
    );
    let relay = ground.relay_with(&settings);
    relay.until("all webhooks", &webhooks.received, each).await;
    relay.until("all entries", &stream.received, each).await;
    ground.until_sent(each).await;
    let said = format!("{} to HTTP, {} to Redis", webhooks.received, stream.received);
    relay.ends(MOST, &format!("{said}, {} requests that nobody answered", silent.requests()));
    webhooks.received.assert_in_order();
    stream.received.assert_in_order();
    ground.clean().await;
}

/// The key's events are held in the table. Others pass them; when it goes on, they come in order.
async fn a_paused_key_with_a_large_backlog_keeps_the_bound(database: Database) {
    let ground = Ground::new(database).await;
    let (paused, others) = if nightly() { (1_000_000, 10_000) } else { (20_000, 1_000) };
    ground.run(&["pause", "key", "Paused/0"]);
    ground.write("Paused", 1, paused, 300).await;
    ground.write("Other", KEYS, others, 300).await;
    let url = ground::server("POSTHASTE_TEST_REDIS");
    let stream = Stream::start(&url, ground.name()).await;
    let relay = ground.relay(&["--to", &url, "--topic", ground.name()]);
    relay.watch("all to be held", async || ground.held().await == paused).await;
    relay.until("the others", &stream.received, others).await;
    let held = relay.peak();
    ground.run(&["resume", "key", "Paused/0"]);
    relay.until("all events", &stream.received, paused + others).await;
    ground.until_sent(0).await;
    relay.ends(FEW, &format!("{}; {held} while all was held", stream.received));
    stream.received.assert_in_order();
    ground.clean().await;
}

/// The held events of several keys are read back at the same time.
async fn keys_that_go_on_together_keep_the_bound(database: Database) {
    let ground = Ground::new(database).await;
    let (keys, events) = (8, if nightly() { 800 } else { 160 });
    let of_all = |what: &str| {
        for key in 0..keys {
            ground.run(&[what, "key", &format!("Large/{key}")]);
        }
    };
    of_all("pause");
    ground.write("Large", keys, events, MEBIBYTE).await;
    let url = ground::server("POSTHASTE_TEST_REDIS");
    let stream = Stream::start(&url, ground.name()).await;
    let relay = ground.relay(&["--to", &url, "--topic", ground.name()]);
    relay.watch("all to be held", async || ground.held().await == events).await;
    of_all("resume");
    relay.until("all events", &stream.received, events).await;
    ground.until_sent(0).await;
    relay.ends(MOST, &format!("{} of keys that were paused", stream.received));
    stream.received.assert_in_order();
    ground.clean().await;
}
