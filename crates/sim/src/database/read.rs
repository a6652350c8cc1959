//! Finding events without writing.

use std::{collections::HashSet, sync::atomic::Ordering, time::Duration};

use async_trait::async_trait;
use posthaste_core::{
    Key, Result,
    store::{
        Blocked, BlockedLanes, Due, DueKey, Fetched, HotRow, LaneKey, LeaveOut, Limit, Page,
        Position, Read, Wait,
    },
};

use super::{Data, FOR_EVER, MemoryStore, Row, context::Context, moved};

/// Earlier events of a key that one hot read looks at.
const NEAR: usize = 20;

/// Rows that a page may still hold.
struct Room {
    limit: Limit,
    rows: usize,
    bytes: usize,
}

impl Room {
    fn new(limit: Limit) -> Self {
        Self { limit, rows: 0, bytes: 0 }
    }

    /// Whether this row fits. One that is larger than the page comes alone.
    fn takes(&mut self, bytes: usize) -> bool {
        let full = self.rows >= self.limit.rows
            || self.rows > 0 && self.bytes.saturating_add(bytes) > self.limit.bytes;
        if !full {
            self.rows += 1;
            self.bytes = self.bytes.saturating_add(bytes);
        }
        !full
    }
}

/// The rows that fit, and whether that was all.
pub(super) fn page<'r>(rows: impl Iterator<Item = &'r Row>, limit: Limit) -> (Vec<Fetched>, bool) {
    let mut room = Room::new(limit);
    let mut page = Vec::new();
    for row in rows {
        if !room.takes(row.bytes) {
            return (page, false);
        }
        page.push(row.fetched());
    }
    (page, true)
}

impl Data {
    /// The context at this position. `Moved` when it is of another life and names transactions of that.
    fn context(&self, from: &Position) -> Result<Context> {
        let Ok(context) = from.context.parse::<Context>() else {
            return Ok(Context { life: self.life, ..Context::default() });
        };
        if context.life > self.life {
            return Err(moved());
        }
        Ok(Context { life: self.life, ..context })
    }

    /// Fetches what came late, as far as there is room. True when that was all.
    fn walk_late(
        &mut self,
        shards: &[u16],
        from: &Position,
        context: &mut Context,
        (room, walk, now): (&mut Room, &mut usize, i64),
        rows: &mut Vec<Fetched>,
    ) -> bool {
        loop {
            if context.walking.is_empty() {
                let ended = |number: &u64| !self.open.contains(number);
                let (ended, open) = context.open.iter().partition(|number| ended(number));
                (context.walking, context.open) = (ended, open);
                context.after = 0;
                if context.walking.is_empty() {
                    return true;
                }
            }
            let late = self.between(context.after, from.sequence);
            let late = late.filter(|row| context.walking.contains(&row.transaction));
            for row in late {
                if *walk == 0 {
                    return false;
                }
                *walk -= 1;
                if shards.contains(&row.shard) && row.is_fresh(now) {
                    if !room.takes(row.bytes) {
                        return false;
                    }
                    rows.push(row.fetched());
                }
                context.after = row.sequence;
            }
            context.walking.clear();
        }
    }
}

#[async_trait]
impl Read for MemoryStore {
    async fn read_on(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        let now = self.server.now();
        let mut data = self.same_server()?;
        let mut context = data.context(from)?;
        let (mut room, mut walk) = (Room::new(limit), self.server.walk);
        let mut rows = Vec::new();
        let budget = (&mut room, &mut walk, now);
        if !data.walk_late(shards, from, &mut context, budget, &mut rows) {
            data.walked += (self.server.walk - walk) as u64;
            let position = Position { sequence: from.sequence, context: context.to_string() };
            return Ok(Page { rows, position, caught_up: false });
        }
        let mut sequence = from.sequence;
        let mut caught_up = true;
        let mut ahead = Vec::new();
        for row in data.rows.range(from.sequence + 1..).map(|(_, row)| row) {
            if !data.is_visible(row) {
                continue;
            }
            if walk == 0 {
                caught_up = false;
                break;
            }
            walk -= 1;
            if shards.contains(&row.shard) && row.is_fresh(now) {
                if !room.takes(row.bytes) {
                    caught_up = false;
                    break;
                }
                ahead.push(row.fetched());
            }
            sequence = row.sequence;
        }
        rows.extend(ahead);
        rows.sort_unstable_by_key(|row| row.sequence);
        data.walked += (self.server.walk - walk) as u64;
        context.open.extend(&data.open);
        let position = Position { sequence, context: context.to_string() };
        Ok(Page { rows, position, caught_up })
    }

