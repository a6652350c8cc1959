//! The database's answer is lost and its connection stays open: a relay gives up waiting, asks again
//! on another connection, and loses and reorders nothing.

use std::{
    cmp::Ordering as Compared,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Envelope, ErrorKind, Event, Outbox, TableName,
    backoff::Backoff,
    relay::{Config, Housekeeping, Relay},
    stores::{Options, connect},
    transport::{Outcome, Transport},
};
use posthaste_harness::{
    fixture::{Connections, Database, Fixture, nightly, seed},
    on_databases, with_pool,
};
use posthaste_testkit::proxy::{Answer, Proxy, Silence};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::timeout,
};

on_databases! {
    postgres, Postgres:
        each_kind_of_statement_survives_a_swallowed_answer,
        swallowed_answers_use_up_no_connections,
        a_silent_database_makes_a_relay_unready_and_not_dead,
        a_start_that_hears_nothing_is_given_up_and_can_be_repeated,
        a_listener_that_hears_nothing_is_made_anew;
    mariadb, MariaDb:
        each_kind_of_statement_survives_a_swallowed_answer,
        swallowed_answers_use_up_no_connections,
        a_silent_database_makes_a_relay_unready_and_not_dead,
        a_start_that_hears_nothing_is_given_up_and_can_be_repeated;
}

const KEYS: u32 = 10;

/// How soon delivery is back.
const RESUMES: Duration = Duration::from_secs(15);

/// How soon an outage shows.
const TELLS: Duration = Duration::from_secs(10);

/// A kind of statement, by what only its text contains.
struct Kind {
    name: &'static str,
    text: &'static str,
    /// 2 when the driver prepares it first: chance decides which answer is swallowed.
    answers: u32,
    /// Runs on a new connection only: another answer is swallowed first.
    opens: bool,
}

const fn kind(name: &'static str, text: &'static str) -> Kind {
    Kind { name, text, answers: 2, opens: false }
}

/// Swallowed at the start: a relay that has its shards does not ask again. On PostgreSQL, on MariaDB.
const ACQUIRE: [Kind; 2] =
    [kind("acquire", "nullif(locked_by, $2)"), kind("acquire", "epoch = greatest(epoch + 1")];

const POSTGRES: [Kind; 8] = [
    kind("read on", "ahead_edge from range"),
    kind("settle", "for share"),
    kind("read due", "as micros) n"),
    kind("renew", "mark = $5, mark_context = $6"),
    kind("heartbeat", "on conflict (owner) do update"),
    kind("pauses", "select kind, name, value"),
    Kind { name: "open", text: "plan_cache_mode", answers: 1, opens: true },
    Kind { name: "any", text: "", answers: 1, opens: false },
];

const MARIADB: [Kind; 10] = [
    kind("read on", "and e.sequence > ? and e.sequence <= ?"),
    kind("settle", "set e.sent_at = utc_timestamp(6)"),
    Kind { name: "commit", text: "COMMIT", answers: 1, opens: false },
    kind("read due", "order by e.not_before, e.sequence limit"),
    kind("renew", "utc_timestamp(6)), mark = ?"),
    kind("heartbeat", "on duplicate key update lease_ms"),
    kind("pauses", "select kind, name, value"),
    kind("look back", "from information_schema.processlist"),
    Kind { name: "open", text: "idle_transaction_timeout", answers: 1, opens: true },
    Kind { name: "any", text: "", answers: 1, opens: false },
];

async fn each_kind_of_statement_survives_a_swallowed_answer(on: &Fixture) {
    let mut random = fastrand::Rng::with_seed(seed());
    let (acquire, kinds) = match on.database {
        Database::Postgres => (&ACQUIRE[0], &POSTGRES[..]),
        _ => (&ACQUIRE[1], &MARIADB[..]),
    };
    let run = Run::new(on, Options::default().connections).await;
    let acquiring = run.swallow(acquire, &mut random);
    run.relay.start().await.unwrap();
    run.survives(acquire, acquiring).await;
    let rounds = if nightly() { 50 } else { kinds.len() };
    for round in 0..rounds {
        // At any moment of the relay's second.
        tokio::time::sleep(Duration::from_millis(random.u64(..500))).await;
        let kind = &kinds[round % kinds.len()];
        if kind.opens {
            drop(run.proxy.swallow(Answer { to: kinds[0].text, after: 0 }, Silence::OneWay));
        }
        run.survives(kind, run.swallow(kind, &mut random)).await;
    }
    run.ends().await;
}

