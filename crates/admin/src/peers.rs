//! How many connections each peer has, and which of them it can do without.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

/// Most connections of one peer at once. Whoever takes all there are must have many addresses.
pub(crate) const OF_ONE_PEER: usize = 16;

/// The network of an IPv6 address, of which a single host commonly has 2^64 addresses; any other address itself. A
/// listener on `::` sees an IPv4 peer as an IPv6 address, and all of these are in one network.
fn counted_as(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => {
            let [a, b, c, d, ..] = peer.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        peer @ IpAddr::V4(_) => peer,
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Waits for a request, since then.
    Idle(Instant),
    /// A request is worked on.
    Asked,
    /// The answer is on its way. No answer here is a stream: all of it is written at once.
    Answered,
    /// Another connection has its place. No request is run any more.
    Closing,
}

/// What a connection does now.
#[derive(Debug)]
pub(crate) struct Activity {
    state: Mutex<State>,
    /// Told once, when another connection of the peer takes this one's place.
    closed: Notify,
}

impl Activity {
    /// A connection that has just begun is idle: whoever never asks anything is the first to go.
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::Idle(Instant::now())), closed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come. `false` when the connection is closing: then the request must not be run, because its
    /// handler would be dropped half-way.
    #[must_use]
    pub(crate) fn asked(&self) -> bool {
        let mut state = self.state();
        if matches!(*state, State::Closing) {
            return false;
        }
        *state = State::Asked;
        true
    }

    pub(crate) fn answered(&self) {
        *self.state() = State::Answered;
    }

    /// All that was written has been taken.
    pub(crate) fn flushed(&self) {
        let mut state = self.state();
        if matches!(*state, State::Answered) {
            *state = State::Idle(Instant::now());
        }
    }

    fn idle_since(&self) -> Option<Instant> {
        match *self.state() {
            State::Idle(since) => Some(since),
            State::Asked | State::Answered | State::Closing => None,
        }
    }

    /// Ends an idle connection. `false` when it is not idle: a request may have come since somebody looked.
    #[must_use]
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state();
        if !matches!(*state, State::Idle(_)) {
            return false;
        }
        *state = State::Closing;
        self.closed.notify_one();
        true
    }

    /// Returns when the connection is to end.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }
}

/// The open connections of each peer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peers(Arc<Mutex<HashMap<IpAddr, Vec<Arc<Activity>>>>>);

impl Peers {
    fn open(&self) -> MutexGuard<'_, HashMap<IpAddr, Vec<Arc<Activity>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more connection. A peer that has enough loses the one that is idle for longest; if none is, it gets no
    /// other. Ends when what it gives is dropped.
    pub(crate) fn enter(&self, peer: IpAddr) -> Option<Entered> {
        let peer = counted_as(peer);
        let mut open = self.open();
        let of_peer = open.entry(peer).or_default();
        if of_peer.len() >= OF_ONE_PEER {
            let places = of_peer.iter().enumerate();
            let idle = places.filter_map(|(place, one)| Some((one.idle_since()?, place)));
            let mut idle: Vec<_> = idle.collect();
            idle.sort_unstable();
            // Another thread may have read a request of one that was idle a moment ago.
            let (_, closed) = idle.into_iter().find(|&(_, place)| of_peer[place].close())?;
            of_peer.remove(closed);
        }
        let activity = Arc::new(Activity::new());
        of_peer.push(Arc::clone(&activity));
        Some(Entered { peers: self.clone(), peer, activity })
    }
}

/// A connection that counts.
pub(crate) struct Entered {
    peers: Peers,
    peer: IpAddr,
    pub(crate) activity: Arc<Activity>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut open = self.peers.open();
        if let Some(of_peer) = open.get_mut(&self.peer) {
            of_peer.retain(|one| !Arc::ptr_eq(one, &self.activity));
            if of_peer.is_empty() {
                open.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, thread, time::Duration};

    use tokio::time::timeout;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    async fn is_told(activity: &Activity) -> bool {
        timeout(Duration::from_secs(5), activity.closed()).await.is_ok()
    }

    #[test]
    fn a_connection_closes_only_while_it_is_idle() {
        let activity = Activity::new();
        assert!(activity.asked());
        assert!(!activity.close(), "a request is worked on");
        activity.flushed();
        assert!(!activity.close(), "nothing is answered yet");
        activity.answered();
        assert!(!activity.close(), "the answer is on its way");
        activity.flushed();
        assert!(activity.close());
        assert!(!activity.close(), "once is enough");
        assert!(!activity.asked(), "no request is run on a connection that closes");
        activity.flushed();
        assert!(!activity.asked(), "a connection that closes is never idle again");
    }

    #[test]
    fn a_request_and_a_close_at_once_do_not_both_win() {
        for _ in 0..1000 {
            let activity = Activity::new();
            let (asked, closed) = thread::scope(|scope| {
                let asked = scope.spawn(|| activity.asked());
                let closed = activity.close();
                (asked.join().unwrap(), closed)
            });
            assert_ne!(asked, closed);
        }
    }

    #[test]
    fn whoever_has_a_network_of_ipv6_is_one_peer() {
        let busy = |peers: &Peers, address: &str| {
            let entered = peers.enter(address.parse().unwrap())?;
            assert!(entered.activity.asked());
            Some(entered)
        };
        let peers = Peers::default();
        let open: Vec<Entered> =
            (0..32).filter_map(|n| busy(&peers, &format!("2001:db8:0:1:{n:x}::{n:x}"))).collect();
        assert_eq!(open.len(), OF_ONE_PEER);
        assert!(busy(&peers, "2001:db8:0:2::1").is_some(), "the next network");
        drop(open);
        assert!(busy(&peers, "2001:db8:0:1::1").is_some(), "all of them have left");

        let open: Vec<Entered> =
            (0..32).filter_map(|n| busy(&peers, &format!("::ffff:192.0.2.{n}"))).collect();
        assert_eq!(open.len(), 32, "peers with IPv4, as a listener on :: sees them");
        assert!(busy(&peers, "192.0.2.1").is_some());
    }

    #[tokio::test]
    async fn the_one_that_is_idle_for_longest_makes_room_and_runs_no_request() {
        let peers = Peers::default();
        let open: Vec<Entered> = (0..OF_ONE_PEER).filter_map(|_| peers.enter(PEER)).collect();
        assert_eq!(open.len(), OF_ONE_PEER);
        assert!(open[0].activity.asked());
        let other = peers.enter(PEER).expect("the second one is idle");
        assert!(is_told(&open[1].activity).await);
        assert!(!open[1].activity.asked());

        for one in open[2..].iter().chain([&other]) {
            assert!(one.activity.asked());
        }
        assert!(peers.enter(PEER).is_none(), "all are at work");
        open[0].activity.answered();
        open[0].activity.flushed();
        assert!(peers.enter(PEER).is_some());
        assert!(is_told(&open[0].activity).await);
    }
}
