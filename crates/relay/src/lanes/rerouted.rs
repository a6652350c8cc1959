//! Lanes that an earlier owner left, perhaps under other routes than ours.
//!
//! The table knows a lane by the name of its destination, and a row is routed anew when it is read. When a
//! destination was renamed, or events get another route, what waits in the old lane and what is written
//! now go to the same place, and only one order is right. So before anything of a key goes whose lanes
//! were left by another, these lanes are *looked at*, page by page: an event that goes elsewhere now is
//! written as held in the lane where it belongs. Until that is done the key stands as if it were paused:
//! what comes is marked held behind. Where all routes are as they were, a look writes nothing.
//!
//! A dead event that parks its lane is not changed. If it would go elsewhere now, the whole key stands
//! until an operator has acted.
//!
//! # When things fail
//!
//! A relay that dies in between leaves the key with events in several lanes. Its next owner looks at all
//! of them before anything goes, so it does not matter how far this one got.
//!
//! A suspect that is moved is remembered until its next attempt is on record in its new lane: it goes alone,
//! and the attempt is counted before. An event that kills each of its relays ends dead though every one of
//! them has other routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use posthaste_core::{
    Key,
    store::{Fetched, LaneKey, Verdict, Wait},
};

use super::{
    Entry, LaneId, Lanes, Queue, Recorded, State, Then,
    lane::{Block, Lane},
    unsettled,
};

/// A key with lanes that were not made by our routes.
#[derive(Debug)]
pub(super) struct Doubt {
    shard: u16,
    /// The destinations of its lanes.
    destinations: Vec<u16>,
    /// Something of it fell due meanwhile.
    due: bool,
    state: Looked,
}

#[derive(Debug)]
enum Looked {
    /// Nothing of the key was met yet.
    Untouched,
    Looking(Box<Walk>),
    /// A dead event that would go elsewhere now is in the way.
    Stands,
}

/// How far a look has come.
#[derive(Debug, Default)]
struct Walk {
    /// How many of the lanes are done.
    done: usize,
    /// The last event that was seen of the present one.
    after: Option<(Wait, i64)>,
    /// The read that is under way.
    read: Option<u64>,
    /// How many events of the last page are being written to another lane.
    unwritten: usize,
    /// What stays where it is, by destination.
    stays: BTreeMap<u16, Stays>,
    /// Where events were written to.
    moved_to: BTreeSet<u16>,
    /// The lanes of dead events that would go elsewhere.
    dead_elsewhere: BTreeSet<u16>,
    /// What is in the way may be gone since it was seen.
    again: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Stays {
    waiting: bool,
    parked: bool,
}

/// A page of a lane to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The lane.
    pub lane: LaneKey,
    /// Events after this one.
    pub after: Option<(Wait, i64)>,
    /// The number of the read. A look that began anew meanwhile does not know it.
    read: u64,
}

impl Lanes {
    /// The lane was left by an earlier owner. Without routes everything goes to one place: then a lane of
    /// that name is as ours would be.
    pub(super) fn doubt(&mut self, id: LaneId, shard: u16) {
        if self.rules.global || (self.rules.route.is_none() && id.destination == 0) {
            return;
        }
        let new = !self.in_doubt(id.key);
        let doubt = self.doubts.entry(id.key).or_insert_with(|| Doubt {
            shard,
            destinations: Vec::new(),
            due: false,
            state: Looked::Untouched,
        });
        if !doubt.destinations.contains(&id.destination) {
            doubt.destinations.push(id.destination);
        }
        if new {
            self.give_up_releases(id.key);
        }
    }

    /// The lanes of this key are read back after the look: what a read that is under way brings may lie behind
    /// events that the look moves.
    fn give_up_releases(&mut self, key: Key) {
        for id in self.lanes_of(key) {
            if let Some(lane) = self.lanes.get_mut(&id).filter(|lane| lane.stands_released()) {
                lane.reading = None;
                lane.read_anew();
                self.look_at(key, false);
            }
        }
    }

    /// Whether nothing of this key may go before its lanes were looked at.
    pub(super) fn in_doubt(&self, key: Key) -> bool {
        !self.doubts.is_empty() && self.doubts.contains_key(&key)
    }

    /// Lanes are being looked at.
    pub(super) fn looks(&self) -> bool {
        self.doubts.values().any(|doubt| matches!(doubt.state, Looked::Looking(_)))
    }

    /// What was due was not taken in.
    pub(super) fn fell_due(&mut self, key: Key) {
        if let Some(doubt) = self.doubts.get_mut(&key) {
            doubt.due = true;
        }
    }

