//! Redis Streams: a batch is one `MULTI`/`EXEC` of `XADD`s.
//!
//! ```text
//! redis://user:password@host:6379/0?max_len=100000
//! rediss://host:6379,host:6380?cluster=true&password_file=/run/secrets/redis
//! ```
//!
//! The topic is the stream's key. An entry has these fields:
//!
//! | field | content |
//! | --- | --- |
//! | `id` | the deduplication id: the event's id, for a replay with its number |
//! | `type` | the event's type |
//! | `key` | the ordering key, if the event has one |
//! | `content-type` | the payload's media type |
//! | `headers` | headers and metadata, one JSON object of strings |
//! | `payload` | the bytes |
//!
//! What Redis has acknowledged is as safe as its persistence. With `appendonly yes` and `appendfsync
//! always` it survives; with `everysec` the death of the process alone can take what was acknowledged
//! in the last two seconds, while the disk is busy.
//!
//! In a cluster every stream has a transaction of its own, so that a batch can be accepted in part.

mod config;

use std::{collections::HashSet, fmt, fs, sync::Arc};

use async_trait::async_trait;
use futures_util::future::join_all;
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    transport::{Acceptance, Capabilities, Outcome, Transport},
};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, RedisConnectionInfo, RedisError, RedisResult, ServerError, TlsCertificates, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
};
use serde::Serializer;

use crate::{connection::Connection, message::Message, turns::Turns};

pub use self::config::RedisConfig;

/// What stands before CloudEvents attributes in binary mode.
const PREFIX: &str = "ce-";

/// Most events in one batch.
const MAX_BATCH: usize = 256;

/// Arguments of one entry, and what they hold beside headers and payload, for most events.
const ENTRY_ARGUMENTS: usize = 18;
const ENTRY_MARGIN: usize = 256;

/// Adds events to Redis streams.
pub struct Redis {
    config: RedisConfig,
    connection: Connection<Live>,
}

/// Handles that are cloned for each publish; what is sent through them is pipelined.
#[derive(Clone)]
enum Live {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Events that are accepted together or not at all.
struct Transaction<'a> {
    entries: Vec<Entry<'a>>,
    /// One for each entry, in the same order.
    commands: Pipeline,
}

/// An event of a transaction.
struct Entry<'a> {
    /// Its place in the batch.
    place: usize,
    envelope: &'a Envelope,
    stream: &'a str,
}

impl Default for Transaction<'_> {
    fn default() -> Self {
        let mut commands = Pipeline::new();
        commands.atomic().ignore_errors();
        Self { entries: Vec::new(), commands }
    }
}

impl<'a> Transaction<'a> {
    fn push(&mut self, entry: Entry<'a>, command: Cmd) {
        self.entries.push(entry);
        self.commands.add_command(command);
    }

    /// Whether an entry of this stream may join: in a cluster only those of one stream may.
    fn takes(&self, stream: &str, cluster: bool) -> bool {
        !cluster || self.entries.first().is_none_or(|first| first.stream == stream)
    }
}

impl Redis {
    /// Checks the configuration; the first publish connects.
    pub fn new(config: RedisConfig) -> Result<Self> {
        config.check()?;
        let connection = Connection::new(config.common.connect_timeout);
        Ok(Self { config, connection })
    }

    async fn live(&self) -> Result<Arc<Live>, String> {
        self.connection.get(async || self.connect().await).await
    }

    async fn connect(&self) -> Result<Live, String> {
        let config = &self.config;
        let nodes = config
            .hosts
            .iter()
            .map(|(host, port)| self.node(host, port.unwrap_or(6379)))
            .collect::<RedisResult<Vec<_>>>()
            .map_err(|error| self.cannot_connect(&error))?;
        let mut certificates = None;
        if config.tls {
            // The client takes the process's provider and panics when there is none and it cannot
            // choose. One that the application installed stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
            certificates = Some(TlsCertificates { client_tls: None, root_cert: self.root()? });
        }
        // In a cluster, too: its client does not say what is wrong with a node.
        let mut connected = Err("no host is configured".to_owned());
        for node in &nodes {
            connected = self.connect_server(node.clone(), certificates.clone()).await;
            if connected.is_ok() {
                break;
            }
        }
        let server = connected?;
        let live = if config.cluster {
            Live::Cluster(self.connect_cluster(nodes, certificates).await?)
        } else {
            Live::Server(server)
        };
        // Without a password the server lets us in, and refuses every command.
        let mut ping = live.clone();
        ping.query(&redis::cmd("PING")).await.map_err(|error| self.cannot_connect(&error))?;
        Ok(live)
    }

