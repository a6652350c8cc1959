//! MQTT: what every transport must do, and what only this one promises.

use std::{env, process::Command, sync::Arc};

use async_trait::async_trait;
use posthaste_core::{
    Envelope, Event, Result,
    transport::{Outcome, Transport},
};
use posthaste_testkit::transports::{
    Destination, Options, Received, Server, Traits, consume, consumer,
};
use posthaste_transports::mqtt::{Mqtt, MqttConfig};
use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use support::{enveloped, given, unique_name};

mod support;

/// What one MQTT server makes of the suite, with this quality of service.
struct Subject {
    qos: u8,
}

fn available(qos: u8) -> Option<Subject> {
    env::var("POSTHASTE_TEST_MQTT").ok().map(|_| Subject { qos })
}

async fn qos_1() -> Option<Subject> {
    available(1)
}

async fn qos_2() -> Option<Subject> {
    available(2)
}

mod acknowledged {
    use super::qos_1;
    posthaste_testkit::transport_conformance!(qos_1);
}

mod completed {
    use super::qos_2;
    posthaste_testkit::transport_conformance!(qos_2);
}

#[async_trait]
impl Destination for Subject {
    fn traits(&self) -> Traits {
        // The limit is the server's own.
        Traits { prefix: "", too_large: Some((0, 2 * 1024 * 1024)), ..Traits::default() }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_MQTT").expect("the subject was made")
    }

    fn server(&self) -> Server {
        private("")
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        let url = format!("{}&qos={}", options.on(url), self.qos);
        Ok(Arc::new(Mqtt::new(MqttConfig::from_url(&url)?)?))
    }

    async fn prepare(&self, url: &str, topic: &str) {
        prepare(url, topic).await;
    }

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        consume(consumer("mqtt"), &["read", url, topic]).await
    }
}

/// A server of its own, with these lines in its configuration.
fn private(settings: &'static str) -> Server {
    let server = env::var("POSTHASTE_TEST_MQTT_SERVER").expect("what starts a server");
    Server::new(
        |port| format!("mqtt://posthaste:posthaste@127.0.0.1:{port}"),
        move |port, folder| {
            let mut command = Command::new(&server);
            let settings = settings.replace("FOLDER", &folder.display().to_string());
            command.arg(port.to_string()).arg(folder).arg(settings);
            command
        },
    )
    .ready_when("running")
    // It acknowledges what it has in memory, and writes that down when it ends.
    .ends_in_order()
}

async fn prepare(url: &str, topic: &str) {
    let _: Vec<Received> = consume(consumer("mqtt"), &["prepare", url, topic]).await;
}

/// A message as the consumer shows it beside what all consumers show.
#[derive(Debug, Deserialize)]
struct Flags {
    qos: u8,
    retain: bool,
    expiry: Option<u32>,
}

fn placed(topic: &str) -> Envelope {
    enveloped(Event::builder("OrderPlaced").topic(topic).payload("x"))
}

fn transport(url: &str) -> Mqtt {
    Mqtt::new(MqttConfig::from_url(url).unwrap()).unwrap()
}

/// The shared server's URL.
fn shared() -> Option<String> {
    given("POSTHASTE_TEST_MQTT")
}

#[tokio::test]
async fn quality_and_expiry_travel_as_configured() {
    let Some(url) = shared() else { return };
    for qos in [1, 2] {
        let topic = unique_name("flags");
        prepare(&url, &topic).await;
        let transport = transport(&format!("{url}?qos={qos}&message_expiry=2m"));
        assert_eq!(transport.publish(&[placed(&topic)]).await, [Outcome::Delivered]);
        let read: Vec<Flags> = consume(consumer("mqtt"), &["read", &url, &topic]).await;
        assert_eq!((read.len(), read[0].qos), (1, qos));
        let expiry = read[0].expiry.unwrap();
        assert!((100..=120).contains(&expiry), "{expiry}");
    }
}

#[tokio::test]
async fn a_retained_message_is_there_for_who_comes_later() {
    let Some(url) = shared() else { return };
    let topic = unique_name("retained");
    let transport = transport(&format!("{url}?retain=true"));
    for _ in 0..2 {
        assert_eq!(transport.publish(&[placed(&topic)]).await, [Outcome::Delivered]);
    }
    prepare(&url, &topic).await;
    let read: Vec<Flags> = consume(consumer("mqtt"), &["read", &url, &topic]).await;
    assert_eq!(read.len(), 1, "the last one is kept");
    assert!(read[0].retain);
}

