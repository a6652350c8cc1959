//! Relays as a case plays them: one that owns shards and reads, one that claims rows, and the
//! patience to wait for the database's clock.

use std::{
    collections::BTreeSet,
    fmt::{Debug, Display},
    future::Future,
    sync::Arc,
    time::Duration,
};

use posthaste_core::{
    Event, Key,
    store::{
        ClaimedRows, Fence, Fetched, Held, Limit, Position, Relay, RelayOrdering, RowLease,
        RowsInHand, SettleReport, Settlement, Store, Verdict,
    },
};
use uuid::Uuid;

use super::outbox::Outbox;

/// Outlives every case.
pub(super) const LONG: Duration = Duration::from_mins(10);
/// Over after a few round trips.
pub(super) const SHORT: Duration = Duration::from_millis(5);
/// Where everything goes unless a case says otherwise.
pub(super) const BROKER: &str = "broker";

/// An event of this aggregate.
pub(super) fn event(aggregate_id: impl Display) -> Event {
    Event::builder("Happened").aggregate("Thing", aggregate_id).raw_json("{}").build().unwrap()
}

/// So many events, each of an aggregate of its own.
pub(super) fn events(count: usize) -> Vec<Event> {
    (0..count).map(event).collect()
}

/// A relay of this name whose leases last so long.
pub(super) fn relay(name: &str, lease: Duration) -> Relay {
    Relay {
        name: name.to_owned(),
        instance: Uuid::now_v7(),
        ordering: RelayOrdering::PerKey,
        lease,
    }
}

/// The sequences of rows, in their order.
pub(super) fn sequences(rows: &[Fetched]) -> Vec<i64> {
    rows.iter().map(|row| row.sequence).collect()
}

/// Asks until the answer is there, a bounded number of times: for what depends on the database's
/// clock and on nothing else.
pub(super) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    for _ in 0..5_000 {
        if let Some(answer) = ask().await {
            return answer;
        }
        // Lets the clock move on; the answer alone decides.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{what} never happened");
}

/// Fails when something waits that must not wait for anybody.
pub(super) async fn without_waiting<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(Duration::from_secs(10), future).await;
    outcome.unwrap_or_else(|_| panic!("{what} waited for somebody else"))
}

/// A relay that owns shards: reads them, settles what it read.
pub(super) struct Owner {
    store: Arc<dyn Store>,
    pub(super) relay: Relay,
    pub(super) held: Vec<Held>,
    pub(super) position: Position,
    /// How many rows it reads at once.
    pub(super) page_size: usize,
    /// What it has been handed, so that a row that comes again counts once.
    known: BTreeSet<i64>,
}

impl Outbox {
    /// A relay that takes all shards, for long.
    pub(super) async fn owner(&self) -> Owner {
        self.owner_for(LONG).await
    }

    /// A relay that takes all shards, for so long.
    pub(super) async fn owner_for(&self, lease: Duration) -> Owner {
        self.owner_of(&self.all_shards(), lease).await
    }

    /// A relay that takes these shards, for so long.
    pub(super) async fn owner_of(&self, shards: &[u16], lease: Duration) -> Owner {
        let relay = relay("owner", lease);
        let leases = self.store.acquire(&relay, shards).await.unwrap();
        assert_eq!(leases.len(), shards.len(), "the shards are not all free");
        let mark = leases.iter().map(|lease| &lease.mark).min_by_key(|mark| mark.sequence);
        Owner {
            store: Arc::clone(&self.store),
            relay,
            position: mark.unwrap().clone(),
            held: leases.iter().map(|lease| lease.held).collect(),
            page_size: 100,
            known: BTreeSet::new(),
        }
    }

    /// Waits until the database says that nobody holds a shard.
    pub(super) async fn all_leases_expired(&self) {
        let observer = relay("observer", LONG);
        eventually("the end of the leases", async || {
            let census = self.store.heartbeat(&observer, 0).await.unwrap();
            census.owners.iter().all(Option::is_none).then_some(())
        })
        .await;
    }

    /// Waits until the database says that the row lease of this event is over.
    pub(super) async fn row_lease_expired(&self, id: Uuid) {
        use posthaste_core::Status;
        eventually("the end of the row lease", async || {
            (self.record(id).await.status != Status::Sending).then_some(())
        })
        .await;
    }
}

impl Owner {
    pub(super) fn shards(&self) -> Vec<u16> {
        self.held.iter().map(|held| held.shard).collect()
    }

    pub(super) fn fence(&self) -> Fence {
        Fence::Shards { owner: self.relay.owner(), held: self.held.clone() }
    }

    /// One poll: all that is ahead and all that came late. Rows that were handed over before are
    /// left out, as a relay does it.
    pub(super) async fn poll(&mut self) -> Vec<Fetched> {
        let shards = self.shards();
        let mut found = Vec::new();
        let late = self.store.read_late(&shards, &self.position, Limit::rows(1000)).await.unwrap();
        self.position = late.position;
        found.extend(late.rows);
        loop {
            let page = self
                .store
                .read_on(&shards, &self.position, Limit::rows(self.page_size))
                .await
                .unwrap();
            self.position = page.position;
            found.extend(page.rows);
            if page.caught_up {
                break;
            }
        }
        found.retain(|row| self.known.insert(row.sequence));
        found.sort_by_key(|row| row.sequence);
        found
    }

    /// Settles, and expects that nothing is refused.
    pub(super) async fn settle(&self, batch: &[Settlement]) {
        let report = self.store.settle(&self.fence(), batch, true).await.unwrap();
        assert_eq!(report, SettleReport::default(), "the owner was refused");
    }