    fn node(&self, host: &str, port: u16) -> RedisResult<ConnectionInfo> {
        let host = host.trim_matches(['[', ']']).to_owned();
        let address = if self.config.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let mut login = RedisConnectionInfo::default().set_db(self.config.database);
        if let Some(user) = &self.config.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.config.password {
            login = login.set_password(password.expose());
        }
        Ok(address.into_connection_info()?.set_redis_settings(login))
    }

    fn root(&self) -> Result<Option<Vec<u8>>, String> {
        let Some(path) = &self.config.ca_file else { return Ok(None) };
        fs::read(path)
            .map(Some)
            .map_err(|error| format!("{} cannot be read: {}", path.display(), error.kind()))
    }

    async fn connect_server(
        &self,
        node: ConnectionInfo,
        certificates: Option<TlsCertificates>,
    ) -> Result<MultiplexedConnection, String> {
        let common = &self.config.common;
        let client = match certificates {
            Some(certificates) => Client::build_with_tls(node, certificates),
            None => Client::open(node),
        };
        let timeouts = AsyncConnectionConfig::new()
            // So that a node that does not answer leaves time for the others.
            .set_connection_timeout(Some(common.connect_timeout / self.config.hosts.len() as u32))
            .set_response_timeout(Some(common.publish_timeout));
        let connected = match client {
            Ok(client) => client.get_multiplexed_async_connection_with_config(&timeouts).await,
            Err(error) => Err(error),
        };
        connected.map_err(|error| self.cannot_connect(&error))
    }

    async fn connect_cluster(
        &self,
        nodes: Vec<ConnectionInfo>,
        certificates: Option<TlsCertificates>,
    ) -> Result<ClusterConnection, String> {
        let common = &self.config.common;
        let mut client = ClusterClient::builder(nodes)
            .connection_timeout(common.connect_timeout)
            .response_timeout(common.publish_timeout)
            .overall_response_timeout(Some(common.publish_timeout))
            // Enough to follow a slot that moved; what fails longer is the relay's to repeat.
            .retries(2);
        if let Some(certificates) = certificates {
            client = client.certs(certificates);
        }
        let connected = match client.build() {
            Ok(client) => client.get_async_connection().await,
            Err(error) => Err(error),
        };
        connected.map_err(|error| self.cannot_connect(&error))
    }

