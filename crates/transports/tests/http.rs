//! Webhooks against real HTTP servers on loopback, good ones and bad ones.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::Response,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use posthaste_core::{
    Envelope, Event, Secret,
    transport::{Outcome, Transport},
};
use posthaste_transports::{
    http::{Http, HttpConfig},
    message::MessageFormat,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, rustls};

use support::{enveloped, given};

mod support;

/// In every payload, password, token and secret below: no outcome may show it.
const MARK: &str = "bm90LXRvLWJlLXNlZW4";

/// A busy machine takes so much longer.
const SLACK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
struct Seen {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

type Answer = Arc<dyn Fn() -> Response + Send + Sync>;

/// A receiver that writes down what it gets and always gives the same answer.
struct Receiver {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Receiver {
    async fn answering(answer: impl Fn() -> Response + Send + Sync + 'static) -> Self {
        async fn record(
            State((seen, answer)): State<(Arc<Mutex<Vec<Seen>>>, Answer)>,
            method: Method,
            uri: Uri,
            headers: HeaderMap,
            body: Bytes,
        ) -> Response {
            seen.lock().unwrap().push(Seen { method, uri, headers, body });
            answer()
        }

        let seen = Arc::default();
        let answer: Answer = Arc::new(answer);
        let app = Router::new()
            .fallback(record)
            .with_state((Arc::clone(&seen), answer))
            .layer(axum::extract::DefaultBodyLimit::disable());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, seen }
    }

    /// One that answers with this status, these headers, and a body that quotes secrets.
    async fn status(status: u16, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self::answering(move || {
            let mut response = Response::new(Body::from(format!("you said {MARK}")));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            for (name, value) in headers {
                response.headers_mut().insert(*name, value.parse().unwrap());
            }
            response
        })
        .await
    }

    fn config(&self) -> HttpConfig {
        config(&format!("http://{}/hook", self.address))
    }

    fn only(&self) -> Seen {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.len(), 1);
        seen[0].clone()
    }
}

fn config(url: &str) -> HttpConfig {
    let separator = if url.contains('?') { '&' } else { '?' };
    HttpConfig::from_url(&format!("{url}{separator}posthaste.allow_private=true")).unwrap()
}

fn envelope() -> Envelope {
    enveloped(
        Event::builder("OrderPlaced")
            .aggregate("Order", "42")
            .tenant("acme")
            .topic("orders")
            .header("trace", "7f3a")
            .payload(&json!({ "total": 1999, "note": MARK })),
    )
}

/// Publishes one event. Whatever comes out of it is quiet, and comes within the declared time.
async fn publish(config: HttpConfig, envelope: Envelope) -> Outcome {
    let http = Http::new(config).unwrap();
    let begun = Instant::now();
    let mut outcomes = http.publish(&[envelope]).await;
    let longest = http.capabilities().longest_publish.expect("it is declared") + SLACK;
    assert!(begun.elapsed() < longest, "it took {:?}", begun.elapsed());
    assert_eq!(outcomes.len(), 1);
    let outcome = outcomes.remove(0);
    let shown = format!("{outcome:?}");
    assert!(!shown.contains(MARK), "{shown}");
    outcome
}

