//! What one test works with: an outbox of its own, and the binary as its relay, whose memory is watched.

use std::{
    fmt, fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use posthaste::{Dialect, Event, Key, Outbox, key::derived_key, stores::Tables};
use posthaste_testkit::{
    tables::{drop_outbox, unique},
    wait,
};
use sqlx::{AssertSqlSafe, MySql, Pool, Postgres};

use crate::{
    command::{self, Folder, stderr},
    receiver::{KEY, NUMBER, Received},
};

/// Without anything new for so long, something is stuck.
const PATIENCE: Duration = Duration::from_secs(40);

/// Most bytes of payloads in one statement that writes events.
const STATEMENT: usize = 8 << 20;

/// Whether the long runs were asked for.
pub fn nightly() -> bool {
    std::env::var_os("POSTHASTE_NIGHTLY").is_some_and(|value| !value.is_empty() && value != "0")
}

pub fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} names no server"))
}

#[derive(Debug, Clone, Copy)]
pub enum Database {
    Postgres,
    MariaDb,
}

#[derive(Debug)]
enum Connections {
    Postgres(Pool<Postgres>),
    MySql(Pool<MySql>),
}

macro_rules! with_pool {
    ($connections:expr, $pool:ident => $body:expr) => {
        match $connections {
            Connections::Postgres($pool) => $body,
            Connections::MySql($pool) => $body,
        }
    };
}

/// An outbox that nobody else uses.
pub struct Ground {
    database: Database,
    url: String,
    tables: Tables,
    connections: Connections,
    folder: Folder,
}

impl Ground {
    pub async fn new(database: Database) -> Self {
        let (url, connections) = match database {
            Database::Postgres => {
                let url = server("POSTHASTE_TEST_POSTGRES");
                let pool = Pool::connect(&url).await.unwrap();
                (url, Connections::Postgres(pool))
            }
            Database::MariaDb => {
                let url = server("POSTHASTE_TEST_MARIADB");
                let pool = Pool::connect(&url).await.unwrap();
                (url, Connections::MySql(pool))
            }
        };
        let ground =
            Self { database, url, tables: unique("memory"), connections, folder: Folder::new() };
        ground.run(&["migrate"]);
        ground
    }

    /// The name of its table, and of what belongs to it elsewhere.
    pub fn name(&self) -> &str {
        self.tables.name().bare()
    }

