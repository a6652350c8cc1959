//! `posthaste dead list | show | replay | discard`.

use clap::{Args, Subcommand};
use posthaste::{Error, Result, Status, store::Filter};
use posthaste_operate::Action;
use uuid::Uuid;

use super::{
    bulk::{self, BulkArgs},
    events::{self, ListArgs, ShowArgs},
    filter::FilterArgs,
    operator::OperatorArgs,
};

/// Look at dead events, send them again, or give them up.
#[derive(Args)]
pub(crate) struct DeadArgs {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Subcommand)]
enum DeadCommand {
    /// Dead events, newest first
    List(ListArgs),
    /// One dead event and its failed attempts
    Show(ShowArgs),
    /// Send dead events again: these, or all that match
    Replay(ChangeArgs),
    /// Give dead events up: these, or all that match
    Discard(ChangeArgs),
}

#[derive(Args)]
struct ChangeArgs {
    /// Which, by their ids
    #[arg(value_name = "ID")]
    ids: Vec<Uuid>,

    /// All that are dead
    #[arg(long, conflicts_with = "ids")]
    all: bool,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    bulk: BulkArgs,

    #[command(flatten)]
    operator: OperatorArgs,
}

pub(crate) async fn run(args: DeadArgs) -> Result<()> {
    match args.command {
        DeadCommand::List(args) => events::list(Some(Status::Dead), args).await,
        DeadCommand::Show(args) => events::show(args, Some(Status::Dead)).await,
        DeadCommand::Replay(args) => change(Action::Replay, args).await,
        DeadCommand::Discard(args) => change(Action::Discard, args).await,
    }
}

async fn change(action: Action, args: ChangeArgs) -> Result<()> {
    let everything = Filter { status: Some(Status::Dead), ..Filter::default() };
    let filter = args.filter.filter(Some(Status::Dead));
    if args.ids.is_empty() && !args.all && filter == everything {
        return Err(Error::invalid(format!(
            "say which dead events to {}: by id, by --type, --key, --tenant, --from or --before, \
             or --all",
            action.as_str()
        )));
    }
    let operator = args.operator.open().await?;
    if args.ids.is_empty() {
        return bulk::by_filter(&operator, action, filter, &args.bulk).await;
    }
    for id in &args.ids {
        only_dead(&operator, *id).await?;
    }
    bulk::by_id(&operator, action, &args.ids, &args.bulk).await
}

/// Whoever means dead letters does not send again what was sent.
async fn only_dead(operator: &posthaste_operate::Operator, id: Uuid) -> Result<()> {
    use posthaste::ErrorKind::{IllegalTransition, NotFound};
    match operator.store().event(id).await? {
        None => Err(Error::new(NotFound, format!("event {id} is not there"))),
        Some(record) if record.status != Status::Dead => Err(Error::new(
            IllegalTransition,
            format!("event {id} is not dead, it is {}; nothing was changed", record.status),
        )),
        Some(_) => Ok(()),
    }
}
