//! Bytes and headers arrive as they were given.

use posthaste_core::Event;

use super::{
    Destination, Options,
    fixture::{Topic, deliver, envelope, id},
};

/// Characters of every plane that has any, and those that make trouble.
const UNICODE: &str = "aß€𐍈 𝄞 🚀 𠀀 𰀀 \u{e0041} \u{f0000} \u{10fffd} עברית \u{202e} é e\u{301}";

/// Every byte, no byte, JSON that nobody normalises, every plane of Unicode.
pub async fn payloads_arrive_byte_for_byte(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let payloads: Vec<Vec<u8>> = vec![
        (0..=255).collect(),
        Vec::new(),
        b" {\"b\" : 1.0, \"a\":1,\"a\":2 }\r\n".to_vec(),
        UNICODE.into(),
        b"\0".to_vec(),
        b"\r\n\r\n".to_vec(),
        vec![0xff; 10_000],
    ];
    let events: Vec<_> =
        payloads.iter().enumerate().map(|(n, p)| topic.event(&n.to_string(), p.clone())).collect();
    deliver(&*transport, &events).await;
    let received = topic.read().await;
    assert_eq!(received.len(), events.len());
    for (event, payload) in events.iter().zip(&payloads) {
        let message = received.iter().find(|message| id(message) == event.event.id());
        let message = message.expect("it was delivered");
        assert!(message.body == *payload, "{} bytes arrived otherwise", payload.len());
    }
}

/// The largest payload that an outbox takes by default arrives, if the server allows it.
pub async fn a_payload_of_a_mebibyte_arrives(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let size = topic.traits.largest.min(1024 * 1024);
    let payload: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
    deliver(&*transport, &[topic.event("large", payload.clone())]).await;
    let received = topic.read().await;
    assert_eq!(received.len(), 1);
    assert!(received[0].body == payload, "{size} bytes arrived otherwise");
}

/// Several headers, long ones, and those with characters of every plane.
pub async fn headers_arrive_as_they_were_given(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    if !transport.capabilities().headers {
        return;
    }
    let long = "x".repeat(2000);
    let mut headers = vec![
        ("trace", "7f3a"),
        ("with-dash", "a b  c"),
        ("under_score", "semi;colon, comma: colon = \"quoted\" 100%"),
        ("long", &long),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    if topic.traits.unicode_headers {
        headers.push(("unicode", UNICODE));
    }
    let event = Event::builder("OrderPlaced")
        .aggregate("Order", "42")
        .topic(&topic.name)
        .headers(headers.clone())
        .bytes("text/plain", "hello")
        .build()
        .unwrap();
    deliver(&*transport, &[envelope(event)]).await;
    let received = topic.read().await;
    for (name, value) in headers {
        assert_eq!(received[0].header(name), Some(value), "header {name}");
    }
}

/// The media type stands where the protocol has its place for it.
pub async fn the_content_type_arrives(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    if !topic.traits.content_types {
        return;
    }
    let transport = topic.transport(&Options::default());
    let event = Event::builder("PhotoTaken")
        .topic(&topic.name)
        .bytes("image/png; quality=high", vec![1, 2, 3])
        .build()
        .unwrap();
    deliver(&*transport, &[envelope(event)]).await;
    let received = topic.read().await;
    assert_eq!(received[0].content_type.as_deref(), Some("image/png; quality=high"));
}
