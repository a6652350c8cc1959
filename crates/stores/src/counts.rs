//! What counting found, put together.

use posthaste_core::{
    Error, ErrorKind, Result, Status,
    store::{Counts, TenantBacklog, TenantCounts},
};

/// How many to look for, so that what is there beyond the cap shows.
pub(crate) fn one_more(cap: u64) -> i64 {
    i64::try_from(cap).unwrap_or(i64::MAX).saturating_add(1)
}

/// What is known about the backlog without counting it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    /// How many numbers lie between the lowest mark and the last event: so many can be pending at most,
    /// but for what waits below the mark.
    pub(crate) above: i64,
    /// There are more rows to examine than a count examines.
    pub(crate) cut: bool,
}

/// The group of new events that wait behind another one of their key.
const HELD: &str = "held";

/// Counts out of groups by state, none of which was counted further than `cap + 1`.
pub(crate) fn by_status(
    groups: impl IntoIterator<Item = (String, i64)>,
    extent: Extent,
    cap: u64,
) -> Result<Counts> {
    let mut counts = Counts { estimated: extent.cut, ..Counts::default() };
    for (name, count) in groups {
        let count = count.max(0) as u64;
        if name == HELD {
            counts.new += count;
            counts.held += count;
            continue;
        }
        match name.parse::<Status>().map_err(|error| {
            Error::new(ErrorKind::Database, "counting events failed").with_source(error)
        })? {
            Status::New => counts.new += count,
            Status::Sending => counts.sending += count,
            Status::Retry => counts.retry += count,
            Status::Dead => counts.dead += count,
            Status::Sent | Status::Discarded => {}
        }
    }
    let others = counts.sending + counts.retry;
    if counts.new + others > cap {
        counts.estimated = true;
        counts.new = counts.new.max((extent.above.max(0) as u64).saturating_sub(others));
    }
    counts.estimated |= counts.dead > cap;
    Ok(counts)
}

/// Counts out of groups by tenant, of at most `cap + 1` events.
pub(crate) fn by_tenant(mut tenants: Vec<TenantBacklog>, extent: Extent, cap: u64) -> TenantCounts {
    tenants.sort_unstable_by(|a, b| b.events.cmp(&a.events).then_with(|| a.tenant.cmp(&b.tenant)));
    let estimated = extent.cut || tenants.iter().map(|tenant| tenant.events).sum::<u64>() > cap;
    TenantCounts { tenants, estimated }
}
