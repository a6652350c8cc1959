//! Who changed what.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    limits::{cut, cut_error},
    store::{Audit, AuditRecord, Change},
};
use sqlx::{Row, mysql::MySqlRow};

use super::{MySqlStore, inspect::time, row::timestamp};
use crate::failure::failed;

#[async_trait]
impl Audit for MySqlStore {
    async fn audit_begin(&self, change: &Change) -> Result<i64> {
        const BEGIN: &str = "
            insert into {audit} (changed_by, action, subject) values (?, ?, ?)";

        let written = sqlx::query(self.tables.sql(BEGIN))
            .bind(cut(&change.by, 200))
            .bind(cut(&change.action, 50))
            .bind(cut(&change.subject, 4_000))
            .execute(&self.pool)
            .await
            .map_err(failed("writing the audit"))?;
        Ok(written.last_insert_id() as i64)
    }

    async fn audit_end(&self, id: i64, affected: u64, error: Option<&str>) -> Result<()> {
        const END: &str = "
            update {audit} set ended_at = utc_timestamp(6), affected = ?, error = ?
            where id = ? and ended_at is null";

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
            select id, timestampdiff(microsecond, '1970-01-01', at), changed_by, action, subject,
                timestampdiff(microsecond, '1970-01-01', ended_at), affected, error, db_user
            from {audit}
            where id < ?
            order by id desc
            limit ?";

        sqlx::query(self.tables.sql(AUDITS))
            .bind(before.unwrap_or(i64::MAX))
            .bind(limit as i64)
            .try_map(|row: MySqlRow| {
                Ok(AuditRecord {
                    id: row.try_get(0)?,
                    at: time(row.try_get(1)?)?,
                    change: Change {
                        by: row.try_get(2)?,
                        action: row.try_get(3)?,
                        subject: row.try_get(4)?,
                    },
                    account: row.try_get(8)?,
                    ended_at: row.try_get::<Option<i64>, _>(5)?.and_then(timestamp),
                    affected: row.try_get::<i64, _>(6)?.max(0) as u64,
                    error: row.try_get(7)?,
                })
            })
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading the audit"))
    }
}
