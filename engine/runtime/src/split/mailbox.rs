//! Parcels that wait for a group which has a thread of its own.

use super::Parcel;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Parcels for one group, in order. Between two groups of one process they are bounded by the handoffs that may be open, each
/// of which has a few parcels on its way at most.
#[derive(Default)]
pub(crate) struct Mailbox {
    parcels: Mutex<VecDeque<Parcel>>,
    arrived: Condvar,
    taken: Condvar,
}

impl Mailbox {
    pub(crate) fn put(&self, parcels: &mut VecDeque<Parcel>) {
        if !parcels.is_empty() {
            self.lock().append(parcels);
            self.arrived.notify_one();
        }
    }

    /// Waits until less than `parcels_max` are there, for at most `pause`: for whoever brings what it does not make itself.
    pub(crate) fn has_room(&self, parcels_max: usize, pause: Duration) -> bool {
        let full = |parcels: &mut VecDeque<Parcel>| parcels.len() >= parcels_max;
        let waited = self.taken.wait_timeout_while(self.lock(), pause, full);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(crate) fn take(&self) -> VecDeque<Parcel> {
        self.taken.notify_all();
        std::mem::take(&mut self.lock())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// What is there, after at most `pause` when there is nothing.
    pub(crate) fn wait(&self, pause: Duration) -> VecDeque<Parcel> {
        let waited = self.arrived.wait_timeout_while(self.lock(), pause, |parcels| parcels.is_empty());
        let taken = std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0);
        self.taken.notify_all();
        taken
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Parcel>> {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
