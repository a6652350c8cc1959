//! Redis Streams: what every transport must do, and what only this one promises.

use std::{env, process::Command, sync::Arc};

use async_trait::async_trait;
use posthaste_core::{
    Envelope, Event, Result,
    transport::{Outcome, Transport},
};
use posthaste_testkit::{
    transports::{Destination, Options, Received, Server, Traits, consume, consumer},
    wait::asked,
};
use posthaste_transports::redis::{Redis, RedisConfig};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use support::{built, certificates, envelope, given};

mod support;

struct Subject;

async fn subject() -> Option<Subject> {
    env::var("POSTHASTE_TEST_REDIS").ok().map(|_| Subject)
}

posthaste_testkit::transport_conformance!(subject);

#[async_trait]
impl Destination for Subject {
    fn traits(&self) -> Traits {
        Traits { keys: true, ..Traits::default() }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_REDIS").expect("the subject was made")
    }

    fn server(&self) -> Server {
        private(":right@", &["--requirepass", "right"]).expect("the path of redis-server")
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        let mut config = RedisConfig::from_url(&options.on(url))?;
        if let Some(limit) = options.max_message {
            config.max_message = limit;
        }
        Ok(Arc::new(Redis::new(config)?))
    }

    async fn prepare(&self, _: &str, _: &str) {} // the first entry makes the stream

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        consume(consumer("redis"), &["read", url, topic]).await
    }
}

/// A server of its own, with these options, whose data survives its death.
fn private(login: &'static str, options: &'static [&'static str]) -> Option<Server> {
    let server = given("POSTHASTE_TEST_REDIS_SERVER")?;
    let server = Server::new(
        move |port| format!("redis://{login}127.0.0.1:{port}"),
        move |port, folder| {
            let mut command = Command::new(&server);
            command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
            // With everysec, what was acknowledged waits in memory while the disk is busy.
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
            command.arg("--dir").arg(folder).args(options);
            command
        },
    );
    Some(server.ready_when("Ready to accept connections"))
}

/// A cluster, of one node: it still refuses transactions across slots.
struct Cluster;

async fn cluster() -> Option<Cluster> {
    env::var("POSTHASTE_TEST_REDIS_CLUSTER").ok().map(|_| Cluster)
}

fn node() -> Option<Server> {
    private(":right@", &["--requirepass", "right", "--cluster-enabled", "yes"])
}

async fn form(nodes: &[&Server]) {
    let urls: Vec<String> = nodes.iter().map(|node| node.url()).collect();
    let mut arguments = vec!["form"];
    arguments.extend(urls.iter().map(String::as_str));
    let _: Vec<Received> = consume(consumer("redis"), &arguments).await;
}

mod in_a_cluster {
    use super::cluster;

    posthaste_testkit::transport_conformance!(cluster);
}

#[async_trait]
impl Destination for Cluster {
    fn traits(&self) -> Traits {
        // Its nodes name addresses of their own.
        Traits { hangs_up: false, ..Subject.traits() }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_REDIS_CLUSTER").expect("the subject was made")
    }

    fn server(&self) -> Server {
        node().expect("the path of redis-server")
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        Subject.transport(&format!("{url}?cluster=true"), options)
    }

    async fn prepare(&self, url: &str, _: &str) {
        let _: Vec<Received> = consume(consumer("redis"), &["form", url]).await;
    }

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        Subject.read(url, topic).await
    }
}

fn transport(url: &str) -> Redis {
    Redis::new(RedisConfig::from_url(url).unwrap()).unwrap()
}

fn unique(prefix: &str) -> String {
    format!("{prefix}-{:016x}", fastrand::u64(..))
}

fn error(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Delivered => "",
        Outcome::Retry { error, .. }
        | Outcome::TimedOut { error }
        | Outcome::Dead { error }
        | Outcome::Unavailable { error, .. } => error,
    }
}

async fn run(url: &str, command: &[&str]) {
    let mut arguments = vec!["run", url];
    arguments.extend(command);
    let _: Vec<Received> = consume(consumer("redis"), &arguments).await;
}

#[tokio::test]
async fn a_cluster_of_three_takes_each_stream_on_its_own_node() {
    let (Some(mut a), Some(mut b), Some(mut c)) = (node(), node(), node()) else { return };
    for node in [&mut a, &mut b, &mut c] {
        node.start().await;
    }
    form(&[&a, &b, &c]).await;
    let url = format!("redis://:right@127.0.0.1:{},127.0.0.1:{}?cluster=true", a.port(), b.port());
    let redis = transport(&url);
    let batch: Vec<Envelope> =
        (0..60).map(|n| envelope(&format!("topic-{}", n % 20), &n.to_string())).collect();
    assert_eq!(redis.publish(&batch).await, vec![Outcome::Delivered; 60]);
    let url = c.url();
    let topics: Vec<String> = (0..20).map(|n| format!("topic-{n}")).collect();
    let mut arguments = vec!["read", &url];
    arguments.extend(topics.iter().map(String::as_str));
    let received: Vec<Received> = consume(consumer("redis"), &arguments).await;
    for topic in &topics {
        assert_eq!(received.iter().filter(|message| message.topic == *topic).count(), 3, "{topic}");
    }
    let found = redis.check().await.unwrap();
    assert!(found.contains("3 masters"), "{found}");
}

