//! diesel-async. Events are written on the connection that `transaction` hands to its closure.

use diesel::{
    QueryableByName,
    result::{DatabaseErrorKind, Error as DieselError},
    sql_query,
    sql_types::{Array, BigInt, Binary, Integer, Nullable, Text, Uuid as UuidType},
};
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, TransactionManager};
use posthaste_core::{
    Error, ErrorKind, Event, Result,
    enqueue::{
        Known,
        postgres::{Columns, Statements},
    },
};
use uuid::Uuid;

use super::{FINDING, PostgresTransaction, WRITING};

type Texts = Array<Text>;

type OptionalTexts = Array<Nullable<Text>>;

#[derive(QueryableByName)]
struct WrittenRow {
    #[diesel(sql_type = UuidType)]
    event_id: Uuid,
    #[diesel(sql_type = BigInt)]
    sequence: i64,
}

#[derive(QueryableByName)]
struct KnownRow {
    #[diesel(sql_type = UuidType)]
    event_id: Uuid,
    #[diesel(sql_type = BigInt)]
    sequence: i64,
    #[diesel(sql_type = Text)]
    event_type: String,
    #[diesel(sql_type = Text)]
    aggregate_type: String,
    #[diesel(sql_type = Nullable<Text>)]
    aggregate_id: Option<String>,
    #[diesel(sql_type = Nullable<Text>)]
    tenant: Option<String>,
    #[diesel(sql_type = Nullable<Text>)]
    ordering_key: Option<String>,
}

impl PostgresTransaction for AsyncPgConnection {
    async fn insert(
        &mut self,
        statements: &Statements,
        events: &[Event],
    ) -> Result<Vec<(Uuid, i64)>> {
        let columns = Columns::of(events);
        refuse_outside_of_a_transaction(self)?;
        let rows: Vec<WrittenRow> = sql_query(&statements.insert)
            .bind::<Array<UuidType>, _>(&columns.event_id)
            .bind::<Texts, _>(&columns.event_type)
            .bind::<Texts, _>(&columns.aggregate_type)
            .bind::<OptionalTexts, _>(&columns.aggregate_id)
            .bind::<OptionalTexts, _>(&columns.tenant)
            .bind::<OptionalTexts, _>(&columns.topic)
            .bind::<OptionalTexts, _>(&columns.routing_key)
            .bind::<OptionalTexts, _>(&columns.schema_id)
            .bind::<Array<Integer>, _>(&columns.schema_version)
            .bind::<OptionalTexts, _>(&columns.ordering_key)
            .bind::<OptionalTexts, _>(&columns.headers)
            .bind::<Array<Binary>, _>(&columns.payload)
            .bind::<Texts, _>(&columns.content_type)
            .bind::<Array<BigInt>, _>(&columns.occurred_at)
            .bind::<Array<Nullable<BigInt>>, _>(&columns.not_before)
            .load(self)
            .await
            .map_err(failed(WRITING))?;
        Ok(rows.into_iter().map(|row| (row.event_id, row.sequence)).collect())
    }

    async fn find_known(
        &mut self,
        statements: &Statements,
        ids: &[Uuid],
    ) -> Result<Vec<(Uuid, Known)>> {
        let rows: Vec<KnownRow> = sql_query(&statements.find_known)
            .bind::<Array<UuidType>, _>(ids)
            .load(self)
            .await
            .map_err(failed(FINDING))?;
        let known = |row: KnownRow| {
            let known = Known {
                sequence: row.sequence,
                event_type: row.event_type,
                aggregate_type: row.aggregate_type,
                aggregate_id: row.aggregate_id,
                tenant: row.tenant,
                ordering_key: row.ordering_key,
            };
            (row.event_id, known)
        };
        Ok(rows.into_iter().map(known).collect())
    }
}

fn refuse_outside_of_a_transaction(connection: &mut AsyncPgConnection) -> Result<()> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(connection);
    match status.transaction_depth() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Error::new(
            ErrorKind::State,
            "no transaction is open on this connection; begin one with `transaction`, so that the \
             event commits with the rows it tells about",
        )),
        Err(error) => Err(failed(WRITING)(error)),
    }
}

/// diesel keeps no SQLSTATE: a deadlock, for example, cannot be told from a refusal for good.
fn failed(doing: &'static str) -> impl FnOnce(DieselError) -> Error {
    move |error| {
        let kind = match &error {
            DieselError::DatabaseError(
                DatabaseErrorKind::ClosedConnection
                | DatabaseErrorKind::UnableToSendCommand
                | DatabaseErrorKind::SerializationFailure,
                _,
            )
            | DieselError::BrokenTransactionManager => ErrorKind::Unavailable,
            _ => ErrorKind::Database,
        };
        super::failed(doing, kind, None, error)
    }
}
