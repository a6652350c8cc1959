//! NATS: what every transport must do, and what only this one promises.

use std::{env, fs, path::Path, process::Command, sync::Arc, time::Duration};

use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::{StreamExt, future::join_all};
use nkeys::KeyPair;
use posthaste_core::{
    Envelope, Event, Result,
    transport::{Outcome, Transport},
};
use posthaste_testkit::transports::{
    Destination, Options, Received, Server, Traits, consume, consumer,
};
use posthaste_transports::nats::{Nats, NatsConfig};

use support::{built, certificates, envelope, given};

mod support;

struct Subject {
    batched: bool,
}

/// For what only this file tests.
const SUBJECT: Subject = Subject { batched: false };

async fn subject() -> Option<Subject> {
    env::var("POSTHASTE_TEST_NATS").ok().map(|_| SUBJECT)
}

async fn batched() -> Option<Subject> {
    env::var("POSTHASTE_TEST_NATS").ok().map(|_| Subject { batched: true })
}

posthaste_testkit::transport_conformance!(subject);

mod in_batches {
    use super::batched;

    posthaste_testkit::transport_conformance!(batched);
}

#[async_trait]
impl Destination for Subject {
    fn traits(&self) -> Traits {
        // The limit is the server's own: 2 MB.
        Traits { binding: Some("http"), too_large: Some((0, 2 * 1024 * 1024)), ..Traits::default() }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_NATS").expect("the subject was made")
    }

    fn server(&self) -> Server {
        private("authorization { user: me, password: right }", "me:right@")
            .expect("the path of nats-server")
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        let config =
            NatsConfig { batched: self.batched, ..NatsConfig::from_url(&options.on(url))? };
        Ok(Arc::new(Nats::new(config)?))
    }

    async fn prepare(&self, url: &str, topic: &str) {
        let _: Vec<Received> = consume(consumer("nats"), &["prepare", url, topic]).await;
    }

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        consume(consumer("nats"), &["read", url, topic]).await
    }
}

/// A server of its own, with these lines in its configuration; `FOLDER` in them is its own.
fn private(configuration: &str, login: &'static str) -> Option<Server> {
    let server = given("POSTHASTE_TEST_NATS_SERVER")?;
    let configuration = configuration.to_owned();
    let server = Server::new(
        move |port| format!("nats://{login}127.0.0.1:{port}"),
        move |port, folder| command(&server, port, folder, &configuration),
    );
    Some(server.ready_when("Server is ready"))
}

fn command(server: &str, port: u16, folder: &Path, configuration: &str) -> Command {
    let path = folder.join("server.conf");
    let text = format!(
        "listen: 127.0.0.1:{port}\n\
         jetstream {{ store_dir: \"{}\", max_file_store: 1GB }}\n{configuration}\n",
        folder.join("data").display()
    );
    let text = text.replace("FOLDER", &folder.display().to_string());
    fs::write(&path, text).expect("the server's configuration can be written");
    let mut command = Command::new(server);
    command.arg("--config").arg(path);
    command
}

/// Where the shared server is, with these parameters.
fn shared(parameters: &str) -> Option<Nats> {
    let url = given("POSTHASTE_TEST_NATS")?;
    Some(transport(&format!("{url}?{parameters}")))
}

