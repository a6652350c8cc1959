//! The verdict, for machines and for people.

use std::fmt;

use uuid::Uuid;

use super::{Committed, Delivered};

/// How many findings of each kind are written out.
const SHOWN: usize = 10;

/// An event that was delivered before one that had to come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reordered {
    /// Their key.
    pub key: String,
    /// The one that was acknowledged before the other began, and when it was first delivered. Of
    /// several, the one that was delivered last.
    pub earlier: (Uuid, u64),
    /// The one that came too soon, and when it was first delivered.
    pub later: (Uuid, u64),
}

/// A delivery of what had been delivered already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated {
    /// The event.
    pub id: Uuid,
    /// When and by which relay it was delivered before.
    pub before: (u64, String),
    /// When and by which relay it was delivered again.
    pub again: (u64, String),
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many events were, or may have been, committed.
    pub committed: usize,
    /// How many of them were delivered.
    pub delivered: usize,
    /// How many deliveries there were, repeats and phantoms included.
    pub deliveries: usize,
    /// Committed and never delivered, the oldest first.
    pub lost: Vec<Committed>,
    /// Delivered before what had to come first, in the order of delivery.
    pub reordered: Vec<Reordered>,
    /// Delivered again without an excuse, in the order of delivery.
    pub repeated: Vec<Repeated>,
    /// How many repeats were excused.
    pub excused: usize,
    /// Delivered and never committed, in the order of delivery.
    pub phantoms: Vec<Delivered>,
}

impl Report {
    /// Nothing was lost, reordered, repeated without an excuse, or made up.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty()
            && self.reordered.is_empty()
            && self.repeated.is_empty()
            && self.phantoms.is_empty()
    }

    /// Panics with the whole report unless it is clean.
    ///
    /// # Panics
    ///
    /// When the report is not clean.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} committed, {} of them delivered in {} deliveries ({} excused repeats)",
            self.committed, self.delivered, self.deliveries, self.excused
        )?;
        findings(f, "lost", &self.lost, |f, event| {
            write!(f, "{}", event.id)?;
            if let Some(key) = &event.key {
                write!(f, " of key {key:?}")?;
            }
            write!(f, ", enqueued at {}", Time(event.began))?;
            match event.acknowledged {
                Some(at) => write!(f, ", acknowledged at {}", Time(at)),
                None => write!(f, ", never acknowledged"),
            }
        })?;
        findings(f, "reordered", &self.reordered, |f, found| {
            let (earlier, later) = (found.earlier, found.later);
            write!(f, "{} of key {:?} came at {}", later.0, found.key, Time(later.1))?;
            write!(f, ", before {} at {}", earlier.0, Time(earlier.1))
        })?;
        findings(f, "repeated", &self.repeated, |f, found| {
            let (before, again) = (&found.before, &found.again);
            write!(f, "{} came at {} by {}", found.id, Time(before.0), before.1)?;
            write!(f, " and again at {} by {}", Time(again.0), again.1)
        })?;
        findings(f, "phantom", &self.phantoms, |f, delivery| {
            write!(f, "{} came at {} by {}", delivery.id, Time(delivery.at), delivery.relay)
        })
    }
}

/// One kind of finding: how many, and the first few of them.
fn findings<T>(
    f: &mut fmt::Formatter<'_>,
    kind: &str,
    all: &[T],
    line: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    if all.is_empty() {
        return writeln!(f, "{kind}: none");
    }
    writeln!(f, "{kind}: {}", all.len())?;
    for one in all.iter().take(SHOWN) {
        f.write_str("  ")?;
        line(f, one)?;
        writeln!(f)?;
    }
    if all.len() > SHOWN {
        writeln!(f, "  and {} more", all.len() - SHOWN)?;
    }
    Ok(())
}

/// Nanoseconds as a person reads them.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
