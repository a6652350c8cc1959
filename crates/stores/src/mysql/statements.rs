//! Statements of other sessions: which of them can still insert under a number that was given out.
//!
//! A number is given out to a statement that inserts, and belongs to it until it ends. So it concerns only
//! those that had begun before the number was seen missing. Of these:
//!
//! - One whose transaction has locked no table for its present statement only reads: the server locks the
//!   tables that a statement writes before its first row. The server's list of transactions tells, if it
//!   is fresh. It is an old copy while others poll it; one that shows the very statement which asks for it
//!   is not.
//! - One that is in the midst of its work has committed nothing since it began. Whether it is still the
//!   same is told by its number on MariaDB, by its age on MySQL.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use posthaste_core::Result;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row, mysql::MySqlRow};
use uuid::Uuid;

use super::{MySqlStore, number};
use crate::failure::failed;

const DOING: &str = "looking at running statements";

/// The server has whole seconds or rounds, and so much time may pass while it makes its list.
const MARGIN: Duration = Duration::from_millis(50);

/// A statement that has run for so long is watched.
const WATCHED: Duration = Duration::from_millis(250);

/// A statement that runs for longer may be one that only reads.
const LONG: Duration = Duration::from_secs(1);

/// How often the list of transactions is asked for: the server renews it only when nobody has read it for a
/// while.
const READERS_INTERVAL: Duration = Duration::from_secs(1);

/// As old as a statement counts whose age the server does not know: its session has a clock of its own, or
/// the clock was set back.
const ANY_AGE: Duration = Duration::from_mins(10);

/// The states are those in which a statement has not begun to commit. Statements of other users are shown to who has
/// the privilege PROCESS; the server's metrics need the same, and without it this fails. Not asked of its list of
/// transactions, which the server renews only when nobody has read it for a while.
const RUNNING: &str = "
    select p.id, {query}, {age},
        coalesce(p.state in ('User sleep', 'User lock', 'Sending data', 'executing', 'Update',
            'Updating', 'Sorting result', 'Creating sort index', 'Copying to tmp table',
            'Copying to group table', 'Removing duplicates'), 0)
    from information_schema.processlist p
    where (select count(*) from information_schema.innodb_metrics where name = '') = 0
        and p.id <> connection_id() and p.user <> 'system user'
        and p.command not in ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID')";

/// MariaDB numbers its statements and counts milliseconds. MySQL has whole seconds.
const COLUMNS: [(&str, &str, Duration); 2] = [
    ("p.query_id", "cast(p.time_ms as signed)", Duration::ZERO),
    ("0", "cast(p.time as signed) * 1000", Duration::from_secs(1)),
];

/// A read of a table begins our own transaction.
const TOUCH: &str = "select id from {meta} where id = 1";

const TRANSACTIONS: &str = "
    select trx_mysql_thread_id, trx_tables_locked,
        coalesce(trx_mysql_thread_id = connection_id() and trx_query like '%{nonce}%', 0)
    from information_schema.innodb_trx";

/// The privilege is missing, or there is no such list on this server.
pub(super) const NOT_SHOWN: [u16; 4] = [1227, 1142, 1109, 1146];

/// No such column.
const UNKNOWN_COLUMN: u16 = 1054;

/// What others were running at a moment.
#[derive(Debug, Clone)]
pub(super) struct Running {
    /// Before the server was asked, and when it had answered.
    pub(super) asked: Instant,
    answered: Instant,
    statements: Vec<Statement>,
}

#[derive(Debug, Clone)]
struct Statement {
    session: u64,
    /// Its number, 0 where the server does not number them.
    number: i64,
    at_least: Duration,
    at_most: Duration,
    /// In the midst of its work.
    busy: bool,
}

impl Statement {
    fn of(row: &MySqlRow, rounded: Duration) -> sqlx::Result<Self> {
        let age: i64 = row.try_get_unchecked(2)?;
        let (at_least, at_most) = match u64::try_from(age).map(Duration::from_millis) {
            Ok(age) => (age.saturating_sub(rounded + MARGIN), age + rounded + MARGIN),
            Err(_) => (Duration::ZERO, ANY_AGE),
        };
        Ok(Self {
            session: row.try_get_unchecked(0)?,
            number: row.try_get_unchecked(1)?,
            at_least,
            at_most,
            busy: row.try_get_unchecked::<i64, _>(3)? != 0,
        })
    }

    fn can_be_watched(&self) -> bool {
        self.busy && self.at_least >= WATCHED
    }
}

/// A statement that was seen in the midst of its work.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    session: u64,
    number: i64,
    /// Before it was seen.
    noted: Instant,
    /// It began after this.
    pub(super) began: Option<Instant>,
}

impl Running {
    /// How long the oldest one has been running at most.
    pub(super) fn oldest(&self) -> Duration {
        self.statements.iter().map(|statement| statement.at_most).max().unwrap_or_default()
    }

    /// The same of those that are not watched.
    pub(super) fn oldest_unwatched(&self) -> Duration {
        let unwatched = self.statements.iter().filter(|statement| !statement.can_be_watched());
        unwatched.map(|statement| statement.at_most).max().unwrap_or_default()
    }

