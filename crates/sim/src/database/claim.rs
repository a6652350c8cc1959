//! Taking single rows, for unordered work.
//!
//! The context of a claimer is that of its reads: transactions that were open when its cursor passed them,
//! and `floor|`, up to which all rows are settled or wait.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{
        Claim, ClaimedRows, ExpiredRow, Fetched, Limit, Position, Relay, RowLease, RowsInHand,
    },
};

use super::{Data, MemoryStore, micros, moved, read::page};

/// Where the sweeps of a claimer stand: `life;floor;after`.
struct Sweep {
    floor: i64,
    after: i64,
}

impl Data {
    fn sweep(&self, from: &Position) -> Result<Sweep> {
        let start = Sweep { floor: self.floor(), after: 0 };
        let mut parts = from.context.split(';').map(str::parse::<i64>);
        let (Some(Ok(life)), Some(Ok(floor)), Some(Ok(after))) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Ok(start);
        };
        if life == self.life as i64 { Ok(Sweep { floor, after }) } else { Err(moved()) }
    }

    fn place(&self, sweep: &Sweep) -> String {
        format!("{};{};{}", self.life, sweep.floor, sweep.after)
    }

    /// Claims these, as far as nobody has locked them.
    fn take(
        &mut self,
        sequences: &[i64],
        relay: &Relay,
        lease: &RowLease,
        now: i64,
    ) -> Vec<Fetched> {
        let until = now.saturating_add(micros(relay.lease));
        let mut rows = Vec::new();
        for &sequence in sequences {
            self.change(sequence, |row| {
                row.locked_by = Some(lease.token.clone());
                row.locked_until = Some(until);
            });
            rows.extend(self.rows.get(&sequence).map(super::Row::fetched));
        }
        rows
    }

    fn is_over(&self, until: Option<i64>, lease: i64, now: i64) -> bool {
        let longest = self.relays.values().map(|relay| relay.lease).max().unwrap_or(0).max(lease);
        until.is_some_and(|until| until < now || until > now.saturating_add(2 * longest))
    }
}

fn half(limit: Limit, rows: usize) -> Limit {
    Limit { rows, bytes: limit.bytes.div_ceil(2) }
}

#[async_trait]
impl Claim for MemoryStore {
    async fn claim(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        let now = self.server.now();
        let mut data = self.server.lock();
        let sweep = data.sweep(from)?;
        let start = data.floor().max(from.sequence);
        let free = |row: &&super::Row| {
            row.locked_until.is_none() && row.is_unsettled() && !data.locked.contains(&row.sequence)
        };
        let mut due: Vec<&super::Row> =
            data.waiting().filter(|row| row.is_due(now)).filter(free).collect();
        due.sort_unstable_by_key(|row| (row.not_before, row.sequence));
        let (due, all_due) = page(due.into_iter(), half(limit, (limit.rows / 2).max(1)));
        let rest = half(limit, limit.rows.saturating_sub(due.len()));
        let fresh =
            data.rows.range(start + 1..).map(|(_, row)| row).filter(|row| data.is_visible(row));
        let (fresh, all_fresh) =
            page(fresh.filter(|row| row.not_before.is_none()).filter(free), rest);
        let cut = fresh.iter().map(|row| row.sequence).max().unwrap_or(start);
        let sequence = if all_fresh { data.newest().max(start) } else { cut };
        let mut sequences: Vec<i64> = due.iter().chain(&fresh).map(|row| row.sequence).collect();
        sequences.sort_unstable();
        let rows = data.take(&sequences, relay, lease, now);
        let position = Position { sequence, context: data.place(&sweep) };
        Ok(ClaimedRows { rows, position, caught_up: all_due && all_fresh })
    }

