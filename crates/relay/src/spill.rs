//! Spill: with too many blocked lanes for the memory, the table is asked about the lanes of each page.

use std::{sync::Arc, time::Instant};

use posthaste_core::{
    Result,
    store::{Blocked, LaneKey},
};

use crate::{
    driver::{Done, Driver},
    read::{LANES, Survey, within},
};

/// How many heartbeats lie between two surveys of all blocked lanes.
const RESURVEY: u32 = 6;

impl Driver {
    /// Lanes that can be forgotten, when there are too many. To find them, all lanes are looked through: where
    /// none can, that is not done again soon.
    pub(crate) fn forgettable(&mut self, read: u64, most: usize, now: Instant) -> Vec<LaneKey> {
        let lanes = self.lanes.forgettable_lanes(read, most);
        if lanes.is_empty() && most > 0 {
            self.forget_at = now + self.config.heartbeat;
        }
        lanes
    }

    /// Forgets lanes that the table says are blocked, when there are too many. With an answer that was full of
    /// them there are more, otherwise others are asked for a little later.
    pub(crate) fn forget(&mut self, read: u64, blocked: &[Blocked], now: Instant) {
        if !self.lanes.is_crowded() {
            return;
        }
        let forgot = self.asking == 0 && self.lanes.forget(read, blocked);
        if let Some(survey) = self.survey.as_mut().filter(|_| forgot) {
            survey.finds_all = false;
        }
        if !forgot || blocked.len() < LANES {
            self.forget_at = self.forget_at.max(now + self.config.busy_interval);
        }
    }

    /// Few blocked lanes are left in memory: perhaps all of them have room there again.
    pub(crate) fn survey_again(&mut self, now: Instant) {
        if self.survey.is_some()
            || !self.lanes.is_spilled()
            || !self.lanes.has_room_for_lanes()
            || now < self.resurvey_at
        {
            return;
        }
        self.resurvey_at = now + self.config.heartbeat * RESURVEY;
        self.surveys += 1;
        self.survey = Some(Survey::new(self.surveys, self.shards.reading(), false, now));
    }

    /// Before a page is merged, the table is asked which of its lanes are blocked there and not in memory.
    /// The page comes back with the answer; until then its read is under way.
    pub(crate) fn ask_first(&mut self, done: Done) -> Option<Done> {
        if let Done::Asked { blocked, page } = done {
            self.asking -= 1;
            return Some(self.told(blocked, *page));
        }
        let lanes = match &done {
            Done::Ahead { page: Ok(page), .. }
            | Done::Late { page: Ok(page), .. }
            | Done::Behind { page: Ok(page), .. } => self.lanes.unknown_lanes(page.rows.iter()),
            Done::Due { due: Ok(due), .. } => self.lanes.unknown_lanes(due.rows.iter()),
            Done::Hot { rows: Ok(rows), .. } => {
                self.lanes.unknown_lanes(rows.iter().map(|hot| &hot.row))
            }
            _ => return Some(done),
        };
        if lanes.is_empty() {
            return Some(done);
        }
        self.asking += 1;
        let (store, deadline) = (Arc::clone(&self.store), self.config.deadline());
        self.tasks.spawn(async move {
            let blocked = async {
                let mut blocked = Vec::new();
                for lanes in lanes.chunks(LANES) {
                    blocked.extend(within(deadline, store.still_blocked(lanes)).await?);
                }
                Ok(blocked)
            };
            Done::Asked { blocked: blocked.await, page: Box::new(done) }
        });
        None
    }

    /// Blocks the lanes in memory, and returns the page. Without an answer the page counts as not read. What was
    /// asked before a shard was taken says nothing of it: its survey does.
    fn told(&mut self, blocked: Result<Vec<Blocked>>, mut done: Done) -> Done {
        let read = match &done {
            Done::Ahead { read, .. }
            | Done::Late { read, .. }
            | Done::Behind { read, .. }
            | Done::Due { read, .. }
            | Done::Hot { read, .. } => *read,
            _ => return done,
        };
        match blocked {
            Ok(blocked) => {
                for lane in &blocked {
                    let shard = lane.key.shard(self.shards.total());
                    if self.lanes.saw(read, shard) {
                        self.lanes.block_again(shard, lane);
                    }
                }
            }
            Err(error) => match &mut done {
                Done::Ahead { page, .. } | Done::Late { page, .. } | Done::Behind { page, .. } => {
                    *page = Err(error);
                }
                Done::Due { due, .. } => *due = Err(error),
                Done::Hot { rows, .. } => *rows = Err(error),
                _ => {}
            },
        }
        done
    }
}
