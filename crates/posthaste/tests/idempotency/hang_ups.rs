//! A client that hangs up: whatever a request waits for just then, its future is dropped.
//!
//! Every step of a request is dropped at an await that is chosen at random, many times at once, on a
//! few connections. Afterwards each effect has its record and each record its effect, a repeat of
//! what was cut off takes effect once, no key is locked although its lease goes on, and no connection of the pool
//! is lost or has, as the server says, a transaction open.
//!
//! `POSTHASTE_NIGHTLY=1` hangs up 1,000 times at each step. The seed is printed; `POSTHASTE_SEED` runs its
//! choices again.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{Request, StatusCode, request::Parts},
    response::Response,
    routing::post,
};
use futures_util::{StreamExt, future::join_all, stream};
use posthaste::{
    Error, ErrorKind, Inbox, Outbox, Result,
    idempotency::{IdempotencyLayer, Idempotent, IdempotentTransaction},
    stores::{Tables, inbox::InboxDialect},
};
use sqlx::{
    MySql, MySqlConnection, MySqlPool, PgConnection, PgPool, Pool, Postgres, pool::PoolOptions,
};
use tower_service::Service;

use crate::{
    shop::{EFFECTS, KEYS, KeyDatabase},
    support::{Fixture, event, hang_up, soon, url},
};

/// Connections of the pool under test, and clients at once: they wait for each other, too.
const CONNECTIONS: u32 = 6;
const CLIENTS: usize = 12;

trait HangUpDatabase: KeyDatabase + InboxDialect {
    const SERVER: &'static str;

    /// Whether the server has a transaction open on this connection, whatever the driver takes it for.
    fn has_open_transaction(
        connection: &mut Self::Connection,
        others: &Pool<Self>,
    ) -> impl Future<Output = bool> + Send;
}

impl HangUpDatabase for Postgres {
    const SERVER: &'static str = "POSTHASTE_TEST_POSTGRES";

    async fn has_open_transaction(connection: &mut PgConnection, others: &PgPool) -> bool {
        const OPEN: &str = "select xact_start is not null from pg_stat_activity where pid = $1";

        let session: i32 =
            sqlx::query_scalar("select pg_backend_pid()").fetch_one(connection).await.unwrap();
        sqlx::query_scalar(OPEN).bind(session).fetch_one(others).await.unwrap()
    }
}

impl HangUpDatabase for MySql {
    const SERVER: &'static str = "POSTHASTE_TEST_MARIADB";

    /// Not by `innodb_trx`: that is as old as 100 ms, and shows no transaction that has done nothing yet.
    async fn has_open_transaction(connection: &mut MySqlConnection, _: &MySqlPool) -> bool {
        const OPEN: &str = "select cast(@@in_transaction as signed)";

        let open: i64 = sqlx::query_scalar(OPEN).fetch_one(connection).await.unwrap();
        open != 0
    }
}

/// A shop, its few connections, and numbers that the seed decides.
struct Ground<'f, DB: HangUpDatabase> {
    fixture: &'f Fixture<DB>,
    pool: Pool<DB>,
    outbox: Outbox<DB>,
    inbox: Inbox<DB>,
    random: AtomicU64,
    /// How often a future was dropped before it was done.
    cut: AtomicUsize,
    /// How often the last one waited that was done.
    waits: AtomicU64,
}

