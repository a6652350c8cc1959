//! Pauses: stored, and obeyed by every relay.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    limits::cut,
    store::{Control, Pausable, Pause},
};
use sqlx::{Row, mysql::MySqlRow};

use super::{MySqlStore, inspect::time};
use crate::{control::pausable, failure::failed};

#[async_trait]
impl Control for MySqlStore {
    async fn pauses(&self) -> Result<Vec<Pause>> {
        const PAUSES: &str = "
            select kind, name, value, set_by, timestampdiff(microsecond, '1970-01-01', set_at) from {controls}
            order by set_at, kind, name";

        // Not on the pool: it waits for ever for a connection that was given up and stays silent.
        let mut session = self.sessions.take("reading pauses").await?;
        let pauses: Vec<Option<Pause>> = sqlx::query(self.tables.sql(PAUSES))
            .try_map(|row: MySqlRow| {
                let Some(what) = pausable(row.try_get(0)?, row.try_get(1)?) else {
                    return Ok(None);
                };
                Ok(Some(Pause {
                    what,
                    note: row.try_get(2)?,
                    by: row.try_get(3)?,
                    since: time(row.try_get(4)?)?,
                }))
            })
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading pauses"))?;
        session.done();
        Ok(pauses.into_iter().flatten().collect())
    }

    async fn pause(&self, what: &Pausable, by: &str, note: Option<&str>) -> Result<bool> {
        // Not `insert ignore`: that would also cut what is too long.
        const PAUSE: &str = "
            insert into {controls} (kind, name, value, set_by, set_at)
            values (?, ?, ?, ?, utc_timestamp(6))";

        let paused = sqlx::query(self.tables.sql(PAUSE))
            .bind(what.kind())
            .bind(what.name())
            .bind(note)
            .bind(cut(by, 200))
            .execute(&self.pool)
            .await;
        match paused {
            Ok(_) => Ok(true),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(false),
            Err(error) => Err(failed("pausing")(error)),
        }
    }

    async fn resume(&self, what: &Pausable) -> Result<bool> {
        const RESUME: &str = "delete from {controls} where kind = ? and name = ?";

        let resumed = sqlx::query(self.tables.sql(RESUME))
            .bind(what.kind())
            .bind(what.name())
            .execute(&self.pool)
            .await
            .map_err(failed("resuming"))?;
        Ok(resumed.rows_affected() == 1)
    }
}