#[tokio::test]
async fn a_key_that_is_no_stream_is_dead_and_nothing_of_its_lane_passes() {
    let Some(url) = given("POSTHASTE_TEST_REDIS") else { return };
    let (text, topic) = (unique("text"), unique("stream"));
    run(&url, &["SET", &text, "not a stream"]).await;
    let redis = transport(&url);
    let batch = [
        envelope(&topic, "another"),
        envelope(&text, "a"),
        envelope(&topic, "a"),
        envelope(&text, "a"),
        envelope(&topic, "yet another"),
    ];
    let outcomes = redis.publish(&batch).await;
    assert_eq!(outcomes[0], Outcome::Delivered);
    assert!(matches!(outcomes[1], Outcome::Dead { .. }), "{outcomes:?}");
    assert!(error(&outcomes[1]).contains("something else than a stream"), "{outcomes:?}");
    assert!(matches!(outcomes[2], Outcome::Retry { after: Some(_), .. }), "{outcomes:?}");
    assert!(matches!(outcomes[3], Outcome::Retry { after: Some(_), .. }), "{outcomes:?}");
    assert_eq!(outcomes[4], Outcome::Delivered);
    assert_eq!(Subject.read(&url, &topic).await.len(), 2);
}

#[tokio::test]
async fn a_server_that_is_out_of_memory_or_read_only_is_unavailable_and_takes_nothing() {
    let Some(mut server) = private("", &["--repl-diskless-sync-delay", "0"]) else { return };
    server.start().await;
    let url = server.url();
    let redis = transport(&url);
    assert_eq!(redis.publish(&[envelope("a", "a")]).await, [Outcome::Delivered]);
    let batch = [envelope("a", "a"), envelope("b", "b")];
    for (set, reset, says) in [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"], "OOM"),
        (["REPLICAOF", "127.0.0.1", "1", ""], ["REPLICAOF", "NO", "ONE", ""], "READONLY"),
    ] {
        let trim = |command: [&'static str; 4]| command.into_iter().filter(|word| !word.is_empty());
        run(&url, &trim(set).collect::<Vec<_>>()).await;
        for outcome in redis.publish(&batch).await {
            assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcome:?}");
            assert!(error(&outcome).contains(says), "{outcome:?}");
        }
        if says == "READONLY" {
            let error = redis.check().await.unwrap_err().to_string();
            assert!(error.contains("replica"), "{error}");
        }
        run(&url, &trim(reset).collect::<Vec<_>>()).await;
    }
    run(&url, &["CONFIG", "SET", "replica-serve-stale-data", "no"]).await;
    run(&url, &["REPLICAOF", "127.0.0.1", "1"]).await;
    for outcome in redis.publish(&batch).await {
        assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcome:?}");
        assert!(error(&outcome).contains("MASTERDOWN"), "{outcome:?}");
    }
    run(&url, &["REPLICAOF", "NO", "ONE"]).await;
    // A connection that was refused a moment ago is not made again at once.
    asked("a server that takes events again", async || {
        let outcomes = redis.publish(&batch).await;
        let refused = |outcome: &Outcome| matches!(outcome, Outcome::Unavailable { .. });
        let delivered = outcomes == [Outcome::Delivered, Outcome::Delivered];
        assert!(delivered || outcomes.iter().all(refused), "{outcomes:?}");
        delivered
    })
    .await;
    assert_eq!(Subject.read(&url, "a").await.len(), 2);
    assert_eq!(Subject.read(&url, "b").await.len(), 1);
}

/// An address that leads new connections to the port of the moment and keeps those it has.
async fn address(port: u16) -> (u16, watch::Sender<u16>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap().port();
    let (leads_to, port) = watch::channel(port);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let to = *port.borrow();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (here, leads_to)
}