    fn cannot_connect(&self, error: &RedisError) -> String {
        let place = self.config.place();
        match (error.kind(), error.code()) {
            (redis::ErrorKind::AuthenticationFailed, _)
            | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
                format!("Redis at {place} refused the login: check its user and password")
            }
            (_, Some(code)) => format!("Redis at {place} is not ready: it answered {}", word(code)),
            _ if error.is_timeout() => format!("Redis at {place} does not answer"),
            _ if error.is_connection_refusal() => {
                format!("no connection to Redis at {place}: connection refused")
            }
            // What TLS cannot read or does not trust is an error of reading.
            _ if self.config.tls && error.is_io_error() && !error.is_connection_dropped() => {
                format!(
                    "no TLS connection to Redis at {place}: its certificate is not trusted, or it \
                 speaks no TLS"
                )
            }
            _ => format!("no connection to Redis at {place}: it was closed or cannot be made"),
        }
    }

    fn command(&self, envelope: &Envelope) -> Result<Cmd, Outcome> {
        let message = self.config.common.format.message(envelope, PREFIX);
        if message.body.len() > self.config.max_message {
            return Err(Outcome::dead(format!(
                "the message is too large: {} bytes, Redis takes {}",
                message.body.len(),
                self.config.max_message
            )));
        }
        let headers = json(&message);
        let size = message.body.len() + headers.len() + ENTRY_MARGIN;
        let mut command = Cmd::with_capacity(ENTRY_ARGUMENTS, size);
        command.arg("XADD").arg(envelope.topic());
        if let Some(max_len) = self.config.max_len {
            command.arg("MAXLEN").arg("~").arg(max_len);
        }
        command.arg("*").arg("id").arg(message.id).arg("type").arg(envelope.event.event_type());
        if let Some(key) = envelope.event.ordering_key() {
            command.arg("key").arg(key);
        }
        command.arg("content-type").arg(message.content_type);
        command.arg("headers").arg(headers).arg("payload").arg(&message.body[..]);
        Ok(command)
    }

    /// Runs one transaction; what is refused before it runs is left out and the rest tried again, as
    /// often as something is left out.
    async fn run(&self, live: &Live, mut transaction: Transaction<'_>) -> Answers {
        let mut answers = Answers::default();
        while !transaction.entries.is_empty() {
            match live.clone().run(&transaction.commands).await {
                Ok(results) => {
                    // EXEC answers for all; an entry without an answer would be a retry.
                    let mut results = results.into_iter();
                    for entry in &transaction.entries {
                        let outcome = match results.next() {
                            Some(Ok(_)) => Outcome::Delivered,
                            Some(Err(error)) => {
                                self.refused(entry.stream, error.code().unwrap_or_default())
                            }
                            None => Outcome::retry("Redis did not answer for it"),
                        };
                        answers.outcomes.push((entry.place, outcome));
                    }
                    return answers;
                }
                Err(error) => {
                    let (all, broken) = self.failed(&error);
                    let refused = error.into_server_errors().unwrap_or_default();
                    if broken || !only_some(&refused, transaction.entries.len()) {
                        let places = transaction.entries.iter().map(|entry| entry.place);
                        answers.outcomes.extend(places.map(|place| (place, all.clone())));
                        answers.broken = broken;
                        return answers;
                    }
                    transaction = self.leave_out(transaction, &refused, &mut answers);
                }
            }
        }
        answers
    }

    /// The transaction without what was refused and what follows that in its key.
    fn leave_out<'a>(
        &self,
        transaction: Transaction<'a>,
        refused: &[(usize, ServerError)],
        answers: &mut Answers,
    ) -> Transaction<'a> {
        let mut rest = Transaction::default();
        let mut keys = HashSet::new();
        let commands = transaction.commands.cmd_iter();
        for (n, (entry, command)) in transaction.entries.into_iter().zip(commands).enumerate() {
            let key = entry.envelope.event.ordering_key();
            let outcome = if let Some((_, error)) = refused.iter().find(|(index, _)| *index == n) {
                self.refused(entry.stream, error.code())
            } else if key.as_ref().is_some_and(|key| keys.contains(key)) {
                Outcome::held()
            } else {
                rest.push(entry, command.clone());
                continue;
            };
            answers.outcomes.push((entry.place, outcome));
            keys.extend(key);
        }
        rest
    }

    /// What a failed transaction means for all of it, and whether the connection is to be replaced.
    fn failed(&self, error: &RedisError) -> (Outcome, bool) {
        let place = self.config.place();
        if error.is_timeout() {
            let timeout = self.config.common.publish_timeout;
            return (Outcome::retry(format!("no acknowledgement within {timeout:?}")), true);
        }
        if let Some(errors) = error.clone().into_server_errors() {
            let code = errors.first().map_or("", |(_, error)| error.code());
            return (
                Outcome::unavailable(format!(
                    "Redis at {place} takes nothing for now: it answered {}",
                    word(code)
                )),
                false,
            );
        }
        (
            Outcome::unavailable(format!(
                "the connection to Redis at {place} was lost before the acknowledgement"
            )),
            true,
        )
    }

    /// What a refused command means for its event.
    fn refused(&self, stream: &str, code: &str) -> Outcome {
        if code == "WRONGTYPE" {
            return Outcome::dead(format!("the key {stream:?} holds something else than a stream"));
        }
        if is_outage(code) {
            return Outcome::unavailable(format!(
                "Redis at {} takes nothing for now: it answered {}",
                self.config.place(),
                word(code)
            ));
        }
        Outcome::retry(format!(
            "Redis refused the entry for {stream:?}: it answered {}",
            word(code)
        ))
    }

    async fn found(&self, live: &Live) -> Result<String, String> {
        let place = self.config.place();
        let mut live = live.clone();
        if self.config.cluster {
            let info = live.query(redis::cmd("CLUSTER").arg("INFO")).await;
            let info = info.map_err(|error| self.cannot_connect(&error))?;
            let state = line(&info, "cluster_state").unwrap_or("unknown");
            let size = line(&info, "cluster_size").unwrap_or("?");
            if state != "ok" {
                return Err(format!(
                    "the Redis cluster at {place} is not ok: its state is {state}"
                ));
            }
            return Ok(format!("Redis cluster at {place}, {size} masters"));
        }
        let info = live.query(&redis::cmd("INFO")).await;
        let info = info.map_err(|error| self.cannot_connect(&error))?;
        let version = line(&info, "redis_version").unwrap_or("of unknown version");
        if line(&info, "role") == Some("slave") {
            return Err(format!("Redis {version} at {place} is a replica and takes no events"));
        }
        let file = match line(&info, "aof_enabled") {
            Some("1") => "with an append-only file",
            _ => "without an append-only file",
        };
        Ok(format!("Redis {version} at {place}, database {}, {file}", self.config.database))
    }
}

/// What became of a transaction's events.
#[derive(Default)]
struct Answers {
    /// By place in the batch.
    outcomes: Vec<(usize, Outcome)>,
    /// Whether the connection is to be replaced.
    broken: bool,
}

impl Live {
    async fn run(&mut self, pipeline: &Pipeline) -> RedisResult<Vec<RedisResult<Value>>> {
        match self {
            Self::Server(connection) => pipeline.query_async(connection).await,
            Self::Cluster(connection) => pipeline.query_async(connection).await,
        }
    }

