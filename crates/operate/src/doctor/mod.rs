//! The doctor: what is wrong with an installation, and why one event is not delivered yet.
//!
//! It says what it knows, and how sure it is: where an event goes is known from the routes. Without them
//! it is known once the event has failed there, or when there is one destination.

mod words;

mod obstacles;

mod explain;

mod stalls;

mod examine;

mod memory;

pub use self::{
    examine::examine,
    explain::{Cause, Explanation, explain},
    memory::memory,
    stalls::{STALL_AFTER, StallLine, stalls},
};
