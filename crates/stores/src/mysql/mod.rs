//! The outbox in MySQL 8 and newer, and in MariaDB 10.6 and newer.
//!
//! Late commits are found by gaps: numbers that a read passed over because their transactions had
//! not ended. Every later read looks into them, until nobody is left who could fill them
//! (`gaps`, `statements`, `tracker`, `late`). Leases are rows that a settle locks in share mode before it writes.
//!
//! Transactions of ours read what is committed: under `repeatable read`, MySQL's default, a lock
//! on a range would also lock its gaps, and the writers' inserts would wait for us.

mod row;

mod schema;

mod enqueue;

mod transaction;

#[macro_use]
mod life;

mod leases;

mod gaps;

mod statements;

mod tracker;

mod late;

mod read;

mod sweep;

mod claim;

mod settle;

mod backlog;

mod inspect;

mod overdue;

mod operate;

mod control;

mod audit;

mod diagnose;

mod wake;

mod inbox;

mod idempotency;

mod expire;

use std::{
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicI64, AtomicUsize},
    },
    time::{Duration, Instant},
};

use posthaste_core::{Event, Result, store::Store};
use sqlx::{
    AssertSqlSafe, Connection, Executor, MySql, MySqlConnection, MySqlPool, SqlSafeStr,
    Transaction,
    mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlPoolOptions},
};

use crate::{
    Dialect, Enqueued, Options, Tables,
    connect::{ACQUIRE_TIMEOUT, open_pool},
    dialect::begin_undisturbed,
    failure::failed,
    sessions::Sessions,
};
use tokio::runtime::Handle;
use tracker::Tracker;

/// What every connection of a relay is told. The server ends a transaction whose client has fallen
/// silent: it has locked leases, and a takeover passes over locked ones, so a relay that is paused inside
/// would keep them. MySQL has no such setting and ends the idle session instead. The server gives a
/// statement up before the relay does, and so it does with waiting for a lock. Each
/// statement commits by itself, whatever the server's or the pool's setting is: or the first read of a connection would
/// begin a transaction, and all later ones would see the same old rows.
const IMPATIENT: &str = "set /*M!100300 idle_transaction_timeout = 5, max_statement_time = 4.5, */ \
     /*!80000 max_execution_time = 4500, */ autocommit = 1, innodb_lock_wait_timeout = 4, \
     wait_timeout = 60";

/// What every connection of a store's own pool is told: an operator's statements are committed.
const AUTOCOMMIT: &str = "set autocommit = 1";

/// Begins a transaction that reads what is committed and locks no gaps. The connection's own level is
/// left as it is.
const BEGIN: &str = "set transaction isolation level read committed; start transaction";

/// Most values in one list of a statement.
const LIST: usize = 1024;

/// How rows are claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimStyle {
    /// `for update skip locked`: MySQL 8, MariaDB 10.6 and newer.
    SkipLocked,
    /// `update … order by … limit` with a token, then a select by that token, where the server cannot skip
    /// locked rows. Claimers wait for each other.
    Token,
}

/// An outbox in MySQL or MariaDB, as relays and operators use it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MySqlStore {
    /// For what is asked now and then; a relay's own statements run on `sessions`.
    pool: MySqlPool,
    sessions: Sessions<MySql>,
    tables: Tables,
    /// How rows are claimed, once the server's version is known.
    claim_style: Arc<OnceLock<ClaimStyle>>,
    /// How many shards there are, once the outbox was read or migrated.
    shards: Arc<OnceLock<u16>>,
    /// The life of the server that this store works in.
    life: Arc<Mutex<Option<Arc<str>>>>,
    /// The life in which it has taken shards last.
    taken_in: Arc<Mutex<Option<Arc<str>>>>,
    /// Which numbers were missing, and have appeared. Locked for moments only.
    tracker: Arc<Mutex<Tracker>>,
    /// Held by the one read that looks on from the tracker's frontier.
    looking: Arc<tokio::sync::Mutex<()>>,
    looking_back: Arc<tokio::sync::Mutex<()>>,
    /// Most numbers of a part of a round.
    piece: Arc<AtomicI64>,
    /// Bytes of an average event of the last page.
    average: Arc<AtomicUsize>,
    /// How far events beyond late commits were looked at.
    beyond: Arc<AtomicI64>,
    /// When a sweep last wrote its floor down.
    floor_kept: Arc<Mutex<Option<Instant>>>,
}

