//! Gaps: numbers that were passed over because nothing was visible under them.
//!
//! MySQL gives out a number when a row is inserted, and the row becomes visible when its transaction
//! commits. A number that is missing below one that is there belongs to a transaction that is still
//! open, or nobody will ever use it: it was rolled back, or skipped by `auto_increment_increment`.

use std::time::Instant;

/// Runs of missing numbers, in order, none overlapping.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Gaps(Vec<Gap>);

/// One run of numbers under which nothing was visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) first: i64,
    pub(super) last: i64,
    /// When it was first seen: its numbers were given out before.
    pub(super) seen: Instant,
}

impl Gaps {
    pub(super) fn iter(&self) -> impl Iterator<Item = Gap> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest missing number.
    pub(super) fn first(&self) -> Option<i64> {
        self.0.first().map(|gap| gap.first)
    }

    /// Adds the numbers after `after` that are missing among `present`, which holds all visible ones
    /// in order.
    pub(super) fn add_missing(&mut self, after: i64, present: &[i64], seen: Instant) {
        let mut previous = after;
        for &number in present.iter().filter(|&&number| number > after) {
            self.add(previous + 1, number - 1, seen);
            previous = number;
        }
    }

    /// Adds a run of numbers. A number that is known as missing keeps its time.
    pub(super) fn add(&mut self, first: i64, last: i64, seen: Instant) {
        let mut first = first;
        let mut at = self.0.partition_point(|gap| gap.last < first);
        while first <= last {
            match self.0.get(at) {
                Some(gap) if gap.first <= first => first = gap.last + 1,
                next => {
                    let last = next.map_or(last, |gap| last.min(gap.first - 1));
                    self.0.insert(at, Gap { first, last, seen });
                    first = last + 1;
                }
            }
            at += 1;
        }
    }

    /// Takes out those of these numbers, given in order, that were missing: gives them.
    pub(super) fn take(&mut self, numbers: &[i64]) -> Vec<i64> {
        let mut taken = Vec::new();
        if numbers.is_empty() {
            return taken;
        }
        let mut left = Vec::with_capacity(self.0.len());
        for gap in &self.0 {
            let mut first = gap.first;
            let from = numbers.partition_point(|&number| number < gap.first);
            for &number in numbers[from..].iter().take_while(|&&number| number <= gap.last) {
                if first < number {
                    left.push(Gap { first, last: number - 1, ..*gap });
                }
                taken.push(number);
                first = number + 1;
            }
            if first <= gap.last {
                left.push(Gap { first, ..*gap });
            }
        }
        self.0 = left;
        taken
    }

    /// Gives up the numbers that were seen missing by `until`, but for those of `inserted`, given in
    /// order: a transaction that is still open has rows under them.
    pub(super) fn close(&mut self, until: Instant, inserted: &[i64]) {
        let mut left = Vec::new();
        for gap in &self.0 {
            if gap.seen > until {
                left.push(*gap);
                continue;
            }
            let from = inserted.partition_point(|&number| number < gap.first);
            for &number in inserted[from..].iter().take_while(|&&number| number <= gap.last) {
                match left.last_mut() {
                    Some(before) if before.last == number - 1 && before.seen == gap.seen => {
                        before.last = number;
                    }
                    _ => left.push(Gap { first: number, last: number, ..*gap }),
                }
            }
        }
        self.0 = left;
    }

    /// Takes out the numbers that were seen missing by `until`: gives those of `inserted`, which is in
    /// order, and the others.
    pub(super) fn split(&mut self, until: Instant, inserted: &[i64]) -> (Self, Self) {
        let mut old = Self(self.0.extract_if(.., |gap| gap.seen <= until).collect());
        let mut used = old.clone();
        used.close(until, inserted);
        old.take(inserted);
        (used, old)
    }

    /// Takes out the runs of more than so many numbers, and returns them in pieces.
    pub(super) fn take_long(&mut self, long: i64, piece: i64) -> Vec<(i64, i64)> {
        let mut pieces = Vec::new();
        for gap in self.0.extract_if(.., |gap| gap.last - gap.first >= long) {
            let mut first = gap.first;
            while first <= gap.last {
                let last = gap.last.min(first + piece - 1);
                pieces.push((first, last));
                first = last + 1;
            }
        }
        pieces
    }

    /// Only those below this number stay.
    pub(super) fn keep_below(&mut self, first: i64) {
        self.0.truncate(self.0.partition_point(|gap| gap.first < first));
        if let Some(last) = self.0.last_mut() {
            last.last = last.last.min(first - 1);
        }
    }

    /// Takes out those that were seen since then.
    pub(super) fn take_seen_since(&mut self, since: Instant) -> Self {
        Self(self.0.extract_if(.., |gap| gap.seen >= since).collect())
    }

    /// When the last one was seen.
    pub(super) fn last_seen(&self) -> Option<Instant> {
        self.0.iter().map(|gap| gap.seen).max()
    }

