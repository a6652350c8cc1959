//! What applications see, on real databases and brokers. One program for most: each more is linked for
//! itself. What listens to all that is logged has a program of its own.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod brokers;

mod claims;

mod delivery;

mod dependencies;

mod destinations;

mod domain;

mod ended;

mod global;

mod held_back;

mod hooks;

mod inbox;

mod metrics;

mod outages;

mod pauses;

mod plain_sql;

mod progress;

mod renamed;

mod sharing;

mod stalls;

mod testing;

mod typed;
