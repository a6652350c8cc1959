//! What is found of a cluster, and what its settings mean for what it has acknowledged.

use posthaste_core::{Error, ErrorKind, Result};
use rdkafka::{
    admin::{AdminClient, AdminOptions, ResourceSpecifier},
    config::FromClientConfigAndContext,
    error::KafkaError,
};
use tokio::task::spawn_blocking;

use super::{
    Kafka,
    connect::{Producer, Watcher},
};
use crate::apart::Shared;

/// Most topics whose settings are asked for.
const ASKED: usize = 1_000;

/// What the brokers tell of themselves and their topics.
#[derive(Debug, Default)]
struct Found {
    brokers: usize,
    topics: Vec<String>,
    /// Topics with a partition that has one replica.
    single: usize,
}

impl Kafka {
    pub(super) async fn found(&self) -> Result<String> {
        let unavailable = |error: String| Error::new(ErrorKind::Unavailable, error);
        let live = self.live(&self.connection).await.map_err(unavailable)?;
        let place = self.config.place();
        let silent = || unavailable(format!("Kafka at {place} does not tell its topics"));
        let producer = live.producer().cloned().ok_or_else(silent)?;
        let timeout = self.config.common.connect_timeout;
        let asking = spawn_blocking(move || ask(&producer, timeout));
        let found = asking.await.map_err(|_| silent())?.map_err(|_| silent())?;
        let weak = self.with_one_in_sync(&found.topics).await.unwrap_or_default();
        Ok(format!("Kafka at {place}, {}", safety(&found, weak)))
    }

    /// How many of these topics acknowledge what one replica has. `None` if that is not told: not every user may
    /// ask for it, nor every server answer.
    async fn with_one_in_sync(&self, topics: &[String]) -> Option<usize> {
        let admin =
            AdminClient::from_config_and_context(&self.config.client(), Watcher::default()).ok()?;
        let asked: Vec<_> =
            topics.iter().take(ASKED).map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let options = AdminOptions::new().request_timeout(Some(self.config.common.connect_timeout));
        let told = admin.describe_configs(&asked, &options).await;
        // Its end waits for a thread.
        let _ = spawn_blocking(move || drop(admin)).await;
        let is_weak = |least: Option<&str>| least == Some("1");
        let told = told.ok()?.into_iter().flatten();
        let weak = told.filter(|topic| {
            is_weak(topic.get("min.insync.replicas").and_then(|entry| entry.value.as_deref()))
        });
        Some(weak.count())
    }
}

fn ask(producer: &Producer, timeout: std::time::Duration) -> Result<Found, KafkaError> {
    use rdkafka::producer::Producer as _;

    let metadata = producer.client().fetch_metadata(None, timeout)?;
    let mut found = Found { brokers: metadata.brokers().len(), ..Found::default() };
    for topic in metadata.topics().iter().filter(|topic| !topic.name().starts_with("__")) {
        let is_single = topic.partitions().iter().any(|partition| partition.replicas().len() < 2);
        found.single += usize::from(is_single);
        found.topics.push(topic.name().to_owned());
    }
    Ok(found)
}

/// `weak` topics acknowledge what one replica has.
fn safety(found: &Found, weak: usize) -> String {
    let mut said = vec![format!("brokers: {}, topics: {}", found.brokers, found.topics.len())];
    if found.single > 0 {
        said.push(format!(
            "with a single replica (its loss takes what was acknowledged): {}",
            found.single
        ));
    }
    if weak > 0 {
        said.push(format!(
            "with min.insync.replicas=1 (the leader alone may have what was acknowledged): {weak}"
        ));
    }
    said.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_tells_what_can_take_acknowledged_events() {
        let mut found = Found { brokers: 3, topics: vec!["orders".to_owned(); 4], single: 0 };
        assert_eq!(safety(&found, 0), "brokers: 3, topics: 4");
        found.single = 2;
        let said = safety(&found, 3);
        assert!(
            said.contains("single replica (its loss takes what was acknowledged): 2"),
            "{said}"
        );
        assert!(said.contains("may have what was acknowledged): 3"), "{said}");
    }
}
