//! From a committed transaction to its destination, on every database.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};
use posthaste::{
    Envelope, Event, Status,
    backoff::Backoff,
    relay::{Config, Housekeeping, OnDead, Retention},
    store::{Filter, RelayOrdering, Selection},
    transport::{Outcome, Transport},
    transports::memory::MemoryTransport,
};
use sqlx::Sqlite;

on_every_database!(
    events_of_a_key_arrive_in_order_and_are_marked_sent,
    payloads_arrive_byte_for_byte,
    a_failing_head_blocks_only_its_lane_and_its_followers_come_after_it,
    the_last_failure_is_death_with_attempts_kept_and_a_replay_delivers,
    a_parked_key_goes_on_when_its_dead_event_is_discarded,
    a_replayed_parked_event_goes_before_its_followers,
    a_parked_key_without_followers_goes_on_after_a_discard,
    a_panic_in_a_handler_is_a_retry,
    a_dispatch_past_its_timeout_is_tried_again,
    a_delayed_event_is_delivered_when_it_falls_due_and_holds_nobody_back,
    a_replayed_sent_event_is_delivered_again_with_its_replay_number,
    the_hot_path_delivers_without_a_poll,
    a_rolled_back_transaction_hands_over_nothing,
    a_row_that_cannot_be_decoded_is_dead_and_the_rows_behind_it_go_on,
    with_retention_zero_sent_events_are_deleted,
    one_pass_by_hand_delivers_what_is_there_and_gives_the_shards_back,
    a_second_start_is_a_clear_error,
    unordered_relays_share_the_work_without_sending_twice,
    retry_after_burns_no_attempt,
);

fn numbers(delivered: &[Envelope], key: &str) -> Vec<u64> {
    delivered
        .iter()
        .filter(|envelope| envelope.event.aggregate_id() == Some(key))
        .map(|envelope| std::str::from_utf8(envelope.event.payload()).unwrap().parse().unwrap())
        .collect()
}

fn number(envelope: &Envelope) -> u64 {
    std::str::from_utf8(envelope.event.payload()).unwrap().parse().unwrap()
}

async fn events_of_a_key_arrive_in_order_and_are_marked_sent<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    for n in 0..20 {
        on.enqueue((0..10).map(|key| event(&key.to_string(), n)).collect()).await;
    }
    soon("delivery", transport.wait_for(200)).await;
    until(&relay, "idle", |stats| stats.idle).await;
    let delivered = transport.delivered();
    assert_eq!(delivered.len(), 200);
    for key in 0..10 {
        assert_eq!(numbers(&delivered, &key.to_string()), (0..20).collect::<Vec<_>>());
    }
    assert_eq!(on.store.count_sent().await.unwrap(), 200);
    assert_eq!(on.store.counts(u64::MAX).await.unwrap().new, 0);
    relay.stop().await.unwrap();
}

async fn payloads_arrive_byte_for_byte<DB: TestDatabase>(on: &Fixture<DB>) {
    let planes: String = (0..=16u32)
        .flat_map(|plane| {
            [0x20, 0x7f, 0x100, 0xfffd]
                .into_iter()
                .filter_map(move |low| char::from_u32(plane * 0x1_0000 + low))
        })
        .collect();
    let payloads: Vec<Vec<u8>> = vec![
        br#"{"b":1,"a":1.0,"a":2}"#.to_vec(),
        Vec::new(),
        (0..1024 * 1024).map(|i: u32| (i * 31 % 251) as u8).collect(),
        planes.clone().into_bytes(),
        (0..=255).collect(),
    ];
    let events = payloads.iter().map(|payload| {
        Event::builder("Raw")
            .bytes("application/octet-stream", payload.clone())
            .header("planes", planes.clone())
            .aggregate("Raw", "1")
            .build()
            .unwrap()
    });
    on.enqueue(events.collect()).await;
    let transport = MemoryTransport::new();
    on.relay(transport.clone(), quick()).relay_once().await.unwrap();
    let delivered = transport.delivered();
    assert_eq!(delivered.len(), payloads.len());
    for (envelope, payload) in delivered.iter().zip(&payloads) {
        assert_eq!(envelope.event.payload(), payload);
        assert_eq!(envelope.event.headers()["planes"], planes);
    }
}

