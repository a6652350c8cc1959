//! What a bench needs of a database beyond what Posthaste itself needs: filling tables inside the
//! server, the statements of the baselines, and counters.
//!
//! The three databases have a file each with the same functions in the same order.

use std::{future::Future, path::PathBuf, time::Duration};

use posthaste::{Dialect, Error, ErrorKind, stores::Tables};
use uuid::Uuid;

/// What the events of a bench hold.
#[derive(Debug, Clone)]
pub(super) struct Content {
    /// How many ordering keys take turns.
    pub(super) keys: u64,
    /// How many event types take turns in each key: `OrderPlaced`, or `OrderPaid` too.
    pub(super) types: u64,
    /// The same for all events.
    pub(super) payload: Vec<u8>,
}

/// Counters of the server, as they stand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counters {
    /// Bytes of write-ahead log since the server was made.
    pub(super) wal_bytes: i64,
    /// Row versions of the outbox that were replaced or deleted since the tables were made.
    pub(super) dead_tuples: i64,
}

/// An event as a baseline inserts it.
pub(super) struct ByHand<'e> {
    pub(super) id: Uuid,
    pub(super) aggregate_id: &'e str,
    /// Unordered events have an empty one.
    pub(super) ordering_key: Option<&'e str>,
    pub(super) payload: &'e [u8],
    /// Microseconds since 1970.
    pub(super) occurred_at: i64,
}

/// A row as a baseline reads it: every column that a relay gets.
#[expect(dead_code, reason = "decoded as a relay would, and read by nobody")]
pub(super) struct RawRow {
    pub(super) sequence: i64,
    pub(super) event_id: Uuid,
    pub(super) event_type: String,
    pub(super) aggregate_type: String,
    pub(super) aggregate_id: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) topic: Option<String>,
    pub(super) routing_key: Option<String>,
    pub(super) schema_id: Option<String>,
    pub(super) schema_version: i32,
    pub(super) ordering_key: Option<String>,
    pub(super) headers: Option<String>,
    pub(super) payload: Vec<u8>,
    pub(super) content_type: String,
    pub(super) occurred_at: i64,
    pub(super) created_at: i64,
    pub(super) attempts: i32,
    pub(super) replay: i32,
    pub(super) not_before: Option<i64>,
    pub(super) wait: Option<String>,
    pub(super) shard: Option<i32>,
}

/// A [`RawRow`] of any driver's row, by the place of each column and without type checks: as fast
/// as it can be. The id comes apart, since not every database has UUIDs.
macro_rules! raw_row {
    ($row:expr, $event_id:expr) => {
        Ok($crate::bench::target::RawRow {
            sequence: $row.try_get_unchecked(0)?,
            event_id: $event_id,
            event_type: $row.try_get_unchecked(2)?,
            aggregate_type: $row.try_get_unchecked(3)?,
            aggregate_id: $row.try_get_unchecked(4)?,
            tenant: $row.try_get_unchecked(5)?,
            topic: $row.try_get_unchecked(6)?,
            routing_key: $row.try_get_unchecked(7)?,
            schema_id: $row.try_get_unchecked(8)?,
            schema_version: $row.try_get_unchecked(9)?,
            ordering_key: $row.try_get_unchecked(10)?,
            headers: $row.try_get_unchecked(11)?,
            payload: $row.try_get_unchecked(12)?,
            content_type: $row.try_get_unchecked(13)?,
            occurred_at: $row.try_get_unchecked(14)?,
            created_at: $row.try_get_unchecked(15)?,
            attempts: $row.try_get_unchecked(16)?,
            replay: $row.try_get_unchecked(17)?,
            not_before: $row.try_get_unchecked(18)?,
            wait: $row.try_get_unchecked(19)?,
            shard: $row.try_get_unchecked(20)?,
        })
    };
}

pub(super) use raw_row;

/// A database to measure.
pub(super) trait Target: Dialect {
    /// Whether a relay hears of commits in other processes.
    const HEARS: bool;

    /// Whether that can be done without, by not telling it.
    const CAN_BE_DEAF: bool;

    /// The URL as the driver takes it.
    fn url(url: &str) -> String {
        url.to_owned()
    }

    /// The database's file, when it is one and is not there yet.
    fn missing_file(_url: &str) -> Option<PathBuf> {
        None
    }

    /// Runs plain SQL, any number of statements.
    fn execute(connection: &mut Self::Connection, sql: String) -> impl Done<()>;

    /// What the server calls itself.
    fn version(connection: &mut Self::Connection) -> impl Done<String>;

    /// Whether the statement failed because its table is not there.
    fn is_missing_table(error: &sqlx::Error) -> bool;

    /// Writes what is dirty to disk, as far as this user may: a run must not pay for the last one.
    fn checkpoint(connection: &mut Self::Connection) -> impl Done<()>;

    /// Inserts events, inside the server: the filling must not show in this process's memory.
    fn fill(
        connection: &mut Self::Connection,
        tables: &Tables,
        content: &Content,
        events: u64,
    ) -> impl Done<()>;

    /// Leaves fresh statistics, and nothing for the server to tidy up while it is measured.
    fn tidy(connection: &mut Self::Connection, tables: &Tables) -> impl Done<()>;

    /// Begins a transaction and takes a snapshot, which stands until the connection is closed.
    fn hold_snapshot(connection: &mut Self::Connection) -> impl Done<()>;

    /// WAL and dead tuples; `None` where there is nothing like it. `expected` is how many dead
    /// tuples there must be: a server counts them a little later.
    fn counters(
        connection: &mut Self::Connection,
        tables: &Tables,
        expected: i64,
    ) -> impl Done<Option<Counters>>;

    /// The baseline's read: plain, in the order of the sequence.
    fn read(
        connection: &mut Self::Connection,
        tables: &Tables,
        after: i64,
        limit: i64,
    ) -> impl Done<Vec<RawRow>>;

    /// The baseline's claim of rows, for unordered work.
    fn claim(
        connection: &mut Self::Connection,
        tables: &Tables,
        token: &str,
        after: i64,
        limit: i64,
    ) -> impl Done<Vec<RawRow>>;

    /// The baseline's mark, or its delete; only rows of that claim, if one is given.
    fn mark(
        connection: &mut Self::Connection,
        tables: &Tables,
        sequences: &[i64],
        token: Option<&str>,
        delete: bool,
    ) -> impl Done<()>;

    /// The business row of a transaction.
    fn insert_order(connection: &mut Self::Connection, tables: &Tables, id: i64) -> impl Done<()>;

    /// The very insert that `enqueue` makes, written by hand.
    fn insert_event(
        connection: &mut Self::Connection,
        tables: &Tables,
        event: &ByHand<'_>,
    ) -> impl Done<()>;

    /// Times from a notification on one connection to its arrival on another, so many of them, with
    /// this pause between two; `None` where there is nothing like it.
    fn listen_round_trips(
        url: &str,
        channel: &str,
        count: u64,
        pause: Duration,
    ) -> impl Done<Option<Vec<Duration>>>;
}

/// What a statement gives in the end, on whichever thread.
pub(super) trait Done<T>: Future<Output = sqlx::Result<T>> + Send {}

impl<T, F: Future<Output = sqlx::Result<T>> + Send> Done<T> for F {}

/// A UUID that the database keeps as text.
pub(super) fn uuid(text: &str) -> sqlx::Result<Uuid> {
    Uuid::try_parse(text).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// An error of the driver as one of ours: what was being done, and the cause.
pub(super) fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| Error::new(ErrorKind::Database, format!("{doing} failed")).with_source(error)
}
