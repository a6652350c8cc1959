//! A TCP address whose target can be changed or taken away, like that of a cluster's primary.

use std::net::Ipv4Addr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// Forwards connections to a port of this machine.
pub(super) struct Forwarder {
    pub(super) port: u16,
    /// Whoever changes it cuts the connections that are open.
    target: watch::Sender<Option<u16>>,
    accepting: JoinHandle<()>,
}

impl Forwarder {
    pub(super) async fn to(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let target = watch::Sender::new(Some(target));
        let accepting = tokio::spawn(accept(listener, target.clone()));
        Self { port, target, accepting }
    }

    /// Cuts all connections. New ones go to this port.
    pub(super) fn switch(&self, target: u16) {
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

async fn accept(listener: TcpListener, target: watch::Sender<Option<u16>>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut target = target.subscribe();
        let Some(port) = *target.borrow_and_update() else { continue };
        tokio::spawn(async move {
            let forward = async {
                if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
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
