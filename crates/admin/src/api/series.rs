//! The last minutes, for charts.

use axum::Json;
use serde::{Deserialize, Serialize};

use super::{ServedOutbox, events::time};
use crate::{
    extract::QueryOf,
    problem::Answer,
    series::{INTERVAL, Point},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeriesQuery {
    since: Option<String>,
}

#[derive(Serialize)]
pub(super) struct SeriesAnswer {
    points: Vec<Point>,
    interval_s: u64,
}

pub(super) async fn series(
    ServedOutbox { series, .. }: ServedOutbox,
    QueryOf(query): QueryOf<SeriesQuery>,
) -> Answer<Json<SeriesAnswer>> {
    let since = time("since", query.since.as_deref())?;
    Ok(Json(SeriesAnswer { points: series.since(since), interval_s: INTERVAL.as_secs() }))
}
