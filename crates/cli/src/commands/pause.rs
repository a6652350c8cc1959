//! `posthaste pause` and `posthaste resume`.

use clap::{Args, Subcommand};
use posthaste::{Key, Result, key::derived_key, store::Pausable};
use posthaste_operate::check_name;
use serde::Serialize;

use super::{filter::key, operator::OperatorArgs};
use crate::output::{self, print};

/// Hold something back until it is resumed. Every relay obeys, and it survives restarts.
#[derive(Args)]
pub(crate) struct PauseArgs {
    #[command(subcommand)]
    what: PauseWhat,

    /// Why, for whoever finds it paused
    #[arg(long, value_name = "TEXT", global = true)]
    note: Option<String>,
}

/// Let something go on that is paused.
#[derive(Args)]
pub(crate) struct ResumeArgs {
    #[command(subcommand)]
    what: ResumeWhat,
}

#[derive(Subcommand)]
enum PauseWhat {
    /// Every relay of the outbox
    Outbox(Rest),
    /// The relay of this name: it hands its work over to the others
    Relay {
        #[command(flatten)]
        named: Named,

        #[command(flatten)]
        checked: Checked,
    },
    /// The destination of this name: its events wait, others go on
    Destination {
        #[command(flatten)]
        named: Named,

        #[command(flatten)]
        checked: Checked,
    },
    /// One aggregate: its events wait
    Key(OfKey),
}

#[derive(Subcommand)]
enum ResumeWhat {
    /// The outbox: its relays deliver again
    Outbox(Rest),
    /// The relay of this name: it takes its share of the work again
    Relay(Named),
    /// The destination of this name: the events that wait for it go out
    Destination(Named),
    /// One aggregate: the events that wait go out in their order
    Key(OfKey),
}

#[derive(Args)]
struct Named {
    name: String,

    #[command(flatten)]
    rest: Rest,
}

#[derive(Args)]
struct Checked {
    /// Take a name that neither the configuration nor the outbox knows
    #[arg(long)]
    unknown: bool,
}

#[derive(Args)]
struct OfKey {
    /// The aggregate, or the 16 digits by which `status` shows a key of the application's own
    #[arg(value_name = "TYPE/ID", value_parser = named_key)]
    key: NamedKey,

    /// Its tenant
    #[arg(long)]
    tenant: Option<String>,

    #[command(flatten)]
    rest: Rest,
}

#[derive(Args)]
struct Rest {
    /// One JSON object instead of a sentence
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    operator: OperatorArgs,
}

/// What is paused or resumed, what people call it, and the rest.
type Taken = (Pausable, String, Rest);

impl PauseWhat {
    /// With whether a name is taken that nobody knows.
    fn taken(self) -> (Taken, bool) {
        match self {
            Self::Outbox(rest) => (outbox(rest), false),
            Self::Relay { named, checked } => (named.relay(), checked.unknown),
            Self::Destination { named, checked } => (named.destination(), checked.unknown),
            Self::Key(key) => (key.taken(), false),
        }
    }
}

impl ResumeWhat {
    fn taken(self) -> Taken {
        match self {
            Self::Outbox(rest) => outbox(rest),
            Self::Relay(named) => named.relay(),
            Self::Destination(named) => named.destination(),
            Self::Key(key) => key.taken(),
        }
    }
}

fn outbox(rest: Rest) -> Taken {
    (Pausable::Outbox, "the outbox".to_owned(), rest)
}

impl Named {
    fn relay(self) -> Taken {
        let called = format!("relay {}", self.name);
        (Pausable::Relay(self.name), called, self.rest)
    }

    fn destination(self) -> Taken {
        let called = format!("destination {}", self.name);
        (Pausable::Destination(self.name), called, self.rest)
    }
}

impl OfKey {
    fn taken(self) -> Taken {
        let Self { key, tenant, rest } = self;
        match key {
            NamedKey::Digits(what, digits) => (what, format!("key {digits}"), rest),
            NamedKey::Aggregate(of, id) => {
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
    let ((what, called, rest), insists) = args.what.taken();
    // A key is stored as a hash: the note says which it is.
    let note = match (&what, args.note) {
        (Pausable::Key(_), None) => Some(called.clone()),
        (Pausable::Key(_), Some(note)) => Some(format!("{called}: {note}")),
        (_, note) => note,
    };
    let operator = rest.operator.open().await?;
    let destinations = match &what {
        Pausable::Destination(_) if !insists => {
            rest.operator.outbox().load(Vec::new())?.destination_names()
        }
        _ => Vec::new(),
    };
    let checked = if insists {
        Some(false)
    } else {
        check_name(operator.store(), &what, &destinations, "--unknown").await?
    };
    let aside = match checked {
        Some(false) if !insists => {
            " (no configuration names destinations here: the name was not checked)"
        }
        _ => "",
    };
    let changed = operator.pause(&what, note.as_deref()).await?;
    let sentence = if changed { "is paused" } else { "was paused already" };
    told(rest.json, &Told { changed, checked }, &format!("{called} {sentence}{aside}\n"))
}

pub(crate) async fn resume(args: ResumeArgs) -> Result<()> {
    let (what, called, rest) = args.what.taken();
    let changed = rest.operator.open().await?.resume(&what).await?;
    let sentence = if changed { "goes on" } else { "was not paused" };
    told(rest.json, &Told { changed, checked: None }, &format!("{called} {sentence}\n"))
}

/// The answer for programs.
#[derive(Serialize)]
struct Told {
    changed: bool,
    /// Whether the name was checked, where one was paused that could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<bool>,
}

fn told(json: bool, told: &Told, sentence: &str) -> Result<()> {
    if json {
        return print(&output::json(told)?);
    }
    print(sentence)
}
