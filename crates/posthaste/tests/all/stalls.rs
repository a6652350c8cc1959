//! Stalls: an event that could go and does not is told, with the reason; one that waits for a reason is not.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use crate::support::{Fixture, LIMIT, TestDatabase, event, quick, soon, until};
use async_trait::async_trait;
use posthaste::{
    Envelope, Event, Key,
    relay::{Config, Destination, Relay, Route, Routes},
    store::Pausable,
    transport::{Capabilities, Outcome, Transport},
    transports::memory::MemoryTransport,
};

on_every_database!(
    an_event_that_no_read_brings_is_told_until_it_is_mended,
    a_held_event_that_nothing_holds_is_told,
    a_backlog_that_drains_in_order_is_no_stall,
    a_destination_that_takes_longer_than_the_bound_is_no_stall,
    what_is_paused_down_slow_or_delayed_is_no_stall,
);

/// SQLite has no lock on a single row.
mod locked {
    use super::a_shard_that_nobody_can_take_is_told;

    on_every_database!(@ postgres, sqlx::Postgres, a_shard_that_nobody_can_take_is_told);
    on_every_database!(@ mariadb, sqlx::MySql, a_shard_that_nobody_can_take_is_told);
}

const BOUND: Duration = Duration::from_secs(1);

fn impatient() -> Config {
    Config { stall_after: BOUND, ..quick() }
}

/// Waits until the other relays and operators are told this of a stall.
async fn told<DB: TestDatabase>(on: &Fixture<DB>, reason: &str) {
    let told = async {
        loop {
            let relays = on.store.relays().await.unwrap();
            let stalls = relays.iter().flat_map(|relay| &relay.stalls);
            if stalls.clone().any(|stall| stall.reason.contains(reason) && stall.events == 1) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(&format!("the report of {reason:?}"), told).await;
}

/// Fails if the relay says that anything stalls before the work is done.
async fn without_a_stall<T>(relay: &Relay, work: impl Future<Output = T>) -> T {
    let mut watch = relay.watch();
    tokio::select! {
        done = work => done,
        stalled = watch.wait_for(|stats| stats.stalled > 0) => {
            drop(stalled);
            panic!("{:?} {:?}", relay.health(), relay.stats())
        }
    }
}

async fn an_event_that_no_read_brings_is_told_until_it_is_mended<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), impatient());
    relay.start().await.unwrap();
    let enqueued = on.enqueue((0..3).map(|n| event("k", n)).collect()).await;
    soon("delivery", transport.wait_for(3)).await;
    until(&relay, "idle", |stats| stats.idle).await;
    assert!(relay.health().ready, "{:?}", relay.health());

    // Behind the cursor, and in no way late: what only a look at the table finds.
    let sequence = enqueued[1].sequence;
    on.sql(&format!("update {{events}} set sent_at = null where sequence = {sequence}")).await;
    let stats = until(&relay, "the stall", |stats| stats.stalled == 1).await;
    assert!(stats.stall_age_s >= Some(BOUND.as_secs_f64().floor()), "{stats:?}");
    let health = relay.health();
    assert!(health.live && !health.ready, "{health:?}");
    let said =
        |text: &String| text.contains("no read brings it") && text.contains(&sequence.to_string());
    assert!(health.reasons.iter().any(said), "{health:?}");
    told(on, "no read brings it").await;

    let again = format!("update {{events}} set sent_at = created_at where sequence = {sequence}");
    on.sql(&again).await;
    until(&relay, "the end of the stall", |stats| stats.stalled == 0).await;
    assert!(relay.health().ready, "{:?}", relay.health());
    let nothing_told = async {
        while on.store.relays().await.unwrap().iter().any(|relay| !relay.stalls.is_empty()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the end of the report", nothing_told).await;
    assert_eq!(transport.delivered().len(), 3, "nothing was delivered twice");
    relay.stop().await.unwrap();
}

async fn a_held_event_that_nothing_holds_is_told<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), impatient());
    relay.start().await.unwrap();
    let key = event("k", 0).key().unwrap_or(Key::OF_ALL);
    let enqueued = on.enqueue(vec![event("k", 0)]).await;
    soon("delivery", transport.wait_for(1)).await;
    until(&relay, "idle", |stats| stats.idle).await;
    let for_ever = match DB::NAME {
        "SQLite" => "9223372036854775807",
        "MySQL" => "'9999-12-31 23:59:59'",
        _ => "'infinity'",
    };
    let sql = format!(
        "update {{events}} set sent_at = null, wait = 'held', not_before = {for_ever}, \
         lane = {}, destination = 'memory' where sequence = {}",
        key.0, enqueued[0].sequence
    );
    on.sql(&sql).await;
    until(&relay, "the stall", |stats| stats.stalled == 1).await;
    told(on, "nothing holds it").await;
    relay.stop().await.unwrap();
}

