//! The command line of Posthaste.
//!
//! The only place where configuration becomes objects. Events and answers go to standard output;
//! logs and errors to standard error, an error in one line. The exit code is 0, 1 for a failure,
//! 2 for a command line or a configuration that cannot be understood, 3 when what was asked for is
//! not there, and 4 when a rule or the operator's own "no" refused it.

mod config;

mod args;

mod duration;

mod logging;

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
    /// Write a commented configuration file to start from
    Init(config::InitArgs),
    /// Check the configuration, or show what holds and why
    Config(config::ConfigArgs),
    /// Make the tables of an outbox, or bring them to this version
    Migrate(migrate::MigrateArgs),
    /// Deliver the events of one outbox or several until stopped
    Relay(Box<relay::RelayArgs>),
    /// Connect to a destination, publish a test message, and say what was found
    CheckDestination(destination::CheckArgs),
    /// Show how an outbox stands
    Status(status::StatusArgs),
    /// Measure, each figure beside its baseline
    Bench(bench::BenchArgs),
}

impl Command {
    async fn run(self) -> Result<()> {
        match self {
            Self::Demo(args) => {
                // Its failures are on purpose, and its screen is redrawn in place.
                logging::to_stderr("error", None);
                demo::run(args).await
            }
            Self::Init(args) => config::init(args),
            Self::Config(args) => config::config(args).await,
            Self::Migrate(args) => migrate::run(args).await,
            Self::Relay(args) => relay::run(*args).await,
            Self::CheckDestination(args) => {
                // What it finds it says itself.
                logging::to_stderr("off", None);
                destination::check(args).await
            }
            Self::Status(args) => status::run(args).await,
            Self::Bench(args) => {
                logging::to_stderr("error", None);
                failure::keep_secret(args.url());
                bench::run(args).await
            }
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return failure::usage(&error),
    };
    // In a task, as a service's handlers are: the main thread is no worker of the runtime, and
    // whatever it wakes must first cross to one.
    match tokio::spawn(command.run()).await {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => failure::report(&error),
        // It has said so itself.
        Err(_panicked) => ExitCode::FAILURE,
    }
}
