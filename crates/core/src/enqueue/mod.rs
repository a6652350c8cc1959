//! What it means to write an event twice, the same in every database and with every driver: the
//! same id again writes nothing and gives the first sequence; with another tenant, type or key it is
//! an error.
//!
//! An adapter refuses, cuts into pieces, inserts, looks up what the insert did not write, and answers:
//!
//! ```text
//! refuse_two_of_one_id ──► pieces ──► insert ──► missing ──► look up ──► answers
//! ```

pub mod postgres;

use std::collections::HashMap;

use uuid::Uuid;

use crate::{Error, ErrorKind, Event, Result, envelope::ordering_column};

/// What `enqueue` wrote, or had written before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// The event's id.
    pub id: Uuid,
    /// Its place in the outbox.
    pub sequence: i64,
    /// The same event was there already: nothing was written, this is the first sequence.
    pub duplicate: bool,
}

/// What an insert wrote: sequences by the events' ids.
pub type Written = HashMap<Uuid, i64>;

/// What was found there already, by the events' ids.
pub type Found = HashMap<Uuid, Known>;

/// What is there already under an event's id: its sequence, and what must not differ.
#[derive(Debug, Clone)]
pub struct Known {
    /// `sequence`
    pub sequence: i64,
    /// `event_type`
    pub event_type: String,
    /// `aggregate_type`
    pub aggregate_type: String,
    /// `aggregate_id`
    pub aggregate_id: Option<String>,
    /// `tenant`
    pub tenant: Option<String>,
    /// `ordering_key`
    pub ordering_key: Option<String>,
}

/// An id twice in one call must mean the same event twice: it is in all that says where it goes,
/// when, and what it says. Each build of an event reads the clock anew, so the time at which it
/// occurred may differ.
pub fn refuse_two_of_one_id(events: &[Event]) -> Result<()> {
    if events.len() < 2 {
        return Ok(());
    }
    let mut seen: HashMap<Uuid, &Event> = HashMap::with_capacity(events.len());
    for event in events {
        let Some(first) = seen.insert(event.id(), event) else {
            continue;
        };
        let same = first.tenant() == event.tenant()
            && first.event_type() == event.event_type()
            && first.aggregate_type() == event.aggregate_type()
            && first.aggregate_id() == event.aggregate_id()
            && first.ordering() == event.ordering()
            && first.topic() == event.topic()
            && first.routing_key() == event.routing_key()
            && first.schema_id() == event.schema_id()
            && first.schema_version() == event.schema_version()
            && first.headers() == event.headers()
            && first.content_type() == event.content_type()
            && first.payload() == event.payload()
            && first.deliver_at() == event.deliver_at();
        if !same {
            return Err(conflict(event.id(), "content"));
        }
    }
    Ok(())
}

/// The events in pieces that fit into one statement, by their number and their bytes;
/// nearly always one piece. An event that is larger than that is a piece of its own.
pub fn pieces(mut events: &[Event], most: usize, most_bytes: usize) -> Vec<&[Event]> {
    let mut pieces = Vec::with_capacity(1);
    while !events.is_empty() {
        let mut bytes = 0;
        let fits = events.iter().take(most).take_while(|event| {
            bytes += size(event);
            bytes <= most_bytes
        });
        let (piece, rest) = events.split_at(fits.count().max(1));
        pieces.push(piece);
        events = rest;
    }
    pieces
}

/// About as many bytes as an event takes in a statement: payload, and headers as JSON.
fn size(event: &Event) -> usize {
    let escaped = |text: &str| -> usize {
        let length = |byte| match byte {
            ..0x20 => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        };
        text.bytes().map(length).sum()
    };
    let headers = event.headers().iter();
    let headers: usize = headers.map(|(name, value)| escaped(name) + escaped(value) + 6).sum();
    event.payload().len() + headers
}

/// The ids that an insert did not write, because they were there already.
pub fn missing(events: &[Event], written: &Written) -> Vec<Uuid> {
    events.iter().map(Event::id).filter(|id| !written.contains_key(id)).collect()
}

