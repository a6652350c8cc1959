//! A schedule: everything that a seed decides before the first event is written.

use std::{fmt, time::Duration};

use fastrand::Rng;
use posthaste_core::store::RelayOrdering;
use posthaste_relay::OnDead;

/// What one simulation is made of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed that everything comes from, the luck of each process included.
    pub seed: u64,
    /// How relays divide the work.
    pub ordering: RelayOrdering,
    /// What happens to a key's later events when one dies.
    pub on_dead: OnDead,
    /// Sent events are deleted, not kept.
    pub deletes_sent: bool,
    /// Shards of the outbox.
    pub shards: u16,
    /// Relays.
    pub relays: usize,
    /// Destinations.
    pub destinations: usize,
    /// What a destination can have accepted of a batch that fails.
    pub acceptance: [Accepts; 3],
    /// Ordering keys.
    pub keys: usize,
    /// Writers.
    pub writers: usize,
    /// How many of them write in the process of a relay, and tell it what they commit.
    pub hot: usize,
    /// Writers write some events a second time.
    pub repeats: bool,
    /// Events that the writers enqueue together.
    pub events: usize,
    /// For how long accidents happen.
    pub length: Duration,
    /// Which fates events have.
    pub fates: Vec<Fate>,
    /// What happens, in the order of time.
    pub accidents: Vec<Accident>,
}

/// How a destination takes batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepts {
    /// One event at a time.
    One,
    /// Several, and any of them can fail.
    Any,
    /// Several, a prefix of each key.
    Prefix,
    /// All or none, but for what is refused for what it is.
    Atomic,
}

/// What is special about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Nothing.
    Plain,
    /// It fails this often, and is taken then.
    Fails(u32),
    /// It always fails.
    Poison,
    /// It is refused for good.
    Refused,
    /// It takes so many milliseconds.
    Slow(u32),
    /// The first try is never answered.
    Hangs,
    /// The transport panics over it this often.
    Panics(u32),
    /// It kills the process that dispatches it this often.
    Kills(u32),
    /// It is due only after so many milliseconds.
    Delayed(u32),
    /// It is large.
    Large,
}

impl Fate {
    /// All fates.
    pub const ALL: [Self; 10] = [
        Self::Plain,
        Self::Fails(2),
        Self::Poison,
        Self::Refused,
        Self::Slow(700),
        Self::Hangs,
        Self::Panics(1),
        Self::Kills(1),
        Self::Delayed(4_000),
        Self::Large,
    ];

    /// Its name, without numbers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "Plain",
            Self::Fails(_) => "Fails",
            Self::Poison => "Poison",
            Self::Refused => "Refused",
            Self::Slow(_) => "Slow",
            Self::Hangs => "Hangs",
            Self::Panics(_) => "Panics",
            Self::Kills(_) => "Kills",
            Self::Delayed(_) => "Delayed",
            Self::Large => "Large",
        }
    }
}

/// Something that happens at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accident {
    /// When, in milliseconds since the beginning.
    pub at: u64,
    /// What.
    pub what: What,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A relay's process dies, and another one takes its place after so many milliseconds.
    Crash {
        /// Which relay.
        relay: usize,
        /// For how long it is gone.
        down: u64,
    },
    /// A relay stops and starts again.
    Restart {
        /// Which relay.
        relay: usize,
    },
    /// A relay's process stands still.
    Freeze {
        /// Which relay.
        relay: usize,
        /// For how long.
        ms: u64,
    },
    /// A relay loses answers of the database.
    Lose {
        /// Which relay.
        relay: usize,
        /// How many.
        calls: u32,
        /// The calls have their effect.
        happens: bool,
        /// The answers never come; otherwise the connection breaks at once.
        silent: bool,
    },
    /// A relay's network is slow.
    Slow {
        /// Which relay.
        relay: usize,
        /// How long a call takes at most, each way.
        latency: u64,
        /// For how long.
        ms: u64,
    },
    /// Nobody reaches the database.
    CutOff {
        /// For how long.
        ms: u64,
    },
    /// Another server takes over, which lacks the last commits.
    FailOver {
        /// Of how many milliseconds.
        lost: u64,
    },
    /// The database's clock jumps by so many milliseconds.
    ClockJump {
        /// By how much: forward, or back if it is negative.
        by: i64,
    },
    /// A destination is down.
    Outage {
        /// Which destination.
        destination: usize,
        /// How it shows.
        how: Down,
        /// For how long.
        ms: u64,
    },
    /// Somebody locks rows of events that are under way.
    Lock {
        /// For how long.
        ms: u64,
    },
    /// A transaction that writes events stays open.
    LongTransaction {
        /// How many events.
        events: usize,
        /// For how long.
        ms: u64,
        /// It rolls back in the end.
        rolls_back: bool,
    },
    /// An operator pauses something.
    Pause {
        /// What.
        what: Paused,
        /// For how long.
        ms: u64,
    },
    /// An operator replays dead events.
    ReplayDead,
    /// An operator replays events that were sent.
    ReplaySent,
    /// An operator discards dead events.
    DiscardDead,
    /// An operator discards an event that waits.
    DiscardWaiting,
    /// An operator deletes all that has ended.
    Purge,
    /// A relay starts again with other settings.
    Settings {
        /// Which relay.
        relay: usize,
        /// Which settings.
        settings: Settings,
    },
    /// Routes change: destinations swap what they get. All relays restart, one after the other.
    Reroute,
}

