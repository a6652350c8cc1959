//! Writing events in the caller's own transaction.

use jiff::Timestamp;
use posthaste_core::{
    Event, Result,
    enqueue::{Found, Known, Written, answers, duplicate, missing, refuse_two_of_one_id},
    envelope::{headers_column, ordering_column},
};
use sqlx::{Executor, QueryBuilder, Row, Sqlite, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    list,
    transaction::{failed_in, still_open},
};
use crate::{Enqueued, Tables, failure::failed};

/// Events in one statement: 15 values each, and SQLite takes 32,766 in all.
const STATEMENT_EVENTS: usize = 1_000;

const WRITING: &str = "writing events";

/// See [`Dialect::enqueue`](crate::Dialect::enqueue).
pub(super) async fn enqueue(
    connection: &mut SqliteConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    refuse_two_of_one_id(events)?;
    if events.is_empty() {
        return Ok(Vec::new());
    }
    still_open(connection).await?;
    let enqueued = match events {
        [event] => enqueue_one(connection, tables, event).await.map(|enqueued| vec![enqueued]),
        _ => enqueue_together(connection, tables, events).await,
    };
    match enqueued {
        Ok(enqueued) => Ok(enqueued),
        Err(failure) => Err(failed_in(connection, failure).await),
    }
}

async fn enqueue_together(
    connection: &mut SqliteConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    connection.execute("savepoint posthaste_enqueue").await.map_err(failed(WRITING))?;
    let enqueued = enqueue_pieces(connection, tables, events).await;
    if enqueued.is_err() {
        // The caller may go on with its transaction, and commit it. Fails when SQLite has ended the whole
        // transaction.
        let _ = connection.execute("rollback to posthaste_enqueue").await;
    }
    let released = connection.execute("release posthaste_enqueue").await;
    if enqueued.is_ok() {
        released.map_err(failed(WRITING))?;
    }
    enqueued
}

async fn enqueue_pieces(
    connection: &mut SqliteConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let mut enqueued = Vec::with_capacity(events.len());
    for chunk in events.chunks(STATEMENT_EVENTS) {
        enqueued.extend(enqueue_many(connection, tables, chunk).await?);
    }
    Ok(enqueued)
}

const INSERT_ONE: &str = "
    insert into {events} (event_id, event_type, aggregate_type, aggregate_id, tenant, topic,
        routing_key, schema_id, schema_version, ordering_key, headers, payload, content_type,
        occurred_at, not_before)
    values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
    on conflict (event_id) do nothing
    returning sequence";

async fn enqueue_one(
    connection: &mut SqliteConnection,
    tables: &Tables,
    event: &Event,
) -> Result<Enqueued> {
    let written: Option<i64> = sqlx::query_scalar(tables.sql(INSERT_ONE))
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
        .bind(event.deliver_at().map(Timestamp::as_microsecond))
        .fetch_optional(&mut *connection)
        .await
        .map_err(failed("writing an event"))?;
    if let Some(sequence) = written {
        return Ok(Enqueued { id: event.id(), sequence, duplicate: false });
    }
    let known = find_known(connection, tables, &[event.id()]).await?;
    duplicate(event, known.get(&event.id()))
}

const INSERT_MANY: &str = "
    insert into {events} (event_id, event_type, aggregate_type, aggregate_id, tenant, topic,
        routing_key, schema_id, schema_version, ordering_key, headers, payload, content_type,
        occurred_at, not_before) ";

const UNLESS_KNOWN: &str = "
    on conflict (event_id) do nothing
    returning event_id, sequence";

async fn enqueue_many(
    connection: &mut SqliteConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let mut insert = QueryBuilder::<Sqlite>::new(tables.fill(INSERT_MANY));
    insert.push_values(events, |mut values, event| {
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
            .push_bind(event.deliver_at().map(Timestamp::as_microsecond));
    });
    insert.push(UNLESS_KNOWN);
    // Every number of events is a statement of its own: kept, they would push the application's
    // out of its connection's cache.
    let rows = insert
        .build()
        .persistent(false)
        .try_map(|row: SqliteRow| Ok((id(&row)?, row.try_get(1)?)))
        .fetch_all(&mut *connection)
        .await
        .map_err(failed(WRITING))?;
    let written: Written = rows.into_iter().collect();
    let known = find_known(connection, tables, &missing(events, &written)).await?;
    answers(events, written, &known)
}

const FIND_KNOWN: &str = "
    select event_id, sequence, event_type, aggregate_type, aggregate_id, tenant, ordering_key
    from {events}
    where event_id in (select value from json_each(?1))";

async fn find_known(
    connection: &mut SqliteConnection,
    tables: &Tables,
    ids: &[Uuid],
) -> Result<Found> {
    if ids.is_empty() {
        return Ok(Found::new());
    }
    sqlx::query(tables.sql(FIND_KNOWN))
        .bind(list(ids.iter().map(Uuid::to_string)))
        .try_map(|row: SqliteRow| {
            let known = Known {
                sequence: row.try_get(1)?,
                event_type: row.try_get(2)?,
                aggregate_type: row.try_get(3)?,
                aggregate_id: row.try_get(4)?,
                tenant: row.try_get(5)?,
                ordering_key: row.try_get(6)?,
            };
            Ok((id(&row)?, known))
        })
        .fetch_all(connection)
        .await
        .map(|known| known.into_iter().collect())
        .map_err(failed("looking for an event that was written before"))
}

fn id(row: &SqliteRow) -> sqlx::Result<Uuid> {
    Uuid::try_parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