#[tokio::test]
async fn a_master_that_became_a_replica_is_left_for_the_new_one() {
    let (Some(mut old), Some(mut new)) = (private("", &[]), private("", &[])) else { return };
    old.start().await;
    new.start().await;
    let (port, leads_to) = address(old.port()).await;
    let redis = transport(&format!("redis://127.0.0.1:{port}"));
    assert_eq!(redis.publish(&[envelope("a", "a")]).await, [Outcome::Delivered]);
    run(&old.url(), &["REPLICAOF", "127.0.0.1", &new.port().to_string()]).await;
    leads_to.send_replace(new.port());
    let outcomes = redis.publish(&[envelope("a", "b")]).await;
    assert!(matches!(outcomes[0], Outcome::Unavailable { .. }), "{outcomes:?}");
    assert!(error(&outcomes[0]).contains("READONLY"), "{outcomes:?}");
    assert_eq!(redis.publish(&[envelope("a", "b")]).await, [Outcome::Delivered]);
    assert_eq!(Subject.read(&new.url(), "a").await.len(), 1);
}

#[tokio::test]
async fn an_entry_beyond_the_servers_own_limit_is_a_retry_and_the_others_are_delivered() {
    let Some(mut server) = private("", &["--proto-max-bulk-len", "1mb"]) else { return };
    server.start().await;
    refuses_an_entry_beyond_its_limit(&server.url(), &transport(&server.url())).await;
}

#[tokio::test]
async fn an_entry_beyond_the_limit_of_a_clusters_node_is_a_retry_and_the_others_are_delivered() {
    const OPTIONS: &[&str] = &["--proto-max-bulk-len", "1mb", "--cluster-enabled", "yes"];
    let Some(mut node) = private("", OPTIONS) else { return };
    node.start().await;
    form(&[&node]).await;
    let redis = transport(&format!("{}?cluster=true", node.url()));
    refuses_an_entry_beyond_its_limit(&node.url(), &redis).await;
}

/// Its limit is lower than ours: it ends the connection.
async fn refuses_an_entry_beyond_its_limit(url: &str, redis: &Redis) {
    let entry = |key: usize, size: usize| {
        let event = Event::builder("OrderPlaced").aggregate("Order", key).topic("a");
        let event = event.bytes("text/plain", vec![b'x'; size]).build().unwrap();
        Envelope { event, ..envelope("a", "a") }
    };
    // Others of its key come behind it.
    let mut batch: Vec<_> = (0..200).map(|n| entry(n % 40, 10)).collect();
    batch[90] = entry(10, 2 << 20);
    let outcomes = redis.publish(&batch).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        match n {
            90 => {
                assert!(matches!(outcome, Outcome::Retry { after: None, .. }), "{outcome:?}");
                assert!(error(outcome).contains("breaks its connection"), "{outcome:?}");
            }
            130 | 170 => assert_eq!(*outcome, Outcome::held()),
            _ => assert_eq!(*outcome, Outcome::Delivered, "event {n}"),
        }
    }
    let received = Subject.read(url, "a").await;
    assert_eq!(received.len(), 197, "a transaction that broke left nothing");
    let outcomes =
        redis.publish(&[batch[130].clone(), batch[90].clone(), batch[170].clone()]).await;
    assert_eq!(outcomes[0], Outcome::Delivered);
    assert!(error(&outcomes[1]).contains("breaks its connection"), "{outcomes:?}");
    assert_eq!(outcomes[2], Outcome::held());
}

#[tokio::test]
async fn with_replicas_an_event_is_delivered_only_when_they_have_it() {
    const AT_ONCE: &[&str] = &["--repl-diskless-sync-delay", "0"];
    let Some((mut master, mut replica)) = private("", AT_ONCE).zip(private("", AT_ONCE)) else {
        return;
    };
    master.start().await;
    replica.start().await;
    let url = format!("{}?replicas=1&publish_timeout=2s", master.url());
    let redis = transport(&url);
    let batch = [envelope("a", "a"), envelope("b", "b")];
    for outcome in redis.publish(&batch).await {
        assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcome:?}");
        assert!(error(&outcome).contains("0 of 1 replicas"), "{outcome:?}");
    }
    let found = redis.check().await.unwrap();
    assert!(found.contains("replicas=1, of which 0 are connected"), "{found}");

    run(&replica.url(), &["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
    asked("a replica that has what it is sent", async || {
        redis.publish(&batch).await == [Outcome::Delivered, Outcome::Delivered]
    })
    .await;
    assert!(Subject.read(&replica.url(), "a").await.len() >= 2);
    let found = redis.check().await.unwrap();
    assert!(found.ends_with("with an append-only file (appendfsync always)"), "{found}");

    replica.freeze().await;
    for outcome in redis.publish(&batch).await {
        assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcome:?}");
    }
}

#[tokio::test]
async fn check_names_a_policy_that_evicts_streams() {
    let Some(mut server) = private("", &["--maxmemory-policy", "allkeys-lru"]) else { return };
    server.start().await;
    let found = transport(&server.url()).check().await.unwrap();
    assert!(found.contains("maxmemory-policy allkeys-lru evicts streams"), "{found}");
}

