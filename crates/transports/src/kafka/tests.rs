//! Against servers that misbehave as real ones seldom do.

use posthaste_core::Event;
use rdkafka::{
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey as Request, RDKafkaRespErr as Answer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::spawn_blocking,
};

use super::*;

/// How often the tests look again.
const PAUSE: Duration = Duration::from_millis(50);

type Mock = MockCluster<'static, DefaultProducerContext>;

const TOPIC: &str = "orders";

/// A cluster of one broker inside the client library, which answers as it is told.
fn cluster(parameters: &str) -> (Mock, Kafka) {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic(TOPIC, 1, 1).unwrap();
    let url = format!("kafka://{}?{parameters}", mock.bootstrap_servers());
    (mock, Kafka::new(KafkaConfig::from_url(&url).unwrap()).unwrap())
}

fn events(count: usize) -> Vec<Envelope> {
    let one = |n: usize| {
        let event = Event::builder("OrderPlaced")
            .aggregate("Order", n.to_string())
            .topic(TOPIC)
            .bytes("text/plain", "marker-5f1c0de")
            .build()
            .unwrap();
        Envelope {
            sequence: 1,
            attempts: 0,
            replay: 0,
            created_at: event.occurred_at(),
            topic: None,
            event,
        }
    };
    (0..count).map(one).collect()
}

fn reason(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Delivered => "",
        Outcome::Retry { error, .. }
        | Outcome::TimedOut { error }
        | Outcome::Dead { error }
        | Outcome::Unavailable { error, .. } => error,
    }
}

/// The library remembers some errors for a moment.
async fn eventually(kafka: &Kafka) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut outcomes = kafka.publish(&events(1)).await;
    while outcomes != [Outcome::Delivered] {
        assert!(Instant::now() < deadline, "{outcomes:?}");
        tokio::time::sleep(PAUSE).await;
        outcomes = kafka.publish(&events(1)).await;
    }
}

#[tokio::test]
async fn a_batch_that_is_too_large_for_the_server_is_sent_event_by_event() {
    let (mock, kafka) = cluster("");
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
    mock.request_errors(Request::Produce, &[Answer::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    for outcome in kafka.publish(&events(20)).await {
        assert_eq!(outcome, Outcome::Delivered);
    }
}

#[tokio::test]
async fn an_event_that_is_too_large_for_the_server_is_dead() {
    let (mock, kafka) = cluster("");
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
    let refusal = Answer::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    mock.request_errors(Request::Produce, &[refusal, refusal]);
    let outcomes = kafka.publish(&events(1)).await;
    assert!(matches!(outcomes[0], Outcome::Dead { .. }), "{outcomes:?}");
    assert!(reason(&outcomes[0]).contains("too large for its topic: 14 bytes"), "{outcomes:?}");
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
}

#[tokio::test]
async fn a_batch_with_a_record_that_the_server_does_not_take_is_sent_event_by_event() {
    let (mock, kafka) = cluster("");
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
    let refusal = Answer::RD_KAFKA_RESP_ERR_INVALID_RECORD;
    // The batch, and of its events, which go alone, the first.
    mock.request_errors(Request::Produce, &[refusal, refusal]);
    let outcomes = kafka.publish(&events(20)).await;
    let dead: Vec<_> = outcomes.iter().filter(|o| **o != Outcome::Delivered).collect();
    assert_eq!(dead.len(), 1, "{outcomes:?}");
    assert!(matches!(dead[0], Outcome::Dead { .. }), "{dead:?}");
    assert!(reason(dead[0]).contains("takes no such message"), "{dead:?}");
}

/// How many messages the topic has.
async fn stored(mock: &Mock, topic: &'static str) -> i64 {
    let mut client = rdkafka::ClientConfig::new();
    client.set("bootstrap.servers", mock.bootstrap_servers());
    let reading = spawn_blocking(move || {
        let consumer: rdkafka::consumer::BaseConsumer = client.create().unwrap();
        let timeout = Duration::from_secs(10);
        rdkafka::consumer::Consumer::fetch_watermarks(&consumer, topic, 0, timeout).unwrap().1
    });
    reading.await.unwrap()
}

#[tokio::test]
async fn what_was_given_up_on_is_not_sent_afterwards() {
    let (mock, kafka) = cluster("");
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
    // The library tries it again and again.
    let refusals = [Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION; 1_000];
    mock.request_errors(Request::Produce, &refusals);
    let limit = Duration::from_millis(500);
    assert!(tokio::time::timeout(limit, kafka.publish(&events(5))).await.is_err());
    mock.clear_request_errors(Request::Produce);
    // What is left of them would arrive before it: a producer keeps the order of a partition.
    eventually(&kafka).await;
    assert_eq!(stored(&mock, TOPIC).await, 2);
}

#[tokio::test]
async fn events_that_go_alone_share_the_time_of_their_batch() {
    let (mock, kafka) = cluster("publish_timeout=4s");
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
    let mut answers = vec![Answer::RD_KAFKA_RESP_ERR_INVALID_RECORD];
    answers.extend([Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION; 1_000]);
    mock.broker_round_trip_time(1, Duration::from_millis(3_500)).unwrap();
    mock.request_errors(Request::Produce, &answers);
    let longest = kafka.capabilities().longest_publish.unwrap();
    let began = Instant::now();
    kafka.publish(&events(3)).await;
    let took = began.elapsed();
    // It was connected already.
    let most = longest.saturating_sub(kafka.config.common.connect_timeout);
    assert!(took <= most + Duration::from_millis(500), "{took:?} of {most:?}");
}

#[tokio::test]
async fn a_missing_topic_is_a_retry_the_others_go_on_and_it_delivers_once_it_is_made() {
    const MISSING: &str = "missing";
    let (mock, kafka) = cluster("publish_timeout=2s");
    mock.create_topic(MISSING, 1, 1).unwrap();
    mock.topic_error(MISSING, Answer::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
    let mut batch = events(2);
    batch[0].topic = Some(MISSING.to_owned());
    let outcomes = kafka.publish(&batch).await;
    assert!(matches!(outcomes[0], Outcome::Retry { .. }), "{outcomes:?}");
    assert!(reason(&outcomes[0]).contains("no topic \"missing\""), "{outcomes:?}");
    assert_eq!(outcomes[1], Outcome::Delivered);
    mock.topic_error(MISSING, Answer::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    while kafka.publish(&batch[..1]).await != [Outcome::Delivered] {}
    assert_eq!(stored(&mock, MISSING).await, 1);
}

#[tokio::test]
async fn a_fatal_error_does_not_stick() {
    let (mock, kafka) = cluster("");
    mock.request_errors(
        Request::InitProducerId,
        &[Answer::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED],
    );
    let outcomes = kafka.publish(&events(3)).await;
    for outcome in &outcomes {
        assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcomes:?}");
    }
    for outcome in kafka.publish(&events(3)).await {
        assert_eq!(outcome, Outcome::Delivered);
    }
}

#[tokio::test]
async fn a_topic_that_is_closed_to_us_is_a_retry_that_says_so() {
    let (mock, kafka) = cluster("");
    let refusal = Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    mock.request_errors(Request::Produce, &[refusal]);
    let outcomes = kafka.publish(&events(1)).await;
    assert!(matches!(outcomes[0], Outcome::Retry { .. }), "{outcomes:?}");
    assert!(reason(&outcomes[0]).contains("may not write"), "{outcomes:?}");
    eventually(&kafka).await;
}

#[tokio::test]
async fn what_passes_is_repeated_by_the_producer_itself() {
    let (mock, kafka) = cluster("");
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
    mock.request_errors(
        Request::Produce,
        &[
            Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        ],
    );
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
}

#[tokio::test]
async fn brokers_that_are_gone_are_unavailable_and_found_again() {
    let (mock, kafka) = cluster("publish_timeout=1s&connect_timeout=1s");
    assert_eq!(kafka.publish(&events(1)).await, [Outcome::Delivered]);
    mock.broker_down(1).unwrap();
    for _ in 0..2 {
        let outcomes = kafka.publish(&events(1)).await;
        assert!(matches!(outcomes[0], Outcome::Unavailable { .. }), "{outcomes:?}");
        assert!(!reason(&outcomes[0]).contains("marker"), "{outcomes:?}");
    }
    mock.broker_up(1).unwrap();
    eventually(&kafka).await;
}

/// A broker that knows how to log in and lets nobody in; it tells what it was sent. The server of
/// the other tests knows no users.
async fn refusing() -> (u16, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(refuse(stream, tell.clone()));
        }
    });
    (port, told)
}

