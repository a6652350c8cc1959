//! Reads: what is looked for, and what they bring when they come back.

use super::*;

impl World {
    /// One poll is under way at a time, whoever's cursor it moves.
    pub(super) fn polling(&self) -> bool {
        self.reads.iter().any(|(_, origin, ..)| {
            matches!(origin, Origin::Cold | Origin::Due | Origin::CatchUp(_))
        })
    }

    /// Due events come by their time, which is anybody's guess.
    pub(super) fn begin_read(&mut self, origin: Origin, pick: usize) {
        if self.polling() || self.owner != Owner::Us {
            return;
        }
        if origin == Origin::Due {
            self.lanes.due_walk_began();
            self.lanes.take_due_again();
        }
        let wanted = |stored: &Stored| match origin {
            Origin::Cold | Origin::Hot => stored.is_ahead(self.now),
            Origin::Due => stored.is_due(self.now),
            Origin::Held | Origin::CatchUp(_) => false,
        };
        let from = if origin == Origin::Cold { self.cursor } else { 0 };
        // What blocks everything comes first, however much is due before it.
        let first = origin == Origin::Due && self.lanes.all_blocked();
        let blockers = self.table.iter().filter(|(_, stored)| first && stored.blocks());
        let mut found: Vec<_> =
            self.table.range(from + 1..).filter(|(_, stored)| wanted(stored)).collect();
        if origin == Origin::Due && !found.is_empty() {
            let first = pick % found.len();
            found.rotate_left(first);
        }
        // What blocks everything is read whatever room there is.
        let room = self.lanes.cold_room(QUEUE).min(4);
        if room == 0 && !self.lanes.all_blocked() && origin != Origin::Hot {
            return;
        }
        let found = blockers.chain(found.into_iter().take(room.max(1)));
        let rows: Vec<Fetched> = found.map(|(sequence, _)| self.fetched(*sequence)).collect();
        let until = self.read_until(&rows, room.max(1));
        let read = self.lanes.read_began();
        self.reads.push_back((read, origin, None, rows, until));
    }

    /// How far the cursor is after this page: beyond all that is delayed, if it was not full.
    fn read_until(&self, rows: &[Fetched], limit: usize) -> i64 {
        let last = rows.last().filter(|_| rows.len() >= limit);
        last.map_or(self.newest(), |row| row.sequence)
    }

    /// The hot path: one row by its number, only when all before it of its key are settled or in hand.
    pub(super) fn begin_hot(&mut self, pick: usize) {
        let fresh: Vec<i64> = self
            .table
            .iter()
            .filter(|(_, stored)| stored.is_ahead(self.now) && stored.not_before.is_none())
            .map(|(sequence, _)| *sequence)
            .collect();
        let Some(sequence) = fresh.get(pick % fresh.len().max(1)).copied() else { return };
        // Of other keys the read says nothing.
        if !self.read_once || self.owner != Owner::Us || self.global {
            return;
        }
        let read = self.lanes.read_began();
        let key = self.table[&sequence].key;
        let before = self.table.range(..sequence);
        // Delayed ones keep no order with what was written after them.
        let unsettled = before.filter(|(_, stored)| {
            stored.key == key && !stored.is_done() && stored.not_before.is_none()
        });
        self.previous.insert(read, unsettled.map(|(sequence, _)| *sequence).collect());
        self.reads.push_back((read, Origin::Hot, None, vec![self.fetched(sequence)], 0));
    }

    pub(super) fn begin_release(&mut self) {
        for release in self.lanes.next_releases() {
            let key = release.lane.key.0;
            let lane =
                |stored: &Stored| i64::from(stored.key) == key && stored.at == release.destination;
            let rows = self
                .table
                .iter()
                .filter(|(_, stored)| stored.stand == Stand::Waits(Wait::Held) && lane(stored))
                .filter(|(sequence, _)| **sequence > release.after)
                .map(|(sequence, _)| self.fetched(*sequence))
                .take(RELEASE_LIMIT)
                .collect();
            self.reads.push_back((release.read, Origin::Held, Some(release), rows, 0));
        }
    }

    /// Lanes that another owner left are looked at, a page of two at a time.
    pub(super) fn begin_look(&mut self) {
        while let Some(look) = self.lanes.next_look() {
            let place = |(sequence, stored): (&i64, &Stored)| match stored.stand {
                Stand::Waits(wait) if wait != Wait::Replay => Some((wait, *sequence)),
                _ => None,
            };
            let in_lane = self.table.iter().filter(|(_, stored)| {
                i64::from(stored.key) == look.lane.key.0 && stored.at == look.lane.destination
            });
            let mut places: Vec<(Wait, i64)> = in_lane.filter_map(place).collect();
            let order = |(wait, sequence): &(Wait, i64)| (wait.as_str(), *sequence);
            places.retain(|at| look.after.is_none_or(|after| order(at) > order(&after)));
            places.sort_by_key(|at| (at.0.as_str(), at.1));
            let rows = places.iter().take(2).map(|(_, sequence)| self.fetched(*sequence)).collect();
            self.looks.push_back((look, rows));
        }
    }

