//! `posthaste config check`, `config show` and `posthaste init`.

use std::{io::Write as _, path::PathBuf};

use clap::{Args, Subcommand};
use posthaste::{Error, ErrorKind, Result};

use super::Settings;
use crate::{
    args::OutboxArgs,
    output::{self, print, table},
};

/// Look at the configuration: the file, the environment, and what becomes of them.
#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Say all that is wrong; connects to nothing. The exit code is 0 only if nothing is
    Check {
        #[command(flatten)]
        outbox: OutboxArgs,
    },
    /// Show every key, its effective value and where that comes from; secrets are masked
    Show {
        #[command(flatten)]
        outbox: OutboxArgs,

        /// A JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn config(args: ConfigArgs) -> Result<()> {
    match args.command {
        ConfigCommand::Check { outbox } => check(&outbox.load(Vec::new())?).await,
        ConfigCommand::Show { outbox, json } => show(&outbox.load(Vec::new())?, json),
    }
}

async fn check(settings: &Settings) -> Result<()> {
    let mut problems = settings.problems();
    if problems.is_empty() {
        // What only a relay would find: transports and routes that cannot be.
        problems.extend(crate::relay::build_problems(settings).await);
    } else if settings.refuse(&["outbox", "outboxes", "routes"]).is_ok() {
        // A password that is missing here hides no mistake in the routes.
        problems.extend(crate::relay::route_problems(settings));
    }
    let place = settings
        .file
        .as_ref()
        .map_or_else(|| "the environment".to_owned(), |file| file.display().to_string());
    if problems.is_empty() {
        for note in crate::relay::build_notes(settings) {
            eprintln!("note: {note}");
        }
        let outboxes: Vec<&str> = settings.outboxes.iter().map(|o| o.name.as_str()).collect();
        return print(&format!(
            "{place} is well: {} to {}\n",
            output::counted(outboxes.len() as u64, "outbox", "outboxes"),
            output::counted(settings.destinations.len() as u64, "destination", "destinations"),
        ));
    }
    let count = problems.len() as u64;
    for problem in &problems[..problems.len() - 1] {
        eprintln!("error: {problem}");
    }
    let last = problems.pop().unwrap_or_default();
    let of = if count > 1 { format!(" ({count} problems in {place})") } else { String::new() };
    Err(Error::invalid(format!("{last}{of}")))
}

fn show(settings: &Settings, json: bool) -> Result<()> {
    if json {
        let keys: Vec<serde_json::Value> = settings
            .shown
            .iter()
            .map(|shown| {
                serde_json::json!({
                    "key": shown.key,
                    "value": shown.value,
                    "origin": shown.origin.layer(),
                    "at": shown.origin.to_string(),
                })
            })
            .collect();
        print(&output::json(&keys)?)?;
    } else {
        let mut keys = table(["key", "value", "origin"]);
        for shown in &settings.shown {
            let value = shown.value.as_deref().unwrap_or("-");
            keys.add_row([&shown.key, value, &shown.origin.to_string()]);
        }
        print(&format!("{keys}\n"))?;
    }
    match settings.problems().first() {
        Some(problem) => Err(Error::invalid(problem.clone())),
        None => Ok(()),
    }
}

/// Write a commented configuration file to start from. Never overwrites one.
#[derive(Args)]
pub(crate) struct InitArgs {
    /// Where to
    #[arg(value_name = "FILE", default_value = super::FILE)]
    file: PathBuf,
}

/// Passes `config check` as it is.
pub(super) const STARTER: &str = include_str!("starter.toml");

pub(crate) fn init(args: InitArgs) -> Result<()> {
    let path = args.file.display();
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::new(
            ErrorKind::Refused,
            format!("{path} is there already and stays as it is; name another file"),
        ),
        _ => Error::new(ErrorKind::State, format!("{path} cannot be written")).with_source(error),
    };
    let mut file = std::fs::File::create_new(&args.file).map_err(failed)?;
    file.write_all(STARTER.as_bytes()).map_err(failed)?;
    print(&format!("{path} is written; mend it, then `posthaste config check --config {path}`\n"))
}