/// One answer an event, in the order of the call, from what was written and what was found there.
pub fn answers(events: &[Event], mut written: Written, known: &Found) -> Result<Vec<Enqueued>> {
    let mut first = HashMap::new();
    events
        .iter()
        .map(|event| match (written.remove(&event.id()), first.get(&event.id())) {
            (Some(sequence), _) => {
                first.insert(event.id(), sequence);
                Ok(Enqueued { id: event.id(), sequence, duplicate: false })
            }
            // The same event a second time in this call.
            (None, Some(&sequence)) => Ok(Enqueued { id: event.id(), sequence, duplicate: true }),
            (None, None) => duplicate(event, known.get(&event.id())),
        })
        .collect()
}

/// The answer for an event whose id was there already.
pub fn duplicate(event: &Event, known: Option<&Known>) -> Result<Enqueued> {
    let id = event.id();
    let Some(known) = known else {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!("event {id} was being purged while it was written again; try again"),
        ));
    };
    let differs = if known.tenant.as_deref() != event.tenant() {
        "tenant"
    } else if known.event_type != event.event_type() {
        "event type"
    } else if known.aggregate_type != event.aggregate_type() {
        "aggregate type"
    } else if known.aggregate_id.as_deref() != event.aggregate_id() {
        "aggregate id"
    } else if known.ordering_key.as_deref() != ordering_column(event) {
        "ordering key"
    } else {
        return Ok(Enqueued { id, sequence: known.sequence, duplicate: true });
    };
    Err(conflict(id, differs))
}

fn conflict(id: Uuid, differs: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("event {id} was written before with another {differs}; give it an id of its own"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventBuilder;

    fn event(payload: &[u8]) -> Event {
        Event::builder("Happened").bytes("text/plain", payload.to_vec()).build().unwrap()
    }

    #[test]
    fn pieces_keep_the_order_and_stay_within_both_limits() {
        let events: Vec<Event> =
            [3, 3, 3, 90, 1, 1, 1].into_iter().map(|n| event(&vec![0; n])).collect();
        let pieces = pieces(&events, 2, 6);
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [2, 1, 1, 2, 1]);
        assert_eq!(pieces.concat(), events);
    }

    #[test]
    fn headers_count_for_the_size_of_a_piece() {
        let large = |n: usize| {
            let builder = Event::builder("Happened").header("h", "\u{1}".repeat(n));
            builder.raw_json("{}").build().unwrap()
        };
        let events = [large(100), large(100), large(1)];
        let lengths: Vec<_> = pieces(&events, 1_000, 700).iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [1, 2], "600 bytes of escapes each");
    }

    /// Nobody knows which of the two counts.
    #[test]
    fn an_id_twice_in_one_call_means_the_same_event_twice() {
        let one = event(b"{}");
        let again =
            |edit: fn(EventBuilder) -> EventBuilder| edit(one.clone().edit()).build().unwrap();
        let refuse = |other: Event| refuse_two_of_one_id(&[one.clone(), other]);
        refuse(one.clone()).unwrap();
        // It says when the event happened, and each builder reads the clock.
        refuse(again(|event| event.occurred_at(jiff::Timestamp::UNIX_EPOCH))).unwrap();
        for (what, other) in [
            ("topic", again(|event| event.topic("t"))),
            ("routing key", again(|event| event.routing_key("r"))),
            ("schema", again(|event| event.schema("s", 1))),
            ("schema version", again(|event| event.schema_version(2))),
            ("headers", again(|event| event.header("h", "1"))),
            ("payload", again(|event| event.bytes("text/plain", "other"))),
            ("content type", again(|event| event.content_type("text/html"))),
            ("due time", again(|event| event.deliver_at(jiff::Timestamp::UNIX_EPOCH))),
            ("tenant", again(|event| event.tenant("t"))),
            ("ordering", again(EventBuilder::unordered)),
        ] {
            let refused = refuse(other).expect_err(what);
            assert_eq!(refused.kind(), ErrorKind::Conflict, "{what}: {refused}");
        }
    }

    #[test]
    fn an_event_that_is_neither_written_nor_found_is_worth_another_try() {
        let error = answers(&[event(b"")], HashMap::new(), &HashMap::new()).unwrap_err();
        assert!(error.is_transient(), "{error}");
    }
}
