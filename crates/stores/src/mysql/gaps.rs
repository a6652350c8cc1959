//! Gaps: numbers that were passed over because nothing was visible under them.
//!
//! MySQL gives out a number when a row is inserted, and the row becomes visible when its transaction
//! commits. A number that is missing below one that is there belongs to a transaction that is still
//! open, or nobody will ever use it: it was rolled back, or skipped by `auto_increment_increment`.

use std::time::Instant;

/// Most stretches of numbers in one statement.
const STRETCHES: usize = 256;

/// Of runs that are longer than this, the first number that is there is sought, and those after it are counted before
/// they are listed: a transaction with many events shows all of them at once, or none.
const LONG_RUN: i64 = 64;

/// Most numbers that one statement looks at. Where they take long, it looks at fewer.
pub(super) const PIECE: i64 = 100_000;

/// No piece is smaller than this.
pub(super) const LEAST: i64 = LONG_RUN;

/// Gaps that are no further apart than this are looked at together, with the rows between them.
const NEAR: i64 = 8;

/// The first and the last of numbers that follow each other.
pub(super) type Run = (i64, i64);

/// Numbers of which some are missing. All up to the last had been given out when the last one was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: i64,
    pub(super) last: i64,
    /// When the last one was seen.
    pub(super) seen: Instant,
}

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

    /// Adds the numbers after `after` up to `end` that are missing among `present`, which holds all visible ones
    /// in order.
    pub(super) fn add_missing(&mut self, after: i64, end: i64, present: &[i64], seen: Instant) {
        let mut previous = after;
        for number in within(present, (after + 1, end)) {
            self.add(previous + 1, number - 1, seen);
            previous = number;
        }
        self.add(previous + 1, end, seen);
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

    /// Writes the runs within these numbers anew; of one that reaches beyond them, only the part within.
    fn rewrite(&mut self, within: Run, mut each: impl FnMut(Gap, &mut Vec<Gap>)) {
        let (from, to) = within;
        let start = self.0.partition_point(|gap| gap.last < from);
        let end = self.0.partition_point(|gap| gap.first <= to);
        if start >= end {
            return;
        }
        let mut written = Vec::new();
        for gap in &self.0[start..end] {
            if gap.first < from {
                push(&mut written, Gap { last: from - 1, ..*gap });
            }
            let (first, last) = (gap.first.max(from), gap.last.min(to));
            each(Gap { first, last, ..*gap }, &mut written);
            if gap.last > to {
                push(&mut written, Gap { first: to + 1, ..*gap });
            }
        }
        self.0.splice(start..end, written);
    }

    /// Takes out those of these numbers, given in order, that were missing: returns them.
    pub(super) fn take(&mut self, numbers: &[i64]) -> Vec<i64> {
        let mut taken = Vec::new();
        let (Some(&lowest), Some(&highest)) = (numbers.first(), numbers.last()) else {
            return taken;
        };
        self.rewrite((lowest, highest), |gap, left| {
            let mut first = gap.first;
            for number in within(numbers, (gap.first, gap.last)) {
                if first < number {
                    push(left, Gap { first, last: number - 1, ..gap });
                }
                taken.push(number);
                first = number + 1;
            }
            if first <= gap.last {
                push(left, Gap { first, ..gap });
            }
        });
        taken
    }

    /// Takes out the numbers of this run that were seen missing by `until`, but for those of `inserted`, given in
    /// order: a transaction that is still open has rows under them. Returns what it has taken out.
    pub(super) fn take_unused(&mut self, run: Run, until: Instant, inserted: &[i64]) -> Self {
        let mut unused = Vec::new();
        self.rewrite(run, |gap, left| {
            if gap.seen > until {
                push(left, gap);
                return;
            }
            let mut first = gap.first;
            for number in within(inserted, (gap.first, gap.last)) {
                if first < number {
                    push(&mut unused, Gap { first, last: number - 1, ..gap });
                }
                push(left, Gap { first: number, last: number, ..gap });
                first = number + 1;
            }
            if first <= gap.last {
                push(&mut unused, Gap { first, ..gap });
            }
        });
        Self(unused)
    }

    /// A part that one look takes in: the numbers from `from` on that were seen missing by `by`, `piece` of them at most.
    pub(super) fn part(&self, from: i64, by: Instant, piece: i64) -> Part {
        let mut part = Part { from, piece, ..Part::default() };
        let mut numbers = 0;
        let start = self.0.partition_point(|gap| gap.last < from);
        for gap in self.0[start..].iter().filter(|gap| gap.seen <= by) {
            let (first, last) = (gap.first.max(from), gap.last);
            let long = last - first >= LONG_RUN;
            let full = part.stretches.len() >= STRETCHES;
            let before = part.stretches.last_mut().filter(|before| !long && !before.long);
            let near = before.filter(|before| first - before.last <= NEAR);
            // How much is in a long one is not known yet.
            let more = match &near {
                _ if long => 0,
                Some(before) => last - before.last,
                None => last - first + 1,
            };
            if numbers > 0 && numbers + more > piece || near.is_none() && full {
                part.end = first - 1;
                return part;
            }
            numbers += more;
            match near {
                Some(before) => before.last = last,
                None => part.stretches.push(Stretch { first, last, long }),
            }
            part.gaps.0.push(Gap { first, ..*gap });
        }
        part.is_last = true;
        part.end = part.gaps.0.last().map_or(from, |gap| gap.last);
        part
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

    /// Where they are, and when the last one was seen.
    pub(super) fn span(&self) -> Option<Span> {
        let seen = self.0.iter().map(|gap| gap.seen).max()?;
        Some(Span { first: self.0.first()?.first, last: self.0.last()?.last, seen })
    }

    /// Adds others, which it does not have.
    pub(super) fn merge(&mut self, others: Self) {
        let (Some(first), Some(last)) = (others.0.first(), others.0.last()) else {
            return;
        };
        let at = self.0.partition_point(|gap| gap.first < first.first);
        if self.0.get(at).is_none_or(|next| next.first > last.last) {
            self.0.splice(at..at, others.0);
        } else {
            self.0.extend(others.0);
            // It finds the two lists that are in order, and merges them.
            self.0.sort_by_key(|gap| gap.first);
        }
    }
}

/// Adds a run after the others, to the last one if it goes on with it.
fn push(gaps: &mut Vec<Gap>, gap: Gap) {
    match gaps.last_mut() {
        Some(before) if before.last == gap.first - 1 && before.seen == gap.seen => {
            before.last = gap.last;
        }
        _ => gaps.push(gap),
    }
}

/// Those of these numbers, which are in order, that are in the run.
fn within(numbers: &[i64], (first, last): Run) -> impl Iterator<Item = i64> {
    let from = numbers.partition_point(|&number| number < first);
    numbers[from..].iter().copied().take_while(move |&number| number <= last)
}

/// A part of the missing numbers, small enough for one statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) from: i64,
    pub(super) end: i64,
    /// Most numbers that it has.
    pub(super) piece: i64,
    /// Nothing is missing after it.
    pub(super) is_last: bool,
    /// The missing numbers.
    pub(super) gaps: Gaps,
    /// Where they are.
    pub(super) stretches: Vec<Stretch>,
}

