//! The life of the server: noticed when it ends.
//!
//! A replica that takes over, and a server that restarts, may lack what was committed last and give out
//! the same numbers again. The life is who the server is and since when it runs. Every connection is
//! stamped with it when it is made. Whoever takes shards first in a new life writes it into the table
//! `{life}`, with its first epoch. A lease counts only from that epoch on, and only in that life: settles,
//! renewals and releases ask for both in the statement that locks the leases, so that nothing of the life
//! before is written any more. And a reader whose position carries another life is told so.

use std::sync::Arc;

use posthaste_core::{Error, ErrorKind, Result};
use sqlx::{Connection, MySql, MySqlConnection, Row, Transaction, mysql::MySqlRow};

use super::{MySqlStore, tracker::Tracker};
use crate::{failure::failed, sessions::Session};

/// By how many seconds the start of one server may differ when it is asked twice: both the time and the
/// uptime are whole seconds.
const DOUBT: i64 = 5;

/// Who the server is, as a statement can ask at any time.
macro_rules! server {
    () => {
        "concat_ws('/', @@hostname, @@port, @@server_id)"
    };
}

/// The first epoch of this life of this server; null if its leases are of another one. Binds the life.
macro_rules! first_epoch {
    () => {
        concat!(
            "(select l.first_epoch from {life} l where l.id = 1 and l.token = ? and l.server = ",
            server!(),
            ")"
        )
    };
}

/// A connection of ours, and the life of the server that it leads to.
pub(super) struct Stamped {
    pub(super) session: Session<MySql>,
    pub(super) life: Arc<str>,
}

impl Stamped {
    /// Its work came to its end: the next one may have it.
    pub(super) fn done(self) {
        self.session.done();
    }

    /// A transaction that reads what is committed and locks no gaps.
    pub(super) async fn begin(&mut self, doing: &'static str) -> Result<Transaction<'_, MySql>> {
        self.session.begin_with(super::BEGIN).await.map_err(failed(doing))
    }
}

impl std::ops::Deref for Stamped {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.session
    }
}

impl std::ops::DerefMut for Stamped {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.session
    }
}

impl MySqlStore {
    /// A connection that knows in which life of the server it was made.
    pub(super) async fn session(&self, doing: &'static str) -> Result<Stamped> {
        // Asked for now: later it would take a second connection.
        self.shard_count().await?;
        self.claim_style().await?;
        let mut session = self.sessions.take(doing).await?;
        let life = self.stamp(&mut session, doing).await?;
        Ok(Stamped { session, life })
    }

    /// Gives this one another connection.
    pub(super) async fn reopen(&self, stamped: &mut Stamped, doing: &'static str) -> Result<()> {
        self.sessions.reopen(&mut stamped.session, doing).await?;
        stamped.life = self.stamp(&mut stamped.session, doing).await?;
        Ok(())
    }

    async fn stamp(&self, session: &mut Session<MySql>, doing: &'static str) -> Result<Arc<str>> {
        if let Some(life) = &session.stamp {
            return Ok(Arc::clone(life));
        }
        let life: Arc<str> = self.life_of(session).await.map_err(failed(doing))?.into();
        session.stamp = Some(Arc::clone(&life));
        let mut tracker = self.tracker();
        if *tracker.life() != *life {
            *tracker = Tracker::new(&life);
        }
        Ok(life)
    }

    /// The life of the server behind this connection, as it was first written down.
    async fn life_of(&self, connection: &mut MySqlConnection) -> sqlx::Result<String> {
        const WHO: &str = concat!("select ", server!(), ", cast(unix_timestamp() as signed)");
        const UID: &str =
            "show global variables where variable_name in ('server_uuid', 'server_uid')";
        const UPTIME: &str = "show global status where variable_name = 'Uptime'";
        const KNOWN: &str = "select token from {life} where id = 1";

        let (server, now): (String, i64) =
            sqlx::query_as(WHO).persistent(false).fetch_one(&mut *connection).await?;
        let text = |row: MySqlRow| row.try_get_unchecked::<String, _>(1);
        let uid: Option<String> = sqlx::query(UID)
            .persistent(false)
            .try_map(text)
            .fetch_optional(&mut *connection)
            .await?;
        let uptime: String =
            sqlx::query(UPTIME).persistent(false).try_map(text).fetch_one(&mut *connection).await?;
        let started = now - uptime.parse::<i64>().unwrap_or(0);
        let who = format!("{server}/{}", uid.unwrap_or_default()).replace('|', "/");
        let known: Option<String> =
            sqlx::query_scalar(self.tables.sql(KNOWN)).fetch_optional(connection).await?;
        Ok(match known {
            Some(known) if is_same(&known, &who, started) => known,
            _ => format!("{who}/{started}"),
        })
    }

    /// Begins the life of this connection, unless it is under way.
    pub(super) async fn begin_life(&self, session: &mut Stamped) -> Result<()> {
        const KNOWN: &str = concat!("select ", first_epoch!());
        // Above all epochs that the lives before can have given, also those that the server has lost. Of two
        // that begin it at once the second changes nothing.
        const FIRST: &str = "
            select greatest(max(epoch) + 1000, cast(unix_timestamp(now(6)) * 1000 as signed))
            from {shards}";
        const BEGIN: &str = concat!(
            "insert into {life} (id, token, server, first_epoch) values (1, ?, ",
            server!(),
            ", ?)
            on duplicate key update
                first_epoch = if(token = values(token), first_epoch, values(first_epoch)),
                token = values(token), server = values(server)"
        );
        const DOING: &str = "beginning a life of the server";

        let life = Arc::clone(&session.life);
        let known: Option<i64> = sqlx::query_scalar(self.tables.sql(KNOWN))
            .bind(&*life)
            .fetch_one(&mut **session)
            .await
            .map_err(failed(DOING))?;
        if known.is_none() {
            // Asked before: an insert that selects would lock the leases.
            let first: i64 = sqlx::query_scalar(self.tables.sql(FIRST))
                .fetch_one(&mut **session)
                .await
                .map_err(failed(DOING))?;
            sqlx::query(self.tables.sql(BEGIN))
                .bind(&*life)
                .bind(first)
                .execute(&mut **session)
                .await
                .map_err(failed(DOING))?;
        }
        Ok(())
    }
}

/// Whether `known` is the life of this server, which seems to have begun then.
fn is_same(known: &str, who: &str, started: i64) -> bool {
    let Some((server, began)) = known.rsplit_once('/') else {
        return false;
    };
    server == who && began.parse::<i64>().is_ok_and(|began| (began - started).abs() <= DOUBT)
}

/// What a reader is told whose position is of another life.
pub(super) fn moved(doing: &str) -> Error {
    Error::new(
        ErrorKind::Moved,
        format!(
            "{doing} failed: the server was restarted or replaced since the shards were taken; they \
             are taken anew"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn a_life_is_a_server_and_its_start_give_or_take_a_few_seconds() {
        assert!(is_same("vm/3306/1/uid=/100", "vm/3306/1/uid=", 97));
        assert!(!is_same("vm/3306/1/uid=/100", "vm/3306/1/uid=", 90), "restarted");
        assert!(!is_same("vm/3306/1/uid=/100", "vm/3307/1/uid=", 100), "another server");
        assert!(!is_same("", "", 0));
    }
}
