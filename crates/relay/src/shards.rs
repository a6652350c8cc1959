//! The shards that are ours, until when, and which we should have.
//!
//! Live relays hold fair shares. Every relay computes its own from the same census: the owners in
//! order of their names share the shards evenly. One with too many hands its surplus over, after
//! what is in flight has ended; one with too few takes what is free or expired.
//!
//! # When things fail
//!
//! A lease is decided by the database's clock. Our own deadline counts from before the renewal was
//! sent, on the monotonic clock, and a margin before it nothing more is handed to a transport: a
//! relay that was paused, or cannot reach the database, falls silent before another takes over.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use posthaste_core::store::{Census, Held, Position, Relay, RelayOrdering, ShardLease};

/// The shards that this relay holds.
#[derive(Debug)]
pub(crate) struct Shards {
    pub(crate) relay: Relay,
    total: u16,
    held: BTreeMap<u16, Mine>,
    /// Until when the leases are ours for certain.
    deadline: Option<Instant>,
    lease: Duration,
    margin: Duration,
}

#[derive(Debug, Clone)]
struct Mine {
    epoch: i64,
    /// Being handed over: where its next owner starts. Reads that end from now on do not count,
    /// because what they find of this shard is not taken any more.
    handing_over: Option<Position>,
    /// The first read since it was acquired is complete: the hot path may be used.
    read_once: bool,
}

/// What to do after a census.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Try to take these.
    pub(crate) acquire: Vec<u16>,
    /// Hand these over.
    pub(crate) hand_over: Vec<u16>,
}

impl Shards {
    pub(crate) fn new(relay: Relay, total: u16, margin: Duration) -> Self {
        let lease = relay.lease;
        Self { relay, total, held: BTreeMap::new(), deadline: None, lease, margin }
    }