async fn a_failing_head_blocks_only_its_lane_and_its_followers_come_after_it<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let failures = Arc::new(AtomicUsize::new(0));
    let transport = MemoryTransport::scripted({
        let failures = Arc::clone(&failures);
        move |envelope| {
            let head = envelope.event.aggregate_id() == Some("bad") && number(envelope) == 0;
            if head && failures.fetch_add(1, Ordering::SeqCst) < 5 {
                return Outcome::retry("not yet");
            }
            Outcome::Delivered
        }
    });
    on.enqueue((0..30).flat_map(|n| [event("bad", n), event("good", n)]).collect()).await;
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    soon("delivery", transport.wait_for(60)).await;
    let delivered = transport.delivered();
    assert_eq!(numbers(&delivered, "bad"), (0..30).collect::<Vec<_>>());
    assert_eq!(numbers(&delivered, "good"), (0..30).collect::<Vec<_>>());
    let stats = relay.stop().await.unwrap();
    assert_eq!((stats.retried, stats.held), (5, 29), "followers are marked once");
}

async fn the_last_failure_is_death_with_attempts_kept_and_a_replay_delivers<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::scripted(|envelope| {
        if envelope.replay == 0 && number(envelope) == 0 {
            return Outcome::retry(format!("failure {}", envelope.attempts + 1));
        }
        Outcome::Delivered
    });
    let poison = event("k", 0);
    let id = poison.id();
    on.enqueue(vec![poison, event("k", 1)]).await;
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    soon("the follower", transport.wait_for(1)).await;
    let record = on.record(id).await;
    assert_eq!((record.status, record.attempts), (Status::Dead, 10));
    assert_eq!(record.last_error.as_deref(), Some("failure 10"));
    let attempts = on.store.attempts(record.sequence).await.unwrap();
    assert_eq!(attempts.len(), 10);
    assert_eq!((attempts[0].attempt, attempts[0].error.as_str()), (1, "failure 1"));
    assert_eq!(attempts[9].destination, "memory");

    assert_eq!(on.store.replay(&Selection::One(id)).await.unwrap(), 1);
    relay.wake();
    soon("the replay", transport.wait_for(2)).await;
    let replayed = transport.delivered().pop().unwrap();
    assert_eq!((replayed.event.id(), replayed.replay, replayed.attempts), (id, 1, 0));
    assert_eq!(replayed.deduplication_id(), format!("{id}/1"));
    relay.stop().await.unwrap();
}

async fn parked<DB: TestDatabase>(
    on: &Fixture<DB>,
) -> (MemoryTransport, posthaste::relay::Relay, uuid::Uuid) {
    let transport = MemoryTransport::scripted(|envelope| {
        if envelope.replay == 0 && number(envelope) == 0 {
            return Outcome::dead("never");
        }
        Outcome::Delivered
    });
    let poison = event("k", 0);
    let id = poison.id();
    on.enqueue(vec![poison, event("k", 1), event("k", 2), event("other", 9)]).await;
    let relay = on.relay(transport.clone(), Config { on_dead: OnDead::Park, ..quick() });
    relay.start().await.unwrap();
    soon("the other key", transport.wait_for(1)).await;
    until(&relay, "followers held", |stats| stats.held == 2 && stats.idle).await;
    // Written after the key was parked: waits as well.
    on.enqueue(vec![event("k", 3)]).await;
    until(&relay, "a third one held", |stats| stats.held == 3 && stats.idle).await;
    assert_eq!(transport.delivered().len(), 1);
    assert_eq!(on.record(id).await.status, Status::Dead);
    (transport, relay, id)
}

async fn a_parked_key_goes_on_when_its_dead_event_is_discarded<DB: TestDatabase>(on: &Fixture<DB>) {
    let (transport, relay, id) = parked(on).await;
    on.store.discard(&Selection::One(id)).await.unwrap();
    soon("the followers", transport.wait_for(4)).await;
    assert_eq!(numbers(&transport.delivered(), "k"), [1, 2, 3]);
    assert_eq!(on.record(id).await.status, Status::Discarded);
    relay.stop().await.unwrap();
}

async fn a_replayed_parked_event_goes_before_its_followers<DB: TestDatabase>(on: &Fixture<DB>) {
    let (transport, relay, id) = parked(on).await;
    on.store.replay(&Selection::One(id)).await.unwrap();
    soon("all", transport.wait_for(5)).await;
    assert_eq!(numbers(&transport.delivered(), "k"), [0, 1, 2, 3]);
    relay.stop().await.unwrap();
}

fn first_one_dies() -> MemoryTransport {
    MemoryTransport::scripted(|envelope| match number(envelope) {
        0 => Outcome::dead("never"),
        _ => Outcome::Delivered,
    })
}

