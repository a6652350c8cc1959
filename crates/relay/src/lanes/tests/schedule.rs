//! Random schedules: writes, reads that linger, outcomes, settles that linger, crashes and
//! hand-overs, in any order, against a model of the table.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    Fresh,
    Waits(Wait),
    Sent,
    Dead,
}

#[derive(Debug, Clone)]
struct Stored {
    key: u8,
    stand: Stand,
    attempts: u32,
}

/// A read under way: its number, what it looks for, what it saw, and how far it went (for the hot
/// path: the key's previous event).
type Reading = (u64, Origin, Option<LaneId>, Vec<Fetched>, i64);

/// The table, the relay's lanes, and everything that is under way between them.
struct World {
    table: BTreeMap<i64, Stored>,
    on_dead: OnDead,
    lanes: Lanes,
    cursor: i64,
    /// What a crash leaves for the next owner.
    mark: i64,
    reads: VecDeque<Reading>,
    in_flight: Vec<i64>,
    settling: Option<Vec<Unsettled>>,
    /// Order of first acknowledgements.
    acknowledged: Vec<i64>,
}

impl World {
    fn new(on_dead: OnDead) -> Self {
        let mut world = Self {
            table: BTreeMap::new(),
            on_dead,
            lanes: Lanes::new(rules(on_dead, false)),
            cursor: 0,
            mark: 0,
            reads: VecDeque::new(),
            in_flight: Vec::new(),
            settling: None,
            acknowledged: Vec::new(),
        };
        world.lanes.open_shard(0, None);
        world
    }

    fn fetched(&self, sequence: i64) -> Fetched {
        let stored = &self.table[&sequence];
        let wait = match stored.stand {
            Stand::Waits(wait) => Some(wait),
            _ => None,
        };
        Fetched { attempts: stored.attempts, wait, ..row(sequence, stored.key) }
    }

    fn write(&mut self, key: u8) {
        let sequence = self.table.len() as i64 + 1;
        self.table.insert(sequence, Stored { key, stand: Stand::Fresh, attempts: 0 });
    }

    fn begin_read(&mut self, origin: Origin) {
        let wanted = |stored: &Stored| match origin {
            Origin::Cold | Origin::Hot => stored.stand == Stand::Fresh,
            Origin::Due => matches!(stored.stand, Stand::Waits(Wait::Retry | Wait::Suspect)),
            Origin::Held => false,
        };
        let from = if origin == Origin::Cold { self.cursor } else { 0 };
        let rows: Vec<Fetched> = self
            .table
            .range(from + 1..)
            .filter(|(_, stored)| wanted(stored))
            .map(|(sequence, _)| self.fetched(*sequence))
            .take(4)
            .collect();
        let until = rows.last().map_or(from, |row| row.sequence);
        let read = self.lanes.read_began();
        self.reads.push_back((read, origin, None, rows, until));
    }

    /// The hot path: one row by its key, only when the previous one is settled or in hand.
    fn begin_hot(&mut self, pick: usize) {
        let fresh: Vec<i64> = self
            .table
            .iter()
            .filter(|(_, stored)| stored.stand == Stand::Fresh)
            .map(|(sequence, _)| *sequence)
            .collect();
        let Some(sequence) = fresh.get(pick % fresh.len().max(1)).copied() else { return };
        let read = self.lanes.read_began();
        let key = self.table[&sequence].key;
        let previous = self
            .table
            .range(..sequence)
            .rev()
            .find(|(_, stored)| stored.key == key)
            .filter(|(_, stored)| !matches!(stored.stand, Stand::Sent | Stand::Dead))
            .map_or(0, |(sequence, _)| *sequence);
        self.reads.push_back((read, Origin::Hot, None, vec![self.fetched(sequence)], previous));
    }

    fn begin_release(&mut self) {
        for (lane, _) in self.lanes.next_releases() {
            let rows = self
                .table
                .iter()
                .filter(|(_, stored)| {
                    stored.stand == Stand::Waits(Wait::Held) && i64::from(stored.key) == lane.key.0
                })
                .map(|(sequence, _)| self.fetched(*sequence))
                .take(RELEASE_LIMIT)
                .collect();
            let read = self.lanes.read_began();
            self.reads.push_back((read, Origin::Held, Some(lane), rows, 0));
        }
    }

    fn merge_read(&mut self, pick: usize) {
        if self.reads.is_empty() {
            return;
        }
        let Some((read, origin, lane, rows, until)) = self.reads.remove(pick % self.reads.len())
        else {
            return;
        };
        match (origin, lane) {
            (Origin::Held, Some(lane)) => self.lanes.released(lane, Some(rows)),
            (Origin::Hot, _) => {
                if until == 0 || self.lanes.in_hand(until) {
                    for row in rows {
                        self.lanes.offer(row, origin, None);
                    }
                }
            }
            _ => {
                for row in rows {
                    self.lanes.offer(row, origin, None);
                }
                if origin == Origin::Cold {
                    self.cursor = self.cursor.max(until);
                }
            }
        }
        self.lanes.read_merged(read);
    }

    fn dispatch(&mut self, max: usize) {
        for envelope in self.lanes.next_batch(max, i64::MAX).0 {
            let sequence = envelope.sequence;
            let key = self.table[&sequence].key;
            for (earlier, stored) in self.table.range(..sequence).filter(|(_, s)| s.key == key) {
                assert!(
                    stored.stand == Stand::Dead || self.acknowledged.contains(earlier),
                    "{sequence} was handed over before {earlier} ({:?})",
                    stored.stand
                );
            }
            self.in_flight.push(sequence);
        }
    }