    pub(crate) fn total(&self) -> u16 {
        self.total
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// What this relay should take and hand over, given who is alive. Shards whose old events are
    /// still in flight here are left alone.
    pub(crate) fn plan(&self, census: &Census, busy: &BTreeSet<u16>) -> Plan {
        let me = self.relay.owner();
        // What stands under our name and is not ours was taken by a call whose answer was lost, or has
        // been given up since the server changed.
        let free = |shard: &u16| {
            let owner = census.owners.get(usize::from(*shard)).and_then(Option::as_ref);
            owner.is_none_or(|owner| *owner == me)
                && !self.held.contains_key(shard)
                && !busy.contains(shard)
        };
        let all = 0..self.total;
        if self.relay.ordering == RelayOrdering::Global {
            // Whoever holds shard 0 takes the rest; everybody else stands by, and gives back what it
            // has left of a time when it was the one.
            return match self.held.get(&0) {
                Some(_) if self.handing_over() => Plan::default(),
                Some(_) => Plan { acquire: all.filter(free).collect(), hand_over: Vec::new() },
                None if self.held.is_empty() => {
                    let acquire = std::iter::once(0).filter(free).collect();
                    Plan { acquire, hand_over: Vec::new() }
                }
                None => Plan { acquire: Vec::new(), hand_over: self.reading() },
            };
        }
        let share = share(census, &me, self.total);
        let keeping = self.held.values().filter(|mine| mine.handing_over.is_none()).count();
        if keeping > share {
            let surplus = keeping - share;
            let hand_over = self
                .held
                .iter()
                .rev()
                .filter(|(_, mine)| mine.handing_over.is_none())
                .map(|(shard, _)| *shard)
                .take(surplus)
                .collect();
            return Plan { acquire: Vec::new(), hand_over };
        }
        Plan { acquire: all.filter(free).take(share - keeping).collect(), hand_over: Vec::new() }
    }

    /// Another relay's ordering that does not go with ours.
    pub(crate) fn conflict(&self, census: &Census) -> Option<(String, RelayOrdering)> {
        census
            .live
            .iter()
            .find(|other| other.ordering != self.relay.ordering)
            .map(|other| (other.owner.clone(), other.ordering))
    }

    pub(crate) fn acquired(&mut self, leases: &[ShardLease], asked_at: Instant) {
        for lease in leases {
            let mine = Mine { epoch: lease.held.epoch, handing_over: None, read_once: false };
            self.held.insert(lease.held.shard, mine);
        }
        if !leases.is_empty() {
            // All leases share one deadline: the earliest.
            let until = asked_at + self.lease;
            self.deadline = Some(self.deadline.map_or(until, |known| known.min(until)));
        }
    }

    /// The answer to a renewal of `asked`: gives what was lost.
    pub(crate) fn renewed(
        &mut self,
        asked: &[Held],
        still: &[u16],
        asked_at: Instant,
    ) -> BTreeSet<u16> {
        let still: BTreeSet<u16> = still.iter().copied().collect();
        // What was lost meanwhile, and perhaps taken anew, is not lost once more.
        let lost: BTreeSet<u16> = asked
            .iter()
            .filter(|asked| self.epoch(asked.shard) == Some(asked.epoch))
            .map(|asked| asked.shard)
            .filter(|shard| !still.contains(shard))
            .collect();
        self.held.retain(|shard, _| !lost.contains(shard));
        let until = asked_at + self.lease;
        let renewed = |(shard, mine): (&u16, &Mine)| {
            asked.contains(&Held { shard: *shard, epoch: mine.epoch })
        };
        self.deadline = match self.deadline {
            _ if self.held.is_empty() => None,
            // One was taken meanwhile: its lease began before this renewal and was not renewed.
            Some(known) if !self.held.iter().all(renewed) => Some(known.min(until)),
            _ => Some(until),
        };
        lost
    }

    /// Takes all shards away whose lease can no longer be ours: gives them.
    pub(crate) fn expire(&mut self, now: Instant) -> BTreeSet<u16> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return self.forget();
        }
        BTreeSet::new()
    }

    /// Takes all shards away: gives them.
    pub(crate) fn forget(&mut self) -> BTreeSet<u16> {
        self.deadline = None;
        std::mem::take(&mut self.held).into_keys().collect()
    }

    /// These leases are gone, because a settle was refused or they were handed over. Returns those that
    /// were still held: what was taken anew since stays.
    pub(crate) fn lost(&mut self, gone: &[Held]) -> BTreeSet<u16> {
        let lost: BTreeSet<u16> = gone
            .iter()
            .filter(|gone| self.epoch(gone.shard) == Some(gone.epoch))
            .map(|gone| gone.shard)
            .collect();
        self.held.retain(|shard, _| !lost.contains(shard));
        self.deadline = self.deadline.filter(|_| !self.held.is_empty());
        lost
    }

    /// What is held is enough to begin with. Under `global` that is all: the first event can be of any
    /// shard.
    pub(crate) fn suffices(&self) -> bool {
        self.relay.ordering != RelayOrdering::Global
            || self.held.values().filter(|mine| mine.handing_over.is_none()).count()
                == usize::from(self.total)
    }

    /// Whether events may be handed to a transport now.
    pub(crate) fn may_dispatch(&self, now: Instant) -> bool {
        self.suffices() && self.deadline.is_some_and(|deadline| now + self.margin < deadline)
    }

    pub(crate) fn hand_over(&mut self, shard: u16, mark: &Position) {
        if let Some(mine) = self.held.get_mut(&shard) {
            mine.handing_over = Some(mark.clone());
        }
    }

    /// Shards that can be released now: being handed over and nothing of theirs under way.
    pub(crate) fn releasable(&self, busy: &BTreeSet<u16>) -> Vec<Held> {
        self.held
            .iter()
            .filter(|(shard, mine)| mine.handing_over.is_some() && !busy.contains(shard))
            .map(|(shard, mine)| Held { shard: *shard, epoch: mine.epoch })
            .collect()
    }

    pub(crate) fn handing_over(&self) -> bool {
        self.held.values().any(|mine| mine.handing_over.is_some())
    }

    /// No mark may pass what was forgotten when a hand-over began, nor know of later commits: its
    /// context is that of the first hand-over under way, which the later ones were given too.
    pub(crate) fn hand_over_mark(&self) -> Option<&Position> {
        let marks = self.held.values().filter_map(|mine| mine.handing_over.as_ref());
        marks.min_by_key(|mark| mark.sequence)
    }

    pub(crate) fn held(&self) -> Vec<Held> {
        self.held.iter().map(|(shard, mine)| Held { shard: *shard, epoch: mine.epoch }).collect()
    }

    pub(crate) fn epoch(&self, shard: u16) -> Option<i64> {
        self.held.get(&shard).map(|mine| mine.epoch)
    }

    /// Shards whose events are read.
    pub(crate) fn reading(&self) -> Vec<u16> {
        self.held
            .iter()
            .filter(|(_, mine)| mine.handing_over.is_none())
            .map(|(shard, _)| *shard)
            .collect()
    }

    /// There is a shard whose events are read.
    pub(crate) fn reads(&self) -> bool {
        self.held.values().any(|mine| mine.handing_over.is_none())
    }

    /// The reader has seen everything that was visible.
    pub(crate) fn caught_up(&mut self) {
        for mine in self.held.values_mut() {
            mine.read_once = true;
        }
    }

    /// Whether the hot path may be used for this shard.
    pub(crate) fn takes_hot(&self, shard: u16) -> bool {
        self.held.get(&shard).is_some_and(|mine| mine.read_once && mine.handing_over.is_none())
    }
}