/// Takes so long for each publish.
struct Slow(&'static str, Duration, MemoryTransport);

#[async_trait]
impl Transport for Slow {
    fn name(&self) -> &str {
        self.0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { max_batch: 25, ..Capabilities::default() }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        tokio::time::sleep(self.1).await;
        self.2.publish(batch).await
    }
}

async fn a_backlog_that_drains_in_order_is_no_stall<DB: TestDatabase>(on: &Fixture<DB>) {
    let events = 2_000;
    on.enqueue((0..events).map(|n| event(&(n % 500).to_string(), n)).collect()).await;
    let transport = MemoryTransport::new();
    let slow = Slow("slow", Duration::from_millis(100), transport.clone());
    let config =
        Config { batch: 25, concurrency: 2, cold_queue: 100, hot_queue: 100, ..impatient() };
    let relay = on.relay(slow, config);
    relay.start().await.unwrap();
    let drained = async { soon("the drain", transport.wait_for(events)).await };
    let began = std::time::Instant::now();
    without_a_stall(&relay, drained).await;
    assert!(began.elapsed() > 3 * BOUND, "it drained too quickly to say anything");
    relay.stop().await.unwrap();
}

/// The cursor stands and the queue does not move for three times the bound: the destination is busy.
async fn a_destination_that_takes_longer_than_the_bound_is_no_stall<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    on.enqueue((0..60).map(|n| event(&n.to_string(), n)).collect()).await;
    let transport = MemoryTransport::new();
    let slow = Slow("slow", 3 * BOUND, transport.clone());
    let config = Config { batch: 10, concurrency: 1, cold_queue: 20, hot_queue: 20, ..impatient() };
    let relay = on.relay(slow, config);
    relay.start().await.unwrap();
    let twice = async { soon("the second batch", transport.wait_for(20)).await };
    without_a_stall(&relay, twice).await;
    assert!(relay.health().ready, "{:?}", relay.health());
    relay.stop().await.unwrap();
}