    /// A command that answers with text.
    async fn query(&mut self, command: &Cmd) -> RedisResult<String> {
        let value = match self {
            Self::Server(connection) => connection.req_packed_command(command).await?,
            Self::Cluster(connection) => connection.req_packed_command(command).await?,
        };
        // Of several nodes the first will do.
        let value = match value {
            Value::Map(mut nodes) if !nodes.is_empty() => nodes.swap_remove(0).1,
            value => value,
        };
        Ok(redis::from_redis_value(value.extract_error()?)?)
    }
}

/// The headers as one JSON object.
fn json(message: &Message<'_>) -> String {
    let replaced = |name: &str| message.added.iter().any(|(added, _)| added == name);
    let own = message.own.iter().filter(|(name, _)| !replaced(name));
    let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
    let added = message.added.iter().map(|(name, value)| (&**name, &**value));
    let size = message.headers().map(|(name, value)| name.len() + value.len() + 6).sum::<usize>();
    let mut out = Vec::with_capacity(size + 2);
    // Texts into memory: nothing can fail.
    let _ = serde_json::Serializer::new(&mut out).collect_map(own.chain(added));
    String::from_utf8(out).unwrap_or_default()
}

/// The value of `name:value` in what INFO answers.
fn line<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Whether each of the errors belongs to one command and none to the whole server.
fn only_some(errors: &[(usize, ServerError)], commands: usize) -> bool {
    !errors.is_empty()
        && errors.iter().all(|(index, error)| *index < commands && !is_outage(error.code()))
}

/// Answers that are the server's state and not the event's fault.
fn is_outage(code: &str) -> bool {
    matches!(
        code,
        "OOM"
            | "READONLY"
            | "LOADING"
            | "MASTERDOWN"
            | "MISCONF"
            | "NOREPLICAS"
            | "BUSY"
            | "CLUSTERDOWN"
            | "TRYAGAIN"
            | "MOVED"
            | "ASK"
            | "NOAUTH"
            | "EXECABORT"
    )
}

/// An error code as it may be shown: what stands in its place could be anything.
fn word(code: &str) -> &str {
    let is_code =
        !code.is_empty() && code.len() <= 20 && code.bytes().all(|b| b.is_ascii_uppercase());
    if is_code { code } else { "an error" }
}

#[async_trait]
impl Transport for Redis {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        let acceptance = if self.config.cluster { Acceptance::Any } else { Acceptance::Atomic };
        Capabilities {
            max_batch: MAX_BATCH,
            acceptance,
            max_message: Some(self.config.max_message),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        let unavailable = |error: String| Error::new(ErrorKind::Unavailable, error);
        let live = self.live().await.map_err(unavailable)?;
        match self.found(&live).await {
            Ok(found) => Ok(found),
            Err(error) => {
                // It may have broken while nobody used it.
                self.connection.lost(&live).await;
                Err(unavailable(error))
            }
        }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let live = match self.live().await {
            Ok(live) => live,
            Err(error) => return vec![Outcome::unavailable(error); batch.len()],
        };
        let mut outcomes = vec![Outcome::held(); batch.len()];
        // A wrong type fails a command although the transaction goes on. So that no event passes a
        // refused one of its key, a key writes to one stream a batch; the rest waits for the next.
        let several = batch.iter().any(|envelope| envelope.topic() != batch[0].topic());
        let mut turns = Turns::new(several);
        let mut transactions: Vec<Transaction<'_>> = Vec::new();
        for (place, envelope) in batch.iter().enumerate() {
            let stream = envelope.topic();
            if !turns.takes(envelope, stream) {
                continue;
            }
            let command = match self.command(envelope) {
                Ok(command) => command,
                Err(outcome) => {
                    outcomes[place] = outcome;
                    turns.refuse(envelope);
                    continue;
                }
            };
            let takes = |t: &Transaction<'_>| t.takes(stream, self.config.cluster);
            let at = transactions.iter().position(takes).unwrap_or_else(|| {
                transactions.push(Transaction::default());
                transactions.len() - 1
            });
            transactions[at].push(Entry { place, envelope, stream }, command);
        }
        let answers = join_all(transactions.into_iter().map(|t| self.run(&live, t))).await;
        if answers.iter().any(|answers| answers.broken) {
            self.connection.lost(&live).await;
        }
        for (place, outcome) in answers.into_iter().flat_map(|answers| answers.outcomes) {
            outcomes[place] = outcome;
        }
        outcomes
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_code_of_the_server_is_shown() {
        assert_eq!(word("READONLY"), "READONLY");
        assert_eq!(word("secret payload"), "an error");
        assert_eq!(word(""), "an error");
    }
}