/// Nothing is held behind it that the discard could set free: the relay must look by itself.
async fn a_parked_key_without_followers_goes_on_after_a_discard<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = first_one_dies();
    let poison = event("k", 0);
    let id = poison.id();
    on.enqueue(vec![poison]).await;
    let config = Config { on_dead: OnDead::Park, heartbeat: Duration::from_millis(200), ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    until(&relay, "its death", |stats| stats.dead == 1 && stats.idle).await;
    on.store.discard(&Selection::One(id)).await.unwrap();
    on.enqueue(vec![event("k", 1), event("k", 2)]).await;
    soon("the key", transport.wait_for(2)).await;
    assert_eq!(numbers(&transport.delivered(), "k"), [1, 2]);
    relay.stop().await.unwrap();
}

async fn a_panic_in_a_handler_is_a_retry<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::scripted(|envelope| {
        assert!(envelope.attempts > 0, "marker-payload");
        Outcome::Delivered
    });
    let one = event("k", 1);
    let id = one.id();
    on.enqueue(vec![one]).await;
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    soon("the second try", transport.wait_for(1)).await;
    until(&relay, "idle", |stats| stats.idle).await;
    let record = on.record(id).await;
    assert_eq!((record.status, record.attempts), (Status::Sent, 1));
    let attempts = on.store.attempts(record.sequence).await.unwrap();
    assert_eq!(attempts[0].error, "transport memory panicked");
    relay.stop().await.unwrap();
}

/// Never answers the first time.
struct Hangs(MemoryTransport, AtomicBool);

#[async_trait::async_trait]
impl Transport for Hangs {
    fn name(&self) -> &str {
        "hangs"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if !self.1.swap(true, Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.0.publish(batch).await
    }
}

async fn a_dispatch_past_its_timeout_is_tried_again<DB: TestDatabase>(on: &Fixture<DB>) {
    let memory = MemoryTransport::new();
    on.enqueue(vec![event("k", 1)]).await;
    let config = Config { dispatch_timeout: Duration::from_millis(20), ..quick() };
    let relay = on.relay(Hangs(memory.clone(), AtomicBool::new(false)), config);
    relay.start().await.unwrap();
    soon("the second try", memory.wait_for(1)).await;
    // Nothing else was taken since: it may have been the destination.
    assert_eq!(memory.delivered()[0].attempts, 0);
    relay.stop().await.unwrap();
}

async fn a_delayed_event_is_delivered_when_it_falls_due_and_holds_nobody_back<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::new();
    let at = jiff::Timestamp::now() + Duration::from_secs(2);
    let delayed = Event::builder("Later")
        .aggregate("Order", "k")
        .raw_json("0")
        .deliver_at(at)
        .build()
        .unwrap();
    on.enqueue(vec![delayed, event("k", 1)]).await;
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    soon("the follower", transport.wait_for(1)).await;
    // The cursor is past the delayed one when it falls due.
    on.enqueue(vec![event("k", 2)]).await;
    soon("all three", transport.wait_for(3)).await;
    assert!(jiff::Timestamp::now() >= at, "delivered before its time");
    let order: Vec<u64> = transport.delivered().iter().map(number).collect();
    assert_eq!(order, [1, 2, 0]);
    relay.stop().await.unwrap();
}

async fn a_replayed_sent_event_is_delivered_again_with_its_replay_number<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::new();
    on.enqueue((0..5).map(|n| event("k", n)).collect()).await;
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    soon("delivery", transport.wait_for(5)).await;
    until(&relay, "idle", |stats| stats.idle).await;
    let filter = Filter { status: Some(Status::Sent), ..Filter::default() };
    let replayed = on.store.replay(&Selection::Matching { filter, limit: 100 }).await.unwrap();
    assert_eq!(replayed, 5);
    relay.wake();
    soon("the replays", transport.wait_for(10)).await;
    assert!(transport.delivered()[5..].iter().all(|envelope| envelope.replay == 1));
    relay.stop().await.unwrap();
}

/// Polls so rarely that only the hot path can be quick; listens to nothing either: the wake-up of
/// the poller would find the event as well, so the counter must say who was first.
async fn the_hot_path_delivers_without_a_poll<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let rare = Duration::from_secs(50);
    let config = Config { busy_interval: rare, idle_interval: rare, ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    until(&relay, "idle", |stats| stats.idle && stats.shards_owned == stats.shards).await;
    let outbox = on.outbox().with_hot_path(relay.hot_path());
    for n in 0..10 {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("k", n)).await.unwrap();
        tx.commit().await.unwrap();
        soon("delivery", transport.wait_for(n + 1)).await;
    }
    let stats = until(&relay, "settled", |stats| stats.delivered == 10).await;
    assert!(stats.hot_enqueued > 0, "{stats:?}");
    assert_eq!(numbers(&transport.delivered(), "k"), (0..10).collect::<Vec<_>>());
    relay.stop().await.unwrap();
}

