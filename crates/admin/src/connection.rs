//! Connections: limits the number in all and for each peer, adds TLS where it is set, and ends them in order.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
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

use crate::{
    deadline::WriteDeadline,
    peers::{Activity, Peers},
    tls::Acceptor,
};

/// Most connections at once; more wait in the system's queue.
const CONNECTIONS: usize = 256;

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
    /// An answer that is not taken within this time ends its connection.
    read_answer: Duration,
}

impl Limits {
    pub(crate) const ADMIN: Self = Self { keep_alive: true, life: None, read_answer: READ_ANSWER };

    /// Anybody may ask, and the answer decides whether a process is killed: one short question a connection.
    pub(crate) const HEALTH: Self =
        Self { keep_alive: false, life: Some(Duration::from_secs(5)), read_answer: READ_ANSWER };
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
            tracing::debug!(%peer, "all connections of a peer are at work; one more was closed");
            continue;
        };
        let (router, tls, watcher) = (router.clone(), tls.clone(), graceful.watcher());
        connections.spawn(async move {
            let activity = Arc::clone(&entered.activity);
            let _held = (place, entered);
            let answered = async {
                match tls {
                    None => answer(stream, router, watcher, limits, &activity).await,
                    Some(tls) => match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
                        Ok(Ok(stream)) => answer(stream, router, watcher, limits, &activity).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    },
                }
            };
            let ended = async {
                match limits.life {
                    None => answered.await,
                    Some(life) => {
                        if tokio::time::timeout(life, answered).await.is_err() {
                            tracing::debug!(%peer, "a connection took too long and was closed");
                        }
                    }
                }
            };
            tokio::select! {
                () = ended => {}
                () = activity.closed() => {
                    tracing::debug!(%peer, "an idle connection made room for another one");
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
    activity: &Arc<Activity>,
) {
    let (asked, taken) = (Arc::clone(activity), Arc::clone(activity));
    let stream = WriteDeadline::new(stream, limits.read_answer, move || taken.flushed());
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let response = asked.asked().then(|| router.call(request));
        let activity = Arc::clone(&asked);
        async move {
            // An error ends the connection without an answer.
            let Some(response) = response else {
                return Err(io::Error::other("the connection made room for another one"));
            };
            let Ok(response) = response.await;
            activity.answered();
            Ok(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        sync::mpsc,
        time::timeout,
    };

    use super::*;
    use crate::peers::OF_ONE_PEER;

    /// Nothing here takes so long unless it hangs. Shorter than the patience of the server.
    const LIMIT: Duration = Duration::from_secs(5);

    const OK: &[u8] = b"HTTP/1.1 200 OK";

    #[tokio::test]
    async fn an_answer_that_nobody_takes_ends_its_connection() {
        let (ours, mut theirs) = duplex(64);
        let router = Router::new().route("/", get(async || "x".repeat(1000)));
        let limits = Limits { read_answer: Duration::from_millis(50), ..Limits::ADMIN };
        let graceful = GracefulShutdown::new();
        let activity = Arc::new(Activity::new());
        theirs.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        let answered = answer(ours, router, graceful.watcher(), limits, &activity);
        timeout(LIMIT, answered).await.expect("it waits for a client that does not read");
        let mut taken = Vec::new();
        theirs.read_to_end(&mut taken).await.unwrap();
        assert!(taken.starts_with(OK) && taken.len() <= 64, "{taken:?}");
    }

    #[tokio::test]
    async fn a_connection_that_closes_runs_no_request() {
        let (ours, mut theirs) = duplex(64);
        let (begun, mut at_work) = mpsc::unbounded_channel();
        let work = async move || {
            let _ = begun.send(());
            "done"
        };
        let router = Router::new().route("/", get(work));
        let graceful = GracefulShutdown::new();
        let activity = Arc::new(Activity::new());
        assert!(activity.close());
        theirs.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        let answered = answer(ours, router, graceful.watcher(), Limits::ADMIN, &activity);
        timeout(LIMIT, answered).await.expect("it stays open");
        let mut taken = Vec::new();
        theirs.read_to_end(&mut taken).await.unwrap();
        assert_eq!(taken, b"");
        assert!(at_work.try_recv().is_err(), "the request was run");
    }

    async fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        // It may be closed before the question is sent.
        let _ = stream.write_all(request.as_bytes()).await;
        stream
    }

    async fn is_answered(stream: &mut TcpStream) {
        let mut first = [0; OK.len()];
        timeout(LIMIT, stream.read_exact(&mut first)).await.expect("no answer").unwrap();
        assert_eq!(first, OK);
    }

    #[tokio::test]
    async fn a_connection_at_work_makes_no_room_for_another() {
        let (begun, mut at_work) = mpsc::unbounded_channel();
        let done = Arc::new(Semaphore::new(0));
        let work = {
            let done = Arc::clone(&done);
            async move || {
                let _ = begun.send(());
                done.acquire().await.unwrap().forget();
                "done"
            }
        };
        let router = Router::new().route("/", get(async || "here")).route("/work", get(work));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, router, None, Limits::ADMIN, pending()));

        let mut open = Vec::new();
        for _ in 0..OF_ONE_PEER {
            open.push(ask(address, "/work").await);
            timeout(LIMIT, at_work.recv()).await.expect("nobody works").unwrap();
        }
        let mut answer = Vec::new();
        let mut more = ask(address, "/").await;
        let _ = timeout(LIMIT, more.read_to_end(&mut answer)).await.expect("it stays open");
        assert_eq!(answer, b"");

        // The one that was asked first has its answer and is idle.
        done.add_permits(1);
        is_answered(&mut open[0]).await;
        is_answered(&mut ask(address, "/").await).await;
        timeout(LIMIT, open[0].read_to_end(&mut answer)).await.expect("it stays open").unwrap();
    }
}
