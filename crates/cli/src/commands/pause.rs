//! `posthaste pause` and `posthaste resume`.

use clap::{Args, Subcommand};
use posthaste::{Key, Result, key::derived_key, store::Pausable};

use super::{filter::key, operator::OperatorArgs};
use crate::output::{self, print};

/// Hold something back until it is resumed. Every relay obeys, and it survives restarts.
#[derive(Args)]
pub(crate) struct PauseArgs {
    #[command(subcommand)]
    what: What,

    /// Why, for whoever finds it paused
    #[arg(long, value_name = "TEXT", global = true)]
    note: Option<String>,
}

/// Let something go on that is paused.
#[derive(Args)]
pub(crate) struct ResumeArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Every relay of the outbox
    Outbox {
        #[command(flatten)]
        rest: Rest,
    },
    /// The relay of this name: it hands its work over to the others
    Relay {
        name: String,

        #[command(flatten)]
        rest: Rest,
    },
    /// The destination of this name: its events wait, others go on
    Destination {
        name: String,

        #[command(flatten)]
        rest: Rest,
    },
    /// One aggregate: its events wait
    Key {
        /// The aggregate, or the 16 digits by which `status` shows a key of the application's own
        #[arg(value_name = "TYPE/ID", value_parser = named_key)]
        key: NamedKey,

        /// Its tenant
        #[arg(long)]
        tenant: Option<String>,

        #[command(flatten)]
        rest: Rest,
    },
}

#[derive(Args)]
struct Rest {
    /// One JSON object instead of a sentence
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    operator: OperatorArgs,
}

impl What {
    /// What it is, what people call it, and the rest.
    fn taken(self) -> (Pausable, String, Rest) {
        match self {
            Self::Outbox { rest } => (Pausable::Outbox, "the outbox".to_owned(), rest),
            Self::Relay { name, rest } => {
                (Pausable::Relay(name.clone()), format!("relay {name}"), rest)
            }
            Self::Destination { name, rest } => {
                (Pausable::Destination(name.clone()), format!("destination {name}"), rest)
            }
            Self::Key { key: NamedKey::Digits(what, digits), rest, .. } => {
                (what, format!("key {digits}"), rest)
            }
            Self::Key { key: NamedKey::Aggregate(of, id), tenant, rest } => {
                let key = Key::of(&derived_key(tenant.as_deref().unwrap_or_default(), &of, &id));
                let tenant = tenant.map(|tenant| format!(" tenant={tenant}")).unwrap_or_default();
                (Pausable::Key(key), format!("key {of}/{id}{tenant}"), rest)
            }
        }
    }
}

/// How a key is named.
#[derive(Debug, Clone)]
enum NamedKey {
    Aggregate(String, String),
    Digits(Pausable, String),
}

fn named_key(text: &str) -> Result<NamedKey, String> {
    if let Ok(what) = Pausable::parse("key", text) {
        return Ok(NamedKey::Digits(what, text.to_owned()));
    }
    key(text).map(|(of, id)| NamedKey::Aggregate(of, id))
}

pub(crate) async fn pause(args: PauseArgs) -> Result<()> {
    let (what, called, rest) = args.what.taken();
    // A key is stored as a hash: the note says which it is.
    let note = match (&what, args.note) {
        (Pausable::Key(_), None) => Some(called.clone()),
        (Pausable::Key(_), Some(note)) => Some(format!("{called}: {note}")),
        (_, note) => note,
    };
    let changed = rest.operator.open().await?.pause(&what, note.as_deref()).await?;
    let sentence = if changed { "is paused" } else { "was paused already" };
    told(rest.json, changed, &format!("{called} {sentence}\n"))
}

pub(crate) async fn resume(args: ResumeArgs) -> Result<()> {
    let (what, called, rest) = args.what.taken();
    let changed = rest.operator.open().await?.resume(&what).await?;
    let sentence = if changed { "goes on" } else { "was not paused" };
    told(rest.json, changed, &format!("{called} {sentence}\n"))
}

fn told(json: bool, changed: bool, sentence: &str) -> Result<()> {
    if json {
        return print(&output::json(&serde_json::json!({ "changed": changed }))?);
    }
    print(sentence)
}