/// Settings of a relay that can differ from those of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// See [`Config::batch`](posthaste_relay::Config::batch).
    pub batch: usize,
    /// See [`Config::concurrency`](posthaste_relay::Config::concurrency).
    pub concurrency: usize,
    /// See [`Config::cold_queue`](posthaste_relay::Config::cold_queue).
    pub cold_queue: usize,
    /// See [`Config::blocked_lanes`](posthaste_relay::Config::blocked_lanes).
    pub blocked_lanes: usize,
    /// See [`Config::on_dead`](posthaste_relay::Config::on_dead). `None`: as the plan says.
    pub on_dead: Option<OnDead>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { batch: 8, concurrency: 4, cold_queue: 32, blocked_lanes: 16, on_dead: None }
    }
}

/// How a destination that is down shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// It refuses connections.
    Refuses,
    /// It never answers.
    Hangs,
    /// It takes events and never says so.
    SwallowsAnswers,
    /// It fails every event by itself.
    Fails,
}

/// What an operator pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paused {
    /// Everything.
    Outbox,
    /// A relay.
    Relay(usize),
    /// A destination.
    Destination(usize),
    /// A key.
    Key(usize),
}

impl Paused {
    /// Its name, without numbers.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Outbox => "Outbox",
            Self::Relay(_) => "Relay",
            Self::Destination(_) => "Destination",
            Self::Key(_) => "Key",
        }
    }
}

/// The kinds of accidents, of which each seed uses some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A process is killed.
    Crash,
    /// A relay stops and starts again.
    Restart,
    /// A process stands still.
    Freeze,
    /// Answers of the database are lost.
    Lose,
    /// A network is slow.
    Slow,
    /// Nobody reaches the database.
    CutOff,
    /// Another server takes over.
    FailOver,
    /// The database's clock jumps.
    ClockJump,
    /// A destination is down.
    Outage,
    /// Rows are locked.
    Lock,
    /// A transaction stays open.
    LongTransaction,
    /// An operator pauses something.
    Pause,
    /// An operator replays events.
    Replay,
    /// An operator discards events.
    Discard,
    /// Routes change.
    Reroute,
    /// An operator purges.
    Purge,
    /// A relay gets other settings.
    Settings,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 17] = [
        Self::Crash,
        Self::Restart,
        Self::Freeze,
        Self::Lose,
        Self::Slow,
        Self::CutOff,
        Self::FailOver,
        Self::ClockJump,
        Self::Outage,
        Self::Lock,
        Self::LongTransaction,
        Self::Pause,
        Self::Replay,
        Self::Discard,
        Self::Reroute,
        Self::Purge,
        Self::Settings,
    ];
}

impl What {
    /// Of which kind it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Crash { .. } => Kind::Crash,
            Self::Restart { .. } => Kind::Restart,
            Self::Freeze { .. } => Kind::Freeze,
            Self::Lose { .. } => Kind::Lose,
            Self::Slow { .. } => Kind::Slow,
            Self::CutOff { .. } => Kind::CutOff,
            Self::FailOver { .. } => Kind::FailOver,
            Self::ClockJump { .. } => Kind::ClockJump,
            Self::Outage { .. } => Kind::Outage,
            Self::Lock { .. } => Kind::Lock,
            Self::LongTransaction { .. } => Kind::LongTransaction,
            Self::Pause { .. } => Kind::Pause,
            Self::ReplayDead | Self::ReplaySent => Kind::Replay,
            Self::DiscardDead | Self::DiscardWaiting => Kind::Discard,
            Self::Reroute => Kind::Reroute,
            Self::Purge => Kind::Purge,
            Self::Settings { .. } => Kind::Settings,
        }
    }
}

