//! NATS with JetStream: a stream's acknowledgement for each event.
//!
//! ```text
//! nats://user:password@host:4222,host:4222?stream=ORDERS&create_stream=true&subjects=orders.>&replicas=3
//! tls://host?credentials_file=/run/secrets/relay.creds
//! ```
//!
//! | event | message |
//! | --- | --- |
//! | topic | subject; one with blanks, wildcards or empty parts is refused |
//! | deduplication id | `Nats-Msg-Id`: the stream drops repeats within its window, 2 minutes unless set |
//! | headers, metadata | headers, UTF-8; CloudEvents attributes percent-encoded as over HTTP |
//! | content type | header `content-type` |
//!
//! With `batched=true` the events of a batch travel as one: an acknowledgement for all, and several
//! events of a key fly together. The stream must allow it (`allow_batched`), the server be 2.14 or later.
//! Name the stream if topics share one; otherwise each topic has a batch of its own.
//!
//! A header that NATS cannot carry (a line break in its value, a blank in its name) makes the event
//! dead, and so does one that begins with `Nats-`: those are orders to the server.

mod batch;
mod config;
mod connect;
mod inbox;

use std::{borrow::Cow, fmt, pin::pin, sync::Arc, time::Duration};

use async_nats::{
    HeaderMap, HeaderName, Message, PublishErrorKind, header,
    jetstream::{ErrorCode, context::GetStreamErrorKind, stream},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    FutureExt, StreamExt,
    future::{Either, select},
};
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    transport::{Acceptance, Capabilities, Outcome, Transport},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::{
    apart::{Apart, Sent, Shared, Suspects},
    connection::Connection,
    full::Full,
    message::{METADATA, MessageFormat, percent_encoded},
};

pub use self::config::NatsConfig;
use self::{
    connect::{Live, Refusal},
    inbox::{Answer, Inbox, NOBODY},
};

/// What stands before CloudEvents attributes in binary mode.
const PREFIX: &str = "ce-";

/// Most events in one batch.
const MAX_BATCH: usize = 256;

/// Most events in one batch that is acknowledged as one.
const MAX_BATCHED: usize = 1_000;

/// Most such batches under way: a stream may take no more than 50, from all relays together.
const MAX_BATCHES: usize = 8;

/// Publishes to JetStream and waits for the stream's acknowledgement of each event.
pub struct Nats {
    config: NatsConfig,
    connection: Connection<Live>,
    apart: Apart<Live>,
    /// When events come again whose stream takes nothing.
    full: Full,
    /// What the headers of a message begin as.
    form: HeaderMap,
    /// A turn for each batch that is acknowledged as one.
    batches: Semaphore,
}

/// What is known of the events of a batch.
struct Noted {
    /// Those that were sent and have no outcome yet.
    unanswered: usize,
    outcomes: Vec<Option<Outcome>>,
    /// Whether somebody else than the stream answered.
    strange: Vec<bool>,
}

impl Noted {
    fn new(count: usize) -> Self {
        Self { unanswered: 0, outcomes: vec![None; count], strange: vec![false; count] }
    }
}

impl Nats {
    /// Checks the configuration; the first publish connects.
    pub fn new(config: NatsConfig) -> Result<Self> {
        config.check()?;
        Self::login(&config)?;
        let limit = config.common.connect_timeout;
        let (connection, apart) = (Connection::new(limit), Apart::new(limit, false));
        let (full, form) = (Full::new(), form(&config));
        Ok(Self { config, connection, apart, full, form, batches: Semaphore::new(MAX_BATCHES) })
    }