async fn a_silent_database_makes_a_relay_unready_and_not_dead(on: &Fixture) {
    let run = Run::new(on, Options::default().connections).await;
    run.relay.start().await.unwrap();
    run.delivers(RESUMES).await;
    assert!(run.relay.health().ready, "{:?}", run.relay.health());

    run.proxy.mute(true);
    let unready = run.until(TELLS, "unready", |relay| !relay.health().ready).await;
    println!("unready {unready:?} after the database fell silent: {:?}", run.relay.health());
    // Until the leases have run out, too.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        let health = run.relay.health();
        assert!(health.live && !health.ready, "{health:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    run.proxy.mute(false);
    let ready = run.until(RESUMES, "ready", |relay| relay.health().ready).await;
    let delivered = run.delivers(RESUMES).await;
    println!("ready {ready:?} after it came back, delivery {delivered:?} later");
    run.ends().await;
}

async fn a_start_that_hears_nothing_is_given_up_and_can_be_repeated(on: &Fixture) {
    let run = Run::new(on, 2).await;
    // More often than there are connections.
    for _ in 0..3 {
        let check = Answer { to: "_meta where id = 1", after: 0 };
        let swallowed = run.proxy.swallow(check, Silence::OneWay);
        let begun = Instant::now();
        let error = timeout(TELLS, run.relay.start()).await.expect("given up").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        swallowed.await.unwrap();
        println!("given up after {:.1?}", begun.elapsed());
    }
    run.relay.start().await.unwrap();
    run.delivers(RESUMES).await;
    run.ends().await;
}

/// Once when it begins to listen, and once when it only waits.
async fn a_listener_that_hears_nothing_is_made_anew(on: &Fixture) {
    let run = Run::new(on, Options::default().connections).await;
    let listen = |after| Answer { to: "LISTEN", after };
    let swallowed = run.proxy.swallow(listen(0), Silence::OneWay);
    run.relay.start().await.unwrap();
    let at = timeout(RESUMES, swallowed).await.expect("it listens").unwrap();
    // Nothing is said on the next connection after it began to listen.
    let silenced = run.proxy.swallow(listen(1), Silence::BothWays);
    let again = run.proxy.forwards(listen(0));
    let again = timeout(RESUMES, again).await.expect("it listens again").unwrap();
    println!("listens again after {:.1?}", again.duration_since(at));
    let at = timeout(2 * RESUMES, silenced).await.expect("it asks").unwrap();
    let again = run.proxy.forwards(listen(0));
    let again = timeout(RESUMES, again).await.expect("it listens again").unwrap();
    println!("a silent listener is made anew after {:.1?}", again.duration_since(at));
    run.ends().await;
}

/// A connection that is given up must not stay lent: the pool would run out of them.
async fn swallowed_answers_use_up_no_connections(on: &Fixture) {
    let mut random = fastrand::Rng::with_seed(seed());
    let kinds = match on.database {
        Database::Postgres => &POSTGRES[..],
        _ => &MARIADB[..],
    };
    let pauses = kinds.iter().find(|kind| kind.name == "pauses").unwrap();
    let run = Run::new(on, 3).await;
    run.relay.start().await.unwrap();
    run.delivers(RESUMES).await;
    for _ in 0..4 {
        run.survives(pauses, run.swallow(pauses, &mut random)).await;
    }
    run.survives(&kinds[0], run.swallow(&kinds[0], &mut random)).await;
    run.ends().await;
}

/// A relay behind a proxy, and a writer that is not.
struct Run<'a> {
    on: &'a Fixture,
    proxy: Proxy,
    relay: Relay,
    destination: Destination,
    /// How many rounds were committed: each has one event of every key.
    committed: watch::Receiver<u32>,
    ends: Arc<AtomicBool>,
    writing: JoinHandle<()>,
}

impl<'a> Run<'a> {
    async fn new(on: &'a Fixture, connections: u32) -> Self {
        // The driver writes every statement that was slow, and here many are.
        let _ = tracing_subscriber::fmt()
            .with_env_filter("posthaste=warn,sqlx::pool=warn")
            .with_test_writer()
            .try_init();
        let (before, rest) = on.url.split_once('@').unwrap();
        let (server, path) = rest.split_once('/').unwrap();
        let proxy = Proxy::start(server).await.unwrap();
        let separator = if path.contains('?') { '&' } else { '?' };
        // The proxy must find the texts of the statements.
        let plain = match on.database {
            Database::Postgres => "sslmode=disable",
            _ => "ssl-mode=disabled",
        };
        let url = format!(
            "{before}@{}/{path}{separator}{plain}&statement-cache-capacity=0",
            proxy.address()
        );
        let options = Options { table: on.tables.name().clone(), connections };
        let store = connect(&url, &options).await.unwrap();
        let destination = Destination::default();
        let relay = Relay::new(store, Arc::new(destination.clone()), config()).unwrap();
        let (ends, sender) = (Arc::new(AtomicBool::new(false)), watch::Sender::new(0));
        let committed = sender.subscribe();
        let (connections, table) = (on.connections.clone(), on.tables.name().clone());
        let writing = tokio::spawn(write(connections, table, sender, Arc::clone(&ends)));
        Self { on, proxy, relay, destination, committed, ends, writing }
    }

    fn swallow(&self, kind: &Kind, random: &mut fastrand::Rng) -> oneshot::Receiver<Instant> {
        let answer = Answer { to: kind.text, after: random.u32(..kind.answers) };
        let silence = if random.bool() { Silence::OneWay } else { Silence::BothWays };
        println!("{}: swallowing answer {}, silent {silence:?}", kind.name, answer.after + 1);
        self.proxy.swallow(answer, silence)
    }

