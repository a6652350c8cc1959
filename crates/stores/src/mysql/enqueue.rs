//! Writing events in the caller's own transaction.
//!
//! A plain insert; only when it meets an id that is there already does the way grow longer. No
//! read comes first: under `repeatable read` it would not see what was committed since the
//! transaction began, and a locking read of an id that is not there would lock the gap in which
//! all others insert. `insert ignore` would also ignore a value that does not fit.

use std::collections::{HashMap, HashSet};

use posthaste_core::{
    Error, ErrorKind, Event, Result,
    enqueue::{Known, duplicate, pieces, refuse_two_of_one_id},
    envelope::{headers_column, ordering_column},
};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row, mysql::MySqlArguments, mysql::MySqlRow};
use uuid::Uuid;

use super::{
    listing, number, padded,
    row::key_hash,
    transaction::{still_open, undo},
};
use crate::{Enqueued, Tables, failure::failed};

/// Most events in one statement: 16 values each, of the 65,535 that a statement may have.
const STATEMENT_EVENTS: usize = 1000;

/// Bytes of events in one statement: a server takes 16 MB in one packet unless told otherwise.
const STATEMENT_BYTES: usize = 4 * 1024 * 1024;

/// A unique key met a value that is there already.
pub(super) const DUPLICATE_ENTRY: u16 = 1062;

/// See [`Dialect::enqueue`](crate::Dialect::enqueue).
pub(super) async fn enqueue(
    connection: &mut MySqlConnection,
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
        _ => enqueue_pieces(connection, tables, events).await,
    };
    match enqueued {
        Ok(enqueued) => Ok(enqueued),
        // The caller may go on with its transaction, if there is one still, and commit it.
        Err(failure) => Err(undo(connection, failure).await),
    }
}

async fn enqueue_pieces(
    connection: &mut MySqlConnection,
    tables: &Tables,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let mut enqueued = HashMap::with_capacity(events.len());
    for piece in pieces(events, STATEMENT_EVENTS, STATEMENT_BYTES) {
        enqueue_many(connection, tables, piece, &mut enqueued).await?;
    }
    answers(events, &mut enqueued)
}

const INSERT: &str = "
    insert into {events} (event_id, event_type, aggregate_type, aggregate_id, tenant, topic,
        routing_key, schema_id, schema_version, ordering_key, key_hash, headers, payload,
        content_type, occurred_at, not_before)
    values ";

/// Times as microseconds since 1970: the driver's own types of time are features that we leave
/// to the application.
const VALUES: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
        timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00'),
        timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00'))";

type Query<'q> = sqlx::query::Query<'q, MySql, MySqlArguments>;

fn bind_event<'q>(query: Query<'q>, event: &'q Event) -> Query<'q> {
    let id = event.id().hyphenated().to_string();
    let hash = key_hash(event.ordering_key().as_deref().unwrap_or(&id));
    query
        .bind(id)
        .bind(event.event_type())
        .bind(event.aggregate_type())
        .bind(event.aggregate_id())
        .bind(event.tenant())
        .bind(event.topic())
        .bind(event.routing_key())
        .bind(event.schema_id())
        .bind(event.schema_version())
        .bind(ordering_column(event))
        .bind(hash)
        .bind(headers_column(event))
        .bind(&event.payload()[..])
        .bind(event.content_type())
        .bind(event.occurred_at().as_microsecond())
        .bind(event.deliver_at().map(jiff::Timestamp::as_microsecond))
}

async fn enqueue_one(
    connection: &mut MySqlConnection,
    tables: &Tables,
    event: &Event,
) -> Result<Enqueued> {
    let sql = AssertSqlSafe(format!("{}{VALUES}", tables.sql(INSERT).0));
    let id = event.id();
    match bind_event(sqlx::query(sql), event).execute(&mut *connection).await {
        Ok(written) => {
            Ok(Enqueued { id, sequence: written.last_insert_id() as i64, duplicate: false })
        }
        // Only the statement was undone, not the caller's transaction; and the refused insert has
        // waited for whoever was writing the same id.
        Err(error) if number(&error) == DUPLICATE_ENTRY => {
            let known = find_known(connection, tables, &[id]).await?;
            if let Some(known) = known.get(&id) {
                return duplicate(event, Some(known));
            }
            // Committed since this transaction began: what is compared cannot be seen, only its number.
            match find_latest(connection, tables, id).await? {
                Some(sequence) => Ok(Enqueued { id, sequence, duplicate: true }),
                None => duplicate(event, None),
            }
        }
        Err(error) => Err(failed("writing an event")(error)),
    }
}

