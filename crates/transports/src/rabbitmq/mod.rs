//! RabbitMQ: publisher confirms, mandatory and persistent messages.
//!
//! ```text
//! amqp://user:password@host:5672,host:5672/vhost?exchange=events&declare=topic
//! ```
//!
//! | parameter | meaning |
//! | --- | --- |
//! | `name`, `format`, `connect_timeout`, `publish_timeout` | as everywhere |
//! | `password_env`, `password_file` | where the password is |
//! | `exchange` | the exchange, else the default one, which leads to the queue named by the routing key |
//! | `declare` | `topic`, `direct` or `fanout`: makes the exchange if it is not there, durable |
//! | `max_message` | largest body in bytes, 16 MiB unless set: that is RabbitMQ's own default since 4.0 |
//! | `ca_file` | PEM certificates to trust instead of the system's, with `amqps://` |
//!
//! The routing key is the event's own, or its topic. Several hosts are tried in their order.
//!
//! # What the server's answer means
//! A confirm is *delivered*. A message that no queue takes comes back before its confirm: it is a
//! retry, for someone has to bind a queue, as is one with a routing key that we may not use. A server that
//! blocks publishers (memory or disk alarm) is unavailable, as is one without the exchange. A full queue that refuses
//! a message is unavailable for its event, for five seconds at first and up to five minutes: other queues may
//! take theirs, and a long jam must not cost the event its attempts.
//!
//! The client library gives a returned message to whichever confirm comes next, which need not be
//! its own. So each batch has a channel for itself, and returns are matched by message id once all
//! confirms of the batch are there. When one is late, acknowledgements after it do not count.

mod config;
mod connect;

