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
//! always` it survives a restart of this server; with `everysec` the death of the process alone can take what
//! was acknowledged in the last two seconds, while the disk is busy. It does not survive a failover to a
//! replica that had not received it: with `replicas=N` an event counts as delivered only when that many have
//! acknowledged it (`WAIT`). A `maxmemory-policy` that evicts can take a whole stream, and `max_len` what no
//! consumer has read.
//!
//! When the connection breaks, the batch goes again over another one, in parts if that breaks, too: an event
//! over which the server ends the connection is a retry, and the others are delivered.
//!
//! In a cluster every stream has a transaction of its own, so that a batch can be accepted in part.

mod config;
mod connect;

use std::{collections::HashSet, fmt, sync::Arc};

use async_trait::async_trait;
use futures_util::future::join_all;
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    transport::{Acceptance, Capabilities, Outcome, Transport},
};
use redis::{Cmd, Pipeline, RedisError, ServerError};
use serde::Serializer;
use tokio::time::{Instant, timeout_at};

use crate::{
    apart::{Apart, Sent, Shared, Suspects},
    connection::Connection,
    message::Message,
    turns::Turns,
};

pub use self::config::RedisConfig;
use self::connect::Live;

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
    apart: Apart<Live>,
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
        let limit = config.common.connect_timeout;
        Ok(Self { config, connection: Connection::new(limit), apart: Apart::new(limit, false) })
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
    async fn run(
        &self,
        live: &Live,
        mut transaction: Transaction<'_>,
        deadline: Instant,
    ) -> Answers {
        let mut answers = Answers::default();
        while !transaction.entries.is_empty() {
            let mut connection = live.clone();
            let running = connection.run(&transaction.commands);
            let ran = timeout_at(deadline, running).await.unwrap_or_else(|_| Err(late()));
            match ran {
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
                        answers.outcomes.push((entry.place, Some(outcome)));
                    }
                    if self.config.replicas > 0 {
                        self.replicate(live, &mut answers, deadline).await;
                    }
                    return answers;
                }
                Err(error) => {
                    let Some((all, broken)) = self.failed(&error) else {
                        let places = transaction.entries.iter().map(|entry| entry.place);
                        answers.outcomes.extend(places.map(|place| (place, None)));
                        answers.lost = true;
                        return answers;
                    };
                    let refused = error.into_server_errors().unwrap_or_default();
                    if broken || !only_some(&refused, transaction.entries.len()) {
                        let places = transaction.entries.iter().map(|entry| entry.place);
                        answers.outcomes.extend(places.map(|place| (place, Some(all.clone()))));
                        answers.broken = broken;
                        return answers;
                    }
                    transaction = self.leave_out(transaction, &refused, &mut answers);
                }
            }
        }
        answers
    }

    /// Waits until as many replicas as configured have what was taken; otherwise it is not delivered.
    async fn replicate(&self, live: &Live, answers: &mut Answers, deadline: Instant) {
        let taken =
            |(_, outcome): &&mut (usize, Option<Outcome>)| *outcome == Some(Outcome::Delivered);
        let wanted = self.config.replicas;
        // The server's answer is to come before our own patience ends.
        let patience = deadline.saturating_duration_since(Instant::now()).mul_f64(0.9);
        let mut wait = redis::cmd("WAIT");
        wait.arg(wanted).arg(patience.as_millis().max(1) as u64);
        let mut connection = live.clone();
        let waited = timeout_at(deadline, connection.query(&wait)).await;
        let failure = match waited.unwrap_or_else(|_| Err(late())) {
            Ok(have) if have.parse::<u32>().is_ok_and(|have| have >= wanted) => return,
            Ok(have) => Outcome::unavailable(format!(
                "{} of {wanted} replicas of Redis at {} have acknowledged it",
                have.parse::<u32>().unwrap_or_default(),
                self.config.place()
            )),
            // The server has taken them: over another connection they would come twice.
            Err(error) => {
                let (failure, broken) = self
                    .failed(&error)
                    .unwrap_or_else(|| (Outcome::unavailable(self.lost()), true));
                answers.broken = broken;
                failure
            }
        };
        for (_, outcome) in answers.outcomes.iter_mut().filter(taken) {
            *outcome = Some(failure.clone());
        }
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
            answers.outcomes.push((entry.place, Some(outcome)));
            keys.extend(key);
        }
        rest
    }

    /// What a failed transaction means for all of it, and whether the connection is to be replaced.
    /// `None` when the connection broke.
    fn failed(&self, error: &RedisError) -> Option<(Outcome, bool)> {
        if error.is_timeout() {
            let timeout = self.config.common.publish_timeout;
            let late = Outcome::timed_out(format!("no acknowledgement within {timeout:?}"));
            return Some((late, true));
        }
        let errors = error.clone().into_server_errors()?;
        let code = errors.first().map_or("", |(_, error)| error.code());
        let outcome = Outcome::unavailable(format!(
            "Redis at {} takes nothing for now: it answered {}",
            self.config.place(),
            word(code)
        ));
        Some((outcome, errors.iter().any(|(_, error)| is_another_servers_turn(error.code()))))
    }

    fn lost(&self) -> String {
        let place = self.config.place();
        format!("the connection to Redis at {place} was lost before the acknowledgement")
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
}