impl Plan {
    /// The plan of a seed. Each seed uses some kinds of accidents and some fates only: with all of them at
    /// once, each would hide what the others do.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ordering = match rng.u32(..10) {
            0 => RelayOrdering::Global,
            1 | 2 => RelayOrdering::None,
            _ => RelayOrdering::PerKey,
        };
        let length = rng.u64(20_000..60_000);
        let mut plan = Self {
            seed,
            ordering,
            on_dead: if rng.u32(..4) == 0 { OnDead::Park } else { OnDead::Skip },
            deletes_sent: rng.u32(..4) == 0,
            shards: [1, 2, 4, 8][rng.usize(..4)],
            relays: rng.usize(3..=5),
            destinations: rng.usize(1..=3),
            acceptance: std::array::from_fn(|_| {
                [Accepts::One, Accepts::Any, Accepts::Prefix, Accepts::Atomic][rng.usize(..4)]
            }),
            keys: [1, 3, 10, 40][rng.usize(..4)],
            writers: rng.usize(1..=4),
            hot: 0,
            repeats: false,
            events: rng.usize(150..400),
            length: Duration::from_millis(length),
            fates: Vec::new(),
            accidents: Vec::new(),
        };
        plan.hot = rng.usize(..=plan.writers);
        plan.repeats = rng.u32(..3) == 0;
        plan.fates = some(&mut rng, &Fate::ALL);
        let kinds = some(&mut rng, &Kind::ALL);
        let accidents = rng.usize(8..24);
        for _ in 0..accidents {
            if let Some(kind) = rng.choice(&kinds) {
                let (at, what) = (rng.u64(500..length), plan.accident(*kind, &mut rng));
                plan.accidents.push(Accident { at, what });
            }
        }
        plan.accidents.sort_by_key(|accident| accident.at);
        // Each at a time of its own, by which it is known.
        for next in 1..plan.accidents.len() {
            let before = plan.accidents[next - 1].at;
            plan.accidents[next].at = plan.accidents[next].at.max(before + 1);
        }
        plan
    }

    /// The plan without its accidents.
    pub(crate) fn settings(&self) -> Self {
        Self { accidents: Vec::new(), ..self.clone() }
    }

    fn accident(&self, kind: Kind, rng: &mut Rng) -> What {
        let relay = rng.usize(..self.relays);
        let destination = rng.usize(..self.destinations);
        match kind {
            Kind::Crash => What::Crash { relay, down: rng.u64(100..8_000) },
            Kind::Restart => What::Restart { relay },
            Kind::Freeze => What::Freeze { relay, ms: rng.u64(100..20_000) },
            Kind::Lose => {
                What::Lose { relay, calls: rng.u32(1..4), happens: rng.bool(), silent: rng.bool() }
            }
            Kind::Slow => {
                What::Slow { relay, latency: rng.u64(50..1_500), ms: rng.u64(500..6_000) }
            }
            Kind::CutOff => What::CutOff { ms: rng.u64(100..15_000) },
            Kind::FailOver => What::FailOver { lost: rng.u64(1..3_000) },
            // No further: see the known faults in docs/simulation.md.
            Kind::ClockJump => What::ClockJump { by: rng.i64(0..50) },
            Kind::Outage => What::Outage {
                destination,
                how: [Down::Refuses, Down::Hangs, Down::SwallowsAnswers, Down::Fails]
                    [rng.usize(..4)],
                ms: rng.u64(200..15_000),
            },
            Kind::Lock => What::Lock { ms: rng.u64(100..12_000) },
            Kind::LongTransaction => What::LongTransaction {
                events: rng.usize(1..60),
                ms: rng.u64(500..25_000),
                rolls_back: rng.u32(..3) == 0,
            },
            Kind::Pause => What::Pause {
                what: match rng.u32(..4) {
                    0 => Paused::Outbox,
                    1 => Paused::Relay(relay),
                    2 => Paused::Destination(destination),
                    _ => Paused::Key(rng.usize(..self.keys)),
                },
                ms: rng.u64(200..12_000),
            },
            Kind::Replay if rng.bool() => What::ReplayDead,
            Kind::Replay => What::ReplaySent,
            Kind::Discard if rng.bool() => What::DiscardDead,
            Kind::Discard => What::DiscardWaiting,
            Kind::Reroute => What::Reroute,
            Kind::Purge => What::Purge,
            Kind::Settings => What::Settings {
                relay,
                settings: Settings {
                    batch: [2, 8, 30][rng.usize(..3)],
                    concurrency: [1, 4, 16][rng.usize(..3)],
                    cold_queue: [4, 32, 200][rng.usize(..3)],
                    blocked_lanes: [2, 16, 100][rng.usize(..3)],
                    on_dead: [None, Some(OnDead::Skip), Some(OnDead::Park)][rng.usize(..3)],
                },
            },
        }
    }
}

/// Some of these, two at least.
fn some<T: Copy>(rng: &mut Rng, all: &[T]) -> Vec<T> {
    let mut all = all.to_vec();
    rng.shuffle(&mut all);
    let count = rng.usize(2..=all.len().min(7));
    all.truncate(count);
    all
}

impl fmt::Display for Accident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8.3} s  {:?}", self.at as f64 / 1000.0, self.what)
    }
}
