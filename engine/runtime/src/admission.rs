//! Who holds one of the engine's slots.
//!
//! Slots are shared between tenants: the next one goes to the tenant that holds the fewest, and a tenant that holds more
//! than its share gives one up, its youngest request first. A request whose reader does not read gives way to anybody who
//! waits. What gives way loses its pages and is computed again later, to the same bits; those who were spared so far come
//! first, so that the loss is spread. Inside a tenant the oldest is admitted first.

use crate::compute::Compute;
use crate::inbox::Queue;
use crate::machine::Machine;
use crate::running::Running;
use crate::step::{Role, Stepper};
use engine_kv::{BlockTable, PAGE_TOKENS, PagePool};
use policies_domain::Label;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

/// Where a candidate for a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Preempted(usize),
    Waiting(usize),
}

impl Stepper {
    /// Forgets the cancelled; scrubs and frees what they gave back.
    pub(crate) fn forget_the_cancelled(&mut self, machine: &mut Machine<impl Compute>) {
        self.running.retain(|request| !request.cancelled());
        self.preempted.retain(|request| !request.cancelled());
        // Said before the scrub, which takes some milliseconds for a long context: their work has ended now.
        self.counters.running.store(self.running.len(), Ordering::Relaxed);
        machine.reclaim();
    }

    /// Fills the slots.
    pub(crate) fn admit(&mut self, machine: &mut Machine<impl Compute>, queue: &mut Queue) {
        self.forget_the_cancelled(machine);
        queue.waiting.retain(|request| !request.cancelled());
        while let Some((place, label, pages_needed)) = self.candidate(queue) {
            // Nobody behind the candidate is admitted before it: what runs drains, so that it gets its pages in the end.
            let Some(victims) = self.victims(&machine.pool, label, pages_needed) else { return };
            for victim in victims {
                self.preempt(machine, victim);
            }
            let admitted = match place {
                // `preempt` only adds at the end: the place is still right.
                Place::Preempted(index) => Some(self.preempted.remove(index)),
                Place::Waiting(index) => queue.waiting.remove(index),
            };
            let Some(mut admitted) = admitted else { return };
            if let Err(error) = admitted.note_admission(self.counters.next_epoch()) {
                admitted.refuse_row(error);
                continue;
            }
            if self.role == Role::Whole {
                admitted.hold(BlockTable::new(&machine.pool, admitted.label));
            }
            self.running.push(admitted);
        }
    }

    /// The oldest request of the tenant that holds the fewest slots; its pages to begin with.
    fn candidate(&self, queue: &Queue) -> Option<(Place, Label, usize)> {
        let preempted = self.preempted.iter().enumerate().filter(|(_, request)| request.may_resume());
        let preempted = preempted.map(|(index, request)| (Place::Preempted(index), request));
        let waiting = queue.waiting.iter().enumerate().map(|(index, request)| (Place::Waiting(index), request));
        let slots = |label| self.running.iter().filter(|request| request.label == label).count();
        let (place, request) =
            preempted.chain(waiting).min_by_key(|(_, request)| (slots(request.label), request.arrival))?;
        Some((place, request.label, pages_to_begin(request)))
    }

    /// Who gives way so that a request of `label` has a place, the last in `running` first; nobody when there is one
    /// already. `None` when all who would give way are not enough: then nobody does.
    fn victims(&self, pool: &PagePool, label: Label, pages_needed: usize) -> Option<Vec<usize>> {
        let mut staying: Vec<usize> = (0..self.running.len()).collect();
        let mut victims = Vec::new();
        while !self.has_place_for(pool, pages_needed, &staying, &victims) {
            let chosen = self.first_to_go(&staying, |slots, of_candidate| slots > of_candidate + 1, label)?;
            victims.push(staying.remove(chosen));
        }
        victims.sort_unstable_by_key(|index| Reverse(*index));
        Some(victims)
    }

    fn has_place_for(&self, pool: &PagePool, pages_needed: usize, staying: &[usize], victims: &[usize]) -> bool {
        let pages = |index: &usize| self.running[*index].pages();
        let free = pool.counts().free + victims.iter().map(pages).sum::<usize>();
        // What those who stay still need for their prompts is promised to them, and one more page each.
        let promised = |index: &usize| pages_to_begin(&self.running[*index]).saturating_sub(pages(index)) + 1;
        let promised: usize = staying.iter().map(promised).sum();
        // Whoever is alone may try: if even the whole pool is too small, its request fails.
        staying.is_empty() || staying.len() < self.config.sequences_max && pages_needed + promised <= free
    }

    /// Who loses its pages when a running request needs one and none is free.
    pub(crate) fn victim_for_pages(&self) -> Option<usize> {
        let all: Vec<usize> = (0..self.running.len()).collect();
        self.first_to_go(&all, |_, _| true, Label::NOBODY)
    }

    /// The place in `staying` of whoever is not read, else of the youngest of the tenant with the most slots, if `fair`
    /// says so of that number and the slots of `label`.
    fn first_to_go(&self, staying: &[usize], fair: impl Fn(usize, usize) -> bool, label: Label) -> Option<usize> {
        let slots = |label| staying.iter().filter(|index| self.running[**index].label == label).count();
        let stalled = staying.iter().rposition(|index| !self.running[*index].has_room());
        stalled.or_else(|| {
            let key = |index: &usize| {
                let request = &self.running[*index];
                (slots(request.label), Reverse(request.restarts), request.arrival)
            };
            let (place, index) = staying.iter().enumerate().max_by_key(|(_, index)| key(index))?;
            fair(slots(self.running[*index].label), slots(label)).then_some(place)
        })
    }

    /// Takes slot and pages away. Recomputed later to the same bits: nothing that was sent changes.
    pub(crate) fn preempt(&mut self, machine: &mut Machine<impl Compute>, index: usize) {
        let mut victim = self.running.remove(index);
        victim.begin_anew();
        self.preempted.push(victim);
        machine.reclaim();
    }

    /// The request in this place gives way, modulo their number; `None`: whoever gives way for pages. `false`: nobody has a
    /// slot. For tests, which do not wait until somebody must.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn make_give_way(&mut self, machine: &mut Machine<impl Compute>, place: Option<usize>) -> bool {
        let index = match place {
            Some(place) => place.checked_rem(self.running.len()),
            None => self.victim_for_pages(),
        };
        if let Some(index) = index {
            self.preempt(machine, index);
        }
        index.is_some()
    }

    /// Everybody inside the engine, by tenant: what the queue's bounds count besides those who wait in it.
    pub(crate) fn count_inside(&self, queue: &mut Queue) {
        queue.inside.clear();
        for Running { label, .. } in self.running.iter().chain(&self.preempted) {
            *queue.inside.entry(*label).or_default() += 1;
        }
    }
}

/// For all tokens so far and the next one.
fn pages_to_begin(request: &Running) -> usize {
    (request.tokens.len() + 1).div_ceil(PAGE_TOKENS)
}
