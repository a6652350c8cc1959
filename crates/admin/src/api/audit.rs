//! Who changed what.

use axum::Json;
use jiff::Timestamp;
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
    audit: Vec<AuditLine>,
    next: Option<String>,
}

#[derive(Serialize)]
struct AuditLine {
    id: i64,
    at: Timestamp,
    by: String,
    action: String,
    subject: String,
    ended_at: Option<Timestamp>,
    affected: u64,
    error: Option<String>,
}

impl From<AuditRecord> for AuditLine {
    fn from(record: AuditRecord) -> Self {
        let AuditRecord { id, at, change, ended_at, affected, error } = record;
        let (by, action, subject) = (change.by, change.action, change.subject);
        Self { id, at, by, action, subject, ended_at, affected, error }
    }
}

pub(super) async fn audit(
    ServedOutbox { outbox, .. }: ServedOutbox,
    QueryOf(query): QueryOf<AuditQuery>,
) -> Answer<Json<AuditPage>> {
    let limit = page_limit(query.limit.as_deref())?;
    let records = outbox.store.audits(cursor(query.cursor.as_deref())?, limit).await?;
    // A full page may be the last; the one after it is empty then.
    let next = records.last().filter(|_| records.len() == limit).map(|last| last.id.to_string());
    Ok(Json(AuditPage { audit: records.into_iter().map(AuditLine::from).collect(), next }))
}
