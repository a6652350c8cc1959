//! Outcomes: what becomes of an event, and of its lane.

use std::time::Duration;

use posthaste_core::{
    store::{Settlement, Verdict},
    transport::Outcome,
};

use super::{LaneId, Lanes, State, Then, UNAVAILABLE_WAIT, Unsettled, lane::Block, unsettled};
use crate::OnDead;

impl Lanes {
    /// The transport has answered.
    pub fn outcome(&mut self, sequence: i64, outcome: Outcome) {
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        match entry.state {
            State::InFlight => {}
            State::Orphan => {
                self.in_flight -= 1;
                self.known.remove(&sequence);
                self.careful.done(sequence);
                self.stats.stale_settles += 1;
                return;
            }
            _ => return,
        }
        self.careful.done(sequence);
        match outcome {
            Outcome::Delivered => {
                self.stats.delivered += 1;
                self.in_flight -= 1;
                entry.state = State::Settling(Then::Leave);
                let lane = entry.lane;
                let unsettled = unsettled(sequence, entry, Verdict::Sent);
                self.settlements.push_back(unsettled);
                // The acknowledgement frees the lane, not its write: at worst it comes twice.
                if let Some(id) = lane {
                    self.lane_done(id);
                }
            }
            Outcome::Dead { error } => self.die(sequence, error),
            Outcome::Retry { error, after: None } => {
                let failures = entry.attempts + u32::from(!entry.recorded);
                entry.attempts = failures;
                if failures >= self.rules.max_attempts {
                    self.die_counted(sequence, error);
                } else {
                    let after = (self.rules.wait)(failures);
                    self.retry(sequence, after, error);
                }
            }
            Outcome::Retry { error, after: Some(after) } => {
                entry.attempts -= u32::from(entry.recorded);
                self.retry(sequence, after, error);
            }
            Outcome::Unavailable { error, after } => {
                entry.attempts -= u32::from(entry.recorded);
                self.retry(sequence, after.unwrap_or(UNAVAILABLE_WAIT), error);
            }
        }
    }

    pub(super) fn retry(&mut self, sequence: i64, after: Duration, error: String) {
        self.stats.retried += 1;
        self.in_flight -= 1;
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        entry.state = State::Settling(Then::BlockLane);
        let lane = entry.lane;
        let verdict = Verdict::Retry {
            after,
            error,
            destination: self.rules.destinations[0].clone(),
            key: lane.map(|lane| lane.key),
            replay: entry.replay,
        };
        let unsettled = unsettled(sequence, entry, verdict);
        self.settlements.push_back(unsettled);
        if let Some(id) = lane {
            self.block_lane(id, Block::Waiting);
        }
    }

    pub(super) fn die(&mut self, sequence: i64, error: String) {
        if let Some(entry) = self.known.get_mut(&sequence) {
            entry.attempts += u32::from(!entry.recorded);
        }
        self.die_counted(sequence, error);
    }

    pub(super) fn die_counted(&mut self, sequence: i64, error: String) {
        self.stats.dead += 1;
        self.in_flight -= 1;
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        let lane = entry.lane;
        let parks = self.rules.on_dead == OnDead::Park;
        // A lane passes a dead event only after the fenced write of that death succeeded.
        entry.state = State::Settling(match lane {
            Some(_) if parks => Then::BlockLane,
            _ => Then::AdvanceLane,
        });
        let verdict = Verdict::Dead {
            error,
            destination: self.rules.destinations[0].clone(),
            parked: lane.filter(|_| parks).map(|lane| lane.key),
        };
        let unsettled = unsettled(sequence, entry, verdict);
        self.settlements.push_back(unsettled);
        if let Some(id) = lane.filter(|_| parks) {
            self.block_lane(id, Block::Parked);
        }
    }

    /// The lane's head is stuck: its followers are marked held and leave the memory.
    pub(super) fn block_lane(&mut self, id: LaneId, block: Block) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.in_flight = false;
        lane.held |= lane.block == Block::Releasing;
        lane.block = block;
        lane.written = None;
        if self.rules.global {
            return;
        }
        for follower in std::mem::take(&mut lane.queue) {
            let Some(entry) = self.known.get_mut(&follower.sequence) else {
                continue;
            };
            let hot = entry.hot;
            if follower.held {
                // It never stopped being held in the database.
                self.known.remove(&follower.sequence);
            } else {
                entry.state = State::Settling(Then::Hold);
                lane.held = true;
                lane.holds += 1;
                self.settlements.push_back(Unsettled {
                    settlement: Settlement {
                        sequence: follower.sequence,
                        shard: entry.shard,
                        attempts: entry.attempts,
                        verdict: Verdict::Held {
                            destination: self.rules.destinations[usize::from(id.destination)]
                                .clone(),
                            key: id.key,
                        },
                    },
                    lease: entry.lease.clone(),
                });
                self.stats.held += 1;
            }
            let count = if hot { &mut self.waiting_hot } else { &mut self.waiting_cold };
            *count -= 1;
        }
    }

    /// The lane's head is out of the way.
    pub(super) fn lane_done(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.in_flight = false;
        if self.rules.global {
            lane.block = Block::Open;
        }
        if !lane.queue.is_empty() {
            self.schedule(id);
            return;
        }
        match lane.block {
            Block::Waiting | Block::Parked if lane.held => {
                lane.block = Block::Releasing;
                self.request_release(id);
            }
            Block::Releasing if lane.again => self.request_release(id),
            Block::Releasing if lane.reading => {}
            _ if lane.holds == 0 => {
                self.lanes.remove(&id);
            }
            _ => lane.block = Block::Releasing,
        }
    }
}
