//! From `--to` to a destination, and `posthaste check-destination`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use posthaste::{
    Envelope, Error, ErrorKind, Event, Result,
    transport::{Outcome, Transport},
    transports::{
        self,
        log::{Format, LogTransport},
    },
};

use crate::output::print;

/// How `log` writes an event.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// Standard output.
pub(crate) fn log(format: LogFormat, payload: bool) -> Arc<dyn Transport> {
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
    Err(Error::invalid(format!(
        "destination {url:?} is not known; use log, or a URL such as nats://host:4222"
    )))
}

/// Connect to a destination, publish a test message, and say what was found. The exit code is 0
/// only if the destination acknowledged it.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The destination: `nats://…`, `kafka://…`, `amqp://…`, `redis://…`, `mqtt://…`,
    /// `pulsar://…` or `https://…`
    // Its value can hold a password: help is not to show it.
    #[arg(value_name = "URL", env = "POSTHASTE_TO", hide_env_values = true)]
    pub(crate) to: String,

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
