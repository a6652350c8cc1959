//! sea-orm 2, on PostgreSQL. It rests on the same sqlx as we do but does not hand it out, so events
//! go through its own statements.

use std::borrow::Cow;

use posthaste_core::{
    Error, ErrorKind, Event, Result,
    enqueue::{
        Known,
        postgres::{Row, Statements},
    },
};
use sea_orm::{
    ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr, Statement,
    Value, sea_query::ArrayType, sqlx::error::DatabaseError,
};
use uuid::Uuid;

use super::{FINDING, PostgresTransaction, WRITING};

impl PostgresTransaction for DatabaseTransaction {
    async fn insert(
        &mut self,
        statements: &Statements,
        events: &[Event],
    ) -> Result<Vec<(Uuid, i64)>> {
        refuse_another_database(self)?;
        let mut written = Vec::with_capacity(events.len());
        // One by one: an array of sea-orm's holds no nulls.
        for event in events {
            let statement = statement(&statements.insert_one, values(Row::of(event)));
            let row = self.query_one_raw(statement).await.map_err(failed(WRITING))?;
            if let Some(row) = row {
                let sequence = row.try_get_by_index(0).map_err(failed(WRITING))?;
                written.push((event.id(), sequence));
            }
        }
        Ok(written)
    }

    async fn find_known(
        &mut self,
        statements: &Statements,
        ids: &[Uuid],
    ) -> Result<Vec<(Uuid, Known)>> {
        let ids = ids.iter().copied().map(Value::from).collect();
        let ids = Value::Array(ArrayType::Uuid, Some(Box::new(ids)));
        let statement = statement(&statements.find_known, [ids]);
        let rows = self.query_all_raw(statement).await.map_err(failed(FINDING))?;
        rows.into_iter().map(known).collect::<Result<_, _>>().map_err(failed(FINDING))
    }
}

fn statement(sql: &str, values: impl IntoIterator<Item = Value>) -> Statement {
    Statement::from_sql_and_values(DbBackend::Postgres, sql, values)
}

fn values(row: Row<'_>) -> [Value; 15] {
    let optional = |text: Option<&str>| Value::from(text.map(str::to_owned));
    [
        row.event_id.into(),
        row.event_type.into(),
        row.aggregate_type.into(),
        optional(row.aggregate_id),
        optional(row.tenant),
        optional(row.topic),
        optional(row.routing_key),
        optional(row.schema_id),
        row.schema_version.into(),
        optional(row.ordering_key),
        row.headers.into(),
        row.payload.into(),
        row.content_type.into(),
        row.occurred_at.into(),
        row.not_before.into(),
    ]
}

fn known(row: QueryResult) -> Result<(Uuid, Known), DbErr> {
    let known = Known {
        sequence: row.try_get_by_index(1)?,
        event_type: row.try_get_by_index(2)?,
        aggregate_type: row.try_get_by_index(3)?,
        aggregate_id: row.try_get_by_index(4)?,
        tenant: row.try_get_by_index(5)?,
        ordering_key: row.try_get_by_index(6)?,
    };
    Ok((row.try_get_by_index(0)?, known))
}

fn refuse_another_database(transaction: &DatabaseTransaction) -> Result<()> {
    match transaction.get_database_backend() {
        DbBackend::Postgres => Ok(()),
        other => Err(Error::invalid(format!(
            "this transaction is on {other:?}; through sea-orm events go to PostgreSQL only"
        ))),
    }
}

fn failed(doing: &'static str) -> impl FnOnce(DbErr) -> Error {
    move |error| {
        let (DbErr::Conn(RuntimeErr::SqlxError(cause))
        | DbErr::Exec(RuntimeErr::SqlxError(cause))
        | DbErr::Query(RuntimeErr::SqlxError(cause))) = &error
        else {
            return super::failed(doing, ErrorKind::Database, None, error);
        };
        let code = cause.as_database_error().and_then(DatabaseError::code);
        let code = code.map(Cow::into_owned);
        let kind = code.as_deref().map_or(ErrorKind::Unavailable, ErrorKind::of_sqlstate);
        super::failed(doing, kind, code.as_deref(), error)
    }
}
