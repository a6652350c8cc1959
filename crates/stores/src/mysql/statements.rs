//! Statements of other sessions: which of them can still insert under a number that was given out.
//!
//! A number is given out to a statement that inserts, and belongs to it until it ends. So it concerns only
//! those that had begun before the number was seen missing. How old a statement is the server does not tell
//! reliably: on MariaDB one that a trigger or a function runs has an age, a number and a text of its own, and shows in the
//! place of the one around it; on MySQL the age follows the clock. But a session that was idle when the
//! server was last asked has begun its statement since, and one that was not may still run the same. So each
//! list is compared with the one before.
//!
//! Of those that may be older:
//!
//! - One whose transaction locks no table only reads: a statement that inserts locks the table for its first
//!   row. The server's list of transactions tells, if it is fresh. It is an old copy while others poll it;
//!   one that shows the very statement which asks for it is not. The lock comes a moment after the first
//!   number. So this must be seen twice, a second apart, and never of one that waits to insert. It tells that no number
//!   was taken before the first time: the next one may be.
//! - One that is in the midst of its work has committed nothing since it began. Whether it is still the
//!   same is told by its number on MariaDB, by its age on MySQL.
//! - A thread of the server that applies what another server has sent may insert under any number until it says that it
//!   waits for more. It commits many transactions meanwhile, so it is never watched.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::Result;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row, mysql::MySqlRow};
use uuid::Uuid;

use super::{MySqlStore, number, tracker::Reader};
use crate::failure::failed;

const DOING: &str = "looking at running statements";

/// The server has whole seconds or rounds, and so much time may pass while it makes its list.
const MARGIN: Duration = Duration::from_millis(50);

/// A statement that has run for so long is watched.
const WATCHED: Duration = Duration::from_millis(250);

/// A session that is seen at work for longer may be one that only reads.
const LONG: Duration = Duration::from_secs(1);

/// How often the list of transactions is asked for: the server renews it only when nobody has read it for a
/// while.
const READERS_INTERVAL: Duration = Duration::from_secs(1);

/// The states are those in which a statement has not begun to commit. Statements of other users are shown to who has
/// the privilege PROCESS; the server's metrics need the same, and without it this fails. Not asked of its list of
/// transactions, which the server renews only when nobody has read it for a while.
const RUNNING: &str = "
    select p.id, {query}, {age},
        coalesce(p.state in ('User sleep', 'User lock', 'Sending data', 'executing', 'Update',
            'Updating', 'Sorting result', 'Creating sort index', 'Copying to tmp table',
            'Copying to group table', 'Removing duplicates', 'Waiting for table metadata lock',
            'Waiting for table level lock', 'Waiting for table flush', 'System lock',
            'init for update', 'altering table', 'copy to tmp table'), 0),
        coalesce(p.state = 'Update', 0), coalesce(p.user = 'system user', 0), p.command,
        coalesce(p.state, ''), coalesce(left(p.info, 40), '')
    from information_schema.processlist p
    where (select count(*) from information_schema.innodb_metrics where name = '') = 0
        and p.id <> connection_id()
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
    asked: Instant,
    answered: Instant,
    statements: HashMap<u64, Statement>,
}

/// The statement of one session.
#[derive(Debug, Clone)]
struct Statement {
    /// Its number, 0 where the server does not number them.
    number: i64,
    /// It has run for so long at least, if the server's clock is right.
    age: Duration,
    /// In the midst of its work.
    busy: bool,
    /// It waits to insert a row, or does.
    inserts: bool,
    /// It began after this, or has taken no number before; `None` if that is not known.
    began: Option<Instant>,
    /// Its session has been seen at work since then.
    at_work: Instant,
    /// It has been seen busy since then, all the time.
    busy_since: Option<Instant>,
}

/// Whether this thread of the server may insert what another server has sent. In doubt it may.
fn may_apply(command: &str, state: &str, info: &str) -> bool {
    // As MySQL and MariaDB say it. The last ones are of the thread that receives: while there is no connection, nothing
    // comes, and after a failover it may never connect again.
    const WAITS: [&str; 7] = [
        "has read all relay log",
        "waiting for an event from coordinator",
        "waiting for work from",
        "waiting for master to send event",
        "waiting for source to send event",
        "connecting",
        "to reconnect",
    ];

    let state = state.to_ascii_lowercase();
    // It shows the state that it was in last. What it receives, other threads apply.
    let of_group = info.starts_with("Group replication");
    command != "Slave_IO" && !of_group && !WAITS.iter().any(|waits| state.contains(waits))
}