impl<DB: HangUpDatabase> Ground<'_, DB> {
    fn below(&self, limit: u64) -> u64 {
        // SplitMix64: one step of it is one addition.
        let mut z = self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    async fn hang_up<F: Future>(&self, future: F) -> Option<F::Output> {
        let waits = self.waits.load(Ordering::Relaxed);
        // Now and then one is left alone, and tells how often it had to wait.
        let most = if waits == 0 || self.below(8) == 0 { u64::MAX } else { self.below(waits) };
        if let Some((output, waits)) = hang_up(future, most).await {
            // One that found its answer waiting says nothing of the others.
            self.waits.store(waits.max(1), Ordering::Relaxed);
            return Some(output);
        }
        self.cut.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn effect(&self, name: &str) -> String {
        self.fixture.tables.fill(&format!("insert into {{events}}_effects (n) values ('{name}')"))
    }

    /// A client that hangs up while its transaction begins, or right after.
    async fn begin(&self) {
        let begun = self.hang_up(self.outbox.begin(&self.pool)).await;
        drop(begun);
        // Of everybody else: committed at once, and nobody takes it back.
        let mut connection = self.pool.acquire().await.unwrap();
        DB::run_on(&mut connection, self.effect("alone")).await.unwrap();
    }

    /// One that hangs up while it enqueues. Its transaction is dropped with it, or a timeout has cut the
    /// call off and the handler commits all the same.
    async fn enqueue(&self, n: usize) {
        let mut tx = self.outbox.begin(&self.pool).await.unwrap();
        let mut names = vec![format!("enqueue {n}"), format!("more {n}")];
        names.truncate(1 + self.below(2) as usize);
        for name in &names {
            if DB::run_on(tx.connection(), self.effect(name)).await.is_err() {
                return;
            }
        }
        let events = names.iter().map(|name| event(name, 1)).collect();
        let enqueued = self.hang_up(self.outbox.enqueue_all(&mut tx, events)).await;
        if self.below(2) == 0 {
            let committed = tx.commit().await;
            assert_eq!(committed.is_ok(), enqueued.is_some_and(|one| one.is_ok()), "{committed:?}");
        }
    }

    /// One that hangs up while it commits.
    async fn commit(&self, n: usize) {
        let mut tx = self.outbox.begin(&self.pool).await.unwrap();
        let name = format!("commit {n}");
        self.outbox.enqueue(&mut tx, event(&name, 1)).await.unwrap();
        DB::run_on(tx.connection(), self.effect(&name)).await.unwrap();
        let _ = self.hang_up(tx.commit()).await;
    }

    /// A consumer that is stopped while it handles a message. The message comes again until one has
    /// committed it.
    async fn once(&self, n: usize) {
        let name = format!("once {n}");
        let _ = self.hang_up(self.handle(&name)).await;
        self.handle(&name).await.unwrap();
    }

    async fn handle(&self, name: &str) -> Result<()> {
        let mut tx = self.outbox.begin(&self.pool).await?;
        let effect = self.effect(name);
        self.inbox
            .once(&mut tx, "shop", name, async |tx| {
                let done = DB::run_on(tx, effect).await;
                done.map_err(|error| Error::new(ErrorKind::Database, "failed").with_source(error))
            })
            .await?;
        tx.commit().await
    }

    /// A client of an idempotent handler. It sends its request again until it has an answer.
    async fn request(&self, router: &Router, path: &str, key: &str) {
        let _ = self.hang_up(send(router, path, key)).await;
        soon("the answer", async {
            loop {
                match send(router, path, key).await.unwrap().status() {
                    StatusCode::CREATED => return,
                    // Of the first one, until its key is given back.
                    StatusCode::CONFLICT => tokio::task::yield_now().await,
                    other => panic!("{key}: {other}"),
                }
            }
        })
        .await;
    }

    /// One that never comes back: nobody but the layer gives its key back.
    async fn gone(&self, router: &Router, path: &str, key: &str) {
        let _ = self.hang_up(send(router, path, key)).await;
    }

    fn router(&self) -> Router {
        let scope = |_: &Parts| Some("acme".to_owned());
        let layer = IdempotencyLayer::new(self.outbox.clone(), self.pool.clone(), scope)
            // A key that nobody gives back is locked for longer than this test waits.
            .lease(Duration::from_mins(30));
        let till = Till { outbox: self.outbox.clone(), tables: self.fixture.tables.clone() };
        Router::new()
            .route("/pay", post(pay::<DB>))
            .route("/plain", post(|| async { StatusCode::CREATED }))
            .route("/refuse", post(refuse::<DB>))
            .with_state(Arc::new(till))
            .layer(layer)
    }

    /// How many effects this step has. Each of them is there once and has its record, and each record its
    /// effect.
    async fn effects_with_records(&self, step: &str, records: &str, column: &str) -> i64 {
        let like = format!("like '{step}%'");
        let mut counts = Vec::new();
        for sql in [
            format!("select count(*) from {{events}}_effects where n {like}"),
            format!("select count(distinct n) from {{events}}_effects where n {like}"),
            format!("select count(*) from {records} where {column} {like}"),
            format!("select count(distinct {column}) from {records} where {column} {like}"),
            format!(
                "select count(*) from {{events}}_effects e join {records} r on r.{column} = e.n
                 where e.n {like}"
            ),
        ] {
            counts.push(self.fixture.number(&sql).await);
        }
        assert_eq!(counts, [counts[0]; 5], "{step}: effects, records of {records}, pairs");
        counts[0]
    }

    /// Every key has its response, or was given back long before its lease ends. Those that give it back
    /// wait for connections, and nobody waits for them.
    async fn no_key_is_locked(&self) {
        let locked = format!("{KEYS} where status is null");
        soon("the keys of clients that are gone", async {
            while self.fixture.number(&locked).await != 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// All connections are there, and what is written on each is committed at once.
    async fn the_pool_is_whole(&self, when: &str) {
        // What was cut off may still be committed meanwhile.
        let probes = format!("{EFFECTS} where n = 'probe'");
        let before = self.fixture.number(&probes).await;
        let all = (0..CONNECTIONS).map(|_| self.pool.acquire());
        let all = tokio::time::timeout(Duration::from_secs(20), join_all(all)).await;
        let all = all.unwrap_or_else(|_| panic!("after {when} connections are lost"));
        for connection in all {
            let mut connection = connection.unwrap();
            let open = DB::has_open_transaction(&mut connection, &self.fixture.pool).await;
            assert!(!open, "after {when} the server has a transaction open");
            DB::run_on(&mut connection, self.effect("probe")).await.unwrap();
        }
        let written = self.fixture.number(&probes).await - before;
        assert_eq!(written, i64::from(CONNECTIONS), "after {when} a transaction is open");
    }
}

/// A request under this key.
fn send(
    router: &Router,
    path: &str,
    key: &str,
) -> impl Future<Output = Result<Response, Infallible>> + use<> {
    let request = Request::post(path).header("idempotency-key", key);
    router.clone().call(request.body(Body::from(key.to_owned())).unwrap())
}

/// What the handler of a payment needs.
struct Till<DB: HangUpDatabase> {
    outbox: Outbox<DB>,
    tables: Tables,
}

type Answer = Result<StatusCode, (StatusCode, String)>;

async fn pay<DB: HangUpDatabase>(
    State(till): State<Arc<Till<DB>>>,
    Extension(request): Extension<Idempotent<DB>>,
    body: String,
) -> Answer {
    let tx = paid(&till, &request, &body).await?;
    tx.commit_with_response().map_err(|error| failed(&error))?;
    Ok(StatusCode::CREATED)
}

/// Answers 408 or 500 without a transaction, with one that it drops, or with one that it hands back.
async fn refuse<DB: HangUpDatabase>(
    State(till): State<Arc<Till<DB>>>,
    Extension(request): Extension<Idempotent<DB>>,
    body: String,
) -> Answer {
    match body.bytes().last().map(|digit| digit % 3) {
        Some(0) => return Ok(StatusCode::REQUEST_TIMEOUT),
        Some(1) => drop(paid(&till, &request, &body).await?),
        _ => {
            let tx = paid(&till, &request, &body).await?;
            tx.commit_with_response().map_err(|error| failed(&error))?;
        }
    }
    Ok(StatusCode::INTERNAL_SERVER_ERROR)
}

async fn paid<DB: HangUpDatabase>(
    till: &Till<DB>,
    request: &Idempotent<DB>,
    name: &str,
) -> Result<IdempotentTransaction<DB>, (StatusCode, String)> {
    let mut tx = request.begin().await.map_err(|error| failed(&error))?;
    let effect = format!("insert into {{events}}_effects (n) values ('{name}')");
    let paid = DB::run_on(tx.connection(), till.tables.fill(&effect)).await;
    paid.map_err(|error| failed(&error))?;
    till.outbox.enqueue(&mut tx, event(name, 1)).await.map_err(|error| failed(&error))?;
    Ok(tx)
}

fn failed(error: &dyn std::error::Error) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn clients_that_hang_up_leave_nothing_behind<DB: HangUpDatabase>() {
    let nightly = std::env::var_os("POSTHASTE_NIGHTLY").is_some_and(|value| value == "1");
    let times = if nightly { 1_000 } else { 50 };
    let seed = std::env::var("POSTHASTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| uuid::Uuid::now_v7().as_u128() as u64 % 1_000_000);
    println!("seed {seed} (again with POSTHASTE_SEED={seed})");

    let fixture = DB::fixture().await;
    fixture.sql("create table {events}_effects (n varchar(40) not null)").await;
    let pool = PoolOptions::<DB>::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(Duration::from_secs(30))
        .connect(&url(DB::SERVER))
        .await
        .unwrap();
    let ground = &Ground {
        fixture: &fixture,
        pool: pool.clone(),
        outbox: fixture.outbox(),
        inbox: Inbox::new(fixture.table()),
        random: AtomicU64::new(seed),
        cut: AtomicUsize::new(0),
        waits: AtomicU64::new(0),
    };
    let router = &ground.router();
    let mut clients = BTreeMap::new();
    for step in ["begin", "enqueue", "commit", "once", "request", "gone", "plain", "refused"] {
        // Where answers are quick, few of so many can be cut off: then others come.
        let (mut came, mut cut) = (0, 0);
        while cut < times {
            assert!(came < 20 * times, "{step}: only {cut} of {came} were cut off");
            let next = stream::iter(came..came + times);
            let next = next.for_each_concurrent(CLIENTS, |n| async move {
                let key = format!("{step}-{n}");
                match step {
                    "begin" => ground.begin().await,
                    "enqueue" => ground.enqueue(n).await,
                    "commit" => ground.commit(n).await,
                    "once" => ground.once(n).await,
                    "request" => ground.request(router, "/pay", &key).await,
                    "gone" => ground.gone(router, "/pay", &key).await,
                    "plain" => ground.request(router, "/plain", &key).await,
                    _ => ground.gone(router, "/refuse", &key).await,
                }
            });
            let limit = Duration::from_mins(if nightly { 15 } else { 2 });
            tokio::time::timeout(limit, next).await.unwrap_or_else(|_| panic!("{step} hung"));
            came += times;
            cut += ground.cut.swap(0, Ordering::Relaxed);
            ground.waits.store(0, Ordering::Relaxed);
        }
        println!("{step}: {cut} of {came} were cut off");
        clients.insert(step, came as i64);
        ground.the_pool_is_whole(step).await;
    }

    ground.no_key_is_locked().await;
    let alone = format!("{EFFECTS} where n = 'alone'");
    assert_eq!(fixture.number(&alone).await, clients["begin"], "of others");
    let refused = format!("{EFFECTS} where n like 'refused%'");
    assert_eq!(fixture.number(&refused).await, 0, "effects of handlers that refused");
    clients.insert("more", clients["enqueue"]);
    let mut effects = BTreeMap::new();
    for (step, records, column) in [
        ("enqueue", "{events}", "aggregate_id"),
        ("more", "{events}", "aggregate_id"),
        ("commit", "{events}", "aggregate_id"),
        ("once", "{inbox}", "message_id"),
        ("request", "{events}", "aggregate_id"),
        ("request", "{idempotency}", "idempotency_key"),
        ("gone", "{events}", "aggregate_id"),
        ("gone", "{idempotency}", "idempotency_key"),
    ] {
        let found = ground.effects_with_records(step, records, column).await;
        assert!(found <= clients[step], "{step}: {found}");
        effects.insert(step, found);
    }
    // Those that came again until it was done.
    for step in ["once", "request"] {
        assert_eq!(effects[step], clients[step], "{step}");
    }
    let records = fixture.number("select count(*) from {inbox}").await;
    assert_eq!(records, clients["once"], "records");
    let answered = format!("{KEYS} where status = 201");
    let keys = (fixture.number(KEYS).await, fixture.number(&answered).await);
    // Those that took no transaction came again until their response was stored.
    let answered = effects["request"] + effects["gone"] + clients["plain"];
    assert_eq!(keys, (answered, answered), "a key without its payment, or of one that refused");

    pool.close().await;
    fixture.sql("drop table {events}_effects").await;
    fixture.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_clients_that_hang_up_leave_nothing_behind() {
    clients_that_hang_up_leave_nothing_behind::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_clients_that_hang_up_leave_nothing_behind() {
    clients_that_hang_up_leave_nothing_behind::<MySql>().await;
}