async fn a_rolled_back_transaction_hands_over_nothing<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    let outbox = on.outbox().with_hot_path(relay.hot_path());
    for commit in [false, false, true] {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("k", usize::from(commit))).await.unwrap();
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
    }
    soon("delivery", transport.wait_for(1)).await;
    until(&relay, "idle", |stats| stats.idle).await;
    assert_eq!(numbers(&transport.delivered(), "k"), [1]);
    relay.stop().await.unwrap();
}

async fn a_row_that_cannot_be_decoded_is_dead_and_the_rows_behind_it_go_on<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let mut broken = event("k", 0);
    let id = uuid::Uuid::now_v7();
    broken = Event::builder(broken.event_type())
        .id(id)
        .aggregate("Order", "k")
        .raw_json("0")
        .header("h", "BREAK-ME")
        .build()
        .unwrap();
    on.enqueue(vec![broken, event("k", 1)]).await;
    on.sql("update {events} set headers = '[1, 2' where headers is not null").await;
    let transport = MemoryTransport::new();
    let stats = on.relay(transport.clone(), quick()).relay_once().await.unwrap();
    assert_eq!((stats.delivered, stats.dead), (1, 1));
    assert_eq!(numbers(&transport.delivered(), "k"), [1]);
    let record = on.record(id).await;
    assert_eq!(record.status, Status::Dead);
    assert!(record.last_error.unwrap().contains("headers"), "the reason names the column");
}

async fn with_retention_zero_sent_events_are_deleted<DB: TestDatabase>(on: &Fixture<DB>) {
    let housekeeping = Housekeeping {
        retention: Retention { sent: Duration::ZERO, dead: None },
        ..quick().housekeeping
    };
    on.enqueue((0..20).map(|n| event("k", n)).collect()).await;
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), Config { housekeeping, ..quick() });
    relay.relay_once().await.unwrap();
    assert_eq!(transport.delivered().len(), 20);
    assert_eq!(on.store.count_sent().await.unwrap(), 0);
    let page = on.store.events(&Filter::default(), None, 10).await.unwrap();
    assert!(page.events.is_empty());
}

async fn one_pass_by_hand_delivers_what_is_there_and_gives_the_shards_back<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    on.enqueue((0..50).map(|n| event(&(n % 7).to_string(), n)).collect()).await;
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), quick());
    let stats = soon("the pass", relay.relay_once()).await.unwrap();
    assert_eq!(stats.delivered, 50);
    assert!(on.store.shards().await.unwrap().iter().all(|shard| shard.locked_by.is_none()));
    assert!(on.store.relays().await.unwrap().is_empty());
    let again = soon("the second pass", relay.relay_once()).await.unwrap();
    assert_eq!((again.delivered, transport.delivered().len()), (0, 50));
}

async fn a_second_start_is_a_clear_error<DB: TestDatabase>(on: &Fixture<DB>) {
    let relay = on.relay(MemoryTransport::new(), Config { name: "r1".to_owned(), ..quick() });
    assert!(!relay.is_running());
    relay.start().await.unwrap();
    assert!(relay.is_running());
    let twice = relay.start().await.unwrap_err();
    assert_eq!(twice.to_string(), "relay r1 is running already");
    relay.stop().await.unwrap();
    assert!(!relay.is_running());
    let again = relay.start().await.unwrap_err();
    assert_eq!(again.to_string(), "relay r1 was stopped and does not start again; make a new one");
}

async fn unordered_relays_share_the_work_without_sending_twice<DB: TestDatabase>(on: &Fixture<DB>) {
    on.enqueue((0..400).map(|n| event(&n.to_string(), n)).collect()).await;
    let transport = MemoryTransport::scripted(|_| Outcome::Delivered);
    let config = Config { ordering: RelayOrdering::None, batch: 20, ..quick() };
    let relays = [
        on.relay(transport.clone(), Config { name: "a".to_owned(), ..config.clone() }),
        on.relay(transport.clone(), Config { name: "b".to_owned(), ..config.clone() }),
    ];
    for relay in &relays {
        relay.start().await.unwrap();
    }
    soon("delivery", transport.wait_for(400)).await;
    for relay in &relays {
        until(relay, "idle", |stats| stats.idle).await;
        relay.stop().await.unwrap();
    }
    let mut seen: Vec<u64> = transport.delivered().iter().map(number).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..400).collect::<Vec<_>>());
}

