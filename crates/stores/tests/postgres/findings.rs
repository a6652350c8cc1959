//! Causes in the database that doctor names.

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    ErrorKind,
    store::{Diagnose, Finding, Level, Schema},
};
use posthaste_stores::{Options, Tables, postgres::PostgresStore};
use sqlx::{AssertSqlSafe, postgres::PgPoolOptions};

use crate::support::{Outbox, event};

async fn finding(store: &PostgresStore, check: &str) -> Finding {
    let findings = store.diagnose().await.unwrap();
    let found = findings.into_iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("{check} was not checked"))
}

#[tokio::test]
async fn settings_that_were_changed_are_found_and_the_statement_mends_them() {
    let outbox = Outbox::new().await;
    assert_eq!(finding(&outbox.store, "storage").await.level, Level::Ok);
    let mut connection = outbox.pool.acquire().await.unwrap();
    let change = "alter table {events} reset (autovacuum_vacuum_threshold), set (fillfactor = 100)";
    outbox.execute(&mut connection, change).await;
    let odd = finding(&outbox.store, "storage").await;
    assert_eq!(odd.level, Level::Warning);
    assert!(odd.text.contains("fillfactor=48"), "{}", odd.text);
    outbox.execute(&mut connection, &odd.mend.unwrap()).await;
    assert_eq!(finding(&outbox.store, "storage").await.level, Level::Ok);
    outbox.drop().await;
}

#[tokio::test]
async fn privileges_that_are_missing_are_named_with_the_grant_that_gives_them() {
    let outbox = Outbox::new().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    let role = format!("role_{}", outbox.tables.name().bare());
    // The account that asks has all privileges; it takes on a role that has few.
    outbox.execute(&mut connection, &format!("create role {role}")).await;
    outbox.execute(&mut connection, &format!("grant {role} to current_user")).await;
    for table in Tables::ALL {
        outbox.execute(&mut connection, &format!("grant select on {table} to {role}")).await;
    }
    let set_role = AssertSqlSafe(format!("set role {role}"));
    let limited = PgPoolOptions::new().max_connections(1);
    let limited = limited.connect_with((*outbox.pool.connect_options()).clone()).await.unwrap();
    sqlx::query(set_role).execute(&limited).await.unwrap();
    let limited = PostgresStore::new(limited, outbox.tables.clone());

    let lacking = finding(&limited, "privileges").await;
    assert_eq!(lacking.level, Level::Problem);
    for grant in [
        "locked_until, last_error, dead_at, sent_at), delete on {events}",
        "update (received_at) on {inbox}",
        "update (expires_at) on {idempotency}",
    ] {
        assert!(lacking.text.contains(&outbox.tables.fill(grant)), "{grant}: {}", lacking.text);
    }
    assert!(lacking.text.contains(&role), "{}", lacking.text);
    outbox.execute(&mut connection, &lacking.mend.unwrap()).await;
    let lacking = finding(&limited, "privileges").await;
    assert_eq!(lacking.level, Level::Note, "it relays, and cannot operate: {}", lacking.text);
    outbox.execute(&mut connection, &lacking.mend.unwrap()).await;
    assert_eq!(finding(&limited, "privileges").await.level, Level::Ok);

    limited.pool().close().await;
    outbox.execute(&mut connection, &format!("drop owned by {role}; drop role {role}")).await;
    drop(connection);
    outbox.drop().await;
}

