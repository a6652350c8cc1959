//! Who may settle: learnt from what the database answered when leases and claims were given.
//!
//! Kept beside the database, so that a fence that lets a stale owner pass is noticed, whichever side is wrong.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use posthaste_core::store::{
    Fence, Fetched, Held, RowLease, SettleReport, Settlement, ShardLease, Verdict,
};

/// The leases and claims that count. Clones are one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fences(Arc<Mutex<Given>>);

#[derive(Debug, Default)]
struct Given {
    /// Whose each shard is, and by which epoch.
    shards: BTreeMap<u16, (String, i64)>,
    /// The token of the last claim of a row.
    rows: BTreeMap<i64, String>,
}

impl Fences {
    fn given(&self) -> MutexGuard<'_, Given> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acquired(&self, owner: &str, leases: &[ShardLease]) {
        let leases = leases.iter().map(|lease| lease.held);
        let shards = leases.map(|held| (held.shard, (owner.to_owned(), held.epoch)));
        self.given().shards.extend(shards);
    }

    pub(crate) fn released(&self, owner: &str, held: &[Held]) {
        let mut given = self.given();
        for held in held {
            let is_its = |lease: &(String, i64)| lease.0 == owner && lease.1 == held.epoch;
            if given.shards.get(&held.shard).is_some_and(is_its) {
                given.shards.remove(&held.shard);
            }
        }
    }

    pub(crate) fn claimed<'a>(
        &self,
        lease: &RowLease,
        rows: impl IntoIterator<Item = &'a Fetched>,
    ) {
        let rows = rows.into_iter().map(|row| (row.sequence, lease.token.clone()));
        self.given().rows.extend(rows);
    }

    pub(crate) fn unclaimed(&self, lease: &RowLease, sequences: &[i64]) {
        let mut given = self.given();
        for sequence in sequences {
            if given.rows.get(sequence).is_some_and(|token| *token == lease.token) {
                given.rows.remove(sequence);
            }
        }
    }

    /// Another server answers: what the last one has given is not known to count.
    pub(crate) fn forget(&self) {
        *self.given() = Given::default();
    }

    /// The outcomes that were accepted although somebody else had the right to them.
    pub(crate) fn stale<'b>(
        &self,
        fence: &Fence,
        batch: &'b [Settlement],
        report: &SettleReport,
    ) -> Vec<&'b Settlement> {
        let mut given = self.given();
        let accepted = batch.iter().filter(|one| !report.refused.contains(&one.sequence));
        match fence {
            Fence::Shards { owner, held } => {
                // What an earlier server has given counts as long as nobody has taken it over: the new one may
                // have it on its disk.
                let is_its = |shard: u16| {
                    held.iter().any(|held| {
                        held.shard == shard
                            && given
                                .shards
                                .get(&shard)
                                .is_none_or(|(other, epoch)| other == owner && *epoch == held.epoch)
                    })
                };
                accepted.filter(|one| !is_its(one.shard)).collect()
            }
            Fence::Rows(RowLease { token }) => {
                let mut stale = Vec::new();
                for one in accepted {
                    match given.rows.get(&one.sequence) {
                        Some(other) if other != token => stale.push(one),
                        Some(_) if !matches!(one.verdict, Verdict::Suspect { .. }) => {
                            given.rows.remove(&one.sequence);
                        }
                        _ => {}
                    }
                }
                stale
            }
        }
    }
}