use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
use lapin::{
    BasicProperties, Confirmation, ExchangeKind,
    options::{BasicPublishOptions, ExchangeDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    transport::{Capabilities, Outcome, Transport},
};
use rustls::ClientConfig;
use tokio::time::{Instant, timeout_at};

use crate::{
    apart::{Apart, Sent as Answers, Shared, Suspects},
    connection::Connection,
    full::Full,
    tls,
};

pub use self::config::{Declare, RabbitMqConfig};
use self::connect::Link;

/// Before CloudEvents attributes in binary mode.
const PREFIX: &str = "cloudEvents:";

/// Messages of one batch under way.
const MAX_BATCH: usize = 256;

/// What a header frame holds beside the headers, generously.
const FRAME_MARGIN: usize = 2048;

/// Said of a connection that the server has told to wait.
const BLOCKED: &str = "RabbitMQ blocks publishers: its memory or its disk is short";

/// Publishes to an exchange of RabbitMQ.
pub struct RabbitMq {
    config: RabbitMqConfig,
    exchange: ShortString,
    tls: Option<Arc<ClientConfig>>,
    connection: Connection<Link>,
    apart: Apart<Link>,
    full: Full,
}

/// An event, ready for the wire.
struct Outgoing {
    // Its place in the batch.
    place: usize,
    id: String,
    routing_key: ShortString,
    properties: BasicProperties,
    body: bytes::Bytes,
}

/// What is to be remembered of an event until it is confirmed.
struct Sent {
    place: usize,
    id: String,
    routing_key: ShortString,
}

/// What came for a message.
enum Answer {
    /// The server has it, or sent it back.
    Ack {
        /// The id of a message that came back, of this one or of another one.
        returned: Option<String>,
    },
    /// The server does not take it.
    Nack { returned: Option<String> },
    /// Nothing yet.
    Late,
    /// Nothing: the channel ended before.
    Lost,
}

/// Why a channel could not finish its batch.
enum Broken {
    /// The server closed the channel with this code: some message was at fault, or the exchange. Perhaps
    /// it said which routing key it was.
    Channel(u16, Option<String>),
    /// The connection is gone.
    Connection(String),
    /// Time is up.
    Late,
}

impl RabbitMq {
    /// Checks the configuration. The first publish connects.
    pub fn new(config: RabbitMqConfig) -> Result<Self> {
        let short = |what: &str, text: &str| {
            ShortString::try_new(text)
                .map_err(|_| Error::invalid(format!("the {what} is longer than 255 bytes")))
        };
        let exchange = short("exchange's name", &config.exchange)?;
        short("virtual host's name", &config.vhost)?;
        if config.hosts.is_empty() {
            return Err(Error::invalid("RabbitMQ needs a host"));
        }
        if config.declare.is_some() && config.exchange.is_empty() {
            return Err(Error::invalid("declare needs an exchange; the default one is there"));
        }
        if config.ca_file.is_some() && !config.tls {
            return Err(Error::invalid("a ca_file needs amqps://"));
        }
        let tls = if config.tls {
            let trusted = tls::client_config(config.ca_file.as_deref()).map_err(Error::invalid)?;
            Some(Arc::new(trusted))
        } else {
            None
        };
        let limit = config.common.connect_timeout;
        let (connection, apart) = (Connection::new(limit), Apart::new(limit, false));
        Ok(Self { config, exchange, tls, connection, apart, full: Full::new() })
    }

    /// Publishes these events on one channel. What has an answer gets its outcome; the others are
    /// left, and the reason is given back.
    async fn hand_over(
        &self,
        link: &Link,
        events: Vec<Outgoing>,
        deadline: Instant,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Broken> {
        let channel = timeout_at(deadline, link.channel()).await.map_err(|_| Broken::Late)??;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut broken = None;
        let mut confirms = Vec::with_capacity(events.len());
        for event in events {
            let Outgoing { place, id, routing_key, properties, body } = event;
            let sent = channel.basic_publish(
                self.exchange.clone(),
                routing_key.clone(),
                options,
                &body,
                properties,
            );
            match timeout_at(deadline, sent).await {
                Ok(Ok(confirm)) => confirms.push((Sent { place, id, routing_key }, confirm)),
                Ok(Err(error)) => broken = Some(Broken::from(error)),
                Err(_) => broken = Some(Broken::Late),
            }
            if broken.is_some() {
                break;
            }
        }
        let mut answers = Vec::with_capacity(confirms.len());
        for (event, confirm) in confirms {
            let answer = match timeout_at(deadline, confirm).await {
                Ok(Ok(Confirmation::NotRequested)) => {
                    broken = Some(Broken::Connection("confirms are not to be had".to_owned()));
                    Answer::Lost
                }
                Ok(Ok(confirmation)) => {
                    let is_ack = confirmation.is_ack();
                    let returned = confirmation.take_message().map(|message| {
                        let id = message.delivery.properties.message_id().as_ref();
                        id.map(ToString::to_string).unwrap_or_default()
                    });
                    if is_ack { Answer::Ack { returned } } else { Answer::Nack { returned } }
                }
                // The server's own word says more than what follows from it.
                Ok(Err(error)) => {
                    if !matches!(broken, Some(Broken::Channel(..))) {
                        broken = Some(Broken::from(error));
                    }
                    Answer::Lost
                }
                Err(_) => {
                    broken = broken.or(Some(Broken::Late));
                    Answer::Late
                }
            };
            answers.push((event, answer));
        }
        self.judge(answers, outcomes);
        match broken {
            None => {
                link.give_back(channel);
                Ok(())
            }
            Some(broken) => Err(broken),
        }
    }

    /// What the answers mean, in the order of the batch.
    ///
    /// A return comes with whichever confirm is next, also with one that was late here and has its answer by
    /// now. So an acknowledgement that was looked at after a late one may belong to a message that
    /// came back, and leaves its event unanswered.
    fn judge(&self, answers: Vec<(Sent, Answer)>, outcomes: &mut [Option<Outcome>]) {
        let returned: HashSet<String> = answers
            .iter()
            .filter_map(|(_, answer)| match answer {
                Answer::Ack { returned } | Answer::Nack { returned } => returned.clone(),
                Answer::Late | Answer::Lost => None,
            })
            .collect();
        let mut late = false;
        for (event, answer) in answers {
            late |= matches!(answer, Answer::Late);
            let routing_key = event.routing_key.as_str();
            outcomes[event.place] = match answer {
                _ if returned.contains(&event.id) => Some(Outcome::retry(format!(
                    "no queue takes routing key {routing_key:?} of {}",
                    self.exchange_name()
                ))),
                Answer::Ack { .. } if !late => {
                    self.full.taken([routing_key]);
                    Some(Outcome::Delivered)
                }
                // With a time: without one it is counted while other queues take theirs.
                Answer::Nack { .. } => Some(Outcome::Unavailable {
                    error: "RabbitMQ refused it: a queue is full or has failed".to_owned(),
                    after: Some(self.full.refused(routing_key)),
                }),
                Answer::Ack { .. } | Answer::Late | Answer::Lost => None,
            };
        }
    }

    fn exchange_name(&self) -> String {
        match self.config.exchange.as_str() {
            "" => "the default exchange".to_owned(),
            name => format!("exchange {name:?}"),
        }
    }

    fn not_authorized(&self) -> String {
        format!("not authorized to publish to {} with this routing key", self.exchange_name())
    }

    /// What a channel's end means for an event that had it for itself.
    fn refusal(&self, code: u16) -> Outcome {
        let exchange = self.exchange_name();
        match code {
            404 => Outcome::unavailable(format!("{exchange} does not exist")),
            // Others may be open to us: the server looks at the routing key, too.
            403 => Outcome::retry(self.not_authorized()),
            // The one condition that a message of ours can fail.
            311 | 406 => Outcome::dead(format!(
                "RabbitMQ refused it (code {code}): it is too large, the server's limit is lower"
            )),
            _ => Outcome::retry(format!("RabbitMQ refused it (code {code})")),
        }
    }

    /// What is left without an answer, and why.
    fn unanswered(&self, link: &Link, broken: &Broken) -> Outcome {
        match broken {
            Broken::Channel(code, _) => self.refusal(*code),
            Broken::Connection(error) => Outcome::unavailable(error),
            Broken::Late if link.connection.status().blocked() => Outcome::unavailable(BLOCKED),
            Broken::Late => {
                let limit = self.config.common.publish_timeout;
                Outcome::timed_out(format!("no acknowledgement within {limit:?}"))
            }
        }
    }

    /// The event as AMQP takes it, or why it cannot be.
    fn outgoing(
        &self,
        place: usize,
        envelope: &Envelope,
        frame: usize,
    ) -> Result<Outgoing, String> {
        let short = |what: &str, text: &str| {
            ShortString::try_new(text).map_err(|_| {
                format!("{what} is {} bytes long, RabbitMQ takes up to 255", text.len())
            })
        };
        let event = &envelope.event;
        let message = self.config.common.format.message(envelope, PREFIX);
        let limit = self.config.max_message;
        if message.body.len() > limit {
            let size = message.body.len();
            return Err(format!("it is too large: {size} bytes, the limit is {limit}"));
        }
        let mut table = FieldTable::default();
        let mut size = 0;
        for (name, value) in message.headers() {
            size += name.len() + value.len() + 6;
            table.insert(short("a header's name", name)?, AMQPValue::LongString(value.into()));
        }
        // Headers cannot be split over frames: the server would close the connection.
        if frame > 0 && size + FRAME_MARGIN > frame {
            return Err(format!("its headers are too large: {size} bytes, a frame has {frame}"));
        }
        let mut properties = BasicProperties::default()
            .with_message_id(short("the id", &message.id)?)
            .with_type(short("the event type", event.event_type())?)
            .with_content_type(short("the content type", message.content_type)?)
            .with_delivery_mode(2)
            .with_headers(table);
        if let Ok(seconds) = u64::try_from(event.occurred_at().as_second()) {
            properties = properties.with_timestamp(seconds);
        }
        let routing_key = event.routing_key().unwrap_or(envelope.topic());
        Ok(Outgoing {
            place,
            id: message.id,
            routing_key: short("the routing key", routing_key)?,
            properties,
            body: message.body,
        })
    }
}

#[async_trait]
impl Transport for RabbitMq {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        let common = &self.config.common;
        Capabilities {
            max_batch: MAX_BATCH,
            max_message: Some(self.config.max_message),
            longest_publish: Some(common.connect_timeout + common.publish_timeout),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        let unavailable = |error: String| Error::new(ErrorKind::Unavailable, error);
        let link = self.live(&self.connection).await.map_err(unavailable)?;
        let found = async {
            let channel = link.connection.create_channel().await?;
            if !self.config.exchange.is_empty() {
                let options =
                    ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
                let (name, kind) = (self.exchange.clone(), ExchangeKind::Direct);
                channel.exchange_declare(name, kind, options, FieldTable::default()).await?;
            }
            // A failure to close tells nothing.
            let _ = channel.close(200, "OK".into()).await;
            Ok::<_, lapin::Error>(())
        };
        match tokio::time::timeout(self.config.common.publish_timeout, found).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let broken = Broken::from(error);
                if let Broken::Connection(_) = broken {
                    self.connection.lost(&link);
                }
                return Err(match self.unanswered(&link, &broken) {
                    Outcome::Unavailable { error, .. }
                    | Outcome::Retry { error, .. }
                    | Outcome::TimedOut { error }
                    | Outcome::Dead { error } => unavailable(error),
                    Outcome::Delivered => unavailable(String::new()),
                });
            }
            Err(_) if link.connection.status().blocked() => {
                return Err(unavailable(BLOCKED.to_owned()));
            }
            Err(_) => {
                let limit = self.config.common.publish_timeout;
                return Err(unavailable(format!("{}: no answer within {limit:?}", link.at)));
            }
        }
        let (vhost, exchange) = (&self.config.vhost, self.exchange_name());
        Ok(format!("RabbitMQ at {}, virtual host {vhost}, has {exchange}", link.at))
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let limit = self.config.common.publish_timeout;
        self.apart.publish(self, &self.connection, batch, limit).await
    }
}

