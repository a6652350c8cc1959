//! Nobody is held back: by a row that somebody has locked, by an event far ahead, by a key with very many.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use posthaste::{
    Enqueued, Envelope, Event, Key,
    key::derived_key,
    relay::Config,
    transport::{Outcome, Transport},
    transports::memory::MemoryTransport,
};

use crate::support::{Fixture, LIMIT, TestDatabase, event, quick, soon};

/// SQLite locks no rows.
mod locked {
    macro_rules! on_servers {
        ($($case:ident),* $(,)?) => {
            on_servers!(postgres: sqlx::Postgres; $($case),*);
            on_servers!(mariadb: sqlx::MySql; $($case),*);
        };
        ($module:ident: $database:ty; $($case:ident),*) => {
            mod $module {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        let fixture = <$database as crate::support::TestDatabase>::fixture().await;
                        crate::held_back::$case(&fixture).await;
                        fixture.clean().await;
                    }
                )*
            }
        };
    }

    on_servers!(
        rows_that_somebody_has_locked_hold_back_no_other,
        a_key_behind_a_locked_row_holds_back_no_other,
    );
}

on_every_database!(
    a_queue_that_is_smaller_than_half_a_batch_is_filled,
    a_key_with_very_many_events_holds_back_no_other_at_a_slow_destination,
    a_key_whose_events_fill_the_memory_holds_back_no_other_at_a_slow_destination,
);

async fn a_queue_that_is_smaller_than_half_a_batch_is_filled<DB: TestDatabase>(on: &Fixture<DB>) {
    on.enqueue((0..20).map(|n| event(&n.to_string(), n)).collect()).await;
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), Config { batch: 30, cold_queue: 4, ..quick() });
    relay.start().await.unwrap();
    soon("all of them", transport.wait_for(20)).await;
    relay.stop().await.unwrap();
}

/// Waits until so many events are marked as sent.
async fn all_sent<DB: TestDatabase>(on: &Fixture<DB>, count: i64) {
    let sent = async {
        let query = "select count(*) from {events} where sent_at is not null";
        while on.number(query).await < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, sent).await;
    assert!(waited.is_ok(), "waited in vain for {count} events to be marked");
}

/// As an operator's open transaction would. Each locked row that took a timeout of its own would need minutes.
async fn rows_that_somebody_has_locked_hold_back_no_other<DB: TestDatabase>(on: &Fixture<DB>) {
    const LOCKED: usize = 40;
    const OTHERS: usize = 3_000;

    let locked = on.enqueue((0..LOCKED).map(|n| event(&format!("locked {n}"), n)).collect()).await;
    let mut operator = on.pool.begin().await.unwrap();
    for Enqueued { sequence, .. } in locked {
        // One by one: MariaDB would lock the place of the next one, too.
        let lock =
            format!("select sequence from {{events}} where sequence = {sequence} for update");
        DB::run_on(&mut operator, on.tables.fill(&lock)).await.unwrap();
    }
    on.enqueue((0..OTHERS).map(|n| event(&n.to_string(), n)).collect()).await;

    let transport = MemoryTransport::new();
    let config = Config { lease: Duration::from_secs(30), ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    soon("all of them", transport.wait_for(OTHERS + LOCKED)).await;
    all_sent(on, OTHERS as i64).await;
    on.enqueue(vec![event("later", 0)]).await;
    all_sent(on, OTHERS as i64 + 1).await;
    operator.rollback().await.unwrap();
    all_sent(on, (OTHERS + LOCKED) as i64 + 1).await;
    relay.stop().await.unwrap();
    assert_eq!(transport.delivered().len(), OTHERS + LOCKED + 1, "each once");
}

/// The outcome of the first cannot be written, and what follows it fills the memory.
async fn a_key_behind_a_locked_row_holds_back_no_other<DB: TestDatabase>(on: &Fixture<DB>) {
    const FOLLOWERS: usize = 1_000;
    const OTHERS: usize = 20;

    let Enqueued { sequence, .. } = on.enqueue(vec![event("locked", 0)]).await.remove(0);
    let mut operator = on.pool.begin().await.unwrap();
    let lock = format!("select sequence from {{events}} where sequence = {sequence} for update");
    DB::run_on(&mut operator, on.tables.fill(&lock)).await.unwrap();
    // It takes its number now and commits late. No hook tells the relay of it.
    let mut late = on.pool.begin().await.unwrap();
    let of_it = [event("late", 0)];
    DB::enqueue(&mut *late, &on.tables, &of_it).await.unwrap();
    on.enqueue((1..=FOLLOWERS).map(|n| event("locked", n)).collect()).await;
    on.enqueue((0..OTHERS).map(|n| event(&n.to_string(), n)).collect()).await;
    let transport = MemoryTransport::scripted(|envelope| {
        match (envelope.event.aggregate_id(), envelope.sequence) {
            (Some("locked"), 1) => Outcome::dead("never"),
            _ => Outcome::Delivered,
        }
    });
    let config = Config { lease: Duration::from_secs(30), batch: 50, cold_queue: 100, ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    soon("the others", transport.wait_for(OTHERS)).await;
    let delivered = transport.delivered();
    assert!(delivered.iter().all(|one| one.event.aggregate_id() != Some("locked")), "in order");
    late.commit().await.unwrap();
    soon("the late one", transport.wait_for(OTHERS + 1)).await;
    operator.rollback().await.unwrap();
    soon("the rest", transport.wait_for(OTHERS + 1 + FOLLOWERS)).await;
    relay.stop().await.unwrap();
}

/// Numbers that lie so far apart come from a backlog that the cursor still reads, while the hot path has brought
/// the newest events, and one of these is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_event_far_ahead_of_the_cursor_holds_back_no_other() {
    let on = <sqlx::Postgres as TestDatabase>::fixture().await;
    let backlog: Vec<_> = (0..300).map(|n| event(&n.to_string(), n)).collect();
    on.enqueue(backlog).await;
    on.sql("select setval(pg_get_serial_sequence('{events}', 'sequence'), 50000)").await;
    on.enqueue(vec![event("held", 0)]).await;
    let Key(lane) = Key::of(&derived_key("", "Order", "held"));
    on.sql(&format!(
        "update {{events}} set not_before = 'infinity', wait = 'held', lane = {lane}, destination = 'memory' \
         where sequence > 50000"
    ))
    .await;

    let transport = MemoryTransport::new();
    // More wait in line behind it than the queue takes.
    let config = Config { batch: 10, cold_queue: 20, ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    soon("the backlog and what was held", transport.wait_for(301)).await;
    relay.stop().await.unwrap();
    on.clean().await;
}

/// Takes a while for each event, and keeps count.
struct Slow {
    inner: MemoryTransport,
    of_key: Arc<AtomicUsize>,
}

#[async_trait]
impl Transport for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let bulk = batch.iter().filter(|envelope| envelope.event.aggregate_id() == Some("bulk"));
        self.of_key.fetch_add(bulk.count(), Ordering::Relaxed);
        self.inner.publish(batch).await
    }
}

