//! Traces reach a collector.

#![cfg(feature = "otlp")]

mod command;

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::mpsc,
    thread,
    time::Duration,
};

use command::{Folder, command, pool, stderr};
use posthaste::{Event, Outbox};

/// A collector for one export: gives the first line of the request and its body.
fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
        let (head, length) = loop {
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the request ended early");
            request.extend_from_slice(&chunk[..read]);
            let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") else {
                continue;
            };
            let head = String::from_utf8(request[..end].to_vec()).unwrap().to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            break (head.clone(), end + 4 + length.unwrap().parse::<usize>().unwrap());
        };
        while request.len() < length {
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the body ended early");
            request.extend_from_slice(&chunk[..read]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        let body = request.split_off(head.len() + 4);
        tell.send((head.lines().next().unwrap_or_default().to_owned(), body)).unwrap();
    });
    (address, told)
}

#[tokio::test]
async fn the_span_of_a_publish_reaches_the_collector_in_the_trace_of_its_writer() {
    let folder = Folder::new();
    let url = folder.migrated();
    let outbox = Outbox::new("outbox_event".parse().unwrap());
    let database = pool(&url).await;
    let mut transaction = outbox.begin(&database).await.unwrap();
    let event = Event::builder("OrderPlaced")
        .aggregate("Order", 7)
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .payload("marker payload");
    outbox.enqueue(&mut transaction, event).await.unwrap();
    transaction.commit().await.unwrap();
    database.close().await;

    let (address, told) = collector();
    let output = command(&["relay", "--url", &url, "--to", "log", "--once"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &address)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let (line, body) = told.recv_timeout(Duration::from_secs(30)).expect("no export came");
    assert_eq!(line, "post /v1/traces http/1.1");
    let holds = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
    assert!(holds(b"publish") && holds(b"posthaste"), "{body:?}");
    assert!(holds(&0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes()), "another trace");
    assert!(!holds(b"marker payload"), "a payload in a trace");
}

#[test]
fn a_collector_that_is_gone_keeps_nobody_from_delivering() {
    let folder = Folder::new();
    let url = folder.migrated();
    let output = command(&["relay", "--url", &url, "--to", "log", "--once"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}