fn transport(url: &str) -> Nats {
    Nats::new(NatsConfig::from_url(url).unwrap()).unwrap()
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

#[tokio::test]
async fn a_subject_that_no_stream_listens_to_is_unavailable() {
    let Some(nats) = shared("") else { return };
    let outcomes = nats.publish(&[envelope(&unique("nobody"), "a")]).await;
    assert!(matches!(outcomes[0], Outcome::Unavailable { .. }), "{outcomes:?}");
    assert!(error(&outcomes[0]).contains("no stream listens"), "{outcomes:?}");
}

#[tokio::test]
async fn a_missing_stream_is_created_once_and_a_replay_is_told_in_its_id() {
    let name = unique("created");
    let parameters = format!("stream={name}&create_stream=true&subjects={name}.%3E");
    let Some(nats) = shared(&parameters) else { return };
    let topic = format!("{name}.placed");
    let mut event = envelope(&topic, "a");
    assert_eq!(nats.publish(&[event.clone()]).await, [Outcome::Delivered]);
    event.replay = 2;
    let again = shared(&parameters).unwrap();
    assert_eq!(again.publish(&[event.clone()]).await, [Outcome::Delivered]);
    let found = again.check().await.unwrap();
    assert!(found.contains(&format!("stream {name} on {name}.> with 2 messages")), "{found}");
    let received: Vec<Received> =
        consume(consumer("nats"), &["read", &SUBJECT.url(), &name, &topic]).await;
    assert_eq!(received[1].header("Nats-Msg-Id"), Some(format!("{}/2", event.event.id()).as_str()));
}

/// One server alone refuses a stream of three.
#[tokio::test]
async fn a_stream_is_created_with_the_replicas_that_are_asked_for() {
    let name = unique("replicated");
    let parameters = format!("stream={name}&create_stream=true&subjects={name}");
    let Some(three) = shared(&format!("{parameters}&replicas=3")) else { return };
    let refused = format!("stream {name} cannot be created: JetStream error 10074");
    assert_eq!(three.check().await.unwrap_err().to_string(), refused);
    let outcomes = three.publish(&[envelope(&name, "a")]).await;
    assert_eq!(outcomes, [Outcome::unavailable(refused)]);
    let one = shared(&format!("{parameters}&replicas=1")).unwrap();
    assert!(one.check().await.unwrap().contains("1 replica:"));
}

#[tokio::test]
async fn a_stream_that_acknowledges_nothing_is_refused_by_check() {
    let Some(mut server) = private("", "") else { return };
    server.start().await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let (name, subjects) = ("S".to_owned(), vec!["a".to_owned()]);
    let silent = stream::Config { name, subjects, no_ack: true, ..stream::Config::default() };
    jetstream::new(client).create_stream(silent).await.unwrap();
    let error = transport(&format!("{}?stream=S", server.url())).check().await.unwrap_err();
    assert!(error.to_string().contains("stream S acknowledges nothing (no_ack)"), "{error}");
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_named_by_check() {
    let name = unique("missing");
    let Some(nats) = shared(&format!("stream={name}")) else { return };
    let error = nats.check().await.unwrap_err().to_string();
    assert!(error.contains(&format!("there is no stream {name}")), "{error}");
}

#[tokio::test]
async fn an_event_of_another_stream_is_not_taken_and_the_next_one_goes_on() {
    let (mine, other) = (unique("mine"), unique("other"));
    let Some(nats) = shared(&format!("stream={mine}")) else { return };
    for name in [&mine, &other] {
        SUBJECT.prepare(&SUBJECT.url(), name).await;
    }
    let outcomes = nats.publish(&[envelope(&other, "a"), envelope(&mine, "b")]).await;
    assert!(matches!(outcomes[0], Outcome::Retry { .. }), "{outcomes:?}");
    assert!(error(&outcomes[0]).contains(&mine), "{outcomes:?}");
    assert_eq!(outcomes[1], Outcome::Delivered);
    assert!(SUBJECT.read(&SUBJECT.url(), &other).await.is_empty());
}

#[tokio::test]
async fn what_nats_cannot_carry_is_dead_with_a_reason_and_the_next_one_goes_on() {
    let Some(nats) = shared("") else { return };
    let topic = unique("headers");
    SUBJECT.prepare(&SUBJECT.url(), &topic).await;
    let event = |name: &str, value: &str| {
        built(Event::builder("OrderPlaced").topic(&topic).header(name, value))
    };
    let batch = [
        envelope("orders placed", "a"),
        envelope("orders.*", "a"),
        envelope("orders..placed", "a"),
        envelope("$JS.API.STREAM.DELETE.orders", "a"),
        event("with blank", "x"),
        event("colon:", "x"),
        event("lines", "marker\r\nNats-Rollup: all"),
        event("Nats-Rollup", "all"),
        event("fine", "x"),
    ];
    let outcomes = nats.publish(&batch).await;
    let says = [
        "blank",
        "wildcard",
        "empty part",
        "$",
        "name",
        "name",
        "line break",
        "orders to the server",
    ];
    for (outcome, says) in outcomes.iter().zip(says) {
        assert!(matches!(outcome, Outcome::Dead { .. }), "{outcome:?}");
        assert!(error(outcome).contains(says), "{outcome:?}");
        assert!(!error(outcome).contains("marker"), "{outcome:?}");
    }
    assert_eq!(outcomes[8], Outcome::Delivered);
}

#[tokio::test]
async fn a_stream_that_is_full_is_unavailable() {
    let Some(nats) = shared("") else { return };
    let topic = unique("full");
    let _: Vec<Received> =
        consume(consumer("nats"), &["prepare", &SUBJECT.url(), &topic, "1"]).await;
    let outcomes = nats.publish(&[envelope(&topic, "a"), envelope(&topic, "b")]).await;
    assert_eq!(outcomes[0], Outcome::Delivered);
    // With a time, which counts no attempt: other streams may take theirs meanwhile.
    assert!(matches!(outcomes[1], Outcome::Unavailable { after: Some(_), .. }), "{outcomes:?}");
    assert!(error(&outcomes[1]).contains("10077"), "{outcomes:?}");
}

#[tokio::test]
async fn a_token_lets_in_and_a_wrong_one_does_not() {
    let Some(mut server) = private("authorization { token: right }", "") else { return };
    server.start().await;
    let place = format!("127.0.0.1:{}", server.port());
    let found = transport(&format!("nats://right@{place}")).check().await.unwrap();
    assert!(found.contains("JetStream with 0 streams"), "{found}");
    let error = transport(&format!("nats://{place}?token=wrong")).check().await.unwrap_err();
    assert!(error.to_string().contains("refused the login"), "{error}");
    let error = transport(&format!("nats://{place}")).check().await.unwrap_err();
    assert!(error.to_string().contains("refused the login"), "{error}");
}

#[tokio::test]
async fn an_nkey_lets_in_and_another_one_does_not() {
    let (right, wrong) = (KeyPair::new_user(), KeyPair::new_user());
    let user = format!("authorization {{ users: [ {{ nkey: {} }} ] }}", right.public_key());
    let Some(mut server) = private(&user, "") else { return };
    server.start().await;
    for (key, works) in [(right, true), (wrong, false)] {
        let file = server.folder().join("seed");
        fs::write(&file, format!("{}\n", key.seed().unwrap())).unwrap();
        let url = format!("{}?nkey_file={}", server.url(), file.display());
        assert_eq!(transport(&url).check().await.is_ok(), works);
    }
}

/// A claim that an operator or an account signed.
fn signed(by: &KeyPair, subject: &KeyPair, nats: serde_json::Value) -> String {
    let header = serde_json::json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let claims = serde_json::json!({
        "jti": "1", "iat": 1, "iss": by.public_key(), "sub": subject.public_key(), "nats": nats,
    });
    let text =
        [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let signature = BASE64_URL_SAFE_NO_PAD.encode(by.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

#[tokio::test]
async fn a_credentials_file_lets_in_and_an_empty_one_is_told() {
    let (operator, user) = (KeyPair::new_operator(), KeyPair::new_user());
    let (account, system) = (KeyPair::new_account(), KeyPair::new_account());
    let unlimited = serde_json::json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let itself =
        signed(&operator, &operator, serde_json::json!({ "type": "operator", "version": 2 }));
    let known = serde_json::json!({ "type": "account", "version": 2, "limits": unlimited });
    let without_storage = serde_json::json!({ "type": "account", "version": 2 });
    let login = signed(
        &account,
        &user,
        serde_json::json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 }),
    );
    let Some(mut server) = private(
        &format!(
            "operator: {itself}\nsystem_account: {1}\nresolver: MEMORY\n\
             resolver_preload: {{ {0}: {2}, {1}: {3} }}",
            account.public_key(),
            system.public_key(),
            signed(&operator, &account, known),
            signed(&operator, &system, without_storage),
        ),
        "",
    ) else {
        return;
    };
    server.start().await;
    let file = server.folder().join("relay.creds");
    fs::write(
        &file,
        format!(
            "-----BEGIN NATS USER JWT-----\n{login}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        ),
    )
    .unwrap();
    let url = format!("{}?credentials_file={}", server.url(), file.display());
    let found = transport(&url).check().await.unwrap();
    assert!(found.contains("JetStream with 0 streams"), "{found}");
    fs::write(&file, "nothing").unwrap();
    let error = Nats::new(NatsConfig::from_url(&url).unwrap()).unwrap_err().to_string();
    assert!(error.contains("no JWT"), "{error}");
}

#[tokio::test]
async fn tls_works_with_the_authority_and_not_without() {
    let configuration = "tls { cert_file: \"FOLDER/cert.pem\", key_file: \"FOLDER/key.pem\" }";
    let Some(mut server) = private(configuration, "") else { return };
    certificates(server.folder());
    server.start().await;
    let authority = server.folder().join("ca.pem");
    let url = format!(
        "tls://127.0.0.1:{}?stream=s&create_stream=true&subjects=a&ca_file={}",
        server.port(),
        authority.display()
    );
    let nats = transport(&url);
    assert_eq!(nats.publish(&[envelope("a", "a")]).await, [Outcome::Delivered]);
    assert!(nats.check().await.unwrap().contains("1 messages"));
    let stranger = format!("tls://127.0.0.1:{}", server.port());
    let outcomes = transport(&stranger).publish(&[envelope("a", "a")]).await;
    assert!(matches!(outcomes[0], Outcome::Unavailable { .. }), "{outcomes:?}");
    assert!(error(&outcomes[0]).contains("certificate"), "{outcomes:?}");
    // Insisting on TLS is not talked out of it by a server that has none.
    let Some(mut plain) = private("", "") else { return };
    plain.start().await;
    let insists = format!(
        "tls://127.0.0.1:{}?ca_file={}&connect_timeout=1s",
        plain.port(),
        authority.display()
    );
    assert!(transport(&insists).check().await.is_err());
}

/// A server whose user `me` may not publish to subjects that begin with `no.`, with the stream `S`.
async fn with_forbidden_subjects() -> Option<Server> {
    let mut server = private(
        "authorization { users: [\n\
         { user: all, password: right }\n\
         { user: me, password: right, permissions: { publish: { deny: \"no.>\" } } }\n\
         { user: deaf, password: right, permissions: { subscribe: { deny: \"_INBOX.>\" } } }\n\
         ] }",
        "",
    )?;
    server.start().await;
    let stream = "stream=S&create_stream=true&subjects=yes.%3E,no.%3E&batched=true";
    let all = as_user(&server, "all", stream);
    assert_eq!(all.publish(&[envelope("no.a", "a")]).await, [Outcome::Delivered]);
    Some(server)
}

/// Patient: whoever waits for its deadline is noticed.
fn as_user(server: &Server, user: &str, parameters: &str) -> Nats {
    let port = server.port();
    transport(&format!("nats://{user}:right@127.0.0.1:{port}?publish_timeout=1m&{parameters}"))
}

/// What comes of the batch, which does not take as long as its deadline is away.
async fn published_at_once(nats: &Nats, batch: &[Envelope]) -> Vec<Outcome> {
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, nats.publish(batch)).await.expect("nothing waits for the deadline")
}

#[tokio::test]
async fn a_subject_that_is_not_permitted_is_a_retry_at_once_and_its_neighbours_go_on() {
    let Some(server) = with_forbidden_subjects().await else { return };
    for mode in ["", "batched=true", "batched=true&stream=S"] {
        let nats = as_user(&server, "me", mode);
        for forbidden in [&[0, 3][..], &[1, 2, 5], &[5], &[0, 1, 2, 3, 4, 5], &[]] {
            let batch: Vec<_> = (0..6)
                .map(|n| {
                    let may = if forbidden.contains(&n) { "no" } else { "yes" };
                    envelope(&format!("{may}.{}", n % 4), &n.to_string())
                })
                .collect();
            let outcomes = published_at_once(&nats, &batch).await;
            for (n, outcome) in outcomes.iter().enumerate() {
                if forbidden.contains(&n) {
                    assert!(matches!(outcome, Outcome::Retry { .. }), "{mode} {n}: {outcomes:?}");
                    let says = format!("not permit us to publish to subject \"no.{}\"", n % 4);
                    assert!(error(outcome).contains(&says), "{outcome:?}");
                } else {
                    assert_eq!(*outcome, Outcome::Delivered, "{mode} {n}: {outcomes:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_user_who_may_not_hear_acknowledgements_is_told_so_at_once() {
    let Some(server) = with_forbidden_subjects().await else { return };
    for mode in ["", "batched=true"] {
        let nats = as_user(&server, "deaf", mode);
        let batch = [envelope("yes.a", "a"), envelope("yes.b", "b")];
        for outcome in published_at_once(&nats, &batch).await {
            assert!(matches!(outcome, Outcome::Unavailable { .. }), "{mode}: {outcome:?}");
            assert!(error(&outcome).contains("_INBOX"), "{mode}: {outcome:?}");
        }
    }
}

/// Somebody who subscribes to a subject and replies to each message with these.
async fn replying(url: &str, subject: &str, replies: &'static [&'static str]) {
    let client = async_nats::connect(url).await.unwrap();
    let mut messages = client.subscribe(subject.to_owned()).await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            for reply in replies {
                let to = message.reply.clone().unwrap();
                client.publish(to, (*reply).into()).await.unwrap();
            }
        }
    });
}

#[tokio::test]
async fn who_replies_before_the_stream_is_not_heard() {
    const STREAM: &str = r#"{"stream":"S","seq":7}"#;
    const OTHER: &str = r#"{"stream":"OTHER","seq":7}"#;
    let Some(mut server) = private("", "") else { return };
    server.start().await;
    for (mode, replies, delivered) in [
        ("", &["hello", STREAM][..], true),
        ("stream=S", &["{}", OTHER, STREAM], true),
        ("", &["hello"], false),
        ("stream=S", &[OTHER], false),
    ] {
        let subject = unique("replied");
        replying(&server.url(), &subject, replies).await;
        let nats = transport(&format!("{}?publish_timeout=1s&{mode}", server.url()));
        let outcome = nats.publish(&[envelope(&subject, "a")]).await.remove(0);
        assert_eq!(outcome == Outcome::Delivered, delivered, "{mode} {replies:?}: {outcome:?}");
        if !delivered {
            assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
            assert!(error(&outcome).contains("was not its stream"), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_publish_ends_within_its_declared_time() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = silent.local_addr().unwrap();
    let nats = transport(&format!("nats://{place}?connect_timeout=300ms&publish_timeout=300ms"));
    let longest = nats.capabilities().longest_publish.unwrap();
    assert_eq!(longest, Duration::from_millis(600));
    let outcomes = tokio::time::timeout(longest, nats.publish(&[envelope("a", "a")])).await;
    assert!(matches!(outcomes.unwrap()[0], Outcome::Unavailable { .. }));
}

/// How many messages a stream holds, and the outcomes of what was published to it.
async fn in_one_batch(nats: &Nats, topic: &str, batch: &[Envelope]) -> (usize, Vec<Outcome>) {
    let outcomes = nats.publish(batch).await;
    (SUBJECT.read(&SUBJECT.url(), topic).await.len(), outcomes)
}

#[tokio::test]
async fn a_repeat_in_a_batch_is_dropped_and_the_others_arrive() {
    let Some(nats) = shared("batched=true") else { return };
    let topic = unique("repeat");
    SUBJECT.prepare(&SUBJECT.url(), &topic).await;
    let [a, b, c] = ["a", "b", "c"].map(|key| envelope(&topic, key));
    let (there, outcomes) = in_one_batch(&nats, &topic, &[a.clone(), b.clone()]).await;
    assert_eq!((there, outcomes), (2, vec![Outcome::Delivered; 2]));
    let (there, outcomes) = in_one_batch(&nats, &topic, &[b, c, a]).await;
    assert_eq!((there, outcomes), (3, vec![Outcome::Delivered; 3]));
}

#[tokio::test]
async fn behind_an_event_that_a_batch_cannot_carry_its_key_waits_and_the_others_arrive() {
    let Some(nats) = shared("batched=true") else { return };
    let topic = unique("refused");
    SUBJECT.prepare(&SUBJECT.url(), &topic).await;
    let elsewhere = unique("nobody");
    let batch = [
        envelope(&topic, "a"),
        envelope("not a subject", "b"),
        envelope(&topic, "b"),
        envelope(&elsewhere, "c"),
        envelope(&topic, "c"),
        envelope(&topic, "a"),
    ];
    let (there, outcomes) = in_one_batch(&nats, &topic, &batch).await;
    assert_eq!(there, 2, "{outcomes:?}");
    assert_eq!((&outcomes[0], &outcomes[5]), (&Outcome::Delivered, &Outcome::Delivered));
    assert!(matches!(outcomes[1], Outcome::Dead { .. }), "{outcomes:?}");
    assert!(matches!(outcomes[3], Outcome::Unavailable { .. }), "{outcomes:?}");
    assert_eq!((&outcomes[2], &outcomes[4]), (&Outcome::held(), &Outcome::held()));
}

#[tokio::test]
async fn a_stream_that_takes_no_batches_is_told() {
    let name = unique("plain");
    let made = format!("stream={name}&create_stream=true&subjects={name}");
    let Some(nats) = shared(&made) else { return };
    nats.check().await.unwrap();
    let batched = shared(&format!("stream={name}&batched=true")).unwrap();
    let batch = [envelope(&name, "a"), envelope(&name, "b")];
    let (there, outcomes) = in_one_batch(&batched, &name, &batch).await;
    assert_eq!(there, 0);
    for outcome in &outcomes {
        assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcomes:?}");
        assert!(error(outcome).contains("allow_batched"), "{outcomes:?}");
    }
}

#[tokio::test]
async fn of_a_batch_that_the_stream_cannot_hold_it_takes_the_beginning() {
    let Some(nats) = shared("batched=true") else { return };
    let topic = unique("full");
    let _: Vec<Received> =
        consume(consumer("nats"), &["prepare", &SUBJECT.url(), &topic, "2"]).await;
    let batch: Vec<Envelope> = (0..5).map(|_| envelope(&topic, "a")).collect();
    let (there, outcomes) = in_one_batch(&nats, &topic, &batch).await;
    assert_eq!(there, 2, "{outcomes:?}");
    assert_eq!(outcomes[..2], [Outcome::Delivered, Outcome::Delivered]);
    assert!(matches!(outcomes[2], Outcome::Unavailable { .. }), "{outcomes:?}");
    assert_eq!(outcomes[3..], [Outcome::held(), Outcome::held()]);
}

#[tokio::test]
async fn many_batches_at_once_all_arrive() {
    let Some(nats) = shared("batched=true") else { return };
    let topic = unique("many");
    SUBJECT.prepare(&SUBJECT.url(), &topic).await;
    let batches: Vec<Vec<Envelope>> =
        (0..120).map(|_| (0..20).map(|_| envelope(&topic, "a")).collect()).collect();
    let published = join_all(batches.iter().map(|batch| nats.publish(batch))).await;
    assert_eq!(published, vec![vec![Outcome::Delivered; 20]; 120]);
    assert_eq!(SUBJECT.read(&SUBJECT.url(), &topic).await.len(), 120 * 20);
}