/// Numbers that are looked at together: a long run, or short ones that are near to each other with the rows between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) long: bool,
}

impl Part {
    /// The long runs.
    pub(super) fn long(&self) -> Vec<Run> {
        let long = self.stretches.iter().filter(|stretch| stretch.long);
        long.map(|stretch| (stretch.first, stretch.last)).collect()
    }

    /// Whether all of it can be looked at without seeking where the rows are.
    pub(super) fn is_small(&self) -> bool {
        self.numbers() <= self.piece
    }

    /// How many numbers are looked at.
    pub(super) fn numbers(&self) -> i64 {
        let numbers = |stretch: &Stretch| (stretch.last - stretch.first).saturating_add(1);
        self.stretches.iter().map(numbers).fold(0, i64::saturating_add)
    }

    /// Narrows the long runs down: `first` tells for each of them, in order, the first number at which there is a row. It
    /// ends with the first one of which a piece is left over.
    pub(super) fn begin_long_at(&mut self, first: impl IntoIterator<Item = Option<i64>>) {
        let mut numbers = 0;
        let mut first = first.into_iter();
        let mut end = None;
        let mut narrowed = Vec::with_capacity(self.stretches.len());
        for mut stretch in std::mem::take(&mut self.stretches) {
            let room = self.piece - numbers;
            let (mut found, mut least) = (stretch.first, stretch.last - stretch.first + 1);
            if stretch.long {
                let Some(first) = first.next().flatten() else {
                    continue;
                };
                (found, least) = (first, LONG_RUN);
            }
            if numbers > 0 && room < least {
                end = Some(stretch.first - 1);
                break;
            }
            let last = stretch.last.min(found.saturating_add(room.max(least) - 1));
            numbers += last - found + 1;
            let rest = last < stretch.last;
            (stretch.first, stretch.last) = (found, last);
            narrowed.push(stretch);
            if rest {
                end = Some(last);
                break;
            }
        }
        self.stretches = narrowed;
        if let Some(end) = end {
            (self.end, self.is_last) = (end, false);
            self.gaps.keep_below(end + 1);
        }
    }
}

