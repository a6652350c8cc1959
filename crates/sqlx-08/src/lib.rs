//! Events of the Posthaste outbox through sqlx 0.8, on PostgreSQL.
//!
//! `posthaste` itself writes through sqlx 0.9. An application that is still on 0.8 wraps its
//! transaction, and everything else is as with any other driver:
//!
//! ```no_run
//! use posthaste::{Event, PostgresOutbox};
//! use posthaste_sqlx_08::InTransaction;
//!
//! # async fn example(pool: sqlx_postgres::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let outbox = PostgresOutbox::new("outbox_event".parse()?);
//!
//! let mut tx = pool.begin().await?;
//! let event = Event::builder("OrderPlaced").aggregate("Order", 42).raw_json("{}").build()?;
//! outbox.enqueue(&mut InTransaction(&mut tx), event).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! PostgreSQL only: two releases of sqlx agree on everything but the SQLite library, of which a
//! program can have one.

use std::borrow::Cow;

use posthaste::{
    Error, ErrorKind, Event, PostgresTransaction, Result,
    drivers::{FINDING, WRITING},
    enqueue::{
        Known,
        postgres::{Columns, Statements},
    },
    uuid::Uuid,
};
use sqlx_core::{
    Error as SqlxError, connection::Connection, error::DatabaseError, query::query, row::Row,
    transaction::Transaction,
};
use sqlx_postgres::{PgRow, Postgres};

/// A transaction of sqlx 0.8, to enqueue in.
#[derive(Debug)]
pub struct InTransaction<'a, 'c>(pub &'a mut Transaction<'c, Postgres>);

impl PostgresTransaction for InTransaction<'_, '_> {
    async fn insert(
        &mut self,
        statements: &Statements,
        events: &[Event],
    ) -> Result<Vec<(Uuid, i64)>> {
        if !self.0.is_in_transaction() {
            // The driver rolls back whole what it was setting a savepoint in: the event would be there by itself.
            return Err(Error::new(
                ErrorKind::State,
                "the transaction has ended before, with a savepoint that was given up half-way; begin \
                 another one",
            ));
        }
        let columns = Columns::of(events);
        // Not kept under a name: behind a transaction pooler the name would be somebody else's.
        query::<Postgres>(&statements.insert)
            .persistent(false)
            .bind(&columns.event_id)
            .bind(&columns.event_type)
            .bind(&columns.aggregate_type)
            .bind(&columns.aggregate_id)
            .bind(&columns.tenant)
            .bind(&columns.topic)
            .bind(&columns.routing_key)
            .bind(&columns.schema_id)
            .bind(&columns.schema_version)
            .bind(&columns.ordering_key)
            .bind(&columns.headers)
            .bind(&columns.payload)
            .bind(&columns.content_type)
            .bind(&columns.occurred_at)
            .bind(&columns.not_before)
            .try_map(|row: PgRow| Ok((row.try_get(0)?, row.try_get(1)?)))
            .fetch_all(&mut **self.0)
            .await
            .map_err(failed(WRITING))
    }

    async fn find_known(
        &mut self,
        statements: &Statements,
        ids: &[Uuid],
    ) -> Result<Vec<(Uuid, Known)>> {
        query::<Postgres>(&statements.find_known)
            .persistent(false)
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
            .fetch_all(&mut **self.0)
            .await
            .map_err(failed(FINDING))
    }
}

fn failed(doing: &'static str) -> impl FnOnce(SqlxError) -> Error {
    move |error| {
        let code = error.as_database_error().and_then(DatabaseError::code);
        let code = code.map(Cow::into_owned);
        let kind = match (&code, &error) {
            (Some(code), _) => ErrorKind::of_sqlstate(code),
            (None, SqlxError::Io(_) | SqlxError::Tls(_) | SqlxError::Protocol(_)) => {
                ErrorKind::Unavailable
            }
            (None, _) => ErrorKind::Database,
        };
        posthaste::drivers::failed(doing, kind, code.as_deref(), error)
    }
}
