//! The client and its connection: how it is made, and what its errors say.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use pulsar::{
    Authentication, ConnectionRetryOptions, Error as ClientError, Executor, OperationRetryOptions,
    Producer, Pulsar as Client, TokioExecutor,
    error::{ConnectionError, ProducerError, ServiceDiscoveryError},
    executor::{Delay, ExecutorKind, Interval, JoinHandle},
    message::proto::ServerError,
};
use tokio::{
    net::TcpStream,
    sync::{Mutex as AsyncMutex, watch},
    time::timeout,
};

use super::Pulsar;
use crate::tls;

/// Whoever does not even accept a connection within this time is gone.
pub(super) const PROBE: Duration = Duration::from_secs(1);

/// For so long the library waits before it makes a producer anew, after its connection broke or the server has closed
/// it. It waits for nothing else so long.
const BEFORE_IT_REPEATS: Duration = Duration::from_millis(100);

/// A client that is connected, and its producers.
pub(crate) struct Live {
    pub(super) client: Client<Watcher>,
    /// By topic; each is made when its first event comes.
    pub(super) producers: Mutex<HashMap<String, Slot>>,
    watcher: Watcher,
}

type Slot = Arc<AsyncMutex<Option<Producer<Watcher>>>>;

/// Runs the library's tasks, and notices when it begins to repeat by itself what it had sent: nothing else
/// tells that a connection broke.
#[derive(Clone, Default)]
pub(super) struct Watcher {
    repeats: watch::Sender<bool>,
}

impl Executor for Watcher {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) -> Result<(), ()> {
        TokioExecutor.spawn(task)
    }

    fn spawn_blocking<F, R>(&self, work: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        TokioExecutor.spawn_blocking(work)
    }

    fn interval(&self, period: Duration) -> Interval {
        TokioExecutor.interval(period)
    }

    fn delay(&self, time: Duration) -> Delay {
        if time == BEFORE_IT_REPEATS {
            self.repeats.send_replace(true);
        }
        TokioExecutor.delay(time)
    }

    fn kind(&self) -> ExecutorKind {
        TokioExecutor.kind()
    }
}

impl Live {
    /// Whether a connection broke.
    pub(super) fn is_broken(&self) -> bool {
        *self.watcher.repeats.borrow()
    }

    /// Returns when one breaks.
    pub(super) async fn broken(&self) {
        let mut repeats = self.watcher.repeats.subscribe();
        // The sender lives as long as this.
        let _ = repeats.wait_for(|repeats| *repeats).await;
    }

    /// Ends the producers: none repeats by itself what it has sent.
    pub(super) fn forget(&self) {
        let producers =
            std::mem::take(&mut *self.producers.lock().unwrap_or_else(PoisonError::into_inner));
        // One that sends right now ends with its publish.
        drop(producers);
    }
}

/// A time that is not taken for the library's own.
fn distinct(time: Duration) -> Duration {
    if time == BEFORE_IT_REPEATS { time + Duration::from_millis(1) } else { time }
}

impl Pulsar {
    pub(super) async fn connect(&self) -> Result<Live, String> {
        let scheme = if self.config.tls { "pulsar+ssl" } else { "pulsar" };
        let mut authorities = None;
        if self.config.tls {
            authorities = Some(tls::trusted_pem(self.config.ca_file.as_deref())?);
        }
        // So that one that does not answer leaves time for the others.
        let share = self.config.common.connect_timeout / self.config.hosts.len() as u32;
        let connections = ConnectionRetryOptions {
            max_retries: 0, // `Connection` decides when to try again
            connection_timeout: distinct(share),
            ..ConnectionRetryOptions::default()
        };
        let operations = OperationRetryOptions {
            operation_timeout: distinct(self.config.common.publish_timeout),
            retry_delay: distinct(Duration::from_millis(100)),
            max_retries: Some(0),
        };
        let mut error = String::new();
        for address in self.config.addresses() {
            let watcher = Watcher::default();
            let mut builder = Client::builder(format!("{scheme}://{address}"), watcher.clone())
                .with_connection_retry_options(connections.clone())
                .with_operation_retry_options(operations.clone());
            if let Some(token) = &self.config.token {
                let data = token.expose().as_bytes().to_vec();
                builder = builder.with_auth(Authentication { name: "token".to_owned(), data });
            }
            if let Some(authorities) = &authorities {
                builder = builder.with_certificate_chain(authorities.clone());
            }
            match timeout(share, builder.build()).await {
                Ok(Ok(client)) => {
                    return Ok(Live { client, producers: Mutex::default(), watcher });
                }
                Ok(Err(refusal)) => error = self.cannot_connect(&address, &refusal),
                Err(_) => error = format!("Pulsar at {address} does not answer"),
            }
        }
        Err(error)
    }