#[tokio::test]
async fn a_stream_that_the_user_may_not_write_holds_back_nobody_else() {
    let Some(mut server) = private("", &[]) else { return };
    server.start().await;
    run(&server.url(), &["ACL", "SETUSER", "me", "on", ">right", "~mine*", "+@all"]).await;
    let redis = transport(&format!("redis://me:right@127.0.0.1:{}", server.port()));
    let batch = [
        envelope("mine", "a"),
        envelope("theirs", "b"),
        envelope("theirs", "b"),
        envelope("mine", "c"),
    ];
    let outcomes = redis.publish(&batch).await;
    assert_eq!(outcomes[0], Outcome::Delivered);
    assert!(matches!(outcomes[1], Outcome::Retry { after: None, .. }), "{outcomes:?}");
    assert!(error(&outcomes[1]).contains("NOPERM"), "{outcomes:?}");
    assert_ne!(outcomes[2], Outcome::Delivered);
    assert_eq!(outcomes[3], Outcome::Delivered);
    assert_eq!(Subject.read(&server.url(), "mine").await.len(), 2);
    assert!(Subject.read(&server.url(), "theirs").await.is_empty());
}

#[tokio::test]
async fn a_missing_password_is_told_as_a_refused_login() {
    let Some(url) = given("POSTHASTE_TEST_REDIS") else { return };
    let (_, place) = url.split_once('@').unwrap();
    let outcomes = transport(&format!("redis://{place}")).publish(&[envelope("a", "a")]).await;
    assert!(matches!(outcomes[0], Outcome::Unavailable { .. }), "{outcomes:?}");
    assert!(error(&outcomes[0]).contains("refused the login"), "{outcomes:?}");
}

#[tokio::test]
async fn a_stream_is_trimmed_to_about_its_length() {
    let Some(url) = given("POSTHASTE_TEST_REDIS") else { return };
    let topic = unique("trimmed");
    let redis = transport(&format!("{url}?max_len=100"));
    let batch: Vec<Envelope> = (0..250).map(|n| envelope(&topic, &n.to_string())).collect();
    for _ in 0..4 {
        assert_eq!(redis.publish(&batch).await, vec![Outcome::Delivered; 250]);
    }
    // Whole nodes are dropped, of 100 entries each by default.
    let left = Subject.read(&url, &topic).await.len();
    assert!((100..=300).contains(&left), "{left} are left of 1000");
}

#[tokio::test]
async fn an_entry_has_its_fields_and_another_database_is_another_place() {
    let Some(url) = given("POSTHASTE_TEST_REDIS") else { return };
    let topic = unique("fields");
    let redis = transport(&format!("{url}/3"));
    let event = built(Event::builder("OrderPlaced").topic(&topic).header("trace", "7f3a"));
    assert_eq!(redis.publish(&[event]).await, [Outcome::Delivered]);
    assert!(Subject.read(&url, &topic).await.is_empty());
    let received = Subject.read(&format!("{url}/3"), &topic).await;
    assert_eq!(received[0].header("trace"), Some("7f3a"));
    assert_eq!(received[0].key, None, "an event without an aggregate id has no key");
}

#[tokio::test]
async fn tls_works_with_the_authority_and_not_without() {
    const OPTIONS: &[&str] = &[
        "--tls-cert-file",
        "cert.pem",
        "--tls-key-file",
        "key.pem",
        "--tls-ca-cert-file",
        "ca.pem",
        "--tls-auth-clients",
        "no",
    ];
    let Some(program) = given("POSTHASTE_TEST_REDIS_SERVER") else { return };
    // The port is for TLS alone.
    let mut server = Server::new(
        |port| format!("rediss://127.0.0.1:{port}"),
        move |port, folder| {
            let mut command = Command::new(&program);
            command.args(["--bind", "127.0.0.1", "--port", "0", "--save", ""]);
            command.args(["--tls-port", &port.to_string(), "--dir"]).arg(folder).args(OPTIONS);
            command
        },
    )
    .ready_when("Ready to accept connections");
    certificates(server.folder());
    server.start().await;
    let authority = server.folder().join("ca.pem");
    let redis = transport(&format!("{}?ca_file={}", server.url(), authority.display()));
    assert_eq!(redis.publish(&[envelope("a", "a")]).await, [Outcome::Delivered]);
    let outcomes = transport(&server.url()).publish(&[envelope("a", "a")]).await;
    assert!(matches!(outcomes[0], Outcome::Unavailable { .. }), "{outcomes:?}");
    assert!(error(&outcomes[0]).contains("TLS"), "{outcomes:?}");
}
