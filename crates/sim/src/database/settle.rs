//! Writing outcomes back, fenced.

use async_trait::async_trait;
use posthaste_core::{
    Error, ErrorKind, Result,
    limits::cut_error,
    store::{Attempt, Fence, RowLease, Settle, SettleReport, Settlement, Verdict, Wait},
};

use super::{Data, FOR_EVER, MemoryStore};

/// The relay's owner text in a claim's token.
fn owner_of(token: &str) -> &str {
    token.rsplit_once('#').map_or(token, |(owner, _)| owner)
}

#[async_trait]
impl Settle for MemoryStore {
    async fn settle(
        &self,
        fence: &Fence,
        batch: &[Settlement],
        keep_sent: bool,
    ) -> Result<SettleReport> {
        let now = self.server.now();
        let mut data = match fence {
            Fence::Shards { .. } => self.same_server()?,
            Fence::Rows(_) => self.server.lock(),
        };
        let locked = data.are_locked(batch.iter().map(|event| event.sequence));
        if !locked.is_empty() {
            return Err(Error::new(ErrorKind::TimedOut, "settling: a lock did not become free"));
        }
        match fence {
            Fence::Shards { owner, held } => {
                let valid: Vec<u16> = held
                    .iter()
                    .filter(|held| data.holds(owner, **held))
                    .map(|held| held.shard)
                    .collect();
                let (mine, others): (Vec<_>, Vec<_>) = batch.iter().partition(|event| {
                    // The row's own shard decides: a settlement that names another one is nobody's.
                    valid.contains(&event.shard)
                        && data.rows.get(&event.sequence).is_none_or(|row| row.shard == event.shard)
                });
                for event in mine {
                    let id = data.rows.get(&event.sequence).map(|row| (row.event.id(), row.replay));
                    if data.write(event, None, owner, keep_sent, now) {
                        self.tell(id, &event.verdict);
                    }
                }
                Ok(SettleReport {
                    stale_shards: held
                        .iter()
                        .map(|held| held.shard)
                        .filter(|shard| !valid.contains(shard))
                        .collect(),
                    refused: others.into_iter().map(|event| event.sequence).collect(),
                })
            }
            Fence::Rows(RowLease { token }) => {
                let mut refused = Vec::new();
                for event in batch {
                    let id = data.rows.get(&event.sequence).map(|row| (row.event.id(), row.replay));
                    let written = data.write(event, Some(token), owner_of(token), keep_sent, now);
                    if written {
                        self.tell(id, &event.verdict);
                    }
                    if !written && !data.stands(event, keep_sent) {
                        refused.push(event.sequence);
                    }
                }
                Ok(SettleReport { stale_shards: Vec::new(), refused })
            }
        }
    }

    async fn locked(&self, sequences: &[i64]) -> Result<Vec<i64>> {
        let data = self.same_server()?;
        let mut locked: Vec<i64> = data.are_locked(sequences.iter().copied()).into_iter().collect();
        locked.sort_unstable();
        Ok(locked)
    }
}

impl MemoryStore {
    fn tell(&self, event: Option<(uuid::Uuid, u32)>, verdict: &Verdict) {
        let name = match verdict {
            Verdict::Sent => "sent",
            Verdict::Retry { .. } => "retry",
            Verdict::Dead { .. } => "dead",
            Verdict::Held { .. } => "held",
            Verdict::Suspect { .. } => "suspect",
            Verdict::Unclaimed => "unclaimed",
        };
        if let Some((id, replay)) = event {
            self.server.witness(id, replay, name);
        }
    }
}

