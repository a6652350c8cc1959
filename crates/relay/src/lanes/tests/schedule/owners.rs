//! Whose the shard is, and what operators do.

use super::*;

impl World {
    pub(super) fn save_mark(&mut self) {
        let mark = self.lanes.mark(self.cursor);
        let mark = self.source.behind_mark().map_or(mark, |behind| mark.min(behind));
        match self.owner {
            Owner::Us => self.mark = mark,
            Owner::Leaving(first) => self.mark = mark.min(first),
            Owner::Nobody | Owner::Other => {}
        }
    }

    /// The shard goes to another relay: in good order, or because its lease has run out.
    pub(super) fn give_away(&mut self, in_order: bool) {
        match self.owner {
            Owner::Us if in_order => {
                self.save_mark();
                self.owner = Owner::Leaving(self.mark);
                self.lanes.close_shard(0);
            }
            Owner::Leaving(_) if in_order => {
                if !self.lanes.busy_shards(|_| false).contains(&0) {
                    self.save_mark();
                    self.lose(Owner::Other);
                }
            }
            Owner::Us | Owner::Leaving(_) => self.lose(Owner::Nobody),
            Owner::Nobody | Owner::Other => {}
        }
    }

    pub(super) fn lose(&mut self, owner: Owner) {
        self.owner = owner;
        self.lanes.lose_shards(&BTreeSet::from([0]));
        self.source.reset();
        for destination in 0..self.lanes.destinations() {
            self.lanes.caught_up(destination);
        }
    }

    /// Another relay has the shard, and delivers or fails the next event of a key.
    pub(super) fn other(&mut self, pick: usize) {
        if !matches!(self.owner, Owner::Nobody | Owner::Other) {
            return;
        }
        if self.owner == Owner::Nobody {
            self.epoch += 1;
            self.owner = Owner::Other;
        }
        let of_lane = |(_, stored): &(&i64, &Stored)| {
            (self.global || usize::from(stored.key) == pick % self.keys)
                && !stored.is_done()
                && match stored.stand {
                    Stand::Fresh => stored.not_before.is_none(),
                    _ => !stored.is_due(self.now) || stored.blocks() || stored.free,
                }
        };
        let mut lane: Vec<i64> =
            self.table.iter().filter(of_lane).map(|(sequence, _)| *sequence).collect();
        // What blocks the lane is tried before anything else of it.
        lane.sort_by_key(|sequence| (!self.table[sequence].blocks(), *sequence));
        let Some((&head, followers)) = lane.split_first() else { return };
        // It may have other routes.
        let routes = pick / 16 % 3;
        let held = if pick.is_multiple_of(4) && !self.global { pick / 4 % 3 } else { 0 };
        let stand = if pick.is_multiple_of(4) { Stand::Waits(Wait::Retry) } else { Stand::Sent };
        if stand == Stand::Sent && !self.acknowledged.contains(&head) {
            self.acknowledged.push(head);
        }
        let held = followers.iter().take(held).map(|held| (*held, Stand::Waits(Wait::Held)));
        for (sequence, stand) in held.chain([(head, stand)]) {
            if let Some(stored) = self.table.get_mut(&sequence) {
                (stored.stand, stored.free) = (stand, false);
                stored.at = name_of(stored.key, routes);
            }
        }
        let first = self.table.iter().find(|(_, stored)| stored.is_ahead(self.now));
        self.mark = first.map_or(self.newest(), |(first, _)| first - 1);
    }

    /// The shard is free and ours again, as the driver takes it.
    pub(super) fn acquire(&mut self) {
        let suspect_to = match self.owner {
            Owner::Other => None,
            Owner::Nobody => self.table.keys().last().copied(),
            Owner::Us | Owner::Leaving(_) => return,
        };
        if self.polling() || self.lanes.busy_shards(|_| false).contains(&0) {
            return;
        }
        self.epoch += 1;
        self.take_over(suspect_to);
    }

