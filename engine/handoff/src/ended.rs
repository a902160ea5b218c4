//! What a side remembers of handoffs that are over, and of the work that is still at their pages.

use crate::identity::{HandoffId, Route};
use std::collections::BTreeMap;
use std::time::Duration;

/// Handoffs that a side remembers after their end, at most. With that many it takes no new ones.
pub const TOMBSTONES_MAX: usize = 1 << 16;

/// How a handoff ended on a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Committed and drained: the decode side goes on, the prefill side's pages are its own again.
    Committed,
    /// Aborted, its pages freed.
    Freed,
    /// Aborted, its pages kept as evidence.
    Quarantined,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Tombstone {
    route: Route,
    outcome: Outcome,
    until: Duration,
}

/// Ended handoffs, each for a time: what arrives late begins nothing again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tombstones(BTreeMap<HandoffId, Tombstone>);

impl Tombstones {
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= TOMBSTONES_MAX
    }

    /// Does nothing when it is full: then no handoff is begun either.
    pub(crate) fn bury(&mut self, route: Route, outcome: Outcome, until: Duration) {
        if !self.is_full() {
            self.0.entry(route.id).or_insert(Tombstone { route, outcome, until });
        }
    }

    pub(crate) fn find(&self, id: HandoffId) -> Option<(Route, Outcome)> {
        self.0.get(&id).map(|tombstone| (tombstone.route, tombstone.outcome))
    }

    /// Looks at all of them: they do not expire in the order in which they came.
    pub(crate) fn reap(&mut self, now: Duration) {
        self.0.retain(|_, tombstone| tombstone.until > now);
    }
}

/// Work at the pages of one handoff that was begun and has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Jobs(u8);

/// One kind of work. At most one of each kind is open for a handoff.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    Reserve,
    Receive,
    Measure,
    Relabel,
    Prefill,
    Seal,
    Send,
    /// A timer took the pages: somebody has to confirm that nothing holds them.
    Fence,
}

impl Jobs {
    pub(crate) fn begin(&mut self, job: Job) {
        self.0 |= 1 << job as u8;
    }

    pub(crate) fn end(&mut self, job: Job) {
        self.0 &= !(1 << job as u8);
    }

    pub(crate) fn clear(&mut self) {
        self.0 = 0;
    }

    pub(crate) fn has(self, job: Job) -> bool {
        self.0 & 1 << job as u8 != 0
    }

    pub(crate) fn none(self) -> bool {
        self.0 == 0
    }
}
