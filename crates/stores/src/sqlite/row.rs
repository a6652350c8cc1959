//! From a row to an event: which columns are read, in which order, and what they become.
//!
//! SQLite keeps whatever type a writer gave, so that nothing is trusted here: a row that makes no
//! sense is an event that cannot be decoded, and never a read that fails for all.

use jiff::Timestamp;
use posthaste_core::{
    Key, Status,
    envelope::StoredRow,
    store::{EventRecord, Fetched, Identity, Wait},
};
use sqlx::{Column, Decode, Row, Sqlite, Type, sqlite::SqliteRow};
use uuid::Uuid;

use crate::key::KeyColumns;

/// `not_before` of an event that waits for its lane or for an operator: for ever.
pub(super) const FOR_EVER: i64 = i64::MAX;

/// The time of the statement. `unixepoch('subsec')` would be shorter, and needs SQLite 3.42 of
/// everybody who writes to the table.
macro_rules! now {
    () => {
        "cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)"
    };
}

/// The columns that make a [`Fetched`], in the order in which they are decoded.
macro_rules! columns {
    () => {
        columns!("payload")
    };
    ($payload:expr) => {
        concat!(
            "sequence, event_id, event_type, aggregate_type, aggregate_id, tenant, topic, \
             routing_key, schema_id, schema_version, ordering_key, headers, ",
            $payload,
            ", content_type, occurred_at, created_at, attempts, replay, not_before, wait"
        )
    };
}

/// How many [`columns`] there are: what a statement adds stands from this index on.
pub(super) const COLUMNS: usize = 20;

/// The columns that make an [`EventRecord`].
macro_rules! record_columns {
    () => {
        record_columns!("payload")
    };
    ($payload:expr) => {
        concat!(
            columns!($payload),
            ", ",
            status!(),
            ", sent_at, dead_at, last_error, locked_by, octet_length(payload), destination"
        )
    };
}

/// The same without the payload, for lists.
macro_rules! listed_columns {
    () => {
        record_columns!("x'' as payload")
    };
}

/// How many [`record_columns`] there are.
pub(super) const RECORD_COLUMNS: usize = COLUMNS + 7;

/// The state of a row.
macro_rules! status {
    () => {
        concat!(
            "case when sent_at is not null then 'sent' \
             when discarded_at is not null then 'discarded' \
             when dead_at is not null then 'dead' \
             when locked_until > ",
            now!(),
            " then 'sending' \
             when wait in ('retry', 'suspect') or attempts > 0 then 'retry' \
             else 'new' end"
        )
    };
}

/// Whether a row is neither sent, dead nor discarded.
macro_rules! unsettled {
    () => {
        "sent_at is null and dead_at is null and discarded_at is null"
    };
}

/// Whether a row waits for nothing, or only for a time that has come.
macro_rules! fresh {
    () => {
        concat!(
            "(not_before is null or wait is null and not_before <= ",
            now!(),
            ") and ",
            unsettled!()
        )
    };
}

pub(super) use {columns, fresh, listed_columns, now, record_columns, status, unsettled};

/// The row as a relay gets it.
pub(super) fn fetched(row: &SqliteRow) -> sqlx::Result<Fetched> {
    let stored = stored(row);
    Ok(Fetched {
        sequence: row.try_get(0)?,
        identity: stored.as_ref().map_or_else(
            |_| Identity::default(),
            |stored| Identity::of_text(row.try_get(1).unwrap_or_default(), stored.replay),
        ),
        shard: 0,
        key: stored.as_ref().ok().and_then(key),
        attempts: attempts(row),
        wait: wait(row),
        bytes: stored.as_ref().map_or(0, |stored| {
            stored.payload.len() + stored.headers.as_ref().map_or(0, String::len)
        }),
        content: stored.and_then(StoredRow::decode).map(Box::new),
    })
}

/// All rows of an answer.
pub(super) fn fetched_all(rows: &[SqliteRow]) -> sqlx::Result<Vec<Fetched>> {
    rows.iter().map(fetched).collect()
}

/// The row as an operator gets it.
pub(super) fn record(row: &SqliteRow) -> sqlx::Result<EventRecord> {
    let stored = stored(row);
    Ok(EventRecord {
        status: status_of(row.try_get(COLUMNS)?)?,
        sequence: row.try_get(0)?,
        shard: 0,
        event_id: stored.as_ref().ok().and_then(|stored| stored.event_id),
        attempts: attempts(row),
        not_before: time(row, 18),
        wait: wait(row),
        sent_at: time(row, COLUMNS + 1),
        dead_at: time(row, COLUMNS + 2),
        last_error: row.try_get(COLUMNS + 3).unwrap_or_default(),
        locked_by: row.try_get(COLUMNS + 4).unwrap_or_default(),
        payload_bytes: row.try_get::<i64, _>(COLUMNS + 5).unwrap_or_default().max(0) as u64,
        destination: row.try_get(COLUMNS + 6).unwrap_or_default(),
        content: stored.and_then(StoredRow::decode),
    })
}

/// The state of this name, as [`status`] gives it.
pub(super) fn status_of(name: &str) -> sqlx::Result<Status> {
    name.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// A time; `None` for ever and for what lies outside the calendar.
pub(super) fn time(row: &SqliteRow, index: usize) -> Option<Timestamp> {
    let micros: Option<i64> = row.try_get(index).unwrap_or_default();
    micros.and_then(|micros| Timestamp::from_microsecond(micros).ok())
}

/// A time in a column of ours, which only we write.
pub(super) fn time_of_ours(row: &SqliteRow, index: usize) -> sqlx::Result<Timestamp> {
    Timestamp::from_microsecond(row.try_get(index)?)
        .map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn stored(row: &SqliteRow) -> Result<StoredRow, String> {
    let not_before: Option<i64> = get(row, 18)?;
    Ok(StoredRow {
        sequence: get(row, 0)?,
        event_id: Uuid::try_parse(get(row, 1)?).ok(),
        event_type: get(row, 2)?,
        aggregate_type: get(row, 3)?,
        aggregate_id: get(row, 4)?,
        tenant: get(row, 5)?,
        topic: get(row, 6)?,
        routing_key: get(row, 7)?,
        schema_id: get(row, 8)?,
        schema_version: get(row, 9)?,
        ordering_key: get(row, 10)?,
        headers: get(row, 11)?,
        // A text counts as its bytes: plain SQL writes `'{}'` without a thought.
        payload: get(row, 12)?,
        content_type: get(row, 13)?,
        occurred_at: get(row, 14)?,
        created_at: get(row, 15)?,
        attempts: get(row, 16)?,
        replay: get(row, 17)?,
        // Once something happened to the event, the column says when to try again instead.
        deliver_at: not_before.filter(|_| wait(row).is_none()),
    })
}

fn get<'r, T>(row: &'r SqliteRow, index: usize) -> Result<T, String>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    row.try_get(index)
        .map_err(|_| format!("column {} holds a value of another type", row.column(index).name()))
}

fn attempts(row: &SqliteRow) -> u32 {
    row.try_get::<i32, _>(16).unwrap_or_default().max(0) as u32
}

fn wait(row: &SqliteRow) -> Option<Wait> {
    row.try_get::<Option<&str>, _>(19).unwrap_or_default().and_then(Wait::parse)
}

fn key(row: &StoredRow) -> Option<Key> {
    let columns = KeyColumns {
        ordering_key: row.ordering_key.as_deref(),
        tenant: row.tenant.as_deref(),
        aggregate_type: &row.aggregate_type,
        aggregate_id: row.aggregate_id.as_deref(),
    };
    columns.text().map(|key| Key::of(&key))
}