async fn refuse(mut stream: TcpStream, tell: mpsc::UnboundedSender<Vec<u8>>) {
    while let Ok(size) = stream.read_u32().await {
        let mut request = vec![0; size as usize];
        if stream.read_exact(&mut request).await.is_err() {
            return;
        }
        let mut answer = request[4..8].to_vec(); // what it answers to
        match (request[1], request[3]) {
            // Which versions do you know? (SaslHandshake 1, ApiVersions 0, SaslAuthenticate 0)
            (18, version) => {
                let unsupported: u16 = if version == 0 { 0 } else { 35 };
                answer.extend(unsupported.to_be_bytes());
                answer.extend([0, 0, 0, 3]);
                answer.extend([0, 17, 0, 0, 0, 1, 0, 18, 0, 0, 0, 0, 0, 36, 0, 0, 0, 0]);
            }
            // Which mechanisms? (PLAIN)
            (17, _) => answer.extend(b"\0\0\0\0\0\x01\0\x05PLAIN"),
            // SaslAuthenticate: error 58, a text, no bytes.
            _ => {
                let _ = tell.send(request);
                answer.extend(b"\0\x3a\0\x0fno, marker hush\0\0\0\0");
            }
        }
        if stream.write_u32(answer.len() as u32).await.is_err()
            || stream.write_all(&answer).await.is_err()
        {
            return;
        }
    }
}

#[tokio::test]
async fn a_refused_login_is_unavailable_and_not_shown() {
    let (port, mut told) = refusing().await;
    let url = format!("kafka://me:hush@127.0.0.1:{port}");
    let kafka = Kafka::new(KafkaConfig::from_url(&url).unwrap()).unwrap();
    let error = kafka.check().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let outcomes = kafka.publish(&events(1)).await;
    assert!(matches!(outcomes[0], Outcome::Unavailable { .. }), "{outcomes:?}");
    for text in [&error.to_string(), reason(&outcomes[0])] {
        assert!(text.contains("refused the login"), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
    assert!(told.recv().await.unwrap().ends_with(b"\0me\0hush"));
}