impl Default for Part {
    fn default() -> Self {
        Self {
            from: i64::MIN,
            end: i64::MAX,
            piece: PIECE,
            is_last: false,
            gaps: Gaps::default(),
            stretches: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ALL: Run = (i64::MIN, i64::MAX);

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
        gaps.add_missing(10, 19, &[9, 11, 16, 18, 19], Instant::now());
        assert_eq!(runs(&gaps), [(12, 15), (17, 17)]);
        assert_eq!(gaps.first(), Some(12));
    }

    fn stretches(part: &Part) -> Vec<(i64, i64)> {
        part.stretches.iter().map(|stretch| (stretch.first, stretch.last)).collect()
    }

    #[test]
    fn a_long_run_is_looked_at_from_its_first_row_on_a_piece_at_a_time() {
        let now = Instant::now();
        let huge = 1_000_000_000_000_000;
        let gaps = gaps(&[(1, 64), (100, huge), (huge + 9, huge + 9)], now);
        let whole = gaps.part(0, now, PIECE);
        assert_eq!(stretches(&whole), [(1, 64), (100, huge), (huge + 9, huge + 9)]);
        assert_eq!(whole.long(), [(100, huge)]);
        assert!(!whole.is_small());
        let mut empty = whole.clone();
        empty.begin_long_at([None]);
        assert_eq!(stretches(&empty), [(1, 64), (huge + 9, huge + 9)]);
        assert_eq!((empty.end, empty.is_last), (huge + 9, true));
        let mut some = whole;
        some.begin_long_at([Some(5_000_000)]);
        let end = 5_000_000 + PIECE - 65;
        assert_eq!(stretches(&some), [(1, 64), (5_000_000, end)]);
        assert_eq!((some.end, some.is_last), (end, false));
        assert_eq!(runs(&some.gaps), [(1, 64), (100, end)]);
        assert_eq!(stretches(&gaps.part(end + 1, now, PIECE))[0], (end + 1, huge));
    }

    #[test]
    fn a_long_run_before_many_short_ones_is_a_whole_piece() {
        let now = Instant::now();
        let present: Vec<i64> = (150_000..=200_000).map(|n| n * 2 + 1).collect();
        let mut gaps = Gaps::default();
        gaps.add_missing(0, 400_001, &present, now);
        let mut part = gaps.part(1, now, PIECE);
        part.begin_long_at([Some(1)]);
        assert_eq!((part.end, part.is_last), (PIECE, false));
        assert_eq!(stretches(&part), [(1, PIECE)]);
        let mut rest = gaps.part(250_000, now, PIECE);
        rest.begin_long_at([Some(280_001)]);
        assert_eq!(stretches(&rest), [(280_001, 300_000)], "both would be more than a piece");
        assert_eq!((rest.end, rest.is_last), (300_001, false));
    }

    #[test]
    fn many_long_runs_take_no_more_than_a_piece() {
        let now = Instant::now();
        let list: Vec<_> = (0..9).map(|n| (n * 100_000, n * 100_000 + 29_999)).collect();
        let gaps = gaps(&list, now);
        let mut part = gaps.part(0, now, PIECE);
        let first: Vec<_> = part.long().iter().map(|run| Some(run.0)).collect();
        part.begin_long_at(first);
        let numbers: i64 = part.stretches.iter().map(|one| one.last - one.first + 1).sum();
        assert_eq!(numbers, PIECE);
        assert!(part.is_small());
        assert_eq!((part.end, part.is_last), (309_999, false));
    }

    #[test]
    fn a_part_holds_as_many_stretches_as_a_statement_and_none_that_is_too_young() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let list: Vec<_> = (1..=300).map(|n| (n * 100, n * 100 + 1)).collect();
        let mut gaps = gaps(&list, now);
        gaps.add(150, 150, later);
        let first = gaps.part(i64::MIN, now, PIECE);
        assert_eq!(stretches(&first), list[..256]);
        assert_eq!((first.end, first.is_last), (25_699, false));
        let second = gaps.part(first.end + 1, now, PIECE);
        assert_eq!(stretches(&second), list[256..]);
        assert_eq!((second.end, second.is_last), (30_001, true));
        assert!(gaps.part(second.end + 1, now, PIECE).is_last);
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
        gaps.take_unused(ALL, early, &[3, 4, 7, 25]);
        assert_eq!(runs(&gaps), [(3, 4), (7, 7), (30, 31)]);
        gaps.take_unused((4, 30), late, &[]);
        assert_eq!(runs(&gaps), [(3, 3), (31, 31)], "the others were not looked at");
        gaps.take_unused(ALL, late, &[]);
        assert!(gaps.is_empty());
    }

