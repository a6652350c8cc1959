//! What an operator does to events: replay, discard, purge.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Error, ErrorKind, Key, Result, Status,
    status::Step,
    store::{Operate, Purged, Selection, Wait},
};

use super::{Data, FOR_EVER, MemoryStore, Row, micros};

impl Data {
    /// The events on which a step is taken.
    fn picked(&self, selection: &Selection, step: Step, now: i64) -> Result<Vec<i64>> {
        match selection {
            Selection::One(id) => {
                let row = self.by_id.get(id).and_then(|sequence| self.visible(*sequence));
                let Some(row) = row else {
                    let error = format!("event {id} is not in the outbox");
                    return Err(Error::new(ErrorKind::NotFound, error));
                };
                row.status(now).after(step)?;
                Ok(vec![row.sequence])
            }
            Selection::These { sequences, status } => {
                status.after(step)?;
                let rows = sequences.iter().filter_map(|sequence| self.visible(*sequence));
                Ok(rows.filter(|row| row.status(now) == *status).map(|row| row.sequence).collect())
            }
            Selection::Matching { filter, limit } => {
                if step == Step::Replay
                    && !matches!(filter.status, Some(Status::Dead | Status::Sent))
                {
                    return Err(Error::invalid(
                        "replay needs a status of dead or sent; events in another state are still \
                         on their way",
                    ));
                }
                let rows = self.rows.values().filter(|row| {
                    self.is_visible(row)
                        && row.matches(filter, now)
                        && row.status(now).after(step).is_ok()
                });
                Ok(rows.take(*limit).map(|row| row.sequence).collect())
            }
        }
    }

    /// The lane that this row blocks. A held event that was set free stands for its lane: gone, it would
    /// leave the others held.
    fn blocks(row: &Row) -> Option<(Key, String)> {
        let blocks = match row.wait {
            Some(Wait::Retry | Wait::Parked | Wait::Suspect) => true,
            Some(Wait::Held) => row.not_before.is_some_and(|at| at < FOR_EVER),
            Some(Wait::Replay) | None => false,
        };
        row.lane().filter(|_| blocks).map(|(key, destination)| (key, destination.to_owned()))
    }

    /// The first held event of each lane that has lost its blocker falls due.
    fn release_lanes(&mut self, lanes: &[(Key, String)], now: i64) {
        for (key, destination) in lanes {
            let first = self
                .waiting()
                .find(|row| row.is_held() && row.lane() == Some((*key, destination)))
                .map(|row| row.sequence);
            if let Some(first) = first {
                self.change(first, |row| row.not_before = Some(now));
            }
        }
    }
}

#[async_trait]
impl Operate for MemoryStore {
    async fn replay(&self, selection: &Selection) -> Result<u64> {
        let now = self.server.now();
        let mut data = self.server.lock();
        let picked = data.picked(selection, Step::Replay, now)?;
        for &sequence in &picked {
            data.change(sequence, |row| {
                let parked = row.wait == Some(Wait::Parked);
                row.sent_at = None;
                row.dead_at = None;
                row.attempts = 0;
                row.replay += 1;
                row.last_error = None;
                row.not_before = Some(now);
                row.wait = Some(if parked { Wait::Retry } else { Wait::Replay });
                row.lane = row.lane.filter(|_| parked);
                row.locked_by = None;
                row.locked_until = None;
            });
        }
        Ok(picked.len() as u64)
    }

    async fn discard(&self, selection: &Selection) -> Result<u64> {
        let now = self.server.now();
        let mut data = self.server.lock();
        let picked = data.picked(selection, Step::Discard, now)?;
        let lanes: Vec<_> = picked
            .iter()
            .filter_map(|sequence| data.rows.get(sequence).and_then(Data::blocks))
            .collect();
        for &sequence in &picked {
            if let Some(row) = data.rows.get(&sequence) {
                self.server.witness(row.event.id(), row.replay, "discarded");
            }
            data.change(sequence, |row| {
                row.discarded_at = Some(now);
                row.dead_at = None;
                row.not_before = None;
                row.wait = None;
                row.lane = None;
                row.locked_by = None;
                row.locked_until = None;
            });
        }
        data.release_lanes(&lanes, now);
        Ok(picked.len() as u64)
    }

    async fn purge(
        &self,
        sent: Duration,
        dead: Option<Duration>,
        batch: usize,
        cursor: Option<i64>,
    ) -> Result<Purged> {
        let now = self.server.now();
        let mut data = self.server.lock();
        let mut deleted = 0;
        if let (None, Some(dead)) = (cursor, dead) {
            let old = |row: &&Row| row.dead_at.is_some_and(|at| at < now - micros(dead));
            let old: Vec<i64> = data
                .rows
                .values()
                .filter(old)
                .filter(|row| !data.locked.contains(&row.sequence))
                .take(batch)
                .map(|row| row.sequence)
                .collect();
            let lanes: Vec<_> = old
                .iter()
                .filter_map(|sequence| data.rows.get(sequence).and_then(Data::blocks))
                .collect();
            for &sequence in &old {
                data.remove(sequence);
            }
            data.release_lanes(&lanes, now);
            deleted += old.len() as u64;
        }
        let position = cursor.unwrap_or(data.purge_position);
        let limit = now.saturating_sub(micros(sent));
        let visible = data.rows.range(position + 1..).map(|(_, row)| row);
        let examined: Vec<(i64, bool, bool)> = visible
            .filter(|row| data.is_visible(row))
            .take(batch)
            .map(|row| {
                let settled = row.sent_at.or(row.discarded_at);
                let old =
                    settled.is_some_and(|at| at < limit) && !data.locked.contains(&row.sequence);
                (row.sequence, old, row.created_at < limit)
            })
            .collect();
        let Some(&(last, _, last_is_old)) = examined.last() else {
            return Ok(Purged { deleted, next: None });
        };
        let old: Vec<i64> =
            examined.iter().filter(|(_, old, _)| *old).map(|(sequence, ..)| *sequence).collect();
        for &sequence in &old {
            data.remove(sequence);
        }
        if old.len() == examined.len() && data.purge_position == position {
            data.purge_position = last;
        }
        deleted += old.len() as u64;
        let next = (examined.len() >= batch && last_is_old).then_some(last);
        Ok(Purged { deleted, next })
    }
}
