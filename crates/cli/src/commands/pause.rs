//! `posthaste pause` and `posthaste resume`.

use clap::{Args, Subcommand};
use posthaste::{Error, ErrorKind, Key, Result, key::derived_key, store::Pausable};
use posthaste_operate::Operator;

use super::{filter::key, operator::OperatorArgs};
use crate::{
    config::nearest,
    output::{self, print},
};

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
    /// With whether a name must be known.
    fn taken(self) -> (Taken, bool) {
        match self {
            Self::Outbox(rest) => (outbox(rest), false),
            Self::Relay { named, checked } => (named.relay(), !checked.unknown),
            Self::Destination { named, checked } => (named.destination(), !checked.unknown),
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
    let ((what, called, rest), checked) = args.what.taken();
    // A key is stored as a hash: the note says which it is.
    let note = match (&what, args.note) {
        (Pausable::Key(_), None) => Some(called.clone()),
        (Pausable::Key(_), Some(note)) => Some(format!("{called}: {note}")),
        (_, note) => note,
    };
    let operator = rest.operator.open().await?;
    let mut aside = "";
    if checked {
        let known = known(&operator, &what, &rest.operator).await?;
        match &known {
            Some(names) => refuse_unknown(&what, names)?,
            None => aside = " (no configuration names destinations here: the name was not checked)",
        }
    }
    let changed = operator.pause(&what, note.as_deref()).await?;
    let sentence = if changed { "is paused" } else { "was paused already" };
    told(rest.json, changed, &format!("{called} {sentence}{aside}\n"))
}

/// The names that there are, of the same kind; `None` when nobody here can know them all.
async fn known(
    operator: &Operator,
    what: &Pausable,
    args: &OperatorArgs,
) -> Result<Option<Vec<String>>> {
    let relays = operator.store().relays().await?;
    if matches!(what, Pausable::Relay(_)) {
        return Ok(Some(relays.into_iter().map(|relay| relay.name).collect()));
    }
    let mut names = args.outbox().load(Vec::new())?.destination_names();
    if names.is_empty() {
        return Ok(None);
    }
    // A relay may have others in its own configuration: those in trouble are on record.
    names.extend(relays.into_iter().flat_map(|relay| relay.breakers).map(|one| one.destination));
    Ok(Some(names))
}

/// Refuses a name that is not among these; the next one like it is named.
fn refuse_unknown(what: &Pausable, names: &[String]) -> Result<()> {
    let (kind, name) = (what.kind(), what.name());
    if names.contains(&name) {
        return Ok(());
    }
    let hint = match (nearest(&name, names.iter().map(String::as_str)), names) {
        (Some(near), _) => format!("did you mean {near}?"),
        (None, []) => format!("no {kind} has reported"),
        (None, names) => {
            let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
            names.sort_unstable();
            names.dedup();
            format!("there are {}", names.join(", "))
        }
    };
    Err(Error::new(
        ErrorKind::NotFound,
        format!("{kind} {name:?} is not known; {hint} (--unknown takes it all the same)"),
    ))
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