    /// Reads the outbox from its beginning: all that is fresh.
    pub(super) async fn read_all(&self) -> Vec<Fetched> {
        let start = Position { sequence: 0, context: self.position.context.clone() };
        let page = self.store.read_on(&self.shards(), &start, Limit::rows(10_000)).await.unwrap();
        assert!(page.caught_up);
        page.rows
    }

    /// Reads what is due now.
    pub(super) async fn read_due(&self) -> Vec<Fetched> {
        self.store.read_due(&self.shards(), None, Limit::rows(10_000)).await.unwrap().rows
    }
}

/// The outcome of one event.
pub(super) fn settlement(row: &Fetched, attempts: u32, verdict: Verdict) -> Settlement {
    Settlement {
        sequence: row.sequence,
        identity: row.identity,
        shard: row.shard,
        attempts,
        verdict,
    }
}

/// Delivered, all of them.
pub(super) fn sent(rows: &[Fetched]) -> Vec<Settlement> {
    rows.iter().map(|row| settlement(row, row.attempts, Verdict::Sent)).collect()
}

/// Failed for the `attempts`-th time, to be tried again after this time; blocks its lane.
pub(super) fn retry(row: &Fetched, attempts: u32, after: Duration) -> Settlement {
    let verdict = Verdict::Retry {
        after,
        error: format!("refused {attempts}"),
        destination: BROKER.to_owned(),
        key: row.key,
        replay: false,
    };
    settlement(row, attempts, verdict)
}

/// Given up on; the lane goes on.
pub(super) fn dead(row: &Fetched) -> Settlement {
    dying(row, None)
}

/// Given up on; the lane waits for an operator.
pub(super) fn parked(row: &Fetched) -> Settlement {
    dying(row, row.key)
}

fn dying(row: &Fetched, parked: Option<Key>) -> Settlement {
    let error = "refused for good".to_owned();
    settlement(row, 1, Verdict::Dead { error, destination: BROKER.to_owned(), parked })
}

/// Met behind a blocked event of its lane.
pub(super) fn held(row: &Fetched) -> Settlement {
    let key = row.key.expect("an ordered event");
    settlement(row, row.attempts, Verdict::Held { destination: BROKER.to_owned(), key })
}

/// About to be dispatched although it may have killed a relay.
pub(super) fn suspect(row: &Fetched, attempts: u32) -> Settlement {
    let destination = BROKER.to_owned();
    settlement(row, attempts, Verdict::Suspect { destination, key: row.key, replay: false })
}

/// A relay that claims rows.
pub(super) struct Claimer {
    store: Arc<dyn Store>,
    pub(super) relay: Relay,
    pub(super) lease: RowLease,
    pub(super) position: Position,
    /// The numbers of all that was claimed.
    claimed: Vec<i64>,
}

impl Outbox {
    /// A relay that claims rows, for long.
    pub(super) fn claimer(&self, name: &str) -> Claimer {
        self.claimer_for(name, LONG)
    }

    /// A relay that claims rows, for so long.
    pub(super) fn claimer_for(&self, name: &str, lease: Duration) -> Claimer {
        let relay = Relay { ordering: RelayOrdering::None, ..relay(name, lease) };
        let lease = RowLease { token: format!("{}#1", relay.owner()) };
        let store = Arc::clone(&self.store);
        Claimer { store, relay, lease, position: Position::default(), claimed: Vec::new() }
    }
}

impl Claimer {
    pub(super) fn fence(&self) -> Fence {
        Fence::Rows(self.lease.clone())
    }

    pub(super) async fn claim(&mut self, rows: usize) -> Vec<Fetched> {
        self.claim_within(Limit::rows(rows)).await
    }

    pub(super) async fn claim_within(&mut self, limit: Limit) -> Vec<Fetched> {
        let claimed =
            self.store.claim(&self.relay, &self.lease, &self.position, limit).await.unwrap();
        self.take(claimed)
    }

    pub(super) async fn claim_late(&mut self, rows: usize) -> Vec<Fetched> {
        self.claim_late_within(Limit::rows(rows)).await
    }

    pub(super) async fn claim_late_within(&mut self, limit: Limit) -> Vec<Fetched> {
        let claimed =
            self.store.claim_late(&self.relay, &self.lease, &self.position, limit).await.unwrap();
        self.take(claimed)
    }

    fn take(&mut self, claimed: ClaimedRows) -> Vec<Fetched> {
        self.position = claimed.position;
        self.claimed.extend(sequences(&claimed.rows));
        claimed.rows
    }

    /// All that was claimed, to be renewed.
    pub(super) fn in_hand(&self) -> RowsInHand {
        RowsInHand { lease: self.lease.clone(), sequences: self.claimed.clone() }
    }

    pub(super) async fn claim_expired(&self) -> Option<Fetched> {
        self.store.claim_expired(&self.relay, &self.lease, i64::MAX).await.unwrap().row
    }

    pub(super) async fn settle(&self, batch: &[Settlement]) {
        let report = self.store.settle(&self.fence(), batch, true).await.unwrap();
        assert_eq!(report, SettleReport::default(), "the claimer was refused");
    }
}

/// The error of a call that must fail.
#[track_caller]
pub(super) fn refusal<T: Debug>(outcome: posthaste_core::Result<T>) -> posthaste_core::Error {
    match outcome {
        Ok(answer) => panic!("it was not refused but gave {answer:?}"),
        Err(error) => error,
    }
}
