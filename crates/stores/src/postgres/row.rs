//! From a row to an event: which columns are read, in which order, and what they become.

use jiff::Timestamp;
use posthaste_core::{
    Key, Status,
    envelope::StoredRow,
    store::{EventRecord, Fetched, Identity, Wait},
};
use sqlx::{
    Decode, Encode, Postgres, Row, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgRow, PgTypeInfo, PgValueFormat, PgValueRef, types::Oid},
};
use uuid::Uuid;

use crate::key::KeyColumns;

/// The columns of `e` that make a [`Fetched`], in the order in which they are decoded.
macro_rules! columns {
    () => {
        columns!("e.payload")
    };
    ($payload:expr) => {
        columns!("e.headers", $payload)
    };
    ($headers:expr, $payload:expr) => {
        concat!(
            "e.sequence, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant, \
             e.topic, e.routing_key, e.schema_id, e.schema_version, e.ordering_key, ",
            $headers,
            ", ",
            $payload,
            ", e.content_type, e.occurred_at, e.created_at, e.attempts, e.replay, e.not_before, e.wait, \
             e.shard"
        )
    };
}

/// The same, without headers and payload where they have more bytes than `$limit`; then one column more
/// says how many.
macro_rules! light_columns {
    ($limit:literal) => {
        concat!(
            "e.sequence, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant, \
             e.topic, e.routing_key, e.schema_id, e.schema_version, e.ordering_key, \
             case when s.bytes <= ", $limit, " then e.headers end, \
             case when s.bytes <= ", $limit, " then e.payload else '' end, \
             e.content_type, e.occurred_at, e.created_at, e.attempts, e.replay, e.not_before, e.wait, \
             e.shard, case when s.bytes > ", $limit, " then s.bytes end"
        )
    };
}

/// As many nulls: a row that is no event.
macro_rules! no_columns {
    () => {
        "null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, \
         null, null, null, null, null, null"
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
            ", e.sent_at, e.dead_at, e.last_error, e.locked_by, octet_length(e.payload), \
             e.destination"
        )
    };
}

/// The same without the payload, for lists.
macro_rules! listed_columns {
    () => {
        record_columns!("''::bytea")
    };
}

/// How many [`record_columns`] there are.
pub(super) const RECORD_COLUMNS: usize = COLUMNS + 7;

/// The state of `e`.
macro_rules! status {
    () => {
        "case when e.sent_at is not null then 'sent' \
         when e.discarded_at is not null then 'discarded' \
         when e.dead_at is not null then 'dead' \
         when e.locked_until > clock_timestamp() then 'sending' \
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

/// A time as `timestamptz` holds it, in microseconds since 1970. The type goes by its number: by its
/// name the driver would ask the server for it on every new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Micros(pub(super) i64);

/// PostgreSQL counts from 2000-01-01.
const EPOCH: i64 = 946_684_800_000_000;

impl Micros {
    pub(super) fn of(time: Timestamp) -> Self {
        Self(time.as_microsecond())
    }

    /// The time; `None` for `infinity` and what lies outside the calendar.
    pub(super) fn timestamp(self) -> Option<Timestamp> {
        Timestamp::from_microsecond(self.0).ok()
    }
}

impl Type<Postgres> for Micros {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl Encode<'_, Postgres> for Micros {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode(self.0.saturating_sub(EPOCH), buffer)
    }

    fn size_hint(&self) -> usize {
        size_of::<i64>()
    }
}

impl<'r> Decode<'r, Postgres> for Micros {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return Err("a time came as text; only prepared statements are decoded".into());
        }
        let since_2000 = <i64 as Decode<Postgres>>::decode(value)?;
        // `infinity` and `-infinity` are the ends of the range and stay there.
        Ok(Self(match since_2000 {
            i64::MAX | i64::MIN => since_2000,
            micros => micros.saturating_add(EPOCH),
        }))
    }
}

/// The row as a relay gets it.
///
/// This and what it calls is inlined: a [`StoredRow`] has 400 bytes, and each call that takes or returns one
/// by value copies them.
#[inline]
pub(super) fn fetched(row: &PgRow) -> sqlx::Result<Fetched> {
    Ok(decoded(stored(row)?, shard(row)?, wait(row)?))
}

#[inline]
fn decoded(stored: StoredRow, shard: u16, wait: Option<Wait>) -> Fetched {
    Fetched {
        sequence: stored.sequence,
        identity: Identity { id: stored.event_id, replay: stored.replay.max(0) as u32 },
        shard,
        key: key(&stored),
        attempts: stored.attempts.max(0) as u32,
        wait,
        bytes: stored.payload.len() + stored.headers.as_ref().map_or(0, String::len),
        content: stored.decode().map(Box::new),
    }
}

/// A row of [`light_columns`].
#[derive(Debug)]
pub(super) enum Light {
    Whole(Fetched),
    /// Headers and payload, of so many bytes, were left out.
    Hollow {
        stored: Box<StoredRow>,
        shard: u16,
        wait: Option<Wait>,
        bytes: usize,
    },
}

impl Light {
    /// The row, if it holds an event.
    #[inline]
    pub(super) fn of(row: &PgRow) -> sqlx::Result<Option<Self>> {
        let Some(bytes) = row.try_get_unchecked::<Option<i64>, _>(COLUMNS)? else {
            return Ok(event(row)?.map(Self::Whole));
        };
        let (shard, wait) = (shard(row)?, wait(row)?);
        let stored = Box::new(StoredRow { payload: Vec::new(), ..stored(row)? });
        Ok(Some(Self::Hollow { stored, shard, wait, bytes: usize::try_from(bytes).unwrap_or(0) }))
    }