    /// Delivery is back soon, and the statement was repeated.
    async fn survives(&self, kind: &Kind, swallowed: oneshot::Receiver<Instant>) {
        let at = timeout(RESUMES, swallowed).await;
        let at = at.unwrap_or_else(|_| panic!("{} was never asked", kind.name)).unwrap();
        let again = self.proxy.forwards(Answer { to: kind.text, after: kind.answers - 1 });
        self.delivers(RESUMES.saturating_sub(at.elapsed())).await;
        let delivered = at.elapsed();
        let again = timeout(RESUMES.saturating_sub(at.elapsed()), again).await;
        let again = again.unwrap_or_else(|_| panic!("{} was not asked again", kind.name)).unwrap();
        println!(
            "{}: delivers again after {delivered:.1?}, asked again after {:.1?}",
            kind.name,
            again.duration_since(at)
        );
    }

    /// Waits until events are delivered whose enqueue begins after this call.
    async fn delivers(&self, limit: Duration) -> Duration {
        let rounds = *self.committed.borrow() + 2;
        self.until(limit, "delivery", |_| self.destination.rounds() >= rounds).await
    }

    /// Waits until the relay or its destination says so. Gives how long it took.
    async fn until(
        &self,
        limit: Duration,
        what: &str,
        reached: impl Fn(&Relay) -> bool,
    ) -> Duration {
        let begun = Instant::now();
        while !reached(&self.relay) {
            assert!(
                begun.elapsed() < limit,
                "waited {limit:?} in vain for {what}: {} of {} rounds delivered, {:?}, {:?}",
                self.destination.rounds(),
                *self.committed.borrow(),
                self.relay.health(),
                self.relay.stats()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        begun.elapsed()
    }

    /// All that was committed was delivered, in order, and is settled.
    async fn ends(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.writing.await.unwrap();
        let rounds = *self.committed.borrow();
        self.on.until_drained().await;
        let stats = self.relay.stop().await.unwrap();
        let received = self.destination.0.lock().unwrap();
        println!(
            "{rounds} rounds of {KEYS} keys, {} came twice, {} calls failed",
            received.repeats, stats.database_errors
        );
        assert_eq!(received.faults, Vec::<String>::new());
        assert!(received.next.len() == KEYS as usize, "no more and no fewer keys");
        assert!(received.next.values().all(|&next| next == rounds), "nothing was lost");
    }
}

/// The deadline of a call is 2 s.
fn config() -> Config {
    Config {
        lease: Duration::from_secs(12),
        heartbeat: Duration::from_secs(1),
        backoff: Backoff::Fixed(Duration::from_millis(5)),
        housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
        ..Config::default()
    }
}

/// Commits round after round, one event of every key each. Now and then one is rolled back: its sequence
/// numbers are missing, and the relay looks for them.
async fn write(
    connections: Connections,
    table: TableName,
    committed: watch::Sender<u32>,
    ends: Arc<AtomicBool>,
) {
    with_pool!(&connections, pool => {
        let outbox = Outbox::new(table);
        while !ends.load(Ordering::Relaxed) {
            let round = *committed.borrow();
            let event = |key: u32| {
                Event::builder("Counted").aggregate("Thing", key).payload(&round).build().unwrap()
            };
            if round.is_multiple_of(10) {
                let mut undone = pool.begin().await.unwrap();
                outbox.enqueue(&mut undone, event(KEYS)).await.unwrap();
                undone.rollback().await.unwrap();
            }
            let mut transaction = pool.begin().await.unwrap();
            outbox.enqueue_all(&mut transaction, (0..KEYS).map(event).collect()).await.unwrap();
            transaction.commit().await.unwrap();
            committed.send_replace(round + 1);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Takes everything and counts: of each key the rounds must come one after the other.
#[derive(Clone, Default)]
struct Destination(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    /// The round that comes next, by key.
    next: BTreeMap<String, u32>,
    repeats: usize,
    faults: Vec<String>,
}

impl Destination {
    /// How many rounds have come whole.
    fn rounds(&self) -> u32 {
        let received = self.0.lock().unwrap();
        if received.next.len() < KEYS as usize {
            return 0;
        }
        received.next.values().copied().min().unwrap_or(0)
    }
}

#[async_trait]
impl Transport for Destination {
    fn name(&self) -> &str {
        "counting"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut received = self.0.lock().unwrap();
        for Envelope { event, .. } in batch {
            let key = event.aggregate_id().unwrap().to_owned();
            let round: u32 = serde_json::from_slice(event.payload()).unwrap();
            let next = received.next.entry(key.clone()).or_default();
            let expected = *next;
            *next = expected.max(round + 1);
            match round.cmp(&expected) {
                Compared::Equal => {}
                Compared::Less => received.repeats += 1,
                Compared::Greater => {
                    received.faults.push(format!("key {key}: {round} came before {expected}"));
                }
            }
        }
        vec![Outcome::Delivered; batch.len()]
    }
}
