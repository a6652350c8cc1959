//! Outcomes that could not be written in time: what rows of others' locks keep, and pieces of a batch.
//!
//! A row that somebody has locked fails the whole settle that would write it. So once a settle took too long,
//! the store is asked before each of the next ones which of its rows are locked. The outcomes of these are laid
//! aside, and written when their rows are free; they hold back nobody else. A batch that takes too long
//! although no row of it is locked is divided by ten, piece by piece, down to single outcomes.
//!
//! ```text
//!  batch ──timeout──► locked rows? ──► laid aside ──free again──► written, then what follows it
//!                          │
//!                          └──► the others ──timeout──► pieces ──timeout──► one outcome: laid aside
//! ```
//!
//! # When things fail
//!
//! The outcomes of one lane are written in their order: a follower that is held before what it follows is
//! written back would be the first of its lane for the next owner. So later outcomes of a lane wait behind
//! its locked one. Deliveries need no order: the next owner of one that is not marked repeats it.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    time::{Duration, Instant},
};

use posthaste_core::{
    Key,
    store::{Fence, Held, Settlement, Verdict},
};

use crate::settle::Batch;

/// A batch that was not written in time is divided by this.
const PIECES: usize = 10;

/// Most outcomes that are laid aside while events are read: a few MB.
const MOST_ASIDE: usize = 20_000;

/// Most outcomes of a lane that are written at once when its locked one is.
const FOLLOWERS: usize = 500;

/// For so long after a settle that took too long, rows are asked about before they are written.
const WARY: Duration = Duration::from_mins(1);

/// How often rows that are locked are asked about again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Most events that are remembered as late.
const MOST_LATE: usize = 1_000;

/// Most of these that one question is about; the next one follows soon where there are more.
const ASKED: usize = 1_000;

const NEXT_QUESTION: Duration = Duration::from_millis(20);

/// A batch that was not written, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// To be written before anything else, in order.
    pieces: VecDeque<Batch>,
    /// By the lane for which their order counts; several destinations may know a key.
    aside: BTreeMap<Option<Key>, Vec<Aside>>,
    /// The events whose outcomes these are.
    waiting: HashSet<i64>,
    wary_until: Option<Instant>,
    /// Events whose outcomes were not written in time although they were alone: the first time the answer may have
    /// been lost.
    late_alone: HashSet<i64>,
    asking: bool,
    /// How many of the present round were asked about.
    turn: usize,
    /// When the rows of those laid aside are asked about again.
    ask_at: Option<Instant>,
}

/// An outcome whose row is locked, and later ones of its lane.
#[derive(Debug)]
struct Aside {
    sequence: i64,
    destination: String,
    batches: VecDeque<Batch>,
    /// It took too long alone, and the store knew of no lock: it is not tried again before.
    not_before: Option<Instant>,
}

