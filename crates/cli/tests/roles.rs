//! What `deploy/` grants: rights that suffice for housekeeping, too, and no more.

mod command;

use std::{borrow::Cow, path::Path, sync::Arc, time::Duration};

use command::{stderr, stdout};
use posthaste::{
    Dialect, Event, Inbox, Outbox,
    relay::{Config, Housekeeping, Relay, Retention},
    stores::{Options, Tables, connect, inbox::InboxDialect},
    transport::Outcome,
    transports::memory::MemoryTransport,
};
use posthaste_testkit::{
    tables::{drop_outbox, unique},
    wait,
};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Database, Decode, Executor, MySql, Pool, Postgres, Row, Type,
};

const ROUNDS: usize = 10;

/// A database with accounts.
trait Server: Dialect + InboxDialect {
    /// The file that grants, with the name of the outbox and of the accounts in it.
    const FILE: &str;
    const OUTBOX: &str;

    /// An error that says that the account may not do this.
    const FORBIDDEN: &[&str];

    /// A key that has expired.
    const EXPIRED_KEY: &str;

    /// What an account may not do with columns that only this server has, or keeps from it: the account's name in
    /// the file, and a statement.
    const MAY_NOT: &[(&str, &str)];

    /// Whether an entry of the audit names the account, as the server knows it.
    fn names(account: &str) -> String;

    /// Begins statements that fail when others change the rights to the same schema meanwhile.
    const ALONE: &str;

    /// Statements that make an account.
    fn make(account: &str) -> Vec<String>;

    fn end(account: &str) -> String;

    /// The URL for this account.
    fn acting_as(url: &str, account: &str) -> String;

    /// The table as the file writes it.
    fn qualified(table: &str) -> String;
}

impl Server for Postgres {
    const FILE: &str = "postgres/roles.sql";
    const OUTBOX: &str = "outbox_event";
    const FORBIDDEN: &[&str] = &["42501"];
    const EXPIRED_KEY: &str = "insert into {idempotency}
        (scope, idempotency_key, fingerprint, locked_by, locked_until, expires_at, body)
        values ('s', gen_random_uuid()::text, '', '', now(), now() - interval '1 second', 'secret')";

    const MAY_NOT: &[(&str, &str)] = &[
        // An event under a number of one's own choice.
        (
            "writer",
            "insert into {events} (event_id, event_type, payload, sequence) overriding system value
             values ('0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a', 'x', '', 9000000000000000000)",
        ),
        // Or of another transaction: the relay would look for it in the wrong place.
        (
            "writer",
            "insert into {events} (event_id, event_type, payload, xid)
             values ('0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a', 'x', '', '3')",
        ),
        ("relay", "update {events} set xid = '3'"),
        ("operator", "update {events} set xid = '3'"),
        (
            "operator",
            "insert into {audit} (changed_by, action, subject, client_addr)
             values ('a', 'b', 'c', '192.0.2.1')",
        ),
    ];

    /// The login does not change with its role.
    fn names(_: &str) -> String {
        "db_user = session_user".to_owned()
    }

    const ALONE: &str = "select pg_advisory_xact_lock(7405);";

    /// The file makes them.
    fn make(_: &str) -> Vec<String> {
        Vec::new()
    }

    fn end(account: &str) -> String {
        format!("drop owned by {account}; drop role {account}")
    }

    /// The same login in another role.
    fn acting_as(url: &str, account: &str) -> String {
        let separator = if url.contains('?') { '&' } else { '?' };
        format!("{url}{separator}options[role]={account}")
    }

    fn qualified(table: &str) -> String {
        table.to_owned()
    }
}

impl Server for MySql {
    const FILE: &str = "mysql/grants.sql";
    const OUTBOX: &str = "shop.outbox_event";
    /// To the whole table, to a column.
    const FORBIDDEN: &[&str] = &["1142", "1143"];
    const EXPIRED_KEY: &str = "insert into {idempotency}
        (scope, idempotency_key, fingerprint, locked_by, locked_until, expires_at, body)
        values ('s', uuid(), '', '', utc_timestamp(6), utc_timestamp(6) - interval 1 second, 'secret')";
    const MAY_NOT: &[(&str, &str)] = &[(
        "writer",
        "insert into {events} (event_id, event_type, payload, sequence)
         values ('0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a', 'x', '', 9000000000000000000)",
    )];
    const ALONE: &str = "";

