//! The command line of Posthaste: `demo`, `migrate`, `relay`, `check-destination`, `status`, `bench`.
//!
//! The only place where configuration becomes objects. Events and answers go to standard output;
//! logs and errors to standard error, an error in one line. The exit code is 0, 1 for a failure
//! and 2 for a command line that cannot be understood.

mod args;

mod duration;

mod database;

mod migrate;

mod destination;

mod relay;

mod status;

mod demo;

mod bench;

mod stop;

mod output;

mod failure;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use posthaste::Result;
use tracing_subscriber::EnvFilter;

/// A transactional outbox: events in the service's own database transaction, delivered at least
/// once and in order per aggregate.
///
/// Start with `posthaste demo`. It needs no server.
#[derive(Parser)]
#[command(name = "posthaste", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a small shop with a relay and watch its events arrive, then check that none was lost
    Demo(demo::DemoArgs),
    /// Make the tables of an outbox, or bring them to this version
    Migrate(migrate::MigrateArgs),
    /// Deliver the events of an outbox until stopped
    Relay(relay::RelayArgs),
    /// Connect to a destination, publish a test message, and say what was found
    CheckDestination(destination::CheckArgs),
    /// Show how an outbox stands
    Status(status::StatusArgs),
    /// Measure, each figure beside its baseline
    Bench(bench::BenchArgs),
}

impl Command {
    fn url(&self) -> Option<&str> {
        match self {
            Self::Demo(args) => args.url.as_deref(),
            Self::Migrate(args) => Some(&args.database.url),
            Self::Relay(args) => Some(&args.database.url),
            Self::CheckDestination(args) => Some(&args.to),
            Self::Status(args) => Some(&args.database.url),
            Self::Bench(args) => Some(args.url()),
        }
    }

    /// What is logged unless `RUST_LOG` says otherwise.
    fn log_level(&self) -> &'static str {
        match self {
            // Its failures are on purpose, and its screen is redrawn in place.
            Self::Demo(_) | Self::Bench(_) => "error",
            // What it finds it says itself.
            Self::CheckDestination(_) => "off",
            // The relay tells of connections that matter; the brokers' clients tell of all.
            _ => "info,async_nats=warn,lapin=warn,redis=warn,rumqttc=warn",
        }
    }

    async fn run(self) -> Result<()> {
        match self {
            Self::Demo(args) => demo::run(args).await,
            Self::Migrate(args) => migrate::run(args).await,
            Self::Relay(args) => relay::run(args).await,
            Self::CheckDestination(args) => destination::check(args).await,
            Self::Status(args) => status::run(args).await,
            Self::Bench(args) => bench::run(args).await,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return failure::usage(&error),
    };
    log_to_stderr(command.log_level());
    let url = command.url().map(str::to_owned);
    // In a task, as a service's handlers are: the main thread is no worker of the runtime, and
    // whatever it wakes must first cross to one.
    match tokio::spawn(command.run()).await {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => failure::report(&error, url.as_deref()),
        // It has said so itself.
        Err(_panicked) => ExitCode::FAILURE,
    }
}

fn log_to_stderr(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