async fn a_key_with_very_many_events_holds_back_no_other_at_a_slow_destination<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let config = Config { batch: 50, cold_queue: 100, ..quick() };
    a_key_holds_back_no_other(on, 2_000, config, event).await;
}

async fn a_key_whose_events_fill_the_memory_holds_back_no_other_at_a_slow_destination<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let large = |key: &str, n: usize| {
        let event = Event::builder("OrderChanged").aggregate("Order", key).payload(&n);
        event.header("large", "x".repeat(100_000)).build().unwrap()
    };
    a_key_holds_back_no_other(on, 300, Config { memory: 4 << 20, ..quick() }, large).await;
}

async fn a_key_holds_back_no_other<DB: TestDatabase>(
    on: &Fixture<DB>,
    bulk: usize,
    config: Config,
    bulk_event: impl Fn(&str, usize) -> Event,
) {
    const OTHERS: usize = 20;

    for piece in (0..bulk).collect::<Vec<_>>().chunks(100) {
        on.enqueue(piece.iter().map(|&n| bulk_event("bulk", n)).collect()).await;
    }
    let (inner, of_key) = (MemoryTransport::new(), Arc::new(AtomicUsize::new(0)));
    let transport = Slow { inner: inner.clone(), of_key: Arc::clone(&of_key) };
    let relay = on.relay(transport, config);
    relay.start().await.unwrap();
    // Told to nobody: only the cursor finds them.
    on.enqueue((0..OTHERS).map(|n| event(&n.to_string(), n)).collect()).await;
    let others = async {
        let of_others = |delivered: &[Envelope]| {
            delivered
                .iter()
                .filter(|envelope| envelope.event.aggregate_id() != Some("bulk"))
                .count()
        };
        let mut seen = 0;
        while of_others(&inner.delivered()) < OTHERS {
            seen += 1;
            inner.wait_for(seen).await;
        }
    };
    soon("the other keys", others).await;
    let before = of_key.load(Ordering::Relaxed);
    assert!(before < bulk / 2, "they waited for {before} events of the bulk");
    let of_bulk: Vec<usize> = inner
        .delivered()
        .iter()
        .filter(|envelope| envelope.event.aggregate_id() == Some("bulk"))
        .map(|envelope| serde_json::from_slice(envelope.event.payload()).unwrap())
        .collect();
    assert_eq!(of_bulk, (0..of_bulk.len()).collect::<Vec<_>>(), "in order");
    relay.stop().await.unwrap();
}
