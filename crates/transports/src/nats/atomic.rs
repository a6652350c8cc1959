//! Atomic batches: the stream stores all messages of one or none, and acknowledges the last.
//!
//! # When things fail
//! A batch that is refused stored nothing. Which of its events is the reason (a repeat, say, or one
//! that is too large) the server does not tell, so they go again one after the other, each
//! acknowledged before the next. A batch whose acknowledgement is lost comes again, and its repeats
//! are found in the same way.

use async_nats::{
    HeaderMap, header,
    jetstream::{
        ErrorCode,
        context::{PublishError, PublishErrorKind},
        message::PublishMessage,
        publish::PublishAck,
    },
};
use bytes::Bytes;
use futures_util::future::join_all;
use posthaste_core::{Envelope, transport::Outcome};
use tokio::time::Instant;

use super::{Live, Nats, error_code};
use crate::turns::Turns;

/// An event that goes, and where its outcome belongs.
struct Entry<'b> {
    place: usize,
    envelope: &'b Envelope,
    headers: HeaderMap,
    body: Bytes,
}

impl Nats {
    /// Publishes what may go, a batch for each stream.
    pub(super) async fn publish_atomic(
        &self,
        live: &Live,
        batch: &[Envelope],
        deadline: Instant,
    ) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::held(); batch.len()];
        // Unless the stream is named, topics may have different ones.
        let several = self.config.stream.is_none()
            && batch.iter().any(|envelope| envelope.topic() != batch[0].topic());
        let mut turns = Turns::new(several);
        let mut groups: Vec<(&str, Vec<Entry<'_>>)> = Vec::new();
        for (place, envelope) in batch.iter().enumerate() {
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
        let mut answer = None;
        let sending = async { answer = Some(self.together(live, entries).await) };
        let cut_short = self.in_time(live, deadline, sending).await;
        let outcome = match (answer, cut_short) {
            (Some(Ok(answer)), _) if answer.batch_size == Some(events.len() as u64) => {
                Outcome::Delivered
            }
            (Some(Ok(_)), _) => Outcome::retry("NATS did not acknowledge the batch as one"),
            (Some(Err(error)), _) => match (error.kind(), error_code(&error)) {
                (PublishErrorKind::BrokenPipe, _) => self.lost(),
                (PublishErrorKind::TimedOut, _) => self.late(live),
                (_, ErrorCode::ATOMIC_PUBLISH_DISABLED) => Outcome::unavailable(
                    "the stream takes no atomic batches: set allow_atomic, or atomic=false here",
                ),
                (_, ErrorCode::ATOMIC_PUBLISH_TOO_MANY_INFLIGHT) => {
                    Outcome::unavailable("NATS has too many atomic batches under way")
                }
                _ => return self.one_by_one(live, &events, deadline).await,
            },
            (None, cut_short) => cut_short.unwrap_or_else(|| self.late(live)),
        };
        events.into_iter().map(|(place, _)| (place, outcome.clone())).collect()
    }

    async fn together(
        &self,
        live: &Live,
        entries: Vec<Entry<'_>>,
    ) -> Result<PublishAck, PublishError> {
        let id = format!("{:032x}", fastrand::u128(..));
        let last = entries.len();
        for (number, entry) in (1..).zip(entries) {
            let Entry { envelope, mut headers, body, .. } = entry;
            headers.insert(header::NATS_BATCH_ID, id.as_str());
            headers.insert(header::NATS_BATCH_SEQUENCE, number.to_string());
            let subject = envelope.topic().to_owned();
            if number == last {
                headers.insert(header::NATS_BATCH_COMMIT, "1");
                let message = PublishMessage::build().headers(headers).payload(body);
                return live.jetstream.send_publish(subject, message).await?.await;
            }
            // Unanswered: what is wrong with it is told with the last one.
            let client = live.jetstream.client();
            client.publish_with_headers(subject, headers, body).await.map_err(|error| {
                PublishError::with_source(
                    match error.kind() {
                        async_nats::PublishErrorKind::MaxPayloadExceeded => {
                            PublishErrorKind::MaxPayloadExceeded
                        }
                        _ => PublishErrorKind::BrokenPipe,
                    },
                    error,
                )
            })?;
        }
        Err(PublishError::new(PublishErrorKind::Other))
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
        let mut over = None;
        for (place, envelope) in events {
            if !turns.takes(envelope, "") {
                outcomes.push((*place, Outcome::held()));
                continue;
            }
            if let Some(over) = &over {
                outcomes.push((*place, Outcome::clone(over)));
                continue;
            }
            let mut outcome = None;
            let sending = async {
                outcome = Some(match self.send(live, envelope).await {
                    Ok(sent) => self.outcome(live, envelope, sent.await),
                    Err(outcome) => outcome,
                });
            };
            over = self.in_time(live, deadline, sending).await;
            let outcome = outcome.or(over.clone()).unwrap_or_else(|| self.late(live));
            if outcome != Outcome::Delivered {
                turns.refuse(envelope);
            }
            outcomes.push((*place, outcome));
        }
        outcomes
    }
}