    /// Those that can be watched.
    pub(super) fn watched(&self) -> impl Iterator<Item = Watched> + '_ {
        let watched = self.statements.iter().filter(|statement| statement.can_be_watched());
        watched.map(|statement| Watched {
            session: statement.session,
            number: statement.number,
            noted: self.asked,
            began: self.asked.checked_sub(statement.at_most),
        })
    }

    /// Whether this one is still in the midst of its work.
    pub(super) fn has(&self, watched: &Watched) -> bool {
        let since = self.answered.duration_since(watched.noted);
        self.statements.iter().any(|statement| {
            statement.busy
                && statement.session == watched.session
                && statement.number == watched.number
                && (statement.number != 0 || statement.at_least >= since)
        })
    }
}

#[cfg(test)]
impl Running {
    /// Nothing runs.
    pub(super) fn none(asked: Instant) -> Self {
        Self { asked, answered: asked, statements: Vec::new() }
    }

    /// One statement in the midst of its work.
    pub(super) fn of_one(session: u64, number: i64, asked: Instant, age: Duration) -> Self {
        let statement = Statement { session, number, at_least: age, at_most: age, busy: true };
        Self { asked, answered: asked, statements: vec![statement] }
    }
}

impl Watched {
    /// Whether both are the same statement.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.session, self.number) == (other.session, other.number)
    }
}

impl MySqlStore {
    /// What others are running; `None` when that is not shown.
    pub(super) async fn running(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<Option<Running>> {
        let asked = Instant::now();
        for (query, age, rounded) in COLUMNS {
            let sql = RUNNING.replace("{query}", query).replace("{age}", age);
            let statements = sqlx::query(AssertSqlSafe(sql))
                .try_map(|row| Statement::of(&row, rounded))
                .fetch_all(&mut *connection)
                .await;
            return match statements {
                Ok(statements) => Ok(Some(Running { asked, answered: Instant::now(), statements })),
                Err(error) if number(&error) == UNKNOWN_COLUMN => continue,
                Err(error) if NOT_SHOWN.contains(&number(&error)) => Ok(None),
                Err(error) => Err(failed(DOING)(error)),
            };
        }
        // Without a list of statements nothing is known to have ended.
        Ok(None)
    }

    /// Leaves out those that only read, if there are old ones.
    pub(super) async fn without_readers(
        &self,
        connection: &mut MySqlConnection,
        mut running: Running,
    ) -> Result<Running> {
        let recent = |at: Instant| at.elapsed() < READERS_INTERVAL;
        if running.oldest() < LONG || self.tracker().readers_at.is_some_and(recent) {
            return Ok(running);
        }
        self.tracker().readers_at = Some(Instant::now());
        let readers = self.readers(connection).await?;
        running.statements.retain(|statement| !readers.contains(&statement.session));
        Ok(running)
    }

    /// The sessions whose transactions are open and whose present statement, if any, writes nothing.
    /// Whatever they had been given before this was asked for, they have inserted, or never will.
    async fn readers(&self, connection: &mut MySqlConnection) -> Result<HashSet<u64>> {
        let mut transaction = connection.begin_with(super::BEGIN).await.map_err(failed(DOING))?;
        sqlx::query(self.tables.sql(TOUCH))
            .execute(&mut *transaction)
            .await
            .map_err(failed(DOING))?;
        let nonce = Uuid::now_v7().simple().to_string();
        let sql = AssertSqlSafe(TRANSACTIONS.replace("{nonce}", &nonce));
        // As text: of a prepared statement the server does not show the text that we know.
        let rows = sqlx::raw_sql(sql).fetch_all(&mut *transaction).await.map_err(failed(DOING))?;
        transaction.commit().await.map_err(failed(DOING))?;
        let (mut readers, mut fresh) = (HashSet::new(), false);
        for row in &rows {
            let column = |index| row.try_get_unchecked::<u64, _>(index).map_err(failed(DOING));
            fresh |= column(2)? != 0;
            if column(1)? == 0 {
                readers.insert(column(0)?);
            }
        }
        if !fresh {
            readers.clear();
        }
        Ok(readers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(asked: Instant, number: i64, age: u64, busy: bool) -> Running {
        let age = Duration::from_millis(age);
        let statement = Statement { session: 7, number, at_least: age, at_most: age, busy };
        Running { asked, answered: asked, statements: vec![statement] }
    }

    #[test]
    fn a_watched_statement_is_known_by_its_number_or_its_age() {
        let now = Instant::now();
        let later = now + Duration::from_secs(3);
        let numbered = running(now, 12, 500, true).watched().next().unwrap();
        assert!(running(later, 12, 100, true).has(&numbered));
        assert!(!running(later, 13, 3_500, true).has(&numbered), "the next one");
        assert!(!running(later, 12, 3_500, false).has(&numbered), "it may be committing");
        let aged = running(now, 0, 2_000, true).watched().next().unwrap();
        assert!(running(later, 0, 5_000, true).has(&aged));
        assert!(!running(later, 0, 2_900, true).has(&aged), "it began after that");
    }

    #[test]
    fn only_statements_in_the_midst_of_their_work_are_watched() {
        let now = Instant::now();
        assert_eq!(running(now, 1, 100, true).watched().count(), 0, "it may end soon");
        assert_eq!(running(now, 1, 5_000, false).watched().count(), 0);
        let busy = running(now, 1, 5_000, true);
        assert_eq!(busy.watched().count(), 1);
        assert_eq!((busy.oldest().as_secs(), busy.oldest_unwatched().as_secs()), (5, 0));
    }
}
