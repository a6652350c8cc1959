//! `posthaste events list | show | tail | discard`.

use std::{collections::HashSet, time::Duration};

use clap::{Args, Subcommand};
use posthaste::{
    Error, ErrorKind, Result, Status,
    store::{EventRecord, Filter, Store},
};
use posthaste_operate::{Action, EventDetail, EventLine};
use serde_json::json;
use uuid::Uuid;

use super::{
    bulk::{self, BulkArgs},
    event,
    filter::FilterArgs,
    operator::OperatorArgs,
};
use crate::{
    args::OutboxArgs,
    database, duration,
    output::{self, number, print},
    stop::StopSignal,
};

/// How many events `tail` looks at in one page.
const PAGE: usize = 200;

/// Look at events, or give up what was never sent.
#[derive(Args)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    command: EventsCommand,
}

#[derive(Subcommand)]
enum EventsCommand {
    /// Events, newest first
    List {
        /// Only in this state: `new`, `sending`, `retry`, `sent`, `dead` or `discarded`
        #[arg(long)]
        status: Option<Status>,

        #[command(flatten)]
        list: ListArgs,
    },
    /// One event and its failed attempts
    Show(ShowArgs),
    /// New events as they come, until Ctrl-C
    Tail(TailArgs),
    /// Give up events that were never sent: these, or all that match
    Discard {
        /// Which, by their ids
        #[arg(value_name = "ID")]
        ids: Vec<Uuid>,

        /// In which state: `new`, `retry` or `dead`
        #[arg(long, default_value = "new")]
        status: Status,

        #[command(flatten)]
        filter: FilterArgs,

        #[command(flatten)]
        bulk: BulkArgs,

        #[command(flatten)]
        operator: OperatorArgs,
    },
}

#[derive(Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,

    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,

    /// Go on behind this event: what the page before said
    #[arg(long, value_name = "N")]
    cursor: Option<i64>,

    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    outbox: OutboxArgs,
}

#[derive(Args)]
pub(super) struct ShowArgs {
    /// Its id
    id: Uuid,

    /// Show the payload too
    #[arg(long)]
    payload: bool,

    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    outbox: OutboxArgs,
}

#[derive(Args)]
struct TailArgs {
    /// Only in this state
    #[arg(long)]
    status: Option<Status>,

    #[command(flatten)]
    filter: FilterArgs,

    /// Begin with so many that are there already
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: usize,

    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,

    /// A JSON object a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    outbox: OutboxArgs,
}

pub(crate) async fn run(args: EventsArgs) -> Result<()> {
    match args.command {
        EventsCommand::List { status, list: args } => list(status, args).await,
        EventsCommand::Show(args) => show(args, None).await,
        EventsCommand::Tail(args) => tail(args).await,
        EventsCommand::Discard { ids, status, filter, bulk, operator } => {
            let operator = operator.open().await?;
            if ids.is_empty() {
                let filter = filter.filter(Some(status));
                return bulk::by_filter(&operator, Action::Discard, filter, &bulk).await;
            }
            bulk::by_id(&operator, Action::Discard, &ids, &bulk).await
        }
    }
}

pub(super) async fn list(status: Option<Status>, args: ListArgs) -> Result<()> {
    let (store, _) = database::open(&args.outbox.one()?).await?;
    let filter = args.filter.filter(status);
    let limit = usize::from(args.limit);
    let page = store.events(&filter, args.cursor, limit).await?;
    let window_ended = page.next.is_some() && page.events.len() < limit;
    if args.json {
        let events: Vec<_> = page.events.iter().map(EventLine::new).collect();
        return print(&output::json(&json!({
            "events": events,
            "next": page.next,
            "examined": page.examined,
            "window_ended": window_ended,
        }))?);
    }
    let list = match page.events.as_slice() {
        [] => "no events".to_owned(),
        events => event::list(events).to_string(),
    };
    let looked = if window_ended {
        format!("looked at {} events; ", number(page.examined))
    } else {
        String::new()
    };
    let older = page.next.map(|next| format!("{looked}older ones with --cursor {next}\n"));
    print(&format!("{list}\n{}", older.unwrap_or_default()))
}

