//! Kafka: `rdkafka`, an idempotent producer, a delivery report for each message.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Envelope, Error, ErrorKind, Result,
    transports::kafka::{Kafka, KafkaConfig},
};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer},
    error::KafkaError,
    message::{Header, Message as _, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, future_producer::DeliveryFuture},
    topic_partition_list::{Offset, TopicPartitionList},
};
use tokio::sync::{Mutex, OnceCell};

use super::{Broker, Client, failed, refuse_tls};

/// Longest wait for an answer about topics.
const PATIENCE: Duration = Duration::from_secs(30);

/// Partitions of the bench's topic.
const PARTITIONS: usize = 4;

struct Rdkafka {
    config: KafkaConfig,
    topic: String,
    producer: OnceCell<FutureProducer>,
    read: Mutex<Read>,
}

/// How far the topic was read, by partition: a deleted topic's name is not free at once, so the
/// topic stays, and what was there before is passed over.
#[derive(Default, Clone, Copy)]
struct Read {
    next: [i64; PARTITIONS],
    messages: u64,
}

pub(super) fn open(url: &str, topic: String) -> Result<Broker> {
    let config = KafkaConfig::from_url(url)?;
    refuse_tls(config.tls, "kafka")?;
    if config.user.is_some() {
        return Err(Error::invalid("a bench does not log in to Kafka"));
    }
    let transport = Arc::new(Kafka::new(config.clone())?);
    let client =
        Rdkafka { config, topic: topic.clone(), producer: OnceCell::new(), read: Mutex::default() };
    Ok(Broker { transport, clients: vec![Arc::new(client)], topic })
}

impl Rdkafka {
    fn settings(&self) -> ClientConfig {
        let hosts: Vec<String> = self
            .config
            .hosts
            .iter()
            .map(|(host, port)| format!("{host}:{}", port.unwrap_or(9092)))
            .collect();
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", hosts.join(",")).set_log_level(RDKafkaLogLevel::Emerg);
        settings
    }

    async fn producer(&self) -> Result<&FutureProducer> {
        let make = async || {
            self.settings()
                .set("enable.idempotence", "true")
                .set("acks", "all")
                .set("compression.type", self.config.compression.as_str())
                .set("partitioner", "murmur2_random")
                .set("linger.ms", "1")
                .create()
                .map_err(failed("making a producer"))
        };
        self.producer.get_or_try_init(make).await
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        self.settings().create().map_err(failed("connecting to Kafka"))
    }

    /// Reads on to the topic's end. Servers differ in what they call the end of a partition before
    /// one has got there, so that messages are counted and not offsets.
    async fn read_on(&self) -> Result<u64> {
        let mut read = self.read.lock().await;
        let mut settings = self.settings();
        settings.set("group.id", &self.topic).set("enable.auto.commit", "false");
        settings.set("enable.partition.eof", "true");
        let (topic, from) = (self.topic.clone(), *read);
        let reading = tokio::task::spawn_blocking(move || to_the_end(&settings, &topic, from));
        *read = reading.await.map_err(failed("counting messages"))??;
        Ok(read.messages)
    }

    fn send(&self, producer: &FutureProducer, envelope: &Envelope) -> Result<DeliveryFuture> {
        let message = self.config.common.format.message(envelope, "ce_");
        let count = message.own.len() + message.added.len() + 1;
        let mut headers = OwnedHeaders::new_with_capacity(count);
        for (name, value) in message.headers() {
            headers = headers.insert(Header { key: name, value: Some(value) });
        }
        headers = headers.insert(Header { key: "content-type", value: Some(message.content_type) });
        let key = envelope.event.ordering_key();
        let mut record =
            FutureRecord::<str, [u8]>::to(&self.topic).payload(&message.body).headers(headers);
        if let Some(key) = &key {
            record = record.key(key);
        }
        producer.send_result(record).map_err(|(error, _)| failed("publishing with rdkafka")(error))
    }
}

#[async_trait]
impl Client for Rdkafka {
    fn name(&self) -> &'static str {
        "rdkafka"
    }

    async fn make(&self) -> Result<()> {
        self.producer().await?;
        let topic = NewTopic::new(&self.topic, PARTITIONS as i32, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        // A topic that is there already is told as an error of its own, which is none here.
        let made = self.admin()?.create_topics([&topic], &options).await;
        made.map_err(failed("making the bench's topic"))?;
        self.read_on().await?;
        self.read.lock().await.messages = 0;
        Ok(())
    }

    async fn publish(&self, events: &[Envelope], window: usize) -> Result<()> {
        let producer = self.producer().await?;
        let mut unacknowledged = VecDeque::with_capacity(window);
        for envelope in events {
            if unacknowledged.len() == window
                && let Some(oldest) = unacknowledged.pop_front()
            {
                acknowledged(oldest).await?;
            }
            unacknowledged.push_back(self.send(producer, envelope)?);
        }
        for sent in unacknowledged {
            acknowledged(sent).await?;
        }
        Ok(())
    }

    async fn count(&self) -> Result<u64> {
        self.read_on().await
    }

    async fn remove(&self) -> Result<()> {
        if !self.producer.initialized() {
            return Ok(());
        }
        let removed = self.admin()?.delete_topics(&[&self.topic], &AdminOptions::new()).await;
        removed.map(drop).map_err(failed("removing the bench's topic"))
    }
}

async fn acknowledged(sent: DeliveryFuture) -> Result<()> {
    match sent.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err((error, _))) => Err(failed("publishing with rdkafka")(error)),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, "rdkafka gave up")),
    }
}

fn to_the_end(settings: &ClientConfig, topic: &str, mut read: Read) -> Result<Read> {
    let consumer: BaseConsumer = settings.create().map_err(failed("connecting to Kafka"))?;
    let mut places = TopicPartitionList::new();
    for (partition, next) in (0..).zip(read.next) {
        let place = places.add_partition_offset(topic, partition, Offset::Offset(next));
        place.map_err(failed("counting messages"))?;
    }
    consumer.assign(&places).map_err(failed("counting messages"))?;
    let mut ended = [false; PARTITIONS];
    let deadline = Instant::now() + PATIENCE;
    while ended.contains(&false) {
        if Instant::now() > deadline {
            return Err(Error::new(ErrorKind::Unavailable, "Kafka did not show all messages"));
        }
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Ok(message)) => {
                read.messages += 1;
                read.next[message.partition() as usize] = message.offset() + 1;
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => ended[partition as usize] = true,
            Some(Err(error)) => return Err(failed("counting messages")(error)),
        }
    }
    Ok(read)
}