/// The deadline of a publish has passed, as the client itself says it of a response.
fn late() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// What became of a transaction's events.
#[derive(Default)]
struct Answers {
    /// By place in the batch; `None` for what was under way when the connection broke.
    outcomes: Vec<(usize, Option<Outcome>)>,
    /// Whether the connection is to be replaced.
    broken: bool,
    /// The connection broke.
    lost: bool,
}

/// The headers as one JSON object.
fn json(message: &Message<'_>) -> String {
    let size = message.headers().map(|(name, value)| name.len() + value.len() + 6).sum::<usize>();
    let mut out = Vec::with_capacity(size + 2);
    // Texts into memory: nothing can fail.
    let _ = serde_json::Serializer::new(&mut out).collect_map(message.headers());
    String::from_utf8(out).unwrap_or_default()
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

/// Answers after which the address may lead to another server. A demoted master keeps its clients, and
/// would give the same answer on this connection until somebody ends it.
fn is_another_servers_turn(code: &str) -> bool {
    matches!(code, "READONLY" | "MASTERDOWN" | "LOADING" | "CLUSTERDOWN" | "NOAUTH" | "MOVED")
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
        // A batch is all or nothing, until its connection breaks: then it goes again in parts.
        let acceptance = if self.config.cluster { Acceptance::Any } else { Acceptance::Prefix };
        let common = &self.config.common;
        Capabilities {
            max_batch: MAX_BATCH,
            acceptance,
            longest_publish: Some(common.connect_timeout + common.publish_timeout),
            max_message: Some(self.config.max_message),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        let unavailable = |error: String| Error::new(ErrorKind::Unavailable, error);
        let live = self.live(&self.connection).await.map_err(unavailable)?;
        match self.found(&live).await {
            Ok(found) => Ok(found),
            Err(error) => {
                // It may have broken while nobody used it.
                self.connection.lost(&live);
                Err(unavailable(error))
            }
        }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let limit = self.config.common.publish_timeout;
        self.apart.publish(self, &self.connection, batch, limit).await
    }
}

impl Shared for Redis {
    type Live = Live;

    async fn live(&self, place: &Connection<Live>) -> Result<Arc<Live>, String> {
        place.get(async || self.connect().await).await
    }

    async fn send(&self, live: &Live, batch: &[&Envelope], deadline: Instant) -> Sent {
        let mut outcomes = vec![Some(Outcome::held()); batch.len()];
        // A wrong type fails a command although the transaction goes on. So that no event passes a
        // refused one of its key, a key writes to one stream a batch; the rest waits for the next.
        let several = batch.iter().any(|envelope| envelope.topic() != batch[0].topic());
        let mut turns = Turns::new(several);
        let mut transactions: Vec<Transaction<'_>> = Vec::new();
        for (place, &envelope) in batch.iter().enumerate() {
            let stream = envelope.topic();
            if !turns.takes(envelope, stream) {
                continue;
            }
            let command = match self.command(envelope) {
                Ok(command) => command,
                Err(outcome) => {
                    outcomes[place] = Some(outcome);
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
        let running = transactions.into_iter().map(|t| self.run(live, t, deadline));
        let answers = join_all(running).await;
        let broke = answers.iter().any(|answers| answers.lost).then(|| self.lost());
        let replace = broke.is_some() || answers.iter().any(|answers| answers.broken);
        for (place, outcome) in answers.into_iter().flat_map(|answers| answers.outcomes) {
            outcomes[place] = outcome;
        }
        Sent { outcomes, broke, suspects: Suspects::Unknown, replace }
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
