//! Each group on a thread of its own: two machines, and a mailbox for each.

use super::mailbox::Mailbox;
use super::{DecodeGroup, PrefillGroup, TICK};
use crate::compute::Compute;
use crate::inbox::Inbox;
use crate::machine::Machine;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the two threads meet; or one of them, and the thread that speaks with the other group's process.
#[derive(Clone)]
pub(crate) struct Between {
    pub(crate) to_prefill: Arc<Mailbox>,
    pub(crate) to_decode: Arc<Mailbox>,
    pub(crate) inbox: Arc<Inbox>,
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
            group.stepper.now = self.started.elapsed();
            let pause = group.awaits().then_some(TICK).into_iter().chain(group.stepper.pause()).min();
            let found = self.inbox.wait_until(pause, |queue| {
                let found = group.look(&mut machine, self.started.elapsed(), queue);
                // Whoever was let in a moment ago may wait for something that time decides.
                let awaits = pause.is_none() && group.awaits();
                found || awaits || !group.outbox.is_empty() || !self.to_decode.is_empty()
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
    }

    /// Runs until the engine's handle is gone.
    pub(crate) fn run_prefill(&self, mut group: PrefillGroup, machine: &mut Machine<impl Compute>) {
        machine.compute.tie_caller();
        let mut ticked = Duration::ZERO;
        while !self.inbox.is_stopped() {
            group.stepper.now = self.started.elapsed();
            let idle = group.stepper.pause().map_or(TICK, |pause| pause.min(TICK));
            let pause = if group.has_work(machine) { Duration::ZERO } else { idle };
            let parcels = self.to_prefill.wait(pause);
            let now = self.started.elapsed();
            for parcel in parcels {
                group.receive(machine, now, parcel);
            }
            if now >= ticked + TICK {
                ticked = now;
                group.tick(machine, now);
            }
            self.post(&mut group);
            // Decoding has a team of its own: it waits for no prompt.
            let left_us = group.stepper.target().as_secs_f64() * 1e6;
            group.step(machine, now, left_us);
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