impl Statement {
    /// The statement of this row; `None` for a thread of the server that has nothing to insert.
    fn of(row: &MySqlRow, rounded: Duration, asked: Instant) -> sqlx::Result<Option<(u64, Self)>> {
        let text = |index| row.try_get_unchecked::<String, _>(index);
        let of_server = row.try_get_unchecked::<i64, _>(5)? != 0;
        if of_server && !may_apply(&text(6)?, &text(7)?, &text(8)?) {
            return Ok(None);
        }
        let age: i64 = row.try_get_unchecked(2)?;
        let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
        let busy = row.try_get_unchecked::<i64, _>(3)? != 0 && !of_server;
        let statement = Self {
            number: row.try_get_unchecked(1)?,
            age: age.saturating_sub(rounded + MARGIN),
            busy,
            inserts: row.try_get_unchecked::<i64, _>(4)? != 0 || of_server,
            began: None,
            at_work: asked,
            busy_since: busy.then_some(asked),
        };
        Ok(Some((row.try_get_unchecked(0)?, statement)))
    }

    /// Whether this is the one that had that number so long ago.
    fn is(&self, number: i64, ago: Duration) -> bool {
        self.number == number && (number != 0 || self.age >= ago)
    }

    fn can_be_watched(&self, asked: Instant) -> bool {
        self.busy_since.is_some_and(|since| asked.duration_since(since) >= WATCHED)
    }
}

/// A statement that was seen in the midst of its work.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    session: u64,
    number: i64,
    /// Before it was seen.
    noted: Instant,
    /// It began after this, or has taken no number before.
    pub(super) began: Option<Instant>,
}

/// Sessions that have locked no table, with the numbers of their statements.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    asked: Instant,
    sessions: HashMap<u64, i64>,
}

impl Running {
    fn new(asked: Instant, statements: HashMap<u64, Statement>, before: Option<&Self>) -> Self {
        let mut running = Self { asked, answered: Instant::now(), statements };
        if let Some(before) = before {
            running.compare(before);
        }
        running
    }

    /// A list that had come before this one was asked for.
    fn compare(&mut self, before: &Self) {
        let ago = self.answered.duration_since(before.asked);
        for (session, statement) in &mut self.statements {
            let Some(earlier) = before.statements.get(session) else {
                statement.began = Some(before.asked);
                continue;
            };
            (statement.began, statement.at_work) = (earlier.began, earlier.at_work);
            if statement.busy && earlier.busy && statement.is(earlier.number, ago) {
                statement.busy_since = earlier.busy_since;
            }
        }
    }

    /// None of them can use a number that was given out before this; `None` if that is not known.
    pub(super) fn since(&self) -> Option<Instant> {
        self.statements.values().map(|statement| statement.began).min().unwrap_or(Some(self.asked))
    }

    /// The same of those that are not watched.
    pub(super) fn unwatched_since(&self) -> Option<Instant> {
        let unwatched =
            self.statements.values().filter(|statement| !statement.can_be_watched(self.asked));
        unwatched.map(|statement| statement.began).min().unwrap_or(Some(self.asked))
    }

    /// Those that can be watched.
    pub(super) fn watched(&self) -> impl Iterator<Item = Watched> + '_ {
        let watched =
            self.statements.iter().filter(|(_, statement)| statement.can_be_watched(self.asked));
        watched.map(|(&session, statement)| Watched {
            session,
            number: statement.number,
            noted: self.asked,
            began: statement.began,
        })
    }

    /// Whether this one is still in the midst of its work.
    pub(super) fn has(&self, watched: &Watched) -> bool {
        let ago = self.answered.duration_since(watched.noted);
        self.statements
            .get(&watched.session)
            .is_some_and(|statement| statement.busy && statement.is(watched.number, ago))
    }

    fn has_long(&self) -> bool {
        let at_work = self.statements.values().map(|statement| statement.at_work);
        at_work.min().is_some_and(|since| self.asked.duration_since(since) >= LONG)
    }

    /// Those that had locked nothing, and were the same, both times: until the first time they had taken no number.
    /// Returns their sessions.
    fn only_read(&mut self, earlier: &Readers, now: &Readers) -> Vec<u64> {
        let ago = self.answered.duration_since(earlier.asked);
        let mut sessions = Vec::new();
        for (session, statement) in &mut self.statements {
            let same = |&number: &i64| statement.is(number, ago);
            let read = earlier.sessions.get(session).is_some_and(same);
            if read && now.sessions.contains_key(session) && !statement.inserts {
                statement.began = statement.began.max(Some(earlier.asked));
                sessions.push(*session);
            }
        }
        sessions
    }
}

#[cfg(test)]
impl Running {
    /// Nothing runs.
    pub(super) fn none(asked: Instant) -> Self {
        Self { asked, answered: asked, statements: HashMap::new() }
    }

