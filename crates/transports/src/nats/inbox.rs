//! Where the answers to a batch arrive, and what they say.

use async_nats::{Client, Message, StatusCode, SubscribeError, Subscriber, jetstream::ErrorCode};
use serde::{Deserialize, de::IgnoredAny};

/// Not a code of JetStream's: no stream listens to the subject.
pub(super) const NOBODY: ErrorCode = ErrorCode(503);

/// Not a code of JetStream's: somebody else answered.
pub(super) const NOT_JETSTREAM: ErrorCode = ErrorCode(0);

/// Where a batch gets its answers: one for all, and not a channel, a timer and a place in line for each
/// message, as the client has them.
pub(super) struct Inbox {
    /// What reply subjects begin with.
    pub(super) name: String,
    pub(super) answers: Subscriber,
}

impl Inbox {
    pub(super) async fn open(client: &Client) -> Result<Self, SubscribeError> {
        let name = client.new_inbox();
        let answers = client.subscribe(format!("{name}.>")).await?;
        Ok(Self { name, answers })
    }
}

/// What JetStream says of a message.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Answer {
    stream: Option<IgnoredAny>,
    error: Option<Refusal>,
    /// How many messages a batch had when it ended, for whichever reason.
    pub(super) count: Option<usize>,
    /// Not the last word on a batch: how often it is acknowledged, or what will end it.
    #[serde(rename = "type")]
    pub(super) on_the_way: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: ErrorCode,
}

impl Answer {
    pub(super) fn of(message: &Message) -> Self {
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Self { error: Some(Refusal { err_code: NOBODY }), ..Self::default() };
        }
        serde_json::from_slice(&message.payload).unwrap_or_default()
    }

    /// Why the message was not stored; `None` when it was.
    pub(super) fn refusal(&self) -> Option<ErrorCode> {
        match &self.error {
            Some(refusal) => Some(refusal.err_code),
            None if self.stream.is_none() => Some(NOT_JETSTREAM),
            None => None,
        }
    }
}
