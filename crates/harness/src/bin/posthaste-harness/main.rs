//! One process of a crash test: a relay, or a writer.

mod transport;

mod relay;

mod writer;

use std::process::ExitCode;

use clap::Parser;
use posthaste_harness::options::{RelayOptions, WriterOptions};
use tokio::sync::mpsc;

/// One process of a crash test.
#[derive(Parser)]
enum Process {
    /// Delivers into a journal until it is terminated.
    Relay(RelayOptions),
    /// Writes events in transactions until it is terminated.
    Writer(WriterOptions),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("POSTHASTE_LOG")
                .unwrap_or_else(|_| "warn,posthaste=debug,posthaste_relay=debug".into()),
        )
        .init();
    let ended = match Process::parse() {
        Process::Relay(options) => relay::run(&options).await,
        Process::Writer(options) => writer::run(options).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, source = ?error.source(), "ended");
            ExitCode::FAILURE
        }
    }
}

/// The lines that the test says. When it has gone without ending this process, the process ends.
fn told() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    // A thread of its own: the runtime would wait for a read of its own that nothing ends.
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        std::process::exit(1);
    });
    lines
}