impl MySqlStore {
    /// Connects with a pool of its own.
    pub async fn connect(url: &str, tables: Tables, options: &Options) -> Result<Self> {
        let connect = connect_options(url)?;
        let pool = MySqlPoolOptions::new()
            .max_connections(options.connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .after_connect(|connection, _| {
                Box::pin(async { connection.execute(AUTOCOMMIT).await.map(drop) })
            })
            // They are tested when they come back; what breaks later is tried again.
            .test_before_acquire(false);
        let pool = open_pool(pool, connect, "connecting to MySQL").await?;
        Ok(Self::over(pool, tables, options.connections))
    }

    /// Uses the application's pool. A relay takes the connections that it works with out of the
    /// pool and keeps them, at most [`Options::connections`] by default; the pool opens others in
    /// their place.
    pub fn new(pool: MySqlPool, tables: Tables) -> Self {
        Self::over(pool, tables, Options::default().connections)
    }

    fn over(pool: MySqlPool, tables: Tables, connections: u32) -> Self {
        Self {
            sessions: Sessions::new(pool.clone(), connections, IMPATIENT),
            pool,
            tables,
            claim_style: Arc::default(),
            shards: Arc::default(),
            life: Arc::default(),
            taken_in: Arc::default(),
            tracker: Arc::new(Mutex::new(Tracker::new(""))),
            looking: Arc::default(),
            looking_back: Arc::default(),
            piece: Arc::new(AtomicI64::new(gaps::PIECE)),
            average: Arc::default(),
            beyond: Arc::default(),
            floor_kept: Arc::default(),
        }
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims rows in this way, whatever the server's version says.
    pub fn with_claim_style(mut self, style: ClaimStyle) -> Self {
        self.claim_style = Arc::new(OnceLock::from(style));
        self
    }

    /// The pool.
    pub fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// The tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// A transaction of an operator. Those of a relay run on a session.
    async fn begin(&self, doing: &'static str) -> Result<Transaction<'static, MySql>> {
        // Asked for now: inside the transaction it would take a second connection.
        self.shard_count().await?;
        self.claim_style().await?;
        let begun = begin_undisturbed(&self.pool, Some(BEGIN.into_sql_str())).await;
        begun.map_err(failed(doing))
    }

    /// How rows are claimed on this server.
    async fn claim_style(&self) -> Result<ClaimStyle> {
        const VERSION: &str = "select version()";

        if let Some(style) = self.claim_style.get() {
            return Ok(*style);
        }
        let version: String = sqlx::query_scalar(VERSION)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("asking for the server's version"))?;
        Ok(*self.claim_style.get_or_init(|| style_of(&version)))
    }

    /// A statement with a list of so many places that passes over rows which somebody has locked,
    /// or waits for them where the server cannot.
    async fn locking(
        &self,
        template: &'static str,
        places: usize,
    ) -> Result<AssertSqlSafe<String>> {
        let skip_locked = match self.claim_style().await? {
            ClaimStyle::SkipLocked => "skip locked",
            ClaimStyle::Token => "",
        };
        Ok(AssertSqlSafe(self.listing(template, places).0.replace("{skip_locked}", skip_locked)))
    }

    /// A statement whose `{list}`, list of `{pairs}`, or table `{sequences}`, has places for so many values, as
    /// [`padded`] gives them.
    fn listing(&self, template: &'static str, places: usize) -> AssertSqlSafe<String> {
        listing(&self.tables, template, places)
    }
}

fn listing(tables: &Tables, template: &'static str, places: usize) -> AssertSqlSafe<String> {
    let places = places.max(1).next_power_of_two();
    let mut list = "?, ".repeat(places);
    list.truncate(list.len() - 2);
    let statement = tables.sql(template).0;
    let statement = statement.replace("{list}", &list);
    let pairs = statement.contains("{pairs}").then(|| vec!["(?, ?)"; places].join(", "));
    let statement = statement.replace("{pairs}", &pairs.unwrap_or_default());
    if !statement.contains("{sequences}") {
        return AssertSqlSafe(statement);
    }
    let rows = vec!["select cast(? as signed) as sequence"; places].join(" union all ");
    AssertSqlSafe(statement.replace("{sequences}", &format!("({rows})")))
}

/// The values of a list, the last one again and again up to a power of two: so a statement is
/// prepared for a few lengths and not for every one.
fn padded<T: Copy>(values: &[T]) -> impl Iterator<Item = T> + '_ {
    let places = values.len().max(1).next_power_of_two();
    let last = values.last().copied();
    values.iter().copied().chain(last.into_iter().cycle().take(places - values.len()))
}

fn connect_options(url: &str) -> Result<MySqlConnectOptions> {
    crate::connect::check_login(url)?;
    let url = match url.strip_prefix("mariadb:") {
        Some(rest) => format!("mysql:{rest}"),
        None => url.to_owned(),
    };
    MySqlConnectOptions::from_str(&url).map_err(failed("reading the MySQL URL"))
}

fn style_of(version: &str) -> ClaimStyle {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut number = || numbers.next().and_then(std::result::Result::ok).unwrap_or(0_u32);
    let release = (number(), number());
    let first = if version.contains("MariaDB") { (10, 6) } else { (8, 0) };
    if version.contains("TiDB") || release < first {
        ClaimStyle::Token
    } else {
        ClaimStyle::SkipLocked
    }
}

/// A time span as `timestampadd` takes it; at most a century, or the calendar would end.
fn micros(span: Duration) -> i64 {
    const CENTURY: u128 = 100 * 366 * 86_400 * 1_000_000;

    span.as_micros().min(CENTURY) as i64
}

/// Whether `nowait` met a lock: as MariaDB says it, and as MySQL does.
fn met_a_lock(error: &sqlx::Error) -> bool {
    matches!(number(error), 1205 | 3572)
}

/// Whether the server ended a statement for the time it took, or for the time it waited for a lock. MariaDB
/// and MySQL give the first one different numbers.
pub(crate) fn took_too_long(error: &sqlx::Error) -> bool {
    matches!(number(error), 1205 | 1969 | 3024)
}

/// The server's number of an error; 0 when the error is not the server's.
fn number(error: &sqlx::Error) -> u16 {
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>())
        .map_or(0, MySqlDatabaseError::number)
}

