//! Where a reader stands among transactions that end in another order than they began.

use std::{collections::BTreeSet, fmt, str::FromStr};

/// What a reader at a sequence has to know to find late commits: the context of a position.
///
/// A transaction takes its number before the first number of an event. So an event at or before the
/// reader's sequence that the reader has not seen belongs to a transaction that was open when the reader
/// looked. `open` names those. A reader that has more late events to fetch than fit into a page walks over
/// the transactions in `walking`, in the order of the sequence, and has come to `after`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Context {
    /// The life of the server in which the reader looked.
    pub(super) life: u64,
    pub(super) open: BTreeSet<u64>,
    pub(super) walking: BTreeSet<u64>,
    pub(super) after: i64,
}

impl Context {
    /// All transactions of which this reader may miss events.
    pub(super) fn missing(&self) -> BTreeSet<u64> {
        self.open.union(&self.walking).copied().collect()
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |numbers: &BTreeSet<u64>| {
            numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
        };
        write!(f, "{};{};{};{}", self.life, list(&self.open), list(&self.walking), self.after)
    }
}

impl FromStr for Context {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split(';').collect();
        let [life, open, walking, after] = parts[..] else { return Err(()) };
        let list = |text: &str| {
            let parts = text.split(',').filter(|part| !part.is_empty());
            parts
                .map(|part| part.parse::<u64>().map_err(drop))
                .collect::<Result<BTreeSet<u64>, ()>>()
        };
        Ok(Self {
            life: life.parse().map_err(drop)?,
            open: list(open)?,
            walking: list(walking)?,
            after: after.parse().map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_reads_back() {
        for context in [
            Context::default(),
            Context { life: 3, open: [1, 9].into(), walking: [4].into(), after: 17 },
        ] {
            assert_eq!(context.to_string().parse(), Ok(context));
        }
        assert!("".parse::<Context>().is_err());
    }
}