    async fn read_late(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        let now = self.server.now();
        let mut data = self.same_server()?;
        let mut context = data.context(from)?;
        let (mut room, mut walk) = (Room::new(limit), self.server.walk);
        let mut rows = Vec::new();
        let budget = (&mut room, &mut walk, now);
        let caught_up = data.walk_late(shards, from, &mut context, budget, &mut rows);
        data.walked += (self.server.walk - walk) as u64;
        rows.sort_unstable_by_key(|row| row.sequence);
        let position = Position { sequence: from.sequence, context: context.to_string() };
        Ok(Page { rows, position, caught_up })
    }

    fn join(&self, positions: &[Position]) -> Position {
        let Some(lowest) = positions.iter().min_by_key(|position| position.sequence) else {
            return Position::default();
        };
        let mut joined = Context::default();
        for context in
            positions.iter().filter_map(|position| position.context.parse::<Context>().ok())
        {
            joined.life = joined.life.max(context.life);
            joined.open.extend(context.missing());
        }
        Position { sequence: lowest.sequence, context: joined.to_string() }
    }

    async fn read_due_but(
        &self,
        shards: &[u16],
        after: Option<DueKey>,
        limit: Limit,
        but: &LeaveOut,
    ) -> Result<Due> {
        let now = self.server.now();
        let mut data = self.same_server()?;
        let mut due: Vec<(DueKey, &Row)> = data
            .waiting()
            .filter_map(|row| Some((DueKey { at: row.not_before?, sequence: row.sequence }, row)))
            .filter(|(key, _)| key.at != FOR_EVER)
            .collect();
        due.sort_unstable_by_key(|(key, _)| *key);
        let is_own = |row: &Row| row.is_unsettled() && shards.contains(&row.shard);
        let next = due.iter().find(|(key, row)| key.at > now && is_own(row));
        let next = next.map(|(key, _)| Duration::from_micros((key.at - now).max(0) as u64));
        let left_out = |row: &Row| match row.wait {
            Some(Wait::Replay) => but.replays,
            Some(Wait::Retry | Wait::Suspect) => {
                row.destination.as_ref().is_some_and(|name| but.destinations.contains(name))
            }
            Some(Wait::Held | Wait::Parked) | None => false,
        };
        let (mut room, mut rows, mut last, mut more) = (Room::new(limit), Vec::new(), after, None);
        // What is settled, of other shards, or left out is walked over too.
        let mut walked = 0;
        for (key, row) in due.into_iter().filter(|(key, _)| key.at <= now && Some(*key) > after) {
            let is_wanted = is_own(row) && !left_out(row);
            if walked >= self.server.walk || is_wanted && !room.takes(row.bytes) {
                more = last;
                break;
            }
            walked += 1;
            if is_wanted {
                rows.push(row.fetched());
            }
            last = Some(key);
        }
        data.walked += walked as u64;
        Ok(Due { rows, more, next })
    }

    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>> {
        let mut data = self.same_server()?;
        let missing = data.context(from)?.missing();
        let mut sequences = sequences.to_vec();
        sequences.sort_unstable();
        sequences.dedup();
        let (mut hot, mut walked) = (Vec::new(), 0);
        for row in sequences.into_iter().filter_map(|sequence| data.visible(sequence)) {
            if row.not_before.is_some() || !row.is_unsettled() {
                continue;
            }
            let unknown = |earlier: &&Row| {
                earlier.key == row.key
                    && data.is_visible(earlier)
                    && (earlier.sequence > from.sequence || missing.contains(&earlier.transaction))
            };
            let mut near = Vec::new();
            if row.key.is_some() {
                near.extend(
                    data.rows.range(..row.sequence).map(|(_, row)| row).filter(unknown).take(NEAR),
                );
            }
            walked += near.len();
            let previous = (near.len() < NEAR).then(|| {
                near.iter().filter(|near| near.is_unsettled()).map(|near| near.sequence).collect()
            });
            hot.push(HotRow { row: row.fetched(), previous });
        }
        data.walked += walked as u64;
        Ok(hot)
    }