    /// Something of this key was met. `again`: what was in the way may be gone.
    pub(super) fn look_at(&mut self, key: Key, again: bool) {
        let Some(doubt) = self.doubts.get_mut(&key) else { return };
        match &mut doubt.state {
            Looked::Untouched => {}
            Looked::Stands if again => {}
            Looked::Stands => return,
            Looked::Looking(walk) => {
                walk.again |= again;
                return;
            }
        }
        doubt.state = Looked::Looking(Box::default());
        self.looks.push_back(key);
    }

    /// A page to read now; it is due back in [`looked`](Self::looked).
    pub fn next_look(&mut self) -> Option<Look> {
        while let Some(key) = self.looks.pop_front() {
            let Some(doubt) = self.doubts.get_mut(&key) else { continue };
            let Looked::Looking(walk) = &mut doubt.state else { continue };
            let Some(&destination) = doubt.destinations.get(walk.done) else { continue };
            let read = self.leaving.read_began();
            walk.read = Some(read);
            let after = walk.after;
            let lane = LaneKey { key, destination: self.name_of(destination) };
            return Some(Look { lane, after, read });
        }
        None
    }

    /// The events of a lane, by their wait and sequence; `None` when they could not be read.
    pub fn looked(&mut self, look: &Look, rows: Option<Vec<Fetched>>) {
        self.take_look(look, rows);
        self.read_merged(look.read);
    }

    fn take_look(&mut self, look: &Look, rows: Option<Vec<Fetched>>) {
        let key = look.lane.key;
        let walk = self.walk(key);
        let Some(walk) = walk.filter(|walk| walk.read == Some(look.read)) else { return };
        walk.read = None;
        let Some(rows) = rows else {
            self.looks.push_back(key);
            return;
        };
        if rows.is_empty() {
            (walk.done, walk.after) = (walk.done + 1, None);
            self.look_on(key);
            return;
        }
        let from = self.destination_of(&look.lane.destination);
        for mut row in rows {
            let to = self.route(&mut row);
            let (sequence, wait) = (row.sequence, row.wait);
            let Some(walk) = self.walk(key) else { return };
            walk.after = wait.map(|wait| (wait, sequence)).or(walk.after);
            match wait {
                Some(Wait::Parked) if to != from => {
                    walk.dead_elsewhere.insert(from);
                }
                _ if to != from => self.move_to(LaneId { destination: to, key }, &row),
                Some(Wait::Parked) => walk.stays.entry(to).or_default().parked = true,
                Some(Wait::Retry | Wait::Suspect) => {
                    walk.stays.entry(to).or_default().waiting = true;
                }
                _ => {
                    walk.stays.entry(to).or_default();
                }
            }
        }
        self.look_on(key);
    }

    fn walk(&mut self, key: Key) -> Option<&mut Walk> {
        match &mut self.doubts.get_mut(&key)?.state {
            Looked::Looking(walk) => Some(walk),
            Looked::Untouched | Looked::Stands => None,
        }
    }

    /// The event is held in this lane from now on. What waited for its next attempt elsewhere is tried as
    /// soon as its turn comes here.
    fn move_to(&mut self, id: LaneId, row: &Fetched) {
        let verdict = Verdict::Held { destination: self.name_of(id.destination), key: id.key };
        let entry = Entry {
            identity: row.identity,
            shard: row.shard,
            destination: id.destination,
            lane: Some(id),
            key: row.key,
            attempts: row.attempts,
            started: 0,
            recorded: Recorded::Nothing,
            replay: false,
            queue: Queue::Cold,
            marked: true,
            held: true,
            blocks: false,
            lease: None,
            charge: None,
            state: State::Settling(Then::Leave),
        };
        self.settlements.push_back(unsettled(row.sequence, &entry, verdict));
        if row.wait == Some(Wait::Suspect) {
            self.moved_suspects.insert(row.sequence, row.shard);
        }
        self.moving.insert(row.sequence, entry);
        if let Some(walk) = self.walk(id.key) {
            walk.unwritten += 1;
            walk.moved_to.insert(id.destination);
        }
    }

    /// Whether this was an event that was written to another lane. A read that began before does not know
    /// of that: what it brings is not taken.
    pub(super) fn moved(&mut self, sequence: i64) -> bool {
        let Some(entry) = self.moving.remove(&sequence) else { return false };
        let key = entry.lane.map(|id| id.key);
        if !self.known.get(&sequence).is_some_and(|known| known.state == State::Orphan) {
            self.known.insert(sequence, entry);
            self.leave(sequence, true);
        }
        if let Some(key) = key
            && let Some(walk) = self.walk(key)
        {
            walk.unwritten = walk.unwritten.saturating_sub(1);
            self.look_on(key);
        }
        true
    }

