//! From `--to` to a destination, and `posthaste check-destination`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use posthaste::{
    Envelope, Error, ErrorKind, Event, Result,
    transport::{Capabilities, Outcome, Transport},
    transports::{
        self,
        log::{Format, LogTransport},
    },
};

use crate::{config::DestinationSettings, failure, output::print};

/// How `log` writes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// The destination that is configured so.
pub(crate) fn configured(settings: &DestinationSettings) -> Result<Arc<dyn Transport>> {
    let Some(url) = &settings.url else {
        return Err(Error::invalid("its url is not set, or cannot be read"));
    };
    let url = url.expose();
    failure::keep_secret(url);
    let transport = match (url, settings.payload_limit) {
        ("log", None) => log(settings.format, settings.payload),
        (url, None) => open(url)?,
        (url, Some(bytes)) => open(&limited(url, bytes)?)?,
    };
    Ok(match &settings.name {
        Some(name) => Arc::new(Named { name: name.clone(), transport }),
        None => transport,
    })
}

/// The same URL with a limit, where the destination has one to set.
fn limited(url: &str, bytes: usize) -> Result<String> {
    const LIMITED: [&str; 4] = ["amqp", "kafka", "pulsar", "redis"];
    let scheme = url.split(':').next().unwrap_or_default();
    if !LIMITED.iter().any(|limited| scheme.starts_with(limited)) {
        return Err(Error::invalid(format!(
            "payload_limit is no setting of {scheme} destinations; those of {} have it",
            LIMITED.join(", ")
        )));
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    Ok(format!("{url}{separator}max_message={bytes}"))
}

/// A transport under the name that the configuration gives it.
struct Named {
    name: String,
    transport: Arc<dyn Transport>,
}

#[async_trait]
impl Transport for Named {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    async fn check(&self) -> Result<String> {
        self.transport.check().await
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        self.transport.publish(batch).await
    }
}

/// Standard output.
fn log(format: LogFormat, payload: bool) -> Arc<dyn Transport> {
    let log = LogTransport::stdout(match format {
        LogFormat::Text => Format::Text,
        LogFormat::Json => Format::Json,
    });
    Arc::new(if payload { log.with_payload() } else { log })
}

/// The destination of this URL.
pub(crate) fn open(url: &str) -> Result<Arc<dyn Transport>> {
    if url.contains("://") {
        return transports::open(url);
    }
    // A URL that was mistyped may hold a password.
    let named = url.bytes().all(|byte| byte.is_ascii_alphanumeric()) && url.len() <= 20;
    let what = if named { format!("destination {url:?}") } else { "the destination".to_owned() };
    Err(Error::invalid(format!("{what} is not known; use log, or a URL such as nats://host:4222")))
}

/// Connect to a destination, publish a test message, and say what was found. The exit code is 0
/// only if the destination acknowledged it.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The destination: `nats://…`, `kafka://…`, `amqp://…`, `redis://…`, `mqtt://…`,
    /// `pulsar://…` or `https://…`
    // Its value can hold a password: help is not to show it.
    #[arg(value_name = "URL", env = "POSTHASTE_TO", hide_env_values = true)]
    to: String,

    /// The topic that the test message goes to
    #[arg(long, default_value = "posthaste.check")]
    topic: String,

    /// Only connect, publish nothing
    #[arg(long)]
    no_publish: bool,

    /// How long to wait for an answer
    #[arg(long, value_name = "DURATION", default_value = "30s",
        value_parser = crate::duration::parse)]
    timeout: Duration,
}

pub(crate) async fn check(args: CheckArgs) -> Result<()> {
    failure::keep_secret(&args.to);
    let transport = open(&args.to)?;
    let late =
        || Error::new(ErrorKind::Unavailable, format!("no answer within {:?}", args.timeout));
    let found =
        tokio::time::timeout(args.timeout, transport.check()).await.map_err(|_| late())??;
    print(&format!("connected: {found}\n"))?;
    let capabilities = transport.capabilities();
    let largest = capabilities
        .max_message
        .map_or_else(|| "not limited here".to_owned(), |bytes| format!("{bytes} bytes"));
    print(&format!(
        "largest message: {largest}; repeats: {}; events of one key: {}\n",
        if capabilities.deduplicates { "dropped by their id" } else { "delivered again" },
        match capabilities.acceptance {
            posthaste::transport::Acceptance::Any => "one after the other",
            posthaste::transport::Acceptance::Prefix | posthaste::transport::Acceptance::Atomic =>
                "several together",
        }
    ))?;
    if args.no_publish {
        return Ok(());
    }
    let envelope = test_message(&args.topic)?;
    let began = Instant::now();
    let publish = transport.publish(std::slice::from_ref(&envelope));
    let outcomes = tokio::time::timeout(args.timeout, publish).await.map_err(|_| late())?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    let (what, error) = match outcomes.into_iter().next() {
        Some(Outcome::Delivered) => {
            let id = envelope.event.id();
            return print(&format!(
                "published: a test message to {:?}, acknowledged in {took:.1} ms (id {id})\n",
                args.topic
            ));
        }
        Some(Outcome::Retry { error, .. }) => ("not delivered, a relay would try again", error),
        Some(Outcome::TimedOut { error }) => ("not answered, a relay would try again", error),
        Some(Outcome::Dead { error }) => ("refused, a relay would give it up", error),
        Some(Outcome::Unavailable { error, .. }) => ("not taken, a relay would wait", error),
        None => ("no answer", String::new()),
    };
    Err(Error::new(
        ErrorKind::Unavailable,
        format!("the test message to {:?} was {what}: {error}", args.topic),
    ))
}

fn test_message(topic: &str) -> Result<Envelope> {
    let event = Event::builder("PosthasteCheck")
        .topic(topic)
        .raw_json(r#"{"message":"a test message of posthaste check-destination"}"#)
        .build()?;
    Ok(Envelope {
        sequence: 0,
        attempts: 0,
        replay: 0,
        created_at: Timestamp::now(),
        topic: None,
        event,
    })
}
