//! How often lanes have passed from one state to another, for a simulation that wants to have met all of that.
//!
//! Counted for the thread, not for a relay: what a relay did that was killed counts, too. Only with the feature
//! `transitions`: a relay in production counts nothing here.

use std::cell::Cell;

use super::lane::Block;

/// The states of a lane, in the order of the counts.
pub const STATES: [&str; 5] = ["absent", "open", "waiting", "parked", "releasing"];

/// How often a lane has passed from the first state to the second.
pub type Counts = [[u64; STATES.len()]; STATES.len()];

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new([[0; STATES.len()]; STATES.len()]) };
}

/// What was counted on this thread since this was last asked.
pub fn take() -> Counts {
    COUNTS.take()
}

pub(super) fn count(from: Option<Block>, to: Option<Block>) {
    let place = |block: Option<Block>| match block {
        None => 0,
        Some(Block::Open) => 1,
        Some(Block::Waiting) => 2,
        Some(Block::Parked) => 3,
        Some(Block::Releasing) => 4,
    };
    if from != to {
        let mut counts = COUNTS.get();
        counts[place(from)][place(to)] += 1;
        COUNTS.set(counts);
    }
}
