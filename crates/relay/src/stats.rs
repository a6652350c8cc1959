//! What a relay has done and how it stands, for status, tests and metrics.

/// Counters since the start, and gauges of the present.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Events that their destination acknowledged.
    pub delivered: u64,
    /// Failures that will be tried again.
    pub retried: u64,
    /// Events given up on.
    pub dead: u64,
    /// Answers that the destination takes nothing for now.
    pub unavailable: u64,
    /// Outcomes that were refused because the lease was lost.
    pub stale_settles: u64,
    /// Events that came over the hot path.
    pub hot_enqueued: u64,
    /// Events that found the hot queue full and were left to the poller.
    pub hot_dropped: u64,
    /// Events that came from polls.
    pub cold_enqueued: u64,
    /// Followers that were marked held behind a blocked event.
    pub held: u64,
    /// Attempts recorded before dispatch after an unclean takeover.
    pub suspects: u64,
    /// Times a destination's breaker opened.
    pub breakers_opened: u64,
    /// Destinations that take nothing now.
    pub breakers_open: u16,
    /// Polls of the database.
    pub polls: u64,
    /// Times the database could not be reached.
    pub database_errors: u64,
    /// Shards owned now.
    pub shards_owned: u16,
    /// Shards of the outbox.
    pub shards: u16,
    /// Events in memory now.
    pub in_memory: usize,
    /// Bytes of events in memory now, all copies counted, as far as [`Config::memory`](crate::Config)
    /// limits them.
    pub memory: usize,
    /// Those of the events in memory that came over the hot path and wait for their turn.
    pub hot_queue: usize,
    /// Those that came from polls and wait for their turn.
    pub cold_queue: usize,
    /// Half of the deliveries of the last seconds took less, in milliseconds from insert to
    /// acknowledgement; `None` when there were none.
    pub delivery_p50_ms: Option<f64>,
    /// 95 of 100 took less.
    pub delivery_p95_ms: Option<f64>,
    /// Events that could be handed over and are not, for no reason that the relay knows.
    pub stalled: usize,
    /// For how many seconds the first of them; `None` when there is none.
    pub stall_age_s: Option<f64>,
    /// This relay keeps house for the outbox.
    pub housekeeper: bool,
    /// It is switched off, or an operator has paused it, alone or with the whole outbox.
    pub paused: bool,
    /// Everything that was visible has been read and nothing is under way.
    pub idle: bool,
}
