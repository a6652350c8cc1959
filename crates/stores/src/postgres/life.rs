//! The life of the server: noticed when it ends.
//!
//! A standby that is promoted, and a server that recovers from a crash, may lack what was committed last,
//! and give out the same sequence numbers and transaction ids again. An unlogged table is empty then.
//! Whoever takes shards first writes a row with a new token and the first epoch of the new life. A lease
//! counts only from that epoch on: settles, renewals and releases ask for it in the statement that locks
//! the leases, so that nothing of the life before is written any more. And a reader whose position
//! carries another token is told so, as is one without a position whose connection was made in another
//! life than shards were taken in: no connection survives a crash or a change of server.

use std::sync::{Arc, PoisonError};

use posthaste_core::{Error, ErrorKind, Result};
use sqlx::{PgConnection, Postgres};

use super::PostgresStore;
use crate::{failure::failed, sessions::Session};

/// Whether the lease in this row was given in the present life of the server.
macro_rules! alive {
    () => {
        "epoch >= (select first_epoch from {life})"
    };
}

impl PostgresStore {
    /// A connection to the server on which shards were taken last, for a read that has no position to
    /// tell: the rows of another server are not what the lanes know.
    pub(super) async fn reading_session(&self, doing: &'static str) -> Result<Session<Postgres>> {
        let mut session = self.sessions.take(doing).await?;
        let taken_in = self.taken_in.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(taken_in) = taken_in else { return Ok(session) };
        if session.stamp.is_none() {
            session.stamp = self.token(&mut session, doing).await?;
        }
        if session.stamp.as_ref() == Some(&taken_in) { Ok(session) } else { Err(moved(doing)) }
    }

    /// The token of the present life.
    async fn token(
        &self,
        connection: &mut PgConnection,
        doing: &'static str,
    ) -> Result<Option<Arc<str>>> {
        const TOKEN: &str = "select token::text from {life}";

        let token: Option<String> = sqlx::query_scalar(self.tables.sql(TOKEN))
            .fetch_optional(connection)
            .await
            .map_err(failed(doing))?;
        Ok(token.map(Arc::from))
    }

    /// Begins a life, unless one is under way. Shards are taken in it.
    pub(super) async fn begin_life(&self, session: &mut Session<Postgres>) -> Result<()> {
        const CACHE: &str = "
            select coalesce((
                select s.seqcache from pg_sequence s
                where s.seqrelid = pg_get_serial_sequence('{events}', 'sequence')::regclass
            ), 1)";
        // Above all epochs that the lives before can have given, also those that the server has lost.
        const BEGIN: &str = "
            insert into {life} (id, token, first_epoch)
            select 1, gen_random_uuid(), greatest(max(epoch) + 1000,
                (extract(epoch from clock_timestamp()) * 1000)::bigint)
            from {shards}
            on conflict do nothing";
        const DOING: &str = "beginning a life of the server";

        let cache: i64 = sqlx::query_scalar(self.tables.sql(CACHE))
            .fetch_one(&mut **session)
            .await
            .map_err(failed(DOING))?;
        if cache > 1 {
            return Err(Error::new(
                ErrorKind::State,
                format!(
                    "the numbers of {events} come from a sequence with a cache of {cache}: a session can \
                     use an old number in a later transaction, and its events would be passed over; run \
                     alter table {events} alter column sequence set cache 1",
                    events = self.tables.name()
                ),
            ));
        }
        let mut token = self.token(session, DOING).await?;
        if token.is_none() {
            sqlx::query(self.tables.sql(BEGIN))
                .execute(&mut **session)
                .await
                .map_err(failed(DOING))?;
            token = self.token(session, DOING).await?;
        }
        session.stamp.clone_from(&token);
        let mut taken_in = self.taken_in.lock().unwrap_or_else(PoisonError::into_inner);
        if taken_in.is_some() && *taken_in != token {
            self.sessions.forget();
        }
        *taken_in = token;
        Ok(())
    }
}

/// What a reader is told whose position is of another life.
pub(super) fn moved(doing: &str) -> Error {
    Error::new(
        ErrorKind::Moved,
        format!(
            "{doing} failed: the server was promoted, recovered from a crash or replaced; reading \
             starts again from the stored marks"
        ),
    )
}
