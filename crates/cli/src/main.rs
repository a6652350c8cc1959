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

mod otlp;

mod database;

mod migrate;

mod destination;

mod relay;

mod serve;

mod admin;

mod commands;

mod demo;

mod bench;

mod stop;

mod output;

mod failure;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use mimalloc::MiMalloc;
use posthaste::Result;

/// An event is read on one thread and freed on another, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

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
    /// Serve the admin API and the dashboard without a relay
    Admin(admin::AdminArgs),
    /// Connect to a destination, publish a test message, and say what was found
    CheckDestination(destination::CheckArgs),
    /// Show counts, ages, relays and shards of an outbox
    Status(commands::status::StatusArgs),
    /// Show the relays of an outbox and which shards each owns
    Relays(commands::relays::RelaysArgs),
    /// Look at events, or give up what was never sent
    Events(Box<commands::events::EventsArgs>),
    /// Look at dead events, send them again, or give them up
    Dead(Box<commands::dead::DeadArgs>),
    /// Send events again that were sent
    Replay(Box<commands::replay::ReplayArgs>),
    /// Hold an outbox, a relay, a destination or a key back
    Pause(commands::pause::PauseArgs),
    /// Let something go on that is paused
    Resume(commands::pause::ResumeArgs),
    /// Delete what is settled and past its retention
    Purge(commands::purge::PurgeArgs),
    /// Show who changed what
    Audit(commands::audit::AuditArgs),
    /// Check the installation, or explain why an event is not delivered
    Doctor(commands::doctor::DoctorArgs),
    /// Measure, each figure beside its baseline
    Bench(bench::BenchArgs),
    /// Print completions for a shell
    Completions {
        /// Which
        shell: Shell,
    },
}

impl Command {
    async fn run(self) -> Result<()> {
        match self {
            Self::Demo(args) => {
                // Its failures are on purpose, and its screen is redrawn in place.
                logging::to_stderr("error,posthaste_relay::settle=off", None);
                demo::run(args).await
            }
            Self::Init(args) => config::init(args),
            Self::Config(args) => config::config(args).await,
            Self::Migrate(args) => migrate::run(args).await,
            Self::Relay(args) => relay::run(*args).await,
            Self::Admin(args) => admin::run(args).await,
            Self::CheckDestination(args) => {
                // What it finds it says itself.
                logging::to_stderr("off", None);
                destination::check(args).await
            }
            Self::Status(args) => commands::status::run(args).await,
            Self::Relays(args) => commands::relays::run(args).await,
            Self::Events(args) => commands::events::run(*args).await,
            Self::Dead(args) => commands::dead::run(*args).await,
            Self::Replay(args) => commands::replay::run(*args).await,
            Self::Pause(args) => commands::pause::pause(args).await,
            Self::Resume(args) => commands::pause::resume(args).await,
            Self::Purge(args) => commands::purge::run(args).await,
            Self::Audit(args) => commands::audit::run(args).await,
            Self::Doctor(args) => commands::doctor::run(args).await,
            Self::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "posthaste", &mut script);
                output::print(&String::from_utf8_lossy(&script))
            }
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
    let ended = tokio::spawn(command.run()).await;
    otlp::flush();
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => failure::report(&error),
        // It has said so itself.
        Err(_panicked) => ExitCode::FAILURE,
    }
}
