//! Metrics as a scrape shows them, and the housekeeping that feeds them.

use std::{collections::BTreeSet, sync::OnceLock, time::Duration};

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use posthaste::{
    Event, Inbox, metric,
    relay::{Config, HealthLimits, Housekeeping, Relay, Retention, observe},
    store::Pausable,
    stores::inbox::InboxDialect,
    transport::Outcome,
    transports::memory::MemoryTransport,
};
use posthaste_testkit::wait::asked;

on_every_database!(@ sqlite, sqlx::Sqlite, every_metric_is_served_and_says_what_happened);
on_every_database!(
    @ postgres, sqlx::Postgres,
    every_metric_is_served_and_says_what_happened,
    labels_are_few_however_many_topics_and_tenants_there_are,
    one_relay_keeps_house_and_the_next_takes_over,
    an_old_event_makes_a_relay_unready_until_it_is_delivered
);

fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        PrometheusBuilder::new()
            .set_buckets(&observe::LATENCY_BUCKETS)
            .unwrap()
            .install_recorder()
            .unwrap()
    })
}

/// The samples of one outbox: name with labels other than the outbox, and value.
fn scrape(outbox: &str) -> Vec<(String, f64)> {
    recorder().run_upkeep();
    let label = format!("outbox=\"{outbox}\"");
    let text = recorder().render();
    let ours = text.lines().filter(|line| !line.starts_with('#') && line.contains(&label));
    ours.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let name = name.replace(&label, "").replace("{,", "{").replace(",}", "}").replace("{}", "");
        (name, value.parse().unwrap())
    })
    .collect()
}

fn value(outbox: &str, name: &str) -> Option<f64> {
    scrape(outbox).into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

async fn becomes(outbox: &str, name: &str, wanted: f64) {
    asked(name, async || value(outbox, name) == Some(wanted)).await;
}

fn busy() -> Config {
    let often = Some(Duration::from_millis(50));
    Config {
        max_attempts: 2,
        housekeeping: Housekeeping {
            refresh: often,
            purge_interval: often,
            retention: Retention { sent: Duration::from_micros(1), dead: None },
            inbox_retention: Duration::from_micros(1),
            ..Housekeeping::default()
        },
        ..quick()
    }
}

async fn every_metric_is_served_and_says_what_happened<DB: TestDatabase + InboxDialect>(
    on: &Fixture<DB>,
) {
    recorder();
    let outbox = on.table().to_string();
    let transport = MemoryTransport::scripted(|envelope| match envelope.event.aggregate_id() {
        Some("poison") => Outcome::retry("no"),
        _ => Outcome::Delivered,
    });
    let relay = on.relay(transport, busy());
    let writer = on.outbox().with_hot_path(relay.hot_path());
    relay.start().await.unwrap();
    until(&relay, "idle", |stats| stats.idle).await;
    let mut tx = writer.begin(&on.pool).await.unwrap();
    writer.enqueue(&mut tx, event("hot", 1)).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = writer.begin(&on.pool).await.unwrap();
    writer.enqueue_all(&mut tx, vec![event("poison", 1), event("well", 1)]).await.unwrap();
    tx.commit().await.unwrap();
    let inbox = Inbox::<DB>::new(on.table());
    let mut tx = writer.begin(&on.pool).await.unwrap();
    for _ in 0..2 {
        inbox.first(&mut tx, "consumer", "message").await.unwrap();
    }
    tx.commit().await.unwrap();
    // Both in the past, in the terms of each database.
    let past = if DB::NAME == "SQLite" { "0" } else { "timestamp '2000-01-01 00:00:00'" };
    on.sql(&format!(
        "insert into {{idempotency}}
             (scope, idempotency_key, fingerprint, locked_by, locked_until, expires_at)
         values ('', 'k', 'f', 'r', {past}, {past})"
    ))
    .await;

    becomes(&outbox, "outbox_dispatch_total{topic=\"Order\",result=\"success\"}", 2.0).await;
    becomes(&outbox, "outbox_dispatch_total{topic=\"Order\",result=\"retry\"}", 2.0).await;
    becomes(&outbox, "outbox_dead_total{topic=\"Order\"}", 1.0).await;
    becomes(&outbox, "outbox_dead_count", 1.0).await;
    becomes(&outbox, "outbox_pending_count", 0.0).await;
    becomes(&outbox, "outbox_relays_alive", 1.0).await;
    becomes(&outbox, "outbox_enqueue_total{topic=\"Order\"}", 3.0).await;
    becomes(&outbox, "outbox_delivery_latency_seconds_count{topic=\"Order\"}", 2.0).await;
    becomes(&outbox, "outbox_breaker_state{destination=\"memory\"}", 0.0).await;
    becomes(&outbox, "outbox_purged_total{kind=\"event\"}", 2.0).await;
    becomes(&outbox, "outbox_purged_total{kind=\"inbox\"}", 1.0).await;
    becomes(&outbox, "outbox_purged_total{kind=\"idempotency\"}", 1.0).await;
    becomes(&outbox, "outbox_inbox_duplicates_total", 1.0).await;
    let stats = relay.stats();
    becomes(&outbox, "outbox_hot_enqueued_total", stats.hot_enqueued as f64).await;
    becomes(&outbox, "outbox_cold_enqueued_total", stats.cold_enqueued as f64).await;
    // Which path is the faster one, nobody knows; the retry comes from a poll.
    assert_eq!(stats.hot_enqueued + stats.cold_enqueued, 4);
    becomes(&outbox, "outbox_shards_owned", f64::from(stats.shards)).await;
    let stats = until(&relay, "latencies", |stats| stats.delivery_p95_ms.is_some()).await;
    assert!(stats.delivery_p50_ms <= stats.delivery_p95_ms);

    let names: BTreeSet<String> = scrape(&outbox)
        .into_iter()
        .map(|(name, _)| name.split('{').next().unwrap_or_default().to_owned())
        .collect();
    for name in [
        metric::RETRY_COUNT,
        metric::LOCKED_COUNT,
        metric::COUNTS_ESTIMATED,
        metric::OLDEST_PENDING_SECONDS,
        metric::HOT_DROPPED_TOTAL,
        metric::HOT_QUEUE_DEPTH,
        metric::COLD_QUEUE_DEPTH,
        metric::STALE_SETTLES_TOTAL,
        "outbox_dispatch_latency_seconds_sum",
    ] {
        assert!(names.contains(name), "{name} is not served");
    }
    relay.stop().await.unwrap();
    becomes(&outbox, "outbox_relays_alive", 0.0).await;
}

async fn labels_are_few_however_many_topics_and_tenants_there_are<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    recorder();
    let outbox = on.table().to_string();
    let events = (0..150).map(|n| {
        let tenant = format!("t{}", n % 5);
        let event = Event::builder("E").aggregate("Order", n).topic(format!("topic-{n}"));
        event.tenant(tenant).payload(&n).build().unwrap()
    });
    on.enqueue(events.collect()).await;
    let down = MemoryTransport::scripted(|_| Outcome::dead("never"));
    let config = Config { metric_tenants: 2, enabled: false, ..busy() };
    // Switched off and alone, it still counts.
    let counts = on.relay(down.clone(), config);
    counts.start().await.unwrap();
    becomes(&outbox, "outbox_pending_count", 150.0).await;
    becomes(&outbox, "outbox_tenant_pending_count{tenant=\"other\"}", 90.0).await;
    counts.stop().await.unwrap();
    let relay = on.relay(down, busy());
    relay.relay_once().await.unwrap();
    let count = |name: &str| scrape(&outbox).iter().filter(|(n, _)| n.starts_with(name)).count();
    assert_eq!(count("outbox_dead_total"), metric::TOPICS + 1);
    assert_eq!(count("outbox_enqueue_total"), metric::TOPICS + 1);
    assert_eq!(count("outbox_tenant_pending_count"), 3);
}

