//! Promises under kills, pauses and late commits, by processes on real databases. One program for all: each
//! more is linked for itself.

mod churn;

mod failover;

mod hot_and_cold;

mod late_bulk;

mod late_commits;

mod paused;

mod poison;

mod replays;

mod servers;

mod shares;

mod strides;

mod swallowed;

mod takeover;

mod without_md5;
