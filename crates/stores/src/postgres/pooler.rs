//! A transaction pooler between us and the server: found out, and refused.
//!
//! A pooler that lends connections by the transaction has another server connection for each statement. What a
//! relay tells its connections (plans, time-outs) would be told to those of others. A statement prepared under a
//! name would be on somebody else's. And a client's connection would survive a failover: rows of the new server
//! would be taken for those of the old one. Writers need no session and may go through one.
//!
//! ```text
//!  ours    set a token ─── is it there? ───────────────────── is it there still?
//!  other                              begin ─── is it here? ──────────────────── rollback
//! ```
//!
//! Directly, the token is there, is not here, and is there still. Through a pooler the other transaction gets the
//! server connection that ours has just given back: the token is here, or is no longer there.

use futures_util::future::try_join;
use posthaste_core::{Error, ErrorKind, Result};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _};
use tokio::time::timeout;
use uuid::Uuid;

use super::PostgresStore;
use crate::connect::ACQUIRE_TIMEOUT;

/// Others may use the pooler meanwhile and get between the two: one proof is enough.
const ROUNDS: usize = 3;

impl PostgresStore {
    /// Refuses a transaction pooler. Asks once; a server that cannot be asked refuses elsewhere, and so does one
    /// that does not answer.
    pub(super) async fn refuse_pooler(&self) -> Result<()> {
        if self.direct.get().is_some() {
            return Ok(());
        }
        timeout(ACQUIRE_TIMEOUT, self.look_for_pooler()).await.unwrap_or(Ok(()))
    }

    async fn look_for_pooler(&self) -> Result<()> {
        // Connections of their own: the application's pool may have none to spare.
        let options = self.pool.connect_options();
        let Ok((mut ours, mut other)) = try_join(options.connect(), options.connect()).await else {
            return Ok(());
        };
        let mut pooled = Ok(false);
        for _ in 0..ROUNDS {
            pooled = is_pooled(&mut ours, &mut other).await;
            if !matches!(pooled, Ok(false)) {
                break;
            }
        }
        // Closed in order, so that the server does not log a loss. One that is gone needs no closing.
        let _ = ours.close().await;
        let _ = other.close().await;
        match pooled {
            Ok(true) => Err(pooler()),
            Ok(false) => {
                let _ = self.direct.set(());
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }
}

/// Whether both connections lead to one of the server's. Nothing is prepared: a pooler could lose it.
async fn is_pooled(ours: &mut PgConnection, other: &mut PgConnection) -> sqlx::Result<bool> {
    let token = Uuid::now_v7().simple();
    // Of the token's hexadecimal digits; the simple protocol binds nothing.
    let set = format!("select set_config('posthaste.session', '{token}', false)");
    let token = token.to_string();
    text(ours, AssertSqlSafe(set)).await?;
    if session(ours).await? != token {
        return Ok(true);
    }
    sqlx::raw_sql("begin").execute(&mut *other).await?;
    let pooled = session(other).await? == token || session(ours).await? != token;
    sqlx::raw_sql("rollback").execute(&mut *other).await?;
    Ok(pooled)
}

async fn session(connection: &mut PgConnection) -> sqlx::Result<String> {
    text(connection, "select coalesce(current_setting('posthaste.session', true), '')").await
}

async fn text(connection: &mut PgConnection, sql: impl sqlx::SqlSafeStr) -> sqlx::Result<String> {
    sqlx::raw_sql(sql).fetch_one(connection).await?.try_get(0)
}

fn pooler() -> Error {
    Error::new(
        ErrorKind::State,
        "a transaction pooler is between here and PostgreSQL: relays and commands need a session of \
         their own, whatever the pooler's version; give them a direct connection, or a pool in session \
         mode (pool_mode = session in PgBouncer). Writers may go through it",
    )
}
