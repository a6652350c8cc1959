//! The life of the server: noticed when it ends.
//!
//! A replica that takes over, and a server that restarts, may lack what was committed last and give out
//! the same numbers again. The life is who the server is and since when it runs. Every connection is
//! stamped with it when it is made. Whoever takes shards first in a new life writes it into the table
//! `{life}`, with its first epoch. A lease counts only from that epoch on, and only in that life: settles,
//! renewals and releases ask for both in the statement that locks the leases, so that nothing of the life
//! before is written any more. And a reader whose position carries another life is told so, as is one
//! without a position when shards were taken in another life.

use std::sync::{Arc, PoisonError};

use posthaste_core::{Error, ErrorKind, Result};
use sqlx::{Connection, MySql, MySqlConnection, Row, Transaction, mysql::MySqlRow};

use super::{MySqlStore, tracker::Tracker};
use crate::{failure::failed, sessions::Session};

/// By how many seconds the start of one server may differ when it is asked twice: both the time and the
/// uptime are whole seconds, and a second may pass between them.
const DOUBT: i64 = 2;

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

    /// A connection to the server on which shards were taken last, for a read that has no position to
    /// tell: the rows of another server are not what the lanes know.
    pub(super) async fn reading_session(&self, doing: &'static str) -> Result<Stamped> {
        let session = self.session(doing).await?;
        self.still_lives(&session, doing)?;
        Ok(session)
    }

    pub(super) fn still_lives(&self, session: &Stamped, doing: &str) -> Result<()> {
        let taken_in = self.taken_in.lock().unwrap_or_else(PoisonError::into_inner);
        match taken_in.as_ref() {
            Some(taken_in) if !is_same(taken_in, &session.life) => Err(moved(doing)),
            _ => Ok(()),
        }
    }

    /// Gives this one another connection.
    pub(super) async fn reopen(&self, stamped: &mut Stamped, doing: &'static str) -> Result<()> {
        self.sessions.reopen(&mut stamped.session, doing).await?;
        stamped.life = self.stamp(&mut stamped.session, doing).await?;
        Ok(())
    }

    /// The life of the server behind this connection. Asked twice, a server seems to have begun a second
    /// earlier or later: what was written down first counts, or was known first.
    async fn stamp(&self, session: &mut Session<MySql>, doing: &'static str) -> Result<Arc<str>> {
        let seems = if let Some(seems) = &session.stamp {
            Arc::clone(seems)
        } else {
            let seems: Arc<str> = who(session).await.map_err(failed(doing))?.into();
            session.stamp = Some(Arc::clone(&seems));
            seems
        };
        let known = self.life();
        if let Some(known) = known.filter(|known| is_same(known, &seems)) {
            return Ok(known);
        }
        let written = self.written_life(session).await.map_err(failed(doing))?;
        let written: Option<Arc<str>> = written.map(Arc::from);
        let written = written.filter(|written| is_same(written, &seems));
        // Another connection may have been made meanwhile.
        let known = self.life().filter(|known| is_same(known, &seems));
        let life = written.or(known).unwrap_or(seems);
        self.live_in(&life);
        Ok(life)
    }

    fn life(&self) -> Option<Arc<str>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on this is the life: what was learnt in another one is forgotten, and no connection to
    /// another server is kept.
    fn live_in(&self, life: &Arc<str>) {
        let mut known = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.as_ref().is_some_and(|known| is_same(known, life)) {
            *self.tracker() = Tracker::new(life);
            self.sessions.forget();
        }
        *known = Some(Arc::clone(life));
    }

    async fn written_life(&self, connection: &mut MySqlConnection) -> sqlx::Result<Option<String>> {
        const WRITTEN: &str = "select token from {life} where id = 1";

        sqlx::query_scalar(self.tables.sql(WRITTEN)).fetch_optional(connection).await
    }

    /// Begins the life of this connection, unless it is under way.
    pub(super) async fn begin_life(&self, session: &mut Stamped) -> Result<()> {
        // Above all epochs that the lives before can have given, also those that the server has lost.
        const FIRST: &str = "
            select greatest(max(epoch) + 1000, cast(unix_timestamp(now(6)) * 1000 as signed))
            from {shards}";
        // Of two that begin it at once, the second changes nothing.
        const BEGIN: &str = concat!(
            "insert into {life} (id, token, server, first_epoch) values (1, ?, ",
            server!(),
            ", ?)
            on duplicate key update
                server = if(token <=> ?, values(server), server),
                first_epoch = if(token <=> ?, values(first_epoch), first_epoch),
                token = if(token <=> ?, values(token), token)"
        );
        const DOING: &str = "beginning a life of the server";

        let mut written = self.written_life(session).await.map_err(failed(DOING))?;
        if !written.as_deref().is_some_and(|written| is_same(written, &session.life)) {
            // Asked before: an insert that selects would lock the leases.
            let first: i64 = sqlx::query_scalar(self.tables.sql(FIRST))
                .fetch_one(&mut **session)
                .await
                .map_err(failed(DOING))?;
            sqlx::query(self.tables.sql(BEGIN))
                .bind(&*session.life)
                .bind(first)
                .bind(&written)
                .bind(&written)
                .bind(&written)
                .execute(&mut **session)
                .await
                .map_err(failed(DOING))?;
            written = self.written_life(session).await.map_err(failed(DOING))?;
        }
        match written {
            Some(written) if is_same(&written, &session.life) => {
                session.life = written.into();
                self.live_in(&session.life);
                let mut taken_in = self.taken_in.lock().unwrap_or_else(PoisonError::into_inner);
                *taken_in = Some(Arc::clone(&session.life));
                Ok(())
            }
            _ => Err(moved(DOING)),
        }
    }
}

