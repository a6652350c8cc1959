//! What is refused: nothing changes, nothing is told.

use posthaste_admin::Role;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::{
    on_both,
    support::{
        OPERATOR, Reply, SECRET, Served, Server, TestDatabase, VIEWER, exchange, loopback, token,
    },
};

on_both!(
    without_a_known_token_nothing_is_told,
    a_viewer_sees_no_payload_and_changes_nothing,
    without_tokens_no_payload_is_shown,
    without_tokens_no_proxy_gets_through,
    pages_of_other_sites_change_nothing,
    a_name_that_is_not_ours_is_refused,
    bodies_have_a_size_and_a_type,
    sql_in_a_filter_is_only_a_text,
);

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Every path that looks, and every one that changes, with a body that would do it.
fn requests(id: &str) -> Vec<(&'static str, String, Value)> {
    let mut requests: Vec<_> = [
        "/whoami",
        "/openapi.json",
        "/outboxes",
        "/outboxes/shop/overview",
        "/outboxes/shop/series",
        "/outboxes/shop/events",
        "/outboxes/shop/relays",
        "/outboxes/shop/shards",
        "/outboxes/shop/destinations",
        "/outboxes/shop/tenants",
        "/outboxes/shop/doctor",
        "/outboxes/shop/pauses",
        "/outboxes/shop/audit",
    ]
    .map(|path| ("GET", path.to_owned(), json!({})))
    .into();
    requests.push(("GET", format!("/outboxes/shop/events/{id}"), json!({})));
    requests.extend(changes(id));
    requests
}

fn changes(id: &str) -> Vec<(&'static str, String, Value)> {
    let dead = json!({ "status": "dead" });
    vec![
        ("POST", format!("/outboxes/shop/events/{id}/replay"), json!({})),
        ("POST", format!("/outboxes/shop/events/{id}/discard"), json!({})),
        (
            "POST",
            "/outboxes/shop/bulk".to_owned(),
            json!({ "action": "discard", "filter": dead, "dry_run": false }),
        ),
        ("POST", "/outboxes/shop/pauses".to_owned(), json!({ "kind": "outbox" })),
        ("DELETE", "/outboxes/shop/pauses/outbox/-".to_owned(), json!({})),
        ("POST", "/outboxes/shop/poll".to_owned(), json!({})),
        ("POST", "/outboxes/shop/purge".to_owned(), json!({})),
    ]
}

/// The dead event is dead, nothing is paused, nothing was even tried.
async fn nothing_changed<DB: TestDatabase>(served: &Served<DB>, dead: &str)
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let event = served.store.event(dead.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(event.status.as_str(), "dead");
    assert!(served.store.pauses().await.unwrap().is_empty());
    assert!(served.store.audits(None, 10).await.unwrap().is_empty());
}

/// Neither events nor tokens nor the database's words.
#[track_caller]
fn tells_nothing(reply: &Reply) {
    let text = format!("{}\n{}", reply.head, reply.body.to_lowercase());
    for word in [
        SECRET, "poison", "acme", OPERATOR, VIEWER, "oscar", "syntax", "sqlite", "postgres",
        "select",
    ] {
        assert!(!text.contains(word), "{word}: {reply:?}");
    }
}

async fn without_a_known_token_nothing_is_told<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(true).await;
    let [_, dead, _] = served.fates().await;
    let wrong = [
        String::new(),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        "Bearer wrong".to_owned(),
        format!("Bearer {}", &OPERATOR[..OPERATOR.len() - 1]),
        format!("Bearer {OPERATOR}x"),
        format!("Basic {OPERATOR}"),
        OPERATOR.to_owned(),
    ];
    for (method, path, body) in requests(&dead) {
        for authorization in &wrong {
            let mut headers = vec![JSON];
            if !authorization.is_empty() {
                headers.push(("Authorization", authorization));
            }
            let reply = served.server.ask(method, &path, &headers, &body.to_string()).await;
            reply.problem(401);
            assert!(reply.head.contains("\r\nwww-authenticate: bearer"), "{reply:?}");
            tells_nothing(&reply);
        }
    }
    // Not even which paths and outboxes there are.
    served.server.get("/nothing").await.problem(401);
    served.server.get("/outboxes/moon/events").await.problem(401);
    nothing_changed(&served, &dead).await;
    served.end().await;
}