#[tokio::test]
async fn a_topic_that_nobody_subscribes_to_is_delivered_unless_a_subscriber_is_required() {
    let Some(url) = shared() else { return };
    let event = [placed(&unique_name("nobody"))];
    for qos in [1, 2] {
        let outcomes = transport(&format!("{url}?qos={qos}")).publish(&event).await;
        assert_eq!(outcomes, [Outcome::Delivered]);
    }
    let outcomes = transport(&format!("{url}?require_subscriber=true")).publish(&event).await;
    assert_eq!(outcomes, [Outcome::retry("nobody subscribes to its topic")]);
}

#[tokio::test]
async fn what_mqtt_cannot_carry_is_dead_and_its_neighbours_go_on() {
    let Some(url) = shared() else { return };
    let topic = unique_name("carried");
    prepare(&url, &topic).await;
    let with_topic = |topic: &str| Envelope { topic: Some(topic.to_owned()), ..placed("x") };
    let with_header = |name: &str, value: &str| {
        enveloped(Event::builder("OrderPlaced").topic(&topic).header(name, value).payload("x"))
    };
    let batch = [
        placed(&topic),
        with_topic("orders/#"),
        with_topic("orders/+/placed"),
        with_topic(""),
        with_header("nul", "a\0b"),
        with_header("long", &"x".repeat(70_000)),
        placed(&topic),
    ];
    let outcomes = transport(&url).publish(&batch).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        match n {
            0 | 6 => assert_eq!(*outcome, Outcome::Delivered, "event {n}"),
            _ => assert!(matches!(outcome, Outcome::Dead { .. }), "event {n}: {outcome:?}"),
        }
    }
    let read: Vec<Received> = consume(consumer("mqtt"), &["read", &url, &topic]).await;
    assert_eq!(read.len(), 2);
}

#[tokio::test]
async fn a_topic_that_is_not_allowed_is_a_retry_and_others_are_delivered() {
    let Some(_) = shared() else { return };
    let mut server = private("acl_file FOLDER/acl");
    let acl = "user posthaste\ntopic readwrite allowed/#\n";
    std::fs::write(server.folder().join("acl"), acl).unwrap();
    server.start().await;
    for qos in [1, 2] {
        let transport = transport(&format!("{}?qos={qos}", server.url()));
        let batch = [placed("allowed/a"), placed("forbidden/b"), placed("allowed/c")];
        let refused = Outcome::retry("not authorized to publish to this topic");
        let expected = [Outcome::Delivered, refused, Outcome::Delivered];
        assert_eq!(transport.publish(&batch).await, expected);
    }
}

/// Mosquitto does not announce this limit, and acknowledges with a code that MQTT does not have there.
#[tokio::test]
async fn a_message_beyond_a_limit_that_is_not_announced_is_a_retry_and_the_others_are_delivered() {
    let Some(_) = shared() else { return };
    let mut server = private("message_size_limit 65536");
    server.start().await;
    for qos in [1, 2] {
        prepare(&server.url(), "limited").await;
        let transport = transport(&format!("{}?qos={qos}", server.url()));
        let large = enveloped(Event::builder("E").topic("limited").payload(&"x".repeat(100_000)));
        let mut batch: Vec<_> = (0..200).map(|_| placed("limited")).collect();
        batch[77] = large.clone();
        let refused = |outcomes: &[Outcome]| {
            let refused: Vec<usize> =
                (0..200).filter(|n| outcomes[*n] != Outcome::Delivered).collect();
            let why = "it breaks its connection: the server answered with what MQTT does not know";
            assert_eq!(outcomes[refused[0]], Outcome::retry(why));
            refused
        };
        assert_eq!(refused(&transport.publish(&batch).await), [77]);
        let mut batch: Vec<_> = (0..200).map(|_| placed("limited")).collect();
        batch[5] = large;
        assert_eq!(refused(&transport.publish(&batch).await), [5]);
        let read: Vec<Received> =
            consume(consumer("mqtt"), &["read", &server.url(), "limited"]).await;
        let ids: Vec<_> =
            read.iter().map(|m| m.header("posthaste-id").unwrap().to_owned()).collect();
        let again = batch.iter().map(|envelope| envelope.event.id().to_string());
        let again = again.filter(|id| ids.iter().filter(|arrived| *arrived == id).count() == 1);
        assert_eq!(again.count(), 199, "the second time it disturbed nobody");
    }
}