    fn outcome(&mut self, pick: usize, kind: usize) {
        if self.in_flight.is_empty() {
            return;
        }
        let sequence = self.in_flight.swap_remove(pick % self.in_flight.len());
        let outcome = match kind % 8 {
            0 => Outcome::retry("no"),
            1 => Outcome::dead("never"),
            2 => Outcome::Retry { error: String::new(), after: Some(Duration::ZERO) },
            _ => Outcome::Delivered,
        };
        if outcome == Outcome::Delivered && !self.acknowledged.contains(&sequence) {
            self.acknowledged.push(sequence);
        }
        self.lanes.outcome(sequence, outcome);
    }

    fn begin_settle(&mut self) {
        if self.settling.is_some() {
            return;
        }
        let batch = self.lanes.next_settlements(3);
        for unsettled in &batch {
            let settlement = &unsettled.settlement;
            let Some(stored) = self.table.get_mut(&settlement.sequence) else { continue };
            if matches!(stored.stand, Stand::Sent | Stand::Dead) {
                continue;
            }
            stored.attempts = settlement.attempts;
            stored.stand = match &settlement.verdict {
                Verdict::Sent => Stand::Sent,
                Verdict::Retry { .. } => Stand::Waits(Wait::Retry),
                // The operator of this world discards what parks a lane at once.
                Verdict::Dead { .. } => Stand::Dead,
                Verdict::Held { .. } => Stand::Waits(Wait::Held),
                Verdict::Suspect { .. } => Stand::Waits(Wait::Suspect),
                Verdict::Unclaimed => Stand::Fresh,
            };
        }
        self.settling = Some(batch);
    }

    fn end_settle(&mut self) {
        if let Some(batch) = self.settling.take() {
            self.lanes.settled(batch.iter().map(|unsettled| unsettled.settlement.sequence));
            if self.on_dead == OnDead::Park {
                self.nudge();
            }
        }
    }

    /// What an operator's discard leaves for the due read: the first held follower of each lane
    /// whose head is gone.
    fn nudge(&mut self) {
        let mut seen = BTreeSet::new();
        let held: Vec<i64> = self
            .table
            .iter()
            .filter(|(_, stored)| !matches!(stored.stand, Stand::Sent | Stand::Dead))
            .filter(|(_, stored)| seen.insert(stored.key))
            .filter(|(_, stored)| stored.stand == Stand::Waits(Wait::Held))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in held {
            self.lanes.offer(self.fetched(sequence), Origin::Due, None);
        }
    }

    fn save_mark(&mut self) {
        self.mark = self.lanes.mark(self.cursor);
    }

    /// The relay dies and another takes over: from the mark, with what the table says is blocked.
    fn crash(&mut self) {
        self.lanes = Lanes::new(rules(self.on_dead, false));
        let last = self.table.keys().last().copied();
        self.lanes.open_shard(0, last);
        self.cursor = self.mark;
        self.reads.clear();
        self.in_flight.clear();
        self.settling = None;
        let mut blocked: BTreeMap<u8, bool> = BTreeMap::new();
        for stored in self.table.values() {
            match stored.stand {
                Stand::Waits(Wait::Held) => {
                    blocked.entry(stored.key).or_default();
                }
                Stand::Waits(_) => {
                    blocked.insert(stored.key, true);
                }
                _ => {}
            }
        }
        for (key, waiting) in blocked {
            let lane = Blocked {
                destination: "there".to_owned(),
                key: Key(i64::from(key)),
                waiting,
                parked: false,
            };
            self.lanes.block(0, &lane);
        }
    }

    /// Lets everything end well, and checks that nothing is left.
    fn finish(&mut self) {
        for _ in 0..2_000 {
            self.begin_read(Origin::Cold);
            self.begin_read(Origin::Due);
            self.begin_release();
            while !self.reads.is_empty() {
                self.merge_read(0);
            }
            self.dispatch(10);
            while !self.in_flight.is_empty() {
                self.outcome(0, 7);
            }
            self.begin_settle();
            self.end_settle();
            if self.on_dead == OnDead::Park {
                self.nudge();
            }
            let done = |stored: &Stored| matches!(stored.stand, Stand::Sent | Stand::Dead);
            if self.table.values().all(done) && self.lanes.is_idle() {
                assert_eq!(self.lanes.in_memory(), 0, "entries stayed behind");
                return;
            }
        }
        panic!("never came to an end: {:?}", self.table);
    }
}

fn act(world: &mut World, action: u8, pick: u8) {
    let pick = usize::from(pick);
    match action % 16 {
        0 | 1 => world.write((pick % 3) as u8),
        2 | 3 => world.begin_read(Origin::Cold),
        4 => world.begin_read(Origin::Due),
        5 => world.begin_release(),
        6 => world.begin_hot(pick),
        7 | 8 => world.merge_read(pick),
        9 | 10 => world.dispatch(1 + pick % 4),
        11 | 12 => world.outcome(pick, pick / 7),
        13 => world.begin_settle(),
        14 => world.end_settle(),
        _ if pick < 32 => world.crash(),
        _ => world.save_mark(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_schedule_keeps_order_and_loses_nothing(
        actions in prop::collection::vec((any::<u8>(), any::<u8>()), 1..300),
        park in any::<bool>(),
    ) {
        let mut world = World::new(if park { OnDead::Park } else { OnDead::Skip });
        for (action, pick) in actions {
            act(&mut world, action, pick);
        }
        world.finish();
    }
}
