//! Pulsar: what every transport must do, and what only this one promises.
//!
//! The server is pulsar-lite, which speaks Pulsar's protocol.

use std::{env, process::Command, sync::Arc};

use async_trait::async_trait;
use posthaste_core::{
    Result,
    transport::{Outcome, Transport},
};
use posthaste_testkit::transports::{
    Destination, Options, Received, Server, Traits, consume, consumer,
};
use posthaste_transports::pulsar::{Pulsar, PulsarConfig};

use support::{envelope, given};

mod support;

struct Subject;

async fn subject() -> Option<Subject> {
    env::var("POSTHASTE_TEST_PULSAR").ok().map(|_| Subject)
}

posthaste_testkit::transport_conformance!(subject);

#[async_trait]
impl Destination for Subject {
    fn traits(&self) -> Traits {
        // The server knows no tokens.
        Traits { keys: true, credentials: false, ..Traits::default() }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_PULSAR").expect("the subject was made")
    }

    fn server(&self) -> Server {
        let server = env::var("POSTHASTE_TEST_PULSAR_SERVER").expect("the path of the launcher");
        Server::new(
            |port| format!("pulsar://127.0.0.1:{port}"),
            move |port, folder| {
                let mut command = Command::new(&server);
                command.arg(port.to_string()).arg(folder);
                command
            },
        )
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        let mut config = PulsarConfig::from_url(&options.on(url))?;
        if let Some(limit) = options.max_message {
            config.max_message = limit;
        }
        Ok(Arc::new(Pulsar::new(config)?))
    }

    async fn prepare(&self, url: &str, topic: &str) {
        let _: Vec<Received> = consume(consumer("pulsar"), &["prepare", url, topic]).await;
    }

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        consume(consumer("pulsar"), &["read", url, topic]).await
    }
}

/// Where the shared server is, with this path and these parameters.
fn shared(rest: &str) -> Option<Pulsar> {
    let url = given("POSTHASTE_TEST_PULSAR")?;
    Some(Pulsar::new(PulsarConfig::from_url(&format!("{url}{rest}")).unwrap()).unwrap())
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
async fn a_topic_with_tenant_and_namespace_is_the_same_as_a_short_one() {
    let Some(pulsar) = shared("/public/default") else { return };
    let topic = unique("full");
    Subject.prepare(&Subject.url(), &topic).await;
    let full = format!("persistent://public/default/{topic}");
    let batch = [envelope(&topic, "a"), envelope(&full, "b")];
    assert_eq!(pulsar.publish(&batch).await, [Outcome::Delivered, Outcome::Delivered]);
    assert_eq!(Subject.read(&Subject.url(), &topic).await.len(), 2);
}

#[tokio::test]
async fn a_topic_that_cannot_be_one_is_dead_and_the_next_one_goes_on() {
    let Some(pulsar) = shared("") else { return };
    let topic = unique("fine");
    Subject.prepare(&Subject.url(), &topic).await;
    let batch = [
        envelope("orders placed", "a"),
        envelope("tenant/orders", "a"),
        envelope("non-persistent://public/default/orders", "a"),
        envelope(&topic, "a"),
    ];
    let outcomes = pulsar.publish(&batch).await;
    for outcome in &outcomes[..3] {
        assert!(matches!(outcome, Outcome::Dead { .. }), "{outcome:?}");
        assert!(error(outcome).contains("no Pulsar topic"), "{outcome:?}");
    }
    assert_eq!(outcomes[3], Outcome::Delivered);
}
