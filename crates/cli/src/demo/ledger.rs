//! The demo's own books: what the shop committed and what the destination received, kept apart
//! from Posthaste and compared by the checker of `posthaste-testkit`.
//!
//! Order is promised per key, and every order is a key: so orders can be checked one by one. One
//! whose life is over and whose events are all accounted for stays in the books until [`KEPT`]
//! later ones have ended, then it is checked and forgotten. That bounds the memory of a run of any
//! length; an event that is delivered once more after that is still counted as a duplicate.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use posthaste_testkit::checker::Committed;
use uuid::Uuid;

use super::{
    latency::{Histogram, Latencies},
    verdict::{Order, Verdict},
};

/// Finished orders in the books.
const KEPT: usize = 20_000;

/// How many finished orders are checked at once.
const CHECKED_AT_ONCE: usize = 1_000;

/// With so many orders in the books the shop waits for the relay.
const FULL: usize = 100_000;

pub(super) struct Ledger {
    start: Instant,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    orders: HashMap<i64, Order>,
    /// Finished orders, the oldest first.
    finished: VecDeque<i64>,
    verdict: Verdict,
    running: Running,
    latencies: Latencies,
}

/// Counts as they are known so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Running {
    pub(super) orders: u64,
    pub(super) committed: u64,
    pub(super) delivered: u64,
    pub(super) rolled_back: u64,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the start, the checker's clock.
    pub(super) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub(super) fn is_full(&self) -> bool {
        self.books().orders.len() >= FULL
    }

    /// An order begins. Said before its first transaction, so that no delivery comes unknown.
    pub(super) fn order(&self, order: i64) {
        let mut books = self.books();
        books.orders.insert(order, Order::default());
        books.running.orders += 1;
    }

    /// A transaction with this event was committed, just now.
    pub(super) fn committed(&self, order: i64, id: Uuid, began: u64) {
        let event = Committed::new(id, began, self.now()).key(order.to_string());
        self.books().commit(order, event);
    }

    /// Nobody knows whether the commit took place.
    pub(super) fn unknown(&self, order: i64, id: Uuid, began: u64) {
        let event = Committed::unacknowledged(id, began).key(order.to_string());
        self.books().commit(order, event);
    }

    /// A transaction with an event was rolled back: the checker is never told of that event, and
    /// its delivery would be one of an event that nobody committed.
    pub(super) fn rolled_back(&self) {
        self.books().running.rolled_back += 1;
    }

    /// The order's last transaction has ended.
    pub(super) fn over(&self, order: i64) {
        let mut books = self.books();
        if let Some(order) = books.orders.get_mut(&order) {
            order.over = true;
        }
        books.finish(order);
    }

    /// The destination accepted an event, so long after its insert.
    pub(super) fn delivered(&self, order: i64, id: Uuid, latency: Duration) {
        let now = self.now();
        let mut books = self.books();
        let Some(known) = books.orders.get_mut(&order) else {
            // Its order was checked and forgotten long ago.
            books.verdict.duplicates += 1;
            return;
        };
        let repeat = known.delivered.iter().any(|(other, _)| *other == id);
        known.delivered.push((id, now));
        if repeat {
            return;
        }
        books.latencies.add(latency);
        books.running.delivered += 1;
        books.finish(order);
    }

    /// The outbox shows this event as dead.
    pub(super) fn dead(&self, order: i64, id: Uuid) {
        let mut books = self.books();
        let Some(known) = books.orders.get_mut(&order) else { return };
        if !known.dead.contains(&id) {
            known.dead.push(id);
            books.finish(order);
        }
    }

    /// Counts so far, and the latencies of the last seconds.
    pub(super) fn running(&self) -> (Running, Histogram) {
        let books = self.books();
        (books.running, books.latencies.recent())
    }

    pub(super) fn next_second(&self) {
        self.books().latencies.next_second();
    }

    /// Checks what is left and gives the verdict on the whole run.
    pub(super) fn close(&self) -> (Verdict, Running, Histogram) {
        let mut books = self.books();
        let rest = std::mem::take(&mut books.orders);
        books.finished.clear();
        books.verdict.check(rest.into_values());
        (books.verdict, books.running, books.latencies.whole.clone())
    }
}