    /// The next page, once what the last one brought is written; after the last one the key goes on. Lanes of
    /// the key at our destinations may be in the table only: then these are looked at, too.
    fn look_on(&mut self, key: Key) {
        let ours = if self.spilled { self.routed_to() } else { 0..0 };
        let Some(doubt) = self.doubts.get_mut(&key) else { return };
        let Looked::Looking(walk) = &mut doubt.state else { return };
        if walk.unwritten > 0 {
            return;
        }
        for destination in ours {
            if !doubt.destinations.contains(&destination) {
                doubt.destinations.push(destination);
            }
        }
        if walk.done < doubt.destinations.len() {
            self.looks.push_back(key);
            return;
        }
        let walk = std::mem::take(walk);
        if !walk.dead_elsewhere.is_empty() {
            for to in walk.moved_to {
                if !doubt.destinations.contains(&to) {
                    doubt.destinations.push(to);
                }
            }
            let shard = doubt.shard;
            if walk.again {
                doubt.state = Looked::Looking(Box::default());
                self.looks.push_back(key);
            } else {
                doubt.state = Looked::Stands;
                self.park_in_doubt(key, shard, walk.dead_elsewhere);
            }
            return;
        }
        let (shard, due) = (doubt.shard, doubt.due);
        let left = std::mem::take(&mut doubt.destinations);
        self.doubts.remove(&key);
        // What fell due meanwhile was not taken in.
        self.due_again = true;
        for &destination in &left {
            let id = LaneId { destination, key };
            match walk.stays.get(&destination) {
                None if !self.is_routed_to(destination) => {
                    self.drop_lane(id);
                }
                None => self.set_lane(id, Stays::default(), due),
                Some(&stays) => {
                    let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(shard));
                    lane.held = true;
                    self.set_lane(id, stays, due);
                }
            }
        }
        for destination in walk.moved_to {
            let id = LaneId { destination, key };
            let lane = self.lanes.entry(id).or_insert_with(|| {
                let mut lane = Lane::new(shard);
                lane.turn(Block::Releasing);
                lane
            });
            lane.held = true;
            lane.read_anew();
        }
        let ids = self.lanes_of(key).into_iter();
        let released: Vec<LaneId> =
            ids.filter(|id| self.lanes.get(id).is_some_and(Lane::stands_released)).collect();
        for id in released {
            self.request_release(id);
        }
    }

    /// The key stands because of dead events in these lanes. They are blocked in memory, also one that was
    /// in the table only or seemed to be free, so that it is asked whether an operator has acted.
    fn park_in_doubt(&mut self, key: Key, shard: u16, destinations: BTreeSet<u16>) {
        for destination in destinations {
            let id = LaneId { destination, key };
            let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(shard));
            lane.held = true;
            self.set_lane(id, Stays { waiting: false, parked: true }, false);
        }
    }

    /// The lane is as its look has found it.
    fn set_lane(&mut self, id: LaneId, Stays { waiting, parked }: Stays, due: bool) {
        let next = self.leaving.next_read();
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.written = Some(next);
        lane.turn(match (parked, waiting) {
            (true, _) => Block::Parked,
            (false, true) => Block::Waiting,
            (false, false) => Block::Releasing,
        });
        lane.due = due && lane.block == Block::Waiting;
        lane.read_anew();
        if self.spilled {
            self.ask_for(id);
        }
    }

    /// Whether events go there: it is no name of the past.
    fn is_routed_to(&self, destination: u16) -> bool {
        self.routed_to().contains(&destination)
    }

    /// Our destinations, and the place of events that have none.
    pub(super) fn routed_to(&self) -> Range<u16> {
        0..self.rules.destinations.len() as u16 + 1
    }

    /// What fell due while its key stood is to be read again.
    pub fn take_due_again(&mut self) -> bool {
        std::mem::take(&mut self.due_again)
    }

    /// The shards are gone, and with them what was to be looked at.
    pub(super) fn forget_doubts(&mut self, shards: &BTreeSet<u16>) {
        self.doubts.retain(|_, doubt| !shards.contains(&doubt.shard));
        self.moving.retain(|_, entry| !shards.contains(&entry.shard));
        self.moved_suspects.retain(|_, shard| !shards.contains(shard));
    }
}
