//! Batches: the stream stores their messages as they come, and acknowledges the last one for all.
//!
//! NATS calls it fast ingest. A message's place in its batch travels in its reply subject,
//! `<inbox>.<how often to acknowledge>.fail.<number>.<operation>.$FI`, and `fail` means that the stream takes
//! nothing behind a message that it missed or refused: what it took is a prefix.
//!
//! # When things fail
//! A subject that is not permitted is told on the connection and not to the message: the batch ends there.
//! What ended a batch the server tells, but not for each message behind it: the events that are not known to
//! be stored go again one after the other, each acknowledged before the next. A repeat is dropped by
//! its id, there as here. A batch whose acknowledgement is lost comes again.

use std::pin::pin;

use async_nats::{HeaderMap, Subject, jetstream::ErrorCode};
use bytes::Bytes;
use futures_util::{
    StreamExt,
    future::{Either, join_all, select},
};
use posthaste_core::{Envelope, transport::Outcome};
use tokio::time::Instant;

use super::{
    Nats,
    connect::{Live, Refusal},
    inbox::{Answer, Inbox},
};
use crate::turns::Turns;

/// What a message does in its batch.
const START: u8 = 0;
const APPEND: u8 = 1;
/// It is the last one.
const COMMIT: u8 = 2;
/// It is not stored; the one before it was the last.
const END: u8 = 3;

/// How much of a batch the stream took.
#[derive(Debug, Default)]
struct Taken {
    /// So many of the first.
    count: usize,
    /// Why not the others, as it was told first.
    refusal: Option<ErrorCode>,
}

impl Taken {
    /// Takes note of an answer, and says whether it is the last one to its message.
    fn note(&mut self, answer: &Answer) -> bool {
        self.count = self.count.max(answer.count.unwrap_or_default());
        if answer.on_the_way.is_none() {
            self.refusal = self.refusal.or(answer.refusal());
        }
        answer.on_the_way.is_none()
    }
}

/// Which message of its batch is answered under this subject.
fn number(subject: &str) -> Option<usize> {
    subject.rsplit('.').nth(2)?.parse().ok()
}

/// An event that goes, and where its outcome belongs.
struct Entry<'b> {
    place: usize,
    envelope: &'b Envelope,
    headers: HeaderMap,
    body: Bytes,
}

