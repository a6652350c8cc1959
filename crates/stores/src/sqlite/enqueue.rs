//! Writing events, on the caller's own connection.

use std::collections::HashMap;

use posthaste_core::{
    Error, ErrorKind, Event, Result,
    envelope::{headers_column, ordering_column},
};
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use super::list;
use crate::{Enqueued, Tables, failure::failed};

/// Events in one statement: 15 values each, and SQLite takes 32,766.
const CHUNK: usize = 500;

/// See [`Dialect::enqueue`](crate::Dialect::enqueue).
pub(super) async fn enqueue(
    connection: &mut SqliteConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let mut written = match events {
        [] => return Ok(Vec::new()),
        [event] => insert_one(connection, tables, event).await?,
        events => insert_many(connection, tables, events).await?,
    };
    let known = if written.len() < events.len() {
        existing(connection, tables, events).await?
    } else {
        HashMap::new()
    };
    let answer = |event: &Event| match written.remove(&event.id()) {
        Some(sequence) => Ok(Enqueued {
            id: event.id(),
            sequence,
            duplicate: false,
        }),
        None => known
            .get(&event.id())
            .ok_or_else(|| {
                let id = event.id();
                Error::new(
                    ErrorKind::Database,
                    format!("event {id} was neither written nor found"),
                )
            })?
            .repeated_by(event),
    };
    // An id that comes twice in one call is taken out the first time and compared the second.
    events.iter().map(answer).collect()
}

const INSERT: &str = "
insert into {events} (event_id, event_type, aggregate_type, aggregate_id, tenant, topic,
    routing_key, schema_id, schema_version, ordering_key, headers, payload, content_type,
    occurred_at, not_before)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (event_id) do nothing
returning event_id, sequence";

async fn insert_one(
    connection: &mut SqliteConnection,
    tables: &Tables,
    event: &Event,
) -> Result<HashMap<Uuid, i64>> {
    let row = sqlx::query(tables.sql(INSERT))
        .bind(event.id().hyphenated())
        .bind(event.event_type())
        .bind(event.aggregate_type())
        .bind(event.aggregate_id())
        .bind(event.tenant())
        .bind(event.topic())
        .bind(event.routing_key())
        .bind(event.schema_id())
        .bind(event.schema_version())
        .bind(ordering_column(event))
        .bind(headers_column(event))
        .bind(&event.payload()[..])
        .bind(event.content_type())
        .bind(event.occurred_at().as_microsecond())
        .bind(event.deliver_at().map(|at| at.as_microsecond()))
        .fetch_optional(connection)
        .await
        .map_err(failed("enqueueing an event"))?;
    row.iter().map(written).collect()
}

const INSERT_MANY: &str = "
insert into {events} (event_id, event_type, aggregate_type, aggregate_id, tenant, topic,
    routing_key, schema_id, schema_version, ordering_key, headers, payload, content_type,
    occurred_at, not_before) ";

const UNLESS_KNOWN: &str = " on conflict (event_id) do nothing returning event_id, sequence";

async fn insert_many(
    connection: &mut SqliteConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<HashMap<Uuid, i64>> {
    let mut sequences = HashMap::with_capacity(events.len());
    for chunk in events.chunks(CHUNK) {
        let mut insert = QueryBuilder::<Sqlite>::new(tables.fill(INSERT_MANY));
        insert.push_values(chunk, |mut values, event| {
            values
                .push_bind(event.id().hyphenated())
                .push_bind(event.event_type())
                .push_bind(event.aggregate_type())
                .push_bind(event.aggregate_id())
                .push_bind(event.tenant())
                .push_bind(event.topic())
                .push_bind(event.routing_key())
                .push_bind(event.schema_id())
                .push_bind(event.schema_version())
                .push_bind(ordering_column(event))
                .push_bind(headers_column(event))
                .push_bind(&event.payload()[..])
                .push_bind(event.content_type())
                .push_bind(event.occurred_at().as_microsecond())
                .push_bind(event.deliver_at().map(|at| at.as_microsecond()));
        });
        insert.push(UNLESS_KNOWN);
        // Every number of events is another statement: keeping them would push the application's
        // own out of its connection's cache.
        let rows = insert
            .build()
            .persistent(false)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed("enqueueing events"))?;
        for row in &rows {
            let (id, sequence) = written(row)?;
            sequences.insert(id, sequence);
        }
    }
    Ok(sequences)
}

fn written(row: &SqliteRow) -> Result<(Uuid, i64)> {
    Ok((
        id(row)?,
        row.try_get("sequence")
            .map_err(failed("enqueueing an event"))?,
    ))
}

fn id(row: &SqliteRow) -> Result<Uuid> {
    let text: String = row
        .try_get("event_id")
        .map_err(failed("enqueueing an event"))?;
    Uuid::try_parse(&text)
        .map_err(|_| Error::new(ErrorKind::Database, "column event_id is not a UUID"))
}

const EXISTING: &str = "
select event_id, sequence, tenant, event_type, aggregate_type, aggregate_id, ordering_key
from {events}
where event_id in (select value from json_each(?))";

/// An event that is there already, as far as a repeat must agree with it.
struct Existing {
    sequence: i64,
    tenant: Option<String>,
    event_type: String,
    aggregate_type: String,
    aggregate_id: Option<String>,
    ordering_key: Option<String>,
}

async fn existing(
    connection: &mut SqliteConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<HashMap<Uuid, Existing>> {
    let comparing = || failed("comparing with events that are there already");
    let ids = list(events.iter().map(|event| event.id().to_string()));
    let rows = sqlx::query(tables.sql(EXISTING))
        .bind(ids)
        .fetch_all(connection)
        .await
        .map_err(comparing())?;
    let existing = |row: &SqliteRow| {
        Ok::<_, sqlx::Error>(Existing {
            sequence: row.try_get("sequence")?,
            tenant: row.try_get("tenant")?,
            event_type: row.try_get("event_type")?,
            aggregate_type: row.try_get("aggregate_type")?,
            aggregate_id: row.try_get("aggregate_id")?,
            ordering_key: row.try_get("ordering_key")?,
        })
    };
    rows.iter()
        .map(|row| Ok((id(row)?, existing(row).map_err(comparing())?)))
        .collect()
}

impl Existing {
    fn repeated_by(&self, event: &Event) -> Result<Enqueued> {
        let differs = [
            ("tenant", self.tenant.as_deref() != event.tenant()),
            ("event type", self.event_type != event.event_type()),
            (
                "aggregate type",
                self.aggregate_type != event.aggregate_type(),
            ),
            (
                "aggregate id",
                self.aggregate_id.as_deref() != event.aggregate_id(),
            ),
            (
                "ordering key",
                self.ordering_key.as_deref() != ordering_column(event),
            ),
        ];
        match differs.into_iter().find(|(_, differs)| *differs) {
            None => Ok(Enqueued {
                id: event.id(),
                sequence: self.sequence,
                duplicate: true,
            }),
            Some((what, _)) => Err(Error::new(
                ErrorKind::Conflict,
                format!("event {} is there already with another {what}", event.id()),
            )),
        }
    }
}
