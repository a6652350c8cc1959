//! One connection that all publishes share, made when the first needs it and again after it broke.
//!
//! Whoever comes while a connection is being made waits for it. After a failure the next try waits,
//! longer each time; whoever comes before gets the last error at once, so that an outage costs
//! neither time nor a storm of connections. Whoever says that a connection is lost waits for nobody.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::timeout_at;

/// Pause after the first failure; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause between tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Connection<C> {
    /// Whoever connects puts it here, whoever finds it broken takes it away. Never locked over an await.
    place: Mutex<Place<C>>,
    /// Held by whoever connects.
    tries: tokio::sync::Mutex<Tries>,
    timeout: Duration,
}

struct Place<C> {
    made: Option<Made<C>>,
    /// When the last one was found broken.
    lost: Option<Instant>,
}

impl<C> Place<C> {
    /// The connection is broken, if it is the one that is meant.
    fn lose(&mut self, is_meant: impl FnOnce(&mut Made<C>) -> bool) {
        if self.made.take_if(is_meant).is_some() {
            self.lost = Some(Instant::now());
        }
    }
}

struct Made<C> {
    live: Arc<C>,
    /// When somebody began to make it.
    begun: Instant,
}

/// Failures since a connection was made.
#[derive(Default)]
struct Tries {
    failures: u32,
    failed: Option<(Instant, String)>,
}

impl<C> Connection<C> {
    /// Not connected yet. A connection that takes longer than `timeout` has failed; that is also the longest
    /// that anybody waits here, for the tries of others and for an own one.
    pub(crate) fn new(timeout: Duration) -> Self {
        let place = Mutex::new(Place { made: None, lost: None });
        Self { place, tries: tokio::sync::Mutex::default(), timeout }
    }

    /// The connection, made by `connect` when there is none. The error says what is wrong without
    /// a word of the configuration's secrets.
    pub(crate) async fn get(
        &self,
        connect: impl AsyncFnOnce() -> Result<C, String>,
    ) -> Result<Arc<C>, String> {
        self.live(|_| true, connect).await
    }

