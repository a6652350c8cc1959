//! From a row to an event: which columns are read, in which order, and what they become.

use std::borrow::Cow;

use jiff::Timestamp;
use posthaste_core::{
    Key, Status,
    envelope::StoredRow,
    store::{EventRecord, Fetched, Identity, Wait},
};
use sqlx::{Row, mysql::MySqlRow};
use uuid::Uuid;

use crate::key::KeyColumns;

/// The columns of `e` that make a [`Fetched`], in the order in which they are decoded.
macro_rules! columns {
    () => {
        columns!("e.payload")
    };
    ($payload:expr) => {
        concat!(
            "e.sequence, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant, \
             e.topic, e.routing_key, e.schema_id, e.schema_version, e.ordering_key, e.headers, ",
            $payload,
            ", e.content_type, timestampdiff(microsecond, '1970-01-01', e.occurred_at), \
             timestampdiff(microsecond, '1970-01-01', e.created_at), e.attempts, e.replay, \
             timestampdiff(microsecond, '1970-01-01', e.not_before), e.wait, e.shard"
        )
    };
}

/// How many [`columns`] there are: what a statement adds stands from this index on.
pub(super) const COLUMNS: usize = 21;

/// The columns of `e` that make an [`EventRecord`].
macro_rules! record_columns {
    () => {
        record_columns!("e.payload")
    };
    ($payload:expr) => {
        concat!(
            columns!($payload),
            ", ",
            status!(),
            ", timestampdiff(microsecond, '1970-01-01', e.sent_at), \
             timestampdiff(microsecond, '1970-01-01', e.dead_at), e.last_error, e.locked_by, \
             cast(length(e.payload) as signed), e.destination"
        )
    };
}

/// The same without the payload, for lists.
macro_rules! listed_columns {
    () => {
        record_columns!("x''")
    };
}

/// The state of `e`.
macro_rules! status {
    () => {
        "case when e.sent_at is not null then 'sent' \
         when e.discarded_at is not null then 'discarded' \
         when e.dead_at is not null then 'dead' \
         when e.locked_until > utc_timestamp(6) then 'sending' \
         when e.wait in ('retry', 'suspect') or e.attempts > 0 then 'retry' \
         else 'new' end"
    };
}

/// Whether `e` is neither sent, dead nor discarded.
macro_rules! unsettled {
    () => {
        "e.sent_at is null and e.dead_at is null and e.discarded_at is null"
    };
}

/// Whether `e` is unsettled and waits for nothing.
macro_rules! fresh {
    () => {
        concat!(unsettled!(), " and e.not_before is null")
    };
}

/// When held and parked events fall due.
macro_rules! for_ever {
    () => {
        "timestamp'9999-12-31 23:59:59'"
    };
}

pub(super) use {columns, for_ever, fresh, listed_columns, record_columns, status, unsettled};

/// The row as a relay gets it. `shards` is how many there are: a row that was written without the
/// hash of its key has no shard of its own.
pub(super) fn fetched(row: &MySqlRow, shards: u16) -> sqlx::Result<Fetched> {
    let stored = stored(row)?;
    Ok(Fetched {
        sequence: stored.sequence,
        identity: Identity::of_text(row.try_get_unchecked(1)?, stored.replay),
        shard: shard(row, &stored, shards)?,
        key: key(&stored),
        attempts: stored.attempts.max(0) as u32,
        wait: wait(row)?,
        bytes: stored.payload.len() + stored.headers.as_ref().map_or(0, String::len),
        content: stored.decode().map(Box::new),
    })
}

/// All rows of an answer.
pub(super) fn fetched_all(rows: &[MySqlRow], shards: u16) -> sqlx::Result<Vec<Fetched>> {
    rows.iter().map(|row| fetched(row, shards)).collect()
}

