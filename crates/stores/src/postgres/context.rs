//! Context: what a reader's position must remember to find the commits that come late.
//!
//! ```text
//! 812:840:815,822|16412|0198f2c1-…              snapshot | file of the table | life of the server
//! 812:840:815,822|16412|0198f2c1-…|901:901:|77  … and a walk: its snapshot, and how far it has come
//! ```
//!
//! The *snapshot* says which transactions the reader has seen. A trigger makes every writer take its
//! transaction id before its first sequence number. So a row whose number is at or below the cursor and
//! that was not visible belongs to a transaction that had its id, and was in progress, when the snapshot
//! was taken: nothing else can come late, and finding it costs nothing that grows with what was written
//! since. PostgreSQL's own snapshot ends behind the last id that has ended; ours ends behind the last id
//! that was given out, and names those between the two as in progress.
//!
//! The *file* of the table changes when the table is truncated: then numbers begin again. The *life* is
//! the token of an unlogged table, which the server empties when it is promoted or recovers from a crash:
//! then a cursor in memory can be ahead of the data.
//!
//! A *walk* is under way when more commits came late than fit into a page. Its snapshot is the one of its
//! first page: what becomes visible after that is found by the next walk.

use std::fmt;

use posthaste_core::store::Position;

/// What a position of PostgreSQL remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) snapshot: Snapshot,
    /// The table's file.
    pub(super) file: i64,
    /// The server's life.
    pub(super) life: String,
    pub(super) walk: Option<Walk>,
}

/// Late commits that are being read, page by page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Walk {
    /// What the context's snapshot becomes when the walk is over.
    pub(super) next: Snapshot,
    /// Late rows up to this sequence have been read.
    pub(super) after: i64,
}

/// A snapshot as PostgreSQL writes it: `xmin:xmax:in progress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Transactions from here on had not begun.
    pub(super) xmax: u64,
    /// Those before it that were in progress, in order.
    pub(super) in_progress: Vec<u64>,
}

/// Most ids between the last one that has ended and the last one that was given out. More of them are
/// subtransactions, while nothing else ends.
pub(super) const WIDEST: u64 = 20_000;

impl Snapshot {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        parts.next()?.parse::<u64>().ok()?;
        let xmax = parts.next()?.parse().ok()?;
        let list = parts.next()?;
        let mut in_progress = Vec::new();
        for xid in list.split(',').filter(|xid| !xid.is_empty()) {
            in_progress.push(xid.parse().ok()?);
        }
        in_progress.sort_unstable();
        Some(Self { xmax, in_progress })
    }

    /// The same, with the ids that were given out by then. `age` is that of the id 3, modulo 2³²: how
    /// PostgreSQL tells the next id to everybody.
    pub(super) fn with_begun(mut self, age: i32) -> Self {
        let next = (age as u32).wrapping_add(3);
        let begun = u64::from(next.wrapping_sub(self.xmax as u32));
        // The next id can be the snapshot's end, and is never far before it.
        let begun = if begun > u64::from(u32::MAX / 2) { 0 } else { begun };
        self.in_progress.extend(self.xmax..self.xmax + begun.min(WIDEST + 1));
        self.xmax += begun;
        self
    }

    /// Whether it names more than can be looked at.
    pub(super) fn is_too_wide(&self) -> bool {
        self.in_progress.len() as u64 > WIDEST
    }

    /// Whatever either of them finds late.
    pub(super) fn meet(&self, other: &Self) -> Self {
        let both = self.in_progress.iter().chain(&other.in_progress);
        let mut in_progress: Vec<u64> = both.copied().collect();
        in_progress.sort_unstable();
        in_progress.dedup();
        Self { xmax: self.xmax.max(other.xmax), in_progress }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let xmin = self.in_progress.first().unwrap_or(&self.xmax);
        write!(f, "{xmin}:{}:", self.xmax)?;
        for (index, xid) in self.in_progress.iter().enumerate() {
            write!(f, "{}{xid}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Context {
    /// The context of this text; `None` for an empty one and for that of another version.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('|');
        let snapshot = Snapshot::parse(parts.next()?)?;
        let file = parts.next()?.parse().ok()?;
        let life = parts.next()?.to_owned();
        let walk = match (parts.next(), parts.next()) {
            (Some(next), Some(after)) => {
                Some(Walk { next: Snapshot::parse(next)?, after: after.parse().ok()? })
            }
            _ => None,
        };
        Some(Self { snapshot, file, life, walk })
    }

    /// The common context of two positions. A walk begins again: it may have passed what the other
    /// position has not seen.
    fn meet(&self, other: &Self) -> Option<Self> {
        if self == other {
            return Some(self.clone());
        }
        let same = self.file == other.file && self.life == other.life;
        same.then(|| Self {
            snapshot: self.snapshot.meet(&other.snapshot),
            walk: None,
            ..self.clone()
        })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}|{}", self.snapshot, self.file, self.life)?;
        match &self.walk {
            Some(Walk { next, after }) => write!(f, "|{next}|{after}"),
            None => Ok(()),
        }
    }
}