/// This relay's fair share: the owners in order of their names share evenly.
fn share(census: &Census, me: &str, total: u16) -> usize {
    let mut owners: Vec<&str> = census.live.iter().map(|live| live.owner.as_str()).collect();
    if !owners.contains(&me) {
        owners.push(me);
    }
    owners.sort_unstable();
    let count = owners.len();
    let place = owners.iter().position(|owner| *owner == me).unwrap_or(0);
    usize::from(total) / count + usize::from(place < usize::from(total) % count)
}

#[cfg(test)]
mod tests {
    use posthaste_core::store::LiveRelay;
    use uuid::Uuid;

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn shards(name: &str, ordering: RelayOrdering) -> Shards {
        let relay = Relay { name: name.to_owned(), instance: Uuid::nil(), ordering, lease: LEASE };
        Shards::new(relay, 8, LEASE / 10)
    }

    fn census(live: &[&Shards], owners: [Option<&Shards>; 8]) -> Census {
        Census {
            live: live
                .iter()
                .map(|s| LiveRelay { owner: s.relay.owner(), ordering: s.relay.ordering })
                .collect(),
            owners: owners.iter().map(|o| o.map(|s| s.relay.owner())).collect(),
        }
    }

    fn lease(shard: u16) -> ShardLease {
        ShardLease { held: Held { shard, epoch: 1 }, mark: Position::default(), suspect_to: None }
    }

