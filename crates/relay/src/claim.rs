//! Claim: heartbeats, renewals, taking shards and handing them over.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use posthaste_core::{
    Error, ErrorKind, Result,
    store::{
        Blocked, Census, Fetched, Held, Position, Relay as Identity, RelayOrdering, ShardLease,
        Store,
    },
};

use crate::{
    driver::{Done, Driver, RETRY_PAUSE},
    lanes::Origin,
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

/// New shards, with everything that must be known before the first event of theirs is handed out.
pub(crate) struct Acquired {
    leases: Vec<ShardLease>,
    blocked: Vec<Blocked>,
    late: Vec<Fetched>,
    /// From the first of the late reads: whatever was not visible then is found later.
    context: String,
}

impl Driver {
    /// Whether heartbeats are sent. A relay that is switched off is none to the others; before the
    /// pauses are known nothing could be done with the answer.
    pub(crate) fn ticks(&self) -> bool {
        self.config.enabled && self.pauses.known()
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        let reserve_runs_out = !self.by_rows() && self.highest + RESERVE / 2 > self.reserved;
        if self.ticking
            || self.resting
            || self.stopping.is_some()
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
        let reserved = self.highest + RESERVE;
        let held = self.shards.held();
        let mark = self.mark();
        let leases = if self.by_rows() { self.lanes.leases() } else { Vec::new() };
        let relay = self.shards.relay.clone();
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        let by_rows = self.by_rows();
        self.tasks.spawn(async move {
            let tick = async {
                let census = store.heartbeat(&relay, reserved).await?;
                let mut renewed = None;
                if renew {
                    let asked_at = clock.now();
                    let mut still = Vec::new();
                    if by_rows {
                        if !leases.is_empty() {
                            store.renew_rows(&relay, &leases).await?;
                        }
                    } else if !held.is_empty() {
                        still = store.renew(&relay, &held, &mark).await?;
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
                self.tick_at = now + RETRY_PAUSE;
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
        let plan = self.shards.plan(&census, &self.lanes.busy_shards());
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
        for shard in shards {
            self.shards.hand_over(shard, &mark);
            self.lanes.close_shard(shard);
        }
    }

    /// Who is alive, which of them keeps house, and whether shards are left that are nobody's.
    fn count_relays(&self, census: &Census, now: Instant) {
        self.observer.meters.relays_alive(census.live.len());
        let sharing = self.pauses.sharing(census).live;
        let first = sharing.first().or(census.live.first());
        let duty = first.is_some_and(|first| first.owner == self.shards.relay.owner());
        self.wires.duty.send_if_modified(|known| std::mem::replace(known, duty) != duty);
        let unowned = census.owners.iter().any(Option::is_none);
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
        self.tasks.spawn(async move {
            let asked_at = clock.now();
            let acquired = acquire(&*store, &relay, &wanted).await;
            Done::Acquired { asked_at, acquired }
        });
    }

    pub(crate) fn acquired(&mut self, asked_at: Instant, acquired: Result<Acquired>) {
        self.acquiring = false;
        self.acquired_once = true;
        let Acquired { leases, blocked, late, context } = match acquired {
            Ok(acquired) => acquired,
            Err(error) => return self.database_failed("acquiring shards", &error),
        };
        let Some(mark) = leases.iter().map(|lease| lease.mark.sequence).min() else {
            return;
        };
        tracing::debug!(
            shards = leases.len(),
            unclean = leases.iter().filter(|lease| lease.suspect_to.is_some()).count(),
            "acquired"
        );
        self.shards.acquired(&leases, asked_at);
        for lease in &leases {
            self.lanes.open_shard(lease.held.shard, lease.suspect_to);
        }
        for lane in &blocked {
            let shard = ((lane.key.0 as u64 >> 32) % u64::from(self.shards.total())) as u16;
            self.lanes.block(shard, lane);
        }
        self.offer_all(late, Origin::Cold, None);
        self.source.rewind(Position { sequence: mark, context });
        // Global needs the rest before it can start; others may have left more.
        self.tick_now = true;
    }

    pub(crate) fn hand_over(&mut self) {
        if self.handing_over || self.stopping.is_some() || !self.shards.handing_over() {
            return;
        }
        let held = self.shards.releasable(&self.lanes.busy_shards());
        if held.is_empty() {
            return;
        }
        self.handing_over = true;
        let mark = self.mark();
        let (store, relay) = (Arc::clone(&self.store), self.shards.relay.clone());
        self.tasks.spawn(async move {
            let result = store.release(&relay, &held, &mark).await;
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
        match stopping.or_else(|| self.shards.hand_over_mark()) {
            Some(mark) => Position { sequence: sequence.min(mark.sequence), ..mark.clone() },
            None => Position { sequence, context: position.context.clone() },
        }
    }

    pub(crate) fn drop_expired(&mut self, now: Instant) {
        let lost = self.shards.expire(now);
        if !lost.is_empty() {
            tracing::warn!(shards = lost.len(), "leases ran out before they could be renewed");
            self.lose(&lost);
        }
        if self.by_rows() && now + self.config.margin() >= self.rows_until {
            self.lanes.forget_claims();
        }
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
        if self.shards.is_empty() {
            self.reset_source();
        }
        self.tick_now = true;
    }
}

/// Takes shards and learns all that must be known before their first event is handed out: which
/// lanes are blocked, and what became visible behind the marks.
async fn acquire(store: &dyn Store, relay: &Identity, wanted: &[u16]) -> Result<Acquired> {
    let leases = store.acquire(relay, wanted).await?;
    let look = async {
        let mut late = Vec::new();
        let mut context = None;
        let mut marks: Vec<&Position> = leases.iter().map(|lease| &lease.mark).collect();
        marks.sort_by(|a, b| (a.sequence, &a.context).cmp(&(b.sequence, &b.context)));
        marks.dedup();
        for mark in marks {
            let shards: Vec<u16> = leases
                .iter()
                .filter(|lease| lease.mark == *mark)
                .map(|lease| lease.held.shard)
                .collect();
            // All of them: the marks of several shards have no context in common to go on from.
            let page = store.read_late(&shards, mark, i32::MAX as usize).await?;
            late.extend(page.rows);
            context.get_or_insert(page.position.context);
        }
        let shards: Vec<u16> = leases.iter().map(|lease| lease.held.shard).collect();
        let blocked =
            if shards.is_empty() { Vec::new() } else { store.read_blocked(&shards).await? };
        Ok((late, context.unwrap_or_default(), blocked))
    };
    match look.await {
        Ok((late, context, blocked)) => Ok(Acquired { leases, blocked, late, context }),
        Err(error) => {
            // Without that knowledge they are of no use: give them back as they were.
            for lease in &leases {
                if let Err(error) = store.release(relay, &[lease.held], &lease.mark).await {
                    tracing::warn!(%error, "a shard was not given back; its lease expires");
                }
            }
            Err(error)
        }
    }
}
