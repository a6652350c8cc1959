//! Who changed what.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    limits::{cut, cut_error},
    store::{Audit, AuditRecord, Change},
};
use sqlx::{Row, postgres::PgRow};

use super::{PostgresStore, inspect::time, row::Micros};
use crate::failure::failed;

#[async_trait]
impl Audit for PostgresStore {
    async fn audit_begin(&self, change: &Change) -> Result<i64> {
        const BEGIN: &str = "
            insert into {audit} (changed_by, action, subject) values ($1, $2, $3) returning id";

        sqlx::query_scalar(self.tables.sql(BEGIN))
            .bind(cut(&change.by, 200))
            .bind(cut(&change.action, 50))
            .bind(cut(&change.subject, 4_000))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("writing the audit"))
    }

    async fn audit_end(&self, id: i64, affected: u64, error: Option<&str>) -> Result<()> {
        const END: &str = "
            update {audit} set ended_at = clock_timestamp(), affected = $1, error = $2
            where id = $3 and ended_at is null";

        sqlx::query(self.tables.sql(END))
            .bind(affected as i64)
            .bind(error.map(cut_error))
            .bind(id)
            .execute(&self.pool)
            .await
            .map_err(failed("completing the audit"))?;
        Ok(())
    }

    async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<AuditRecord>> {
        const AUDITS: &str = "
            select id, at, changed_by, action, subject, ended_at, affected, error,
                db_user || coalesce('@' || host(client_addr), '')
            from {audit}
            where id < $1
            order by id desc
            limit $2";

        sqlx::query(self.tables.sql(AUDITS))
            .bind(before.unwrap_or(i64::MAX))
            .bind(limit as i64)
            .try_map(|row: PgRow| {
                Ok(AuditRecord {
                    id: row.try_get(0)?,
                    at: time(row.try_get(1)?)?,
                    change: Change {
                        by: row.try_get(2)?,
                        action: row.try_get(3)?,
                        subject: row.try_get(4)?,
                    },
                    account: row.try_get(8)?,
                    ended_at: row.try_get::<Option<Micros>, _>(5)?.and_then(Micros::timestamp),
                    affected: row.try_get::<i64, _>(6)?.max(0) as u64,
                    error: row.try_get(7)?,
                })
            })
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading the audit"))
    }
}
