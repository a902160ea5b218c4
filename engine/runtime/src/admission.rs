//! Who holds one of the engine's slots.
//!
//! Slots are shared between tenants: the next one goes to the tenant that holds the fewest, and a tenant that holds more
//! than its share gives one up, its youngest request first. A request whose reader does not read gives way to anybody who
//! waits. What gives way loses its pages and is computed again later, to the same bits. Inside a tenant the oldest goes
//! first.

use crate::inbox::Queue;
use crate::running::Running;
use crate::step::Stepper;
use engine_kv::{BlockTable, PAGE_TOKENS};
use policies_domain::Label;

/// Where a candidate for a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Preempted(usize),
    Waiting(usize),
}

impl Stepper {
    /// Forgets the cancelled and fills the slots.
    pub(crate) fn admit(&mut self, queue: &mut Queue) {
        self.running.retain(|request| !request.cancelled());
        self.preempted.retain(|request| !request.cancelled());
        queue.waiting.retain(|request| !request.cancelled());
        self.reclaim();
        while let Some((place, label, pages_needed)) = self.candidate(queue) {
            while !self.has_place_for(pages_needed) {
                let Some(victim) = self.victim(label) else { return };
                self.preempt(victim);
            }
            let admitted = match place {
                // `preempt` only adds at the end: the place is still right.
                Place::Preempted(index) => Some(self.preempted.remove(index)),
                Place::Waiting(index) => queue.waiting.remove(index),
            };
            let Some(mut admitted) = admitted else { return };
            admitted.block_table = Some(BlockTable::new(&self.pool, admitted.label));
            admitted.note_admission();
            self.running.push(admitted);
        }
    }

    /// The oldest request of the tenant that holds the fewest slots; its pages to begin with.
    fn candidate(&self, queue: &Queue) -> Option<(Place, Label, usize)> {
        let preempted = self.preempted.iter().enumerate().filter(|(_, request)| request.may_resume());
        let preempted = preempted.map(|(index, request)| (Place::Preempted(index), request));
        let waiting = queue.waiting.iter().enumerate().map(|(index, request)| (Place::Waiting(index), request));
        let (place, request) =
            preempted.chain(waiting).min_by_key(|(_, request)| (self.slots_of(request.label), request.submitted))?;
        // The prompt and its first token.
        Some((place, request.label, (request.tokens.len() + 1).div_ceil(PAGE_TOKENS)))
    }

    fn has_place_for(&self, pages_needed: usize) -> bool {
        // Besides one more page for everybody who runs, so that a newcomer does not at once cost somebody his pages.
        let pages_wanted = pages_needed + self.running.len();
        let alone = self.running.is_empty();
        self.running.len() < self.config.sequences_max && (alone || pages_wanted <= self.pool.counts().free)
    }

    /// Who gives way to a request of `label`: whoever is not read, else the youngest of the tenant with the most slots,
    /// if that one still holds as many as `label` afterwards.
    fn victim(&self, label: Label) -> Option<usize> {
        let stalled = self.running.iter().rposition(|request| !request.has_room());
        stalled.or_else(|| {
            let (index, most) = self.youngest_of_the_largest()?;
            (most > self.slots_of(label) + 1).then_some(index)
        })
    }

    /// Who loses its pages when a running request needs one and none is free.
    pub(crate) fn victim_for_pages(&self) -> Option<usize> {
        let stalled = self.running.iter().rposition(|request| !request.has_room());
        stalled.or_else(|| Some(self.youngest_of_the_largest()?.0))
    }

    fn youngest_of_the_largest(&self) -> Option<(usize, usize)> {
        let slots = self.running.iter().enumerate().map(|(index, request)| (index, self.slots_of(request.label)));
        slots.max_by_key(|(index, slots)| (*slots, *index))
    }

    fn slots_of(&self, label: Label) -> usize {
        self.running.iter().filter(|request| request.label == label).count()
    }

    /// Takes slot and pages away. Recomputed later to the same bits: nothing that was sent changes.
    pub(crate) fn preempt(&mut self, index: usize) {
        let mut victim = self.running.remove(index);
        victim.block_table = None;
        victim.computed = 0;
        victim.restarted = true;
        self.preempted.push(victim);
        self.reclaim();
    }

    /// Everybody inside the engine, by tenant: what the queue's bounds count besides those who wait in it.
    pub(crate) fn count_inside(&self, queue: &mut Queue) {
        queue.inside.clear();
        for Running { label, .. } in self.running.iter().chain(&self.preempted) {
            *queue.inside.entry(*label).or_default() += 1;
        }
    }
}
