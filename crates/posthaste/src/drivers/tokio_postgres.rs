//! tokio-postgres. The types of the parameters go along, so that nothing is prepared under a name:
//! one round trip, and a transaction pooler does not mind.

use std::io;

use posthaste_core::{
    Error, ErrorKind, Event, Result,
    enqueue::{
        Known,
        postgres::{Columns, Statements},
    },
};
use tokio_postgres::{Row, Transaction, types::Type};
use uuid::Uuid;

use super::{FINDING, PostgresTransaction, WRITING};

impl PostgresTransaction for Transaction<'_> {
    async fn insert(
        &mut self,
        statements: &Statements,
        events: &[Event],
    ) -> Result<Vec<(Uuid, i64)>> {
        let columns = Columns::of(events);
        let rows = self
            .query_typed(
                &statements.insert,
                &[
                    (&columns.event_id, Type::UUID_ARRAY),
                    (&columns.event_type, Type::TEXT_ARRAY),
                    (&columns.aggregate_type, Type::TEXT_ARRAY),
                    (&columns.aggregate_id, Type::TEXT_ARRAY),
                    (&columns.tenant, Type::TEXT_ARRAY),
                    (&columns.topic, Type::TEXT_ARRAY),
                    (&columns.routing_key, Type::TEXT_ARRAY),
                    (&columns.schema_id, Type::TEXT_ARRAY),
                    (&columns.schema_version, Type::INT4_ARRAY),
                    (&columns.ordering_key, Type::TEXT_ARRAY),
                    (&columns.headers, Type::TEXT_ARRAY),
                    (&columns.payload, Type::BYTEA_ARRAY),
                    (&columns.content_type, Type::TEXT_ARRAY),
                    (&columns.occurred_at, Type::INT8_ARRAY),
                    (&columns.not_before, Type::INT8_ARRAY),
                ],
            )
            .await
            .map_err(failed(WRITING))?;
        let written = |row: Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.into_iter().map(written).collect::<Result<_, _>>().map_err(failed(WRITING))
    }

    async fn find_known(
        &mut self,
        statements: &Statements,
        ids: &[Uuid],
    ) -> Result<Vec<(Uuid, Known)>> {
        let rows = self
            .query_typed(&statements.find_known, &[(&ids, Type::UUID_ARRAY)])
            .await
            .map_err(failed(FINDING))?;
        rows.into_iter().map(known).collect::<Result<_, _>>().map_err(failed(FINDING))
    }
}

fn known(row: Row) -> Result<(Uuid, Known), tokio_postgres::Error> {
    let known = Known {
        sequence: row.try_get(1)?,
        event_type: row.try_get(2)?,
        aggregate_type: row.try_get(3)?,
        aggregate_id: row.try_get(4)?,
        tenant: row.try_get(5)?,
        ordering_key: row.try_get(6)?,
    };
    Ok((row.try_get(0)?, known))
}

fn failed(doing: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Error {
    move |error| {
        let code = error.code().map(|code| code.code().to_owned());
        let io = std::error::Error::source(&error).and_then(|e| e.downcast_ref::<io::Error>());
        let kind = match &code {
            Some(code) => ErrorKind::of_sqlstate(code),
            None if error.is_closed() || io.is_some() => ErrorKind::Unavailable,
            None => ErrorKind::Database,
        };
        super::failed(doing, kind, code.as_deref(), error)
    }
}
