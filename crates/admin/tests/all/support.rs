//! A served outbox with a relay, and a client that can say anything.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use posthaste::{
    Dialect, Event, Outbox,
    backoff::Backoff,
    relay::{Config, HealthLimits, Relay, Retention},
    store::Store,
    stores::Tables,
    transport::Outcome,
};
use posthaste_admin::{Admin, AdminConfig, AdminOutbox, Role, Token};
use posthaste_core::Secret;
use posthaste_testkit::{tables, wait::asked};
use posthaste_transports::memory::MemoryTransport;
use serde_json::Value;
use sqlx::{
    MySql, Pool, Postgres, Sqlite,
    mysql::MySqlPoolOptions,
    pool::PoolConnection,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};
use uuid::Uuid;

/// Nothing here takes so long unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A viewer's and an operator's.
pub const VIEWER: &str = "viewer-0123456789";
pub const OPERATOR: &str = "operator-0123456789";

/// What stands in payloads and must not stand anywhere else.
pub const SECRET: &str = "cardholder-4711";

pub fn url(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests with scripts/test"))
}

pub trait TestDatabase: Dialect {
    fn open() -> impl Future<Output = (Pool<Self>, Option<PathBuf>)> + Send;
}

impl TestDatabase for Postgres {
    async fn open() -> (Pool<Self>, Option<PathBuf>) {
        let pool = PgPoolOptions::new().max_connections(10);
        (pool.connect(&url("POSTHASTE_TEST_POSTGRES")).await.unwrap(), None)
    }
}

impl TestDatabase for MySql {
    async fn open() -> (Pool<Self>, Option<PathBuf>) {
        let pool = MySqlPoolOptions::new().max_connections(10);
        (pool.connect(&url("POSTHASTE_TEST_MARIADB")).await.unwrap(), None)
    }
}

impl TestDatabase for Sqlite {
    async fn open() -> (Pool<Self>, Option<PathBuf>) {
        let file = std::env::temp_dir().join(format!("posthaste-admin-{}.db", Uuid::now_v7()));
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(20));
        let pool = SqlitePoolOptions::new().max_connections(10);
        (pool.connect_with(options).await.unwrap(), Some(file))
    }
}

/// An outbox, its relay and the server.
pub struct Served<DB: Dialect> {
    pub pool: Pool<DB>,
    pub store: Arc<dyn Store>,
    pub tables: Tables,
    pub relay: Arc<Relay>,
    pub server: Server,
    file: Option<PathBuf>,
}

impl<DB: TestDatabase> Served<DB>
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    /// With a relay that runs. Without `tokens` everybody is an operator.
    pub async fn new(tokens: bool) -> Self {
        Self::with(|config| {
            if tokens {
                config.tokens = vec![
                    token("vera", Role::Viewer, VIEWER),
                    token("oscar", Role::Operator, OPERATOR),
                ];
            }
        })
        .await
    }

    pub async fn with(change: impl FnOnce(&mut AdminConfig)) -> Self {
        let (pool, file) = DB::open().await;
        let tables = tables::unique("admin");
        let store = DB::store(pool.clone(), tables.clone());
        store.migrate(None).await.unwrap();
        let transport = MemoryTransport::scripted(|envelope| match envelope.event.event_type() {
            "Poison" if envelope.replay == 0 => Outcome::dead("no such order"),
            "Shaky" => Outcome::retry("the warehouse is counting"),
            _ => Outcome::Delivered,
        });
        let relay = Relay::new(Arc::clone(&store), Arc::new(transport), quick("one")).unwrap();
        let relay = Arc::new(relay);
        relay.start().await.unwrap();
        let mut config = AdminConfig { listen: loopback(), ..AdminConfig::default() };
        change(&mut config);
        let server = Server::start(vec![outbox(&store, &relay)], config).await;
        Self { pool, store, tables, relay, server, file }
    }

    pub fn outbox(&self) -> AdminOutbox {
        outbox(&self.store, &self.relay)
    }

    /// Commits events; gives their ids.
    pub async fn enqueue(&self, events: Vec<Event>) -> Vec<String> {
        let ids = events.iter().map(|event| event.id().to_string()).collect();
        let outbox = Outbox::<DB>::new(self.tables.name().clone());
        let mut transaction = self.pool.begin().await.unwrap();
        outbox.enqueue_all(&mut transaction, events).await.unwrap();
        transaction.commit().await.unwrap();
        ids
    }

    /// One event of each fate, in it: delivered, dead, failed once.
    pub async fn fates(&self) -> [String; 3] {
        let ids = self.enqueue(["Placed", "Poison", "Shaky"].map(|kind| event(kind, kind)).into());
        let [sent, dead, failed]: [String; 3] = ids.await.try_into().unwrap();
        for (id, status) in [(&sent, "sent"), (&dead, "dead"), (&failed, "retry")] {
            self.until_status(id, status).await;
        }
        [sent, dead, failed]
    }

    pub async fn until_status(&self, id: &str, status: &str) {
        let id = id.parse().unwrap();
        asked(&format!("event {id} to be {status}"), async || {
            let event = self.store.event(id).await.unwrap();
            event.is_some_and(|event| event.status.as_str() == status)
        })
        .await;
    }

    pub async fn end(self) {
        self.server.stop().await;
        self.relay.stop().await.unwrap();
        if let Some(file) = self.file {
            self.pool.close().await;
            for suffix in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
            }
        } else {
            tables::drop_outbox(&self.pool, &self.tables).await.unwrap();
        }
    }
}