    fn names(account: &str) -> String {
        format!("locate('{account}@', db_user) = 1")
    }

    fn make(account: &str) -> Vec<String> {
        vec![format!("create user {account} identified by 'secret'")]
    }

    fn end(account: &str) -> String {
        format!("drop user {account}")
    }

    fn acting_as(url: &str, account: &str) -> String {
        let (_, place) = url.split_once('@').expect("an account in the URL");
        format!("mysql://{account}:secret@{place}")
    }

    fn qualified(table: &str) -> String {
        format!("posthaste.{table}")
    }
}

/// An outbox and its accounts, each with the name that the file gives it behind the outbox's own.
struct Ground<DB: Server> {
    url: String,
    tables: Tables,
    owner: Pool<DB>,
}

impl<DB: Server> Ground<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    i64: Type<DB> + for<'r> Decode<'r, DB>,
    usize: ColumnIndex<DB::Row>,
{
    async fn new(variable: &str) -> Self {
        let url = std::env::var(variable).expect("scripts/servers starts it");
        let tables = unique("roles");
        let table = tables.name().to_string();
        let at = ["--url", &url, "--table", &table, "--shards", "8"];
        command::succeed(&[&["migrate"], &at[..]].concat());
        let ground = Self { owner: Pool::connect(&url).await.unwrap(), url, tables };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(DB::FILE);
        let mut grants = std::fs::read_to_string(&file).unwrap();
        for of in ["writer", "relay", "operator"] {
            let account = ground.account(of);
            for sql in DB::make(&account) {
                ground.sql(&sql).await;
            }
            grants = grants.replace(&format!("posthaste_{of}"), &account);
        }
        let grants = grants.replace(DB::OUTBOX, &DB::qualified(&table));
        for _ in 0..2 {
            ground.sql(&format!("{}{grants}", DB::ALONE)).await;
        }
        ground
    }

    fn account(&self, of: &str) -> String {
        format!("{}_{of}", self.tables.name())
    }

    fn url_of(&self, of: &str) -> String {
        DB::acting_as(&self.url, &self.account(of))
    }

    async fn pool_of(&self, of: &str) -> Pool<DB> {
        Pool::connect(&self.url_of(of)).await.unwrap()
    }

    async fn sql(&self, sql: &str) {
        execute(&self.owner, self.tables.fill(sql)).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    async fn count(&self, of: &str) -> i64 {
        let sql = self.tables.fill(&format!("select count(*) from {of}"));
        let mut connection = self.owner.acquire().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut *connection).await.unwrap().get(0)
    }

    /// The account may not do it, and nothing else is wrong with it.
    async fn forbidden(&self, pool: &Pool<DB>, sql: &str) {
        let error = execute(pool, self.tables.fill(sql)).await.expect_err(sql);
        let code: Option<String> = match error.as_database_error() {
            Some(error) if DB::NAME == "MySQL" => {
                let error = error.downcast_ref::<sqlx::mysql::MySqlDatabaseError>();
                Some(error.number().to_string())
            }
            error => error.and_then(|error| error.code().map(Cow::into_owned)),
        };
        assert!(code.is_some_and(|code| DB::FORBIDDEN.contains(&&*code)), "{sql}: {error}");
    }

    /// None of these, nor what no account but the owner may do with a table.
    async fn may_not(&self, of: &str, statements: &[&str]) {
        let pool = self.pool_of(of).await;
        for sql in statements {
            self.forbidden(&pool, sql).await;
        }
        for (_, sql) in DB::MAY_NOT.iter().filter(|(whose, _)| *whose == of) {
            self.forbidden(&pool, sql).await;
        }
        for table in TABLES {
            for verb in ["truncate table", "drop table"] {
                self.forbidden(&pool, &format!("{verb} {table}")).await;
            }
            self.forbidden(&pool, &format!("alter table {table} add column forged int")).await;
        }
        pool.close().await;
    }

    /// A run of the program under this account.
    fn posthaste(&self, of: &str, args: &[&str]) -> std::process::Output {
        self.command(of, args).output().expect("the binary runs")
    }

    fn command(&self, of: &str, args: &[&str]) -> std::process::Command {
        let (url, table) = (self.url_of(of), self.tables.name().to_string());
        command::command(&[args, &["--url", &url, "--table", &table]].concat())
    }

    /// What doctor says about the account.
    fn privileges(&self, of: &str) -> serde_json::Value {
        let said = stdout(&self.posthaste(of, &["doctor", "--json", "--no-destinations"]));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let found = said["findings"].as_array().unwrap().iter();
        found.clone().find(|finding| finding["check"] == "privileges").unwrap().clone()
    }

    async fn end(self) {
        drop_outbox(&self.owner, &self.tables).await.unwrap();
        for of in ["operator", "writer", "relay"] {
            self.sql(&format!("{}{}", DB::ALONE, DB::end(&self.account(of)))).await;
        }
    }
}