    /// Runs a command of the binary, which must succeed.
    pub fn run(&self, args: &[&str]) {
        let output = command::command(args).args(self.place()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    }

    fn place(&self) -> [&str; 4] {
        ["--url", &self.url, "--table", self.name()]
    }

    /// Writes so many events of this aggregate type, the keys in turn, with payloads of so many bytes.
    pub async fn write(&self, kind: &str, keys: u64, count: u64, bytes: usize) {
        with_pool!(&self.connections, pool => {
            write(pool, &self.tables, kind, keys, count, bytes).await;
        });
    }

    /// How many events are held.
    pub async fn held(&self) -> u64 {
        self.count("select count(*) from {events} where wait = 'held' and sent_at is null").await
    }

    /// Until all events but so many are sent.
    pub async fn until_sent(&self, but: u64) {
        wait::asked("events to be marked sent", async || {
            self.count("select count(*) from {events} where sent_at is null").await == but
        })
        .await;
    }

    /// Each event is dead, and its key waits for an operator, as a relay would have left it (PostgreSQL).
    pub async fn park(&self) {
        const PARK: &str = "
            update {events} e
            set dead_at = clock_timestamp(), attempts = 1, wait = 'parked', destination = 'http',
                not_before = 'infinity', lane = p.lane
            from unnest($1::bigint[], $2::bigint[]) p (sequence, lane)
            where e.sequence = p.sequence";
        const KEYS: &str = "
            select sequence, aggregate_type, aggregate_id from {events}
            where dead_at is null order by sequence limit 20000";

        let Connections::Postgres(pool) = &self.connections else {
            panic!("only on PostgreSQL");
        };
        loop {
            let rows: Vec<(i64, String, String)> =
                sqlx::query_as(self.tables.sql(KEYS)).fetch_all(pool).await.unwrap();
            if rows.is_empty() {
                return;
            }
            let lane =
                |(_, kind, id): &(i64, String, String)| Key::of(&derived_key("", kind, id)).0;
            let (sequences, lanes): (Vec<i64>, Vec<i64>) =
                rows.iter().map(|row| (row.0, lane(row))).unzip();
            let park = sqlx::query(self.tables.sql(PARK)).bind(sequences).bind(lanes);
            park.execute(pool).await.unwrap();
        }
    }

    async fn count(&self, template: &str) -> u64 {
        let sql = AssertSqlSafe(self.tables.fill(template));
        let count: i64 = with_pool!(&self.connections, pool => {
            sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
        });
        count as u64
    }

    /// A relay with default settings and these arguments.
    pub fn relay(&self, args: &[&str]) -> Relay {
        let mut relay = Self::binary();
        relay.args(args).args(self.place());
        self.start(relay)
    }

    /// A relay with default settings, and these destinations and routes.
    pub fn relay_with(&self, settings: &str) -> Relay {
        let outbox = format!("[outbox]\nurl = \"{}\"\ntable = \"{}\"\n", self.url, self.name());
        let file = self.folder.join("posthaste.toml");
        fs::write(&file, outbox + settings).unwrap();
        let mut relay = Self::binary();
        relay.arg("--config").arg(file);
        self.start(relay)
    }

    fn binary() -> Command {
        let mut relay = command::command(&[]);
        if let Some(other) = std::env::var_os("POSTHASTE_TEST_RELAY") {
            relay = Command::new(other);
        }
        relay.arg("relay");
        // Others may run at the same time on this machine.
        relay.env("POSTHASTE_ADMIN_LISTEN", "127.0.0.1:0");
        relay.env("POSTHASTE_HEALTH_LISTEN", "127.0.0.1:0");
        relay
    }

    fn start(&self, mut relay: Command) -> Relay {
        let log = self.folder.join("relay.log");
        relay.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let what = format!("{:?}", self.database);
        Relay { process: relay.spawn().unwrap(), log, what, began: Instant::now() }
    }

    pub async fn clean(self) {
        with_pool!(&self.connections, pool => drop_outbox(pool, &self.tables).await.unwrap());
    }
}

async fn write<DB: Dialect>(
    pool: &Pool<DB>,
    tables: &Tables,
    kind: &str,
    keys: u64,
    count: u64,
    bytes: usize,
) {
    let outbox = Outbox::<DB>::new(tables.name().clone());
    let step = (STATEMENT / bytes).clamp(1, 1_000) as u64;
    for first in (0..count).step_by(step as usize) {
        let numbers = first..(first + step).min(count);
        let events = numbers.map(|n| {
            let key = n % keys;
            let event = Event::builder("Happened").aggregate(kind, key);
            let event = event.header(KEY, format!("{kind}/{key}"));
            let event = event.header(NUMBER, (n / keys).to_string());
            event.bytes("application/octet-stream", vec![b'x'; bytes]).build().unwrap()
        });
        let mut transaction = outbox.begin(pool).await.unwrap();
        outbox.enqueue_all(&mut transaction, events.collect::<Vec<_>>()).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

/// The binary at work, until it is dropped.
pub struct Relay {
    process: Child,
    log: PathBuf,
    what: String,
    pub began: Instant,
}

impl Relay {
    /// Until so many events were received. Something new comes all the time.
    pub async fn until(&self, what: &str, received: &Received, count: u64) {
        let (mut seen, mut since) = (0, Instant::now());
        while seen < count {
            let now = received.events();
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "stuck on the way to {what}: {received}\n{self}");
            received.assert_in_order();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Until it is so, which may take long in the long form.
    pub async fn watch(&self, what: &str, mut is: impl AsyncFnMut() -> bool) {
        let patience = if nightly() { 15 * PATIENCE } else { PATIENCE };
        let began = Instant::now();
        while !is().await {
            assert!(began.elapsed() < patience, "waited in vain for {what}\n{self}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The most memory that it has had.
    pub fn peak(&self) -> Memory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            kilobytes * 1024
        };
        Memory { peak: bytes("VmHWM:"), anonymous: bytes("RssAnon:"), files: bytes("RssFile:") }
    }

    /// Ends it. It has never had more memory than this.
    pub fn ends(self, most: u64, what: &str) {
        let memory = self.peak();
        println!("{}: {what} in {:?}: {memory}", self.what, self.began.elapsed());
        assert!(memory.peak < most, "{what}: {memory}, more than {} MB\n{self}", most / 1_000_000);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl fmt::Display for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        writeln!(f, "{}", lines[lines.len().saturating_sub(20)..].join("\n"))
    }
}

/// Resident memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    peak: u64,
    anonymous: u64,
    files: u64,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [peak, anonymous, files] =
            [self.peak, self.anonymous, self.files].map(|bytes| bytes as f64 / 1e6);
        write!(
            f,
            "peak {peak:.1} MB resident, now {anonymous:.1} MB its own and {files:.1} MB of files"
        )
    }
}
