//! Dropping what is old: traces, by whole files, when all that they are of is older than the operator wants to keep it. Entries,
//! tiles and checkpoints stay, so every receipt verifies as before. What is dropped is an entry first; a crash on the way is
//! finished by the next start, and nothing goes that a hold covers.

use crate::fault::{LogFault, storage};
use crate::index::Known;
use crate::log::{Shared, lock};
use crate::segment::{TRACES, traces_path};
use crate::sequence::{Commit, Draft};
use crate::storage::Storage;
use audit_provenance::{Body, Prune};
use std::num::NonZeroU32;

const DAY_US: u64 = 24 * 3_600 * 1_000_000;

/// Looks once a day for what is old.
#[derive(Debug)]
pub(crate) struct Retention {
    days: Option<NonZeroU32>,
    /// On the clock that does not go back.
    next_us: u64,
}

impl Retention {
    pub(crate) fn new(days: Option<NonZeroU32>) -> Self {
        Self { days, next_us: 0 }
    }

    /// What is to be written before anything is dropped, when something is due.
    pub(crate) fn due(&mut self, shared: &Shared) -> Result<Option<Draft>, LogFault> {
        let Some(days) = self.days else { return Ok(None) };
        let now_us = shared.clock.mono_us();
        if now_us < self.next_us {
            return Ok(None);
        }
        self.next_us = now_us.saturating_add(DAY_US);
        let retention_days = u64::from(days.get());
        let kept_us = retention_days.saturating_mul(DAY_US);
        let Some(old_us) = shared.clock.wall_us().checked_sub(kept_us) else { return Ok(None) };
        let (held_us, pruned) = {
            let keeping = lock(&shared.keeping);
            (keeping.held_from_us(), keeping.pruned_before())
        };
        let newest_us = held_us.map_or(Some(old_us), |held| Some(old_us.min(held.checked_sub(1)?)));
        let old = newest_us.and_then(|newest| shared.index.older_than(newest));
        let Some((before, newest_us)) = old.filter(|(before, _)| *before > pruned) else { return Ok(None) };
        Draft::untenanted(Body::Prune(Prune { before, newest_us, retention_days })).map(Some)
    }
}

/// Drops what a committed batch says to be dropped.
pub(crate) fn pruned(shared: &Shared, commit: &Commit) -> Result<(), LogFault> {
    match commit.said.first().map(|entry| &entry.body) {
        Some(Body::Prune(prune)) => shared.index.drop_traces(prune.before),
        _ => Ok(()),
    }
}

/// Removes the files of traces that were dropped, if they are there.
pub(crate) fn drop_traces(store: &dyn Storage, known: &Known) -> Result<(), LogFault> {
    let dropped = known.outline.segments_before(known.pruned);
    if dropped.is_empty() {
        return Ok(());
    }
    let there = store.list(TRACES).map_err(storage("list", TRACES))?;
    for first in there.iter().filter_map(|name| name.parse().ok()).filter(|first| dropped.binary_search(first).is_ok())
    {
        let path = traces_path(first);
        store.remove(&path).map_err(storage("remove", &path))?;
    }
    store.sync_folder(TRACES).map_err(storage("sync", TRACES))
}

#[cfg(test)]
mod tests;
