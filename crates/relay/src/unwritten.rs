//! Outcomes that could not be written in time: pieces of a batch, and what rows of others' locks keep.
//!
//! A row that somebody has locked fails the whole settle that would write it. After a timeout the batch is
//! divided by ten, piece by piece, down to single outcomes. One that fails alone is *locked*: it is tried
//! again beside the other settles, and holds back nobody else.
//!
//! ```text
//!  batch ──timeout──► pieces ──timeout──► smaller pieces ──timeout──► one outcome: locked
//!                        │                                                │ tried now and then
//!                        └── written, before any other batch              └── written, then what follows it
//! ```
//!
//! # When things fail
//!
//! The outcomes of one lane are written in their order: a follower that is held before what it follows is
//! written back would be the first of its lane for the next owner. So later outcomes of a lane wait behind
//! its locked one. Deliveries need no order: the next owner of one that is not marked repeats it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use posthaste_core::{
    Key,
    store::{Fence, Settlement, Verdict},
};

use crate::settle::Batch;

/// A batch that was not written in time is divided by this.
const PIECES: usize = 10;

/// Most outcomes that are locked, or wait for one that is, while events are read: a few MB.
const MOST_LOCKED: usize = 20_000;

/// A batch that was not written, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// To be written before anything else, in order.
    pieces: VecDeque<Batch>,
    /// Each is the outcome of one event whose row is locked, followed by later ones of its lane.
    locked: VecDeque<Batch>,
    /// How many parts of the first of these are being written.
    trying: Option<usize>,
    /// When the next of them is tried.
    try_at: Option<Instant>,
}

impl Unwritten {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.locked.is_empty()
    }

    /// So many outcomes wait for a locked one that nothing more is to be read: those of one key with very many
    /// events would fill the memory.
    pub(crate) fn is_full(&self) -> bool {
        self.locked.iter().map(|locked| locked.parts.len()).sum::<usize>() >= MOST_LOCKED
    }

    /// What is to be written before anything else.
    pub(crate) fn next(&mut self) -> Option<Batch> {
        self.pieces.pop_front()
    }

    /// The batch could not be written, and will be as it is.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        self.pieces.push_front(batch);
    }

    /// The batch was not written in time. Returns the number of the event whose row is locked, if it was that
    /// one alone.
    pub(crate) fn timed_out(&mut self, batch: Batch) -> Option<i64> {
        let outcomes: usize = batch.parts.iter().map(|(_, part)| part.len()).sum();
        if outcomes > 1 {
            let most = outcomes.div_ceil(PIECES);
            let pieces: Vec<Batch> = batch
                .parts
                .iter()
                .flat_map(|(fence, part)| part.chunks(most).map(|piece| single(fence, piece)))
                .collect();
            for piece in pieces.into_iter().rev() {
                self.pieces.push_front(piece);
            }
            return None;
        }
        let sequence = batch.parts.iter().find_map(|(_, part)| part.first())?.sequence;
        self.locked.push_back(batch);
        let pieces = std::mem::take(&mut self.pieces);
        self.pieces = pieces
            .into_iter()
            .map(|piece| self.keep_order(piece))
            .filter(|piece| !piece.is_empty())
            .collect();
        Some(sequence)
    }

    /// Takes out of a batch what has to wait for a locked outcome of its lane.
    pub(crate) fn keep_order(&mut self, batch: Batch) -> Batch {
        if self.locked.is_empty() {
            return batch;
        }
        let mut parts = Vec::with_capacity(batch.parts.len());
        for (fence, part) in batch.parts {
            let mut goes = Vec::with_capacity(part.len());
            for settlement in part {
                match self.locked.iter_mut().find(|locked| locked.is_of_lane_of(&settlement)) {
                    Some(locked) => locked.parts.push((fence.clone(), vec![settlement])),
                    None => goes.push(settlement),
                }
            }
            if !goes.is_empty() {
                parts.push((fence, goes));
            }
        }
        Batch { parts }
    }

    /// A locked outcome that is to be tried now, with what follows it.
    pub(crate) fn next_locked(&mut self, now: Instant) -> Option<Batch> {
        if self.trying.is_some() || self.try_at.is_some_and(|at| now < at) {
            return None;
        }
        let batch = self.locked.front()?.clone();
        self.trying = Some(batch.parts.len());
        Some(batch)
    }

    /// The locked outcome that was tried is written, or refused.
    pub(crate) fn unlocked(&mut self) {
        let written = self.trying.take().unwrap_or_default();
        self.try_at = None;
        if let Some(first) = self.locked.front_mut() {
            first.parts.drain(..written.min(first.parts.len()));
            if first.is_empty() {
                self.locked.pop_front();
            }
        }
    }

    /// It is still locked: another one is next.
    pub(crate) fn still_locked(&mut self, now: Instant, pause: Duration) {
        self.trying = None;
        self.try_at = Some(now + pause);
        if !self.locked.is_empty() {
            self.locked.rotate_left(1);
        }
    }
}

impl Batch {
    /// Whether this outcome is one of the same lane, for which the order of writes counts.
    fn is_of_lane_of(&self, settlement: &Settlement) -> bool {
        let lane = lane(settlement);
        lane.is_some()
            && self.parts.iter().flat_map(|(_, part)| part).any(|known| self::lane(known) == lane)
    }
}