async fn a_viewer_sees_no_payload_and_changes_nothing<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(true).await;
    let [_, dead, _] = served.fates().await;
    let viewer = format!("Bearer {VIEWER}");
    for (method, path, body) in changes(&dead) {
        let headers = [JSON, ("Authorization", viewer.as_str())];
        let reply = served.server.ask(method, &path, &headers, &body.to_string()).await;
        assert_eq!(reply.problem(403), "vera is a viewer; this needs an operator");
        tells_nothing(&reply);
    }
    let payload = format!("/outboxes/shop/events/{dead}/payload");
    tells_nothing(&served.server.get_as(VIEWER, &payload).await);
    served.server.get_as(VIEWER, &payload).await.problem(403);
    nothing_changed(&served, &dead).await;

    // What a viewer may see, it sees; the same changes under the operator's token are made and signed.
    let who = served.server.get_as(VIEWER, "/whoami").await.json();
    assert_eq!(who, json!({ "name": "vera", "role": "viewer", "payloads": false }));
    for (_, path, _) in requests(&dead).iter().filter(|(method, ..)| *method == "GET") {
        let reply = served.server.get_as(VIEWER, path).await;
        assert_eq!(reply.status, 200, "{path}");
        assert!(!reply.body.contains(SECRET), "{path}");
    }
    assert!(served.server.get_as(OPERATOR, &payload).await.body.contains(SECRET));
    let headers = [JSON, ("Authorization", &*format!("bearer {OPERATOR}"))];
    let replay = format!("/outboxes/shop/events/{dead}/replay");
    served.server.ask("POST", &replay, &headers, "").await.json();
    assert_eq!(served.store.audits(None, 1).await.unwrap()[0].change.by, "oscar");
    served.end().await;
}

async fn pages_of_other_sites_change_nothing<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [_, dead, _] = served.fates().await;
    let address = served.server.address;
    let other_port = format!("http://127.0.0.1:{}", address.port() ^ 1);
    for foreign in [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Origin", &other_port),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        for (method, path, body) in changes(&dead) {
            let reply = served.server.ask(method, &path, &[JSON, foreign], &body.to_string()).await;
            reply.problem(403);
            tells_nothing(&reply);
        }
    }
    // A form needs no permission of the browser, so it must not get through.
    for form in ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"] {
        for (method, path, body) in changes(&dead).iter().filter(|(method, ..)| *method == "POST") {
            let headers = [("Content-Type", form)];
            served.server.ask(method, path, &headers, &body.to_string()).await.problem(415);
        }
    }
    nothing_changed(&served, &dead).await;
    // And other pages may not ask for permission.
    let preflight = served.server.ask("OPTIONS", "/outboxes/shop/bulk", &[], "").await;
    preflight.problem(405);
    assert!(!preflight.head.contains("access-control"), "{preflight:?}");

    let own = format!("http://{address}");
    let own = [JSON, ("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")];
    served.server.ask("POST", "/outboxes/shop/poll", &own, "{}").await.json();
    served.end().await;
}

async fn a_name_that_is_not_ours_is_refused<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let port = served.server.address.port();
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", ""]
    {
        let reply = served.server.ask("GET", "/outboxes", &[("Host", host)], "").await;
        assert!(matches!(reply.status, 400 | 403), "{host}: {reply:?}");
        tells_nothing(&reply);
        let page = served.server.ask("GET", "//", &[("Host", host)], "").await;
        assert!(matches!(page.status, 400 | 403), "{host}: {page:?}");
    }
    // Nor is a request that names no host, as HTTP/1.0 allows.
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        for path in ["/", "/api/v1/outboxes", "http://localhost/api/v1/outboxes"] {
            let stream = TcpStream::connect(served.server.address).await.unwrap();
            let request = format!("GET {path} {version}\r\nConnection: close\r\n\r\n");
            let reply = exchange(stream, &request).await;
            tells_nothing(&reply);
            assert_eq!(reply.problem(400), "the request names no host", "{version} {path}");
        }
    }
    for host in [format!("localhost:{port}"), format!("[::1]:{port}"), "127.0.0.1".to_owned()] {
        served.server.ask("GET", "/outboxes", &[("Host", &host)], "").await.json();
    }
    served.end().await;
}

/// Anybody on this machine may look and change, as far as a terminal there goes; payloads are not for anybody.
async fn without_tokens_no_payload_is_shown<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [sent, ..] = served.fates().await;
    let reply = served.server.get(&format!("/outboxes/shop/events/{sent}/payload")).await;
    tells_nothing(&reply);
    assert!(reply.problem(403).contains("admin.tokens"), "{reply:?}");
    served.end().await;
}

/// A proxy on this machine would let everybody in.
async fn without_tokens_no_proxy_gets_through<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [_, dead, _] = served.fates().await;
    for (name, value) in [
        ("Forwarded", "for=192.0.2.1"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("X-Real-IP", "192.0.2.1"),
        ("Via", "1.1 proxy"),
    ] {
        let reply = served.server.ask("GET", "/outboxes", &[(name, value)], "").await;
        tells_nothing(&reply);
        assert!(reply.problem(403).contains("proxy"), "{name}: {reply:?}");
        for (method, path, body) in changes(&dead) {
            let headers = [JSON, (name, value)];
            let reply = served.server.ask(method, &path, &headers, &body.to_string()).await;
            assert_eq!(reply.status, 403, "{name}: {method} {path}: {reply:?}");
        }
        assert_eq!(served.server.ask("GET", "//", &[(name, value)], "").await.status, 403);
    }
    nothing_changed(&served, &dead).await;
    served.end().await;

    // With tokens a proxy is as good as anybody.
    let served = Served::<DB>::new(true).await;
    let bearer = format!("Bearer {VIEWER}");
    let headers = [("X-Forwarded-For", "192.0.2.1"), ("Authorization", bearer.as_str())];
    served.server.ask("GET", "/outboxes", &headers, "").await.json();
    served.end().await;
}