    /// The relay dies and another takes over: from the mark, with what the table says is blocked.
    pub(super) fn crash(&mut self) {
        self.lanes = Lanes::new(two(self.on_dead, self.global, self.routes, self.most_lanes));
        self.source = Source::new(&Config::default(), now());
        self.lanes.pause(&self.paused_keys, &self.paused, self.now);
        self.reads.clear();
        self.previous.clear();
        self.takes.clear();
        self.told.clear();
        self.asked = None;
        self.looks.clear();
        self.in_flight.clear();
        self.settling = None;
        self.epoch += 1;
        self.take_over(self.table.keys().last().copied());
    }

    pub(super) fn take_over(&mut self, suspect_to: Option<i64>) {
        self.owner = Owner::Us;
        self.read_once = false;
        self.cursor = self.mark;
        self.lanes.open_shard(0, suspect_to);
        self.survey = None;
        for lane in self.blocked() {
            self.lanes.surveyed(0, &lane, true);
        }
        let lowest = |positions: &[Position]| {
            positions.iter().min_by_key(|position| position.sequence).cloned().unwrap_or_default()
        };
        self.source.rewind(page(self.mark, true).position, lowest);
    }

    /// What the table says is blocked.
    pub(super) fn blocked(&self) -> Vec<Blocked> {
        let mut blocked: BTreeMap<(&'static str, i64), bool> = BTreeMap::new();
        for stored in self.table.values() {
            let lane = if self.global { 0 } else { i64::from(stored.key) };
            if let Stand::Waits(wait) = stored.stand
                && wait != Wait::Replay
            {
                *blocked.entry((stored.at, lane)).or_default() |= wait != Wait::Held;
            }
        }
        let blocked = blocked.into_iter().map(|((destination, lane), waiting)| Blocked {
            destination: destination.to_owned(),
            key: Key(lane),
            waiting,
            parked: false,
        });
        blocked.collect()
    }

    /// Whether what blocks lanes is still in the table is asked, and the answer comes later.
    pub(super) fn reconcile(&mut self) {
        match self.asked.take() {
            Some((read, asked, blocked)) => {
                self.lanes.reconcile(read, asked.as_deref(), &blocked);
                if self.told.is_empty()
                    && self.lanes.forget(read, &blocked)
                    && let Some((_, finds_all)) = &mut self.survey
                {
                    *finds_all = false;
                }
                self.lanes.read_merged(read);
            }
            None if self.owner == Owner::Us => {
                let read = self.lanes.read_began();
                let mut blocked = self.blocked();
                let mut asked = None;
                if !self.global {
                    // As the driver does it: those first that may have gone on, and a few at a time.
                    let mut lanes = self.lanes.unsure_lanes(1);
                    if self.lanes.is_crowded() {
                        lanes.extend(self.lanes.forgettable_lanes(read, 1));
                    }
                    lanes.extend(self.lanes.blocked_lanes(1));
                    blocked.retain(|blocked| lanes.contains(&blocked.lane()));
                    asked = Some(lanes);
                }
                self.asked = Some((read, asked, blocked));
            }
            None => {}
        }
    }

    /// All blocked lanes are read again, and the answer comes later.
    pub(super) fn survey_again(&mut self) {
        if self.owner != Owner::Us {
            return;
        }
        let Some((blocked, mut finds_all)) = self.survey.take() else {
            if self.lanes.is_spilled() {
                self.survey = Some((self.blocked(), true));
            }
            return;
        };
        for lane in &blocked {
            finds_all &= !self.lanes.surveyed(0, lane, false);
        }
        if finds_all {
            self.lanes.has_all_lanes();
        }
    }

    /// An operator wants one that was sent to come again.
    pub(super) fn replay(&mut self, pick: usize) {
        let count = self.table.len().max(1);
        if let Some((sequence, stored)) = self.table.iter_mut().nth(pick % count)
            && stored.stand == Stand::Sent
            && !self.lanes.in_hand(*sequence)
        {
            stored.stand = Stand::Waits(Wait::Replay);
        }
    }

    /// An operator pauses a key or a destination, or lets it go on.
    pub(super) fn pause(&mut self, pick: usize) {
        match pick % (2 + KEYS) {
            destination @ (0 | 1) => {
                toggle(&mut self.paused, NAMES[pick / (2 + KEYS) % 3][destination]);
            }
            key => toggle(&mut self.paused_keys, Key(key as i64 - 2)),
        }
        self.lanes.pause(&self.paused_keys, &self.paused, self.now);
        self.note_skipped();
    }
}