    /// Adds others, which it does not have.
    pub(super) fn merge(&mut self, others: Self) {
        let follow = self.0.last().zip(others.0.first()).is_none_or(|(a, b)| a.last < b.first);
        self.0.extend(others.0);
        if !follow {
            self.0.sort_unstable_by_key(|gap| gap.first);
        }
    }

    /// Stretches of numbers that hold all gaps: those that are no further apart than `near` share one,
    /// together with the rows between them.
    pub(super) fn stretches(&self, near: i64) -> Vec<(i64, i64)> {
        let mut stretches: Vec<(i64, i64)> = Vec::new();
        for gap in &self.0 {
            match stretches.last_mut() {
                Some(stretch) if gap.first - stretch.1 <= near => stretch.1 = gap.last,
                _ => stretches.push((gap.first, gap.last)),
            }
        }
        stretches
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn runs(gaps: &Gaps) -> Vec<(i64, i64)> {
        gaps.iter().map(|gap| (gap.first, gap.last)).collect()
    }

    fn gaps(list: &[(i64, i64)], seen: Instant) -> Gaps {
        let mut gaps = Gaps::default();
        for &(first, last) in list {
            gaps.add(first, last, seen);
        }
        gaps
    }

    #[test]
    fn numbers_that_are_missing_between_others_are_gaps() {
        let mut gaps = Gaps::default();
        gaps.add_missing(10, &[9, 11, 16, 18, 19], Instant::now());
        assert_eq!(runs(&gaps), [(12, 15), (17, 17)]);
        assert_eq!(gaps.first(), Some(12));
    }

    #[test]
    fn long_runs_are_taken_out_in_pieces() {
        let mut gaps = gaps(&[(1, 64), (100, 349), (400, 464)], Instant::now());
        let long = gaps.take_long(64, 100);
        assert_eq!(long, [(100, 199), (200, 299), (300, 349), (400, 464)]);
        assert_eq!(runs(&gaps), [(1, 64)]);
    }

    #[test]
    fn a_gap_that_is_seen_again_keeps_the_time_at_which_it_was_first_seen() {
        let early = Instant::now();
        let late = early + Duration::from_secs(1);
        let mut gaps = gaps(&[(12, 15), (20, 20)], early);
        gaps.add(10, 25, late);
        assert_eq!(runs(&gaps), [(10, 11), (12, 15), (16, 19), (20, 20), (21, 25)]);
        let times: Vec<bool> = gaps.iter().map(|gap| gap.seen == early).collect();
        assert_eq!(times, [false, true, false, true, false]);
    }

    #[test]
    fn what_appears_splits_its_gap() {
        let mut gaps = gaps(&[(12, 15), (20, 20)], Instant::now());
        assert_eq!(gaps.take(&[3, 12, 14, 20, 40]), [12, 14, 20]);
        assert_eq!(runs(&gaps), [(13, 13), (15, 15)]);
    }

    #[test]
    fn closing_keeps_young_gaps_and_numbers_that_somebody_has_inserted() {
        let early = Instant::now();
        let late = early + Duration::from_secs(1);
        let mut gaps = gaps(&[(1, 9), (20, 20)], early);
        gaps.add(30, 31, late);
        gaps.close(early, &[3, 4, 7, 25]);
        assert_eq!(runs(&gaps), [(3, 4), (7, 7), (30, 31)]);
        gaps.close(late, &[]);
        assert!(gaps.is_empty());
    }

    #[test]
    fn what_was_inserted_is_told_from_the_rest() {
        let early = Instant::now();
        let late = early + Duration::from_secs(1);
        let mut gaps = gaps(&[(1, 9), (20, 20)], early);
        gaps.add(30, 31, late);
        let (used, unused) = gaps.split(early, &[3, 4, 7, 25, 30]);
        assert_eq!(runs(&used), [(3, 4), (7, 7)]);
        assert_eq!(runs(&unused), [(1, 2), (5, 6), (8, 9), (20, 20)]);
        assert_eq!(runs(&gaps), [(30, 31)]);
        gaps.merge(unused);
        assert_eq!(runs(&gaps), [(1, 2), (5, 6), (8, 9), (20, 20), (30, 31)]);
        assert_eq!(gaps.last_seen(), Some(late));
        assert_eq!(runs(&gaps.take_seen_since(late)), [(30, 31)]);
        assert_eq!(gaps.len(), 4);
    }

    #[test]
    fn near_gaps_share_a_stretch_and_far_ones_do_not() {
        let present: Vec<i64> = (1..=5000).map(|n| n * 2).collect();
        let mut gaps = Gaps::default();
        gaps.add_missing(0, &present, Instant::now());
        gaps.add(1_000_000, 1_000_001, Instant::now());
        assert_eq!(gaps.len(), 5001);
        let stretches = gaps.stretches(2);
        assert_eq!(stretches, [(1, 9_999), (1_000_000, 1_000_001)], "the far one is alone");
        assert_eq!(gaps.stretches(1).len(), 5001, "each by itself");
    }
}
