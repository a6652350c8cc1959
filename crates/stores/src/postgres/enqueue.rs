//! Writing events in the caller's own transaction.

use posthaste_core::{
    Event, Result,
    enqueue::{
        Found, Known, Written, answers, duplicate, missing, pieces,
        postgres::{Columns, FAIL, FIND_KNOWN, INSERT, INSERT_ONE, Row, STATEMENT_BYTES},
        refuse_two_of_one_id,
    },
};
use sqlx::{PgConnection, Row as _, postgres::PgRow};
use uuid::Uuid;

use crate::{Enqueued, Tables, failure::failed};

/// See [`Dialect::enqueue`](crate::Dialect::enqueue).
pub(super) async fn enqueue(
    connection: &mut PgConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    refuse_two_of_one_id(events)?;
    let enqueued = match events {
        [] => Ok(Vec::new()),
        [event] => enqueue_one(connection, tables, event).await.map(|enqueued| vec![enqueued]),
        _ => enqueue_pieces(connection, tables, events).await,
    };
    if enqueued.is_err() {
        // The server knows of no conflict: it would commit the events that were written, and the
        // application's rows without their event.
        let nothing: Vec<Uuid> = Vec::new();
        let failing = sqlx::query(tables.sql(FAIL)).persistent(false).bind(nothing);
        let _ = failing.execute(connection).await;
    }
    enqueued
}

async fn enqueue_pieces(
    connection: &mut PgConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let mut enqueued = Vec::with_capacity(events.len());
    for piece in pieces(events, usize::MAX, STATEMENT_BYTES) {
        enqueued.extend(enqueue_many(connection, tables, piece).await?);
    }
    Ok(enqueued)
}

async fn enqueue_one(
    connection: &mut PgConnection,
    tables: &Tables,
    event: &Event,
) -> Result<Enqueued> {
    let row = Row::of(event);
    let written: Option<i64> = sqlx::query_scalar(tables.sql(INSERT_ONE))
        .persistent(tables.named_statements())
        .bind(row.event_id)
        .bind(row.event_type)
        .bind(row.aggregate_type)
        .bind(row.aggregate_id)
        .bind(row.tenant)
        .bind(row.topic)
        .bind(row.routing_key)
        .bind(row.schema_id)
        .bind(row.schema_version)
        .bind(row.ordering_key)
        .bind(row.headers)
        .bind(row.payload)
        .bind(row.content_type)
        .bind(row.occurred_at)
        .bind(row.not_before)
        .fetch_optional(&mut *connection)
        .await
        .map_err(failed("writing an event"))?;
    if let Some(sequence) = written {
        return Ok(Enqueued { id: event.id(), sequence, duplicate: false });
    }
    let known = find_known(connection, tables, vec![event.id()]).await?;
    duplicate(event, known.get(&event.id()))
}

async fn enqueue_many(
    connection: &mut PgConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let columns = Columns::of(events);
    let written: Vec<(Uuid, i64)> = sqlx::query_as(tables.sql(INSERT))
        .persistent(tables.named_statements())
        .bind(columns.event_id)
        .bind(columns.event_type)
        .bind(columns.aggregate_type)
        .bind(columns.aggregate_id)
        .bind(columns.tenant)
        .bind(columns.topic)
        .bind(columns.routing_key)
        .bind(columns.schema_id)
        .bind(columns.schema_version)
        .bind(columns.ordering_key)
        .bind(columns.headers)
        .bind(columns.payload)
        .bind(columns.content_type)
        .bind(columns.occurred_at)
        .bind(columns.not_before)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed("writing events"))?;
    let written: Written = written.into_iter().collect();
    let known = find_known(connection, tables, missing(events, &written)).await?;
    answers(events, written, &known)
}

async fn find_known(
    connection: &mut PgConnection,
    tables: &Tables,
    ids: Vec<Uuid>,
) -> Result<Found> {
    if ids.is_empty() {
        return Ok(Found::new());
    }
    sqlx::query(tables.sql(FIND_KNOWN))
        .persistent(tables.named_statements())
        .bind(ids)
        .try_map(|row: PgRow| {
            let known = Known {
                sequence: row.try_get(1)?,
                event_type: row.try_get(2)?,
                aggregate_type: row.try_get(3)?,
                aggregate_id: row.try_get(4)?,
                tenant: row.try_get(5)?,
                ordering_key: row.try_get(6)?,
            };
            Ok((row.try_get(0)?, known))
        })
        .fetch_all(connection)
        .await
        .map(|known| known.into_iter().collect())
        .map_err(failed("looking for an event that was written before"))
}
