//! Who changed what.

use axum::Json;
use posthaste_core::store::AuditRecord;
use serde::{Deserialize, Serialize};

use super::ServedOutbox;
use crate::{
    extract::{QueryOf, cursor, page_limit},
    problem::Answer,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    cursor: Option<String>,
    limit: Option<String>,
}

#[derive(Serialize)]
pub(super) struct AuditPage {
    audit: Vec<AuditRecord>,
    next: Option<String>,
}

pub(super) async fn audit(
    ServedOutbox { outbox, .. }: ServedOutbox,
    QueryOf(query): QueryOf<AuditQuery>,
) -> Answer<Json<AuditPage>> {
    let limit = page_limit(query.limit.as_deref())?;
    let records = outbox.store.audits(cursor(query.cursor.as_deref())?, limit).await?;
    // A full page may be the last; the one after it is empty then.
    let next = records.last().filter(|_| records.len() == limit).map(|last| last.id.to_string());
    Ok(Json(AuditPage { audit: records, next }))
}