impl Dialect for MySql {
    async fn enqueue<'c>(
        connection: &'c mut MySqlConnection,
        tables: &'c Tables,
        events: &'c [Event],
    ) -> Result<Vec<Enqueued>> {
        enqueue::enqueue(connection, tables, events).await
    }

    fn in_transaction(connection: &mut MySqlConnection) -> bool {
        connection.is_in_transaction()
    }

    async fn break_off(connection: &mut MySqlConnection, depth: usize) {
        transaction::break_off(connection, depth).await;
    }

    async fn still_open(connection: &mut MySqlConnection) -> Result<()> {
        transaction::still_open(connection).await
    }

    async fn begin(pool: &MySqlPool) -> Result<Transaction<'static, Self>, sqlx::Error> {
        transaction::begin(pool).await
    }

    async fn ready(connection: &mut MySqlConnection, proven: bool) -> Result<(), sqlx::Error> {
        transaction::ready(connection, proven).await
    }

    async fn commit(transaction: Transaction<'static, Self>) -> Result<(), sqlx::Error> {
        transaction::commit(transaction).await
    }

    fn had_ended(error: &sqlx::Error) -> bool {
        transaction::had_ended(error)
    }

    async fn rollback(
        transaction: Transaction<'static, Self>,
        pool: &MySqlPool,
    ) -> Result<(), sqlx::Error> {
        transaction::rollback(transaction, pool.clone()).await
    }

    fn abandon(transaction: Transaction<'static, Self>, pool: &MySqlPool) {
        let Ok(runtime) = Handle::try_current() else {
            // The program is on its way out, and its connections with it.
            return drop(transaction);
        };
        runtime.spawn(transaction::abandon(transaction, pool.clone()));
    }

    fn store(pool: MySqlPool, tables: Tables) -> Arc<dyn Store> {
        Arc::new(MySqlStore::new(pool, tables))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_skip_locked_are_claimed_with_a_token() {
        for version in ["5.7.44-log", "8.0.11-TiDB-v8.5.0", "10.5.21-MariaDB", "5.5.5-10.4.2"] {
            assert_eq!(style_of(version), ClaimStyle::Token, "{version}");
        }
        for version in ["8.0.36", "9.7.4-2", "10.6.1-MariaDB", "10.11.19-MariaDB-0+deb12u1"] {
            assert_eq!(style_of(version), ClaimStyle::SkipLocked, "{version}");
        }
    }

    #[test]
    fn a_padded_list_holds_its_values_and_fills_a_power_of_two() {
        assert_eq!(padded(&[1, 2, 3]).collect::<Vec<_>>(), [1, 2, 3, 3]);
        assert_eq!(padded(&[7]).collect::<Vec<_>>(), [7]);
        let tables = Tables::new(posthaste_core::TableName::default());
        assert_eq!(listing(&tables, "in ({list})", 3).0, "in (?, ?, ?, ?)");
    }

    #[test]
    fn a_mariadb_url_is_read_as_a_mysql_url() {
        assert!(connect_options("mariadb://u:p@localhost:3307/shop").is_ok());
    }

    #[tokio::test]
    async fn an_embedded_store_has_the_same_limits_as_one_that_connects_itself() {
        const LIMITS: &str = "
            select cast(@@session.idle_transaction_timeout as char),
                cast(@@session.max_statement_time as char),
                cast(@@session.innodb_lock_wait_timeout as char),
                cast(@@session.wait_timeout as char)";

        let url = std::env::var("POSTHASTE_TEST_MARIADB").expect("run the tests with scripts/test");
        let tables = || Tables::new("outbox_event".parse().unwrap());
        let own = MySqlStore::connect(&url, tables(), &Options::default()).await.unwrap();
        let pool = MySqlPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
        for store in [own, MySqlStore::new(pool, tables())] {
            let mut session = store.sessions.take("testing").await.unwrap();
            let (idle, statement, lock, wait): (String, String, String, String) =
                sqlx::query_as(LIMITS).fetch_one(&mut *session).await.unwrap();
            let limits = [&*idle, &*statement, &*lock, &*wait];
            assert_eq!(limits, ["5", "4.500000", "4", "60"]);
        }
    }
}
