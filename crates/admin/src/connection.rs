//! Connections: limits the number in all and for each peer, adds TLS where it is set, and ends them in order.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use posthaste_core::{Error, ErrorKind, Result};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::{deadline::WriteDeadline, tls::Acceptor};

/// Most connections at once; more wait in the system's queue.
const CONNECTIONS: usize = 256;

/// Most connections of one peer at once; more are closed. Whoever takes all there are must have many
/// addresses.
const OF_ONE_PEER: usize = 16;

/// How long a client may take to read an answer.
const READ_ANSWER: Duration = Duration::from_secs(30);

/// How long a handshake, and the head of a request, may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long requests that are under way have when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// What a listener lets its connections do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Further requests may follow on a connection.
    keep_alive: bool,
    /// A connection ends after this time, whatever it does.
    life: Option<Duration>,
}

impl Limits {
    pub(crate) const ADMIN: Self = Self { keep_alive: true, life: None };

    /// Anybody may ask, and the answer decides whether a process is killed: one short question a connection.
    pub(crate) const HEALTH: Self = Self { keep_alive: false, life: Some(Duration::from_secs(5)) };
}

/// How many connections each peer has open.
#[derive(Clone, Default)]
struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Peers {
    fn open(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more connection, unless the peer has enough. Ends when what it gives is dropped.
    fn enter(&self, peer: IpAddr) -> Option<Entered> {
        let mut open = self.open();
        let count = open.entry(peer).or_default();
        if *count >= OF_ONE_PEER {
            return None;
        }
        *count += 1;
        Some(Entered { peers: self.clone(), peer })
    }
}

struct Entered {
    peers: Peers,
    peer: IpAddr,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut open = self.peers.open();
        if let Some(count) = open.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

/// Listens there; the error names the setting.
pub(crate) async fn bind(setting: &str, address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let kind = ErrorKind::Unavailable;
        Error::new(kind, format!("{setting} {address} cannot be listened on: {}", error.kind()))
            .with_source(error)
    })
}

/// Accepts until `stop` is ready, then waits for what is under way, but not for ever.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<Acceptor>,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let peers = Peers::default();
    let mut stop = std::pin::pin!(stop);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = &mut stop => break,
            stream = accept(&listener, &room) => stream,
            Some(_) = connections.join_next() => continue,
        };
        let Some((stream, peer, place)) = stream else { continue };
        let Some(entered) = peers.enter(peer) else {
            tracing::debug!(%peer, "a peer has too many connections; one more was closed");
            continue;
        };
        let (router, tls, watcher) = (router.clone(), tls.clone(), graceful.watcher());
        connections.spawn(async move {
            let _held = (place, entered);
            let answered = async {
                match tls {
                    None => answer(stream, router, watcher, limits).await,
                    Some(tls) => match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
                        Ok(Ok(stream)) => answer(stream, router, watcher, limits).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    },
                }
            };
            match limits.life {
                None => answered.await,
                Some(life) => {
                    if tokio::time::timeout(life, answered).await.is_err() {
                        tracing::debug!(%peer, "a connection took too long and was closed");
                    }
                }
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests to the admin server did not end in time");
    }
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, IpAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer.ip(), place)),
        Err(error) => {
            // Out of files, perhaps: that passes, and asking again at once would not help.
            tracing::warn!(%error, "no connection could be accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    watcher: hyper_util::server::graceful::Watcher,
    limits: Limits,
) {
    let stream = WriteDeadline::new(stream, READ_ANSWER);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection broke");
    }
}