impl Nats {
    /// Publishes what may go, a batch for each stream.
    pub(super) async fn publish_batched(
        &self,
        live: &Live,
        batch: &[&Envelope],
        deadline: Instant,
    ) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::held(); batch.len()];
        // Unless the stream is named, topics may have different ones.
        let several = self.config.stream.is_none()
            && batch.iter().any(|envelope| envelope.topic() != batch[0].topic());
        let mut turns = Turns::new(several);
        let mut groups: Vec<(&str, Vec<Entry<'_>>)> = Vec::new();
        for (place, &envelope) in batch.iter().enumerate() {
            let way = if several { envelope.topic() } else { "" };
            if !turns.takes(envelope, way) {
                continue;
            }
            match self.message(envelope) {
                Ok((headers, body)) => {
                    let entry = Entry { place, envelope, headers, body };
                    match groups.iter_mut().find(|(known, _)| *known == way) {
                        Some((_, entries)) => entries.push(entry),
                        None => groups.push((way, vec![entry])),
                    }
                }
                Err(outcome) => {
                    outcomes[place] = outcome;
                    turns.refuse(envelope);
                }
            }
        }
        let groups = groups.into_iter().map(|(_, entries)| self.group(live, entries, deadline));
        for (place, outcome) in join_all(groups).await.into_iter().flatten() {
            outcomes[place] = outcome;
        }
        outcomes
    }

    /// Publishes these together, or, when that is refused, one after the other.
    async fn group(
        &self,
        live: &Live,
        entries: Vec<Entry<'_>>,
        deadline: Instant,
    ) -> Vec<(usize, Outcome)> {
        let events: Vec<(usize, &Envelope)> =
            entries.iter().map(|entry| (entry.place, entry.envelope)).collect();
        if events.len() == 1 {
            return self.one_by_one(live, &events, deadline).await;
        }
        let mut taken = Taken::default();
        let sending = async { self.together(live, entries, &mut taken).await };
        let cut_short = self.in_time(live, deadline, sending).await;
        let (stored, rest) = events.split_at(taken.count.min(events.len()));
        self.full.taken(stored.iter().map(|(_, envelope)| envelope.topic()));
        let delivered = stored.iter().map(|(place, _)| (*place, Outcome::Delivered));
        let rest = match (cut_short, taken.refusal) {
            (Some(outcome), _) => rest.iter().map(|(place, _)| (*place, outcome.clone())).collect(),
            (None, Some(ErrorCode::BATCH_PUBLISH_DISABLED)) => {
                let outcome = Outcome::unavailable(
                    "the stream takes no batches: set allow_batched, or batched=false here",
                );
                rest.iter().map(|(place, _)| (*place, outcome.clone())).collect()
            }
            (None, _) => self.one_by_one(live, rest, deadline).await,
        };
        delivered.chain(rest).collect()
    }

    /// Publishes these as one batch, and notes how many of them the stream took.
    async fn together(&self, live: &Live, entries: Vec<Entry<'_>>, taken: &mut Taken) {
        // It is never closed.
        let Ok(_turn) = self.batches.acquire().await else { return };
        let mut refusals = live.refusals();
        let topics: Vec<&str> = entries.iter().map(|entry| entry.envelope.topic()).collect();
        let Ok(Inbox { name: inbox, mut answers }) = Inbox::open(&live.client).await else {
            return;
        };
        let last = entries.len();
        let reply = |number: usize, operation: u8| {
            Subject::from(format!("{inbox}.{last}.fail.{number}.{operation}.$FI"))
        };
        let mut subject = String::new();
        let mut ending = last;
        for (number, entry) in (1..).zip(entries) {
            let Entry { envelope, headers, body, .. } = entry;
            let operation = match number {
                _ if number == last => COMMIT,
                1 => START,
                _ => APPEND,
            };
            let to = envelope.topic().to_owned();
            let reply_to = reply(number, operation);
            if live
                .client
                .publish_with_reply_and_headers(to, reply_to, headers, body)
                .await
                .is_err()
            {
                // It is too large: the batch ends before it.
                let ended =
                    live.client.publish_with_reply(subject, reply(number, END), Bytes::new());
                if number == 1 || ended.await.is_err() {
                    return;
                }
                ending = number;
                break;
            }
            envelope.topic().clone_into(&mut subject);
        }
        let expected = self.config.stream.as_deref();
        let mut forbidden = Vec::new();
        loop {
            match select(answers.next(), pin!(refusals.recv())).await {
                Either::Left((Some(answer), _)) => {
                    let (to, answer) = (number(&answer.subject), Answer::of(&answer));
                    if !answer.is_strange(expected) && taken.note(&answer) && to == Some(ending) {
                        return;
                    }
                }
                Either::Left((None, _)) | Either::Right((Ok(Refusal::Inbox), _)) => return,
                Either::Right((Ok(Refusal::Subject(subject)), _)) => {
                    if !topics.contains(&&*subject) {
                        continue; // it is of another batch
                    }
                    forbidden.push(subject);
                    // The stream ends the batch at the next message that it gets. There is none if the last
                    // one is forbidden.
                    let permitted = |topic: &&&str| !forbidden.iter().any(|no| **no == ***topic);
                    let Some(topic) = topics.iter().find(permitted) else { return };
                    ending = last + 1;
                    let to = (*topic).to_owned();
                    let ended =
                        live.client.publish_with_reply(to, reply(ending, END), Bytes::new());
                    if ended.await.is_err() {
                        return;
                    }
                }
                // More was refused than is kept: the deadline ends what was missed.
                Either::Right((Err(_), _)) => {}
            }
        }
    }

    /// Each is acknowledged before the next is sent; nothing passes a refused one of its key.
    async fn one_by_one(
        &self,
        live: &Live,
        events: &[(usize, &Envelope)],
        deadline: Instant,
    ) -> Vec<(usize, Outcome)> {
        let mut turns = Turns::new(false);
        let mut outcomes = Vec::with_capacity(events.len());
        for (place, envelope) in events {
            let outcome = if !turns.takes(envelope, "") {
                Outcome::held()
            } else if !live.is_alive() {
                self.lost()
            } else if Instant::now() >= deadline {
                self.late(live)
            } else {
                self.publish_each(live, &[*envelope], deadline).await.remove(0)
            };
            if outcome != Outcome::Delivered {
                turns.refuse(envelope);
            }
            outcomes.push((*place, outcome));
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known after these answers, and whether the last of them was the last word.
    fn after(answers: &[&str]) -> (usize, Option<ErrorCode>, bool) {
        let mut taken = Taken::default();
        let mut last = false;
        for answer in answers {
            last = taken.note(&serde_json::from_str(answer).unwrap());
        }
        (taken.count, taken.refusal, last)
    }

    // As NATS 2.15 gave them.
    const ON_THE_WAY: &str = r#"{"type":"ack","seq":4,"msgs":4}"#;
    const ALL_OF_FOUR: &str = r#"{"stream":"S","seq":23,"batch":"b","count":4}"#;
    const UNKNOWN: &str = r#"{"error":{"code":400,"err_code":10208},"stream":"S","seq":0}"#;

    #[test]
    fn a_repeat_at_the_end_is_acknowledged_twice_and_the_second_counts() {
        assert_eq!(after(&[ON_THE_WAY]), (0, None, false));
        assert_eq!(after(&[ON_THE_WAY, ALL_OF_FOUR]), (4, None, true));
    }

    #[test]
    fn a_batch_that_ended_early_has_a_prefix() {
        let refused = r#"{"type":"err","seq":3,"error":{"code":400,"err_code":10060}}"#;
        let two = r#"{"stream":"S","seq":27,"batch":"b","count":2}"#;
        let unknown = Some(ErrorCode::BATCH_PUBLISH_UNKNOWN_BATCH_ID);
        assert_eq!(after(&[ON_THE_WAY, refused, two, UNKNOWN]), (2, unknown, true));
    }

    #[test]
    fn nothing_is_counted_that_was_not_acknowledged() {
        let disabled = r#"{"error":{"code":400,"err_code":10205},"stream":"S","seq":0}"#;
        assert_eq!(after(&[disabled]), (0, Some(ErrorCode::BATCH_PUBLISH_DISABLED), true));
        assert_eq!(after(&["{}"]), (0, Some(ErrorCode(0)), true));
    }

    #[test]
    fn the_message_that_is_answered_stands_in_the_subject() {
        assert_eq!(number("_INBOX.abc.4.fail.3.1.$FI"), Some(3));
        assert_eq!(number("_INBOX.abc"), None);
    }
}