/// The row as an operator gets it.
pub(super) fn record(row: &MySqlRow, shards: u16) -> sqlx::Result<EventRecord> {
    let stored = stored(row)?;
    let time = |index: usize| -> sqlx::Result<Option<Timestamp>> {
        Ok(row.try_get_unchecked::<Option<i64>, _>(index)?.and_then(timestamp))
    };
    Ok(EventRecord {
        status: status_of(row.try_get_unchecked(COLUMNS)?)?,
        sequence: stored.sequence,
        shard: shard(row, &stored, shards)?,
        event_id: stored.event_id,
        attempts: stored.attempts.max(0) as u32,
        not_before: time(18)?,
        wait: wait(row)?,
        sent_at: time(COLUMNS + 1)?,
        dead_at: time(COLUMNS + 2)?,
        last_error: row.try_get_unchecked(COLUMNS + 3)?,
        locked_by: row.try_get_unchecked(COLUMNS + 4)?,
        payload_bytes: row.try_get_unchecked::<i64, _>(COLUMNS + 5)?.max(0) as u64,
        destination: row.try_get_unchecked(COLUMNS + 6)?,
        content: stored.decode(),
    })
}

/// The time of so many microseconds since 1970; `None` for what lies outside the calendar, which
/// is also how "for ever" reads.
pub(super) fn timestamp(micros: i64) -> Option<Timestamp> {
    Timestamp::from_microsecond(micros).ok()
}

/// The state of this name, as [`status`] gives it.
pub(super) fn status_of(name: &str) -> sqlx::Result<Status> {
    name.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// The column `key_hash` of a key, or of an event id where there is no key: its first 4 bytes of
/// SHA-256, as [`shard_of`](posthaste_core::key::shard_of) takes them.
pub(super) fn key_hash(text: &str) -> u32 {
    (Key::of(text).0 as u64 >> 32) as u32
}

/// The columns by their place: a lookup by name or a type check for each of 21 columns would cost
/// more than the decoding.
fn stored(row: &MySqlRow) -> sqlx::Result<StoredRow> {
    let waits = row.try_get_raw(19).map(|value| !sqlx::ValueRef::is_null(&value))?;
    let not_before: Option<i64> = row.try_get_unchecked(18)?;
    Ok(StoredRow {
        sequence: row.try_get_unchecked(0)?,
        event_id: Uuid::try_parse(row.try_get_unchecked(1)?).ok(),
        event_type: row.try_get_unchecked(2)?,
        aggregate_type: row.try_get_unchecked(3)?,
        aggregate_id: row.try_get_unchecked(4)?,
        tenant: row.try_get_unchecked(5)?,
        topic: row.try_get_unchecked(6)?,
        routing_key: row.try_get_unchecked(7)?,
        schema_id: row.try_get_unchecked(8)?,
        schema_version: row.try_get_unchecked(9)?,
        ordering_key: row.try_get_unchecked(10)?,
        headers: row.try_get_unchecked(11)?,
        payload: row.try_get_unchecked(12)?,
        content_type: row.try_get_unchecked(13)?,
        // A zero date has no distance from another: outside the calendar, the row cannot be decoded.
        occurred_at: row.try_get_unchecked::<Option<i64>, _>(14)?.unwrap_or(i64::MIN),
        created_at: row.try_get_unchecked::<Option<i64>, _>(15)?.unwrap_or(i64::MIN),
        attempts: row.try_get_unchecked(16)?,
        replay: row.try_get_unchecked(17)?,
        // Once something happened to the event, the column says when to try again instead.
        deliver_at: not_before.filter(|_| !waits),
    })
}

fn shard(row: &MySqlRow, stored: &StoredRow, shards: u16) -> sqlx::Result<u16> {
    if let Some(shard) = row.try_get_unchecked::<Option<i32>, _>(20)? {
        return Ok(shard as u16);
    }
    let hash = match key_text(stored) {
        Some(key) => key_hash(&key),
        None => key_hash(&row.try_get_unchecked::<&str, _>(1)?.to_ascii_lowercase()),
    };
    Ok((hash % u32::from(shards.max(1))) as u16)
}

fn wait(row: &MySqlRow) -> sqlx::Result<Option<Wait>> {
    Ok(row.try_get_unchecked::<Option<&str>, _>(19)?.and_then(Wait::parse))
}

fn key(row: &StoredRow) -> Option<Key> {
    key_text(row).map(|key| Key::of(&key))
}

fn key_text(row: &StoredRow) -> Option<Cow<'_, str>> {
    let columns = KeyColumns {
        ordering_key: row.ordering_key.as_deref(),
        tenant: row.tenant.as_deref(),
        aggregate_type: &row.aggregate_type,
        aggregate_id: row.aggregate_id.as_deref(),
    };
    columns.text()
}