    /// The event as NATS carries it, or why it cannot.
    fn message(&self, envelope: &Envelope) -> Result<(HeaderMap, Bytes), Outcome> {
        let subject = envelope.topic();
        let binary = self.config.common.format == MessageFormat::CloudEventsBinary;
        if let Some(fault) = fault_of(subject) {
            return Err(Outcome::dead(format!("topic {subject:?} is no NATS subject: {fault}")));
        }
        let message = self.config.common.format.message(envelope, PREFIX);
        let mut headers = self.form.clone();
        for (name, value) in message.own_headers() {
            if name.eq_ignore_ascii_case("content-type") {
                continue; // the event's content type has this place
            }
            if name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) {
                return Err(Outcome::dead(format!(
                    "header {name:?} begins with Nats-, which is for orders to the server"
                )));
            }
            if name.contains(|c: char| !c.is_ascii_graphic() || c == ':') {
                return Err(Outcome::dead(format!(
                    "header {name:?} has a name that NATS cannot carry: ASCII without blanks and \
                     colons"
                )));
            }
            let encoded = binary && name.starts_with(PREFIX);
            let value = if encoded { percent_encoded(value) } else { value.to_owned() };
            headers.insert(name, carried(name, value)?);
        }
        for (name, value) in message.added {
            let value = if binary { percent_encoded(&value) } else { value.into_owned() };
            let value = carried(&name, value)?;
            match name {
                // Neither copied nor looked at.
                Cow::Borrowed(name) => headers.insert(HeaderName::from_static(name), value),
                Cow::Owned(name) => headers.insert(name, value),
            }
        }
        if has_line_break(message.content_type) {
            return Err(Outcome::dead("the content type has a line break in it"));
        }
        headers.insert(HeaderName::from_static("content-type"), message.content_type);
        // Last, so that nothing above it can take its place.
        headers.insert(header::NATS_MESSAGE_ID, message.id);
        Ok((headers, message.body))
    }

    /// Sends all events, then waits for the acknowledgement of each.
    async fn publish_each(
        &self,
        live: &Live,
        batch: &[&Envelope],
        deadline: Instant,
    ) -> Vec<Outcome> {
        let mut noted = Noted::new(batch.len());
        let mut answers = None;
        let publishing = async {
            let mut refusals = live.refusals();
            let Ok(inbox) = Inbox::open(&live.client).await else { return };
            let answers = answers.insert(inbox.answers);
            for (number, envelope) in batch.iter().enumerate() {
                match self.send(live, envelope, format!("{}.{number}", inbox.name)).await {
                    Ok(()) => noted.unanswered += 1,
                    Err(outcome) => noted.outcomes[number] = Some(outcome),
                }
            }
            while noted.unanswered > 0 {
                match select(answers.next(), pin!(refusals.recv())).await {
                    Either::Left((Some(answer), _)) => self.note(&answer, batch, &mut noted),
                    Either::Left((None, _)) => return,
                    Either::Right((Ok(refusal), _)) => self.refuse(&refusal, batch, &mut noted),
                    // More was refused than is kept: the deadline ends what was missed.
                    Either::Right((Err(_), _)) => {}
                }
            }
        };
        let cut_short = self.in_time(live, deadline, publishing).await;
        // An acknowledgement may be there although the connection broke.
        while let Some(answer) =
            answers.as_mut().and_then(|answers| answers.next().now_or_never().flatten())
        {
            self.note(&answer, batch, &mut noted);
        }
        let missing = cut_short.unwrap_or_else(|| self.lost());
        let outcomes = noted.outcomes.into_iter().zip(noted.strange).zip(batch);
        let outcomes = outcomes.map(|((outcome, strange), envelope)| match outcome {
            Some(outcome) => outcome,
            None if strange && matches!(missing, Outcome::TimedOut { .. }) => {
                Outcome::retry(format!(
                    "what answered to subject {:?} was not its stream in JetStream",
                    envelope.topic()
                ))
            }
            None => missing.clone(),
        });
        outcomes.collect()
    }

    /// Sends one event, to be answered under this subject.
    async fn send(&self, live: &Live, envelope: &Envelope, reply: String) -> Result<(), Outcome> {
        let (headers, body) = self.message(envelope)?;
        let topic = envelope.topic().to_owned();
        let sent = live.client.publish_with_reply_and_headers(topic, reply, headers, body).await;
        sent.map_err(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => Outcome::dead(format!(
                "the message is too large: {} bytes without its headers, NATS takes {} with them",
                envelope.event.payload().len(),
                live.client.max_payload()
            )),
            _ => self.lost(),
        })
    }

    /// Takes note of what became of an event, unless that was known.
    fn note(&self, answer: &Message, batch: &[&Envelope], noted: &mut Noted) {
        let number = answer.subject.rsplit('.').next().and_then(|n| n.parse::<usize>().ok());
        let Some(number) = number.filter(|n| matches!(noted.outcomes.get(*n), Some(None))) else {
            return;
        };
        let answer = Answer::of(answer);
        if answer.is_strange(self.config.stream.as_deref()) {
            // Whoever subscribes can reply, and be faster than the stream.
            noted.strange[number] = true;
            return;
        }
        noted.unanswered = noted.unanswered.saturating_sub(1);
        noted.outcomes[number] = Some(match answer.refusal() {
            None => {
                self.full.taken([batch[number].topic()]);
                Outcome::Delivered
            }
            Some(code) => self.refused(batch[number], code),
        });
    }

    /// Takes note that the server does not permit this: nobody else will answer.
    fn refuse(&self, refusal: &Refusal, batch: &[&Envelope], noted: &mut Noted) {
        for (outcome, envelope) in noted.outcomes.iter_mut().zip(batch) {
            if outcome.is_none()
                && let Some(refused) = self.forbidden(refusal, envelope)
            {
                noted.unanswered = noted.unanswered.saturating_sub(1);
                *outcome = Some(refused);
            }
        }
    }

    /// What it means for this event that the server does not permit this, if it means something.
    fn forbidden(&self, refusal: &Refusal, envelope: &Envelope) -> Option<Outcome> {
        match refusal {
            Refusal::Subject(subject) if **subject == *envelope.topic() => Some(Outcome::retry(
                format!("NATS does not permit us to publish to subject {:?}", envelope.topic()),
            )),
            Refusal::Subject(_) => None,
            Refusal::Inbox => Some(Outcome::unavailable(format!(
                "NATS at {} does not permit us to subscribe to _INBOX.>, where acknowledgements arrive",
                self.config.place()
            ))),
        }
    }

    /// Does this until it is done, the connection breaks or time is up. Gives what cut it short. Once
    /// for a whole batch: for each event it would cost more than the event.
    async fn in_time(
        &self,
        live: &Live,
        deadline: Instant,
        work: impl Future<Output = ()>,
    ) -> Option<Outcome> {
        match timeout_at(deadline, select(pin!(work), pin!(live.died()))).await {
            Ok(Either::Left(((), _))) => None,
            Ok(Either::Right(_)) => Some(self.lost()),
            Err(_) => Some(self.late(live)),
        }
    }

    fn refused(&self, envelope: &Envelope, code: ErrorCode) -> Outcome {
        let subject = envelope.topic();
        match code {
            NOBODY => Outcome::unavailable(format!(
                "no stream listens to subject {subject:?}, or JetStream is not enabled"
            )),
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM
            | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => Outcome::dead(format!(
                "the message is too large for its stream: {} bytes",
                envelope.event.payload().len()
            )),
            ErrorCode::STREAM_NOT_MATCH => Outcome::retry(format!(
                "subject {subject:?} belongs to another stream than {}",
                self.config.stream.as_deref().unwrap_or_default()
            )),
            // Full, out of storage, without a leader: all of it takes nothing for now.
            code @ (ErrorCode::STREAM_STORE_FAILED
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED
            | ErrorCode::MEMORY_RESOURCES_EXCEEDED
            | ErrorCode::CLUSTER_NOT_AVAILABLE
            | ErrorCode::CLUSTER_NOT_LEADER
            | ErrorCode::JETSTREAM_NOT_ENABLED
            | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
            | ErrorCode::STREAM_SEALED) => Outcome::Unavailable {
                error: format!(
                    "the stream of subject {subject:?} takes nothing for now (JetStream error {})",
                    code.0
                ),
                // Other streams may take theirs meanwhile: no attempt is counted.
                after: Some(self.full.refused(subject)),
            },
            code => Outcome::retry(format!(
                "the stream of subject {subject:?} refused it (JetStream error {})",
                code.0
            )),
        }
    }

    fn lost(&self) -> Outcome {
        Outcome::unavailable(format!(
            "the connection to NATS at {} was lost before the acknowledgement",
            self.config.place()
        ))
    }

    fn late(&self, live: &Live) -> Outcome {
        if live.is_alive() {
            let timeout = self.config.common.publish_timeout;
            Outcome::timed_out(format!("no acknowledgement within {timeout:?}"))
        } else {
            self.lost()
        }
    }
}