    pub(super) fn sequence(&self) -> i64 {
        match self {
            Self::Whole(row) => row.sequence,
            Self::Hollow { stored, .. } => stored.sequence,
        }
    }

    /// Bytes of headers and payload, whether they are here or not.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Whole(row) => row.bytes,
            Self::Hollow { bytes, .. } => *bytes,
        }
    }

    /// The row with what was left out, unless that is of another event under the same number.
    pub(super) fn filled(
        self,
        id: Option<Uuid>,
        headers: Option<String>,
        payload: Vec<u8>,
    ) -> Option<Fetched> {
        match self {
            Self::Whole(row) => Some(row),
            Self::Hollow { stored, .. } if stored.event_id != id => None,
            Self::Hollow { stored, shard, wait, .. } => {
                Some(decoded(StoredRow { headers, payload, ..*stored }, shard, wait))
            }
        }
    }
}

/// The row, if it holds an event: a `left join` gives one without when there is none, and a union can
/// have one for what is said once.
#[inline]
pub(super) fn event(row: &PgRow) -> sqlx::Result<Option<Fetched>> {
    match row.try_get_unchecked::<Option<i64>, _>(0)? {
        Some(_) => fetched(row).map(Some),
        None => Ok(None),
    }
}

/// All rows of an answer that hold an event.
pub(super) fn fetched_all(rows: &[PgRow]) -> sqlx::Result<Vec<Fetched>> {
    rows.iter().filter_map(|row| event(row).transpose()).collect()
}

/// The row as an operator gets it.
pub(super) fn record(row: &PgRow) -> sqlx::Result<EventRecord> {
    let stored = stored(row)?;
    let time = |index: usize| -> sqlx::Result<Option<Timestamp>> {
        Ok(row.try_get_unchecked::<Option<Micros>, _>(index)?.and_then(Micros::timestamp))
    };
    Ok(EventRecord {
        status: status_of(row.try_get_unchecked(COLUMNS)?)?,
        sequence: stored.sequence,
        shard: shard(row)?,
        event_id: stored.event_id,
        attempts: stored.attempts.max(0) as u32,
        not_before: time(18)?,
        wait: wait(row)?,
        sent_at: time(COLUMNS + 1)?,
        dead_at: time(COLUMNS + 2)?,
        last_error: row.try_get_unchecked(COLUMNS + 3)?,
        locked_by: row.try_get_unchecked(COLUMNS + 4)?,
        payload_bytes: row.try_get_unchecked::<i32, _>(COLUMNS + 5)?.max(0) as u64,
        destination: row.try_get_unchecked(COLUMNS + 6)?,
        content: stored.decode(),
    })
}

/// The state of this name, as [`status`] gives it.
pub(super) fn status_of(name: &str) -> sqlx::Result<Status> {
    name.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// The columns by their place: a lookup by name or a type check for each of 21 columns would cost
/// more than the decoding.
#[inline]
fn stored(row: &PgRow) -> sqlx::Result<StoredRow> {
    let waits = row.try_get_raw(19).map(|value| !sqlx::ValueRef::is_null(&value))?;
    let not_before: Option<Micros> = row.try_get_unchecked(18)?;
    Ok(StoredRow {
        sequence: row.try_get_unchecked(0)?,
        event_id: Some(row.try_get_unchecked(1)?),
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
        occurred_at: row.try_get_unchecked::<Micros, _>(14)?.0,
        created_at: row.try_get_unchecked::<Micros, _>(15)?.0,
        attempts: row.try_get_unchecked(16)?,
        replay: row.try_get_unchecked(17)?,
        // Once something happened to the event, the column says when to try again instead.
        deliver_at: not_before.filter(|_| !waits).map(|at| at.0),
    })
}

fn shard(row: &PgRow) -> sqlx::Result<u16> {
    Ok(row.try_get_unchecked::<i32, _>(20)? as u16)
}

fn wait(row: &PgRow) -> sqlx::Result<Option<Wait>> {
    Ok(row.try_get_unchecked::<Option<&str>, _>(19)?.and_then(Wait::parse))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hollow(id: Uuid) -> Light {
        let stored = Box::new(StoredRow {
            sequence: 7,
            event_id: Some(id),
            event_type: "T".to_owned(),
            aggregate_type: "A".to_owned(),
            aggregate_id: Some("1".to_owned()),
            tenant: None,
            topic: None,
            routing_key: None,
            schema_id: None,
            schema_version: 1,
            ordering_key: None,
            headers: None,
            payload: Vec::new(),
            content_type: "application/json".to_owned(),
            occurred_at: 0,
            deliver_at: None,
            created_at: 0,
            attempts: 0,
            replay: 0,
        });
        Light::Hollow { stored, shard: 0, wait: None, bytes: 2 }
    }

    #[test]
    fn a_row_is_not_filled_with_the_content_of_another_event_of_its_number() {
        let id = Uuid::now_v7();
        let filled = hollow(id).filled(Some(id), None, b"{}".to_vec()).unwrap();
        assert_eq!((filled.sequence, filled.identity.id, filled.bytes), (7, Some(id), 2));
        assert!(hollow(id).filled(Some(Uuid::now_v7()), None, b"{}".to_vec()).is_none());
    }
}
