//! Where the answers to a batch arrive, and what they say.

use async_nats::{Client, Message, StatusCode, SubscribeError, Subscriber, jetstream::ErrorCode};
use serde::{Deserialize, de::IgnoredAny};

/// Not a code of JetStream's: no stream listens to the subject.
pub(super) const NOBODY: ErrorCode = ErrorCode(503);

/// Not a code of JetStream's: somebody else answered.
const NOT_JETSTREAM: ErrorCode = ErrorCode(0);

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
    stream: Option<String>,
    /// Its place in the stream.
    seq: Option<u64>,
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

    /// Whether somebody else than JetStream answered, or another stream than the one that must take the
    /// messages: whoever subscribes to a subject can reply to what is published to it.
    pub(super) fn is_strange(&self, expected: Option<&str>) -> bool {
        match (&self.error, &self.stream) {
            _ if self.on_the_way.is_some() => false,
            (Some(refusal), _) => refusal.err_code == NOT_JETSTREAM,
            (None, Some(stream)) => {
                self.seq.is_none() || expected.is_some_and(|expected| expected != stream)
            }
            (None, None) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_strange(answer: &str, expected: Option<&str>) -> bool {
        serde_json::from_str::<Answer>(answer).unwrap_or_default().is_strange(expected)
    }

    #[test]
    fn an_answer_is_strange_unless_the_stream_gave_it() {
        for answer in [
            r#"{"stream":"S","seq":7}"#,
            r#"{"stream":"S","seq":7,"domain":"hub","duplicate":true}"#,
            r#"{"error":{"code":503,"err_code":10077},"stream":"S","seq":0}"#,
            r#"{"type":"ack","seq":4,"msgs":4}"#,
        ] {
            assert!(!is_strange(answer, None) && !is_strange(answer, Some("S")), "{answer}");
        }
        for answer in ["", "hello", "{}", r#"{"stream":"S"}"#, r#"{"error":{"code":404}}"#] {
            assert!(is_strange(answer, None), "{answer}");
        }
        assert!(is_strange(r#"{"stream":"S","seq":7}"#, Some("OTHER")));
    }
}
