//! Within a lease, a standby that lacks the last commits becomes the primary. It gives out the lost sequence
//! numbers and transaction ids again before the relay reaches it. The relay delivers every event that the
//! new primary has, and marks none sent that it did not deliver. The same on PostgreSQL and MariaDB.
//!
//! ```text
//! primary   settled | lost: delivered … | lost: in flight | killed
//! standby   settled | no connection                       | promoted: traffic, reused … | later …
//! relay     ------------- primary ----------------------- | nothing                     | standby --
//! ```
//!
//! The judge is outside the databases: the ids that the transport was given, and those that were committed.

mod applier;

mod crash;

mod forwarder;

mod reads;

mod replicated;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Dialect, Envelope, Outbox,
    relay::{Config, Housekeeping, Relay},
    store::{Filter, RelayOrdering},
    stores::Tables,
    transport::{Outcome, Transport},
};
use posthaste_harness::fixture::{event, nightly, seed};
use posthaste_testkit::{tables, wait};
use sqlx::{MySql, Pool, Postgres};
use tokio::sync::watch;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};
use uuid::Uuid;

use self::{
    forwarder::Forwarder,
    replicated::{Pair, Replicated},
};
use crate::servers::{Engine, Place};

const LEASE: Duration = Duration::from_secs(30);

/// Half a lease: whoever waits for a lease to expire is too late.
const SOON: Duration = Duration::from_secs(15);

const KEYS: usize = 50;