/// `only`: in this state, or it is not what was asked for.
pub(super) async fn show(args: ShowArgs, only: Option<Status>) -> Result<()> {
    let (store, _) = database::open(&args.outbox.one()?).await?;
    let missing = |what: String| Error::new(ErrorKind::NotFound, what);
    let record = store.event(args.id).await?.ok_or_else(|| {
        missing(format!(
            "event {} is not there; `posthaste doctor {}` says what may have become of it",
            args.id, args.id
        ))
    })?;
    if let Some(only) = only.filter(|only| *only != record.status) {
        return Err(missing(format!(
            "event {} is not {only}, it is {}; see `posthaste events show`",
            args.id, record.status
        )));
    }
    let attempts = store.attempts(record.sequence).await?;
    if !args.json {
        return print(&event::page(&record, &attempts, args.payload));
    }
    let mut shown = json!({ "event": EventDetail::new(&record), "attempts": attempts });
    if let (true, Ok(envelope)) = (args.payload, &record.content) {
        shown["event"]["payload"] = String::from_utf8_lossy(envelope.event.payload()).into();
    }
    print(&output::json(&shown)?)
}

async fn tail(args: TailArgs) -> Result<()> {
    let (store, _) = database::open(&args.outbox.one()?).await?;
    let filter = args.filter.filter(args.status);
    let mut signal = StopSignal::new()?;
    let mut tail = Tail::start(&*store, &filter).await?;
    let mut news: Vec<EventRecord> = std::mem::take(&mut tail.first);
    news.drain(..news.len().saturating_sub(args.last));
    loop {
        for record in &news {
            print(&if args.json {
                output::json(&EventLine::new(record))?
            } else {
                event::line(record) + "\n"
            })?;
        }
        tokio::select! {
            () = signal.wait() => return Ok(()),
            () = tokio::time::sleep(args.interval) => {}
        }
        news = tail.next(&*store, &filter).await?;
    }
}

/// Knows what it has shown. A commit that comes late has a lower sequence than others before it:
/// so the newest page is remembered event by event.
struct Tail {
    seen: HashSet<i64>,
    /// What was there before it began; nothing older is new.
    floor: i64,
    first: Vec<EventRecord>,
}

impl Tail {
    async fn start(store: &dyn Store, filter: &Filter) -> Result<Self> {
        let mut first = store.events(filter, None, PAGE).await?.events;
        first.reverse();
        let floor = first.first().map_or(0, |record| record.sequence);
        Ok(Self { seen: first.iter().map(|record| record.sequence).collect(), floor, first })
    }

    /// What is new, oldest first.
    async fn next(&mut self, store: &dyn Store, filter: &Filter) -> Result<Vec<EventRecord>> {
        let (mut news, mut before) = (Vec::new(), None);
        let mut newest_page = HashSet::new();
        loop {
            let page = store.events(filter, before, PAGE).await?;
            let known = page.events.iter().any(|record| self.seen.contains(&record.sequence));
            if before.is_none() {
                newest_page.extend(page.events.iter().map(|record| record.sequence));
            }
            let is_new = |record: &EventRecord| {
                record.sequence > self.floor && !self.seen.contains(&record.sequence)
            };
            news.extend(page.events.into_iter().filter(is_new));
            before = page.next;
            if known || before.is_none_or(|before| before <= self.floor) {
                break;
            }
        }
        news.reverse();
        // What has left the newest page is old enough to be the floor.
        if let Some(lowest) = newest_page.iter().min().filter(|_| newest_page.len() == PAGE) {
            self.floor = self.floor.max(*lowest - 1);
        }
        self.seen = newest_page;
        Ok(news)
    }
}