#[tokio::test]
async fn each_status_has_its_outcome_and_only_its_number_is_kept() {
    for status in (200..600).filter(|status| StatusCode::from_u16(*status).is_ok()) {
        // One of each class and all that are told apart.
        let told_apart =
            [401, 403, 404, 405, 407, 408, 409, 410, 425, 429, 502, 503, 504].contains(&status);
        if status % 100 > 5 && !told_apart && ![226, 308, 413, 422, 451, 511, 599].contains(&status)
        {
            continue;
        }
        let receiver = Receiver::status(status, &[]).await;
        let error = format!("answered with status {status}");
        let expected = match status {
            200..=299 => Outcome::Delivered,
            300..=399 => Outcome::dead(format!("{error}; redirects are not followed")),
            401 | 403 | 407 | 429 | 502 | 503 | 504 => Outcome::unavailable(error),
            404 | 405 | 408 | 409 | 410 | 425 | 500.. => Outcome::retry(error),
            _ => Outcome::dead(error),
        };
        assert_eq!(publish(receiver.config(), envelope()).await, expected);
        assert_eq!(receiver.only().method, Method::POST);
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::status(200, &[]).await;
    let location = format!("http://{}/", elsewhere.address);
    let receiver = Receiver::answering(move || {
        Response::builder().status(307).header("location", &location).body(Body::empty()).unwrap()
    })
    .await;
    let outcome = publish(receiver.config(), envelope()).await;
    assert!(matches!(outcome, Outcome::Dead { .. }), "{outcome:?}");
    assert!(elsewhere.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn retry_after_is_honoured_up_to_an_hour() {
    for (value, expected) in [("7", 7), ("86400", 3600)] {
        let headers: &'static [(&str, &str)] = Box::leak(Box::new([("retry-after", value)]));
        let receiver = Receiver::status(503, headers).await;
        let expected = Outcome::Unavailable {
            error: "answered with status 503".to_owned(),
            after: Some(Duration::from_secs(expected)),
        };
        assert_eq!(publish(receiver.config(), envelope()).await, expected);
    }
}

#[tokio::test]
async fn the_request_carries_topic_headers_and_payload_byte_for_byte() {
    let receiver = Receiver::status(204, &[]).await;
    let url = format!("http://{}/hooks/{{topic}}?theirs=1&posthaste.name=shop", receiver.address);
    let payload = b"{\"a\": 1.0, \"a\":2}\n\xff".to_vec();
    let event = Event::builder("OrderPlaced")
        .aggregate("Order", "42 \u{e4}")
        .topic("orders/eu 1%")
        .header("Trace", "7f3a")
        .header("note", "gr\u{fc}n")
        .header("content-length", "3")
        .header("host", "elsewhere")
        .header("webhook-signature", "v1,forged")
        .header("webhook-id", "forged")
        .bytes("application/x-thing", payload.clone());
    let envelope = enveloped(event);
    let id = envelope.event.id().to_string();
    assert_eq!(publish(config(&url), envelope).await, Outcome::Delivered);

    let seen = receiver.only();
    assert_eq!(seen.uri, "/hooks/orders%2Feu%201%25?theirs=1");
    assert_eq!(seen.body, payload);
    for (name, value) in [
        ("host", receiver.address.to_string().as_str()),
        ("content-type", "application/x-thing"),
        ("content-length", &payload.len().to_string()),
        ("posthaste-topic", "orders/eu%201%25"),
        ("posthaste-aggregate-id", "42%20%C3%A4"),
        ("posthaste-id", &id),
        ("webhook-id", &id),
        ("webhook-signature", ""),
        ("trace", "7f3a"),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
    assert_eq!(seen.headers["note"].as_bytes(), "gr\u{fc}n".as_bytes());
}

#[tokio::test]
async fn an_event_that_http_cannot_carry_is_dead() {
    let receiver = Receiver::status(204, &[]).await;
    for (name, value) in [("with space", "x"), ("note", "two\nlines"), ("note", "x\r\nhost: y")] {
        let event = Event::builder("OrderPlaced").header(name, value).payload(MARK);
        let outcome = publish(receiver.config(), enveloped(event)).await;
        let said = format!("header {name:?} cannot travel over HTTP");
        assert_eq!(outcome, Outcome::dead(said));
    }
    let dots = enveloped(Event::builder("OrderPlaced").topic("..").payload(MARK));
    let url = format!("http://{}/hooks/{{topic}}", receiver.address);
    let outcome = publish(config(&url), dots).await;
    assert_eq!(outcome, Outcome::dead("the topic cannot stand in the URL's path"));
    assert!(receiver.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_login_travels_as_basic_and_a_token_as_bearer() {
    let receiver = Receiver::status(204, &[]).await;
    let login = config(&format!("http://me:{MARK}@{}/", receiver.address));
    assert_eq!(publish(login, envelope()).await, Outcome::Delivered);
    let expected = format!("Basic {}", BASE64_STANDARD.encode(format!("me:{MARK}")));
    assert_eq!(receiver.only().header("authorization"), expected);

    let receiver = Receiver::status(401, &[]).await;
    let token = HttpConfig { bearer: Some(Secret::new(MARK)), ..receiver.config() };
    assert!(!format!("{token:?}").contains(MARK));
    let outcome = publish(token, envelope()).await;
    assert_eq!(outcome, Outcome::unavailable("answered with status 401"));
    assert_eq!(receiver.only().header("authorization"), format!("Bearer {MARK}"));
}

#[tokio::test]
async fn a_huge_body_is_not_read_and_the_status_decides() {
    // Endless: whoever reads it to the end never comes back.
    let receiver = raw(async |mut stream| {
        let _ = read_request(&mut stream).await;
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let _ = stream.write_all(head.as_bytes()).await;
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        while stream.write_all(chunk.as_bytes()).await.is_ok() {}
    })
    .await;
    let begun = Instant::now();
    assert_eq!(publish(config(&url_of(receiver)), envelope()).await, Outcome::Delivered);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_slow_body_does_not_hold_the_outcome_back() {
    let receiver = raw(async |mut stream| {
        let _ = read_request(&mut stream).await;
        let head = "HTTP/1.1 500 Oops\r\ncontent-length: 100\r\n\r\nso";
        let _ = stream.write_all(head.as_bytes()).await;
        std::future::pending::<()>().await;
    })
    .await;
    let begun = Instant::now();
    // Nor does it take longer than a publish may.
    let url = format!("{}?posthaste.publish_timeout=1s", url_of(receiver));
    let outcome = publish(config(&url), envelope()).await;
    assert_eq!(outcome, Outcome::retry("answered with status 500"));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn no_answer_in_time_is_timed_out() {
    let receiver = raw(async |mut stream| {
        let _ = read_request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let url = format!("{}?posthaste.publish_timeout=200ms", url_of(receiver));
    let outcome = publish(config(&url), envelope()).await;
    assert_eq!(outcome, Outcome::timed_out("no answer within 200ms"));
}

#[tokio::test]
async fn a_server_that_closes_or_speaks_no_http_is_a_retry() {
    let broke = Outcome::retry("the connection broke, or what came was no answer of HTTP");
    let closes = raw(async |mut stream| {
        let _ = read_request(&mut stream).await;
    })
    .await;
    assert_eq!(publish(config(&url_of(closes)), envelope()).await, broke);
    let babbles = raw(async |mut stream| {
        let _ = read_request(&mut stream).await;
        let _ = stream.write_all(format!("{MARK}\r\n\r\n").as_bytes()).await;
    })
    .await;
    assert_eq!(publish(config(&url_of(babbles)), envelope()).await, broke);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_made_again() {
    let receiver = raw(async |mut stream| {
        let _ = read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    })
    .await;
    let http = Http::new(config(&url_of(receiver))).unwrap();
    for _ in 0..20 {
        let outcomes = http.publish(&[envelope()]).await;
        // The close may cross the next request on its way: that event comes again.
        if outcomes[0] != Outcome::Delivered {
            assert!(matches!(outcomes[0], Outcome::Retry { .. }), "{outcomes:?}");
            assert_eq!(http.publish(&[envelope()]).await, [Outcome::Delivered]);
        }
    }
}

#[tokio::test]
async fn no_connection_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let refused = publish(config(&format!("http://me:{MARK}@{address}/")), envelope()).await;
    assert_eq!(refused, Outcome::unavailable("no connection: connection refused"));

    // Too long a label: no name server needs to be asked.
    let url = format!("http://{}.invalid/", "a".repeat(64));
    let unknown = publish(config(&url), envelope()).await;
    assert_eq!(unknown, Outcome::unavailable("the host's name cannot be resolved"));
}

#[tokio::test]
async fn a_host_that_does_not_answer_a_connection_is_unavailable() {
    // Nobody accepts: once its queue is full, the kernel lets others wait.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
    {
        waiting.push(stream.unwrap());
        assert!(waiting.len() < 100, "the queue has no end");
    }
    for (timeouts, said) in [
        ("posthaste.connect_timeout=300ms", "no connection within 300ms"),
        ("posthaste.publish_timeout=500ms", "no connection within 400ms"),
    ] {
        let outcome = publish(config(&format!("http://{address}/?{timeouts}")), envelope()).await;
        assert_eq!(outcome, Outcome::unavailable(said));
    }
}

#[tokio::test]
async fn a_name_that_resolves_to_a_private_address_is_dead_and_never_connected_to() {
    let receiver = Receiver::status(204, &[]).await;
    let url = format!("http://localhost:{}/", receiver.address.port());
    let guarded = HttpConfig::from_url(&url).unwrap();
    let outcome = publish(guarded.clone(), envelope()).await;
    let said = "the host's address is not a public one; allow_private lets it through";
    assert_eq!(outcome, Outcome::dead(said));
    let error = Http::new(guarded).unwrap().check().await.unwrap_err().to_string();
    assert!(error.contains("not a public one"), "{error}");
    assert!(receiver.seen.lock().unwrap().is_empty());

    assert_eq!(publish(config(&url), envelope()).await, Outcome::Delivered);
}

#[tokio::test]
async fn check_asks_without_posting() {
    let receiver = Receiver::status(405, &[]).await;
    let http = Http::new(receiver.config()).unwrap();
    let found = http.check().await.unwrap();
    assert_eq!(found, format!("http://{} answers (status 405)", receiver.address));
    assert_eq!(receiver.only().method, Method::OPTIONS);
}

#[tokio::test]
async fn a_certificate_must_be_trusted_and_name_the_host() {
    let (good, ca_file) = tls_receiver("localhost").await;
    let (other, other_ca) = tls_receiver("elsewhere.example").await;
    let url = |address: SocketAddr| format!("https://localhost:{}/", address.port());
    let trusting =
        |address, ca: &PathBuf| HttpConfig { ca_file: Some(ca.clone()), ..config(&url(address)) };
    let refused = Outcome::unavailable("no connection: TLS failed or the certificate is no good");
    assert_eq!(publish(trusting(good, &ca_file), envelope()).await, Outcome::Delivered);
    assert_eq!(publish(config(&url(good)), envelope()).await, refused, "nobody vouches for it");
    assert_eq!(publish(trusting(other, &other_ca), envelope()).await, refused, "another's name");
    let plain = Receiver::status(204, &[]).await;
    assert_eq!(publish(config(&url(plain.address)), envelope()).await, refused, "no TLS at all");
    for file in [ca_file, other_ca] {
        std::fs::remove_file(file).unwrap();
    }
}

#[tokio::test]
async fn signatures_and_cloud_events_are_read_by_independent_libraries() {
    let Some(python) = given("POSTHASTE_TEST_PYTHON") else { return };
    let secret = |byte: u8| format!("whsec_{}", BASE64_STANDARD.encode([byte; 32]));
    let receiver = Receiver::status(204, &[]).await;
    let file = std::env::temp_dir().join(format!("posthaste-keys-{}", std::process::id()));
    std::fs::write(&file, format!("{}\n{}\n", secret(1), secret(2))).unwrap();
    for format in
        [MessageFormat::Raw, MessageFormat::CloudEventsBinary, MessageFormat::CloudEventsStructured]
    {
        receiver.seen.lock().unwrap().clear();
        let url = format!(
            "http://{}/?posthaste.format={format}&posthaste.secret_file={}",
            receiver.address,
            file.display()
        );
        let event = Event::builder("Order placed \u{2713}")
            .aggregate("Order", "4 2%")
            .payload(&json!({ "total": 1999, "name": "gr\u{fc}n" }));
        let envelope = enveloped(event);
        let id = envelope.event.id().to_string();
        assert_eq!(publish(config(&url), envelope).await, Outcome::Delivered);

        let seen = receiver.only();
        let headers: BTreeMap<&str, &str> = seen
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        let verdict = judge(
            &python,
            &json!({
                "headers": headers,
                "body": BASE64_STANDARD.encode(&seen.body),
                "secrets": [secret(1), secret(2), secret(3)],
                "cloud_event": format != MessageFormat::Raw,
            }),
        )
        .await;
        assert_eq!(verdict["signed"], json!([true, true, false]), "{format}");
        if format != MessageFormat::Raw {
            let event = &verdict["cloud_event"];
            assert_eq!(event["data"], json!({ "total": 1999, "name": "gr\u{fc}n" }), "{format}");
            for (name, value) in [
                ("id", id.as_str()),
                ("type", "Order placed \u{2713}"),
                ("subject", "4 2%"),
                ("source", "/Order"),
                ("specversion", "1.0"),
            ] {
                assert_eq!(event["attributes"][name], value, "{name} in {format}");
            }
        }
    }
    std::fs::remove_file(file).unwrap();
}

async fn judge(python: &str, request: &Value) -> Value {
    let mut child = tokio::process::Command::new(python)
        .arg("-I")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(request.to_string().as_bytes()).await.unwrap();
    drop(stdin);
    let output = tokio::time::timeout(Duration::from_mins(1), child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server that does with each connection as it pleases.
async fn raw<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

fn url_of(address: SocketAddr) -> String {
    format!("http://{address}/")
}

/// Reads a request with a body of known length to its end.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<()> {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return Ok(());
            }
        }
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
}

/// A server with a certificate for this name, and the file to trust it by.
async fn tls_receiver(name: &str) -> (SocketAddr, PathBuf) {
    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let _ = read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
        let _ = stream.shutdown().await;
    }

    let certified = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let file = std::env::temp_dir().join(format!("posthaste-ca-{}-{name}.pem", std::process::id()));
    std::fs::write(&file, certified.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key.unwrap())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let address = raw(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                answer(stream).await;
            }
        }
    })
    .await;
    (address, file)
}
