//! Redis: `redis`, an `XADD` for each message, by itself or in pipelines.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use futures_util::{StreamExt, stream::FuturesUnordered};
use posthaste::{
    Envelope, Error, Result,
    transports::redis::{Redis, RedisConfig},
};
use redis::{
    Client as RedisClient, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisResult, aio::MultiplexedConnection,
};
use tokio::{sync::OnceCell, task::JoinSet};

use super::{super::publish::BATCHES, Broker, Client, failed, refuse_tls};

/// Commands in one pipeline: as many as a relay's batch has.
const PIPELINE: usize = 256;

struct RedisStream {
    config: RedisConfig,
    /// The stream's key.
    topic: String,
    /// Whether commands are gathered, which is faster and for the caller to do.
    pipelined: bool,
    connected: OnceCell<MultiplexedConnection>,
}

pub(super) fn open(url: &str, topic: String) -> Result<Broker> {
    let config = RedisConfig::from_url(url)?;
    refuse_tls(config.tls, "redis")?;
    if config.cluster {
        return Err(Error::invalid("a bench compares with one Redis, not with a cluster"));
    }
    let transport = Arc::new(Redis::new(config.clone())?);
    let client = |pipelined| -> Arc<dyn Client> {
        let (config, topic) = (config.clone(), topic.clone());
        Arc::new(RedisStream { config, topic, pipelined, connected: OnceCell::new() })
    };
    let clients = vec![client(false), client(true)];
    Ok(Broker { transport, clients, topic })
}

impl RedisStream {
    async fn connection(&self) -> Result<MultiplexedConnection> {
        let connect = async || self.connect().await.map_err(failed("connecting to Redis"));
        self.connected.get_or_try_init(connect).await.cloned()
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let (host, port) = &self.config.hosts[0];
        let mut login = RedisConnectionInfo::default().set_db(self.config.database);
        if let Some(user) = &self.config.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.config.password {
            login = login.set_password(password.expose());
        }
        let host = host.trim_matches(['[', ']']).to_owned();
        let address = ConnectionAddr::Tcp(host, port.unwrap_or(6379));
        let server = address.into_connection_info()?.set_redis_settings(login);
        RedisClient::open(server)?.get_multiplexed_async_connection().await
    }

    fn entry(&self, envelope: &Envelope) -> Cmd {
        let message = self.config.common.format.message(envelope, "ce-");
        let headers: BTreeMap<&str, &str> = message.headers().collect();
        let headers = serde_json::to_string(&headers).unwrap_or_default();
        let mut command = redis::cmd("XADD");
        command.arg(&self.topic);
        if let Some(max_len) = self.config.max_len {
            command.arg("MAXLEN").arg("~").arg(max_len);
        }
        command.arg("*").arg("id").arg(message.id).arg("type").arg(envelope.event.event_type());
        if let Some(key) = envelope.event.ordering_key() {
            command.arg("key").arg(key);
        }
        command.arg("content-type").arg(message.content_type);
        command.arg("headers").arg(headers).arg("payload").arg(&message.body[..]);
        command
    }
}

#[async_trait]
impl Client for RedisStream {
    fn name(&self) -> &'static str {
        if self.pipelined { "redis, pipelines without MULTI" } else { "redis" }
    }

    async fn make(&self) -> Result<()> {
        self.connection().await?;
        self.remove().await
    }

    async fn publish(&self, events: &[Envelope], window: usize) -> Result<()> {
        let connection = self.connection().await?;
        if !self.pipelined {
            let each = |acknowledged: Option<RedisResult<()>>| {
                acknowledged.unwrap_or(Ok(())).map_err(failed("publishing with redis"))
            };
            let mut unacknowledged = FuturesUnordered::new();
            for envelope in events {
                if unacknowledged.len() == window {
                    each(unacknowledged.next().await)?;
                }
                let (command, mut connection) = (self.entry(envelope), connection.clone());
                unacknowledged.push(async move { command.exec_async(&mut connection).await });
            }
            while !unacknowledged.is_empty() {
                each(unacknowledged.next().await)?;
            }
            return Ok(());
        }
        let size = PIPELINE.min(window.div_ceil(BATCHES));
        let mut unacknowledged: JoinSet<RedisResult<()>> = JoinSet::new();
        for chunk in events.chunks(size) {
            if (unacknowledged.len() + 1) * size > window {
                acknowledged(&mut unacknowledged).await?;
            }
            let mut pipeline = redis::pipe();
            for envelope in chunk {
                pipeline.add_command(self.entry(envelope)).ignore();
            }
            let mut connection = connection.clone();
            unacknowledged.spawn(async move { pipeline.exec_async(&mut connection).await });
        }
        while !unacknowledged.is_empty() {
            acknowledged(&mut unacknowledged).await?;
        }
        Ok(())
    }

    async fn count(&self) -> Result<u64> {
        let mut connection = self.connection().await?;
        let length = redis::cmd("XLEN").arg(&self.topic).query_async(&mut connection).await;
        length.map_err(failed("asking for the stream"))
    }

    async fn remove(&self) -> Result<()> {
        let Some(mut connection) = self.connected.get().cloned() else { return Ok(()) };
        let removed = redis::cmd("DEL").arg(&self.topic).exec_async(&mut connection).await;
        removed.map_err(failed("removing the bench's stream"))
    }
}

async fn acknowledged(sent: &mut JoinSet<RedisResult<()>>) -> Result<()> {
    match sent.join_next().await {
        Some(ended) => {
            ended.map_err(failed("publishing with redis"))?.map_err(failed("publishing with redis"))
        }
        None => Ok(()),
    }
}