/// Settings of a relay of this name that looks often and repeats nothing.
pub fn quick(name: &str) -> Config {
    Config {
        name: name.to_owned(),
        busy_interval: Duration::from_millis(10),
        idle_interval: Duration::from_millis(100),
        backoff: Backoff::Fixed(Duration::from_hours(1)),
        health: HealthLimits { silence: Duration::from_secs(3), ..HealthLimits::default() },
        outbox: "shop".to_owned(),
        ..Config::default()
    }
}

fn outbox(store: &Arc<dyn Store>, relay: &Arc<Relay>) -> AdminOutbox {
    AdminOutbox {
        name: "shop".to_owned(),
        store: Arc::clone(store),
        relay: Some(Arc::clone(relay)),
        destinations: vec!["memory".to_owned()],
        routes: None,
        retention: Retention { sent: Duration::ZERO, dead: None },
    }
}

/// An outbox whose database never answers: everybody waits for the only connection, which is given with it.
pub async fn silent(tables: &Tables) -> (Arc<dyn Store>, PoolConnection<Sqlite>) {
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    let only = pool.acquire().await.unwrap();
    (Sqlite::store(pool, tables.clone()), only)
}

pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub fn token(name: &str, role: Role, secret: &str) -> Token {
    Token { name: name.to_owned(), role, secret: Secret::new(secret) }
}

/// An event of this type about an order, with a payload that must stay hidden.
pub fn event(event_type: &str, order: &str) -> Event {
    Event::builder(event_type.to_owned())
        .aggregate("Order", order)
        .tenant("acme")
        .header("source", "test")
        .payload(&serde_json::json!({ "card": SECRET }))
        .build()
        .unwrap()
}

/// A server that runs in this process.
pub struct Server {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    pub async fn start(outboxes: Vec<AdminOutbox>, config: AdminConfig) -> Self {
        let admin = Admin::new(outboxes, config).unwrap();
        let listener = admin.bind().await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            admin.serve(listener, stopped).await.unwrap();
        });
        Self { address, stop, task }
    }

    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(LIMIT, self.task).await.expect("the server does not stop").unwrap();
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "").await
    }

    pub async fn get_as(&self, token: &str, path: &str) -> Reply {
        self.ask("GET", path, &[("Authorization", &format!("Bearer {token}"))], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask("POST", path, &[("Content-Type", "application/json")], &body.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.ask("DELETE", path, &[], "").await
    }

    /// Paths are below the API's base unless they begin with two slashes.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let path = path
            .strip_prefix('/')
            .filter(|path| path.starts_with('/'))
            .map_or_else(|| format!("/api/v1{path}"), str::to_owned);
        let stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let mut lines = vec![
            format!("{method} {path} HTTP/1.1"),
            "Connection: close".to_owned(),
            format!("Content-Length: {length}"),
        ];
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            lines.push(format!("Host: {}", self.address));
        }
        lines.extend(headers.iter().map(|(name, value)| format!("{name}: {value}")));
        exchange(stream, &format!("{}\r\n\r\n{body}", lines.join("\r\n"))).await
    }
}

/// Sends a request, gives the answer.
pub async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Reply {
    // The server may answer and close before it has read all of a body that it refuses.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut bytes = Vec::new();
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("no answer");
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: String,
}

impl Reply {
    /// The body of a request that succeeded.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        assert!(self.head.contains("\r\ncontent-type: application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }

    /// Is a problem with this status, and gives its detail.
    #[track_caller]
    pub fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.head.contains("\r\ncontent-type: application/problem+json"), "{self:?}");
        let body: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(body["status"], status, "{self:?}");
        body["detail"].as_str().unwrap().to_owned()
    }
}

/// Runs every named test on SQLite and on PostgreSQL, and by `@ MODULE, DATABASE` on another database.
#[macro_export]
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        on_both!(@ sqlite, sqlx::Sqlite, $($name),*);
        on_both!(@ postgres, sqlx::Postgres, $($name),*);
    };
    (@ $module:ident, $database:ty, $($name:ident),*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name::<$database>().await;
                }
            )*
        }
    };
}
