//! A payload and a secret that are echoed back in errors appear nowhere: not in logs, not in
//! `last_error`, not in the attempts, not in what the relay counts.

mod support;

use std::{io, sync::Arc};

use posthaste::{
    Event, Key,
    relay::{Config, Destination, LogTenant, Relay, Route, Routes},
    transport::Transport,
    transports::{self, handlers::Handlers},
};
use sqlx::Sqlite;
use support::{Log, TestDatabase, quick};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tracing_subscriber::EnvFilter;

const PAYLOAD: &str = "marker-of-the-payload-5f1c";
const SECRET: &str = "whsec_bWFya2VyLW9mLXRoZS1zZWNyZXQtOWUyYi1hbmQtbW9yZQ==";
const TENANT: &str = "tenant-that-is-hashed-8a31";
/// The secret as it reads once it is decoded.
const DECODED: &str = "marker-of-the-secret-9e2b";

/// A webhook that throws back whatever it got, with this status.
async fn echo(status: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 16 * 1024];
            let length = stream.read(&mut request).await.unwrap_or(0);
            let body =
                format!("{} {SECRET} {DECODED}", String::from_utf8_lossy(&request[..length]));
            let answer = format!(
                "HTTP/1.1 {status} {PAYLOAD}\r\nx-echo: {PAYLOAD} {DECODED}\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

fn webhook(port: u16, name: &str) -> Arc<dyn Transport> {
    // Only this test runs in its process.
    let file = std::env::temp_dir().join(format!("posthaste-secret-{}", uuid::Uuid::now_v7()));
    std::fs::write(&file, SECRET).unwrap();
    let url = format!(
        "http://127.0.0.1:{port}/hook?posthaste.allow_private=true&posthaste.name={name}\
         &posthaste.secret_file={}",
        file.display()
    );
    let transport = transports::open(&url).unwrap();
    std::fs::remove_file(file).unwrap();
    transport
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_and_a_secret_that_are_echoed_in_errors_appear_nowhere() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("debug,posthaste=trace"))
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let on = Sqlite::fixture().await;
    // Each alone at its destination: so a failure is its own, is counted and told.
    let failing = Handlers::new("failing")
        .on_global("Fails", async |envelope: posthaste::Envelope| {
            let payload = String::from_utf8_lossy(envelope.event.payload()).into_owned();
            Err(io::Error::other(payload).into())
        })
        .unwrap();
    let panicking = Handlers::new("panicking")
        .on_global("Panics", async |envelope: posthaste::Envelope| {
            panic!("{}", String::from_utf8_lossy(envelope.event.payload()))
        })
        .unwrap();
    let destinations = vec![
        Destination::new(Arc::new(failing)),
        Destination::new(Arc::new(panicking)),
        Destination::new(webhook(echo("500").await, "broken")),
        Destination::new(webhook(echo("400").await, "refusing")),
        Destination::new(webhook(echo("503").await, "away")),
    ];
    let routes = Routes::new()
        .route(Route::to("broken").event_type("Broken"))
        .route(Route::to("refusing").event_type("Refused"))
        .route(Route::to("away").event_type("Away"))
        .route(Route::to("panicking").event_type("Panics"))
        .route(Route::to("failing"));
    let config = Config { max_attempts: 2, log_tenant: LogTenant::Hashed, ..quick() };
    let relay = Relay::routed(on.store(), destinations, routes, config).unwrap();
    let events: Vec<Event> = ["Fails", "Panics", "Broken", "Refused", "Away"]
        .iter()
        .map(|event_type| {
            let event = Event::builder(*event_type).tenant(TENANT).header("hint", PAYLOAD);
            event.payload(&PAYLOAD).build().unwrap()
        })
        .collect();
    let ids: Vec<_> = events.iter().map(Event::id).collect();
    on.enqueue(events).await;
    relay.start().await.unwrap();
    let stats =
        support::until(&relay, "all to fail", |s| s.dead >= 4 && s.breakers_open >= 1).await;
    relay.stop().await.unwrap();

    let mut said = vec![format!("{stats:?}"), format!("{:?}", on.store.relays().await.unwrap())];
    for &id in &ids {
        let record = on.record(id).await;
        said.push(record.last_error.clone().unwrap_or_default());
        for attempt in on.store.attempts(record.sequence).await.unwrap() {
            said.push(format!("{attempt:?}"));
        }
    }
    let logged = log.text();
    let dead = logged.lines().filter(|line| line.contains("dead: given up on"));
    let failed = dead.clone().find(|line| line.contains(&ids[0].to_string()));
    let failed = failed.unwrap_or_else(|| panic!("the log was not caught: {logged}"));
    let tenant = format!("tenant={:016x}", Key::of(TENANT).0);
    assert!(dead.clone().all(|line| line.contains("ERROR")), "{:?}", dead.collect::<Vec<_>>());
    for field in ["event.id=", "topic=", "aggregate_type=", "attempts=2", &tenant] {
        assert!(failed.contains(field), "{field} is not in: {failed}");
    }
    let retried = logged.lines().filter(|line| line.contains("not delivered; trying again"));
    let first = retried.clone().find(|line| line.contains(&ids[0].to_string()));
    let first = first.unwrap_or_else(|| panic!("no line names the retry: {logged}"));
    for field in
        ["INFO", "sequence=", "topic=", "aggregate_type=", "attempts=1", "failing", &tenant]
    {
        assert!(first.contains(field), "{field} is not in: {first}");
    }
    said.push(logged);
    let said = said.join("\n");
    assert!(said.contains("503"), "the webhook's status is told: {said}");
    for marker in [PAYLOAD, SECRET, DECODED, TENANT] {
        if let Some(at) = said.find(marker) {
            let from = said[..at].rfind('\n').map_or(0, |line| line + 1);
            panic!("{marker} was told: {}", &said[from..(at + 80).min(said.len())]);
        }
    }
    on.clean().await;
}