impl Ground<Postgres> {
    /// The tests' login may act as each of them.
    async fn take_on_the_roles(&self) {
        for of in ["writer", "relay", "operator"] {
            self.sql(&format!("grant {} to current_user", self.account(of))).await;
        }
    }
}

async fn execute<DB: Database>(pool: &Pool<DB>, sql: String) -> Result<(), sqlx::Error>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let mut connection = pool.acquire().await?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await.map(drop)
}

const TABLES: [&str; 10] = [
    "{events}",
    "{shards}",
    "{relays}",
    "{attempts}",
    "{controls}",
    "{meta}",
    "{inbox}",
    "{idempotency}",
    "{audit}",
    "{life}",
];

/// What no account but the owner may do, and what only some may.
const WRITER_MAY_NOT: [&str; 10] = [
    "select payload from {events}",
    "update {events} set event_type = 'x'",
    "delete from {events}",
    // An event that is never delivered.
    "insert into {events} (event_id, event_type, payload, sent_at)
     values ('0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a', 'x', '', null)",
    "insert into {events} (event_id, event_type, payload, created_at)
     values ('0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a', 'x', '', null)",
    "select owner from {relays}",
    "update {shards} set mark = 0",
    "select id from {audit}",
    "insert into {controls} (kind, name, value, set_by) values ('outbox', '', null, 'x')",
    "update {meta} set purge_position = 0",
];

const RELAY_MAY_NOT: [&str; 10] = [
    "insert into {events} (event_id, event_type, payload)
     values ('0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a', 'x', '')",
    "update {events} set payload = 'forged'",
    "update {events} set tenant = 'other'",
    "update {events} set replay = 1",
    "select body from {idempotency}",
    "insert into {inbox} (consumer, message_id) values ('c', 'm')",
    "select id from {audit}",
    "insert into {controls} (kind, name, value, set_by) values ('outbox', '', null, 'x')",
    "delete from {controls} where kind = 'outbox'",
    "update {meta} set version = 0",
];

const OPERATOR_MAY_NOT: [&str; 11] = [
    "insert into {events} (event_id, event_type, payload)
     values ('0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a', 'x', '')",
    "update {events} set payload = 'forged'",
    "select body from {idempotency}",
    "delete from {audit}",
    "update {audit} set changed_by = 'alice'",
    "update {audit} set action = 'doctor', subject = ''",
    "update {audit} set db_user = 'alice'",
    "insert into {audit} (changed_by, action, subject, db_user) values ('a', 'b', 'c', 'alice')",
    "insert into {audit} (changed_by, action, subject, ended_at) values ('a', 'b', 'c', null)",
    "insert into {audit} (changed_by, action, subject, at) values ('a', 'b', 'c', '2026-01-01')",
    "update {meta} set shards = 1",
];