    #[test]
    fn a_lone_relay_wants_every_shard() {
        let a = shards("a", RelayOrdering::PerKey);
        let plan = a.plan(&census(&[&a], [None; 8]), &BTreeSet::new());
        assert_eq!(plan.acquire, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn two_relays_hold_equal_shares_and_the_surplus_is_handed_over() {
        let mut a = shards("a", RelayOrdering::PerKey);
        let b = shards("b", RelayOrdering::PerKey);
        a.acquired(&(0..8).map(lease).collect::<Vec<_>>(), Instant::now());
        let seen = census(&[&a, &b], [Some(&a); 8]);
        assert_eq!(a.plan(&seen, &BTreeSet::new()).hand_over, [7, 6, 5, 4]);
        assert_eq!(b.plan(&seen, &BTreeSet::new()), Plan::default());
    }

    #[test]
    fn a_shard_with_orphans_in_flight_is_not_taken_back() {
        let a = shards("a", RelayOrdering::PerKey);
        let plan = a.plan(&census(&[&a], [None; 8]), &BTreeSet::from([0, 1, 2]));
        assert_eq!(plan.acquire, [3, 4, 5, 6, 7]);
    }

    #[test]
    fn under_global_only_the_holder_of_shard_zero_takes_more() {
        let mut a = shards("a", RelayOrdering::Global);
        let b = shards("b", RelayOrdering::Global);
        assert_eq!(a.plan(&census(&[&a, &b], [None; 8]), &BTreeSet::new()).acquire, [0]);
        a.acquired(&[lease(0)], Instant::now());
        assert!(!a.may_dispatch(Instant::now()));
        let mut owners = [None; 8];
        owners[0] = Some(&a);
        let seen = census(&[&a, &b], owners);
        assert_eq!(a.plan(&seen, &BTreeSet::new()).acquire, (1..8).collect::<Vec<_>>());
        assert_eq!(b.plan(&seen, &BTreeSet::new()), Plan::default());

        // The other one took shard 0 when its lease had run out, and none of the rest.
        a.acquired(&(1..8).map(lease).collect::<Vec<_>>(), Instant::now());
        assert!(a.lost(&[Held { shard: 0, epoch: 0 }]).is_empty(), "that was another time");
        assert_eq!(a.lost(&[Held { shard: 0, epoch: 1 }]), BTreeSet::from([0]));
        let mut owners = [Some(&a); 8];
        owners[0] = Some(&b);
        let seen = census(&[&a, &b], owners);
        let rest = (1..8).collect::<Vec<_>>();
        assert_eq!(a.plan(&seen, &BTreeSet::new()), Plan { acquire: vec![], hand_over: rest });
    }

    #[test]
    fn nothing_is_dispatched_in_the_margin_before_the_deadline() {
        let mut a = shards("a", RelayOrdering::PerKey);
        let asked_at = Instant::now();
        a.acquired(&[lease(0)], asked_at);
        assert!(a.may_dispatch(asked_at + LEASE * 8 / 10));
        assert!(!a.may_dispatch(asked_at + LEASE * 9 / 10));
        assert_eq!(a.expire(asked_at + LEASE), BTreeSet::from([0]));
        assert!(a.is_empty());
    }

    /// It was taken while a renewal was under way that did not ask for it.
    #[test]
    fn a_renewal_does_not_lengthen_the_lease_of_a_shard_that_it_did_not_ask_for() {
        let mut a = shards("a", RelayOrdering::PerKey);
        let begin = Instant::now();
        a.acquired(&[lease(0)], begin);
        let asked = a.held();
        a.acquired(&[lease(1)], begin + LEASE / 10);
        let asked_at = begin + LEASE / 2;
        assert!(a.renewed(&asked, &[0], asked_at).is_empty());
        assert_eq!(a.expire(begin + LEASE), BTreeSet::from([0, 1]));

        // Or it was lost and taken anew.
        a.acquired(&[lease(0)], begin);
        let asked = a.held();
        a.lost(&asked);
        let anew = ShardLease { held: Held { shard: 0, epoch: 2 }, ..lease(0) };
        a.acquired(&[anew], begin);
        assert!(a.renewed(&asked, &[0], asked_at).is_empty());
        assert_eq!(a.expire(begin + LEASE), BTreeSet::from([0]));

        // The next renewal asks for all.
        a.acquired(&[lease(0), lease(1)], begin);
        let asked = a.held();
        a.renewed(&asked, &[0, 1], asked_at);
        assert!(a.expire(begin + LEASE).is_empty());
    }

    #[test]
    fn a_late_answer_to_a_hand_over_takes_no_shard_away_that_was_taken_anew() {
        let mut a = shards("a", RelayOrdering::PerKey);
        a.acquired(&[lease(0), lease(1)], Instant::now());
        let released = a.held();
        a.lost(&released[..1]);
        let anew = ShardLease { held: Held { shard: 0, epoch: 2 }, ..lease(0) };
        a.acquired(&[anew], Instant::now());
        assert_eq!(a.lost(&released), BTreeSet::from([1]));
        assert_eq!(a.held(), [Held { shard: 0, epoch: 2 }]);
    }
}