#[async_trait]
impl Transport for Nats {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        let (acceptance, max_batch) = if self.config.batched {
            (Acceptance::Prefix, MAX_BATCHED)
        } else {
            (Acceptance::Any, MAX_BATCH)
        };
        let common = &self.config.common;
        Capabilities {
            max_batch,
            acceptance,
            deduplicates: true,
            longest_publish: Some(common.connect_timeout + common.publish_timeout),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        let unavailable = |error: String| Error::new(ErrorKind::Unavailable, error);
        let live = self.live(&self.connection).await.map_err(unavailable)?;
        let (place, jetstream) = (self.config.place(), live.jetstream());
        let server = live.client.server_info();
        let found = format!("NATS {} at {place}", server.version);
        let Some(name) = &self.config.stream else {
            let account = jetstream.query_account().await.map_err(|_| {
                unavailable(format!("{found}: JetStream does not answer, or is not enabled"))
            })?;
            return Ok(format!("{found}, JetStream with {} streams", account.streams));
        };
        let stream = jetstream.get_stream(name).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.code() == 404 => {
                unavailable(format!("{found}: there is no stream {name}"))
            }
            _ => unavailable(format!("{found}: JetStream does not answer, or is not enabled")),
        })?;
        let info = stream.cached_info();
        if info.config.no_ack {
            return Err(unavailable(format!(
                "{found}: stream {name} acknowledges nothing (no_ack), so nothing can be delivered"
            )));
        }
        Ok(format!(
            "{found}, stream {name} on {} with {} messages, {}",
            info.config.subjects.join(", "),
            info.state.messages,
            safety(&info.config)
        ))
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let limit = self.config.common.publish_timeout;
        self.apart.publish(self, &self.connection, batch, limit).await
    }
}