/// A position from which a reader finds all that readers at any of these would find.
pub(super) fn join(positions: &[Position]) -> Position {
    let Some((first, rest)) = positions.split_first() else {
        return Position::default();
    };
    let sequence = positions.iter().map(|position| position.sequence).min().unwrap_or(0);
    let mut common = Context::parse(&first.context);
    for position in rest {
        let other = Context::parse(&position.context);
        common = common.zip(other).and_then(|(common, other)| common.meet(&other));
    }
    match common {
        Some(common) => Position { sequence, context: common.to_string() },
        // Nothing is known to have been seen.
        None => Position::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(sequence: i64, context: &str) -> Position {
        Position { sequence, context: context.to_owned() }
    }

    #[test]
    fn a_context_comes_back_as_it_was_written() {
        for text in ["812:840:815,822|16412|a", "840:840:|1|b", "8:9:8|1|c|10:10:|77"] {
            let context = Context::parse(text).unwrap();
            assert_eq!(Context::parse(&context.to_string()), Some(context), "{text}");
        }
        for text in ["", "812:840:815", "x:1:|1|a", "1:1:|a|a"] {
            assert_eq!(Context::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_common_position_finds_what_any_of_them_finds() {
        let joined = join(&[
            position(90, "10:20:12,15|1|a"),
            position(70, "14:30:14,15,25|1|a"),
            position(80, "30:30:|1|a|40:40:|50"),
        ]);
        assert_eq!(joined, position(70, "12:30:12,14,15,25|1|a"));
        let alone = position(80, "30:30:|1|a|40:40:|50");
        assert_eq!(join(std::slice::from_ref(&alone)), alone, "a walk goes on");
        assert_eq!(join(&[alone.clone(), alone.clone()]), alone);
    }

    #[test]
    fn ids_that_were_given_out_and_have_not_ended_are_in_progress() {
        let snapshot = |text: &str| Snapshot::parse(text).unwrap();
        let begun = snapshot("8:10:8").with_begun(9);
        assert_eq!((begun.xmax, &begun.in_progress[..]), (12, &[8, 10, 11][..]));
        assert_eq!(snapshot("10:10:").with_begun(7), snapshot("10:10:"));
        // The ids of 32 bits have begun again.
        let xmax = (1_u64 << 32) + 2;
        let wrapped = Snapshot { xmax, in_progress: Vec::new() }.with_begun(1);
        assert_eq!((wrapped.xmax, wrapped.in_progress), (xmax + 2, vec![xmax, xmax + 1]));
        assert!(!begun.is_too_wide());
        assert!(snapshot("10:10:").with_begun(100_000).is_too_wide());
    }

    #[test]
    fn positions_of_two_lives_have_nothing_in_common() {
        let other_life = [position(9, "3:3:|1|a"), position(8, "3:3:|1|b")];
        let other_file = [position(9, "3:3:|1|a"), position(8, "3:3:|2|a")];
        let unknown = [position(9, "3:3:|1|a"), position(8, "")];
        for positions in [other_life, other_file, unknown] {
            assert_eq!(join(&positions), Position::default());
        }
        assert_eq!(join(&[]), Position::default());
    }
}