#[tokio::test]
async fn a_right_to_single_columns_counts_for_these_columns_only() {
    let outbox = Outbox::new().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    let role = format!("role_{}", outbox.tables.name().bare());
    outbox.execute(&mut connection, &format!("create role {role}")).await;
    outbox.execute(&mut connection, &format!("grant {role} to current_user")).await;
    let grant = format!("grant update (attempts, wait) on {{events}} to {role}");
    outbox.execute(&mut connection, &grant).await;
    let limited = PgPoolOptions::new().max_connections(1);
    let limited = limited.connect_with((*outbox.pool.connect_options()).clone()).await.unwrap();
    for table in Tables::ALL {
        outbox.execute(&mut connection, &format!("grant select on {table} to {role}")).await;
    }
    sqlx::query(AssertSqlSafe(format!("set role {role}"))).execute(&limited).await.unwrap();
    let limited = PostgresStore::new(limited, outbox.tables.clone());
    let lacking = finding(&limited, "privileges").await;
    assert!(lacking.text.contains("update (attempts, not_before, wait"), "{}", lacking.text);
    limited.pool().close().await;
    outbox.execute(&mut connection, &format!("drop owned by {role}; drop role {role}")).await;
    drop(connection);
    outbox.drop().await;
}

#[tokio::test]
async fn a_server_on_this_machine_needs_no_tls() {
    let outbox = Outbox::new().await;
    let tls = finding(&outbox.store, "tls").await;
    assert_eq!(tls.level, Level::Ok);
    assert!(tls.text.contains("does not leave this machine"), "{}", tls.text);
    outbox.drop().await;
}

#[tokio::test]
async fn listening_through_a_transaction_pooler_is_found_out() {
    let outbox = Outbox::new().await;
    assert_eq!(finding(&outbox.store, "listen").await.level, Level::Ok);
    let url = std::env::var("POSTHASTE_TEST_PGBOUNCER")
        .expect("POSTHASTE_TEST_PGBOUNCER names a pooler; scripts/servers starts one");
    let swallowed = outbox.store.clone().with_listen_url(url);
    let lost = finding(&swallowed, "listen").await;
    assert_eq!(lost.level, Level::Warning);
    assert!(lost.mend.unwrap().contains("listen_url"));
    outbox.drop().await;
}

/// What a relay needs of its sessions no transaction pooler can give, and writers need none of it.
#[tokio::test]
async fn a_transaction_pooler_is_refused_by_whatever_needs_a_session() {
    let outbox = Outbox::new().await;
    for variable in ["POSTHASTE_TEST_PGBOUNCER", "POSTHASTE_TEST_PGBOUNCER_RESET"] {
        let url = std::env::var(variable).expect("scripts/servers starts a pooler");
        let options = Options::default();
        let pooled = PostgresStore::connect(&url, outbox.tables.clone(), &options).await.unwrap();
        for refused in [
            pooled.check().await.map(drop),
            pooled.migrate(None).await.map(drop),
            pooled.diagnose().await.map(drop),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::State, "{variable}: {error}");
            let said = error.to_string();
            assert!(said.contains("transaction pooler") && said.contains("direct"), "{said}");
        }
        pooled.pool().close().await;
    }
    // Not a false alarm, however many ask at once.
    let checks = (0..8).map(|_| async {
        let store = PostgresStore::new(outbox.pool.clone(), outbox.tables.clone());
        store.check().await.unwrap();
    });
    futures_util::future::join_all(checks).await;
    outbox.drop().await;
}

#[tokio::test]
async fn an_open_transaction_is_told_with_its_session() {
    let outbox = Outbox::new().await;
    let mut open = outbox.pool.begin().await.unwrap();
    let pid: i32 =
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *open).await.unwrap();
    let session = format!("(pid {pid})");
    let seen = async || {
        let open = outbox.store.open_transactions(1_000).await.unwrap();
        open.into_iter().find(|transaction| transaction.who.ends_with(&session))
    };
    assert!(seen().await.is_none(), "it has written nothing");
    outbox.enqueue(&mut open, &[event("a")]).await;
    let transaction = seen().await.expect("it has written");
    assert_eq!(transaction.state, "idle in transaction");
    let age = Timestamp::now().duration_since(transaction.since.unwrap());
    assert!(age.abs() < SignedDuration::from_mins(1), "{age:?}");
    open.commit().await.unwrap();
    assert!(seen().await.is_none(), "it is over");
    outbox.drop().await;
}