    #[test]
    fn what_was_inserted_is_told_from_the_rest() {
        let early = Instant::now();
        let late = early + Duration::from_secs(1);
        let mut gaps = gaps(&[(1, 9), (20, 20)], early);
        gaps.add(30, 31, late);
        let unused = gaps.take_unused(ALL, early, &[3, 4, 7, 25, 30]);
        assert_eq!(runs(&unused), [(1, 2), (5, 6), (8, 9), (20, 20)]);
        assert_eq!(runs(&gaps), [(3, 4), (7, 7), (30, 31)]);
        gaps.merge(unused);
        let all = [(1, 2), (3, 4), (5, 6), (7, 7), (8, 9), (20, 20), (30, 31)];
        assert_eq!(runs(&gaps), all);
        assert_eq!(gaps.span(), Some(Span { first: 1, last: 31, seen: late }));
        assert_eq!(runs(&gaps.take_seen_since(late)), [(30, 31)]);
        assert_eq!(gaps.len(), 6);
    }

    #[test]
    fn near_gaps_share_a_stretch_and_far_ones_do_not() {
        let present: Vec<i64> = (1..=5000).map(|n| n * 2).collect();
        let mut gaps = Gaps::default();
        gaps.add_missing(0, 10_000, &present, Instant::now());
        gaps.add(1_000_000, 1_000_001, Instant::now());
        assert_eq!(gaps.len(), 5001);
        let part = gaps.part(0, Instant::now(), PIECE);
        let expected = [(1, 9_999), (1_000_000, 1_000_001)];
        assert_eq!(stretches(&part), expected, "the far one is alone");
        assert_eq!(part.gaps, gaps);
    }
}