    async fn claim_late(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        let now = self.server.now();
        let mut data = self.server.lock();
        let mut sweep = data.sweep(from)?;
        // Open transactions hold the floor: what they have written can still become visible.
        let unfinished = |row: &super::Row| {
            data.open.contains(&row.transaction) || row.is_unsettled() && row.not_before.is_none()
        };
        let mut above = data.between(sweep.floor, from.sequence);
        let lowest = above.find(|row| unfinished(row)).map(|row| row.sequence);
        drop(above);
        sweep.floor = lowest.map_or(from.sequence, |lowest| lowest - 1).max(sweep.floor);
        let start = sweep.after.max(sweep.floor);
        let fresh = data.between(start, from.sequence).filter(|row| {
            data.is_visible(row)
                && row.not_before.is_none()
                && row.locked_until.is_none()
                && row.is_unsettled()
                && !data.locked.contains(&row.sequence)
        });
        let (found, all) = page(fresh, limit);
        let sequences: Vec<i64> = found.iter().map(|row| row.sequence).collect();
        sweep.after = match sequences.last() {
            Some(last) if !all => *last,
            _ => sweep.floor,
        };
        let rows = data.take(&sequences, relay, lease, now);
        let floor = sweep.floor;
        for lease in data.leases.iter_mut().filter(|lease| lease.locked_until <= now) {
            lease.mark.sequence = lease.mark.sequence.max(floor);
        }
        let position = Position { sequence: from.sequence, context: data.place(&sweep) };
        Ok(ClaimedRows { rows, position, caught_up: all })
    }

    async fn claim_expired(
        &self,
        relay: &Relay,
        lease: &RowLease,
        until: i64,
    ) -> Result<ExpiredRow> {
        let now = self.server.now();
        let mut data = self.server.lock();
        let expired = data
            .rows
            .range(..=until)
            .map(|(_, row)| row)
            .filter(|row| row.is_unsettled() && !data.locked.contains(&row.sequence))
            .filter(|row| data.is_over(row.locked_until, micros(relay.lease), now))
            .min_by_key(|row| row.locked_until)
            .map(|row| row.sequence);
        let Some(sequence) = expired else { return Ok(ExpiredRow::default()) };
        data.change(sequence, |row| row.attempts += 1);
        let row = data.take(&[sequence], relay, lease, now).pop();
        Ok(ExpiredRow { row, more: true })
    }

    async fn claim_hot(
        &self,
        relay: &Relay,
        lease: &RowLease,
        sequences: &[i64],
    ) -> Result<Vec<Fetched>> {
        let now = self.server.now();
        let mut data = self.server.lock();
        let free = |row: &&super::Row| {
            row.locked_until.is_none()
                && row.is_unsettled()
                && row.not_before.is_none_or(|at| at <= now)
                && !data.locked.contains(&row.sequence)
        };
        let mut free: Vec<i64> = sequences
            .iter()
            .filter_map(|sequence| data.visible(*sequence))
            .filter(free)
            .map(|row| row.sequence)
            .collect();
        free.sort_unstable();
        free.dedup();
        Ok(data.take(&free, relay, lease, now))
    }

    async fn renew_rows(&self, relay: &Relay, rows: &[RowsInHand]) -> Result<()> {
        let until = self.server.now().saturating_add(micros(relay.lease));
        let mut data = self.server.lock();
        for RowsInHand { lease, sequences } in rows {
            for &sequence in sequences {
                let locked = data.locked.contains(&sequence);
                data.change(sequence, |row| {
                    if row.locked_by.as_ref() == Some(&lease.token) && row.is_unsettled() && !locked
                    {
                        row.locked_until = Some(until);
                    }
                });
            }
        }
        Ok(())
    }

    async fn unclaim(&self, lease: &RowLease, sequences: &[i64]) -> Result<()> {
        let mut data = self.server.lock();
        for &sequence in sequences {
            let locked = data.locked.contains(&sequence);
            data.change(sequence, |row| {
                if row.locked_by.as_ref() == Some(&lease.token) && row.is_unsettled() && !locked {
                    row.locked_by = None;
                    row.locked_until = None;
                }
            });
        }
        Ok(())
    }
}
