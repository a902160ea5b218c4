//! Both groups on one thread, and the parcels between them.

use super::{DecodeGroup, PrefillGroup, TICK};
use crate::compute::Compute;
use crate::inbox::Queue;
use crate::machine::Machine;
use std::time::{Duration, Instant};

/// Two groups that take turns. With one machine for both, or with one for each.
pub(crate) struct Pair<C> {
    pub(crate) decode: DecodeGroup,
    pub(crate) prefill: PrefillGroup,
    /// The decode group's; also the prefill group's, when that has none of its own.
    pub(crate) machine: Machine<C>,
    pub(crate) of_prefill: Option<Machine<C>>,
    /// When the groups last looked at what has expired.
    ticked: Duration,
}

impl<C: Compute> Pair<C> {
    pub(crate) fn new(
        decode: DecodeGroup,
        prefill: PrefillGroup,
        machine: Machine<C>,
        of_prefill: Option<Machine<C>>,
    ) -> Self {
        Self { decode, prefill, machine, of_prefill, ticked: Duration::ZERO }
    }

    /// Runs until the engine's handle is gone.
    pub(crate) fn run(mut self) {
        self.machine.compute.tie_caller();
        let started = Instant::now();
        let inbox = self.decode.stepper.inbox.clone();
        loop {
            self.decode.stepper.forget_the_cancelled(&mut self.machine);
            // Pauses count from now, not from the step before.
            (self.decode.stepper.now, self.prefill.stepper.now) = (started.elapsed(), started.elapsed());
            let pauses =
                [self.decode.awaits().then_some(TICK), self.decode.stepper.pause(), self.prefill.stepper.pause()];
            let pause = pauses.into_iter().flatten().min();
            if !inbox.wait_until(pause, |queue| self.look(started.elapsed(), queue)) {
                break;
            }
            self.step(started.elapsed());
        }
        self.decode.stepper.end();
    }

    /// Admits whoever may have a slot. `false`: nobody can go on.
    pub(crate) fn look(&mut self, now: Duration, queue: &mut Queue) -> bool {
        let found = self.decode.look(&mut self.machine, now, queue);
        self.prefill.stepper.now = now;
        let of_prefill = self.of_prefill.as_ref().unwrap_or(&self.machine);
        found || self.prefill.has_work(of_prefill) || !self.decode.outbox.is_empty() || !self.prefill.outbox.is_empty()
    }

    /// One chunk of somebody's prompt, one token of everybody who has pages.
    pub(crate) fn step(&mut self, now: Duration) {
        if now >= self.ticked + TICK {
            self.ticked = now;
            self.tick(now);
        }
        self.exchange(now);
        self.prefill_step(now);
        self.exchange(now);
        self.decode_step(now);
        self.exchange(now);
    }

    /// Brings over what was left in the outboxes, and what comes of that.
    fn exchange(&mut self, now: Duration) {
        while self.bring_to_prefill(now) || self.bring_to_decode(now) {}
    }

    /// Brings one parcel to the prefill group. `false`: there is none.
    pub(crate) fn bring_to_prefill(&mut self, now: Duration) -> bool {
        let parcel = self.decode.outbox.pop_front();
        let found = parcel.is_some();
        if let Some(parcel) = parcel {
            self.prefill.receive(self.of_prefill.as_mut().unwrap_or(&mut self.machine), now, parcel);
        }
        found
    }

    /// Brings one parcel to the decode group. `false`: there is none.
    pub(crate) fn bring_to_decode(&mut self, now: Duration) -> bool {
        let parcel = self.prefill.outbox.pop_front();
        let found = parcel.is_some();
        if let Some(parcel) = parcel {
            self.decode.receive(&mut self.machine, now, parcel);
        }
        found
    }

    /// The groups look at what has expired.
    pub(crate) fn tick(&mut self, now: Duration) {
        self.decode.tick(&mut self.machine, now);
        self.prefill.tick(self.of_prefill.as_mut().unwrap_or(&mut self.machine), now);
    }

    pub(crate) fn prefill_step(&mut self, now: Duration) {
        // On one thread, prompts get what decoding leaves of a step.
        let left_us = self.decode.stepper.left_us();
        self.prefill.step(self.of_prefill.as_mut().unwrap_or(&mut self.machine), now, left_us);
    }

    pub(crate) fn decode_step(&mut self, now: Duration) {
        self.decode.step(&mut self.machine, now);
    }
}
