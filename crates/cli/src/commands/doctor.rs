//! `posthaste doctor`: what is wrong with the installation, or why an event is not delivered.

use std::time::Duration;

use clap::Args;
use posthaste::{
    Error, ErrorKind, Result,
    relay::Config,
    store::{Finding, Level, Store},
};
use posthaste_operate::doctor::{Cause, examine, explain, memory};
use serde_json::json;
use uuid::Uuid;

use crate::{
    args::OutboxArgs,
    config::{DestinationSettings, OutboxSettings, Settings},
    database, destination, logging,
    output::{self, counted, painted, print},
};

/// How long a destination may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Check the installation, or explain why an event is not delivered. The exit code is 0 only if
/// all is well.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// The event that is not delivered
    #[arg(value_name = "EVENT_ID")]
    id: Option<Uuid>,

    /// Do not connect to the destinations of the configuration
    #[arg(long)]
    no_destinations: bool,

    /// One JSON object instead of sentences
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    outbox: OutboxArgs,
}

pub(crate) async fn run(args: DoctorArgs) -> Result<()> {
    // It says itself what it finds.
    logging::to_stderr("off", None);
    let outbox = args.outbox.one()?;
    let settings = args.outbox.load(Vec::new())?;
    database::refuse_missing_file(outbox.url.expose())?;
    let store = database::connect(&outbox).await?;
    match args.id {
        Some(id) => event(&*store, id, &settings, &outbox, args.json).await,
        None => installation(&*store, &settings, &outbox.relay, &args).await,
    }
}

async fn event(
    store: &dyn Store,
    id: Uuid,
    settings: &Settings,
    outbox: &OutboxSettings,
    json: bool,
) -> Result<()> {
    store.check().await?;
    let (names, routes) = (settings.destination_names(), settings.known_routes(outbox));
    let explanation = explain(store, id, &names, routes.as_ref()).await?;
    if json {
        print(&output::json(&explanation)?)?;
    } else {
        let mend = explanation.mend.as_ref().map(|mend| format!("\n  {mend}\n"));
        print(&format!("{}\n{}", explanation.sentence, mend.unwrap_or_default()))?;
    }
    match explanation.cause {
        Cause::Delivered | Cause::Discarded | Cause::InProgress => Ok(()),
        Cause::NotFound => Err(Error::new(ErrorKind::NotFound, format!("event {id} is not there"))),
        _ => Err(Error::new(ErrorKind::State, format!("event {id} is not delivered"))),
    }
}

async fn installation(
    store: &dyn Store,
    settings: &Settings,
    relay: &Config,
    args: &DoctorArgs,
) -> Result<()> {
    let mut findings = examine(store, relay.stall_after).await?;
    // Without an outbox there is nothing to be said of its events, and the findings tell.
    if let Ok(memory) = memory(store, relay.memory).await {
        findings.push(memory);
    }
    if !args.no_destinations {
        // One without a URL cannot be asked; the note tells why it has none.
        for one in settings.destinations.iter().filter(|one| one.url.is_some()) {
            findings.push(destination(one).await);
        }
        if let Err(unread) = settings.refuse(&["destinations", "routes"]) {
            let text = format!("not all were looked at: {unread}");
            let note = Finding::new("destinations", Level::Note, text);
            findings.push(note.mended_by("posthaste config check"));
        }
    }
    let problems = findings.iter().filter(|finding| finding.level == Level::Problem).count();
    if args.json {
        print(&output::json(&json!({ "findings": findings }))?)?;
    } else {
        for finding in &findings {
            output::print_as_is(&line(finding))?;
        }
    }
    match problems {
        0 => Ok(()),
        problems => {
            let problems = counted(problems as u64, "problem", "problems");
            Err(Error::new(ErrorKind::State, format!("{problems} found")))
        }
    }
}

/// Whether a destination can be reached.
async fn destination(settings: &DestinationSettings) -> Finding {
    let name = settings.name.clone().unwrap_or_else(|| "destination".to_owned());
    let reached = match destination::configured(settings) {
        Err(error) => Err(error),
        Ok(transport) => match tokio::time::timeout(PATIENCE, transport.check()).await {
            Ok(checked) => checked,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "it did not answer in time")),
        },
    };
    match reached {
        Ok(found) => Finding::ok("destinations", format!("{name}: {found}")),
        Err(error) => Finding::new(
            "destinations",
            Level::Problem,
            format!("{name} cannot be reached: {error}"),
        )
        .mended_by(format!("posthaste check-destination URL, with the URL of {name}")),
    }
}

fn line(finding: &Finding) -> String {
    let Finding { check, level, text, mend } = finding;
    let (word, colour) = match level {
        Level::Ok => ("ok     ", 32),
        Level::Note => ("note   ", 36),
        Level::Warning => ("warning", 33),
        Level::Problem => ("problem", 31),
    };
    let mend = mend.as_ref().map(|mend| format!("         {mend}\n")).unwrap_or_default();
    format!("{} {}", painted(word, colour), output::page(&format!("{check}: {text}\n{mend}")))
}