async fn one_relay_keeps_house_and_the_next_takes_over<DB: TestDatabase>(on: &Fixture<DB>) {
    let named = |name: &str| Config { name: name.to_owned(), ..quick() };
    let start = async |name| -> Relay {
        let relay = on.relay(MemoryTransport::new(), named(name));
        relay.start().await.unwrap();
        relay
    };
    let a = start("a").await;
    until(&a, "its turn", |stats| stats.housekeeper).await;
    let b = start("b").await;
    until(&b, "its share", |stats| stats.shards_owned > 0).await;
    assert!(!b.stats().housekeeper && a.stats().housekeeper);
    assert!(a.health().ready && b.health().ready, "{:?} {:?}", a.health(), b.health());
    // Dropped without a stop, it is dead to the others when its heartbeat has run out.
    drop(a);
    until(&b, "its turn", |stats| stats.housekeeper).await;
    b.stop().await.unwrap();
    assert!(!b.health().ready);
}

async fn an_old_event_makes_a_relay_unready_until_it_is_delivered<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let config = Config {
        health: HealthLimits { max_age: Duration::from_millis(1), ..HealthLimits::default() },
        housekeeping: Housekeeping {
            health: Some(Duration::from_millis(20)),
            ..quick().housekeeping
        },
        ..quick()
    };
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), config);
    assert!(relay.health().live && !relay.health().ready, "it is not started");
    let becomes = async |ready: bool| {
        asked("a change of health", async || relay.health().ready == ready).await;
    };
    let destination = Pausable::Destination("memory".to_owned());
    on.store.pause(&destination, "test", None).await.unwrap();
    relay.start().await.unwrap();
    becomes(true).await;
    on.enqueue(vec![event("k", 1)]).await;
    becomes(false).await;
    let health = relay.health();
    assert!(health.live && health.reasons[0].contains("older than"), "{health:?}");
    on.store.resume(&destination).await.unwrap();
    soon("delivery", transport.wait_for(1)).await;
    becomes(true).await;
    relay.stop().await.unwrap();
}
