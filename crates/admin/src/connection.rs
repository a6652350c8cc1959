//! Connections: at most so many, with TLS where it is set, ended in order.

use std::{net::SocketAddr, sync::Arc, time::Duration};

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

use crate::tls::Acceptor;

/// Most connections at once; more wait in the system's queue.
const CONNECTIONS: usize = 256;

/// How long a handshake, and the head of a request, may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long requests that are under way have when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

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
    stop: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut stop = std::pin::pin!(stop);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = &mut stop => break,
            stream = accept(&listener, &room) => stream,
            Some(_) = connections.join_next() => continue,
        };
        let Some((stream, place)) = stream else { continue };
        let (router, tls, watcher) = (router.clone(), tls.clone(), graceful.watcher());
        connections.spawn(async move {
            let _place = place;
            match tls {
                None => answer(stream, router, watcher).await,
                Some(tls) => match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => answer(stream, router, watcher).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                },
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
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
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
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection broke");
    }
}
