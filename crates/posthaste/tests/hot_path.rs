//! What the hot path costs: one read by key, and no poll.

mod support;

use std::{
    fmt,
    sync::{Mutex, Once, PoisonError},
    time::Duration,
};

use posthaste::{
    relay::{Config, Stats},
    transports::memory::MemoryTransport,
};
use sqlx::{MySql, Postgres};
use support::{Fixture, TestDatabase, event, quick, soon, until};

// Not on SQLite: its file tells the relay of every commit by itself, and a poll may come first.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_an_event_is_dispatched_after_one_read_by_its_key() {
    one_read_by_key(Postgres::fixture().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb_an_event_is_dispatched_after_one_read_by_its_key() {
    one_read_by_key(MySql::fixture().await).await;
}

/// The relay has nothing else to do for the next minutes: whatever it reads is for this event.
async fn one_read_by_key<DB: TestDatabase>(on: Fixture<DB>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Recorder).unwrap());
    let rare = Duration::from_mins(5);
    let config = Config {
        lease: 4 * rare,
        heartbeat: rare,
        busy_interval: rare,
        idle_interval: rare,
        ..quick()
    };
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    until(&relay, "idle", |stats| stats.idle && stats.shards_owned == stats.shards).await;
    let outbox = on.outbox().with_hot_path(relay.hot_path());

    // One poll may still come from the start: the listener wakes the relay once when it is up.
    for n in 1..=3 {
        let before = relay.stats();
        let statements = Statements::of(&on);
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("k", n)).await.unwrap();
        tx.commit().await.unwrap();
        soon("delivery", transport.wait_for(n)).await;
        let done = |stats: &Stats| stats.delivered == n as u64 && stats.idle;
        let stats = until(&relay, "settled", done).await;
        let sent = statements.until("sent_at = ").await;
        if stats.polls > before.polls && n < 3 {
            continue;
        }
        // Every read of events, of the hot path and of polls, brings their payload.
        let reads: Vec<_> = sent
            .iter()
            .filter(|sql| sql.contains("payload") && !sql.contains("insert into"))
            .collect();
        assert_eq!((reads.len(), stats.polls), (1, before.polls), "{reads:#?}");
        assert_eq!(stats.hot_enqueued, before.hot_enqueued + 1);
        break;
    }
    relay.stop().await.unwrap();
    on.clean().await;
}

/// All statements that this process has sent, as the driver logs them.
static SENT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The statements on one outbox from now on.
struct Statements {
    table: String,
    from: usize,
}

impl Statements {
    fn of<DB: TestDatabase>(on: &Fixture<DB>) -> Self {
        let from = SENT.lock().unwrap_or_else(PoisonError::into_inner).len();
        Self { table: on.table().qualified(), from }
    }

    /// Waits for the last one: the driver logs a statement when it is done with it.
    async fn until(&self, last: &str) -> Vec<String> {
        let find = async {
            loop {
                let sent: Vec<_> = SENT.lock().unwrap_or_else(PoisonError::into_inner)[self.from..]
                    .iter()
                    .filter(|statement| statement.contains(&self.table))
                    .cloned()
                    .collect();
                if sent.iter().any(|statement| statement.contains(last)) {
                    return sent;
                }
                tokio::task::yield_now().await;
            }
        };
        soon(last, find).await
    }
}

struct Recorder;

impl tracing::Subscriber for Recorder {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Statement;
        impl tracing::field::Visit for Statement {
            fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
                if field.name() == "db.statement" {
                    SENT.lock().unwrap_or_else(PoisonError::into_inner).push(value.to_owned());
                }
            }

            fn record_debug(&mut self, _: &tracing::field::Field, _: &dyn fmt::Debug) {}
        }
        event.record(&mut Statement);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
