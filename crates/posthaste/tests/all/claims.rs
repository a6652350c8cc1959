//! Relays that claim single rows.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use posthaste::{
    Envelope,
    relay::Config,
    store::RelayOrdering,
    transport::{Outcome, Transport},
};
use sqlx::Postgres;
use tokio::sync::watch;

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};

/// Nothing is taken before the gate is open. Event 1 is not tried when it comes first.
struct Gated {
    gate: watch::Receiver<bool>,
    /// The number and the attempts of all that came.
    came: Arc<Mutex<Vec<(usize, u32)>>>,
}

#[async_trait]
impl Transport for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let _ = self.gate.clone().wait_for(|open| *open).await;
        let mut came = self.came.lock().unwrap();
        let outcome = |envelope: &Envelope| {
            let number: usize = serde_json::from_slice(envelope.event.payload()).unwrap();
            let first = !came.iter().any(|(known, _)| *known == number);
            came.push((number, envelope.attempts));
            if number == 1 && first { Outcome::held() } else { Outcome::Delivered }
        };
        batch.iter().map(outcome).collect()
    }
}

async fn until_number(on: &Fixture<Postgres>, what: &str, sql: String, number: i64) {
    let reached = async {
        while Postgres::number(&on.pool, sql.clone()).await != number {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, reached).await;
}

/// Both go together and are settled together, each under a claim of its own. While the write of the second
/// waits, the first is free in the table, and its settle is not answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_claimed_again_before_its_settle_is_answered_does_not_wait_for_its_lease() {
    const LEASE: Duration = Duration::from_mins(5);

    let on = Postgres::fixture().await;
    let (open, gate) = watch::channel(false);
    let came = Arc::new(Mutex::new(Vec::new()));
    let transport = Gated { gate, came: Arc::clone(&came) };
    let ordering = RelayOrdering::None;
    let relay = on.relay(transport, Config { ordering, lease: LEASE, concurrency: 1, ..quick() });
    relay.start().await.unwrap();
    let table = on.table();
    for number in 0..3 {
        on.enqueue(vec![event(&number.to_string(), number)]).await;
        let claimed = format!("select count(*) from {table} where locked_by is not null");
        until_number(&on, "a claim", claimed, number as i64 + 1).await;
    }
    let mut settles_wait = on.pool.begin().await.unwrap();
    let lock = format!("select from {table} where sequence = 3 for update");
    Postgres::run_on(&mut settles_wait, lock).await.unwrap();
    open.send_replace(true);
    let free =
        format!("select count(*) from {table} where sequence = 2 and not_before is not null");
    until_number(&on, "the first part of the settle", free, 1).await;
    let polls = relay.stats().polls;
    until(&relay, "claims", |stats| stats.polls >= polls + 8).await;
    settles_wait.commit().await.unwrap();
    until(&relay, "all", |stats| stats.delivered == 3).await;
    relay.stop().await.unwrap();
    let came = came.lock().unwrap().clone();
    assert_eq!(came[came.len() - 1], (1, 0), "it went again, and no attempt was counted: {came:?}");
}
