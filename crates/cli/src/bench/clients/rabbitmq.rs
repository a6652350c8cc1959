//! RabbitMQ: `lapin`, publisher confirms on one channel.

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm,
    options::{
        BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions, QueueDeclareOptions,
        QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use posthaste::{
    Envelope, Error, ErrorKind, Result, Secret,
    transports::rabbitmq::{RabbitMq, RabbitMqConfig},
};
use tokio::sync::OnceCell;

use super::{Broker, Client, failed, refuse_tls};

struct Lapin {
    config: RabbitMqConfig,
    exchange: ShortString,
    /// The queue's name, and the routing key.
    topic: ShortString,
    // The connection ends when it is dropped.
    connected: OnceCell<(Connection, Channel)>,
}

pub(super) fn open(url: &str, topic: String) -> Result<Broker> {
    let config = RabbitMqConfig::from_url(url)?;
    refuse_tls(config.tls, "amqp")?;
    let transport = Arc::new(RabbitMq::new(config.clone())?);
    let short = |text: &str| ShortString::try_new(text).map_err(failed("naming it"));
    let client = Lapin {
        exchange: short(&config.exchange)?,
        topic: short(&topic)?,
        config,
        connected: OnceCell::new(),
    };
    Ok(Broker { transport, clients: vec![Arc::new(client)], topic })
}

impl Lapin {
    async fn channel(&self) -> Result<&Channel> {
        let connect = async || self.connect().await.map_err(failed("connecting to RabbitMQ"));
        self.connected.get_or_try_init(connect).await.map(|(_, channel)| channel)
    }

    async fn connect(&self) -> lapin::Result<(Connection, Channel)> {
        let config = &self.config;
        let (host, port) = &config.hosts[0];
        let uri = AMQPUri {
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: config.user.clone().unwrap_or_else(|| "guest".to_owned()),
                    password: config.password.as_ref().map_or("guest", Secret::expose).to_owned(),
                },
                host: host.trim_matches(['[', ']']).to_owned(),
                port: *port,
            },
            vhost: config.vhost.clone(),
            query: AMQPQueryString::default(),
        };
        let connection = Connection::connect_uri(uri, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok((connection, channel))
    }

    async fn declare(&self, passive: bool) -> Result<u64> {
        let options =
            QueueDeclareOptions { durable: true, passive, ..QueueDeclareOptions::default() };
        let channel = self.channel().await?;
        let queue = channel
            .queue_declare(self.topic.clone(), options, FieldTable::default())
            .await
            .map_err(failed("declaring the bench's queue"))?;
        Ok(queue.message_count().into())
    }

    async fn send(&self, channel: &Channel, envelope: &Envelope) -> Result<PublisherConfirm> {
        let short = |text: &str| ShortString::try_new(text).map_err(failed("making a message"));
        let message = self.config.common.format.message(envelope, "cloudEvents:");
        let mut headers = FieldTable::default();
        for (name, value) in message.headers() {
            headers.insert(short(name)?, AMQPValue::LongString(value.into()));
        }
        let mut properties = BasicProperties::default()
            .with_message_id(short(&message.id)?)
            .with_type(short(envelope.event.event_type())?)
            .with_content_type(short(message.content_type)?)
            .with_delivery_mode(2)
            .with_headers(headers);
        if let Ok(seconds) = u64::try_from(envelope.event.occurred_at().as_second()) {
            properties = properties.with_timestamp(seconds);
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        channel
            .basic_publish(
                self.exchange.clone(),
                self.topic.clone(),
                options,
                &message.body,
                properties,
            )
            .await
            .map_err(failed("publishing with lapin"))
    }
}

#[async_trait]
impl Client for Lapin {
    fn name(&self) -> &'static str {
        "lapin"
    }

    async fn make(&self) -> Result<()> {
        let channel = self.channel().await?;
        self.remove().await?;
        self.declare(false).await?;
        if self.config.exchange.is_empty() {
            return Ok(());
        }
        channel
            .queue_bind(
                self.topic.clone(),
                self.exchange.clone(),
                self.topic.clone(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await
            .map_err(failed("binding the bench's queue"))
    }

    async fn publish(&self, events: &[Envelope], window: usize) -> Result<()> {
        let channel = self.channel().await?;
        let mut unacknowledged = VecDeque::with_capacity(window);
        for envelope in events {
            if unacknowledged.len() == window
                && let Some(oldest) = unacknowledged.pop_front()
            {
                acknowledged(oldest).await?;
            }
            unacknowledged.push_back(self.send(channel, envelope).await?);
        }
        for sent in unacknowledged {
            acknowledged(sent).await?;
        }
        Ok(())
    }

    async fn count(&self) -> Result<u64> {
        self.declare(true).await
    }

    async fn remove(&self) -> Result<()> {
        let Some((_, channel)) = self.connected.get() else { return Ok(()) };
        let removed = channel.queue_delete(self.topic.clone(), QueueDeleteOptions::default());
        removed.await.map(drop).map_err(failed("removing the bench's queue"))
    }
}

async fn acknowledged(sent: PublisherConfirm) -> Result<()> {
    let confirmation = sent.await.map_err(failed("publishing with lapin"))?;
    if confirmation.is_ack() && confirmation.take_message().is_none() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unavailable, "RabbitMQ did not take a message of lapin's"))
}