/// Who the server is, and since when it seems to run.
async fn who(connection: &mut MySqlConnection) -> sqlx::Result<String> {
    const WHO: &str = concat!("select ", server!());
    const UID: &str = "show global variables where variable_name in ('server_uuid', 'server_uid')";
    // Not by way of the local time: an hour of the year is ambiguous.
    const NOW: &str = "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) div 1000";
    const UPTIME: &str = "show global status where variable_name = 'Uptime'";

    let server: String =
        sqlx::query_scalar(WHO).persistent(false).fetch_one(&mut *connection).await?;
    let text = |row: MySqlRow| row.try_get_unchecked::<String, _>(1);
    let uid: Option<String> =
        sqlx::query(UID).persistent(false).try_map(text).fetch_optional(&mut *connection).await?;
    let server = format!("{server}/{}", uid.unwrap_or_default()).replace('|', "/");
    let mut before: i64 = sqlx::raw_sql(NOW).fetch_one(&mut *connection).await?.try_get(0)?;
    // Whoever waits for the connection gives up some day.
    loop {
        let uptime = text(sqlx::raw_sql(UPTIME).fetch_one(&mut *connection).await?)?;
        let after = sqlx::raw_sql(NOW).fetch_one(&mut *connection).await?.try_get(0)?;
        if let Some(started) = started(before, uptime.parse().unwrap_or(0), after) {
            return Ok(format!("{server}/{started}"));
        }
        before = after;
    }
}

/// When the server was started that had run for so many seconds between these two times, in milliseconds; `None` if
/// that is not known well enough.
fn started(before: i64, uptime: i64, after: i64) -> Option<i64> {
    (before..=before + 1000).contains(&after).then_some(before / 1000 - uptime)
}

/// Whether both are lives of one server that began at the same time, as far as can be told.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    fn parts(life: &str) -> Option<(&str, i64)> {
        let (server, began) = life.rsplit_once('/')?;
        Some((server, began.parse().ok()?))
    }
    match (parts(one), parts(other)) {
        (Some((one, began)), Some((other, then))) => one == other && (began - then).abs() <= DOUBT,
        _ => false,
    }
}

/// What a reader is told whose position is of another life.
pub(super) fn moved(doing: &str) -> Error {
    Error::new(
        ErrorKind::Moved,
        format!(
            "{doing} failed: the server was restarted or replaced; reading starts \
             again from the stored marks"
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use posthaste_core::{
        Event,
        store::{Limit, Position, Read, Schema},
    };
    use posthaste_testkit::tables;
    use sqlx::mysql::MySqlPoolOptions;

    use super::*;
    use crate::{Dialect, Tables};

    #[test]
    fn a_life_is_a_server_and_its_start_give_or_take_a_few_seconds() {
        assert!(is_same("vm/3306/1/uid=/100", "vm/3306/1/uid=/98"));
        assert!(!is_same("vm/3306/1/uid=/100", "vm/3306/1/uid=/90"), "restarted");
        assert!(!is_same("vm/3306/1/uid=/100", "vm/3307/1/uid=/100"), "another server");
        assert!(!is_same("", ""));
    }

    #[test]
    fn the_start_of_a_server_is_not_known_where_the_time_has_moved_while_it_was_asked() {
        assert_eq!(started(500_700, 400, 500_900), Some(100));
        assert_eq!(started(500_700, 402, 503_100), None, "a pause");
        assert_eq!(started(500_700, 400, 490_900), None, "the clock was set");
    }

    #[tokio::test]
    async fn a_reader_of_the_server_before_learns_nothing_for_the_next_one() {
        let url = std::env::var("POSTHASTE_TEST_MARIADB").expect("run the tests with scripts/test");
        let pool = MySqlPoolOptions::new().max_connections(6).connect(&url).await.unwrap();
        let unique = tables::unique("my");
        let tables = Tables::new(unique.name().clone());
        let store = MySqlStore::new(pool.clone(), tables.clone());
        store.migrate(Some(1)).await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        let event = Event::builder("T").payload(&1).build().unwrap();
        MySql::enqueue(&mut transaction, &tables, &[event]).await.unwrap();
        transaction.commit().await.unwrap();

        let looking_back = store.looking_back.lock().await;
        let reading = tokio::spawn({
            let store = store.clone();
            async move { store.read_on(&[0], &Position::default(), Limit::rows(10)).await }
        });
        while store.tracker().frontier() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        store.live_in(&"another/1".into());
        {
            let mut tracker = store.tracker();
            tracker.reader(&Position::default(), Instant::now());
            tracker.looked(0, &[9], 9, Instant::now());
        }
        drop(looking_back);
        assert_eq!(reading.await.unwrap().unwrap_err().kind(), ErrorKind::Moved);
        {
            let tracker = store.tracker();
            assert!(tracker.listed.is_none(), "these are statements of the server before");
            assert_eq!(tracker.missing.len(), 1);
        }
        tables::drop_outbox(&pool, &unique).await.unwrap();
    }
}
