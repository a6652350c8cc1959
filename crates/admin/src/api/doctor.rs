//! What is wrong with the installation.

use axum::Json;
use posthaste_core::store::Finding;
use posthaste_operate::doctor::{STALL_AFTER, examine};
use serde::Serialize;

use super::ServedOutbox;
use crate::problem::Answer;

#[derive(Serialize)]
pub(super) struct Findings {
    findings: Vec<Finding>,
}

pub(super) async fn doctor(ServedOutbox { outbox, .. }: ServedOutbox) -> Answer<Json<Findings>> {
    Ok(Json(Findings { findings: examine(&*outbox.store, STALL_AFTER).await? }))
}