/// Writes what is not there yet in one statement. A duplicate undoes it whole: then those that
/// this transaction can see and that are there for good are left out, and if there are none, the events
/// go one by one.
async fn enqueue_many(
    connection: &mut MySqlConnection,
    tables: &Tables,
    events: &[Event],
    enqueued: &mut HashMap<Uuid, Enqueued>,
) -> Result<()> {
    let mut met: HashSet<Uuid> = enqueued.keys().copied().collect();
    let mut left: Vec<&Event> = events.iter().filter(|event| met.insert(event.id())).collect();
    while !left.is_empty() {
        if insert_many(connection, tables, &left).await? {
            let ids: Vec<Uuid> = left.iter().map(|event| event.id()).collect();
            let written = find_known(connection, tables, &ids).await?;
            for event in left {
                let answer = duplicate(event, written.get(&event.id()))?;
                enqueued.insert(event.id(), Enqueued { duplicate: false, ..answer });
            }
            return Ok(());
        }
        let ids: Vec<Uuid> = left.iter().map(|event| event.id()).collect();
        let mut known = find_known(connection, tables, &ids).await?;
        for id in ids {
            // Under `read uncommitted` it can be another transaction's, which has not ended: this waits
            // for it, and finds nothing when it was rolled back.
            if known.contains_key(&id) && find_latest(connection, tables, id).await?.is_none() {
                known.remove(&id);
            }
        }
        if known.is_empty() {
            break;
        }
        for event in left.extract_if(.., |event| known.contains_key(&event.id())) {
            enqueued.insert(event.id(), duplicate(event, known.get(&event.id()))?);
        }
    }
    for event in left {
        enqueued.insert(event.id(), enqueue_one(connection, tables, event).await?);
    }
    Ok(())
}

/// Whether the events were written; `false` when one of the ids was there already.
async fn insert_many(
    connection: &mut MySqlConnection,
    tables: &Tables,
    events: &[&Event],
) -> Result<bool> {
    let values = vec![VALUES; events.len()].join(", ");
    let sql = AssertSqlSafe(format!("{}{values}", tables.sql(INSERT).0));
    // Not kept prepared: there are too many lengths.
    let mut query = sqlx::query(sql).persistent(false);
    for event in events {
        query = bind_event(query, event);
    }
    match query.execute(connection).await {
        Ok(_) => Ok(true),
        Err(error) if number(&error) == DUPLICATE_ENTRY => Ok(false),
        Err(error) => Err(failed("writing events")(error)),
    }
}

/// What this transaction sees, its own writes included. A list is never read with locks: on a
/// small table the server would walk through the index and wait for everybody's open inserts.
const FIND_SEEN: &str = "
    select event_id, sequence, event_type, aggregate_type, aggregate_id, tenant, ordering_key
    from {events}
    where event_id in ({list})";

/// What is committed by now, whenever this transaction began. From the index of ids alone: a lock on the
/// row itself would stand until the caller's transaction ends, and the event's settle would wait for it,
/// with its leases.
const FIND_LATEST: &str = "
    select sequence from {events} force index ({bare}_event_idx)
    where event_id = ?
    lock in share mode";

async fn find_latest(
    connection: &mut MySqlConnection,
    tables: &Tables,
    id: Uuid,
) -> Result<Option<i64>> {
    sqlx::query_scalar(tables.sql(FIND_LATEST))
        .bind(id.hyphenated().to_string())
        .fetch_optional(connection)
        .await
        .map_err(failed("looking for an event that was written before"))
}

async fn find_known(
    connection: &mut MySqlConnection,
    tables: &Tables,
    ids: &[Uuid],
) -> Result<HashMap<Uuid, Known>> {
    let mut query = sqlx::query(listing(tables, FIND_SEEN, ids.len()));
    for id in padded(ids) {
        query = query.bind(id.hyphenated().to_string());
    }
    query
        .try_map(|row: MySqlRow| {
            let known = Known {
                sequence: row.try_get(1)?,
                event_type: row.try_get(2)?,
                aggregate_type: row.try_get(3)?,
                aggregate_id: row.try_get(4)?,
                tenant: row.try_get(5)?,
                ordering_key: row.try_get(6)?,
            };
            let id = Uuid::try_parse(row.try_get(0)?);
            Ok((id.map_err(|error| sqlx::Error::Decode(Box::new(error)))?, known))
        })
        .fetch_all(connection)
        .await
        .map(|known| known.into_iter().collect())
        .map_err(failed("looking for an event that was written before"))
}

/// One answer an event, in the order of the call; an id that comes twice was written by its first.
fn answers(events: &[Event], enqueued: &mut HashMap<Uuid, Enqueued>) -> Result<Vec<Enqueued>> {
    events
        .iter()
        .map(|event| {
            let answer = enqueued.get_mut(&event.id()).ok_or_else(|| {
                Error::new(ErrorKind::Database, format!("event {} was not written", event.id()))
            })?;
            let first = *answer;
            answer.duplicate = true;
            Ok(first)
        })
        .collect()
}
