//! `posthaste replay`: sends again what was sent.

use clap::Args;
use posthaste::{Result, Status};
use posthaste_operate::Action;
use uuid::Uuid;

use super::{
    bulk::{self, BulkArgs},
    filter::FilterArgs,
    operator::OperatorArgs,
};

/// Send events again that were sent: these, or all that match. Consumers see them a second time,
/// with a replay number. Order is not kept with what is delivered meanwhile.
#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// Which, by their ids
    #[arg(value_name = "ID")]
    ids: Vec<Uuid>,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    bulk: BulkArgs,

    #[command(flatten)]
    operator: OperatorArgs,
}

pub(crate) async fn run(args: ReplayArgs) -> Result<()> {
    let operator = args.operator.open().await?;
    if args.ids.is_empty() {
        let filter = args.filter.filter(Some(Status::Sent));
        return bulk::by_filter(&operator, Action::Replay, filter, &args.bulk).await;
    }
    bulk::by_id(&operator, Action::Replay, &args.ids, &args.bulk).await
}
