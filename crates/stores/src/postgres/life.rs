//! The life of the server: noticed when it ends.
//!
//! A standby that is promoted, and a server that recovers from a crash, may lack what was committed last,
//! and give out the same sequence numbers and transaction ids again. An unlogged table is empty then.
//! Whoever takes shards first writes a row with a new token and the first epoch of the new life. A lease
//! counts only from that epoch on: settles, renewals and releases ask for it in the statement that locks
//! the leases, so that nothing of the life before is written any more. And a reader whose position
//! carries another token is told so.

use posthaste_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::PostgresStore;
use crate::failure::failed;

/// Whether the lease in this row was given in the present life of the server.
macro_rules! alive {
    () => {
        "epoch >= (select first_epoch from {life})"
    };
}

impl PostgresStore {
    /// Begins a life, unless one is under way.
    pub(super) async fn begin_life(&self, connection: &mut PgConnection) -> Result<()> {
        const KNOWN: &str = "
            select exists (select from {life}), coalesce((
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

        let (known, cache): (bool, i64) = sqlx::query_as(self.tables.sql(KNOWN))
            .fetch_one(&mut *connection)
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
        if !known {
            sqlx::query(self.tables.sql(BEGIN)).execute(connection).await.map_err(failed(DOING))?;
        }
        Ok(())
    }
}

/// What a reader is told whose position is of another life.
pub(super) fn moved(doing: &str) -> Error {
    Error::new(
        ErrorKind::Moved,
        format!(
            "{doing} failed: the server was promoted, recovered from a crash or replaced since the \
             shards were taken; they are taken anew"
        ),
    )
}