impl Shared for Nats {
    type Live = Live;

    async fn live(&self, place: &Connection<Live>) -> Result<Arc<Live>, String> {
        place.live(Live::is_alive, async || self.connect().await).await
    }

    async fn send(&self, live: &Live, batch: &[&Envelope], deadline: Instant) -> Sent {
        let outcomes = if self.config.batched {
            self.publish_batched(live, batch, deadline).await
        } else {
            self.publish_each(live, batch, deadline).await
        };
        if live.is_alive() {
            let outcomes = outcomes.into_iter().map(Some).collect();
            return Sent { outcomes, broke: None, suspects: Suspects::Unknown, replace: false };
        }
        let lost = self.lost();
        let under_way = |outcome: &Outcome| *outcome == lost;
        let broke = outcomes.iter().find(|outcome| under_way(outcome));
        let broke = broke.and_then(Outcome::error).map(str::to_owned);
        let outcomes = outcomes.into_iter().map(|o| Some(o).filter(|o| !under_way(o))).collect();
        Sent { outcomes, broke, suspects: Suspects::Unknown, replace: true }
    }
}

/// What a stream's settings mean for what it has acknowledged.
fn safety(stream: &stream::Config) -> String {
    let mut said = match stream.num_replicas {
        0 | 1 => "1 replica: a lost disk, or a power cut within its sync_interval, takes what was \
                  acknowledged"
            .to_owned(),
        replicas => format!("{replicas} replicas"),
    };
    if stream.storage == stream::StorageType::Memory {
        said.push_str("; storage is memory: a restart takes what was acknowledged");
    }
    let limited = stream.max_age > Duration::ZERO
        || [stream.max_bytes, stream.max_messages].into_iter().any(|limit| limit > 0)
        || stream.max_messages_per_subject > 0;
    if limited && stream.discard == stream::DiscardPolicy::Old {
        said.push_str("; its limits drop the oldest messages, whether they were read or not");
    }
    said
}

/// The headers that every message has, still to be filled in but for the stream's name. A copy has room
/// for them, where an empty map would grow twice on the way and hash everything anew: a twelfth of the
/// relay's time (measured).
fn form(config: &NatsConfig) -> HeaderMap {
    let mut form = HeaderMap::new();
    let metadata: &[&str] = match config.common.format {
        MessageFormat::Raw => &METADATA,
        MessageFormat::CloudEventsBinary | MessageFormat::CloudEventsStructured => &[],
    };
    for name in metadata.iter().chain(&["content-type"]) {
        form.insert(HeaderName::from_static(name), "");
    }
    form.insert(header::NATS_MESSAGE_ID, "");
    if let Some(stream) = &config.stream {
        form.insert(header::NATS_EXPECTED_STREAM, stream.as_str());
    }
    form
}

