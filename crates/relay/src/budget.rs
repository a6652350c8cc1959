//! Budget: how many bytes of events a relay has in memory, and how many more it may read.
//!
//! An event is charged when it is read, for every copy that its way can take: the decoded event, the
//! message that a transport makes of it, what the broker's client makes of that message, and what stands in
//! the buffer of its connection. The charge is given back when the event has left the memory, wherever that
//! happens: it is dropped with what is known of the event. A page is charged from the start of its read until
//! its events are: several reads can be under way, and none of them may count on the same room. A page takes
//! an eighth of the budget at most; where several of a kind are read at the same time, each takes less.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Copies of an event on its way: decoded, as a message, packed by the broker's client, in the buffer of its
/// connection. Redis has all four. As two more counts what the allocator keeps for a while of copies that are
/// gone: with 1 MiB an event that was as much again as what was in use.
const COPIES: usize = 6;

/// Copies of a page that is being read: rows, and what is decoded of them.
const READING: usize = 2;

/// What an event takes besides its payload and headers.
const OVERHEAD: usize = 512;

/// Which part of the budget one page may take.
const PAGE: usize = 8;

/// Which part a page may take where several are read at the same time, and one publish. A page with less room is not worth
/// reading: it would be one of many.
const SMALL_PAGE: usize = 64;

/// Which part pages leave to small ones, for one of these at least: a key whose events fill all that pages may take
/// must not keep those of others from being looked for.
const FOR_SMALL_PAGES: usize = 8;

/// The bytes of all events in memory, and their limit.
#[derive(Debug, Clone)]
pub struct Budget {
    limit: usize,
    used: Arc<AtomicUsize>,
}

/// What the events of one destination take of the budget.
#[derive(Debug, Clone, Default)]
pub(crate) struct Share(Arc<AtomicUsize>);

/// What one event takes of the budget, and of its destination's share, until it is dropped.
#[derive(Debug)]
pub struct Charge {
    bytes: usize,
    used: Arc<AtomicUsize>,
    share: Share,
}

impl Budget {
    /// So many bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: Arc::default() }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes an event with a payload and headers of so many bytes into account.
    pub(crate) fn charge(&self, bytes: usize, share: &Share) -> Charge {
        self.take(bytes.saturating_mul(COPIES).saturating_add(OVERHEAD), share)
    }

    fn take(&self, bytes: usize, share: &Share) -> Charge {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        share.0.fetch_add(bytes, Ordering::Relaxed);
        Charge { bytes, used: Arc::clone(&self.used), share: share.clone() }
    }

    /// Whether one of so many destinations has so many sixteenths of what it may have: all of them together leave
    /// room for a page, so that one that takes its time does not keep the others from theirs.
    pub(crate) fn is_shared_out(
        &self,
        sixteenths: usize,
        share: &Share,
        destinations: usize,
    ) -> bool {
        share.0.load(Ordering::Relaxed) >= self.for_pages() / (destinations + 1) / 16 * sixteenths
    }

    /// How many bytes of payloads and headers the next page may have; `None` when it must wait. With
    /// nothing in memory one event may always come, however large it is.
    pub(crate) fn page(&self) -> Option<usize> {
        self.part(self.for_pages(), PAGE)
    }

    fn for_pages(&self) -> usize {
        self.limit - self.limit / FOR_SMALL_PAGES
    }

    /// The same for a page that is one of several. There may be room for these when there is none for a larger one.
    pub(crate) fn small_page(&self) -> Option<usize> {
        self.part(self.limit, SMALL_PAGE)
    }

    fn part(&self, limit: usize, part: usize) -> Option<usize> {
        let used = self.used();
        let room = limit.saturating_sub(used) / COPIES;
        if used > 0 && room < self.limit / SMALL_PAGE {
            return None;
        }
        Some(room.min(self.limit / part).max(1))
    }

    /// Takes a page of so many bytes into account, until its events are.
    pub(crate) fn reserve(&self, bytes: usize) -> Charge {
        self.take(bytes.min(self.limit).saturating_mul(READING), &Share::default())
    }

    /// How many bytes of payloads one publish may have: a client keeps the buffer that the largest needed, and
    /// large blocks that come and go leave the allocator with much that is free.
    pub(crate) fn publish(&self) -> usize {
        self.limit / SMALL_PAGE
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.share.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_an_eighth_at_most_and_waits_when_there_is_no_room() {
        let budget = Budget::new(64_000);
        assert_eq!(budget.page(), Some(8_000));
        let first = budget.charge(5_000, &Share::default());
        assert_eq!(budget.used(), 30_512);
        assert_eq!(budget.page(), Some(4_248));
        let second = budget.charge(3_000, &Share::default());
        assert_eq!(budget.page(), Some(1_162));
        let third = budget.charge(100, &Share::default());
        assert_eq!(budget.page(), None, "so little is not worth a read");
        assert_eq!(budget.small_page(), Some(1_000), "these have a part of their own");
        let fourth = budget.charge(600, &Share::default());
        assert_eq!(budget.small_page(), Some(1_000), "for more than one");
        let fifth = budget.charge(600, &Share::default());
        assert_eq!(budget.small_page(), None);
        drop((first, third, fourth, fifth));
        assert_eq!(budget.page(), Some(6_248));
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn pages_that_are_read_at_the_same_time_do_not_count_on_the_same_room() {
        let budget = Budget::new(64_000);
        let pages: Vec<Charge> = std::iter::from_fn(|| {
            let bytes = budget.page()?;
            Some(budget.reserve(bytes))
        })
        .collect();
        assert!(pages.len() < 8 && budget.used() <= 64_000, "{} pages", pages.len());
        drop(pages);
        let small = std::iter::from_fn(|| Some(budget.reserve(budget.small_page()?)));
        let small: Vec<Charge> = small.take(8).collect();
        assert_eq!(small.len(), 8);
        assert!(budget.page().is_some(), "many small ones leave room for a page");
    }

    #[test]
    fn an_event_larger_than_the_budget_passes_alone() {
        let budget = Budget::new(64);
        assert!(budget.page().is_some(), "nothing is in memory");
        let huge = budget.charge(1_000_000, &Share::default());
        assert_eq!(budget.page(), None);
        drop(huge);
        assert!(budget.page().is_some());
    }

    #[test]
    fn a_destination_that_keeps_its_events_leaves_room_for_the_others() {
        let budget = Budget::new(90_000);
        let (slow, quick) = (Share::default(), Share::default());
        let kept: Vec<Charge> = (0..1).map(|_| budget.charge(3_000, &slow)).collect();
        assert!(!budget.is_shared_out(16, &slow, 2));
        let one_more = budget.charge(3_000, &slow);
        assert!(budget.is_shared_out(16, &slow, 2));
        assert!(!budget.is_shared_out(16, &quick, 2));
        assert!(budget.page().is_some());
        drop((kept, one_more));
        assert!(!budget.is_shared_out(16, &slow, 2));
    }
}
