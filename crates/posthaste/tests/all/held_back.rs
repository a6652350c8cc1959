//! Nobody is held back: by a row that somebody has locked, by an event far ahead.

use std::time::Duration;

use posthaste::{Key, key::derived_key, relay::Config, transports::memory::MemoryTransport};

use crate::support::{Fixture, LIMIT, TestDatabase, event, quick, soon};

/// SQLite locks no rows.
mod locked {
    use super::a_row_that_somebody_has_locked_holds_back_no_other as it;

    mod postgres {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_row_that_somebody_has_locked_holds_back_no_other() {
            let fixture = <sqlx::Postgres as crate::support::TestDatabase>::fixture().await;
            super::it(&fixture).await;
            fixture.clean().await;
        }
    }

    mod mariadb {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_row_that_somebody_has_locked_holds_back_no_other() {
            let fixture = <sqlx::MySql as crate::support::TestDatabase>::fixture().await;
            super::it(&fixture).await;
            fixture.clean().await;
        }
    }
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

/// As an operator's open transaction would.
async fn a_row_that_somebody_has_locked_holds_back_no_other<DB: TestDatabase>(on: &Fixture<DB>) {
    const OTHERS: usize = 3_000;

    let sequence = on.enqueue(vec![event("locked", 0)]).await[0].sequence;
    let mut operator = on.pool.begin().await.unwrap();
    let lock = format!("select sequence from {{events}} where sequence = {sequence} for update");
    let lock = on.tables.fill(&lock);
    DB::run_on(&mut operator, lock).await.unwrap();
    on.enqueue((0..OTHERS).map(|n| event(&n.to_string(), n)).collect()).await;

    let transport = MemoryTransport::new();
    let config = Config { lease: Duration::from_secs(30), ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    soon("all of them", transport.wait_for(OTHERS + 1)).await;
    all_sent(on, OTHERS as i64).await;
    on.enqueue(vec![event("later", 0)]).await;
    all_sent(on, OTHERS as i64 + 1).await;
    operator.rollback().await.unwrap();
    all_sent(on, OTHERS as i64 + 2).await;
    relay.stop().await.unwrap();
    assert_eq!(transport.delivered().len(), OTHERS + 2, "each once");
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
