//! The insert into PostgreSQL as text and values, for any driver.
//!
//! Only types that every driver can bind: UUIDs, texts, integers and bytes. Times are microseconds
//! since 1970, because a driver's types of time are the application's choice. The parameters are
//! the fields of [`Row`] and [`Columns`], in their order.

use uuid::Uuid;

use crate::{
    Event, TableName,
    envelope::{headers_column, ordering_column},
};

/// Payload bytes in one statement: far below what PostgreSQL takes in one array.
pub const STATEMENT_BYTES: usize = 64 * 1024 * 1024;

macro_rules! columns {
    () => {
        "event_id, event_type, aggregate_type, aggregate_id, tenant, topic, routing_key, schema_id,
        schema_version, ordering_key, headers, payload, content_type, occurred_at, not_before"
    };
}

/// A number times an interval is computed with a fraction, which holds microseconds until the
/// year 2255 only; seconds and the rest of one, each exactly.
macro_rules! time {
    ($micros:literal) => {
        concat!(
            "timestamptz 'epoch' + (",
            $micros,
            " / 1000000) * interval '1 second' + (",
            $micros,
            " % 1000000) * interval '1 microsecond'"
        )
    };
}

/// Writes one [`Row`] and gives its sequence, or nothing when the id is there already.
pub const INSERT_ONE: &str = concat!(
    "
    insert into {events} (",
    columns!(),
    ")
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
        ",
    time!("$14::bigint"),
    ",
        ",
    time!("$15::bigint"),
    ")
    on conflict (event_id) do nothing
    returning sequence"
);

/// Writes [`Columns`] and gives id and sequence of each event that was not there already.
pub const INSERT: &str = concat!(
    "
    insert into {events} (",
    columns!(),
    ")
    select event_id, event_type, aggregate_type, aggregate_id, tenant, topic, routing_key, schema_id,
        schema_version, ordering_key, headers, payload, content_type,
        ",
    time!("occurred_at"),
    ",
        ",
    time!("not_before"),
    "
    from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
        $7::text[], $8::text[], $9::int[], $10::text[], $11::text[], $12::bytea[], $13::text[],
        $14::bigint[], $15::bigint[])
        with ordinality as t (",
    columns!(),
    ", place)
    order by place
    on conflict (event_id) do nothing
    returning event_id, sequence"
);

/// What is there already under these ids: the id, then the fields of [`Known`](super::Known).
pub const FIND_KNOWN: &str = "
    select event_id, sequence, event_type, aggregate_type, aggregate_id, tenant, ordering_key
    from {events}
    where event_id = any($1::uuid[])";

/// Takes the ids of [`FIND_KNOWN`], and fails, so that the transaction can only be rolled back: after an
/// error nobody knows which of a call's events are in it.
pub const FAIL: &str = "
    select event_id, sequence, event_type, aggregate_type, aggregate_id, tenant, ordering_key
    from {events}
    where event_id = any($1::uuid[])
      and cast('posthaste: after an enqueue that failed, roll back' as integer) = 0";

/// The statements of one outbox.
#[derive(Debug, Clone)]
pub struct Statements {
    /// [`INSERT_ONE`]
    pub insert_one: String,
    /// [`INSERT`]
    pub insert: String,
    /// [`FIND_KNOWN`]
    pub find_known: String,
    /// [`FAIL`]
    pub fail: String,
}

impl Statements {
    /// The statements of the outbox of this name.
    pub fn of(table: &TableName) -> Self {
        let fill = |template: &str| template.replace("{events}", &table.qualified());
        Self {
            insert_one: fill(INSERT_ONE),
            insert: fill(INSERT),
            find_known: fill(FIND_KNOWN),
            fail: fill(FAIL),
        }
    }
}

/// The values of one event.
#[derive(Debug)]
pub struct Row<'e> {
    /// `event_id`
    pub event_id: Uuid,
    /// `event_type`
    pub event_type: &'e str,
    /// `aggregate_type`
    pub aggregate_type: &'e str,
    /// `aggregate_id`
    pub aggregate_id: Option<&'e str>,
    /// `tenant`
    pub tenant: Option<&'e str>,
    /// `topic`
    pub topic: Option<&'e str>,
    /// `routing_key`
    pub routing_key: Option<&'e str>,
    /// `schema_id`
    pub schema_id: Option<&'e str>,
    /// `schema_version`
    pub schema_version: i32,
    /// `ordering_key`
    pub ordering_key: Option<&'e str>,
    /// `headers`
    pub headers: Option<String>,
    /// `payload`
    pub payload: &'e [u8],
    /// `content_type`
    pub content_type: &'e str,
    /// `occurred_at`
    pub occurred_at: i64,
    /// `not_before`
    pub not_before: Option<i64>,
}

impl<'e> Row<'e> {
    /// The values of this event.
    pub fn of(event: &'e Event) -> Self {
        Self {
            event_id: event.id(),
            event_type: event.event_type(),
            aggregate_type: event.aggregate_type(),
            aggregate_id: event.aggregate_id(),
            tenant: event.tenant(),
            topic: event.topic(),
            routing_key: event.routing_key(),
            schema_id: event.schema_id(),
            schema_version: event.schema_version(),
            ordering_key: ordering_column(event),
            headers: headers_column(event),
            payload: event.payload(),
            content_type: event.content_type(),
            occurred_at: event.occurred_at().as_microsecond(),
            not_before: event.deliver_at().map(jiff::Timestamp::as_microsecond),
        }
    }
}

/// The values of several events, an array a column.
#[derive(Debug, Default)]
pub struct Columns<'e> {
    /// `event_id`
    pub event_id: Vec<Uuid>,
    /// `event_type`
    pub event_type: Vec<&'e str>,
    /// `aggregate_type`
    pub aggregate_type: Vec<&'e str>,
    /// `aggregate_id`
    pub aggregate_id: Vec<Option<&'e str>>,
    /// `tenant`
    pub tenant: Vec<Option<&'e str>>,
    /// `topic`
    pub topic: Vec<Option<&'e str>>,
    /// `routing_key`
    pub routing_key: Vec<Option<&'e str>>,
    /// `schema_id`
    pub schema_id: Vec<Option<&'e str>>,
    /// `schema_version`
    pub schema_version: Vec<i32>,
    /// `ordering_key`
    pub ordering_key: Vec<Option<&'e str>>,
    /// `headers`
    pub headers: Vec<Option<String>>,
    /// `payload`
    pub payload: Vec<&'e [u8]>,
    /// `content_type`
    pub content_type: Vec<&'e str>,
    /// `occurred_at`
    pub occurred_at: Vec<i64>,
    /// `not_before`
    pub not_before: Vec<Option<i64>>,
}

impl<'e> Columns<'e> {
    /// The values of these events, in this order.
    pub fn of(events: &'e [Event]) -> Self {
        let mut columns = Self::default();
        for row in events.iter().map(Row::of) {
            columns.event_id.push(row.event_id);
            columns.event_type.push(row.event_type);
            columns.aggregate_type.push(row.aggregate_type);
            columns.aggregate_id.push(row.aggregate_id);
            columns.tenant.push(row.tenant);
            columns.topic.push(row.topic);
            columns.routing_key.push(row.routing_key);
            columns.schema_id.push(row.schema_id);
            columns.schema_version.push(row.schema_version);
            columns.ordering_key.push(row.ordering_key);
            columns.headers.push(row.headers);
            columns.payload.push(row.payload);
            columns.content_type.push(row.content_type);
            columns.occurred_at.push(row.occurred_at);
            columns.not_before.push(row.not_before);
        }
        columns
    }
}