/// A destination of this name.
struct Named(&'static str, MemoryTransport);

#[async_trait]
impl Transport for Named {
    fn name(&self) -> &str {
        self.0
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        self.1.publish(batch).await
    }
}

async fn what_is_paused_down_slow_or_delayed_is_no_stall<DB: TestDatabase>(on: &Fixture<DB>) {
    let of = |event_type: &str, key: &str| {
        Event::builder(event_type).aggregate("Order", key).raw_json("{}").build().unwrap()
    };
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let delayed =
        Event::builder("Good").aggregate("Order", "d").raw_json("{}").deliver_at(later).build();
    let refusing = MemoryTransport::scripted(|envelope| match envelope.event.aggregate_id() {
        Some("refused") => Outcome::retry("not this one"),
        _ => Outcome::Delivered,
    });
    let down = MemoryTransport::scripted(|_| Outcome::unavailable("away"));
    let hangs = MemoryTransport::new();
    let routes = Routes::new()
        .route(Route::to("down").event_type("Down"))
        .route(Route::to("paused").event_type("Paused"))
        .route(Route::to("slow").event_type("Slow"))
        .route(Route::to("good").event_type("Good"));
    let destinations = vec![
        Destination::new(Arc::new(Named("down", down))),
        Destination::new(Arc::new(Named("paused", MemoryTransport::new()))),
        Destination::new(Arc::new(Slow("slow", 2 * BOUND, hangs.clone()))).with_concurrency(1),
        Destination::new(Arc::new(Named("good", refusing.clone()))),
    ];
    let backoff = posthaste::backoff::Backoff::Fixed(Duration::from_mins(10));
    let config = Config { batch: 5, cold_queue: 20, backoff, ..impatient() };
    let relay = Relay::routed(on.store(), destinations, routes, config).unwrap();
    on.store.pause(&Pausable::Destination("paused".into()), "test", None).await.unwrap();
    let stopped = of("Good", "stopped");
    on.store.pause(&Pausable::Key(stopped.key().unwrap()), "test", None).await.unwrap();
    let mut events = vec![stopped, of("Good", "stopped"), delayed.unwrap()];
    events.extend((0..5).map(|_| of("Good", "refused")));
    for n in 0..30 {
        let key = n.to_string();
        events.extend([of("Down", &key), of("Paused", &key), of("Slow", &key)]);
    }
    on.enqueue(events).await;
    relay.start().await.unwrap();
    // The others go on meanwhile, for several times the bound.
    let busy = async {
        let began = std::time::Instant::now();
        let mut good = 0;
        while began.elapsed() < 5 * BOUND {
            on.enqueue(vec![of("Good", &format!("g{good}"))]).await;
            good += 1;
            let arrived = || {
                let delivered = refusing.delivered();
                delivered.iter().filter(|e| e.event.aggregate_id() != Some("refused")).count()
            };
            let all = async {
                while arrived() < good {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(LIMIT, all).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    without_a_stall(&relay, busy).await;
    assert!(!hangs.delivered().is_empty(), "the slow one took something");
    relay.stop().await.unwrap();
}

async fn a_shard_that_nobody_can_take_is_told<DB: TestDatabase>(on: &Fixture<DB>) {
    let total = on.store.check().await.unwrap();
    let shard = event("k", 0).key().unwrap().shard(total);
    let mut other = on.pool.begin().await.unwrap();
    let lock = on.tables.fill(&format!(
        "select shard from {{shards}} where tenant_group = '' and shard = {shard} for update"
    ));
    DB::run_on(&mut other, lock).await.unwrap();
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), impatient());
    relay.start().await.unwrap();
    on.enqueue(vec![event("k", 0)]).await;
    until(&relay, "the stall", |stats| stats.stalled == 1).await;
    told(on, "no relay owns its shard").await;
    other.rollback().await.unwrap();
    soon("delivery", transport.wait_for(1)).await;
    until(&relay, "the end of the stall", |stats| stats.stalled == 0).await;
    relay.stop().await.unwrap();
}

/// Blocks its thread until it is told to go on.
struct Blocks(Mutex<mpsc::Receiver<()>>);

#[async_trait]
impl Transport for Blocks {
    fn name(&self) -> &str {
        "blocks"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let _ = self.0.lock().unwrap().recv();
        vec![Outcome::Delivered; batch.len()]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_blocks_beyond_its_deadline_makes_a_relay_not_live() {
    let on = <sqlx::Sqlite as TestDatabase>::fixture().await;
    let (go_on, blocked) = mpsc::channel();
    let config = Config { dispatch_timeout: Duration::from_millis(500), ..quick() };
    let relay = on.relay(Blocks(Mutex::new(blocked)), config);
    relay.start().await.unwrap();
    on.enqueue(vec![event("k", 0)]).await;
    let dies = async {
        while relay.health().live {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the end of its life", dies).await;
    let health = relay.health();
    assert!(health.reasons.iter().any(|reason| reason.contains("twice as long")), "{health:?}");
    drop(go_on);
    let revives = async {
        while !relay.health().live {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("its return", revives).await;
    relay.stop().await.unwrap();
    on.clean().await;
}