impl Unwritten {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.aside.is_empty()
    }

    /// So many outcomes wait for a locked one that nothing more is to be read: those of one key with very many
    /// events would fill the memory.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= MOST_ASIDE
    }

    /// The outcome of this event waits for a locked row.
    pub(crate) fn is_aside(&self, sequence: i64) -> bool {
        self.waiting.contains(&sequence)
    }

    /// Whether the next batch may hold rows that somebody has locked.
    pub(crate) fn is_wary(&self, now: Instant) -> bool {
        !self.aside.is_empty() || self.wary_until.is_some_and(|until| now < until)
    }

    /// How many more may be laid aside that were due: none of these is of a lane that is behind a locked one, but
    /// those that were delayed.
    pub(crate) fn room(&self) -> usize {
        (2 * MOST_ASIDE).saturating_sub(self.waiting.len())
    }

    /// Forgets what may not be written any more. Gives the events.
    pub(crate) fn forget(&mut self, is_held: impl Fn(&Held) -> bool) -> Vec<i64> {
        let lost = |batch: &Batch| {
            batch.parts.iter().any(|(fence, _)| match fence {
                Fence::Shards { held, .. } => !held.iter().all(&is_held),
                Fence::Rows(_) => false,
            })
        };
        let mut forgotten = Vec::new();
        for of_key in self.aside.values_mut() {
            for aside in of_key.iter_mut() {
                for batch in aside.batches.iter().filter(|batch| lost(batch)) {
                    forgotten.extend(batch.sequences());
                }
                aside.batches.retain(|batch| !lost(batch));
                if let Some(first) =
                    aside.batches.front().and_then(|first| first.sequences().next())
                {
                    aside.sequence = first;
                }
            }
            of_key.retain(|aside| !aside.batches.is_empty());
        }
        self.aside.retain(|_, of_key| !of_key.is_empty());
        for sequence in &forgotten {
            self.waiting.remove(sequence);
        }
        forgotten
    }

    /// What is to be written before anything else.
    pub(crate) fn next(&mut self) -> Option<Batch> {
        self.pieces.pop_front()
    }

    /// The batch could not be written, and will be as it is.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        self.pieces.push_front(batch);
    }

    /// The batch was not written in time. Returns the number of its event, if it has no other: this is laid aside, or
    /// cannot be recorded.
    pub(crate) fn timed_out(&mut self, batch: Batch, now: Instant) -> Option<i64> {
        let was_wary = self.is_wary(now);
        self.wary_until = Some(now + WARY);
        if !was_wary {
            // Its locked rows are found first.
            self.put_back(batch);
            return None;
        }
        let alone = self.divided(batch)?;
        let mut outcomes = alone.parts.iter().flat_map(|(_, part)| part);
        let is_suspect = outcomes.any(|one| matches!(one.verdict, Verdict::Suspect { .. }));
        if self.late_alone.len() >= MOST_LATE {
            self.late_alone.clear();
        }
        if !is_suspect && alone.sequences().any(|sequence| self.late_alone.insert(sequence)) {
            // Once more: one lost answer is no reason to wait for long.
            self.put_back(alone);
            return None;
        }
        let (fence, settlement) =
            alone.parts.into_iter().find_map(|(fence, mut part)| Some((fence, part.pop()?)))?;
        let sequence = settlement.sequence;
        if !matches!(settlement.verdict, Verdict::Suspect { .. }) {
            self.lay_aside(&fence, settlement, Some(now + WARY));
        }
        Some(sequence)
    }

    /// Smaller pieces of the batch are next, in order. Gives it back if it has one outcome only.
    pub(crate) fn divided(&mut self, batch: Batch) -> Option<Batch> {
        let outcomes = batch.len();
        if outcomes <= 1 {
            return Some(batch);
        }
        let most = outcomes.div_ceil(PIECES);
        let pieces: Vec<Batch> = batch
            .parts
            .iter()
            .flat_map(|(fence, part)| part.chunks(most).map(|piece| single(fence, piece)))
            .collect();
        for piece in pieces.into_iter().rev() {
            self.pieces.push_front(piece);
        }
        None
    }

    /// Lays aside the outcomes whose rows are locked, and what has to wait for these and for earlier ones of
    /// its lane. Gives the others, and the suspects that cannot be recorded: others wait for a suspect.
    pub(crate) fn take_locked(
        &mut self,
        batch: Batch,
        locked: &[i64],
        now: Instant,
    ) -> (Batch, Vec<i64>) {
        let mut suspects = Vec::new();
        if !locked.is_empty() {
            self.wary_until = Some(now + WARY);
        } else if self.aside.is_empty() {
            return (batch, suspects);
        }
        let locked: BTreeSet<i64> = locked.iter().copied().collect();
        let mut parts = Vec::with_capacity(batch.parts.len());
        for (fence, part) in batch.parts {
            let mut goes = Vec::with_capacity(part.len());
            for settlement in part {
                let sequence = settlement.sequence;
                let is_locked = locked.contains(&sequence);
                if matches!(settlement.verdict, Verdict::Suspect { .. }) {
                    // The head of its lane waits behind nothing of it.
                    if is_locked { suspects.push(sequence) } else { goes.push(settlement) }
                } else if let Some(before) = self.before(&settlement) {
                    before.follow(&fence, settlement);
                    self.waiting.insert(sequence);
                } else if is_locked {
                    self.lay_aside(&fence, settlement, None);
                } else {
                    goes.push(settlement);
                }
            }
            if !goes.is_empty() {
                parts.push((fence, goes));
            }
        }
        (Batch { parts }, suspects)
    }

    /// What is laid aside and has to be written before this outcome.
    fn before(&mut self, settlement: &Settlement) -> Option<&mut Aside> {
        let (destination, key) = lane(settlement)?;
        self.aside.get_mut(&Some(key))?.iter_mut().find(|aside| aside.destination == destination)
    }

    fn lay_aside(&mut self, fence: &Fence, settlement: Settlement, not_before: Option<Instant>) {
        let lane = lane(&settlement);
        let mut aside = Aside {
            sequence: settlement.sequence,
            destination: lane.map_or(String::new(), |(destination, _)| destination.to_owned()),
            batches: VecDeque::new(),
            not_before,
        };
        let key = lane.map(|(_, key)| key);
        aside.follow(fence, settlement);
        self.waiting.insert(aside.sequence);
        self.aside.entry(key).or_default().push(aside);
    }

    /// The numbers of the locked events that the store is to be asked about now.
    pub(crate) fn asks(&mut self, now: Instant) -> Option<Vec<i64>> {
        if self.asking || self.aside.is_empty() || self.ask_at.is_some_and(|at| now < at) {
            return None;
        }
        let waits = |aside: &&Aside| aside.not_before.is_none_or(|at| at <= now);
        let all = self.aside.values().flatten().filter(waits);
        let sequences: Vec<i64> =
            all.skip(self.turn).take(ASKED).map(|aside| aside.sequence).collect();
        if sequences.is_empty() {
            self.turn = 0;
            self.ask_at = Some(now + ASK_AGAIN);
            return None;
        }
        self.asking = true;
        Some(sequences)
    }

    /// The answer: of those asked about, these are still locked. The others are next, each before what follows it.
    pub(crate) fn answered(&mut self, asked: &[i64], locked: &[i64], now: Instant) {
        self.asking = false;
        // Those that are free are no longer among those to come.
        self.turn = if asked.len() < ASKED { 0 } else { self.turn + locked.len() };
        self.ask_at = Some(now + if self.turn == 0 { ASK_AGAIN } else { NEXT_QUESTION });
        let locked: BTreeSet<i64> = locked.iter().copied().collect();
        let free: BTreeSet<i64> =
            asked.iter().copied().filter(|sequence| !locked.contains(sequence)).collect();
        let mut together: Vec<Batch> = Vec::new();
        for of_key in self.aside.values_mut() {
            for aside in of_key.extract_if(.., |aside| free.contains(&aside.sequence)) {
                for sequence in aside.batches.iter().flat_map(Batch::sequences) {
                    self.waiting.remove(&sequence);
                }
                // One that took too long alone would take the others with it.
                if aside.not_before.is_some() {
                    for batch in aside.batches.into_iter().rev() {
                        self.pieces.push_front(batch);
                    }
                } else {
                    for batch in aside.batches {
                        join(&mut together, batch);
                    }
                }
            }
        }
        // Those of a lane stay in order, also where they do not fit into one batch.
        for batch in together.into_iter().rev() {
            self.pieces.push_front(batch);
        }
        self.aside.retain(|_, of_key| !of_key.is_empty());
    }

    /// When there is something to ask, if nothing happens until then.
    pub(crate) fn next_question(&self) -> Option<Instant> {
        if self.asking || self.aside.is_empty() { None } else { self.ask_at }
    }
}

