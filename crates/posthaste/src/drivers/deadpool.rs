//! deadpool-postgres: its transactions are those of tokio-postgres, with a cache of statements
//! around them that we do not use.

use deadpool_postgres::Transaction;
use posthaste_core::{
    Event, Result,
    enqueue::{Known, postgres::Statements},
};
use uuid::Uuid;

use super::PostgresTransaction;

impl PostgresTransaction for Transaction<'_> {
    async fn insert(
        &mut self,
        statements: &Statements,
        events: &[Event],
    ) -> Result<Vec<(Uuid, i64)>> {
        PostgresTransaction::insert(&mut **self, statements, events).await
    }

    async fn find_known(
        &mut self,
        statements: &Statements,
        ids: &[Uuid],
    ) -> Result<Vec<(Uuid, Known)>> {
        PostgresTransaction::find_known(&mut **self, statements, ids).await
    }
}