    fn cannot_connect(&self, address: &str, error: &ClientError) -> String {
        match fault_of(error) {
            Fault::Login => {
                format!("Pulsar at {address} refused the login: check its token")
            }
            Fault::Late => format!("Pulsar at {address} does not answer"),
            // All that the library tells of a handshake that failed, whatever the server said.
            Fault::Io(io::ErrorKind::Other) if self.config.tls => format!(
                "no session with Pulsar at {address}: it refused the token, or its certificate is not trusted"
            ),
            Fault::Io(io::ErrorKind::Other) => {
                format!("no session with Pulsar at {address}: it refused the token, or wants one")
            }
            Fault::Io(kind) => format!("no connection to Pulsar at {address}: {kind}"),
            _ => format!("no connection to Pulsar at {address}: it closed the connection"),
        }
    }

    /// Whether anybody is there to connect to.
    pub(super) async fn is_there(&self) -> bool {
        for address in self.config.addresses() {
            if matches!(timeout(PROBE, TcpStream::connect(address)).await, Ok(Ok(_))) {
                return true;
            }
        }
        false
    }
}

/// What is wrong, without a word of the server's, which may quote anything.
pub(super) enum Fault {
    Server(ServerError),
    Login,
    Late,
    Io(io::ErrorKind),
    Lost,
}

pub(super) fn fault_of(error: &ClientError) -> Fault {
    let connection = match error {
        ClientError::Connection(error)
        | ClientError::Producer(ProducerError::Connection(error))
        | ClientError::ServiceDiscovery(ServiceDiscoveryError::Connection(error)) => error,
        ClientError::ServiceDiscovery(ServiceDiscoveryError::Query(kind, _)) => {
            return server_fault(*kind);
        }
        ClientError::Authentication(_) => return Fault::Login,
        ClientError::Producer(ProducerError::Fenced) => {
            return Fault::Server(ServerError::ProducerFenced);
        }
        _ => return Fault::Lost,
    };
    match connection {
        ConnectionError::PulsarError(kind, _) => server_fault(*kind),
        ConnectionError::Authentication(_) => Fault::Login,
        ConnectionError::Io(error) => match error.kind() {
            io::ErrorKind::TimedOut => Fault::Late,
            kind => Fault::Io(kind),
        },
        _ => Fault::Lost,
    }
}

fn server_fault(kind: Option<ServerError>) -> Fault {
    match kind {
        Some(ServerError::AuthenticationError) => Fault::Login,
        kind => Fault::Server(kind.unwrap_or(ServerError::UnknownError)),
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::transport::Transport;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::pulsar::PulsarConfig;

    /// A server that greets every client with this error. The server of the other tests knows no
    /// tokens.
    async fn refusing(error: ServerError) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // BaseCommand: its type is ERROR (14), and so is the field that holds it: request,
                // error, message.
                let inner = [0x08, 0x01, 0x10, error as u8, 0x1a, 0x02, b'n', b'o'];
                let mut command = vec![0x08, 0x0e, 0x72, inner.len() as u8];
                command.extend(inner);
                let size = command.len() as u32;
                let mut frame = Vec::from((size + 4).to_be_bytes());
                frame.extend(size.to_be_bytes());
                frame.extend(command);
                let mut greeting = [0; 4096];
                let _ = stream.read(&mut greeting).await;
                let _ = stream.write_all(&frame).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn a_refused_token_is_unavailable_and_not_shown() {
        let port = refusing(ServerError::AuthenticationError).await;
        let url = format!("pulsar://127.0.0.1:{port}?token=hush&connect_timeout=2s");
        let transport = Pulsar::new(PulsarConfig::from_url(&url).unwrap()).unwrap();
        let error = transport.check().await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains("refused the token"), "{error}");
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}
