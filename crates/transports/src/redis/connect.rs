//! The connection to a server or a cluster: how it is made, and what is found there.

use std::fs;

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
};

use super::{Redis, word};

/// Handles that are cloned for each publish; what is sent through them is pipelined.
#[derive(Clone)]
pub(crate) enum Live {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Live {
    pub(super) async fn run(
        &mut self,
        pipeline: &Pipeline,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        match self {
            Self::Server(connection) => pipeline.query_async(connection).await,
            Self::Cluster(connection) => pipeline.query_async(connection).await,
        }
    }

    /// A command that answers with texts.
    async fn values(&mut self, command: &Cmd) -> RedisResult<Vec<String>> {
        let value = match self {
            Self::Server(connection) => connection.req_packed_command(command).await?,
            Self::Cluster(connection) => connection.req_packed_command(command).await?,
        };
        Ok(redis::from_redis_value(value.extract_error()?)?)
    }

    /// A command that answers with text.
    pub(super) async fn query(&mut self, command: &Cmd) -> RedisResult<String> {
        let value = match self {
            Self::Server(connection) => connection.req_packed_command(command).await?,
            Self::Cluster(connection) => connection.req_packed_command(command).await?,
        };
        // Of several nodes the first will do.
        let value = match value {
            Value::Map(mut nodes) if !nodes.is_empty() => nodes.swap_remove(0).1,
            value => value,
        };
        Ok(redis::from_redis_value(value.extract_error()?)?)
    }
}

impl Redis {
    pub(super) async fn connect(&self) -> Result<Live, String> {
        let config = &self.config;
        let nodes = config
            .hosts
            .iter()
            .map(|(host, port)| self.node(host, port.unwrap_or(6379)))
            .collect::<RedisResult<Vec<_>>>()
            .map_err(|error| self.cannot_connect(&error))?;
        let mut certificates = None;
        if config.tls {
            // The client takes the process's provider and panics when there is none and it cannot
            // choose. One that the application installed stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
            certificates = Some(TlsCertificates { client_tls: None, root_cert: self.root()? });
        }
        // In a cluster, too: its client does not say what is wrong with a node.
        let mut connected = Err("no host is configured".to_owned());
        for node in &nodes {
            connected = self.connect_server(node.clone(), certificates.clone()).await;
            if connected.is_ok() {
                break;
            }
        }
        let server = connected?;
        let live = if config.cluster {
            Live::Cluster(self.connect_cluster(nodes, certificates).await?)
        } else {
            Live::Server(server)
        };
        // Without a password the server lets us in, and refuses every command.
        let mut ping = live.clone();
        ping.query(&redis::cmd("PING")).await.map_err(|error| self.cannot_connect(&error))?;
        Ok(live)
    }

    fn node(&self, host: &str, port: u16) -> RedisResult<ConnectionInfo> {
        let host = host.trim_matches(['[', ']']).to_owned();
        let address = if self.config.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let mut login = RedisConnectionInfo::default().set_db(self.config.database);
        if let Some(user) = &self.config.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.config.password {
            login = login.set_password(password.expose());
        }
        Ok(address.into_connection_info()?.set_redis_settings(login))
    }

    fn root(&self) -> Result<Option<Vec<u8>>, String> {
        let Some(path) = &self.config.ca_file else { return Ok(None) };
        fs::read(path)
            .map(Some)
            .map_err(|error| format!("{} cannot be read: {}", path.display(), error.kind()))
    }

    async fn connect_server(
        &self,
        node: ConnectionInfo,
        certificates: Option<TlsCertificates>,
    ) -> Result<MultiplexedConnection, String> {
        let common = &self.config.common;
        let client = match certificates {
            Some(certificates) => Client::build_with_tls(node, certificates),
            None => Client::open(node),
        };
        let timeouts = AsyncConnectionConfig::new()
            // So that a node that does not answer leaves time for the others.
            .set_connection_timeout(Some(common.connect_timeout / self.config.hosts.len() as u32))
            .set_response_timeout(Some(common.publish_timeout));
        let connected = match client {
            Ok(client) => client.get_multiplexed_async_connection_with_config(&timeouts).await,
            Err(error) => Err(error),
        };
        connected.map_err(|error| self.cannot_connect(&error))
    }

    async fn connect_cluster(
        &self,
        nodes: Vec<ConnectionInfo>,
        certificates: Option<TlsCertificates>,
    ) -> Result<ClusterConnection, String> {
        let common = &self.config.common;
        let mut client = ClusterClient::builder(nodes)
            .connection_timeout(common.connect_timeout)
            .response_timeout(common.publish_timeout)
            .overall_response_timeout(Some(common.publish_timeout))
            // Enough to follow a slot that moved; what fails longer is the relay's to repeat.
            .retries(2);
        if let Some(certificates) = certificates {
            client = client.certs(certificates);
        }
        let connected = match client.build() {
            Ok(client) => client.get_async_connection().await,
            Err(error) => Err(error),
        };
        connected.map_err(|error| self.cannot_connect(&error))
    }