    /// One statement that has been in the midst of its work since it was seen first.
    pub(super) fn of_one(session: u64, number: i64, asked: Instant, began: Instant) -> Self {
        let statement = Statement {
            number,
            age: asked.duration_since(began),
            busy: true,
            inserts: false,
            began: Some(began),
            at_work: began,
            busy_since: Some(began),
        };
        Self { asked, answered: asked, statements: HashMap::from([(session, statement)]) }
    }
}

impl Watched {
    /// Whether it is the one of this session.
    pub(super) fn is_of(&self, session: u64) -> bool {
        self.session == session
    }

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
        reader: Reader,
    ) -> Result<Option<Running>> {
        let before = self.tracker_of(reader)?.listed.clone();
        let asked = Instant::now();
        for (query, age, rounded) in COLUMNS {
            let sql = RUNNING.replace("{query}", query).replace("{age}", age);
            let statements = sqlx::query(AssertSqlSafe(sql))
                .try_map(|row| Statement::of(&row, rounded, asked))
                .fetch_all(&mut *connection)
                .await;
            let statements = match statements {
                Ok(statements) => statements.into_iter().flatten().collect(),
                Err(error) if number(&error) == UNKNOWN_COLUMN => continue,
                Err(error) if NOT_SHOWN.contains(&number(&error)) => return Ok(None),
                Err(error) => return Err(failed(DOING)(error)),
            };
            let running = Arc::new(Running::new(asked, statements, before.as_deref()));
            self.tracker_of(reader)?.listed = Some(Arc::clone(&running));
            return Ok(Some(Running::clone(&running)));
        }
        // Without a list of statements nothing is known to have ended.
        Ok(None)
    }

    /// Finds out which only read, if some have been at work for long.
    pub(super) async fn without_readers(
        &self,
        connection: &mut MySqlConnection,
        reader: Reader,
        mut running: Running,
    ) -> Result<Running> {
        let recent = |at: Instant| at.elapsed() < READERS_INTERVAL;
        if !running.has_long() || self.tracker_of(reader)?.readers_at.is_some_and(recent) {
            return Ok(running);
        }
        self.tracker_of(reader)?.readers_at = Some(Instant::now());
        let sessions = self.readers(connection).await?;
        let numbers = running.statements.iter();
        let of_readers = numbers.filter(|(session, _)| sessions.contains(session));
        let now = Readers {
            asked: running.asked,
            sessions: of_readers.map(|(&session, statement)| (session, statement.number)).collect(),
        };
        let earlier = self.tracker_of(reader)?.readers.replace(now.clone());
        if let Some(earlier) = earlier {
            let readers = running.only_read(&earlier, &now);
            self.tracker_of(reader)?.only_read(&readers, earlier.asked);
        }
        Ok(running)
    }

    /// The sessions with open transactions that lock no table.
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
        let (mut readers, mut writers, mut fresh) = (HashSet::new(), HashSet::new(), false);
        for row in &rows {
            let column = |index| row.try_get_unchecked::<u64, _>(index).map_err(failed(DOING));
            fresh |= column(2)? != 0;
            let of_its_kind = if column(1)? == 0 { &mut readers } else { &mut writers };
            of_its_kind.insert(column(0)?);
        }
        if !fresh {
            return Ok(HashSet::new());
        }
        Ok(&readers - &writers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn listed(asked: Instant, list: &[(u64, i64, bool)], before: Option<&Running>) -> Running {
        let statement = |&(session, number, busy): &(u64, i64, bool)| {
            let statement = Statement {
                number,
                age: Duration::ZERO,
                busy,
                inserts: false,
                began: None,
                at_work: asked,
                busy_since: busy.then_some(asked),
            };
            (session, statement)
        };
        let mut running = Running::none(asked);
        running.statements = list.iter().map(statement).collect();
        if let Some(before) = before {
            running.compare(before);
        }
        running
    }

    #[test]
    fn a_statement_began_after_the_last_list_in_which_its_session_was_idle() {
        let now = Instant::now();
        assert_eq!(Running::none(now).since(), Some(now));
        let first = listed(now, &[(7, 1, true)], None);
        assert_eq!(first.since(), None, "nobody knows");
        let second = listed(now + SECOND, &[(7, 2, true), (8, 3, true)], Some(&first));
        assert_eq!(second.statements[&8].began, Some(now));
        assert_eq!(second.since(), None, "2 may be a part of 1");
        let third = listed(now + 2 * SECOND, &[(8, 9, true)], Some(&second));
        assert_eq!(third.since(), Some(now), "9 may be a part of 3");
        let fourth = listed(now + 3 * SECOND, &[(7, 10, true)], Some(&third));
        assert_eq!(fourth.since(), Some(now + 2 * SECOND));
    }

    #[test]
    fn a_thread_that_applies_counts_until_it_waits_for_more() {
        for (command, state) in [
            ("Slave_SQL", "Slave has read all relay log; waiting for more updates"),
            ("Query", "Replica has read all relay log; waiting for more updates"),
            ("Connect", "Has read all relay log; waiting for the slave I/O thread to update it"),
            ("Slave_worker", "Waiting for work from SQL thread"),
            ("Query", "Waiting for an event from Coordinator"),
            ("Slave_IO", "Queueing master event to the relay log"),
            ("Connect", "Waiting for source to send event"),
            ("Connect", "Connecting to source"),
            ("Connect", "Reconnecting after a failed source event read"),
            ("Connect", "Waiting to reconnect after a failed source event read"),
        ] {
            assert!(!may_apply(command, state, ""), "{command}: {state}");
        }
        for (command, state) in [
            ("Slave_SQL", "Reading event from the relay log"),
            ("Slave_SQL", "Update"),
            ("Slave_SQL", "Waiting for room in worker thread event queue"),
            ("Slave_SQL", "Waiting until MASTER_DELAY seconds after master executed event"),
            ("Slave_worker", "Waiting for prior transaction to commit"),
            ("Query", "Applying batch of row changes (write)"),
            ("Query", "Waiting for dependent transaction to commit"),
            ("Connect", ""),
        ] {
            assert!(may_apply(command, state, ""), "{command}: {state}");
        }
        let module = "Group replication applier module";
        assert!(!may_apply("Connect", "waiting for handler commit", module));
    }

    #[test]
    fn a_watched_statement_is_known_by_its_number_or_its_age() {
        let begun = Instant::now();
        let now = begun + 2 * SECOND;
        let later = now + 3 * SECOND;
        let one = |number, asked, began| Running::of_one(7, number, asked, began);
        let numbered = one(12, now, begun + SECOND).watched().next().unwrap();
        assert!(one(12, later, later).has(&numbered));
        assert!(!one(13, later, now).has(&numbered), "the next one");
        let mut commits = one(12, later, now);
        commits.statements.values_mut().for_each(|statement| statement.busy = false);
        assert!(!commits.has(&numbered), "it may be committing");
        let aged = one(0, now, begun).watched().next().unwrap();
        assert!(one(0, later, begun).has(&aged));
        assert!(!one(0, later, now + SECOND).has(&aged), "it began after that");
    }

    #[test]
    fn only_statements_that_stay_in_the_midst_of_their_work_are_watched() {
        let now = Instant::now();
        let first = listed(now, &[(7, 1, true), (8, 2, false), (9, 3, true)], None);
        assert_eq!(first.watched().count(), 0, "they may end soon");
        let list = [(7, 1, true), (8, 2, false), (9, 4, true)];
        let second = listed(now + SECOND, &list, Some(&first));
        let watched: Vec<u64> = second.watched().map(|watched| watched.session).collect();
        assert_eq!(watched, [7]);
    }

    #[test]
    fn a_reader_is_seen_twice_without_a_lock_and_does_not_insert() {
        let now = Instant::now();
        let readers = |asked, sessions: &[(u64, i64)]| Readers {
            asked,
            sessions: sessions.iter().copied().collect(),
        };
        let earlier = readers(now, &[(1, 11), (2, 12), (3, 13), (5, 15)]);
        let later = now + SECOND;
        let list = [(1, 11, true), (2, 22, true), (3, 13, true), (4, 14, true), (5, 15, true)];
        let mut running = listed(later, &list, None);
        running.statements.get_mut(&5).unwrap().inserts = true;
        let now = readers(later, &[(1, 11), (2, 22), (4, 14), (5, 15)]);
        assert_eq!(running.only_read(&earlier, &now), [1]);
        let unknown = |(&session, one): (&u64, &Statement)| one.began.is_none().then_some(session);
        let mut left: Vec<u64> = running.statements.iter().filter_map(unknown).collect();
        left.sort_unstable();
        assert_eq!(left, [2, 3, 4, 5], "another one, a lock, new, waits to insert");
    }

    #[test]
    fn a_reader_can_use_numbers_that_are_given_out_after_it_was_seen_first() {
        let now = Instant::now();
        let later = now + SECOND;
        let readers = |asked| Readers { asked, sessions: [(1, 11)].into() };
        let mut running = listed(later, &[(1, 11, true)], None);
        assert_eq!(running.since(), None, "nobody knows when it began");
        assert_eq!(running.only_read(&readers(now), &readers(later)), [1]);
        assert_eq!(running.since(), Some(now), "its first number may be a younger one");
    }
}
