//! In place of the meters where the feature `metrics` is off: nothing is kept.

use std::time::Duration;

use posthaste_core::{
    Envelope,
    store::{Counts, TenantCounts},
    transport::Outcome,
};

use crate::Stats;

pub(crate) struct Meters;

#[allow(clippy::unused_self, reason = "the same calls as with the feature")]
impl Meters {
    pub(crate) fn new(_: &str, _: &[String], _: usize) -> Self {
        Self
    }

    pub(crate) fn published(
        &self,
        _: &[Envelope],
        _: &[Outcome],
        _: Duration,
        _: impl Fn(&Envelope) -> Option<Duration>,
    ) {
    }

    pub(crate) fn dead(&self, _: &str) {}

    pub(crate) fn sampled(&self, _: &Stats, _: &Stats) {}

    pub(crate) fn breaker(&self, _: usize, _: u8) {}

    pub(crate) fn relays_alive(&self, _: usize) {}

    pub(crate) fn counted(&self, _: Option<(&Counts, Option<Duration>)>) {}

    pub(crate) fn tenants(&self, _: Option<&TenantCounts>) {}

    pub(crate) fn tenant_limit(&self) -> usize {
        0
    }

    pub(crate) fn purged(&self, _: &'static str, _: u64) {}
}