    pub(super) fn end_look(&mut self, pick: usize) {
        if let Some((look, rows)) = self.looks.pop_front() {
            self.lanes.looked(&look, (pick % 7 != 6).then_some(rows));
            self.lanes.take_due_again();
        }
    }

    pub(super) fn merge_read(&mut self, pick: usize) {
        if self.reads.is_empty() {
            return;
        }
        let Some((read, origin, release, rows, until)) = self.reads.remove(pick % self.reads.len())
        else {
            return;
        };
        if let Some(blocked) = self.told.remove(&read) {
            for lane in &blocked {
                if self.lanes.saw(read, 0) {
                    self.lanes.block_again(0, lane);
                }
            }
        } else if origin != Origin::Held {
            let lanes = self.lanes.unknown_lanes(rows.iter());
            if !lanes.is_empty() {
                // The answer comes later.
                let mut blocked = self.blocked();
                blocked.retain(|blocked| lanes.contains(&blocked.lane()));
                self.told.insert(read, blocked);
                self.reads.push_back((read, origin, release, rows, until));
                return;
            }
        }
        match (origin, release) {
            (Origin::Held, Some(release)) => {
                let rows = (pick % 7 != 1).then_some(rows);
                self.lanes.released(&release, rows, self.now);
            }
            (Origin::Hot, _) => {
                let ours = self.read_once && self.lanes.saw(read, 0);
                let previous = self.previous.remove(&read).unwrap_or_default();
                if ours && previous.iter().all(|sequence| self.lanes.in_hand(*sequence)) {
                    self.offer(rows, origin);
                }
            }
            (Origin::CatchUp(destination), _) => {
                self.caught(read, destination, rows, until as u64);
            }
            _ => {
                let all = rows.last().is_none_or(|last| last.sequence < until);
                self.read_once |= origin == Origin::Cold && all;
                let due = origin == Origin::Due;
                let rows = if due { due_by_now(rows, self.cursor) } else { rows };
                self.offer(rows, origin);
                if origin == Origin::Cold {
                    self.cursor = self.cursor.max(until);
                    self.source.read_ahead(&page(self.cursor, true), self.source.generation(), 0);
                }
            }
        }
        self.note_skipped();
        self.lanes.read_merged(read);
    }

    pub(super) fn offer(&mut self, rows: Vec<Fetched>, origin: Origin) {
        self.lanes.set_cursor(self.cursor);
        for row in rows {
            self.lanes.offer(row, origin, None, self.now);
        }
        self.note_skipped();
    }

    pub(super) fn note_skipped(&mut self) {
        fall_behind(&mut self.source, &mut self.lanes);
    }

    /// A destination that is behind reads on, as the driver does it.
    pub(super) fn begin_catch_up(&mut self, pick: usize) {
        let behind: Vec<u16> = self.source.behind().collect();
        let Some(destination) = behind.get(pick % behind.len().max(1)).copied() else { return };
        let probes = self.lanes.wants_probe(destination);
        let wanted = probes || self.lanes.room_behind(destination, usize::MAX) > 0;
        if self.polling() || !wanted || self.owner != Owner::Us {
            return;
        }
        let Some((from, take)) = self.source.begin_behind(destination, probes) else { return };
        let rows: Vec<Fetched> = self
            .table
            .range(from.sequence + 1..)
            .filter(|(_, stored)| stored.is_ahead(self.now))
            .map(|(sequence, _)| self.fetched(*sequence))
            .take(PAGE)
            .collect();
        let read = self.lanes.read_began();
        self.takes.insert(read, (self.read_until(&rows, PAGE), take));
        let generation = self.source.behind_generation(destination) as i64;
        self.reads.push_back((read, Origin::CatchUp(destination), None, rows, generation));
    }

    pub(super) fn caught(
        &mut self,
        read: u64,
        destination: u16,
        rows: Vec<Fetched>,
        generation: u64,
    ) {
        let Some((until, take)) = self.takes.remove(&read) else { return };
        let page = page(until, rows.len() < PAGE);
        if !self.source.is_behind_since(destination, generation) {
            return;
        }
        let (source, lanes) = (&mut self.source, &mut self.lanes);
        let taken = take_behind(source, lanes, destination, take, &page, rows, self.now);
        self.note_skipped();
        if self.source.read_behind(destination, &page, generation, taken) {
            self.lanes.caught_up(destination);
        }
    }
}