    /// The same, for clients that tell whether a connection has broken meanwhile.
    pub(crate) async fn live(
        &self,
        is_alive: impl Fn(&C) -> bool,
        connect: impl AsyncFnOnce() -> Result<C, String>,
    ) -> Result<Arc<C>, String> {
        if let Some(live) = self.known(&is_alive) {
            return Ok(live);
        }
        let late = || format!("no connection within {:?}", self.timeout);
        let deadline = tokio::time::Instant::now() + self.timeout;
        let Ok(mut tries) = timeout_at(deadline, self.tries.lock()).await else {
            return Err(late());
        };
        if let Some(live) = self.known(&is_alive) {
            return Ok(live);
        }
        if let Some((at, error)) = &tries.failed {
            let pause = (FIRST_PAUSE * 2u32.saturating_pow(tries.failures - 1)).min(LONGEST_PAUSE);
            if at.elapsed() < pause {
                return Err(error.clone());
            }
        }
        let begun = Instant::now();
        let connected = timeout_at(deadline, connect()).await.unwrap_or_else(|_| Err(late()));
        match connected {
            Ok(connection) => {
                let live = Arc::new(connection);
                *tries = Tries::default();
                self.place().made = Some(Made { live: Arc::clone(&live), begun });
                Ok(live)
            }
            Err(error) => {
                tries.failures = (tries.failures + 1).min(16);
                tries.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// This connection is broken: the next publish makes another one. Gives when somebody found that out, or
    /// that a later one is broken.
    pub(crate) fn lost(&self, broken: &Arc<C>) -> Instant {
        let mut place = self.place();
        place.lose(|made| Arc::ptr_eq(&made.live, broken));
        place.lost.unwrap_or_else(Instant::now)
    }

    /// When somebody began to make this connection, unless it was lost since.
    pub(crate) fn begun(&self, live: &Arc<C>) -> Option<Instant> {
        let place = self.place();
        place.made.as_ref().filter(|made| Arc::ptr_eq(&made.live, live)).map(|made| made.begun)
    }

    /// One that was begun before this moment is not used again.
    pub(crate) fn renew(&self, moment: Instant) {
        self.place().lose(|made| made.begun < moment);
    }

    /// The connection that is there, unless it has broken.
    fn known(&self, is_alive: &impl Fn(&C) -> bool) -> Option<Arc<C>> {
        let mut place = self.place();
        place.lose(|made| !is_alive(&made.live));
        place.made.as_ref().map(|made| Arc::clone(&made.live))
    }

    fn place(&self) -> MutexGuard<'_, Place<C>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects to the first of these hosts that answers; each has an equal part of the time, so that one
/// that is silent leaves some for the others. The error says what each of them said.
pub(crate) async fn connect_any<'h, C, F: Future<Output = Result<C, String>>>(
    hosts: &'h [(String, u16)],
    timeout: Duration,
    connect_to: impl Fn(&'h str, u16) -> F,
) -> Result<C, String> {
    let limit = timeout / hosts.len().max(1) as u32;
    let mut said = Vec::new();
    for (host, port) in hosts {
        let connected = tokio::time::timeout(limit, connect_to(host, *port))
            .await
            .unwrap_or_else(|_| Err(format!("no connection within {limit:?}")));
        match connected {
            Ok(connection) => return Ok(connection),
            Err(error) => said.push(format!("{host}:{port}: {error}")),
        }
    }
    Err(said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_broke_while_idle_is_replaced() {
        let connection = Connection::new(Duration::from_secs(5));
        let first = connection.live(|_| true, async || Ok(1)).await.unwrap();
        let same = connection.live(|_| true, async || Ok(2)).await.unwrap();
        let other = connection.live(|_| false, async || Ok(3)).await.unwrap();
        assert_eq!((*first, *same, *other), (1, 1, 3));
    }

    #[tokio::test]
    async fn the_first_host_that_answers_is_taken_and_all_errors_are_told() {
        let hosts = [("a".to_owned(), 1), ("b".to_owned(), 2)];
        let limit = Duration::from_secs(5);
        let only_b = async |host, port| match host {
            "b" => Ok(port),
            _ => Err("refused".to_owned()),
        };
        assert_eq!(connect_any(&hosts, limit, only_b).await, Ok(2));
        let nobody = async |_, _| Err::<u8, _>("refused".to_owned());
        let said = connect_any(&hosts, limit, nobody).await.unwrap_err();
        assert_eq!(said, "a:1: refused; b:2: refused");
    }

    #[tokio::test]
    async fn a_broken_connection_is_replaced_once() {
        let connection = Connection::new(Duration::from_secs(5));
        let first = connection.get(async || Ok(1)).await.unwrap();
        connection.lost(&first);
        let second = connection.get(async || Ok(2)).await.unwrap();
        connection.lost(&first);
        let third = connection.get(async || Ok(3)).await.unwrap();
        assert_eq!((*second, *third), (2, 2), "the second was not the broken one");
    }

    #[tokio::test]
    async fn a_loss_is_noted_at_once_while_another_connection_is_being_made() {
        let connection = Connection::new(Duration::from_secs(5));
        let first = connection.get(async || Ok(1)).await.unwrap();
        let silent = connection.live(|_| false, async || std::future::pending().await);
        tokio::select! {
            biased;
            made = silent => panic!("{made:?}"),
            _ = async { connection.lost(&first) } => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_for_one_connection() {
        let timeout = Duration::from_secs(5);
        let connection = Connection::<u8>::new(timeout);
        let began = tokio::time::Instant::now();
        // The first one takes long and is broken when it is there; the next one never comes.
        let slow = connection.get(async || {
            tokio::time::sleep(Duration::from_secs(4)).await;
            Ok(1)
        });
        let silent = connection.live(|_| false, async || std::future::pending().await);
        let (slow, silent) = tokio::join!(slow, silent);
        assert_eq!(*slow.unwrap(), 1);
        assert_eq!(silent.unwrap_err(), "no connection within 5s");
        assert_eq!(began.elapsed(), timeout);
    }

    #[tokio::test]
    async fn a_failure_is_remembered_for_a_while() {
        let connection = Connection::<u8>::new(Duration::from_secs(5));
        let refused = async || Err("refused".to_owned());
        assert_eq!(connection.get(refused).await.unwrap_err(), "refused");
        assert_eq!(connection.get(async || Ok(1)).await.unwrap_err(), "refused");
    }
}