async fn each_account_can_do_its_work_and_nothing_else<DB: Server>(ground: &Ground<DB>)
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    i64: Type<DB> + for<'r> Decode<'r, DB>,
    usize: ColumnIndex<DB::Row>,
{
    let writer = ground.pool_of("writer").await;
    let outbox = Outbox::new(ground.tables.name().clone());
    let event = || Event::builder("OrderPlaced").aggregate("Order", 1).raw_json("{}");
    let first = event().build().unwrap();
    let mut tx = outbox.begin(&writer).await.unwrap();
    outbox.enqueue(&mut tx, first.clone()).await.unwrap();
    tx.commit().await.unwrap();
    // The same id again, alone and among others.
    let mut tx = outbox.begin(&writer).await.unwrap();
    assert!(outbox.enqueue(&mut tx, first.clone()).await.unwrap().unwrap().duplicate);
    let more = outbox.enqueue_all(&mut tx, vec![first, event().build().unwrap()]).await.unwrap();
    assert_eq!(more.iter().map(|one| one.duplicate).collect::<Vec<_>>(), [true, false]);
    tx.commit().await.unwrap();
    ground.may_not("writer", &WRITER_MAY_NOT).await;

    let output = ground.posthaste("relay", &["relay", "--to", "log", "--once"]);
    assert_eq!(stdout(&output).matches("OrderPlaced").count(), 2, "{}", stderr(&output));
    for ordering in ["none", "global"] {
        let mut tx = outbox.begin(&writer).await.unwrap();
        outbox.enqueue(&mut tx, event().build().unwrap()).await.unwrap();
        tx.commit().await.unwrap();
        let mut relay = ground.command("relay", &["relay", "--to", "log", "--once"]);
        let output = relay.env("POSTHASTE_RELAY_ORDERING", ordering).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.success(), "{ordering}: {said}");
        assert_eq!(stdout(&output).matches("OrderPlaced").count(), 1, "{ordering}: {said}");
    }
    writer.close().await;
    let found = ground.privileges("relay");
    assert_eq!(found["level"], "note", "{found}");
    let output = ground.posthaste("relay", &["pause", "outbox"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    ground.may_not("relay", &RELAY_MAY_NOT).await;

    let found = ground.privileges("operator");
    assert_eq!(found["level"], "ok", "{found}");
    for args in [
        &["pause", "outbox"][..],
        &["resume", "outbox"],
        &["purge", "--retention", "1h"],
        &["replay", "--key", "Order/1", "--yes"],
        &["dead", "discard", "--all", "--yes"],
    ] {
        let output = ground.posthaste("operator", args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    }
    ground.may_not("operator", &OPERATOR_MAY_NOT).await;
    let named = DB::names(&ground.account("operator"));
    assert!(ground.count("{audit}").await >= 4, "every change has an entry");
    assert_eq!(ground.count(&format!("{{audit}} where not ({named})")).await, 0);
}

#[tokio::test]
async fn roles_on_postgres_suffice_and_no_more() {
    let ground = Ground::<Postgres>::new("POSTHASTE_TEST_POSTGRES").await;
    ground.take_on_the_roles().await;
    each_account_can_do_its_work_and_nothing_else(&ground).await;

    // How an entry has ended is written once, also by who may write it.
    let operator = ground.pool_of("operator").await;
    assert_eq!(ground.count("{audit} where ended_at is null").await, 0);
    ground.forbidden(&operator, "update {audit} set affected = 0, error = null").await;
    let add = "insert into {audit} (changed_by, action, subject) values ('a', 'b', 'c')";
    execute(&operator, ground.tables.fill(add)).await.unwrap();
    let end = "update {audit} set ended_at = now(), affected = 3 where ended_at is null";
    execute(&operator, ground.tables.fill(end)).await.unwrap();
    ground.forbidden(&operator, "update {audit} set affected = 4 where changed_by = 'a'").await;
    operator.close().await;
    ground.end().await;
}

#[tokio::test]
async fn grants_on_mariadb_suffice_and_no_more() {
    let ground = Ground::<MySql>::new("POSTHASTE_TEST_MARIADB").await;
    each_account_can_do_its_work_and_nothing_else(&ground).await;
    ground.end().await;
}

async fn mysql() -> Option<Ground<MySql>> {
    const MYSQL: &str = "POSTHASTE_TEST_MYSQL";

    if std::env::var(MYSQL).is_err() {
        eprintln!("{MYSQL} is not set: no MySQL server to be had here");
        return None;
    }
    Some(Ground::new(MYSQL).await)
}

#[tokio::test]
async fn grants_on_mysql_suffice_and_no_more() {
    let Some(ground) = mysql().await else { return };
    each_account_can_do_its_work_and_nothing_else(&ground).await;
    ground.end().await;
}

/// Two relays under the relay's account, with a round of housekeeping this often.
async fn relays<DB: Server>(ground: &Ground<DB>, every: Duration) -> [Relay; 2]
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    i64: Type<DB> + for<'r> Decode<'r, DB>,
    usize: ColumnIndex<DB::Row>,
{
    let now = Duration::from_millis(1);
    let mut relays = Vec::new();
    for name in ["a", "b"] {
        let options = Options { table: ground.tables.name().clone(), ..Options::default() };
        let store = connect(&ground.url_of("relay"), &options).await.unwrap();
        let transport = MemoryTransport::scripted(|envelope| match envelope.event.event_type() {
            "Poison" => Outcome::Dead { error: "no".to_owned() },
            _ => Outcome::Delivered,
        });
        let config = Config {
            name: format!("{name}-{}", ground.tables.name()),
            busy_interval: Duration::from_millis(10),
            idle_interval: Duration::from_millis(50),
            housekeeping: Housekeeping {
                purge_interval: Some(every),
                retention: Retention { sent: now, dead: Some(now) },
                inbox_retention: now,
                ..Housekeeping::default()
            },
            ..Config::default()
        };
        let relay = Relay::new(store, Arc::new(transport), config).unwrap();
        relay.start().await.unwrap();
        relays.push(relay);
    }
    relays.try_into().map_err(|_| "two").unwrap()
}

async fn everything_due_is_purged_round_by_round<DB: Server>(ground: &Ground<DB>)
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    i64: Type<DB> + for<'r> Decode<'r, DB>,
    usize: ColumnIndex<DB::Row>,
{
    let nightly = std::env::var("POSTHASTE_NIGHTLY").is_ok();
    let every = if nightly { Duration::from_secs(5) } else { Duration::from_millis(200) };
    let [first, second] = relays(ground, every).await;
    let writer = ground.pool_of("writer").await;
    let outbox = Outbox::new(ground.tables.name().clone());
    let inbox = Inbox::<DB>::new(ground.tables.name().clone());
    // Both keep house in all of the rounds; then either of them does.
    for round in 0..=ROUNDS {
        if round == ROUNDS {
            first.stop().await.unwrap();
        }
        let mut tx = outbox.begin(&writer).await.unwrap();
        for (n, kind) in ["Placed", "Poison", "Placed"].into_iter().enumerate() {
            let event = Event::builder(kind).aggregate("Order", n).raw_json("{}").build().unwrap();
            outbox.enqueue(&mut tx, event).await.unwrap();
        }
        assert!(inbox.first(&mut tx, "billing", &round.to_string()).await.unwrap());
        tx.commit().await.unwrap();
        execute(&writer, ground.tables.fill(DB::EXPIRED_KEY)).await.unwrap();
        for table in ["{events}", "{attempts}", "{inbox}", "{idempotency}"] {
            let what = format!("round {round}: {table} to be empty");
            wait::asked(&what, async || ground.count(table).await == 0).await;
        }
    }
    second.stop().await.unwrap();
    writer.close().await;
}

#[tokio::test]
async fn relays_under_the_role_of_postgres_purge_everything_due() {
    let ground = Ground::<Postgres>::new("POSTHASTE_TEST_POSTGRES").await;
    ground.take_on_the_roles().await;
    everything_due_is_purged_round_by_round(&ground).await;
    ground.end().await;
}

#[tokio::test]
async fn relays_under_the_grants_of_mariadb_purge_everything_due() {
    let ground = Ground::<MySql>::new("POSTHASTE_TEST_MARIADB").await;
    everything_due_is_purged_round_by_round(&ground).await;
    ground.end().await;
}

#[tokio::test]
async fn relays_under_the_grants_of_mysql_purge_everything_due() {
    let Some(ground) = mysql().await else { return };
    everything_due_is_purged_round_by_round(&ground).await;
    ground.end().await;
}

#[tokio::test]
async fn the_doctor_names_what_the_account_of_a_relay_lacks_on_mariadb() {
    let ground = Ground::<MySql>::new("POSTHASTE_TEST_MARIADB").await;
    assert_eq!(ground.privileges("relay")["level"], "note");
    let relay = ground.account("relay");
    for (right, table, lacks) in [
        ("update", "{attempts}", "grant update on {attempts} to "),
        ("delete", "{inbox}", "grant delete on {inbox} to "),
        ("update (lane)", "{events}", "sent_at) on {events} to "),
    ] {
        ground.sql(&format!("revoke {right} on {table} from {relay}")).await;
        let found = ground.privileges("relay");
        let mend = found["mend"].as_str().unwrap_or_default();
        let lacks = ground.tables.fill(lacks);
        assert!(found["level"] == "problem" && mend.contains(&lacks), "{right}: {found}");
        ground.sql(mend).await;
        let found = ground.privileges("relay");
        assert_eq!(found["level"], "note", "what mends it: {found}");
    }
    ground.end().await;
}

/// As with the roles of earlier editions: one right is missing, and the step that needs it comes first.
#[tokio::test]
async fn a_step_of_housekeeping_that_fails_keeps_no_other_from_its_turn() {
    let ground = Ground::<Postgres>::new("POSTHASTE_TEST_POSTGRES").await;
    ground.take_on_the_roles().await;
    let relay = ground.account("relay");
    ground.sql(&format!("revoke update (received_at) on {{inbox}} from {relay}")).await;
    let found = ground.privileges("relay");
    let mend = found["mend"].as_str().unwrap_or_default();
    let missing = ground.tables.fill("update (received_at) on {inbox}");
    assert!(found["level"] == "problem" && mend.contains(&missing), "{found}");

    ground.sql("insert into {inbox} (consumer, message_id) values ('billing', '1')").await;
    ground.sql(Postgres::EXPIRED_KEY).await;
    let [first, second] = relays(&ground, Duration::from_millis(200)).await;
    wait::asked("the keys to be purged", async || ground.count("{idempotency}").await == 0).await;
    assert_eq!(ground.count("{inbox}").await, 1, "the step that fails has been mended?");
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    ground.end().await;
}

/// What each command says under an account that lacks something.
struct Commands<'a> {
    url: String,
    table: &'a str,
}

impl Commands<'_> {
    fn run(&self, args: &[&str]) -> std::process::Output {
        command::posthaste(&[args, &["--url", &self.url, "--table", self.table]].concat())
    }

    /// Those that need a right send to the doctor, who says all of this.
    #[track_caller]
    fn send_to_the_doctor(&self, doctor_says: &[&str]) {
        for args in [&["status"][..], &["relay", "--to", "log", "--once"]] {
            let said = stderr(&self.run(args));
            for part in ["may not do this", "posthaste doctor"] {
                assert!(said.contains(part), "{args:?}: {said}");
            }
            assert!(!said.contains("at line"), "{said}");
        }
        let doctor = self.run(&["doctor", "--no-destinations"]);
        let said = stdout(&doctor);
        assert_eq!(doctor.status.code(), Some(1), "{said}{}", stderr(&doctor));
        for part in [&["may not read the outbox's tables", "privileges"], doctor_says].concat() {
            assert!(said.contains(part), "no {part:?}: {said}");
        }
        assert!(!said.contains("posthaste doctor"), "the doctor sends to the doctor: {said}");
    }

    /// Not even the doctor gets in: each command says itself what is missing.
    #[track_caller]
    fn are_kept_out(&self, says: &[&str]) {
        for args in
            [&["status"][..], &["relay", "--to", "log", "--once"], &["doctor", "--no-destinations"]]
        {
            let output = self.run(args);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
            for part in [&["the account may not use this database"], says].concat() {
                assert!(said.contains(part), "{args:?}: no {part:?}: {said}");
            }
            assert!(!said.contains("posthaste doctor"), "{args:?}: {said}");
        }
    }
}