/// The transport keeps events of this type until it is opened.
const IN_FLIGHT: &str = "InFlight";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_within_the_lease_to_a_standby_that_lost_commits_loses_nothing_else() {
    fail_over::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_of_mariadb_to_a_replica_that_lost_commits_loses_nothing_else() {
    fail_over::<MySql>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_of_a_relay_that_claims_single_events_loses_nothing_else() {
    fail_over_without_order::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_of_mariadb_of_a_relay_that_claims_single_events_loses_nothing_else() {
    fail_over_without_order::<MySql>().await;
}

async fn fail_over_without_order<DB: Replicated>() {
    log();
    for round in 0..if nightly() { 6 } else { 1 } {
        let failover = Failover {
            software: DB::SOFTWARE[round % DB::SOFTWARE.len()],
            successor: DB::SUCCESSORS[round % DB::SUCCESSORS.len()],
            relays: Relays::One,
            ordering: RelayOrdering::None,
            open_after: Duration::from_millis(500),
        };
        println!("round {round}: {failover:?}");
        failover.run::<DB>().await;
    }
}

fn log() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let log = tracing_subscriber::fmt().with_env_filter(filter.from_env_lossy()).with_ansi(false);
    let _ = log.with_test_writer().try_init();
}

async fn fail_over<DB: Replicated>() {
    log();
    let mut random = fastrand::Rng::with_seed(seed());
    for round in 0..if nightly() { 20 } else { 3 } {
        let failover = Failover {
            software: DB::SOFTWARE[round % DB::SOFTWARE.len()],
            successor: DB::SUCCESSORS[(round + round / 3) % DB::SUCCESSORS.len()],
            relays: [Relays::One, Relays::Two, Relays::Joining][round % 3],
            ordering: if round % 4 == 3 { RelayOrdering::Global } else { RelayOrdering::PerKey },
            open_after: Duration::from_millis(random.u64(..3_000)),
        };
        println!("round {round}: {failover:?}");
        failover.run::<DB>().await;
    }
}

/// Who takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Successor {
    /// A server at another address.
    Standby,
    /// One that was started in the same second and reports the same host and port.
    Twin,
    /// The primary itself, restarted with the data of the standby.
    Restored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relays {
    One,
    /// Each with its share of the shards, also on the standby. Under `global` one has them all.
    Two,
    /// The second one has just started. The standby knows it, and does not know what it has taken since.
    Joining,
}

#[derive(Debug)]
struct Failover {
    software: &'static str,
    successor: Successor,
    relays: Relays,
    ordering: RelayOrdering,
    /// Events that were in flight at the failover are delivered so long after the relays have reached the
    /// new primary.
    open_after: Duration,
}

impl Failover {
    async fn run<DB: Replicated>(self) {
        let begun = Instant::now();
        let place = Place::new(self.software);
        let Pair { primary, link, standby } =
            DB::pair(&place, self.successor == Successor::Twin).await;
        let entrance = Forwarder::to(primary.address).await;
        let tables = tables::unique("failover");
        let store = DB::store(primary.pool.clone(), tables.clone());
        store.migrate(None).await.expect("the outbox cannot be made");

        let recorder = Recorder::default();
        let start =
            async |name| relay::<DB>(name, self.ordering, &entrance, &tables, &recorder).await;
        let mut relays = vec![start("first").await];
        let share = if self.is_global() { 1 } else { 2 };
        let each_has_its_share = async |relays: &[Relay]| {
            wait::asked("each share", async || {
                let owned = relays.iter().map(|relay| relay.stats().shards_owned);
                let all = relays[0].stats().shards;
                all > 0 && owned.filter(|owned| owned * share == all).count() == usize::from(share)
            })
            .await;
        };
        if self.relays == Relays::Two {
            relays.push(start("second").await);
            each_has_its_share(&relays).await;
        }

        // These reach the standby.
        let mut writer = Writer { tables: &tables, written: 0 };
        let kept = writer.write(&primary.pool, "Kept", 4 * KEYS).await;
        recorder.until_delivered(&kept).await;
        wait::asked("the standby to have them", async || {
            written(&standby.pool, &tables).await == kept.len()
        })
        .await;
        if self.ordering == RelayOrdering::None {
            // A claim that it has without the outcome would last for the lease.
            wait::asked("the standby to have the outcomes", async || {
                rows(&standby.pool, &tables).await.iter().all(|row| row.sent)
            })
            .await;
        }
        if self.relays == Relays::Joining {
            relays.push(start("second").await);
            wait::asked("the standby to know it", async || {
                known(&standby.pool, &tables).await == 2
            })
            .await;
        }
        link.cut();
        // These do not.
        let mut lost = writer.write(&primary.pool, "Lost", 3 * KEYS).await;
        recorder.until_delivered(&lost).await;
        if self.relays == Relays::Joining {
            // A shard that is handed over waits for what is in flight, and its other keys wait with it.
            each_has_its_share(&relays).await;
        }
        lost.extend(writer.write(&primary.pool, IN_FLIGHT, KEYS).await);
        let in_flight = if self.is_global() { 1 } else { KEYS };
        wait::asked("publishes", async || recorder.in_flight() == in_flight).await;
        let last_transaction = DB::last_transaction(&primary.pool).await;
        entrance.cut();
        let standby = if self.successor == Successor::Restored {
            DB::restore(&place, primary, standby).await
        } else {
            primary.kill();
            standby
        };

        DB::promote(&standby.pool).await;
        DB::others(&standby.pool).await;
        let reused = writer.write(&standby.pool, "Reused", 4 * KEYS).await;
        let transaction = DB::last_transaction(&standby.pool).await;
        let failed_over = begun.elapsed();

        let switched = Instant::now();
        entrance.switch(standby.address);
        let open = async {
            tokio::time::sleep(self.open_after).await;
            recorder.open.send_replace(true);
        };
        let later = async {
            let later = writer.write(&standby.pool, "Later", KEYS).await;
            [kept.clone(), reused.clone(), later].concat()
        };
        let ((), committed) = tokio::join!(open, later);

        // Every row that is sent was delivered, at any moment; and soon all are sent.
        loop {
            let rows = rows(&standby.pool, &tables).await;
            let delivered: HashSet<Uuid> = recorder.delivered().into_iter().collect();
            let made_up = rows.iter().filter(|row| row.sent && !delivered.contains(&row.id));
            let made_up: Vec<_> = made_up.map(|row| row.sequence).collect();
            assert!(made_up.is_empty(), "marked sent and not delivered: {made_up:?}");
            if rows.iter().all(|row| row.sent) {
                break;
            }
            let missing = rows.iter().filter(|row| !delivered.contains(&row.id));
            let missing: Vec<_> = missing.map(|row| row.sequence).collect();
            if switched.elapsed() > SOON {
                for relay in &relays {
                    println!("{}: {:?}", relay.name(), relay.stats());
                }
                panic!(
                    "not delivered in time: {missing:?}; {:?}",
                    owners(&standby.pool, &tables).await
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = switched.elapsed();
        for relay in relays {
            relay.stop().await.expect("the relay does not stop");
        }

        let rows = rows(&standby.pool, &tables).await;
        let there: HashSet<Uuid> = rows.iter().map(|row| row.id).collect();
        assert_eq!(there, committed.iter().map(|(id, _)| *id).collect(), "what was committed");
        if self.ordering != RelayOrdering::None {
            in_order(&rows, &recorder.delivered(), self.is_global());
        }
        // The failover was what it claims to be.
        assert!(lost.iter().all(|(id, _)| !there.contains(id)), "the standby lost them");
        let numbers: HashSet<i64> = lost.iter().map(|(_, sequence)| *sequence).collect();
        let again = reused.iter().filter(|(_, sequence)| numbers.contains(sequence)).count();
        assert!(lost.len() >= 100 && again >= KEYS, "{again} of {} numbers again", lost.len());
        assert!(
            transaction > last_transaction,
            "transactions up to {transaction} again, up to {last_transaction} before"
        );
        println!(
            "failover after {failed_over:?}; {} lost, {again} numbers again; \
             all {} sent {took:?} after the switch, {} deliveries in all",
            lost.len(),
            rows.len(),
            recorder.delivered().len()
        );
    }

    fn is_global(&self) -> bool {
        self.ordering == RelayOrdering::Global
    }
}

async fn relay<DB: Engine>(
    name: &str,
    ordering: RelayOrdering,
    through: &Forwarder,
    tables: &Tables,
    to: &Recorder,
) -> Relay {
    let pool = Pool::<DB>::connect_lazy(&DB::url(through.address)).expect("a URL");
    let config = Config {
        name: name.to_owned(),
        ordering,
        lease: LEASE,
        // A renewal soon after the switch, too.
        heartbeat: Duration::from_secs(1),
        housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
        ..Config::default()
    };
    let store = DB::store(pool, tables.clone());
    let relay = Relay::new(store, Arc::new(to.clone()), config).expect("a relay");
    relay.start().await.expect("the relay does not start");
    relay
}

/// Writes events, the keys in turn.
struct Writer<'a> {
    tables: &'a Tables,
    written: usize,
}

impl Writer<'_> {
    /// In transactions of 10. Gives the ids and sequences that were committed.
    async fn write<DB: Dialect>(
        &mut self,
        to: &Pool<DB>,
        kind: &str,
        count: usize,
    ) -> Vec<(Uuid, i64)> {
        let outbox = Outbox::<DB>::new(self.tables.name().clone());
        let mut committed = Vec::new();
        while committed.len() < count {
            let numbers = self.written..self.written + 10;
            self.written = numbers.end;
            let events = numbers.map(|n| event(kind, &format!("k{}", n % KEYS))).collect();
            let mut transaction = to.begin().await.expect("no transaction");
            let enqueued = outbox.enqueue_all(&mut transaction, events).await;
            let enqueued = enqueued.expect("enqueue failed");
            transaction.commit().await.expect("commit failed");
            committed.extend(enqueued.iter().map(|enqueued| (enqueued.id, enqueued.sequence)));
        }
        committed
    }
}

/// An event in the database.
struct Row {
    sequence: i64,
    id: Uuid,
    key: String,
    sent: bool,
}

async fn rows<DB: Dialect>(on: &Pool<DB>, tables: &Tables) -> Vec<Row> {
    let store = DB::store(on.clone(), tables.clone());
    let mut rows = Vec::new();
    let mut before = None;
    loop {
        let page = store.events(&Filter::default(), before, 500).await.expect("events");
        rows.extend(page.events.into_iter().map(|event| Row {
            sequence: event.sequence,
            id: event.event_id.expect("an id"),
            key: event.content.expect("an event").event.aggregate_id().unwrap_or("").to_owned(),
            sent: event.sent_at.is_some(),
        }));
        before = page.next;
        if before.is_none() {
            rows.reverse();
            return rows;
        }
    }
}

/// How many events a standby has. The outbox reaches it after the primary.
async fn written<DB: Dialect>(on: &Pool<DB>, tables: &Tables) -> usize {
    let store = DB::store(on.clone(), tables.clone());
    let page = store.events(&Filter::default(), None, 500).await;
    page.map_or(0, |page| page.events.len())
}

/// How many relays have sent a heartbeat.
async fn known<DB: Dialect>(on: &Pool<DB>, tables: &Tables) -> usize {
    let store = DB::store(on.clone(), tables.clone());
    store.relays().await.expect("the relays cannot be read").len()
}

/// How many shards each relay owns, by its name.
async fn owners<DB: Dialect>(on: &Pool<DB>, tables: &Tables) -> BTreeMap<Option<String>, usize> {
    let store = DB::store(on.clone(), tables.clone());
    let mut owners = BTreeMap::new();
    for shard in store.shards().await.expect("the shards cannot be read") {
        *owners.entry(shard.locked_by).or_default() += 1;
    }
    owners
}

/// Each key's events, or all, come for the first time in the order of their sequence.
fn in_order(rows: &[Row], delivered: &[Uuid], all: bool) {
    let mut first = HashMap::new();
    for (place, id) in delivered.iter().enumerate() {
        first.entry(id).or_insert(place);
    }
    let mut last: HashMap<&str, (usize, i64)> = HashMap::new();
    for row in rows {
        let place = first[&row.id];
        let lane = if all { "" } else { &row.key };
        if let Some((before, sequence)) = last.insert(lane, (place, row.sequence)) {
            let key = &row.key;
            assert!(before < place, "{} of {key} came before {sequence}", row.sequence);
        }
    }
}

/// Remembers in which order events were delivered.
#[derive(Clone, Default)]
struct Recorder {
    delivered: Arc<Mutex<Vec<Uuid>>>,
    /// How many publishes wait until it is open.
    waiting: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Recorder {
    fn delivered(&self) -> Vec<Uuid> {
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn in_flight(&self) -> usize {
        *self.waiting.borrow()
    }

    async fn until_delivered(&self, events: &[(Uuid, i64)]) {
        wait::asked("deliveries", async || {
            let delivered: HashSet<Uuid> = self.delivered().into_iter().collect();
            events.iter().all(|(id, _)| delivered.contains(id))
        })
        .await;
    }
}

#[async_trait]
impl Transport for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if batch.iter().any(|envelope| envelope.event.event_type() == IN_FLIGHT) {
            self.waiting.send_modify(|waiting| *waiting += 1);
            let _ = self.open.subscribe().wait_for(|open| *open).await;
        }
        let mut delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        delivered.extend(batch.iter().map(|envelope| envelope.event.id()));
        vec![Outcome::Delivered; batch.len()]
    }
}
