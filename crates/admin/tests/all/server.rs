//! The server itself: TLS, health, a stop in order.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use posthaste_admin::{Admin, AdminConfig, AdminOutbox, Tls, health};
use posthaste_testkit::wait::asked;
use sqlx::Sqlite;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};
use uuid::Uuid;

use crate::support::{LIMIT, OPERATOR, Served, Server, event, exchange, loopback, silent, token};

#[tokio::test]
async fn with_a_certificate_it_speaks_tls_and_nothing_else() {
    let folder = std::env::temp_dir().join(format!("posthaste-admin-{}", Uuid::now_v7()));
    std::fs::create_dir(&folder).unwrap();
    let tls = Tls { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&tls.cert, made.cert.pem()).unwrap();
    std::fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
    let config = AdminConfig { listen: loopback(), tls: Some(tls), ..AdminConfig::default() };
    let server = Server::start(Vec::new(), config).await;

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
    let request = "GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(stream, request).await.json()["name"], "local");

    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LIMIT, plain.read_to_end(&mut answer)).await.unwrap();
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    server.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_certificate_that_cannot_be_read_is_named() {
    let tls = Tls { cert: "/no/such/cert.pem".into(), key: "/no/such/key.pem".into() };
    let config = AdminConfig { tls: Some(tls), ..AdminConfig::default() };
    let error = Admin::new(Vec::new(), config).err().unwrap().to_string();
    assert_eq!(error, "admin.tls_cert /no/such/cert.pem cannot be read as PEM");
}

#[test]
fn other_machines_are_not_served_without_tokens() {
    let config = AdminConfig { listen: "0.0.0.0:0".parse().unwrap(), ..AdminConfig::default() };
    let error = Admin::new(Vec::new(), config).err().unwrap().to_string();
    assert!(error.contains("admin.tokens is empty"), "{error}");
}

#[tokio::test]
async fn with_tokens_it_is_served_under_any_name() {
    let config = AdminConfig {
        listen: loopback(),
        tokens: vec![token("ada", posthaste_admin::Role::Operator, OPERATOR)],
        ..AdminConfig::default()
    };
    let server = Server::start(Vec::new(), config).await;
    let bearer = format!("Bearer {OPERATOR}");
    let headers = [("Host", "posthaste.example"), ("Authorization", bearer.as_str())];
    assert_eq!(server.ask("GET", "/whoami", &headers, "").await.json()["name"], "ada");
    server.ask("GET", "/whoami", &headers[..1], "").await.problem(401);
    server.stop().await;
}