/// An account that was granted nothing learns what it lacks, from each command.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_rights_learns_which_it_lacks() {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES").expect("scripts/servers starts it");
    let tables = unique("nothing");
    let table = tables.name().to_string();
    let role = format!("{table}_nobody");
    command::succeed(&["migrate", "--url", &url, "--table", &table]);
    let owner = sqlx::PgPool::connect(&url).await.unwrap();
    let made = format!("create role {role}; grant {role} to current_user");
    execute(&owner, made).await.unwrap();
    let as_nobody = <Postgres as Server>::acting_as(&url, &role);
    let on_meta = format!("on {table}_meta to {role}");
    Commands { url: as_nobody, table: &table }.send_to_the_doctor(&[
        "grant select",
        &on_meta,
        "deploy/postgres/roles.sql",
    ]);
    drop_outbox(&owner, &tables).await.unwrap();
    execute(&owner, format!("drop role {role}")).await.unwrap();
}

/// First it lacks the schema, then the tables in it.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_may_not_use_the_schema_learns_that() {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES").expect("scripts/servers starts it");
    let schema = unique("nothing").name().to_string();
    let (table, role) = (format!("{schema}.outbox"), format!("{schema}_nobody"));
    let owner = sqlx::PgPool::connect(&url).await.unwrap();
    let made = format!("create schema {schema}; create role {role}; grant {role} to current_user");
    execute(&owner, made).await.unwrap();
    command::succeed(&["migrate", "--url", &url, "--table", &table]);
    let as_nobody = <Postgres as Server>::acting_as(&url, &role);
    let commands = Commands { url: as_nobody, table: &table };
    let usage = format!("grant usage on schema {schema} to {role}");
    commands.send_to_the_doctor(&[&usage, "deploy/postgres/roles.sql"]);
    execute(&owner, usage).await.unwrap();
    commands.send_to_the_doctor(&["grant select", &format!("on {table}_meta to {role}")]);

    execute(&owner, format!("drop schema {schema} cascade; drop role {role}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_may_not_use_the_database_learns_that_from_every_command() {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES").expect("scripts/servers starts it");
    let database = unique("nothing").name().to_string();
    let role = format!("{database}_nobody");
    let owner = sqlx::PgPool::connect(&url).await.unwrap();
    // Not together with other statements.
    execute(&owner, format!("create database {database}")).await.unwrap();
    let made = format!(
        "revoke connect on database {database} from public; create role {role} login password 'secret'"
    );
    execute(&owner, made).await.unwrap();
    let (_, place) = url.split_once('@').expect("an account in the URL");
    let (server, _) = place.split_once('/').expect("a database in the URL");
    let as_nobody = format!("postgres://{role}:secret@{server}/{database}");
    let says = ["grant connect on database", "deploy/postgres/roles.sql"];
    Commands { url: as_nobody, table: "outbox_event" }.are_kept_out(&says);

    execute(&owner, format!("drop database {database}")).await.unwrap();
    execute(&owner, format!("drop role {role}")).await.unwrap();
}

/// A server of this kind lets nobody in who has no right there; with any right the doctor gets in.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_rights_on_mariadb_learns_which_it_lacks() {
    let url = std::env::var("POSTHASTE_TEST_MARIADB").expect("scripts/servers starts it");
    let tables = unique("nothing");
    let table = tables.name().to_string();
    let account = format!("{table}_nobody");
    command::succeed(&["migrate", "--url", &url, "--table", &table]);
    let owner = sqlx::MySqlPool::connect(&url).await.unwrap();
    for sql in MySql::make(&account) {
        execute(&owner, sql).await.unwrap();
    }
    let commands = Commands { url: MySql::acting_as(&url, &account), table: &table };
    commands.are_kept_out(&["deploy/mysql/grants.sql"]);
    let inbox = MySql::qualified(&format!("{table}_inbox"));
    execute(&owner, format!("grant select on {inbox} to {account}")).await.unwrap();
    let on_meta = format!("on {table}_meta to '{account}'");
    commands.send_to_the_doctor(&["grant select", &on_meta, "deploy/mysql/grants.sql"]);

    drop_outbox(&owner, &tables).await.unwrap();
    execute(&owner, MySql::end(&account)).await.unwrap();
}