impl Aside {
    /// This outcome is written after those that are here.
    fn follow(&mut self, fence: &Fence, settlement: Settlement) {
        let fence = narrowed(fence, std::slice::from_ref(&settlement));
        let last = self.batches.back_mut().and_then(|batch| batch.parts.last_mut());
        match last {
            Some((known, part)) if *known == fence && part.len() < FOLLOWERS => {
                part.push(settlement);
            }
            _ => self.batches.push_back(Batch { parts: vec![(fence, vec![settlement])] }),
        }
    }
}

/// Outcomes go together, each behind those that came before it, as far as one fence can be for all of them: thousands
/// may be free at once.
fn join(together: &mut Vec<Batch>, batch: Batch) {
    for (fence, part) in batch.parts {
        let last = together.last_mut().and_then(|batch| batch.parts.last_mut());
        if let Some((known, outcomes)) = last
            && outcomes.len() + part.len() <= FOLLOWERS
            && widen(known, &fence)
        {
            outcomes.extend(part);
        } else {
            together.push(Batch { parts: vec![(fence, part)] });
        }
    }
}

/// Takes the other fence's leases in, unless one of them is known under another epoch. Returns whether it has.
fn widen(fence: &mut Fence, other: &Fence) -> bool {
    match (fence, other) {
        (Fence::Shards { owner, held }, Fence::Shards { owner: of_other, held: others }) => {
            let fits =
                |one: &Held| held.iter().all(|known| known.shard != one.shard || known == one);
            if owner != of_other || !others.iter().all(fits) {
                return false;
            }
            let news: Vec<Held> =
                others.iter().filter(|one| !held.contains(one)).copied().collect();
            held.extend(news);
            true
        }
        (fence, other) => fence == other,
    }
}