/// A stop waits for the request, not for the connection that is kept open.
#[tokio::test]
async fn a_stop_lets_the_request_end_and_takes_no_new_one() {
    let server =
        Server::start(Vec::new(), AdminConfig { listen: loopback(), ..AdminConfig::default() })
            .await;
    let address = server.address;
    let mut open = TcpStream::connect(address).await.unwrap();
    open.write_all(b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 15];
    open.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    tokio::time::timeout(Duration::from_secs(4), server.stop()).await.expect("it waits for nobody");
    let mut rest = Vec::new();
    tokio::time::timeout(LIMIT, open.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

/// What a prober sees.
struct Probed {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Probed {
    async fn start(outbox: AdminOutbox) -> Self {
        let listener = health::bind(loopback()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(health::serve(listener, vec![outbox], stopped));
        Self { address, stop, task }
    }

    /// Status and body.
    async fn ask(&self, path: &str) -> (u16, String) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
        let reply = exchange(stream, &request).await;
        (reply.status, reply.body)
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_told_to_everybody_in_a_word() {
    let served = Served::<Sqlite>::new(true).await;
    let with_relay = Probed::start(served.outbox()).await;
    let without = Probed::start(AdminOutbox { relay: None, ..served.outbox() }).await;
    let (well, unwell) = ((200, "ok\n".to_owned()), (503, "unavailable\n".to_owned()));
    for probed in [&with_relay, &without] {
        asked("readiness", async || probed.ask("/readyz").await == well).await;
        assert_eq!(probed.ask("/livez").await, well);
        assert_eq!(probed.ask("/api/v1/whoami").await.0, 404, "nothing else is served there");
    }
    // Without its database it lives and is not ready.
    served.pool.close().await;
    for probed in [&with_relay, &without] {
        asked("the loss to be seen", async || probed.ask("/readyz").await == unwell).await;
        assert_eq!(probed.ask("/livez").await, well);
    }
    with_relay.stop().await;
    without.stop().await;
    served.end().await;
}

/// Whoever may ask may not stay: the places are for probes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_for_health_answers_once_and_ends() {
    let served = Served::<Sqlite>::new(true).await;
    let probed = Probed::start(served.outbox()).await;
    let mut silent = TcpStream::connect(probed.address).await.unwrap();
    let mut asking = TcpStream::connect(probed.address).await.unwrap();
    asking.write_all(b"GET /livez HTTP/1.1\r\nHost: probe\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // It ends although nobody asked for that, and before the next question could be put.
    tokio::time::timeout(LIMIT, asking.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{answer:?}");
    let closed = tokio::time::timeout(Duration::from_secs(9), silent.read_u8()).await;
    closed.expect("a connection that says nothing is closed").unwrap_err();
    probed.stop().await;
    served.end().await;
}

#[tokio::test]
async fn a_peer_with_all_its_places_loses_the_connection_that_is_idle_for_longest() {
    let server =
        Server::start(Vec::new(), AdminConfig { listen: loopback(), ..AdminConfig::default() })
            .await;
    let mut open = Vec::new();
    for _ in 0..17 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut first = [0; 15];
        let read = tokio::time::timeout(LIMIT, stream.read_exact(&mut first)).await;
        read.expect("no answer").unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        open.push(stream);
    }
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(LIMIT, open[0].read_to_end(&mut rest)).await;
    closed.expect("the oldest one stays open").unwrap();
    for mut stream in open.drain(1..) {
        let request =
            b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut rest = String::new();
        let read = tokio::time::timeout(LIMIT, stream.read_to_string(&mut rest)).await;
        read.expect("no answer").unwrap();
        assert!(rest.contains("HTTP/1.1 200 OK"), "another one was closed: {rest}");
    }
    server.stop().await;
}

/// Half of a change, and an audit entry without an end, would be the worst of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_goes_on_when_whoever_asked_has_gone() {
    let served = Served::<Sqlite>::new(false).await;
    let ids = served.enqueue((0..4).map(|n| event("Poison", &n.to_string())).collect()).await;
    for id in &ids {
        served.until_status(id, "dead").await;
    }
    // Two a second: it is half done when the connection ends.
    let body = r#"{"action":"discard","filter":{"status":"dead"},"dry_run":false,"rate":2}"#;
    let mut stream = TcpStream::connect(served.server.address).await.unwrap();
    let request = format!(
        "POST /api/v1/outboxes/shop/bulk HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let last = async || served.store.audits(None, 1).await.unwrap().pop();
    served.until_status(&ids[0], "discarded").await;
    assert_eq!(last().await.unwrap().ended_at, None);
    drop(stream);
    asked("the change to end", async || last().await.unwrap().ended_at.is_some()).await;
    let entry = last().await.unwrap();
    assert_eq!((entry.affected, entry.error), (4, None));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_gone_is_said_without_its_words() {
    let served = Served::<Sqlite>::new(false).await;
    served.pool.close().await;
    let lists = ["overview", "events", "relays", "shards", "tenants", "pauses", "audit"];
    for path in lists.map(|list| format!("/outboxes/shop/{list}")) {
        let reply = served.server.get(&path).await;
        assert_eq!(reply.problem(503), "the database cannot be reached now; try again", "{path}");
        assert!(reply.head.contains("\r\nretry-after: "), "{reply:?}");
    }
    // Which outboxes there are is known all the same.
    let outboxes = served.server.get("/outboxes").await.json();
    assert_eq!(outboxes["outboxes"][0]["shards"], serde_json::Value::Null);
    served.end().await;
}

/// One after the other they would take longer than any request may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_silent_databases_hide_no_outbox() {
    let served = Served::<Sqlite>::new(false).await;
    let shards = served.store.check().await.unwrap();
    let (store, only) = silent(&served.tables).await;
    let mut outboxes: Vec<AdminOutbox> = (0..40)
        .map(|number| AdminOutbox {
            name: format!("silent{number}"),
            store: Arc::clone(&store),
            relay: None,
            ..served.outbox()
        })
        .collect();
    outboxes.push(served.outbox());
    let config = AdminConfig { listen: loopback(), ..AdminConfig::default() };
    let server = Server::start(outboxes, config).await;
    let lines = server.get("/outboxes").await.json();
    let lines = lines["outboxes"].as_array().unwrap();
    assert_eq!(lines.len(), 41);
    for (number, line) in lines[..40].iter().enumerate() {
        assert_eq!(line["name"], format!("silent{number}"));
        assert_eq!(line["shards"], serde_json::Value::Null);
    }
    let shop = serde_json::json!({ "name": "shop", "database": "sqlite", "shards": shards });
    assert_eq!(lines[40], shop);
    // What still asks gets its answer: the stop waits for that.
    drop(only);
    server.stop().await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_outboxes_of_one_name_are_refused() {
    let served = Served::<Sqlite>::new(false).await;
    let twice = vec![served.outbox(), served.outbox()];
    let error = Admin::new(twice, AdminConfig::default()).err().unwrap().to_string();
    assert!(error.contains("\"shop\""), "{error}");
    served.end().await;
}