/// A header's value, unless NATS cannot carry it: the client would panic.
fn carried(name: &str, value: String) -> Result<String, Outcome> {
    if has_line_break(&value) {
        return Err(Outcome::dead(format!(
            "header {name:?} has a line break in its value, which NATS cannot carry"
        )));
    }
    Ok(value)
}

fn has_line_break(text: &str) -> bool {
    text.bytes().any(|byte| matches!(byte, b'\r' | b'\n'))
}

/// Why a topic is no subject to publish to, if it is none.
fn fault_of(subject: &str) -> Option<&'static str> {
    if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Some("it has a blank or a control character");
    }
    if subject.starts_with('$') {
        return Some("subjects that begin with $ are the server's own");
    }
    for part in subject.split('.') {
        match part {
            "" => return Some("it has an empty part"),
            "*" | ">" => return Some("it has a wildcard"),
            _ => {}
        }
    }
    None
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_form_stays_empty() {
        for format in [
            MessageFormat::Raw,
            MessageFormat::CloudEventsBinary,
            MessageFormat::CloudEventsStructured,
        ] {
            let mut config = NatsConfig::new("localhost", 4222);
            config.common.format = format;
            config.stream = Some("ORDERS".to_owned());
            let nats = Nats::new(config).unwrap();
            let event = posthaste_core::Event::builder("T").raw_json("{}").build().unwrap();
            let created_at = event.occurred_at();
            let envelope =
                Envelope { sequence: 1, attempts: 0, replay: 0, created_at, topic: None, event };
            let (headers, _) = nats.message(&envelope).unwrap();
            for (name, values) in headers.iter() {
                assert!(values.iter().all(|value| !value.as_str().is_empty()), "{format}: {name}");
            }
            assert_eq!(headers.get(header::NATS_EXPECTED_STREAM).unwrap().as_str(), "ORDERS");
        }
    }

    #[test]
    fn a_subject_whose_stream_is_full_is_remembered_and_no_other_refusal_is() {
        let nats = Nats::new(NatsConfig::new("localhost", 4222)).unwrap();
        let event = |topic: &str| {
            let event = posthaste_core::Event::builder("T").topic(topic).raw_json("{}");
            let event = event.build().unwrap();
            let created_at = event.occurred_at();
            Envelope { sequence: 1, attempts: 0, replay: 0, created_at, topic: None, event }
        };
        let outcome = nats.refused(&event("full"), ErrorCode::STREAM_STORE_FAILED);
        assert!(matches!(outcome, Outcome::Unavailable { after: Some(_), .. }), "{outcome:?}");
        nats.refused(&event("other"), ErrorCode::STREAM_NOT_MATCH);
        assert!(nats.full.knows("full"));
        assert!(!nats.full.knows("other"));
    }

    #[test]
    fn a_check_tells_what_can_take_acknowledged_events() {
        let safe = stream::Config { num_replicas: 3, ..stream::Config::default() };
        assert_eq!(safety(&safe), "3 replicas");
        for (config, said) in [
            (stream::Config { num_replicas: 1, ..safe.clone() }, "sync_interval"),
            (stream::Config { storage: stream::StorageType::Memory, ..safe.clone() }, "memory"),
            (stream::Config { max_age: Duration::from_mins(1), ..safe.clone() }, "oldest"),
            (stream::Config { max_messages: 10, ..safe.clone() }, "oldest"),
        ] {
            assert!(safety(&config).contains(said), "{}", safety(&config));
        }
    }

    #[test]
    fn a_topic_that_is_no_subject_is_told_why() {
        for topic in ["orders.placed", "a", "a*b.c>d", "Zürich"] {
            assert_eq!(fault_of(topic), None, "{topic}");
        }
        for topic in ["", ".a", "a.", "a..b", "a b", "a\tb", "a.*", "a.>", ">", "$JS.API.INFO"] {
            assert!(fault_of(topic).is_some(), "{topic}");
        }
    }
}
