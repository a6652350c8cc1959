//! How many connections each peer has, and which of them it can do without.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

/// Most connections of one peer at once. Whoever takes all there are must have many addresses.
pub(crate) const OF_ONE_PEER: usize = 16;

#[derive(Debug, Clone, Copy)]
enum State {
    /// Waits for a request, since then.
    Idle(Instant),
    /// A request is worked on.
    Asked,
    /// The answer is on its way. No answer here is a stream: all of it is written at once.
    Answered,
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

    pub(crate) fn asked(&self) {
        *self.state() = State::Asked;
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
            State::Asked | State::Answered => None,
        }
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
        let mut open = self.open();
        let of_peer = open.entry(peer).or_default();
        if of_peer.len() >= OF_ONE_PEER {
            let places = of_peer.iter().enumerate();
            let idle = places.filter_map(|(place, one)| Some((one.idle_since()?, place)));
            let (_, oldest) = idle.min()?;
            of_peer.remove(oldest).closed.notify_one();
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
