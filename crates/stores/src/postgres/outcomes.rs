//! What a batch is made of: outcomes by what is to be written, and whether events lie close together.

use std::{ops::Range, time::Duration};

use posthaste_core::{
    Key,
    limits::cut_error,
    store::{Identity, Settlement, Verdict},
};
use uuid::Uuid;

use super::micros;

/// A batch by what is to be written.
#[derive(Default)]
pub(super) struct Outcomes<'b> {
    pub(super) sent: Vec<(i64, Identity)>,
    pub(super) retry: Vec<Failure<'b>>,
    pub(super) dead: Vec<Failure<'b>>,
    pub(super) held: Vec<Failure<'b>>,
    pub(super) suspect: Vec<Failure<'b>>,
    pub(super) unclaimed: Vec<i64>,
}

/// An outcome other than sent.
pub(super) struct Failure<'b> {
    pub(super) sequence: i64,
    pub(super) id: Option<Uuid>,
    pub(super) replay: i32,
    pub(super) attempts: i32,
    pub(super) after: i64,
    pub(super) wait: &'static str,
    pub(super) lane: Option<i64>,
    pub(super) destination: &'b str,
    pub(super) error: String,
}

impl<'b> Outcomes<'b> {
    pub(super) fn of(batch: impl Iterator<Item = &'b Settlement>) -> Self {
        let mut outcomes = Self::default();
        for event in batch {
            let failure = |destination, key: Option<Key>| Failure {
                sequence: event.sequence,
                id: event.identity.id,
                replay: replay(event.identity),
                attempts: i32::try_from(event.attempts).unwrap_or(i32::MAX),
                after: 0,
                wait: "retry",
                lane: key.map(|key| key.0),
                destination,
                error: String::new(),
            };
            match &event.verdict {
                Verdict::Sent => outcomes.sent.push((event.sequence, event.identity)),
                Verdict::Retry { after, error, destination, key, replay } => {
                    outcomes.retry.push(Failure {
                        after: micros(*after).min(micros(LONGEST_WAIT)),
                        wait: if *replay { "replay" } else { "retry" },
                        error: error_text(error),
                        ..failure(destination, *key)
                    });
                }
                Verdict::Dead { error, destination, parked } => outcomes
                    .dead
                    .push(Failure { error: error_text(error), ..failure(destination, *parked) }),
                Verdict::Held { destination, key } => {
                    outcomes.held.push(failure(destination, Some(*key)));
                }
                Verdict::Suspect { destination, key, replay } => {
                    let wait = if *replay { "replay" } else { "suspect" };
                    outcomes.suspect.push(Failure { wait, ..failure(destination, *key) });
                }
                Verdict::Unclaimed => outcomes.unclaimed.push(event.sequence),
            }
        }
        outcomes
    }

    pub(super) fn only_sent(&self) -> bool {
        self.retry.is_empty()
            && self.dead.is_empty()
            && self.held.is_empty()
            && self.suspect.is_empty()
            && self.unclaimed.is_empty()
    }
}

/// How often the event was replayed, as its column holds it.
pub(super) fn replay(identity: Identity) -> i32 {
    i32::try_from(identity.replay).unwrap_or(i32::MAX)
}

/// Events that lie close together and were never replayed: all from the first to the last, but for a gap
/// and a few.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: i64,
    pub(super) last: i64,
    /// The longest stretch between them of which nothing is meant: mostly a batch that was sent
    /// before the last of these and is answered after it. Empty if there is none.
    pub(super) gap: Range<i64>,
    /// The ids of the events, in the order of their numbers, without the gap. What else lies between them
    /// and is not meant, others' events and what is still under way, has the nil id.
    pub(super) ids: Vec<Uuid>,
}

impl Span {
    /// With more between them that is not meant it is no span: the walk over it costs time, too.
    const MOST_HOLES: usize = 64;

