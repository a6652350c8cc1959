//! Events by a filter, a page at a time.

use axum::Json;
use jiff::Timestamp;
use posthaste_core::{Error, Result, Status, limits, store::Filter};
use posthaste_operate::EventLine;
use serde::{Deserialize, Serialize};

use super::ServedOutbox;
use crate::{
    extract::{QueryOf, cursor, page_limit, text},
    problem::Answer,
};

/// Which events, as requests say it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilterFields {
    status: Option<String>,
    r#type: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    tenant: Option<String>,
    from: Option<String>,
    before: Option<String>,
}

impl FilterFields {
    pub(super) fn read(self) -> Result<Filter> {
        let checked = |name: &str, value: Option<String>, longest| match value {
            None => Ok(None),
            Some(value) => text(name, &value, longest).map(|()| Some(value)),
        };
        Ok(Filter {
            status: self.status.as_deref().map(str::parse::<Status>).transpose()?,
            event_type: checked("type", self.r#type, limits::EVENT_TYPE)?,
            aggregate_type: checked("aggregate_type", self.aggregate_type, limits::AGGREGATE_TYPE)?,
            aggregate_id: checked("aggregate_id", self.aggregate_id, limits::AGGREGATE_ID)?,
            tenant: checked("tenant", self.tenant, limits::TENANT)?,
            created_from: time("from", self.from.as_deref())?,
            created_before: time("before", self.before.as_deref())?,
        })
    }
}

/// A time as RFC 3339 has it.
pub(super) fn time(name: &str, value: Option<&str>) -> Result<Option<Timestamp>> {
    value
        .map(str::parse)
        .transpose()
        .map_err(|_| Error::invalid(format!("{name} must be a time such as 2026-05-01T12:00:00Z")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    status: Option<String>,
    r#type: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    tenant: Option<String>,
    from: Option<String>,
    before: Option<String>,
    cursor: Option<String>,
    limit: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Events {
    events: Vec<EventLine>,
    next: Option<String>,
    examined: u64,
    /// The page is not full and yet not the last: so many events were looked at.
    window_ended: bool,
}

pub(super) async fn list(
    ServedOutbox { outbox, .. }: ServedOutbox,
    QueryOf(query): QueryOf<EventsQuery>,
) -> Answer<Json<Events>> {
    let limit = page_limit(query.limit.as_deref())?;
    let before = cursor(query.cursor.as_deref())?;
    let EventsQuery {
        status,
        r#type,
        aggregate_type,
        aggregate_id,
        tenant,
        from,
        before: until,
        ..
    } = query;
    let filter =
        FilterFields { status, r#type, aggregate_type, aggregate_id, tenant, from, before: until };
    let page = outbox.store.events(&filter.read()?, before, limit).await?;
    Ok(Json(Events {
        window_ended: page.next.is_some() && page.events.len() < limit,
        events: page.events.iter().map(EventLine::new).collect(),
        next: page.next.map(|next| next.to_string()),
        examined: page.examined,
    }))
}
