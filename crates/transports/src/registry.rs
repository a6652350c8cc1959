//! From a URL to a destination: the one place that knows all of them.

use std::sync::Arc;

use posthaste_core::{Error, Result, transport::Transport};

/// A destination by its schemes, the feature it comes with, and how it is made.
struct Entry {
    schemes: &'static [&'static str],
    feature: &'static str,
    open: Option<Open>,
}

type Open = fn(&str) -> Result<Arc<dyn Transport>>;

/// `Some` where the feature is part of this build.
macro_rules! opener {
    ($feature:literal, $module:ident, $transport:ident, $config:ident) => {{
        #[cfg(feature = $feature)]
        fn open(url: &str) -> Result<Arc<dyn Transport>> {
            let config = crate::$module::$config::from_url(url)?;
            Ok(Arc::new(crate::$module::$transport::new(config)?))
        }
        #[cfg(feature = $feature)]
        let opener: Option<Open> = Some(open);
        #[cfg(not(feature = $feature))]
        let opener: Option<Open> = None;
        opener
    }};
}

/// One line a destination.
fn registry() -> [Entry; 8] {
    let entry = |schemes, feature, open| Entry { schemes, feature, open };
    [
        entry(&["nats", "tls"], "nats", opener!("nats", nats, Nats, NatsConfig)),
        entry(&["kafka"], "kafka", opener!("kafka", kafka, Kafka, KafkaConfig)),
        entry(&["kafka+ssl"], "kafka-tls", opener!("kafka-tls", kafka, Kafka, KafkaConfig)),
        entry(&["pulsar", "pulsar+ssl"], "pulsar", opener!("pulsar", pulsar, Pulsar, PulsarConfig)),
        entry(
            &["amqp", "amqps"],
            "rabbitmq",
            opener!("rabbitmq", rabbitmq, RabbitMq, RabbitMqConfig),
        ),
        entry(&["redis", "rediss"], "redis", opener!("redis", redis, Redis, RedisConfig)),
        entry(&["mqtt", "mqtts"], "mqtt", opener!("mqtt", mqtt, Mqtt, MqttConfig)),
        entry(&["http", "https"], "http", opener!("http", http, Http, HttpConfig)),
    ]
}

/// The destination of this URL. It is not connected yet: a relay starts while its broker is down.
///
/// A URL that cannot be understood is refused, and so is a destination that is not part of this
/// build; the error names the feature.
pub fn open(url: &str) -> Result<Arc<dyn Transport>> {
    let Some((scheme, _)) = url.split_once("://") else {
        return Err(Error::invalid(format!("a destination is a URL; there are {}", known())));
    };
    let scheme = scheme.to_ascii_lowercase();
    let Some(entry) = registry().into_iter().find(|e| e.schemes.contains(&scheme.as_str())) else {
        return Err(Error::invalid(format!(
            "{scheme}:// is no destination that is known; there are {}",
            known()
        )));
    };
    match entry.open {
        Some(open) => open(url),
        None => Err(Error::invalid(format!(
            "{scheme}:// destinations are not part of this build; build it with --features {}",
            entry.feature
        ))),
    }
}

/// All schemes, for people.
fn known() -> String {
    let all: Vec<String> = registry()
        .iter()
        .flat_map(|entry| entry.schemes.iter().map(|scheme| format!("{scheme}://")))
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match open(url) {
            Ok(_) => panic!("{url} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_unknown_scheme_is_refused_with_those_that_are_known() {
        let error = refused("carrier-pigeon://loft");
        assert!(error.contains("carrier-pigeon:// is no destination"), "{error}");
        assert!(error.contains("nats://"), "{error}");
        assert!(refused("log").contains("a destination is a URL"));
    }

    #[test]
    fn every_destination_is_opened_by_its_url_or_names_its_feature() {
        for entry in registry() {
            for scheme in entry.schemes {
                let url = format!("{scheme}://broker.example/");
                match (open(&url), entry.open) {
                    (Ok(transport), Some(_)) => assert!(!transport.name().is_empty(), "{url}"),
                    (Err(error), None) => {
                        let error = error.to_string();
                        let flag = format!("--features {}", entry.feature);
                        assert!(error.contains(&flag), "{error}");
                    }
                    (Ok(_), None) => panic!("{url} was opened without its feature"),
                    (Err(error), Some(_)) => panic!("{url}: {error}"),
                }
            }
        }
    }
}