    /// The events as a span, if they are one. They come in no order.
    pub(super) fn of(sent: &[(i64, Identity)]) -> Option<Self> {
        let sequences = || sent.iter().map(|(sequence, _)| *sequence);
        let (first, last) = (sequences().min()?, sequences().max()?);
        let width = usize::try_from(last.checked_sub(first)?).ok()?.checked_add(1)?;
        let most_holes = Self::MOST_HOLES.min(sent.len() / 2);
        // The gap is walked over as well: it is no longer than what is meant.
        if width > 2 * sent.len() + most_holes {
            return None;
        }
        let mut ids = vec![Uuid::nil(); width];
        for (sequence, identity) in sent {
            let id = identity.id.filter(|id| identity.replay == 0 && !id.is_nil())?;
            ids[(sequence - first) as usize] = id;
        }
        let mut gap = 0..0;
        let mut start = 0;
        for stretch in ids.chunk_by(|one, next| one.is_nil() == next.is_nil()) {
            if stretch[0].is_nil() && stretch.len() > gap.len() {
                gap = start..start + stretch.len();
            }
            start += stretch.len();
        }
        ids.drain(gap.clone());
        let holes = ids.iter().filter(|id| id.is_nil()).count();
        let gap = first + gap.start as i64..first + gap.end as i64;
        (holes <= most_holes).then_some(Self { first, last, gap, ids })
    }
}

/// A wait of a century is for ever enough, and still a time that PostgreSQL can hold.
const LONGEST_WAIT: Duration = Duration::from_hours(100 * 365 * 24);

/// The error as it is kept: cut, and without the one character that `text` cannot hold.
fn error_text(error: &str) -> String {
    cut_error(error).replace('\0', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: i64) -> Uuid {
        Uuid::from_u128(sequence as u128 + 1_000)
    }

    fn span(sequences: &[i64]) -> Option<Span> {
        let identity = |sequence| Identity { id: Some(id(sequence)), replay: 0 };
        Span::of(&sequences.iter().map(|&one| (one, identity(one))).collect::<Vec<_>>())
    }

    fn holes(span: &Span) -> usize {
        span.ids.iter().filter(|id| id.is_nil()).count()
    }

    #[test]
    fn a_span_is_what_it_was_made_of() {
        let ids = vec![id(3), id(4), id(7), id(8), Uuid::nil(), id(10), id(11)];
        let several = Span { first: 3, last: 11, gap: 5..7, ids };
        assert_eq!(span(&[7, 3, 4, 10, 8, 11]).unwrap(), several);
        let one = Span { first: 5, last: 5, gap: 5..5, ids: vec![id(5)] };
        assert_eq!(span(&[5]).unwrap(), one);
    }

    #[test]
    fn a_batch_that_is_answered_later_is_a_gap() {
        let around: Vec<i64> = (1..=256).chain(513..=768).collect();
        let span = span(&around).unwrap();
        assert_eq!((span.first, span.last, span.gap.clone()), (1, 768, 257..513));
        assert_eq!((holes(&span), span.ids.len()), (0, 512));
    }

    #[test]
    fn what_lies_far_apart_is_no_span() {
        assert_eq!(span(&[]), None);
        assert_eq!(span(&[1, 7]), None);
        assert_eq!(span(&[i64::MIN, i64::MAX]), None);
        let close: Vec<i64> = (0..1_000).filter(|n| n % 16 != 0).collect();
        assert_eq!(holes(&span(&close).unwrap()), 61);
        let far: Vec<i64> = (0..1_000).filter(|n| n % 8 != 0).collect();
        assert_eq!(span(&far), None);
        let two_gaps: Vec<i64> = (0..100).chain(200..300).chain(370..470).collect();
        assert_eq!(span(&two_gaps), None);
    }

    #[test]
    fn a_replay_or_an_unknown_id_is_no_part_of_a_span() {
        let known = (1, Identity { id: Some(id(1)), replay: 0 });
        for other in [Identity { id: Some(id(2)), replay: 1 }, Identity::default()] {
            assert_eq!(Span::of(&[known, (2, other)]), None);
        }
    }
}
