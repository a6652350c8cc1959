//! Claim: heartbeats, renewals, taking shards and handing them over.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Instant,
};

use posthaste_core::{
    Error, ErrorKind, Result,
    store::{Census, Held, Position, RelayOrdering, ShardLease},
};

use crate::{
    driver::{Done, Driver, RETRY_PAUSE},
    read::{Survey, within},
};

/// How far a relay may hand out events beyond what it has seen when it last reported. After a crash
/// everything up to there is suspect, so it is not large; each report is a write, so it is not
/// small.
const RESERVE: i64 = 20_000;

/// A heartbeat's answer, and that of the renewal that went with it.
pub(crate) struct Tick {
    census: Census,
    renewed: Option<Renewed>,
}

struct Renewed {
    asked: Vec<Held>,
    asked_at: Instant,
    still: Vec<u16>,
}

impl Driver {
    /// Whether heartbeats are sent. A relay that is switched off is none to the others; before the
    /// pauses are known nothing could be done with the answer.
    pub(crate) fn ticks(&self) -> bool {
        self.config.enabled && self.pauses.known()
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        let reserve_runs_out =
            !self.by_rows() && self.highest.saturating_add(RESERVE / 2) > self.reserved;
        if self.ticking
            || self.resting
            || self.stopping.is_some()
            || now < self.tick_not_before
            || !self.ticks()
            || !(now >= self.tick_at || self.tick_now || reserve_runs_out)
        {
            return;
        }
        self.ticking = true;
        self.tick_now = false;
        // The census is cheap and comes often, so that what another relay leaves is taken soon;
        // renewals write every lease and come at the heartbeat.
        self.tick_at = now + self.config.heartbeat.min(self.config.idle_interval);
        let renew = now >= self.renew_at;
        if renew {
            self.renew_at = now + self.config.heartbeat;
        }
        let reserved = self.highest.saturating_add(RESERVE);
        let held = self.shards.held();
        let mark = self.mark();
        let rows = if self.by_rows() { self.lanes.claimed() } else { Vec::new() };
        let listed_at = self.claiming.listed_at(now);
        let relay = self.shards.relay.clone();
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        let (by_rows, deadline) = (self.by_rows(), self.config.deadline());
        self.tasks.spawn(async move {
            let tick = async {
                let census = within(deadline, store.heartbeat(&relay, reserved)).await?;
                let mut renewed = None;
                if renew {
                    // Rows that come from claims under way are not renewed.
                    let asked_at = if by_rows { listed_at } else { clock.now() };
                    let mut still = Vec::new();
                    if by_rows {
                        if !rows.is_empty() {
                            within(deadline, store.renew_rows(&relay, &rows)).await?;
                        }
                    } else if !held.is_empty() {
                        still = within(deadline, store.renew(&relay, &held, &mark)).await?;
                    }
                    renewed = Some(Renewed { asked: held, asked_at, still });
                }
                Ok(Tick { census, renewed })
            }
            .await;
            Done::Tick { tick, reserved }
        });
    }

    pub(crate) fn ticked(&mut self, tick: Result<Tick>, reserved: i64, now: Instant) -> Result<()> {
        self.ticking = false;
        let Tick { census, renewed } = match tick {
            Ok(tick) => tick,
            Err(error) if error.kind() == ErrorKind::Schema => return Err(error),
            Err(error) => {
                self.database_failed("renewing leases", &error);
                self.renew_at = now;
                // Whatever else wants a heartbeat: one that fails at once is not repeated at once.
                self.tick_at = now + RETRY_PAUSE;
                self.tick_not_before = self.tick_at;
                return Ok(());
            }
        };
        self.reserved = self.reserved.max(reserved);
        self.pulse.reached_database(now);
        self.count_relays(&census, now);
        if let Some((owner, ordering)) = self.shards.conflict(&census) {
            let message = format!(
                "relay {owner} works on this outbox with ordering {ordering}, this one with {}; \
                 stop that one first",
                self.config.ordering
            );
            // The newcomer gives way.
            if !self.acquired_once {
                return Err(Error::new(ErrorKind::State, message));
            }
            tracing::warn!("{message}");
        }
        if self.by_rows() {
            if let Some(renewed) = renewed {
                self.rows_until = renewed.asked_at + self.config.lease;
            }
            self.acquired_once = true;
            return Ok(());
        }
        if let Some(Renewed { asked, asked_at, still }) = renewed
            && !asked.is_empty()
        {
            let lost = self.shards.renewed(&asked, &still, asked_at);
            if !lost.is_empty() {
                tracing::warn!(shards = lost.len(), "leases were lost to another relay");
            }
            self.lose(&lost);
        }
        if self.stopping.is_some() || self.acquiring || !self.wanted.is_empty() {
            return Ok(());
        }
        if self.rests() {
            self.acquired_once = true;
            return Ok(());
        }
        let census = self.pauses.sharing(&census);
        let plan = self.shards.plan(&census, &self.busy_shards());
        if plan.acquire.is_empty() {
            self.acquired_once = true;
        }
        self.wanted = plan.acquire;
        self.give_away(plan.hand_over);
        Ok(())
    }

