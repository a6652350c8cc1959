//! The connection: how it is made, what drives it, and why it ended.

use std::sync::Arc;

use rumqttc::{
    AsyncClient, ConnAck, ConnectReturnCode, ConnectionError, DisconnectReasonCode, Event,
    EventLoop, MqttOptions, Packet, StateError, TlsConfiguration,
};
use tokio::{sync::watch, task::AbortHandle};

use super::{MAX_BATCH, Mqtt};
use crate::{connection::connect_any, url::Common};

/// In seconds: a peer that vanished is noticed after twice that.
const KEEP_ALIVE: u16 = 10;

/// What MQTT's own length field can tell.
const LARGEST_PACKET: usize = 268_435_455;

/// A live connection. It does not mend itself: once it ends, the next publish makes another one.
pub(crate) struct Link {
    pub(super) client: AsyncClient,
    pub(super) at: String,
    pub(super) largest: usize,
    pub(super) receive_maximum: u16,
    /// Why it ended, once it has; the driver writes it.
    ended: watch::Receiver<Option<End>>,
    // Reads and writes for the client; ended when the link is dropped.
    driver: AbortHandle,
}

#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) why: String,
    /// The server has ended it for a reason of its own: no message is to blame.
    pub(super) servers_own: bool,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Link {
    /// Waits for its end, and says why it ended.
    pub(super) async fn end(&self) -> End {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| End { why: "the connection is lost".to_owned(), servers_own: false })
    }

    pub(super) fn is_alive(&self) -> bool {
        self.ended.borrow().is_none()
    }
}

impl Mqtt {
    pub(super) async fn connect(&self) -> Result<Link, String> {
        let Common { connect_timeout, .. } = self.config.common;
        let connect_to = |host, port| self.connect_to(host, port);
        connect_any(&self.config.hosts, connect_timeout, connect_to).await
    }

    async fn connect_to(&self, host: &str, port: u16) -> Result<Link, String> {
        let name = host.trim_matches(['[', ']']);
        // Each connection has another one: the server knows it by that.
        let client_id = self.config.client_id.clone();
        let client_id =
            client_id.unwrap_or_else(|| format!("posthaste-{:012x}", fastrand::u64(..1 << 48)));
        let mut options = MqttOptions::new(client_id, (name, port));
        options
            .set_clean_start(true)
            .set_keep_alive(KEEP_ALIVE)
            .set_connect_timeout(self.config.common.connect_timeout);
        match (&self.config.user, &self.config.password) {
            (Some(user), Some(password)) => {
                options.set_credentials(user.clone(), password.expose().to_owned());
            }
            (Some(user), None) => {
                options.set_username(user.clone());
            }
            (None, Some(password)) => {
                options.set_password(password.expose().to_owned());
            }
            (None, None) => {}
        }
        if let Some(tls) = &self.tls {
            let tls = TlsConfiguration::Rustls(Arc::clone(tls));
            options.set_transport(rumqttc::Transport::tls_with_config(tls));
        }
        let (client, mut driver) = AsyncClient::builder(options)
            .capacity(MAX_BATCH)
            .try_build()
            .map_err(|_| "the client cannot be set up".to_owned())?;
        let found = loop {
            match driver.poll().await {
                Ok(Event::Incoming(Packet::ConnAck(found))) => break found,
                Ok(_) => {}
                Err(error) => return Err(end_of(&error).why),
            }
        };
        self.accept(&found)?;
        let properties = found.properties.as_ref();
        let (end, ended) = watch::channel(None);
        let driver = tokio::spawn(drive(driver, end)).abort_handle();
        Ok(Link {
            client,
            at: format!("{host}:{port}"),
            largest: properties
                .and_then(|properties| properties.max_packet_size)
                .map_or(LARGEST_PACKET, |size| LARGEST_PACKET.min(size as usize)),
            receive_maximum: properties
                .and_then(|properties| properties.receive_max)
                .unwrap_or(u16::MAX),
            ended,
            driver,
        })
    }

    /// Whether the server can do what was configured.
    fn accept(&self, found: &ConnAck) -> Result<(), String> {
        let Some(properties) = &found.properties else {
            return Ok(());
        };
        if let Some(qos) = properties.max_qos
            && qos < self.config.qos
        {
            return Err(format!("the server takes at most QoS {qos}"));
        }
        if self.config.retain && properties.retain_available == Some(0) {
            return Err("the server keeps no retained messages".to_owned());
        }
        Ok(())
    }
}

/// Reads and writes until the connection ends, and says why it did.
async fn drive(mut driver: EventLoop, end: watch::Sender<Option<End>>) {
    loop {
        if let Err(error) = driver.poll().await {
            // Before the driver goes, and with it whatever waits for an acknowledgement.
            end.send_replace(Some(end_of(&error)));
            return;
        }
    }
}

/// What happened to a connection, in words of our own: the server's may quote what it was sent.
fn end_of(error: &ConnectionError) -> End {
    let mut servers_own = false;
    let why = match error {
        ConnectionError::ConnectionRefused(code)
        | ConnectionError::MqttState(StateError::ConnFail { reason: code }) => match code {
            ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized => {
                "authentication failed: the server does not know this user or password".to_owned()
            }
            code => format!("the server refused the connection ({code:?})"),
        },
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => {
            servers_own = matches!(
                reason_code,
                DisconnectReasonCode::ServerBusy
                    | DisconnectReasonCode::ServerShuttingDown
                    | DisconnectReasonCode::KeepAliveTimeout
                    | DisconnectReasonCode::SessionTakenOver
                    | DisconnectReasonCode::MessageRateTooHigh
                    | DisconnectReasonCode::QuotaExceeded
                    | DisconnectReasonCode::AdministrativeAction
                    | DisconnectReasonCode::UseAnotherServer
                    | DisconnectReasonCode::ServerMoved
                    | DisconnectReasonCode::ConnectionRateExceeded
                    | DisconnectReasonCode::MaximumConnectTime
            );
            format!("the server ended the connection ({reason_code:?})")
        }
        ConnectionError::MqttState(StateError::OutgoingPacketTooLarge { max, .. }) => {
            format!("a packet was too large, the server takes {max} bytes")
        }
        ConnectionError::MqttState(StateError::Io(error)) | ConnectionError::Io(error) => {
            format!("no connection: {}", error.kind())
        }
        ConnectionError::MqttState(StateError::AwaitPingResp) => {
            servers_own = true;
            "the server is silent".to_owned()
        }
        // An acknowledgement with a code that MQTT does not have there, as Mosquitto gives one to a message
        // that is larger than its own limit.
        ConnectionError::MqttState(
            StateError::Deserialization(_) | StateError::ProtocolViolation(_),
        ) => "the server answered with what MQTT does not know".to_owned(),
        ConnectionError::Tls(_) => {
            "no connection: TLS failed or the certificate is no good".to_owned()
        }
        ConnectionError::Timeout(_) => "no connection in time".to_owned(),
        _ => "the connection is lost".to_owned(),
    };
    End { why, servers_own }
}
