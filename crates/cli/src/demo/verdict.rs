//! What the checker of `posthaste-testkit` says about orders.

use posthaste_testkit::checker::{Checker, Committed, Delivered};
use uuid::Uuid;

/// One order and all that is known about its events.
#[derive(Default)]
pub(super) struct Order {
    pub(super) committed: Vec<Committed>,
    /// Which event was accepted when.
    pub(super) delivered: Vec<(Uuid, u64)>,
    pub(super) dead: Vec<Uuid>,
    /// No transaction of it will follow.
    pub(super) over: bool,
}

impl Order {
    /// Nothing will follow, and every event is delivered or dead.
    pub(super) fn is_finished(&self) -> bool {
        let accounted = |id: Uuid| {
            self.dead.contains(&id) || self.delivered.iter().any(|(other, _)| *other == id)
        };
        self.over && self.committed.iter().all(|event| accounted(event.id))
    }
}

/// What was found so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) committed: usize,
    pub(super) delivered: usize,
    pub(super) lost: usize,
    pub(super) reordered: usize,
    pub(super) duplicates: usize,
    /// Delivered and never committed: what was rolled back belongs here.
    pub(super) made_up: usize,
    /// Orders that were checked before the end, to bound memory.
    pub(super) checked_early: usize,
}

impl Verdict {
    /// Every promise was kept. A duplicate breaks none: delivery is at least once.
    pub(super) fn is_kept(&self) -> bool {
        self.lost == 0 && self.reordered == 0 && self.made_up == 0
    }

    /// Checks these orders, each whole.
    pub(super) fn check(&mut self, orders: impl IntoIterator<Item = Order>) {
        let mut checker = Checker::new();
        checker.repeats_anywhere();
        for order in orders {
            for event in order.committed {
                let dead = order.dead.contains(&event.id);
                checker.committed(if dead { event.may_be_missing() } else { event });
            }
            for (id, at) in order.delivered {
                checker.delivered(Delivered::new(id, at, "demo"));
            }
        }
        let report = checker.check();
        self.committed += report.committed;
        self.delivered += report.delivered;
        self.lost += report.lost.len();
        self.reordered += report.reordered.len();
        self.duplicates += report.excused;
        self.made_up += report.phantoms.len();
    }
}