#[tokio::test]
async fn more_messages_than_the_server_takes_at_a_time_are_all_delivered() {
    let Some(_) = shared() else { return };
    let mut server = private("max_inflight_messages 3");
    server.start().await;
    prepare(&server.url(), "narrow").await;
    let transport = transport(&server.url());
    let found = transport.check().await.unwrap();
    assert!(found.ends_with("and 3 messages at a time"), "{found}");
    let batch: Vec<_> = (0..200).map(|_| placed("narrow")).collect();
    let outcomes = transport.publish(&batch).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Delivered), "{outcomes:?}");
    let read: Vec<Received> = consume(consumer("mqtt"), &["read", &server.url(), "narrow"]).await;
    let sent = batch.iter().map(|envelope| envelope.event.id().to_string());
    let read: Vec<_> = read.iter().map(|m| m.header("posthaste-id").unwrap().to_owned()).collect();
    assert!(sent.eq(read), "in the order of the batch");
}

#[tokio::test]
async fn a_certificate_must_be_trusted_and_name_the_host() {
    let Some(_) = shared() else { return };
    let mut server = private("certfile FOLDER/cert.pem\nkeyfile FOLDER/key.pem");
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let ca_file = server.folder().join("cert.pem");
    std::fs::write(&ca_file, certified.cert.pem()).unwrap();
    std::fs::write(server.folder().join("key.pem"), certified.signing_key.serialize_pem()).unwrap();
    server.start().await;
    let url = |host: &str| format!("mqtts://posthaste:posthaste@{host}:{}", server.port());
    let trusted = format!("{}?ca_file={}", url("localhost"), ca_file.display());
    assert_eq!(transport(&trusted).publish(&[placed("secured")]).await, [Outcome::Delivered]);
    let other_name = format!("{}?ca_file={}", url("127.0.0.1"), ca_file.display());
    for wrong in [url("localhost"), other_name] {
        let outcome = transport(&wrong).publish(&[placed("secured")]).await.remove(0);
        let Outcome::Unavailable { error, .. } = outcome else { panic!("{outcome:?}") };
        assert!(error.contains("TLS failed or the certificate"), "{error}");
    }
}

#[tokio::test]
async fn a_host_that_says_nothing_leaves_time_for_the_next() {
    let Some(url) = shared() else { return };
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = format!("@{},", silent.local_addr().unwrap());
    let url = format!("{}?connect_timeout=2s", url.replace('@', &first));
    assert_eq!(transport(&url).publish(&[placed("next")]).await, [Outcome::Delivered]);
}

/// CONNACK: accepted, no properties.
const CONNACK: [u8; 5] = [0x20, 3, 0, 0, 0];

/// A server that lets everybody in and then does with the connection as it pleases.
async fn scripted<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("mqtt://me:hush@{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = packet(&mut stream).await;
            let _ = stream.write_all(&CONNACK).await;
            tokio::spawn(serve(stream));
        }
    });
    url
}

/// Reads a packet: its type and what follows its length.
async fn packet(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await?;
    let (mut length, mut shift) = (0_usize, 0);
    loop {
        let byte = stream.read_u8().await?;
        length |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    Ok((kind, rest))
}

#[tokio::test]
async fn a_server_that_never_acknowledges_is_a_timeout() {
    let url = scripted(async |mut stream| while packet(&mut stream).await.is_ok() {}).await;
    let transport = transport(&format!("{url}?publish_timeout=300ms"));
    let outcomes = transport.publish(&[placed("a"), placed("b")]).await;
    assert_eq!(outcomes, vec![Outcome::timed_out("no acknowledgement within 300ms"); 2]);
}

#[tokio::test]
async fn a_server_that_hangs_up_over_one_message_delivers_its_neighbours() {
    let url = scripted(async |mut stream| {
        while let Ok((kind, rest)) = packet(&mut stream).await {
            if kind >> 4 != 3 {
                continue;
            }
            let length = usize::from(rest[0]) << 8 | usize::from(rest[1]);
            let (topic, id) = (&rest[2..2 + length], &rest[2 + length..4 + length]);
            if topic == b"poison" {
                // DISCONNECT: packet too large, with a text that quotes the payload.
                let _ = stream.write_all(&[0xe0, 9, 0x95, 7, 0x1f, 0, 4]).await;
                let _ = stream.write_all(b"hush").await;
                let _ = stream.shutdown().await;
                // What is still on its way would turn the end into a reset.
                while packet(&mut stream).await.is_ok() {}
                return;
            }
            let _ = stream.write_all(&[0x40, 2, id[0], id[1]]).await;
        }
    })
    .await;
    let transport = transport(&url);
    let batch = [placed("a"), placed("poison"), placed("b"), placed("c")];
    let outcomes = transport.publish(&batch).await;
    let why = "it breaks its connection: the server ended the connection (PacketTooLarge)";
    let blamed = Outcome::retry(why);
    let delivered = Outcome::Delivered;
    assert_eq!(outcomes, [delivered.clone(), blamed, delivered.clone(), delivered.clone()]);
    assert_eq!(transport.publish(&[placed("d")]).await, [delivered]);
}
