//! The same commands on database servers; `scripts/servers` starts them.

mod command;

use command::{command, refused, stderr, stdout, succeed};
use posthaste::stores::{Options, mysql::MySqlStore, postgres::PostgresStore};
use posthaste_testkit::tables::{drop_outbox, unique};

fn server(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} names no server; scripts/servers starts one"))
}

#[test]
fn the_demo_keeps_its_promises_on_every_server() {
    for variable in ["POSTHASTE_TEST_POSTGRES", "POSTHASTE_TEST_MARIADB"] {
        let text = succeed(&["demo", "--for", "2s", "--url", &server(variable)]);
        assert!(text.contains("\nlost: 0\nout of order: 0\nduplicates: 0\n"), "{variable}: {text}");
    }
}

#[tokio::test]
async fn an_outbox_on_postgres_is_migrated_relayed_and_shown() {
    let url = server("POSTHASTE_TEST_POSTGRES");
    let tables = unique("cli");
    let name = tables.name().to_string();
    let on = |args: &[&'static str]| -> Vec<String> {
        let place = ["--url", &url, "--table", &name].map(str::to_owned);
        args.iter().map(|arg| (*arg).to_owned()).chain(place).collect()
    };
    let run = |args: &[&'static str]| {
        let args = on(args);
        succeed(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let refuse = |args: &[&'static str], code, says: &[&str]| {
        let args = on(args);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), code, says);
    };
    refuse(&["status"], 1, &["is not there or has no migration", "posthaste migrate"]);
    assert!(run(&["migrate", "--shards", "8"]).contains("(postgres, 8 shards): applied migration"));
    refuse(&["migrate", "--shards", "16"], 2, &["8 shards", "16"]);
    assert!(run(&["migrate"]).contains("nothing to apply"));
    assert_eq!(run(&["relay", "--to", "log", "--once"]), "");
    let status: serde_json::Value = serde_json::from_str(&run(&["status", "--json"])).unwrap();
    assert_eq!(status["shards"], serde_json::json!({ "total": 8, "held": 0, "free": 8 }));

    let store = PostgresStore::connect(&url, tables.clone(), &Options::default()).await.unwrap();
    drop_outbox(store.pool(), &tables).await.unwrap();
}

/// Relays and commands need sessions, which a transaction pooler has not got.
#[test]
fn a_transaction_pooler_is_refused_with_what_is_needed() {
    for variable in ["POSTHASTE_TEST_PGBOUNCER", "POSTHASTE_TEST_PGBOUNCER_RESET"] {
        let url = server(variable);
        for args in [
            &["status"][..],
            &["migrate"],
            &["doctor", "--no-destinations"],
            &["relay", "--to", "log"],
            &["relay", "--to", "log", "--once"],
            &["pause", "outbox"],
        ] {
            let args = [args, &["--url", &url]].concat();
            refused(&args, 1, &["transaction pooler", "direct connection", "pool_mode = session"]);
        }
    }
}

#[tokio::test]
async fn an_outbox_on_mariadb_is_migrated_relayed_and_shown() {
    let url = server("POSTHASTE_TEST_MARIADB").replacen("mysql:", "mariadb:", 1);
    let tables = unique("cli");
    let name = tables.name().to_string();
    let place = ["--url", &url, "--table", &name];
    assert!(succeed(&[&["migrate"], &place[..]].concat()).contains("(mysql, 64 shards)"));
    assert_eq!(succeed(&[&["relay", "--to", "log", "--once"], &place[..]].concat()), "");
    assert!(succeed(&[&["status"], &place[..]].concat()).contains("owned 0, free 64"));

    let store = MySqlStore::connect(&url, tables.clone(), &Options::default()).await.unwrap();
    drop_outbox(store.pool(), &tables).await.unwrap();
}

#[test]
fn a_wrong_password_is_refused_and_never_shown() {
    for variable in ["POSTHASTE_TEST_POSTGRES", "POSTHASTE_TEST_MARIADB"] {
        let url = server(variable);
        let (before, after) = (url.find("://").unwrap() + 3, url.find('@').unwrap());
        let url = format!("{}posthaste:wr%40ng{}", &url[..before], &url[after..]);
        let output = command(&["status"]).env("POSTHASTE_URL", &url).output().unwrap();
        let line = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
        assert!(line.starts_with("error: connecting to ") && line.lines().count() == 1, "{line}");
        assert!(!line.contains("wr@ng") && !line.contains("wr%40ng"), "{line}");
    }
}

/// MySQL makes an authority for itself. A process whose system trusts it needs no setting to verify the server.
#[tokio::test]
async fn a_server_is_verified_with_the_roots_that_the_system_trusts() {
    let Ok(url) = std::env::var("POSTHASTE_TEST_MYSQL") else {
        eprintln!("POSTHASTE_TEST_MYSQL is not set: no MySQL server to be had here");
        return;
    };
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    let authority: String =
        sqlx::query_scalar("select concat(@@datadir, @@ssl_ca)").fetch_one(&pool).await.unwrap();
    assert!(std::fs::metadata(&authority).is_ok(), "{authority} cannot be read");
    // Its certificate is for no host.
    let url = format!("{url}?ssl-mode=VERIFY_CA");
    let status = ["status", "--url", &url, "--table", "nobody_has_made_it"];
    let trusting = command(&status).env("SSL_CERT_FILE", &authority).output().unwrap();
    assert!(
        stderr(&trusting).contains("is not there or has no migration"),
        "{}",
        stderr(&trusting)
    );
    let other = command(&status).env_remove("SSL_CERT_FILE").output().unwrap();
    assert!(stderr(&other).contains("connecting to"), "{}", stderr(&other));
    assert_eq!(other.status.code(), Some(1));
}

/// Without TLS the password would go to whoever answers: the client says what it needs instead.
#[tokio::test]
async fn a_password_of_mysql_needs_tls() {
    let Ok(url) = std::env::var("POSTHASTE_TEST_MYSQL") else {
        eprintln!("POSTHASTE_TEST_MYSQL is not set: no MySQL server to be had here");
        return;
    };
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    // Known to the server by nothing yet, so that it asks for the password itself.
    let account = unique("tls").name().to_string();
    let make = format!("create user {account} identified by 'secret'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(make)).execute(&pool).await.unwrap();
    let (_, place) = url.split_once('@').unwrap();
    let (place, _) = place.split_once('/').unwrap();
    let plain = format!("mysql://{account}:secret@{place}?ssl-mode=DISABLED");
    let output = command(&["status", "--url", &plain]).output().unwrap();
    assert!(stderr(&output).contains("use TLS"), "{}", stderr(&output));
    let drop = format!("drop user {account}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&pool).await.unwrap();
}