async fn retry_after_burns_no_attempt<DB: TestDatabase>(on: &Fixture<DB>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let transport = MemoryTransport::scripted({
        let calls = Arc::clone(&calls);
        move |_| match calls.fetch_add(1, Ordering::SeqCst) {
            n if n < 15 => {
                Outcome::Retry { error: "busy".to_owned(), after: Some(Duration::from_millis(1)) }
            }
            _ => Outcome::Delivered,
        }
    });
    on.enqueue(vec![event("k", 1)]).await;
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    soon("delivery", transport.wait_for(1)).await;
    assert_eq!(transport.delivered()[0].attempts, 0);
    relay.stop().await.unwrap();
}

/// On one thread: what is logged is heard there.
mod logged {
    use super::*;
    use crate::support::Log;

    /// Of a batch the first five failures have a line each, and one line counts the others.
    #[tokio::test]
    async fn every_failure_is_named_or_counted() {
        let log = Log::default();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
        let _listening = tracing::subscriber::set_default(subscriber);
        let on = Sqlite::fixture().await;
        on.enqueue((0..400).map(|n| event(&n.to_string(), n)).collect()).await;
        // Every other one is taken: where all fail, the destination is down and no failure counts.
        let transport = MemoryTransport::scripted(|envelope| match number(envelope) % 2 {
            0 => Outcome::retry("not now"),
            _ => Outcome::Delivered,
        });
        let backoff = Backoff::Fixed(Duration::from_hours(1));
        let stats = on.relay(transport, Config { backoff, ..quick() }).relay_once().await.unwrap();
        assert_eq!((stats.delivered, stats.retried), (200, 200));

        let text = log.text();
        let named = text.matches("not delivered; trying again").count();
        let lines = text.lines().filter(|line| line.contains("not delivered, more than are named"));
        let counts: Vec<usize> = lines
            .map(|line| {
                assert!(line.contains("INFO"), "{line}");
                line.rsplit_once("events=").expect(line).1.trim().parse().unwrap()
            })
            .collect();
        assert!(!counts.is_empty(), "{text}");
        // Five of each batch that has a count.
        assert!(named >= 5 * counts.len(), "{named} for {counts:?}");
        assert_eq!(named + counts.iter().sum::<usize>(), 200, "{counts:?}");
        on.clean().await;
    }

    macro_rules! on_each {
        ($($module:ident, $database:ty, $time:literal;)*) => {
            $(#[tokio::test]
            async fn $module() {
                let on = <$database as TestDatabase>::fixture().await;
                a_row_that_cannot_be_decoded_is_named_with_its_column(&on, $time).await;
                on.clean().await;
            })*
        };
    }

    on_each! {
        a_row_that_cannot_be_decoded_is_named_on_sqlite, sqlx::Sqlite, "'no time'";
        a_row_that_cannot_be_decoded_is_named_on_postgres, sqlx::Postgres, "'infinity'";
        a_row_that_cannot_be_decoded_is_named_on_mariadb, sqlx::MySql, "'0000-00-00'";
    }

    async fn a_row_that_cannot_be_decoded_is_named_with_its_column<DB: TestDatabase>(
        on: &Fixture<DB>,
        time: &str,
    ) {
        let log = Log::default();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
        let _listening = tracing::subscriber::set_default(subscriber);
        let enqueued = on.enqueue((0..3).map(|n| event("k", n)).collect()).await;
        let sequence = enqueued[1].sequence;
        on.sql(&format!("update {{events}} set occurred_at = {time} where sequence = {sequence}"))
            .await;
        let transport = MemoryTransport::new();
        let stats = on.relay(transport.clone(), quick()).relay_once().await.unwrap();
        assert_eq!((stats.delivered, stats.dead), (2, 1));
        let text = log.text();
        let line = text.lines().find(|line| line.contains("dead: given up on"));
        let line = line.unwrap_or_else(|| panic!("no line for the dead event: {text}"));
        assert!(line.contains("ERROR"), "{line}");
        assert!(line.contains(&format!("sequence={sequence}")), "{line}");
        assert!(line.contains("column occurred_at"), "{line}");
    }
}
