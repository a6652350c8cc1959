//! The server itself: TLS, health, a stop in order.

use std::{sync::Arc, time::Duration};

use posthaste_admin::{Admin, AdminConfig, Tls, health};
use sqlx::Sqlite;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};
use uuid::Uuid;

use crate::support::{LIMIT, OPERATOR, Served, Server, exchange, loopback, token, until};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_told_to_everybody_in_a_word() {
    let served = Served::<Sqlite>::new(true).await;
    let listener = health::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let outboxes = vec![served.outbox()];
    let task = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        health::serve(listener, outboxes, stopped).await;
    });
    let ask = async |path: &str| {
        let stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
        let reply = exchange(stream, &request).await;
        (reply.status, reply.body)
    };
    let (well, unwell) = ((200, "ok\n".to_owned()), (503, "unavailable\n".to_owned()));
    until("readiness", async || ask("/readyz").await == well).await;
    assert_eq!(ask("/livez").await, well);
    assert_eq!(ask("/api/v1/whoami").await.0, 404, "nothing else is served there");

    // Without its database it lives and is not ready; when its relay has ended, it does not live.
    served.pool.close().await;
    until("the loss to be seen", async || ask("/readyz").await == unwell).await;
    assert_eq!(ask("/livez").await, well);
    let _ = served.relay.stop().await;
    assert_eq!(ask("/livez").await, unwell);
    stop.send(()).unwrap();
    task.await.unwrap();
    served.end().await;
}
