//! Outcomes: what becomes of an event, and of its lane.

use std::time::{Duration, Instant};

use posthaste_core::{backoff::LONGEST_WAIT, store::Verdict, transport::Outcome};

use super::{
    LaneId, Lanes, State, Then, UNAVAILABLE_WAIT,
    lane::{Block, Lane},
    unsettled,
};
use crate::OnDead;

impl Lanes {
    /// The transport has answered for a batch, in its order.
    pub fn published(&mut self, outcomes: Vec<(i64, Outcome)>, now: Instant) {
        let Some(destination) =
            outcomes.iter().find_map(|(sequence, _)| Some(self.known.get(sequence)?.destination))
        else {
            return;
        };
        let mut failed: Vec<LaneId> = Vec::new();
        for (sequence, outcome) in outcomes {
            let lane = self.known.get(&sequence).and_then(|entry| entry.lane);
            let delivered = outcome == Outcome::Delivered;
            let follows_failed = lane.is_some_and(|lane| failed.contains(&lane));
            self.outcome(sequence, within_a_year(outcome), follows_failed, now);
            if !delivered {
                failed.extend(lane);
            }
        }
        self.judge(destination, now);
    }

    fn outcome(&mut self, sequence: i64, outcome: Outcome, follows_failed: bool, now: Instant) {
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        let (destination, started, lane) = (entry.destination, entry.started, entry.lane);
        match entry.state {
            State::InFlight => {}
            State::Orphan => {
                self.in_flight -= 1;
                self.at(destination).in_flight -= 1;
                self.known.remove(&sequence);
                self.careful.done(sequence);
                self.stats.stale_settles += 1;
                return;
            }
            _ => return,
        }
        self.in_flight -= 1;
        entry.charge = None;
        let of = &mut self.destinations[usize::from(destination)];
        of.in_flight -= 1;
        self.careful.done(sequence);
        self.stats.unavailable += u64::from(matches!(outcome, Outcome::Unavailable { .. }));
        match outcome {
            Outcome::Delivered => {
                self.stats.delivered += 1;
                entry.state = State::Settling(Then::Leave);
                let unsettled = unsettled(sequence, entry, Verdict::Sent);
                self.settlements.push_back(unsettled);
                // The acknowledgement frees the lane, not its write: at worst it comes twice.
                if let Some(id) = lane {
                    self.lane_done(id);
                }
                self.answered(destination, sequence, started, now);
            }
            _ if self.rules.global => self.fail(sequence, outcome, false),
            outcome if follows_failed => self.failed(sequence, outcome, true, now),
            // Not tried (`Outcome::held`): it says nothing of its destination.
            Outcome::Retry { after: Some(Duration::ZERO), .. } => {
                self.fail(sequence, outcome, true);
            }
            Outcome::Dead { .. } | Outcome::Retry { after: Some(_), .. } => {
                self.fail(sequence, outcome, true);
                self.answered(destination, sequence, started, now);
            }
            Outcome::Retry { .. } | Outcome::TimedOut { .. } | Outcome::Unavailable { .. } => {
                self.failed(sequence, outcome, false, now);
            }
        }
    }

    /// The failure is the event's own. With `others_succeed` it counts even if the destination said
    /// that it takes nothing, unless it named a time.
    pub(super) fn fail(&mut self, sequence: i64, outcome: Outcome, others_succeed: bool) {
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        match outcome {
            Outcome::Delivered => {}
            Outcome::Dead { error } => self.die(sequence, error),
            Outcome::Retry { error, after: Some(after) }
            | Outcome::Unavailable { error, after: Some(after) } => {
                entry.attempts -= entry.recorded.attempts();
                self.retry(sequence, after, error);
            }
            Outcome::Unavailable { error, after: None } if !others_succeed => {
                entry.attempts -= entry.recorded.attempts();
                self.retry(sequence, UNAVAILABLE_WAIT, error);
            }
            Outcome::Retry { error, after: None }
            | Outcome::TimedOut { error }
            | Outcome::Unavailable { error, after: None } => {
                let failures = entry.attempts + 1 - entry.recorded.attempts();
                entry.attempts = failures;
                if failures >= self.rules.max_attempts {
                    self.die_counted(sequence, error);
                } else {
                    let after = (self.rules.wait)(failures);
                    self.retry(sequence, after, error);
                }
            }
        }
    }

    fn retry(&mut self, sequence: i64, after: Duration, error: String) {
        self.stats.retried += 1;
        self.write_back(sequence, after, error);
    }

