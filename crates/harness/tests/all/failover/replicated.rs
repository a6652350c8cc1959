//! A primary and a standby that follows it, as each kind of server has them.

use posthaste_testkit::wait;
use sqlx::{MySql, MySqlPool, PgPool, Pool, Postgres, Row};

use super::{Successor, forwarder::Forwarder};
use crate::servers::{Engine, Place, Server, free_address, twin};

/// Both, and the connection between them.
pub(super) struct Pair<DB: Engine> {
    pub(super) primary: Server<DB>,
    pub(super) link: Forwarder,
    pub(super) standby: Server<DB>,
}

/// A kind of server that has standbys.
pub(super) trait Replicated: Engine {
    /// Variables that name its programs.
    const SOFTWARE: &[&str];

    /// Who can take over.
    const SUCCESSORS: &[Successor];

    async fn pair(place: &Place, twins: bool) -> Pair<Self>;

    /// Ends the primary, and starts it again, under its own name, with the data of the standby.
    async fn restore(place: &Place, primary: Server<Self>, standby: Server<Self>) -> Server<Self>;

    /// Makes a standby a primary.
    async fn promote(standby: &Pool<Self>);

    /// Small transactions of somebody else, more than were lost.
    async fn others(on: &Pool<Self>);

    /// The number of the last transaction.
    async fn last_transaction(on: &Pool<Self>) -> i64;
}

impl Replicated for Postgres {
    const SOFTWARE: &[&str] =
        &["POSTHASTE_TEST_POSTGRES_SERVER", "POSTHASTE_TEST_POSTGRES_18_SERVER"];

    const SUCCESSORS: &[Successor] = &[Successor::Standby];

    async fn pair(place: &Place, _: bool) -> Pair<Self> {
        let primary: Server<Self> = place.start("primary", free_address(), &[]).await;
        let link = Forwarder::to(primary.address).await;
        let standby = place.standby(free_address(), link.address.port()).await;
        Pair { primary, link, standby }
    }

    async fn restore(_: &Place, _: Server<Self>, _: Server<Self>) -> Server<Self> {
        unreachable!("it is not among the successors")
    }

    async fn promote(standby: &PgPool) {
        let promoted = sqlx::query_scalar("select pg_promote(true, 30)").fetch_one(standby).await;
        let promoted: bool = promoted.expect("the standby was not promoted");
        assert!(promoted, "the standby was not promoted in time");
    }

    async fn others(on: &PgPool) {
        const TRAFFIC: &str = "
            do $$ begin
                for n in 1..3000 loop
                    insert into traffic values (n);
                    commit;
                end loop;
            end $$";

        sqlx::raw_sql("create table traffic (n int)").execute(on).await.expect("a table");
        sqlx::raw_sql(TRAFFIC).execute(on).await.expect("traffic");
    }

    async fn last_transaction(on: &PgPool) -> i64 {
        const NEXT: &str = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint";

        sqlx::query_scalar(NEXT).fetch_one(on).await.expect("a transaction id")
    }
}

/// What a server that can be followed, and followed for longer than one step, is told.
const REPLICATES: [&str; 5] = [
    "log-bin = binlog",
    "binlog-format = row",
    "log-slave-updates",
    "skip-slave-start",
    "innodb-flush-log-at-trx-commit = 2",
];

/// By how many seconds the same server seems to have been started at another time when it is asked again.
const START_DOUBT: i64 = 2;

impl Replicated for MySql {
    const SOFTWARE: &[&str] = &["POSTHASTE_TEST_MARIADB_SERVER"];

    const SUCCESSORS: &[Successor] = &[Successor::Twin, Successor::Restored, Successor::Standby];

    async fn pair(place: &Place, twins: bool) -> Pair<Self> {
        let at = free_address();
        let other = if twins { twin(at) } else { free_address() };
        let settings = |id| [&REPLICATES[..], &[id]].concat();
        let (one, two) = (settings("server-id = 1"), settings("server-id = 2"));
        let (primary, standby): (Server<Self>, Server<Self>) =
            tokio::join!(place.start("primary", at, &one), place.start("standby", other, &two));
        let apart = (started(&primary.pool).await - started(&standby.pool).await).abs();
        assert!(!twins || apart <= START_DOUBT, "they were started {apart} s apart");

        let link = Forwarder::to(primary.address).await;
        let follow = format!(
            "change master to master_host = '127.0.0.1', master_port = {}, master_user = 'posthaste',
                master_password = 'posthaste', master_use_gtid = slave_pos;
             start slave",
            link.address.port()
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(follow)).execute(&standby.pool).await.expect("a replica");
        Pair { primary, link, standby }
    }

    async fn restore(place: &Place, primary: Server<Self>, standby: Server<Self>) -> Server<Self> {
        let old = async || uptime(&primary.pool).await > 2 * START_DOUBT;
        wait::asked("a start that differs", old).await;
        let address = primary.address;
        standby.stop();
        primary.kill();
        let settings = [&REPLICATES[..], &["server-id = 1"]].concat();
        place.start("standby", address, &settings).await
    }

    async fn promote(standby: &MySqlPool) {
        const PROMOTE: &str = "stop slave; reset slave all";

        sqlx::raw_sql(PROMOTE).execute(standby).await.expect("the replica was not promoted");
    }

    async fn others(on: &MySqlPool) {
        const TRAFFIC: &str = "
            create table traffic (n int);
            begin not atomic
                for n in 1..3000 do
                    insert into traffic values (n);
                end for;
            end";

        sqlx::raw_sql(TRAFFIC).execute(on).await.expect("traffic");
    }

    async fn last_transaction(on: &MySqlPool) -> i64 {
        const LAST: &str = "
            select cast(substring_index(@@global.gtid_binlog_pos, '-', -1) as signed)";

        sqlx::query_scalar(LAST).fetch_one(on).await.expect("a transaction's number")
    }
}

/// When this server seems to have been started, in seconds.
async fn started(on: &MySqlPool) -> i64 {
    let now: i64 = sqlx::query_scalar("select cast(unix_timestamp() as signed)")
        .fetch_one(on)
        .await
        .expect("the time");
    now - uptime(on).await
}

async fn uptime(on: &MySqlPool) -> i64 {
    const UPTIME: &str = "show global status where variable_name = 'Uptime'";

    let row = sqlx::query(UPTIME).fetch_one(on).await.expect("the uptime");
    row.get::<String, _>(1).parse().expect("seconds")
}
