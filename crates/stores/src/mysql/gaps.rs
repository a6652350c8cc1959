//! Gaps: numbers that were passed over because nothing was visible under them.
//!
//! MySQL gives out a number when a row is inserted, and the row becomes visible when its
//! transaction commits. A number that is missing below one that is there belongs to a transaction
//! that is still open, or to one that was rolled back; nobody can tell which. So the position of a
//! reader carries its gaps as text, each with the time at which it was first seen:
//!
//! ```text
//! 1794734034:12-15,20;1794734039:31        second of the database's clock : numbers
//! ```

use std::fmt::{self, Write};

/// Most gaps that are kept apart. Beyond it neighbours become one, with what lies between them:
/// that costs a look at rows that are known, and loses nothing.
const MOST: usize = 1000;

/// The gaps of a reader, in the order of their numbers, none overlapping.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Gaps(Vec<Gap>);

/// One run of numbers under which nothing was visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) first: i64,
    pub(super) last: i64,
    /// When it was first seen, in seconds since 1970 of the database's clock.
    pub(super) seen: i64,
}

impl Gaps {
    /// The gaps of this text. What is no gap is left out: the text is our own.
    pub(super) fn parse(text: &str) -> Self {
        let mut gaps = Self::default();
        for (seen, ranges) in text.split(';').filter_map(|group| group.split_once(':')) {
            let Ok(seen) = seen.parse() else { continue };
            for range in ranges.split(',') {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
                    gaps.add(first, last, seen);
                }
            }
        }
        gaps
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Gap> + '_ {
        self.0.iter().copied()
    }

    /// When the oldest was seen.
    pub(super) fn oldest(&self) -> Option<i64> {
        self.0.iter().map(|gap| gap.seen).min()
    }

    /// Adds what is missing among `present`, which holds all numbers behind `behind` that were
    /// visible, in order.
    pub(super) fn add_missing(&mut self, behind: i64, present: &[i64], seen: i64) {
        let mut previous = behind;
        for &number in present {
            self.add(previous + 1, number - 1, seen);
            previous = number;
        }
    }

    /// Adds a run of numbers. What is known as a gap already keeps its time.
    pub(super) fn add(&mut self, first: i64, last: i64, seen: i64) {
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
        self.join_nearest();
    }

    /// Takes out the numbers under which something has appeared, given in order.
    pub(super) fn remove(&mut self, appeared: &[i64]) {
        if appeared.is_empty() {
            return;
        }
        let mut left = Vec::with_capacity(self.0.len());
        for gap in &self.0 {
            let mut first = gap.first;
            let from = appeared.partition_point(|&number| number < gap.first);
            for &number in appeared[from..].iter().take_while(|&&number| number <= gap.last) {
                if first < number {
                    left.push(Gap { first, last: number - 1, ..*gap });
                }
                first = number + 1;
            }
            if first <= gap.last {
                left.push(Gap { first, ..*gap });
            }
        }
        self.0 = left;
        self.join_nearest();
    }

    /// Gives up gaps that were seen at or before this time.
    pub(super) fn close(&mut self, until: i64) {
        self.0.retain(|gap| gap.seen > until);
    }

    /// Joins the nearest neighbours while there are too many.
    fn join_nearest(&mut self) {
        let Some(excess) = self.0.len().checked_sub(MOST).filter(|&excess| excess > 0) else {
            return;
        };
        let mut distances: Vec<i64> =
            self.0.windows(2).map(|pair| pair[1].first - pair[0].last).collect();
        distances.sort_unstable();
        // Half of what is allowed goes at once, or every further gap would come here again.
        let enough = distances[(excess + MOST / 2).min(distances.len()) - 1];
        self.0.dedup_by(|next, gap| {
            let near = next.first - gap.last <= enough;
            if near {
                gap.last = next.last;
                gap.seen = gap.seen.max(next.seen);
            }
            near
        });
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut group = None;
        for gap in &self.0 {
            match group {
                Some(seen) if seen == gap.seen => f.write_char(',')?,
                Some(_) => write!(f, ";{}:", gap.seen)?,
                None => write!(f, "{}:", gap.seen)?,
            }
            group = Some(gap.seen);
            write!(f, "{}", gap.first)?;
            if gap.last > gap.first {
                write!(f, "-{}", gap.last)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_missing_between_others_are_gaps() {
        let mut gaps = Gaps::default();
        gaps.add_missing(10, &[11, 16, 18, 19], 7);
        assert_eq!(gaps.to_string(), "7:12-15,17");
        assert_eq!(Gaps::parse(&gaps.to_string()), gaps);
        assert_eq!(Gaps::parse(""), Gaps::default());
    }

    #[test]
    fn a_gap_that_is_seen_again_keeps_the_time_at_which_it_was_first_seen() {
        let mut gaps = Gaps::parse("7:12-15;8:20");
        gaps.add(10, 25, 9);
        assert_eq!(gaps.to_string(), "9:10-11;7:12-15;9:16-19;8:20;9:21-25");
    }

    #[test]
    fn what_appears_splits_its_gap() {
        let mut gaps = Gaps::parse("7:12-15,20");
        gaps.remove(&[3, 12, 14, 20, 40]);
        assert_eq!(gaps.to_string(), "7:13,15");
    }

    #[test]
    fn closing_gives_up_old_gaps_only() {
        let mut gaps = Gaps::parse("7:12-15;8:20;9:31");
        gaps.close(8);
        assert_eq!(gaps.to_string(), "9:31");
        assert_eq!(gaps.oldest(), Some(9));
    }

    #[test]
    fn too_many_gaps_become_fewer_and_none_is_lost() {
        let mut gaps = Gaps::default();
        let present: Vec<i64> = (1..=5000).map(|n| n * 2).collect();
        gaps.add_missing(0, &present, 7);
        assert!(gaps.0.len() <= MOST, "{} are left", gaps.0.len());
        for missing in present.iter().map(|n| n - 1) {
            assert!(gaps.iter().any(|gap| gap.first <= missing && missing <= gap.last));
        }
    }
}