fn single(fence: &Fence, piece: &[Settlement]) -> Batch {
    Batch { parts: vec![(fence.clone(), piece.to_vec())] }
}

/// The lane in which an outcome blocks others, or is held.
fn lane(settlement: &Settlement) -> Option<(&str, Key)> {
    match &settlement.verdict {
        Verdict::Retry { destination, key, .. } | Verdict::Suspect { destination, key, .. } => {
            Some((destination, (*key)?))
        }
        Verdict::Dead { destination, parked, .. } => Some((destination, (*parked)?)),
        Verdict::Held { destination, key } => Some((destination, *key)),
        Verdict::Sent | Verdict::Unclaimed => None,
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::store::{Held, Identity};

    use super::*;

    fn outcome(sequence: i64, verdict: Verdict) -> Settlement {
        Settlement { sequence, identity: Identity::default(), shard: 0, attempts: 0, verdict }
    }

    fn retry(sequence: i64, key: i64) -> Settlement {
        let verdict = Verdict::Retry {
            after: Duration::ZERO,
            error: String::new(),
            destination: "there".to_owned(),
            key: Some(Key(key)),
            replay: false,
        };
        outcome(sequence, verdict)
    }

    fn held(sequence: i64, key: i64) -> Settlement {
        outcome(sequence, Verdict::Held { destination: "there".to_owned(), key: Key(key) })
    }

    fn batch(part: Vec<Settlement>) -> Batch {
        let held = vec![Held { shard: 0, epoch: 1 }];
        Batch { parts: vec![(Fence::Shards { owner: "a".to_owned(), held }, part)] }
    }

    fn sequences(batch: &Batch) -> Vec<i64> {
        batch.parts.iter().flat_map(|(_, part)| part).map(|outcome| outcome.sequence).collect()
    }

    /// Writes what is to be written while this row is locked. Gives what was, and how often it took too long.
    fn write(unwritten: &mut Unwritten, locked: i64) -> (Vec<i64>, usize) {
        let (mut written, mut late) = (Vec::new(), 0);
        while let Some(piece) = unwritten.next() {
            let of_piece = sequences(&piece);
            if of_piece.contains(&locked) {
                late += 1;
                unwritten.timed_out(piece);
            } else {
                written.extend(of_piece);
            }
        }
        (written, late)
    }

    #[test]
    fn all_but_one_of_a_large_batch_are_written_after_few_timeouts() {
        let mut unwritten = Unwritten::default();
        unwritten.timed_out(batch((1..=2000).map(|n| outcome(n, Verdict::Sent)).collect()));
        let (written, late) = write(&mut unwritten, 777);
        let others: Vec<i64> = (1..=2000).filter(|n| *n != 777).collect();
        assert_eq!((written, late), (others, 4), "in order");
        assert!(!unwritten.is_empty());
        assert_eq!(
            unwritten.next_locked(Instant::now()).map(|batch| sequences(&batch)),
            Some(vec![777])
        );
        unwritten.unlocked();
        assert!(unwritten.is_empty());
    }

    #[test]
    fn outcomes_of_a_lane_stay_behind_its_locked_one_and_those_of_others_do_not() {
        let mut unwritten = Unwritten::default();
        unwritten.timed_out(batch(vec![retry(1, 1), held(2, 1), retry(3, 2), held(4, 1)]));
        assert_eq!(write(&mut unwritten, 1).0, [3]);
        let later = batch(vec![held(5, 1), held(6, 2), outcome(7, Verdict::Sent)]);
        assert_eq!(sequences(&unwritten.keep_order(later)), [6, 7]);
        let now = Instant::now();
        let first = unwritten.next_locked(now).unwrap();
        assert_eq!(sequences(&first), [1, 2, 4, 5]);
        // One that comes while these are being written follows them.
        assert!(unwritten.keep_order(batch(vec![held(8, 1)])).is_empty());
        unwritten.unlocked();
        assert_eq!(unwritten.next_locked(now).map(|batch| sequences(&batch)), Some(vec![8]));
    }

    #[test]
    fn no_more_is_read_while_very_many_wait_for_a_locked_one() {
        let mut unwritten = Unwritten::default();
        unwritten.timed_out(batch(vec![retry(1, 1)]));
        unwritten.keep_order(batch((2..20_000).map(|n| held(n, 1)).collect()));
        assert!(!unwritten.is_full());
        unwritten.keep_order(batch(vec![held(20_000, 1)]));
        assert!(unwritten.is_full());
        unwritten.next_locked(Instant::now());
        unwritten.unlocked();
        assert!(!unwritten.is_full());
    }

    #[test]
    fn locked_ones_are_tried_in_turn_with_a_pause_after_one_that_failed() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        for sequence in [1, 2] {
            assert_eq!(unwritten.timed_out(batch(vec![retry(sequence, sequence)])), Some(sequence));
        }
        let pause = Duration::from_secs(5);
        assert_eq!(unwritten.next_locked(now).map(|batch| sequences(&batch)), Some(vec![1]));
        assert!(unwritten.next_locked(now).is_none(), "one at a time");
        unwritten.still_locked(now, pause);
        assert!(unwritten.next_locked(now).is_none());
        let later = now + pause;
        assert_eq!(unwritten.next_locked(later).map(|batch| sequences(&batch)), Some(vec![2]));
        unwritten.unlocked();
        assert_eq!(unwritten.next_locked(later).map(|batch| sequences(&batch)), Some(vec![1]));
    }
}
