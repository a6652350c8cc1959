//! What is overdue: shared by all databases.

use posthaste_core::{
    Key,
    store::{Blocked, EventRecord, LaneKey, Wait},
};

/// Most lanes with held events that one page looks at.
pub(crate) const LANES: i64 = 1_000;

/// A lane with held events, and the first of them that a walk met.
pub(crate) struct HeldLane {
    pub(crate) lane: LaneKey,
    pub(crate) first: i64,
}

impl HeldLane {
    pub(crate) fn new(lane: i64, destination: String, first: i64) -> Self {
        Self { lane: LaneKey { key: Key(lane), destination }, first }
    }
}

/// The first events of those lanes that nothing blocks.
pub(crate) fn unblocked(lanes: &[HeldLane], blocked: &[Blocked]) -> Vec<i64> {
    let blocks = |blocked: &Blocked| blocked.waiting || blocked.parked;
    let blocked: Vec<LaneKey> =
        blocked.iter().filter(|lane| blocks(lane)).map(Blocked::lane).collect();
    lanes.iter().filter(|held| !blocked.contains(&held.lane)).map(|lane| lane.first).collect()
}

/// The event waits in the table for what holds it.
pub(crate) fn is_held(record: &EventRecord) -> bool {
    record.wait == Some(Wait::Held) && record.not_before.is_none()
}

/// The lanes of those that are held.
pub(crate) fn held_lanes(records: &[EventRecord]) -> Vec<HeldLane> {
    let lane = |record: &EventRecord| {
        let key = record.content.as_ref().ok()?.event.key()?;
        Some(HeldLane::new(key.0, record.destination.clone()?, record.sequence))
    };
    records.iter().filter(|record| is_held(record)).filter_map(lane).collect()
}

/// These without the held ones that something blocks.
pub(crate) fn without_blocked(records: Vec<EventRecord>, unblocked: &[i64]) -> Vec<EventRecord> {
    let stays = |record: &EventRecord| !is_held(record) || unblocked.contains(&record.sequence);
    records.into_iter().filter(stays).collect()
}
