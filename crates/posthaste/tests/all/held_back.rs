//! Nobody is held back: by an event far ahead.

use posthaste::{Key, key::derived_key, relay::Config, transports::memory::MemoryTransport};

use crate::support::{TestDatabase, event, quick, soon};

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