impl Shared for RabbitMq {
    type Live = Link;

    /// A connection that lives, as far as one can know.
    async fn live(&self, place: &Connection<Link>) -> Result<Arc<Link>, String> {
        let alive = |link: &Link| link.connection.status().connected();
        place.live(alive, async || self.connect().await).await
    }

    async fn send(&self, link: &Link, batch: &[&Envelope], deadline: Instant) -> Answers {
        // What is handed to a blocked connection waits in memory.
        if link.connection.status().blocked() {
            let outcomes = vec![Some(Outcome::unavailable(BLOCKED)); batch.len()];
            return Answers { outcomes, broke: None, suspects: Suspects::Unknown, replace: false };
        }
        let frame = link.connection.configuration().frame_max() as usize;
        let mut outcomes = vec![None; batch.len()];
        let mut events = Vec::with_capacity(batch.len());
        for (place, envelope) in batch.iter().enumerate() {
            match self.outgoing(place, envelope, frame) {
                Ok(event) => events.push(event),
                Err(error) => outcomes[place] = Some(Outcome::dead(error)),
            }
        }
        let mut broken = Ok(());
        if !events.is_empty() {
            broken = self.hand_over(link, events, deadline, &mut outcomes).await;
        }
        let Err(broken) = broken else {
            return Answers { outcomes, broke: None, suspects: Suspects::Unknown, replace: false };
        };
        // One message can close the channel of all, or the connection.
        let broke = match &broken {
            Broken::Channel(404, _) | Broken::Late => None,
            Broken::Channel(403, _) => Some(self.not_authorized()),
            Broken::Channel(code, _) => Some(format!("RabbitMQ closed the channel (code {code})")),
            Broken::Connection(error) => Some(error.clone()),
        };
        // What else was written to a closed channel makes the server close the connection, and whoever is on
        // it by then would be taken for the cause.
        let replace = match &broken {
            Broken::Channel(..) => batch.len() > 1,
            Broken::Connection(_) => true,
            Broken::Late => false,
        };
        let told = match (&broken, batch) {
            (Broken::Connection(_), _) => None,
            (Broken::Channel(..), [_]) => Some(self.unanswered(link, &broken)),
            _ if broke.is_some() => None,
            _ => Some(self.unanswered(link, &broken)),
        };
        let refused = match &broken {
            Broken::Channel(_, routing_key) => routing_key.as_deref(),
            Broken::Connection(_) | Broken::Late => None,
        };
        let is_named = |place: &usize| {
            let envelope = batch[*place];
            let routing_key = envelope.event.routing_key().unwrap_or(envelope.topic());
            told.is_none() && outcomes[*place].is_none() && refused == Some(routing_key)
        };
        let suspects = Suspects::Named((0..batch.len()).filter(is_named).collect());
        let outcomes = outcomes.iter().map(|outcome| outcome.clone().or_else(|| told.clone()));
        Answers { outcomes: outcomes.collect(), broke, suspects, replace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rabbitmq() -> RabbitMq {
        RabbitMq::new(RabbitMqConfig::from_url("amqp://host").unwrap()).unwrap()
    }

    fn judged(answers: Vec<Answer>) -> Vec<Option<Outcome>> {
        judged_by(&rabbitmq(), answers)
    }

    fn judged_by(rabbitmq: &RabbitMq, answers: Vec<Answer>) -> Vec<Option<Outcome>> {
        let mut outcomes = vec![None; answers.len()];
        let sent = |(place, answer)| {
            let routing_key = ShortString::try_new("orders").unwrap();
            (Sent { place, id: place.to_string(), routing_key }, answer)
        };
        rabbitmq.judge(answers.into_iter().enumerate().map(sent).collect(), &mut outcomes);
        outcomes
    }

    fn ack(returned: Option<&str>) -> Answer {
        Answer::Ack { returned: returned.map(str::to_owned) }
    }

    fn is_returned(outcome: Option<&Outcome>) -> bool {
        matches!(outcome, Some(Outcome::Retry { error, .. }) if error.contains("no queue takes"))
    }

    #[test]
    fn a_message_that_came_back_is_found_with_whichever_confirm_told_it() {
        let outcomes = judged(vec![ack(None), ack(None), ack(Some("0"))]);
        assert!(is_returned(outcomes[0].as_ref()), "{outcomes:?}");
        assert_eq!(outcomes[1..], [Some(Outcome::Delivered), Some(Outcome::Delivered)]);
    }

    #[test]
    fn a_message_that_a_full_queue_refuses_comes_again_at_a_time_which_counts_no_attempt() {
        let outcomes = judged(vec![ack(None), Answer::Nack { returned: None }, ack(None)]);
        assert!(
            matches!(outcomes[1], Some(Outcome::Unavailable { after: Some(_), .. })),
            "{outcomes:?}"
        );
        assert_eq!([&outcomes[0], &outcomes[2]], [&Some(Outcome::Delivered); 2]);
    }

    #[test]
    fn a_routing_key_that_is_refused_is_remembered_until_it_is_taken() {
        let rabbitmq = rabbitmq();
        judged_by(&rabbitmq, vec![ack(None), Answer::Nack { returned: None }]);
        assert!(rabbitmq.full.knows("orders"));
        // It came back, or is unknown.
        judged_by(&rabbitmq, vec![ack(Some("0")), Answer::Late, ack(None)]);
        assert!(rabbitmq.full.knows("orders"));
        judged_by(&rabbitmq, vec![ack(None)]);
        assert!(!rabbitmq.full.knows("orders"));
    }

    #[test]
    fn after_a_late_confirm_none_counts_for_a_return_may_be_with_it() {
        // The return of 2 came with the confirm of 1, after that was looked for.
        let outcomes = judged(vec![ack(None), Answer::Late, ack(None), ack(Some("0"))]);
        assert!(is_returned(outcomes[0].as_ref()), "{outcomes:?}");
        assert_eq!(outcomes[1..], [None, None, None]);
        // A confirm that ended with its channel took no return with it.
        let outcomes = judged(vec![Answer::Lost, ack(None)]);
        assert_eq!(outcomes, [None, Some(Outcome::Delivered)]);
    }
}