impl Books {
    fn commit(&mut self, order: i64, event: Committed) {
        self.running.committed += 1;
        self.orders.entry(order).or_default().committed.push(event);
    }

    /// When the order is over and its events are accounted for, it may be checked.
    fn finish(&mut self, number: i64) {
        if !self.orders.get(&number).is_some_and(Order::is_finished) {
            return;
        }
        self.finished.push_back(number);
        if self.finished.len() < KEPT + CHECKED_AT_ONCE {
            return;
        }
        let oldest: Vec<i64> = self.finished.drain(..CHECKED_AT_ONCE).collect();
        let orders: Vec<Order> =
            oldest.iter().filter_map(|number| self.orders.remove(number)).collect();
        self.verdict.checked_early += orders.len();
        self.verdict.check(orders);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    /// One order with three events, one after the other.
    fn ledger() -> Ledger {
        let ledger = Ledger::new();
        ledger.order(1);
        (1..=3).for_each(|n| ledger.committed(1, id(n), ledger.now()));
        ledger.over(1);
        ledger
    }

    fn verdict_after(deliveries: &[u128]) -> Verdict {
        let ledger = ledger();
        for n in deliveries {
            ledger.delivered(1, id(*n), Duration::ZERO);
        }
        ledger.close().0
    }

    #[test]
    fn loss_reorder_duplicates_and_events_of_rolled_back_transactions_are_found() {
        let kept = Verdict { committed: 3, delivered: 3, ..Verdict::default() };
        assert_eq!(verdict_after(&[1, 2, 3]), kept);
        assert!(kept.is_kept());
        let lost = verdict_after(&[1, 3]);
        assert_eq!((lost.lost, lost.is_kept()), (1, false));
        let reordered = verdict_after(&[2, 1, 3]);
        assert_eq!((reordered.reordered, reordered.is_kept()), (1, false));
        let repeated = verdict_after(&[1, 2, 1, 3]);
        assert_eq!((repeated.duplicates, repeated.is_kept()), (1, true));
        let made_up = verdict_after(&[1, 2, 3, 4]);
        assert_eq!((made_up.made_up, made_up.is_kept()), (1, false));
    }

    #[test]
    fn a_dead_event_is_not_lost() {
        let ledger = ledger();
        ledger.delivered(1, id(1), Duration::ZERO);
        ledger.dead(1, id(2));
        ledger.dead(1, id(2));
        ledger.delivered(1, id(3), Duration::ZERO);
        assert_eq!(ledger.books().finished.len(), 1, "it is finished once");
        let verdict = ledger.close().0;
        assert_eq!((verdict.committed, verdict.delivered, verdict.lost), (3, 2, 0));
    }

    #[test]
    fn a_long_run_is_checked_on_the_way_and_forgets() {
        let ledger = Ledger::new();
        let orders = 2 * (KEPT + CHECKED_AT_ONCE) as i64;
        for order in 0..orders {
            ledger.order(order);
            ledger.committed(order, id(order as u128), ledger.now());
            ledger.over(order);
            ledger.delivered(order, id(order as u128), Duration::ZERO);
        }
        assert!(ledger.books().orders.len() < KEPT + CHECKED_AT_ONCE);
        ledger.delivered(0, id(0), Duration::ZERO);
        let verdict = ledger.close().0;
        assert_eq!((verdict.committed, verdict.delivered), (orders as usize, orders as usize));
        assert_eq!((verdict.duplicates, verdict.lost, verdict.made_up), (1, 0, 0));
        assert!(verdict.checked_early > KEPT);
    }
}