impl Data {
    /// Writes an outcome, if the event is still the one that was read, unsettled, and under this token.
    fn write(
        &mut self,
        event: &Settlement,
        token: Option<&str>,
        relay: &str,
        keep_sent: bool,
        now: i64,
    ) -> bool {
        let Some(row) = self.visible(event.sequence) else { return false };
        let is_mine = token.is_none_or(|token| row.locked_by.as_deref() == Some(token));
        if !row.is_unsettled() || row.is_another(event.identity) || !is_mine {
            return false;
        }
        let replay = row.replay;
        if event.verdict == Verdict::Sent && !keep_sent {
            let id = row.event.id();
            self.deleted.push(id);
            self.remove(event.sequence);
            return true;
        }
        let noted = match &event.verdict {
            Verdict::Retry { error, destination, .. } if event.attempts > 0 => {
                Some((error, destination))
            }
            Verdict::Dead { error, destination, .. } => Some((error, destination)),
            _ => None,
        };
        if let Some((error, destination)) = noted {
            let attempts = self.attempts.entry(event.sequence).or_default();
            let known = attempts
                .iter()
                .any(|(life, attempt)| *life == replay && attempt.attempt == event.attempts);
            if !known {
                attempts.push((
                    replay,
                    Attempt {
                        attempt: event.attempts,
                        at: jiff::Timestamp::from_microsecond(now).unwrap_or_default(),
                        relay: relay.to_owned(),
                        destination: destination.clone(),
                        error: cut_error(error).replace('\0', ""),
                    },
                ));
            }
        }
        let attempts = event.attempts;
        let verdict = event.verdict.clone();
        self.change(event.sequence, |row| {
            if !matches!(verdict, Verdict::Suspect { .. }) {
                row.locked_by = None;
                row.locked_until = None;
            }
            match verdict {
                Verdict::Sent => {
                    row.sent_at = Some(now);
                    row.not_before = None;
                    row.wait = None;
                    row.lane = None;
                }
                Verdict::Retry { after, error, destination, key, replay } => {
                    let after = i64::try_from(after.as_micros()).unwrap_or(i64::MAX);
                    row.attempts = attempts;
                    row.wait = Some(if replay { Wait::Replay } else { Wait::Retry });
                    row.lane = key;
                    row.not_before = Some(now.saturating_add(after).min(FOR_EVER - 1));
                    row.destination = Some(destination);
                    row.last_error = Some(cut_error(&error).replace('\0', ""));
                }
                Verdict::Dead { error, destination, parked } => {
                    row.attempts = attempts;
                    row.dead_at = Some(now);
                    row.lane = parked;
                    row.wait = parked.map(|_| Wait::Parked);
                    row.not_before = parked.map(|_| FOR_EVER);
                    row.destination = Some(destination);
                    row.last_error = Some(cut_error(&error).replace('\0', ""));
                }
                Verdict::Held { destination, key } => {
                    row.wait = Some(Wait::Held);
                    row.lane = Some(key);
                    row.not_before = Some(FOR_EVER);
                    row.destination = Some(destination);
                }
                Verdict::Suspect { destination, key, replay } => {
                    row.attempts = attempts;
                    row.not_before = Some(now);
                    row.wait = Some(if replay { Wait::Replay } else { Wait::Suspect });
                    row.lane = key;
                    row.destination = Some(destination);
                }
                Verdict::Unclaimed => {}
            }
        });
        true
    }

    /// Whether an outcome that was not written now was written before: its answer was lost.
    fn stands(&self, event: &Settlement, keep_sent: bool) -> bool {
        let Some(row) = self.visible(event.sequence) else {
            return event.verdict == Verdict::Sent && !keep_sent;
        };
        let is_free = row.locked_by.is_none();
        match &event.verdict {
            Verdict::Sent => row.sent_at.is_some(),
            Verdict::Dead { .. } => row.dead_at.is_some(),
            Verdict::Retry { replay, .. } => {
                let wait = if *replay { Wait::Replay } else { Wait::Retry };
                is_free
                    && row.is_unsettled()
                    && row.wait == Some(wait)
                    && row.attempts == event.attempts
            }
            Verdict::Held { .. } => is_free && row.is_held(),
            Verdict::Suspect { .. } => false,
            Verdict::Unclaimed => is_free && row.is_unsettled(),
        }
    }
}