fn single(fence: &Fence, piece: &[Settlement]) -> Batch {
    Batch { parts: vec![(narrowed(fence, piece), piece.to_vec())] }
}

/// The fence without the shards of other events: their leases are not locked for these.
fn narrowed(fence: &Fence, piece: &[Settlement]) -> Fence {
    match fence {
        Fence::Shards { owner, held } => {
            let shards: BTreeSet<u16> = piece.iter().map(|settlement| settlement.shard).collect();
            let held = held.iter().filter(|held| shards.contains(&held.shard)).copied().collect();
            Fence::Shards { owner: owner.clone(), held }
        }
        Fence::Rows(lease) => Fence::Rows(lease.clone()),
    }
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
    use posthaste_core::store::Identity;

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

    /// Writes what is to be written while this row is locked, by a store that does not know. Gives what was, and how
    /// often it took too long.
    fn write(unwritten: &mut Unwritten, locked: i64, now: Instant) -> (Vec<i64>, usize) {
        let (mut written, mut late) = (Vec::new(), 0);
        while let Some(piece) = unwritten.next() {
            let (piece, _) = unwritten.take_locked(piece, &[], now);
            let of_piece = sequences(&piece);
            if of_piece.contains(&locked) {
                late += 1;
                unwritten.timed_out(piece, now);
            } else {
                written.extend(of_piece);
            }
        }
        (written, late)
    }

    #[test]
    fn after_one_timeout_all_locked_rows_are_laid_aside_at_once() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        assert!(!unwritten.is_wary(now));
        unwritten.timed_out(batch((1..=2000).map(|n| outcome(n, Verdict::Sent)).collect()), now);
        assert!(unwritten.is_wary(now), "the store is asked");
        let locked: Vec<i64> = (1..=50).map(|n| n * 40).collect();
        let whole = unwritten.next().unwrap();
        let rest = sequences(&unwritten.take_locked(whole, &locked, now).0);
        assert_eq!(rest, (1..=2000).filter(|n| n % 40 != 0).collect::<Vec<_>>(), "in order");
        assert!(unwritten.next().is_none() && !unwritten.is_empty());
        assert_eq!(unwritten.asks(now), Some(locked.clone()));
        assert_eq!(unwritten.asks(now), None, "once");
        unwritten.answered(&locked, &locked[1..], now);
        assert_eq!(unwritten.next().map(|batch| sequences(&batch)), Some(vec![40]));
        assert_eq!(unwritten.asks(now), None, "not at once");
        assert_eq!(unwritten.next_question(), Some(now + ASK_AGAIN));
        let later = now + ASK_AGAIN;
        assert_eq!(unwritten.asks(later).as_deref(), Some(&locked[1..]));
        unwritten.answered(&locked[1..], &[], later);
        while unwritten.next().is_some() {}
        assert!(unwritten.is_empty());
        assert!(unwritten.is_wary(later) && !unwritten.is_wary(later + WARY));
    }

    #[test]
    fn a_batch_that_takes_too_long_without_a_known_lock_is_divided() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        let whole = batch((1..=2000).map(|n| outcome(n, Verdict::Sent)).collect());
        unwritten.timed_out(whole.clone(), now);
        assert_eq!(unwritten.next().map(|batch| batch.len()), Some(2000), "as it is, once");
        unwritten.timed_out(whole, now);
        let (written, late) = write(&mut unwritten, 777, now);
        let others: Vec<i64> = (1..=2000).filter(|n| *n != 777).collect();
        assert_eq!((written, late), (others, 5), "in order, and once more alone");
        assert_eq!(unwritten.asks(now), None, "it is left alone for a while");
        assert_eq!(unwritten.asks(now + WARY), Some(vec![777]));
        unwritten.answered(&[777], &[], now + WARY);
        let again = unwritten.next().unwrap();
        assert_eq!(sequences(&again), [777]);
        assert!(unwritten.is_empty());
        unwritten.timed_out(again, now + WARY);
        let again = unwritten.next().expect("as it is, once");
        unwritten.timed_out(again, now + WARY);
        assert!(unwritten.is_aside(777), "one second try is enough");
    }

    #[test]
    fn outcomes_of_a_lane_stay_behind_its_locked_one_and_those_of_others_do_not() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        let first = batch(vec![retry(1, 1), held(2, 1), retry(3, 2), held(4, 1)]);
        assert_eq!(sequences(&unwritten.take_locked(first, &[1], now).0), [3]);
        let later = batch(vec![held(5, 1), held(6, 2), outcome(7, Verdict::Sent)]);
        assert_eq!(sequences(&unwritten.take_locked(later, &[], now).0), [6, 7]);
        assert_eq!(unwritten.asks(now), Some(vec![1]), "its followers come with it");
        // One that comes while the question is under way follows them.
        assert!(unwritten.take_locked(batch(vec![held(8, 1)]), &[], now).0.is_empty());
        unwritten.answered(&[1], &[], now);
        assert_eq!(unwritten.next().map(|batch| sequences(&batch)), Some(vec![1, 2, 4, 5, 8]));
        assert!(unwritten.is_empty());
    }

    #[test]
    fn what_was_fenced_by_another_lease_is_a_batch_of_its_own() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        assert!(unwritten.take_locked(batch(vec![retry(1, 1)]), &[1], now).0.is_empty());
        let Batch { mut parts } = batch(vec![held(2, 1)]);
        let taken_anew = vec![Held { shard: 0, epoch: 2 }, Held { shard: 1, epoch: 1 }];
        parts[0].0 = Fence::Shards { owner: "a".to_owned(), held: taken_anew };
        assert!(unwritten.take_locked(Batch { parts }, &[], now).0.is_empty());
        unwritten.asks(now);
        unwritten.answered(&[1], &[], now);
        let fences = [1, 2].map(|epoch| Fence::Shards {
            owner: "a".to_owned(),
            held: vec![Held { shard: 0, epoch }],
        });
        for (sequence, fence) in [1, 2].into_iter().zip(fences) {
            let next = unwritten.next().unwrap();
            assert_eq!((sequences(&next), &next.parts[0].0), (vec![sequence], &fence));
        }
    }

    #[test]
    fn no_more_is_read_while_very_many_wait_for_a_locked_one() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        unwritten.take_locked(batch(vec![retry(1, 1)]), &[1], now);
        unwritten.take_locked(batch((2..20_000).map(|n| held(n, 1)).collect()), &[], now);
        assert!(!unwritten.is_full());
        unwritten.take_locked(batch(vec![held(20_000, 1)]), &[], now);
        assert!(unwritten.is_full());
        unwritten.asks(now);
        unwritten.answered(&[1], &[], now);
        assert!(!unwritten.is_full());
        let pieces: Vec<usize> =
            std::iter::from_fn(|| unwritten.next()).map(|batch| batch.len()).collect();
        assert_eq!(pieces, [FOLLOWERS; 40], "many at once");
    }

    #[test]
    fn very_many_are_asked_about_in_turns_and_written_together() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        let all: Vec<i64> = (1..=2_500).collect();
        let of_shards = all.iter().map(|n| {
            let shard = (n % 2) as u16;
            let outcome = Settlement { shard, ..outcome(*n, Verdict::Sent) };
            let held = vec![Held { shard, epoch: 1 }];
            (Fence::Shards { owner: "a".to_owned(), held }, vec![outcome])
        });
        unwritten.take_locked(Batch { parts: of_shards.collect() }, &all, now);
        // Half of each question's are free.
        let (mut asked, mut at) = (Vec::new(), now);
        for _ in 0..3 {
            let question = unwritten.asks(at).unwrap();
            assert!(question.len() <= ASKED, "{}", question.len());
            let locked: Vec<i64> = question.iter().copied().filter(|n| n % 4 < 2).collect();
            unwritten.answered(&question, &locked, at);
            asked.extend(question);
            at = unwritten.next_question().unwrap();
        }
        asked.sort_unstable();
        assert_eq!(asked, all, "each once in a round");
        let pieces: Vec<usize> =
            std::iter::from_fn(|| unwritten.next()).map(|batch| batch.len()).collect();
        assert_eq!(pieces.iter().sum::<usize>(), 1_250);
        assert!(pieces.len() <= 4, "{pieces:?}");
        assert_eq!(unwritten.asks(at).map(|again| again.len()), Some(ASKED), "the next round");
    }

    #[test]
    fn very_many_of_lanes_are_written_together_and_in_order() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        let lanes = 1_000;
        let outcomes = (1..=lanes).flat_map(|key| [retry(key, key), held(lanes + key, key)]);
        let locked: Vec<i64> = (1..=lanes).collect();
        unwritten.take_locked(batch(outcomes.collect()), &locked, now);
        let question = unwritten.asks(now).unwrap();
        assert_eq!(question.len(), locked.len());
        unwritten.answered(&question, &[], now);
        let pieces: Vec<Batch> = std::iter::from_fn(|| unwritten.next()).collect();
        assert!(pieces.len() <= 20, "{} pieces", pieces.len());
        let order: Vec<i64> = pieces.iter().flat_map(sequences).collect();
        let at = |n: i64| order.iter().position(|of| *of == n).unwrap();
        assert!((1..=lanes).all(|key| at(key) < at(lanes + key)), "each behind its own");
        assert!(unwritten.is_empty());
    }

    #[test]
    fn a_question_that_took_too_long_is_asked_again_about_fewer() {
        let mut unwritten = Unwritten::default();
        assert!(unwritten.divided(batch((1..=100).map(|n| held(n, n)).collect())).is_none());
        let pieces: Vec<Batch> = std::iter::from_fn(|| unwritten.next()).collect();
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() < 100));
        let all: Vec<i64> = pieces.iter().flat_map(sequences).collect();
        assert_eq!(all, (1..=100).collect::<Vec<_>>(), "in order");
        let alone = unwritten.divided(batch(vec![held(1, 1)])).unwrap();
        assert_eq!(sequences(&alone), [1]);
    }

    #[test]
    fn what_was_fenced_by_a_lost_lease_is_forgotten() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        unwritten.take_locked(batch(vec![retry(1, 1), held(2, 1), retry(3, 3)]), &[1], now);
        let mut taken_anew = batch(vec![held(4, 1)]);
        let held_now = Held { shard: 0, epoch: 2 };
        taken_anew.parts[0].0 = Fence::Shards { owner: "a".to_owned(), held: vec![held_now] };
        unwritten.take_locked(taken_anew, &[], now);
        assert_eq!(unwritten.forget(|held| *held == held_now), [1, 2]);
        assert!(!unwritten.is_aside(1) && unwritten.is_aside(4));
        assert_eq!(unwritten.asks(now), Some(vec![4]));
        assert_eq!(unwritten.forget(|_| false), [4]);
        assert!(unwritten.is_empty());
    }

    #[test]
    fn a_suspect_that_cannot_be_recorded_is_not_waited_for() {
        let (mut unwritten, now) = (Unwritten::default(), Instant::now());
        let suspect = |sequence| {
            let (destination, key) = ("there".to_owned(), Some(Key(sequence)));
            outcome(sequence, Verdict::Suspect { destination, key, replay: false })
        };
        let (rest, suspects) =
            unwritten.take_locked(batch(vec![suspect(1), suspect(2), retry(3, 3)]), &[1, 3], now);
        assert_eq!((sequences(&rest), suspects), (vec![2], vec![1]));
        assert!(unwritten.is_aside(3) && !unwritten.is_aside(1));
        // Nor does one wait behind a follower of its own.
        unwritten.take_locked(batch(vec![held(5, 4)]), &[5], now);
        let (rest, suspects) = unwritten.take_locked(batch(vec![suspect(4)]), &[], now);
        assert_eq!((sequences(&rest), suspects), (vec![4], vec![]));
        // Nor when nobody knows of a lock.
        assert_eq!(unwritten.timed_out(batch(vec![suspect(4)]), now), Some(4));
        assert!(!unwritten.is_aside(4));
    }
}
