//! Deliveries of what had been delivered already, and the kills that excuse them.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use uuid::Uuid;

use super::{Delivered, Excuse, Repeated};

/// The repeats that nothing excuses, and how many were excused. `delivered` is in the order of
/// time.
pub(super) fn unexcused(
    delivered: &[Delivered],
    first: &HashMap<Uuid, u64>,
    excuse: &Excuse,
) -> (Vec<Repeated>, usize) {
    let mut last: HashMap<Uuid, &Delivered> = HashMap::new();
    let mut repeats = Vec::new();
    for delivery in delivered.iter().filter(|delivery| first.contains_key(&delivery.id)) {
        if let Some(before) = last.insert(delivery.id, delivery) {
            repeats.push(Repeated {
                id: delivery.id,
                before: (before.at, before.relay.clone()),
                again: (delivery.at, delivery.relay.clone()),
            });
        }
    }
    let total = repeats.len();
    let repeats = match excuse {
        Excuse::None => repeats,
        Excuse::All => Vec::new(),
        Excuse::Kills { at, each } => after_kills(repeats, at, *each),
    };
    let excused = total - repeats.len();
    (repeats, excused)
}

/// Gives each kill, from the first to the last, those repeats around it that end soonest: no other
/// choice excuses more.
fn after_kills(mut repeats: Vec<Repeated>, kills: &[u64], each: usize) -> Vec<Repeated> {
    repeats.sort_by_key(|repeat| repeat.before.0);
    let mut excused = vec![false; repeats.len()];
    let mut around: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut next = 0;
    for kill in kills {
        while next < repeats.len() && repeats[next].before.0 <= *kill {
            around.push(Reverse((repeats[next].again.0, next)));
            next += 1;
        }
        let mut left = each;
        while left > 0
            && let Some(Reverse((again, index))) = around.pop()
        {
            if again >= *kill {
                excused[index] = true;
                left -= 1;
            }
        }
    }
    let mut excused = excused.into_iter();
    repeats.retain(|_| !excused.next().unwrap_or_default());
    repeats.sort_by_key(|repeat| (repeat.again.0, repeat.id));
    repeats
}