    /// Nothing more of these is taken in; once what is under way has ended, they are handed over.
    pub(crate) fn give_away(&mut self, shards: Vec<u16>) {
        let mark = self.mark();
        for &shard in &shards {
            self.shards.hand_over(shard, &mark);
            self.lanes.close_shard(shard);
        }
        self.end_survey(|shard| shards.contains(&shard));
    }

    /// Of these shards nothing is asked any more.
    fn end_survey(&mut self, of: impl Fn(u16) -> bool) {
        if let Some(survey) = &mut self.survey {
            survey.shards.retain(|shard| !of(*shard));
            if survey.shards.is_empty() {
                self.survey = None;
            }
        }
    }

    /// Who is alive, which of them keeps house, and whether shards are left that are nobody's.
    fn count_relays(&mut self, census: &Census, now: Instant) {
        self.observer.meters.relays_alive(census.live.len());
        let sharing = self.pauses.sharing(census).live;
        let first = sharing.first().or(census.live.first());
        let duty = first.is_some_and(|first| first.owner == self.shards.relay.owner());
        self.wires.duty.set(duty);
        let unowned = census.owners.iter().any(Option::is_none);
        let free = (0_u16..).zip(&census.owners).filter(|(_, owner)| owner.is_none());
        self.stalls.unowned = free.map(|(shard, _)| shard).collect();
        let waits = !self.rests() && !self.by_rows() && self.shards.is_empty();
        self.pulse.unowned(now, waits && unowned);
    }

    /// Takes the wanted shards, while no poll is under way: the context of a poll that does not know
    /// the new shards must not be newer than the look behind their marks, or a late commit of theirs
    /// would fall between the two.
    pub(crate) fn acquire(&mut self) {
        if self.wanted.is_empty() || self.acquiring || self.source.is_reading() {
            return;
        }
        self.acquiring = true;
        let wanted = std::mem::take(&mut self.wanted);
        let relay = self.shards.relay.clone();
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        let deadline = self.config.deadline();
        self.tasks.spawn(async move {
            let asked_at = clock.now();
            let leases = within(deadline, store.acquire(&relay, &wanted)).await;
            Done::Acquired { asked_at, leases }
        });
    }

    /// Reading starts again where nothing of the new shards is missed, and not before it is known which
    /// of their lanes are blocked. From here on they are renewed with the others.
    pub(crate) fn acquired(&mut self, asked_at: Instant, leases: Result<Vec<ShardLease>>) {
        self.acquiring = false;
        self.acquired_once = true;
        let leases = match leases {
            Ok(leases) => leases,
            // If it was done all the same, they stand under our name and are taken again.
            Err(error) => return self.database_failed("acquiring shards", &error),
        };
        if leases.is_empty() {
            return;
        }
        tracing::debug!(
            shards = leases.len(),
            unclean = leases.iter().filter(|lease| lease.suspect_to.is_some()).count(),
            "acquired"
        );
        self.shards.acquired(&leases, asked_at);
        for lease in &leases {
            self.lanes.open_shard(lease.held.shard, lease.suspect_to);
        }
        let mut positions: Vec<Position> = leases.iter().map(|lease| lease.mark.clone()).collect();
        let marks = self.store.join(&positions);
        positions.extend(self.source.placed().cloned());
        let joined = self.store.join(&positions);
        if joined == Position::default() && marks != joined && self.source.placed().is_some() {
            // What was read before has nothing in common with the marks.
            let moved = Error::new(ErrorKind::Moved, "the server has changed since the last read");
            return self.moved(&moved);
        }
        let store = &self.store;
        self.source.rewind(joined, |positions| store.join(positions));
        let before = self.survey.take().filter(|survey| survey.taken);
        let mut shards = before.map_or_else(Vec::new, |survey| survey.shards);
        shards.extend(leases.iter().map(|lease| lease.held.shard));
        self.surveys += 1;
        self.survey = Some(Survey::new(self.surveys, shards, true, self.clock.now()));
        // Global needs the rest before it can start; others may have left more.
        self.tick_now = true;
    }

