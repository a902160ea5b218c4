//! Each group on a thread of its own: two machines, and a mailbox for each.

use super::{DecodeGroup, Parcel, PrefillGroup, TICK};
use crate::compute::Compute;
use crate::inbox::Inbox;
use crate::machine::Machine;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Parcels for one group. Bounded by the handoffs that may be open, each of which has a few parcels on its way at most.
#[derive(Default)]
pub(crate) struct Mailbox {
    parcels: Mutex<VecDeque<Parcel>>,
    arrived: Condvar,
}

impl Mailbox {
    fn put(&self, parcels: &mut VecDeque<Parcel>) {
        if !parcels.is_empty() {
            self.lock().append(parcels);
            self.arrived.notify_one();
        }
    }

    fn take(&self) -> VecDeque<Parcel> {
        std::mem::take(&mut self.lock())
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// What is there, after at most `pause` when there is nothing.
    fn wait(&self, pause: Duration) -> VecDeque<Parcel> {
        let waited = self.arrived.wait_timeout_while(self.lock(), pause, |parcels| parcels.is_empty());
        std::mem::take(&mut waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Parcel>> {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the two threads meet.
#[derive(Clone)]
pub(crate) struct Between {
    to_prefill: Arc<Mailbox>,
    to_decode: Arc<Mailbox>,
    inbox: Arc<Inbox>,
    started: Instant,
}

impl Between {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Self { to_prefill: Arc::default(), to_decode: Arc::default(), inbox, started: Instant::now() }
    }

    /// Runs until the engine's handle is gone.
    pub(crate) fn run_decode(&self, mut group: DecodeGroup, mut machine: Machine<impl Compute>) {
        machine.compute.tie_caller();
        let mut ticked = Duration::ZERO;
        loop {
            group.stepper.forget_the_cancelled(&mut machine);
            let pause = group.awaits().then_some(TICK);
            let found = self.inbox.wait_until(pause, |queue| {
                let found = group.look(&mut machine, self.started.elapsed(), queue);
                found || !group.outbox.is_empty() || !self.to_decode.is_empty()
            });
            if !found {
                break;
            }
            let now = self.started.elapsed();
            for parcel in self.to_decode.take() {
                group.receive(&mut machine, now, parcel);
            }
            if now >= ticked + TICK {
                ticked = now;
                group.tick(&mut machine, now);
            }
            // Before the step, which takes a while: the other group does not wait for it.
            self.to_prefill.put(&mut group.outbox);
            group.step(&mut machine, now);
            self.to_prefill.put(&mut group.outbox);
        }
        group.stepper.end();
        self.to_prefill.arrived.notify_one();
    }

    /// Runs until the engine's handle is gone.
    pub(crate) fn run_prefill(&self, mut group: PrefillGroup, mut machine: Machine<impl Compute>) {
        machine.compute.tie_caller();
        let mut ticked = Duration::ZERO;
        while !self.inbox.is_stopped() {
            let pause = if group.has_work(&machine) { Duration::ZERO } else { TICK };
            let parcels = self.to_prefill.wait(pause);
            let now = self.started.elapsed();
            for parcel in parcels {
                group.receive(&mut machine, now, parcel);
            }
            if now >= ticked + TICK {
                ticked = now;
                group.tick(&mut machine, now);
            }
            self.post(&mut group);
            group.step(&mut machine, now);
            self.post(&mut group);
        }
    }

    fn post(&self, group: &mut PrefillGroup) {
        if !group.outbox.is_empty() {
            self.to_decode.put(&mut group.outbox);
            self.inbox.wake_if_asleep();
        }
    }
}
