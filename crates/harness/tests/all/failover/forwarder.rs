//! A TCP address whose target can be changed or taken away, like that of a cluster's primary.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// Forwards connections to another address.
pub(super) struct Forwarder {
    pub(super) address: SocketAddr,
    /// Whoever changes it cuts the connections that are open.
    target: watch::Sender<Option<SocketAddr>>,
    accepting: JoinHandle<()>,
}

impl Forwarder {
    pub(super) async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let target = watch::Sender::new(Some(target));
        let accepting = tokio::spawn(accept(listener, target.clone()));
        Self { address, target, accepting }
    }

    /// Cuts all connections. New ones go to this address.
    pub(super) fn switch(&self, target: SocketAddr) {
        self.target.send_replace(Some(target));
    }

    /// Cuts all connections. New ones are closed at once.
    pub(super) fn cut(&self) {
        self.target.send_replace(None);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: watch::Sender<Option<SocketAddr>>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut target = target.subscribe();
        let Some(address) = *target.borrow_and_update() else { continue };
        tokio::spawn(async move {
            let forward = async {
                if let Ok(mut server) = TcpStream::connect(address).await {
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                }
            };
            tokio::select! {
                () = forward => {}
                _ = target.changed() => {}
            }
        });
    }
}