    /// It is written back with a time, and blocks its lane.
    pub(super) fn write_back(&mut self, sequence: i64, after: Duration, error: String) {
        self.leave_lane(sequence);
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        entry.state = State::Settling(Then::BlockLane);
        entry.charge = None;
        let (lane, shard) = (entry.lane, entry.shard);
        let verdict = Verdict::Retry {
            after,
            error,
            destination: self.destinations[usize::from(entry.destination)].rules.name.clone(),
            key: lane.map(|lane| lane.key),
            replay: entry.replay,
        };
        let unsettled = unsettled(sequence, entry, verdict);
        self.settlements.push_back(unsettled);
        if let Some(id) = lane {
            self.lanes.entry(id).or_insert_with(|| Lane::new(shard));
            self.block_lane(id, Block::Waiting);
        }
    }

    pub(super) fn die(&mut self, sequence: i64, error: String) {
        if let Some(entry) = self.known.get_mut(&sequence) {
            entry.attempts += 1 - entry.recorded.attempts();
        }
        self.die_counted(sequence, error);
    }

    pub(super) fn die_counted(&mut self, sequence: i64, error: String) {
        self.stats.dead += 1;
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        let lane = entry.lane;
        let parks = self.rules.on_dead == OnDead::Park;
        if parks {
            self.leave_lane(sequence);
        }
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        entry.charge = None;
        // A lane passes a dead event only after the fenced write of that death succeeded.
        entry.state = State::Settling(match lane {
            Some(_) if parks => Then::BlockLane,
            _ => Then::AdvanceLane,
        });
        let verdict = Verdict::Dead {
            error,
            destination: self.destinations[usize::from(entry.destination)].rules.name.clone(),
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
        lane.held |= lane.block == Block::Releasing;
        lane.turn(block);
        lane.written = None;
        lane.held_from = 0;
        lane.due = false;
        if self.rules.global {
            return;
        }
        self.hold_queue(id);
    }

    /// Whatever waits in the lane is marked held and leaves the memory.
    pub(super) fn hold_queue(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        for follower in std::mem::take(&mut lane.queue) {
            self.leave_queue(follower.sequence);
            self.hold_follower(id, follower.sequence);
        }
    }

    /// A follower of what blocks the lane is marked held and leaves the memory.
    pub(super) fn hold_follower(&mut self, id: LaneId, sequence: i64) {
        let (Some(entry), Some(lane)) = (self.known.get_mut(&sequence), self.lanes.get_mut(&id))
        else {
            return;
        };
        lane.held = true;
        if entry.held {
            // It never stopped being held in the database.
            self.leave(sequence, true);
            return;
        }
        lane.holds += 1;
        entry.state = State::Settling(Then::Hold);
        entry.charge = None;
        let verdict = Verdict::Held {
            destination: self.destinations[usize::from(id.destination)].rules.name.clone(),
            key: id.key,
        };
        let unsettled = unsettled(sequence, entry, verdict);
        // In order: a relay that dies between two of these writes must leave the later ones to the
        // cursor, not the earlier ones.
        let mut at = self.settlements.len();
        for (index, other) in self.settlements.iter().enumerate().rev() {
            if other.settlement.verdict == unsettled.settlement.verdict {
                if other.settlement.sequence < sequence {
                    break;
                }
                at = index;
            }
        }
        self.settlements.insert(at, unsettled);
        self.stats.held += 1;
    }

    /// The lane's head is out of the way.
    pub(super) fn lane_done(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.in_flight = lane.in_flight.saturating_sub(1);
        if self.rules.global {
            lane.turn(Block::Open);
        }
        if lane.in_flight > 0 {
            return;
        }
        if !lane.queue.is_empty() {
            if !self.rules.global && self.is_paused(Some(id.key)) {
                self.hold_lane(id);
            } else {
                self.schedule(id);
            }
            return;
        }
        match lane.block {
            Block::Waiting | Block::Parked if lane.held => {
                lane.turn(Block::Releasing);
                lane.read_anew();
                self.request_release(id);
            }
            Block::Releasing if lane.more.is_some() => self.request_release(id),
            Block::Releasing if lane.reading.is_some() => {}
            _ if lane.holds == 0 => {
                self.drop_lane(id);
            }
            _ => lane.turn(Block::Releasing),
        }
    }
}

/// Its time, which a destination or a handler has named, can be added to a clock.
fn within_a_year(outcome: Outcome) -> Outcome {
    let cut = |after: Option<Duration>| after.map(|after| after.min(LONGEST_WAIT));
    match outcome {
        Outcome::Retry { error, after } => Outcome::Retry { error, after: cut(after) },
        Outcome::Unavailable { error, after } => Outcome::Unavailable { error, after: cut(after) },
        other => other,
    }
}
