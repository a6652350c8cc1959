//! NATS: `async-nats`, JetStream, an acknowledgement for each message.

use std::{collections::VecDeque, sync::Arc};

use async_nats::{
    ConnectOptions, HeaderMap, header,
    jetstream::{
        context::{Context, ContextBuilder},
        stream,
    },
};
use async_trait::async_trait;
use posthaste::{
    Envelope, Error, Result,
    transports::nats::{Nats, NatsConfig},
};
use tokio::sync::OnceCell;

use super::{Broker, Client, failed, refuse_tls};

struct NatsClient {
    config: NatsConfig,
    /// Subject, and the name of the stream that listens to it.
    topic: String,
    connected: OnceCell<async_nats::Client>,
}

pub(super) fn open(url: &str, topic: String) -> Result<Broker> {
    // The bench has a stream of its own, whichever the URL names.
    let config = NatsConfig {
        stream: None,
        create_stream: false,
        subjects: Vec::new(),
        ..NatsConfig::from_url(url)?
    };
    refuse_tls(config.tls, "nats")?;
    if config.credentials.is_some() || config.nkey.is_some() {
        return Err(Error::invalid("a bench logs in to NATS with a user and password, or a token"));
    }
    let transport = Arc::new(Nats::new(config.clone())?);
    let client = NatsClient { config, topic: topic.clone(), connected: OnceCell::new() };
    Ok(Broker { transport, clients: vec![Arc::new(client)], topic })
}

impl NatsClient {
    async fn jetstream(&self, window: usize) -> Result<Context> {
        let client = self.connected.get_or_try_init(async || self.connect().await).await?;
        Ok(ContextBuilder::new().max_ack_inflight(window).build(client.clone()))
    }

    async fn connect(&self) -> Result<async_nats::Client> {
        let mut options = ConnectOptions::new();
        if let (Some(user), Some(password)) = (&self.config.user, &self.config.password) {
            options = options.user_and_password(user.clone(), password.expose().to_owned());
        } else if let Some(token) = &self.config.token {
            options = options.token(token.expose().to_owned());
        }
        let servers: Vec<String> = self
            .config
            .hosts
            .iter()
            .map(|(host, port)| format!("nats://{host}:{}", port.unwrap_or(4222)))
            .collect();
        options.connect(servers).await.map_err(failed("connecting to NATS"))
    }
}

#[async_trait]
impl Client for NatsClient {
    fn name(&self) -> &'static str {
        "async-nats"
    }

    async fn make(&self) -> Result<()> {
        let jetstream = self.jetstream(1).await?;
        self.remove().await?;
        let stream = stream::Config {
            name: self.topic.clone(),
            subjects: vec![self.topic.clone()],
            allow_batch_publish: self.config.batched,
            ..stream::Config::default()
        };
        jetstream.create_stream(stream).await.map(drop).map_err(failed("creating a stream"))
    }

    async fn publish(&self, events: &[Envelope], window: usize) -> Result<()> {
        let jetstream = self.jetstream(window).await?;
        let mut unacknowledged = VecDeque::with_capacity(window);
        for envelope in events {
            if unacknowledged.len() == window
                && let Some(oldest) = unacknowledged.pop_front()
            {
                acknowledged(oldest).await?;
            }
            let message = self.config.common.format.message(envelope, "ce-");
            let mut headers = HeaderMap::new();
            for (name, value) in message.headers() {
                headers.insert(name, value);
            }
            headers.insert("content-type", message.content_type);
            headers.insert(header::NATS_MESSAGE_ID, message.id);
            let sent = jetstream
                .publish_with_headers(self.topic.clone(), headers, message.body)
                .await
                .map_err(failed("publishing with async-nats"))?;
            unacknowledged.push_back(sent);
        }
        for sent in unacknowledged {
            acknowledged(sent).await?;
        }
        Ok(())
    }

    async fn count(&self) -> Result<u64> {
        let stream = self.jetstream(1).await?.get_stream(&self.topic).await;
        Ok(stream.map_err(failed("asking for the stream"))?.cached_info().state.messages)
    }

    async fn remove(&self) -> Result<()> {
        if !self.connected.initialized() {
            return Ok(());
        }
        let jetstream = self.jetstream(1).await?;
        if jetstream.get_stream(&self.topic).await.is_err() {
            return Ok(());
        }
        let removed = jetstream.delete_stream(&self.topic).await;
        removed.map(drop).map_err(failed("removing the bench's stream"))
    }
}

async fn acknowledged(sent: async_nats::jetstream::context::PublishAckFuture) -> Result<()> {
    sent.await.map(drop).map_err(failed("publishing with async-nats"))
}