    async fn read_beyond(
        &self,
        shards: &[u16],
        from: &Position,
        but: &HashSet<Key>,
        limit: Limit,
    ) -> Result<Vec<i64>> {
        let now = self.server.now();
        let mut data = self.same_server()?;
        let start = self.beyond.load(Ordering::Relaxed).max(from.sequence);
        let (mut room, mut found, mut end, mut walked) = (Room::new(limit), Vec::new(), 0, 0);
        for row in data.rows.range(start + 1..).map(|(_, row)| row) {
            if walked >= self.server.walk {
                end = row.sequence - 1;
                break;
            }
            walked += 1;
            let wanted = data.is_visible(row)
                && shards.contains(&row.shard)
                && row.is_fresh(now)
                && row.key.is_none_or(|key| !but.contains(&key));
            if wanted {
                if !room.takes(row.bytes) {
                    end = row.sequence - 1;
                    break;
                }
                found.push(row.sequence);
            }
        }
        self.beyond.store(end, Ordering::Relaxed);
        data.walked += walked as u64;
        Ok(found)
    }

    async fn read_held(
        &self,
        destination: &str,
        key: Key,
        after: i64,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        let data = self.same_server()?;
        let held =
            data.waiting().filter(|row| row.is_held() && row.lane() == Some((key, destination)));
        let held = held.filter(|row| row.sequence > after);
        Ok(page(held, limit).0)
    }

    async fn read_lane(
        &self,
        lane: &LaneKey,
        after: Option<(Wait, i64)>,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        let data = self.same_server()?;
        let after = after.map_or(("", 0), |(wait, sequence)| (wait.as_str(), sequence));
        let mut rows: Vec<((&str, i64), &Row)> = data
            .waiting()
            .filter(|row| row.lane() == Some((lane.key, &lane.destination)))
            .filter(|row| row.is_held() || row.is_waiting_blocker() || row.is_parked())
            .filter_map(|row| Some(((row.wait?.as_str(), row.sequence), row)))
            .filter(|(place, _)| *place > after)
            .collect();
        rows.sort_unstable_by_key(|(place, _)| *place);
        Ok(page(rows.into_iter().map(|(_, row)| row), limit).0)
    }

    async fn read_blockers(&self, limit: Limit) -> Result<Vec<Fetched>> {
        let now = self.server.now();
        let data = self.same_server()?;
        let mut rows: Vec<&Row> = data
            .waiting()
            .filter(|row| row.lane.is_some() && row.is_waiting_blocker() && row.is_due(now))
            .collect();
        rows.sort_unstable_by_key(|row| (row.lane, row.sequence));
        Ok(page(rows.into_iter(), limit).0)
    }

    async fn read_blocked(
        &self,
        shards: &[u16],
        after: Option<&LaneKey>,
        limit: usize,
    ) -> Result<BlockedLanes> {
        let data = self.same_server()?;
        let total = data.shards.unwrap_or(1);
        let mut lanes: Vec<Blocked> = data.lanes();
        lanes.sort_unstable_by(|one, other| place(one).cmp(&place(other)));
        lanes.retain(|lane| {
            after.is_none_or(|after| place(lane) > (after.key, after.destination.as_str()))
        });
        lanes.truncate(limit);
        let wanted =
            |lane: &Blocked| lane.key == Key::OF_ALL || shards.contains(&lane.key.shard(total));
        let lanes = lanes.into_iter().map(|lane| (lane.clone(), wanted(&lane))).collect();
        Ok(BlockedLanes::walked(lanes, limit))
    }

    async fn still_blocked(&self, lanes: &[LaneKey]) -> Result<Vec<Blocked>> {
        let data = self.same_server()?;
        let mut blocked = data.lanes();
        blocked.retain(|lane| lanes.contains(&lane.lane()));
        Ok(blocked)
    }
}

fn place(lane: &Blocked) -> (Key, &str) {
    (lane.key, &lane.destination)
}

impl Data {
    /// All lanes that are blocked, or have held events.
    pub(super) fn lanes(&self) -> Vec<Blocked> {
        let mut lanes = std::collections::BTreeMap::<(Key, String), Blocked>::new();
        for row in self.waiting() {
            let Some((key, destination)) = row.lane() else { continue };
            let (waiting, parked) = (row.is_waiting_blocker(), row.is_parked());
            if !waiting && !parked && !row.is_held() {
                continue;
            }
            let lane = lanes.entry((key, destination.to_owned())).or_insert_with(|| Blocked {
                destination: destination.to_owned(),
                key,
                waiting: false,
                parked: false,
            });
            lane.waiting |= waiting;
            lane.parked |= parked;
        }
        lanes.into_values().collect()
    }
}