async fn bodies_have_a_size_and_a_type<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [_, dead, _] = served.fates().await;
    let long = format!("{{\"note\":\"{}\"}}", "x".repeat(64 * 1024));
    for (method, path, _) in changes(&dead).iter().filter(|(method, ..)| *method == "POST") {
        served.server.ask(method, path, &[JSON], &long).await.problem(413);
        served.server.ask(method, path, &[JSON], "{").await.problem(400);
        served.server.ask(method, path, &[JSON], "[]").await.problem(422);
        served.server.ask(method, path, &[], "{}").await.problem(415);
        served.server.ask("PUT", path, &[JSON], "{}").await.problem(405);
    }
    nothing_changed(&served, &dead).await;
    served.end().await;
}

async fn sql_in_a_filter_is_only_a_text<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [_, dead, _] = served.fates().await;
    let table = served.tables.name().qualified();
    let injections = [
        "' or '1'='1".to_owned(),
        "\" or 1=1 --".to_owned(),
        format!("'; drop table {table}; --"),
        format!("x' union select payload from {table} --"),
        "$1".to_owned(),
        "%".to_owned(),
        "_".to_owned(),
        "\\".to_owned(),
        "a\0b".to_owned(),
        "'||pg_sleep(30)||'".to_owned(),
    ];
    let before = format!("{:?}", served.store.counts(100).await.unwrap());
    for text in &injections {
        let escaped: Vec<_> = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let escaped = escaped.concat();
        for name in ["type", "aggregate_type", "aggregate_id", "tenant"] {
            let list = format!("/outboxes/shop/events?{name}={escaped}");
            let reply = served.server.get(&list).await;
            if text.contains('\0') {
                reply.problem(422);
            } else {
                assert_eq!(reply.json()["events"], json!([]), "{name}={text}");
            }
            let filter = json!({ "status": "dead", name: text });
            let body = json!({ "action": "discard", "filter": filter, "dry_run": false });
            let reply = served.server.post("/outboxes/shop/bulk", &body).await;
            if text.contains('\0') {
                reply.problem(422);
            } else {
                assert_eq!(reply.json()["matched"], 0, "{name}={text}");
            }
        }
        for name in ["status", "from", "before", "cursor", "limit"] {
            let list = format!("/outboxes/shop/events?{name}={escaped}");
            served.server.get(&list).await.problem(422);
        }
        served.server.get(&format!("/outboxes/shop/events/{escaped}")).await.problem(400);
        let audit = format!("/outboxes/shop/audit?cursor={escaped}");
        served.server.get(&audit).await.problem(422);
        served.server.get(&format!("/outboxes/{escaped}/events")).await.problem(404);
        for kind in ["relay", "destination", "key", &escaped] {
            let path = format!("/outboxes/shop/pauses/{kind}/{escaped}");
            let reply = served.server.delete(&path).await;
            assert!(reply.status == 404 || reply.json()["changed"] == 0, "{reply:?}");
        }
    }
    assert_eq!(format!("{:?}", served.store.counts(100).await.unwrap()), before);
    served.store.check().await.unwrap();
    let event = served.store.event(dead.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(event.status.as_str(), "dead");
    served.end().await;
}

#[tokio::test]
async fn metrics_need_a_token_too_and_the_page_needs_none() {
    let config = posthaste_admin::AdminConfig {
        listen: loopback(),
        tokens: vec![token("grafana", Role::Viewer, VIEWER)],
        metrics: Some(posthaste_admin::metrics::record().unwrap()),
        ..posthaste_admin::AdminConfig::default()
    };
    let server = Server::start(Vec::new(), config).await;
    server.get("//metrics").await.problem(401);
    server.get_as("wrong", "//metrics").await.problem(401);
    assert_eq!(server.get_as(VIEWER, "//metrics").await.status, 200);
    let page = server.get("//").await;
    assert_eq!(page.status, 200);
    for promised in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(page.head.contains(promised), "{promised}: {page:?}");
    }
    assert!(!page.head.contains("unsafe"), "{page:?}");
    assert!(server.get_as(VIEWER, "/whoami").await.head.contains("cache-control: no-store"));
    server.stop().await;
}
