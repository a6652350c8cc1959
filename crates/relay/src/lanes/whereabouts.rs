//! Where an event of the table is: in hand, waiting for a good reason, or nowhere.

use posthaste_core::{
    Key,
    store::{EventRecord, Wait},
};

use super::{
    LaneId, Lanes, Queue, State,
    lane::{Block, Lane},
};

/// What lanes know of an event that has been due for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// It belongs to a shard that is not in hand.
    Elsewhere,
    /// It is under way, or waits for a good reason: an earlier event of its key, a pause, or its
    /// destination, which takes nothing or has enough to do.
    Accounted,
    /// It waits for its turn at this destination, which takes events.
    InLine(u16),
    /// It is the first of its lane, and the lane does not stand in line.
    Stranded,
    /// It is not in memory, and this destination has room for it.
    Unread {
        /// Its destination.
        destination: u16,
        /// A cursor of the destination's own is to bring it.
        behind: bool,
    },
}

impl Lanes {
    /// Where this event is. A read brings a page only if there is room for `least` events.
    pub fn whereabouts(&self, record: &EventRecord, least: usize) -> Whereabouts {
        if !self.rules.unordered && !self.shards.contains_key(&record.shard) {
            return Whereabouts::Elsewhere;
        }
        if self.known.contains_key(&record.sequence) {
            return self.whereabouts_in_hand(record.sequence);
        }
        let destination = self.destination_of_record(record);
        let of = &self.destinations[usize::from(destination)];
        let replay = record.wait == Some(Wait::Replay);
        let replays = if replay { of.waiting(Queue::Replay) } else { 0 };
        let waits = of.waiting(Queue::Cold).max(replays);
        let full = waits + least > self.rules.cold_queue
            || self.has_its_share(of)
            || self.has_its_due(destination, record.wait)
            || (of.due_waits && record.wait.is_some());
        let key = record.content.as_ref().ok().and_then(|envelope| envelope.event.key());
        let lane = key.filter(|_| !self.rules.unordered && !replay);
        if !of.breaker.is_closed() || full || self.stops(key, lane.is_some()) {
            return Whereabouts::Accounted;
        }
        if self.waits_in_lane(lane, destination) || self.stands_behind_a_pause() {
            return Whereabouts::Accounted;
        }
        Whereabouts::Unread { destination, behind: of.behind }
    }

    fn whereabouts_in_hand(&self, sequence: i64) -> Whereabouts {
        let Some(entry) = self.known.get(&sequence).filter(|entry| entry.state == State::Waiting)
        else {
            return Whereabouts::Accounted;
        };
        let of = &self.destinations[usize::from(entry.destination)];
        let stops = self.stops(entry.key, entry.lane.is_some());
        if !of.breaker.is_closed() || stops || self.stands_behind_a_pause() {
            return Whereabouts::Accounted;
        }
        let Some(id) = entry.lane else {
            return Whereabouts::InLine(entry.destination);
        };
        let lane = self.lanes.get(&id);
        let is_head =
            |lane: &Lane| lane.queue.front().is_some_and(|head| head.sequence == sequence);
        match lane {
            Some(lane) if !is_head(lane) => Whereabouts::Accounted,
            Some(lane) if lane.scheduled => Whereabouts::InLine(entry.destination),
            // Behind an event that is under way, or that is in the table.
            Some(lane) if lane.in_flight > 0 || lane.is_blocked() => Whereabouts::Accounted,
            // Nobody puts it in line any more.
            _ => Whereabouts::Stranded,
        }
    }

    /// Something of its lane comes before it.
    fn waits_in_lane(&self, key: Option<Key>, destination: u16) -> bool {
        let id = match key {
            _ if self.rules.global => LaneId::OF_ALL,
            Some(key) => LaneId { destination, key },
            None => return false,
        };
        self.lanes
            .get(&id)
            .is_some_and(|lane| lane.busy() || lane.block != Block::Open || !lane.queue.is_empty())
    }

    /// Where the event goes: where it failed or is held, or where its route leads.
    fn destination_of_record(&self, record: &EventRecord) -> u16 {
        let named = record.destination.as_ref().filter(|_| record.wait.is_some());
        let named = named
            .and_then(|name| self.destinations.iter().position(|known| known.rules.name == *name));
        if let Some(index) = named {
            return index as u16;
        }
        let Some(route) = &self.rules.route else {
            return 0;
        };
        let routed = record.content.as_ref().ok().and_then(|envelope| route(envelope).ok());
        routed.map_or(self.rules.destinations.len() as u16, |routed| routed.destination)
    }

    /// How many events were handed to each destination so far.
    pub fn handed_over(&self) -> Vec<u64> {
        self.destinations.iter().map(|destination| destination.started).collect()
    }
}