    fn cannot_connect(&self, error: &RedisError) -> String {
        let place = self.config.place();
        match (error.kind(), error.code()) {
            (redis::ErrorKind::AuthenticationFailed, _)
            | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
                format!("Redis at {place} refused the login: check its user and password")
            }
            (_, Some(code)) => format!("Redis at {place} is not ready: it answered {}", word(code)),
            _ if error.is_timeout() => format!("Redis at {place} does not answer"),
            _ if error.is_connection_refusal() => {
                format!("no connection to Redis at {place}: connection refused")
            }
            // What TLS cannot read or does not trust is an error of reading.
            _ if self.config.tls && error.is_io_error() && !error.is_connection_dropped() => {
                format!(
                    "no TLS connection to Redis at {place}: its certificate is not trusted, or it \
                 speaks no TLS"
                )
            }
            _ => format!("no connection to Redis at {place}: it was closed or cannot be made"),
        }
    }

    pub(super) async fn found(&self, live: &Live) -> Result<String, String> {
        let place = self.config.place();
        let mut live = live.clone();
        if self.config.cluster {
            let info = live.query(redis::cmd("CLUSTER").arg("INFO")).await;
            let info = info.map_err(|error| self.cannot_connect(&error))?;
            let state = line(&info, "cluster_state").unwrap_or("unknown");
            let size = line(&info, "cluster_size").unwrap_or("?");
            if state != "ok" {
                return Err(format!(
                    "the Redis cluster at {place} is not ok: its state is {state}"
                ));
            }
            return Ok(format!("Redis cluster at {place}, {size} masters"));
        }
        let info = live.query(&redis::cmd("INFO")).await;
        let info = info.map_err(|error| self.cannot_connect(&error))?;
        let version = line(&info, "redis_version").unwrap_or("of unknown version");
        if line(&info, "role") == Some("slave") {
            return Err(format!("Redis {version} at {place} is a replica and takes no events"));
        }
        let mut fsync = String::new();
        if line(&info, "aof_enabled") == Some("1") {
            // Managed servers and cautious users do not permit it.
            let asked = live.values(redis::cmd("CONFIG").arg("GET").arg("appendfsync")).await;
            fsync = asked.ok().and_then(|mut pair| pair.pop()).unwrap_or_default();
        }
        let safety = safety(&info, &fsync, self.config.replicas);
        Ok(format!("Redis {version} at {place}, database {}, {safety}", self.config.database))
    }
}

/// What the server's settings mean for what it has acknowledged.
fn safety(info: &str, fsync: &str, wanted: u32) -> String {
    let mut said = vec![match (line(info, "aof_enabled"), fsync) {
        (Some("1"), "") => "with an append-only file".to_owned(),
        (Some("1"), fsync) => format!("with an append-only file (appendfsync {fsync})"),
        _ => "without an append-only file: a restart takes what was acknowledged since the last \
              snapshot"
            .to_owned(),
    }];
    let replicas = line(info, "connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0);
    if replicas < wanted {
        said.push(format!("replicas={wanted}, of which {replicas} are connected"));
    } else if replicas > wanted {
        said.push(format!(
            "{replicas} replicas are connected and {wanted} are waited for: a failover can take what \
             was acknowledged, see replicas"
        ));
    }
    // Policies that evict only keys with a time to live spare streams, which have none.
    let policy = line(info, "maxmemory_policy");
    if let Some(policy) = policy.filter(|policy| policy.starts_with("allkeys-")) {
        said.push(format!(
            "maxmemory-policy {policy} evicts streams, with all their events, when memory is short"
        ));
    }
    said.join("; ")
}

/// The value of `name:value` in what INFO answers.
fn line<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_tells_what_can_take_acknowledged_events() {
        let info = |aof: u8, replicas: u8, policy: &str| {
            format!(
                "# Memory\r\nmaxmemory_policy:{policy}\r\naof_enabled:{aof}\r\n\
                 connected_slaves:{replicas}\r\n"
            )
        };
        let safe = safety(&info(1, 0, "noeviction"), "always", 0);
        assert_eq!(safe, "with an append-only file (appendfsync always)");
        assert_eq!(safety(&info(1, 2, "volatile-lru"), "", 2), "with an append-only file");
        for (aof, replicas, policy, wanted, said) in [
            (0, 0, "noeviction", 0, "without an append-only file"),
            (1, 1, "noeviction", 2, "replicas=2, of which 1 are connected"),
            (1, 1, "noeviction", 0, "a failover can take"),
            (1, 0, "allkeys-lru", 0, "maxmemory-policy allkeys-lru evicts streams"),
        ] {
            let found = safety(&info(aof, replicas, policy), "", wanted);
            assert!(found.contains(said), "{found}");
        }
    }
}
