//! Many events by a filter.

use axum::Json;
use posthaste_core::{Error, Result};
use posthaste_operate::{Action, Bulk, BulkReport};
use serde::{Deserialize, Serialize};

use super::{ServedOutbox, events::FilterFields};
use crate::{
    auth::Caller,
    extract::{JsonOf, Object},
    problem::Answer,
};

/// Most events that one call changes.
const MOST: usize = 10_000;

/// So long, in seconds, one call may take at the rate that it asks for. What is left is for the next
/// call; the command line has longer patience.
const LONGEST_S: usize = 60;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BulkRequest {
    action: String,
    filter: Object<FilterFields>,
    dry_run: bool,
    rate: Option<u32>,
    limit: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct BulkAnswer {
    #[serde(flatten)]
    report: BulkReport,
    dry_run: bool,
}

impl BulkRequest {
    fn read(self) -> Result<Bulk> {
        let action = match self.action.as_str() {
            "replay" => Action::Replay,
            "discard" => Action::Discard,
            _ => return Err(Error::invalid("action must be replay or discard")),
        };
        let limit = self.limit.unwrap_or(MOST);
        if !(1..=MOST).contains(&limit) {
            return Err(Error::invalid(format!("limit must be a number from 1 to {MOST}")));
        }
        if self.rate == Some(0) {
            return Err(Error::invalid("rate must be at least 1"));
        }
        let patience = self.rate.map_or(MOST, |rate| (rate as usize).saturating_mul(LONGEST_S));
        let bulk = Bulk {
            action,
            filter: self.filter.0.read()?,
            rate: self.rate,
            limit: limit.min(patience),
        };
        bulk.check()?;
        Ok(bulk)
    }
}

pub(super) async fn bulk(
    served: ServedOutbox,
    caller: Caller,
    JsonOf(request): JsonOf<BulkRequest>,
) -> Answer<Json<BulkAnswer>> {
    let dry_run = request.dry_run;
    let bulk = request.read()?;
    let report = if dry_run {
        bulk.try_out(&*served.outbox.store).await?
    } else {
        served.operator(caller).bulk(&bulk, |_| {}).await?
    };
    Ok(Json(BulkAnswer { report, dry_run }))
}