    fn busy_shards(&self) -> BTreeSet<u16> {
        self.lanes.busy_shards(|sequence| self.unwritten.is_aside(sequence))
    }

    pub(crate) fn hand_over(&mut self) {
        if self.handing_over || self.stopping.is_some() || !self.shards.handing_over() {
            return;
        }
        let held = self.shards.releasable(&self.busy_shards());
        if held.is_empty() {
            return;
        }
        self.handing_over = true;
        let mark = self.mark();
        let (store, relay) = (Arc::clone(&self.store), self.shards.relay.clone());
        let deadline = self.config.deadline();
        self.tasks.spawn(async move {
            let result = within(deadline, store.release(&relay, &held, &mark)).await;
            Done::HandedOver { held, result }
        });
    }

    /// Where the next owner of our shards would start. Of shards that are being given away nothing is
    /// taken in any more, so no mark may be further, or know of more commits, than when that began.
    pub(crate) fn mark(&self) -> Position {
        let position = self.source.position();
        let sequence = self.lanes.mark(position.sequence);
        let sequence = self.source.behind_mark().map_or(sequence, |behind| sequence.min(behind));
        let stopping = self.stopping.as_ref().map(|stopping| &stopping.mark);
        let position = Position { sequence, context: position.context.clone() };
        match stopping.or_else(|| self.shards.hand_over_mark()) {
            // Shards that came since may stand further back.
            Some(mark) => self.store.join(&[position, mark.clone()]),
            None => position,
        }
    }

    pub(crate) fn drop_expired(&mut self, now: Instant) {
        let lost = self.shards.expire(now);
        if !lost.is_empty() {
            tracing::warn!(shards = lost.len(), "leases ran out before they could be renewed");
            self.lose(&lost);
        }
        // Whoever works here takes the rest, and no attempt of theirs is counted. While it stops, claims that
        // were under way bring more.
        if self.by_rows() && (self.stopping.is_some() || !self.owns_rows(now)) {
            self.lanes.give_back(now);
        }
    }

    /// The server is another one, or has lost commits: nothing that was read from it counts. The shards
    /// are taken anew at once, with a higher epoch.
    pub(crate) fn moved(&mut self, error: &Error) {
        tracing::warn!(relay = %self.config.name, %error, "starting again from the stored marks");
        let all = self.shards.forget();
        self.lose(&all);
        if self.by_rows() {
            self.lanes.forget_claims();
            self.reset_source();
        }
    }

    /// Outcomes that are laid aside under leases that are no longer ours.
    pub(crate) fn forget_lost(&mut self) {
        let held: HashSet<Held> = self.shards.held().into_iter().collect();
        let forgotten = self.unwritten.forget(|one| held.contains(one));
        self.lanes.refused(forgotten);
    }

    pub(crate) fn lose(&mut self, lost: &BTreeSet<u16>) {
        if lost.is_empty() {
            return;
        }
        if self.config.ordering == RelayOrdering::Global {
            // The events of all shards follow each other in one lane: without those of the lost ones
            // the rest cannot go on where it is.
            self.give_away(self.shards.reading());
        }
        self.lanes.lose_shards(lost);
        self.forget_lost();
        self.end_survey(|shard| lost.contains(&shard));
        if self.shards.is_empty() {
            self.reset_source();
        }
        self.tick_now = true;
    }
}
