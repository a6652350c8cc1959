//! Replays yield to live events: what that costs these is printed.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Envelope, Event, Status,
    relay::{Config, Housekeeping, Relay},
    store::{Filter, Selection},
    transport::{Outcome, Transport},
};
use posthaste_harness::{
    fixture::{Fixture, nightly},
    on_databases,
};

on_databases! {
    postgres, Postgres: live_events_go_before_replays;
}

/// How many events are sent again.
fn replays() -> usize {
    if nightly() { 10_000 } else { 2_000 }
}

#[derive(Clone)]
struct Destination {
    begun: Instant,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    /// How long each live event was on its way, in milliseconds.
    live: Vec<f64>,
    others: usize,
}

#[async_trait]
impl Transport for Destination {
    fn name(&self) -> &str {
        "destination"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        // A destination that is some way off.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let now = self.begun.elapsed().as_secs_f64() * 1_000.0;
        let mut taken = self.taken.lock().unwrap();
        for envelope in batch {
            if envelope.event.event_type() == "Live" {
                let sent: f64 = serde_json::from_slice(envelope.event.payload()).unwrap();
                taken.live.push(now - sent);
            } else {
                taken.others += 1;
            }
        }
        vec![Outcome::Delivered; batch.len()]
    }
}

impl Destination {
    fn others(&self) -> usize {
        self.taken.lock().unwrap().others
    }

    /// Median and 99th percentile of what is taken from now on, while live events are written for so long
    /// and longer, until the end has come.
    async fn measured(
        &self,
        on: &Fixture,
        least: Duration,
        end: impl Fn(&Self) -> bool,
    ) -> (usize, f64, f64) {
        self.taken.lock().unwrap().live.clear();
        let (begun, mut written) = (Instant::now(), 0);
        while begun.elapsed() < least || !end(self) {
            assert!(begun.elapsed() < Duration::from_mins(2), "{} others", self.others());
            let sent = self.begun.elapsed().as_secs_f64() * 1_000.0;
            let event = Event::builder("Live").aggregate("Order", written % 50).payload(&sent);
            on.enqueue(vec![event.build().unwrap()]).await;
            written += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        on.until("the live ones", async || self.taken.lock().unwrap().live.len() >= written).await;
        let mut live = self.taken.lock().unwrap().live.clone();
        live.sort_by(f64::total_cmp);
        (written, live[live.len() / 2], live[live.len() * 99 / 100])
    }
}

async fn live_events_go_before_replays(on: &Fixture) {
    let destination = Destination { begun: Instant::now(), taken: Arc::default() };
    let config = Config {
        housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
        ..Config::default()
    };
    let relay = Relay::new(Arc::clone(&on.store), Arc::new(destination.clone()), config).unwrap();
    let count = replays();
    for page in 0..count / 500 {
        let event = |n| Event::builder("Old").aggregate("Old", page * 500 + n).payload(&n).build();
        on.enqueue((0..500).map(|n| event(n).unwrap()).collect()).await;
    }
    relay.start().await.unwrap();
    on.until("what is sent again later", async || destination.others() >= count).await;
    on.until_drained().await;
    let least = Duration::from_secs(if nightly() { 20 } else { 4 });
    let (alone, p50, p99) = destination.measured(on, least, |_| true).await;
    let filter = Filter {
        status: Some(Status::Sent),
        event_type: Some("Old".to_owned()),
        ..Filter::default()
    };
    let replaying = Instant::now();
    let replay = async {
        let mut replayed = 0;
        while replayed < count as u64 {
            let selection = Selection::Matching { filter: filter.clone(), limit: 1_000 };
            let more = on.store.replay(&selection).await.unwrap();
            assert!(more > 0, "{replayed} were found");
            replayed += more;
        }
    };
    let again = count * 2;
    // No longer than there are replays.
    let done = |destination: &Destination| destination.others() >= again;
    let measured = destination.measured(on, Duration::ZERO, done);
    let ((), (beside, p50_beside, p99_beside)) = tokio::join!(replay, measured);
    println!(
        "live events alone: {alone}, p50 {p50:.1} ms, p99 {p99:.1} ms; beside {count} replays, \
         which took {:.1?}: {beside}, p50 {p50_beside:.1} ms, p99 {p99_beside:.1} ms; \
         ratios {:.2} and {:.2}",
        replaying.elapsed(),
        p50_beside / p50,
        p99_beside / p99
    );
    on.until_drained().await;
    relay.stop().await.unwrap();
    assert_eq!(destination.others(), again, "each came once more");
}
