//! Who holds one of the engine's slots.
//!
//! Whose turn it is, `engine_scheduler` says: the tenant whose work cost least so far, for its weight, and inside a tenant the
//! request with the longest cached prefix. Whoever holds more than its share gives a slot up, and whoever has more pages than
//! its guarantee gives pages, its cache first and its youngest request then. A request whose reader does not read gives way to
//! anybody who waits. What gives way is taken up again later, to the same bits; those who were spared so far come first, so
//! that the loss is spread.

use crate::compute::Compute;
use crate::inbox::{Queue, work_ns};
use crate::machine::{Machine, SwapInError, Swapped};
use crate::running::Running;
use crate::step::{Role, Stepper};
use crate::steps::StepError;
use engine_kv::{KnownPrefix, PAGE_TOKENS};
use engine_scheduler::{Arrival, Fit, Key, Load, Reclaim};
use policies_domain::Label;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Prompts that wait and are looked up in the cache again, at each look at the queue: some tens of microseconds each.
const LOOKED_UP_AT_ONCE: usize = 4;
/// So long a prompt waits, at most, for another one of its tenant that begins alike and is being computed.
pub(crate) const ALIKE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Tokens that it spares by that, at least.
const ALIKE_TOKENS_MIN: usize = 4 * PAGE_TOKENS;

impl Stepper {
    /// Forgets the cancelled; scrubs and frees what they gave back.
    pub(crate) fn forget_the_cancelled(&mut self, machine: &mut Machine<impl Compute>) {
        let scheduler = &mut self.scheduler;
        for requests in [&mut self.running, &mut self.waiting] {
            requests.retain(|request| {
                let goes = request.cancelled();
                if goes {
                    // What the one before let go of.
                    machine.follow();
                    scheduler.forget(request.arrival);
                }
                !goes
            });
        }
        // Said before the scrub, which takes some milliseconds for a long context: their work has ended now.
        self.counters.running.store(self.running.len(), Ordering::Relaxed);
        machine.reclaim();
    }

    /// Fills the slots.
    pub(crate) fn admit(&mut self, machine: &mut Machine<impl Compute>, queue: &mut Queue) {
        self.expire(queue);
        self.forget_the_cancelled(machine);
        self.take_in(machine, queue);
        if self.scheduler.waiting() > 0 {
            self.note_pages(machine);
        }
        while let Some(key) = self.scheduler.next(self.now, |key| self.fit(machine, key)) {
            if !self.make_place(machine, key) {
                break;
            }
            self.give_slot(machine, key);
            self.note_pages(machine);
        }
    }

    /// Those who came, and those who gave way and whose readers have read all that they got.
    fn take_in(&mut self, machine: &Machine<impl Compute>, queue: &mut Queue) {
        // Whoever left meanwhile takes no place, not even until the next look.
        for mut request in queue.came.drain(..).filter(|request| !request.cancelled()) {
            request.came = self.now;
            self.waiting.push(request);
        }
        for request in self.waiting.iter().filter(|request| request.may_resume() && !request.cancelled()) {
            if !self.scheduler.knows(request.arrival) {
                let arrival = Arrival {
                    tenant: request.label,
                    prompt_tokens: request.tokens.len(),
                    cached_tokens: known_tokens(machine, request),
                    restarts: request.restarts,
                };
                self.scheduler.arrive(request.came, request.arrival, arrival);
            }
        }
        self.look_again(machine);
    }

    /// What was computed meanwhile may be the beginning of a prompt that waits: a few of them are looked up at a time.
    fn look_again(&mut self, machine: &Machine<impl Compute>) {
        let waiting = if machine.cache.is_some() { self.waiting.len() } else { 0 };
        for _ in 0..waiting.min(LOOKED_UP_AT_ONCE) {
            self.looked_up = (self.looked_up + 1) % waiting;
            let request = &self.waiting[self.looked_up];
            self.scheduler.note_cached(request.arrival, known_tokens(machine, request));
        }
    }

    /// Whoever waited for too long for its first slot is told so, and to come back after those of its tenant who were told before
    /// it: by what that tenant has inside, which says nothing of the others.
    fn expire(&mut self, queue: &mut Queue) {
        let wait_max = Duration::from_millis(self.config.queue_wait_max_ms as u64);
        let expired = |request: &&Running| request.restarts == 0 && self.now.saturating_sub(request.came) > wait_max;
        for request in self.waiting.iter().filter(expired) {
            let before = queue.send_away(request.label);
            let retry_after_ms = self.load(request.label).retry_after_ms(before);
            request.deliver_error(StepError::Expired { retry_after_ms });
        }
    }

    /// Whether a request that waits could have a slot now, taking what others have too much of.
    fn fit(&self, machine: &Machine<impl Compute>, key: Key) -> Fit {
        let Some(request) = self.waiting.iter().find(|request| request.arrival == key) else { return Fit::Later };
        let stalled = self.running.iter().any(|request| !request.has_room());
        let has_slot = self.running.len() < self.config.sequences_max;
        if !has_slot && !stalled && self.scheduler.victim_for_slot(request.label).is_none() {
            return Fit::Later;
        }
        if request.swapped.as_ref().is_some_and(|swapped| !self.pace.admits(0, swapped.bytes())) {
            return Fit::Later;
        }
        if self.finds_more_soon(machine, request) {
            return Fit::Rather;
        }
        // Whoever is alone may try: if even the whole pool is too small, its request fails.
        let fits = self.running.is_empty() || self.claim(machine, request).is_some();
        if fits { Fit::Now } else { Fit::Later }
    }

    /// Prompts that begin alike often come together. What they share is computed for one of them, and the others find it.
    fn finds_more_soon(&self, machine: &Machine<impl Compute>, request: &Running) -> bool {
        let wait_max = ALIKE_WAIT_MAX.min(Duration::from_millis(self.config.queue_wait_max_ms as u64 / 2));
        let waits = request.restarts == 0 && self.now.saturating_sub(request.came) < wait_max;
        if machine.cache.is_none() || !waits {
            return false;
        }
        let is_prompt = |other: &Running| match self.role {
            Role::Decode => !other.is_here(),
            Role::Whole | Role::Prefill => other.computed < other.prompt_tokens,
        };
        let goes_on = |other: &&Running| is_prompt(other) && other.has_room() && !other.cancelled();
        let of_tenant = self.running.iter().filter(|other| other.label == request.label);
        let alike = of_tenant
            .filter(goes_on)
            .map(|other| shared_tokens(&other.tokens[..other.prompt_tokens], &request.tokens))
            .max()
            .unwrap_or(0);
        // Compared before the cache is asked, which costs more.
        alike >= ALIKE_TOKENS_MIN && alike - ALIKE_TOKENS_MIN >= machine.found(request.label, &request.tokens).tokens()
    }

    /// Who gives pages for a request, stalled ones not counted.
    fn claim(&self, machine: &Machine<impl Compute>, request: &Running) -> Option<Vec<Reclaim>> {
        // What its own cache has of it comes with it, and no room is needed for that.
        let found = found(machine, request);
        let needed = pages_to_begin(request) - found.pages;
        let stalled = self.running.iter().filter(|other| !other.has_room()).map(Running::pages_to_give).sum::<usize>();
        let missing = (needed + self.promised(Running::has_room)).saturating_sub(machine.pool.counts().free + stalled);
        let pages_of = |key| self.running.iter().find(|other| other.arrival == key).map_or(0, Running::pages_to_give);
        self.scheduler.claim(request.label, needed, missing, found.own, pages_of)
    }

    /// Takes a slot and pages for a request that fits from whoever has to give them. `false`: what they gave was not enough, and
    /// the request waits. It would only give way again.
    fn make_place(&mut self, machine: &mut Machine<impl Compute>, key: Key) -> bool {
        let Some(label) = self.waiting.iter().find(|request| request.arrival == key).map(|request| request.label)
        else {
            return false;
        };
        while let Some(stalled) = self.running.iter().rposition(|request| !request.has_room()) {
            let waiting = self.waiting.iter().find(|request| request.arrival == key);
            let has_pages = waiting.is_some_and(|request| self.has_pages_for(machine, request));
            if self.running.len() < self.config.sequences_max && has_pages {
                break;
            }
            self.preempt(machine, stalled);
        }
        if self.running.len() >= self.config.sequences_max
            && let Some(victim) = self.scheduler.victim_for_slot(label)
            && let Some(index) = self.running.iter().position(|request| request.arrival == victim)
        {
            self.preempt(machine, index);
        }
        self.note_pages(machine);
        let Some(request) = self.waiting.iter().find(|request| request.arrival == key) else { return false };
        let plan = self.claim(machine, request).unwrap_or_default();
        // What it will find in its cache is not to go for it. Whoever comes back with pages of its own looks for none there.
        let _pinned = if request.swapped.is_none() { machine.pin(request.label, &request.tokens) } else { None };
        for reclaim in plan {
            self.reclaim(machine, reclaim);
        }
        let waiting = self.waiting.iter().find(|request| request.arrival == key);
        self.running.is_empty() || waiting.is_some_and(|request| self.has_pages_for(machine, request))
    }

    /// Nobody has to give a page for it.
    fn has_pages_for(&self, machine: &Machine<impl Compute>, request: &Running) -> bool {
        let needed = pages_to_begin(request) - found(machine, request).pages;
        needed + self.promised(|_| true) <= machine.pool.counts().free
    }

    /// What those who stay still need for their prompts is promised to them, and one more page each.
    fn promised(&self, stays: impl Fn(&Running) -> bool) -> usize {
        let promised = |other: &Running| pages_to_begin(other).saturating_sub(other.pages()) + 1;
        self.running.iter().filter(|other| stays(other)).map(promised).sum()
    }

    fn reclaim(&mut self, machine: &mut Machine<impl Compute>, reclaim: Reclaim) {
        match reclaim {
            Reclaim::Cache(tenant, pages) => {
                machine.evict(tenant, pages);
            }
            Reclaim::Request(key) => {
                if let Some(index) = self.running.iter().position(|request| request.arrival == key) {
                    self.preempt(machine, index);
                }
            }
        }
    }

    fn give_slot(&mut self, machine: &mut Machine<impl Compute>, key: Key) {
        let Some(index) = self.waiting.iter().position(|request| request.arrival == key) else {
            return self.scheduler.forget(key);
        };
        let mut admitted = self.waiting.remove(index);
        if let Err(error) = admitted.note_admission(self.counters.next_epoch()) {
            admitted.refuse_row(error);
            return self.scheduler.forget(key);
        }
        // What its cache has by now is there without a copy.
        let is_worth = |swapped: &Swapped| {
            self.role != Role::Whole || swapped.tokens > machine.found(admitted.label, &admitted.tokens).tokens()
        };
        if let Some(swapped) = admitted.swapped.take().filter(is_worth) {
            let started = Instant::now();
            let back = machine.swap_in(&admitted, &swapped);
            // Without pages nothing was copied.
            let copied = if matches!(back, Err(SwapInError::NoPages)) { 0 } else { swapped.bytes() };
            self.note_copied(copied, started);
            match back {
                Ok(table) => {
                    self.counters.swapped_in.fetch_add(1, Ordering::Relaxed);
                    admitted.begin(table);
                }
                Err(SwapInError::NoPages) => (),
                Err(SwapInError::Refused(check)) => {
                    tracing::error!(request_id = %admitted.request, ?check, "pages that were swapped out are not what left");
                    admitted.deliver_error(StepError::Handoff { check });
                    return self.scheduler.forget(key);
                }
            }
        }
        if self.role == Role::Whole && !admitted.is_here() {
            let table = machine.begin_table(admitted.label, &admitted.tokens);
            admitted.begin(table);
        }
        self.scheduler.admit(key);
        if self.role == Role::Decode {
            // Its prompt is another group's.
            self.scheduler.prefilled(key);
        }
        self.running.push(admitted);
    }

    /// What each tenant has of the pages, as far as it matters for who gives.
    fn note_pages(&mut self, machine: &Machine<impl Compute>) {
        let holders = &mut self.page_holders;
        holders.extend(self.running.iter().map(|request| request.label).chain(machine.caching_tenants()));
        holders.sort_unstable();
        holders.dedup();
        let scheduler = &mut self.scheduler;
        holders.retain(|tenant| {
            let (held, cached) = machine.pages_of(*tenant);
            scheduler.note_pages(*tenant, held, cached);
            held > 0
        });
    }

    /// Who loses its pages when the running request in this place needs one and none is free: whoever is not read, else whom
    /// the scheduler names, else itself. `None`: a cache gave pages instead.
    pub(crate) fn victim_for_pages(&mut self, machine: &mut Machine<impl Compute>, index: usize) -> Option<usize> {
        if let Some(stalled) = self.running.iter().rposition(|request| !request.has_room()) {
            return Some(stalled);
        }
        self.note_pages(machine);
        match self.scheduler.reclaim_for(self.running[index].label) {
            Some(Reclaim::Cache(of, _)) if machine.evict(of, 1) > 0 => return None,
            Some(Reclaim::Request(key)) if self.running.len() > 1 => {
                return Some(self.place_of_key(key).unwrap_or(index));
            }
            _ => (),
        }
        // Nobody has too much. Whoever is alone would wait for ever.
        if self.running.len() == 1 && machine.evict_anybody(1) > 0 { None } else { Some(index) }
    }

    /// Takes slot and pages away. Recomputed later to the same bits: nothing that was sent changes.
    pub(crate) fn preempt(&mut self, machine: &mut Machine<impl Compute>, index: usize) {
        let mut victim = self.take_out(index);
        // A first token that was not delivered is sampled again: with its prompt, which is computed for that.
        let swapped = Some(&victim).filter(|victim| self.role == Role::Whole || victim.decodes());
        let (bytes_max, all) = (self.pace.bytes_left(), self.role == Role::Decode);
        let started = Instant::now();
        let swapped = swapped.and_then(|victim| machine.swap_out(victim, bytes_max, all));
        self.note_copied(swapped.as_ref().map_or(0, Swapped::bytes), started);
        self.counters.preempted.fetch_add(1, Ordering::Relaxed);
        victim.begin_anew();
        victim.swapped = swapped;
        self.waiting.push(victim);
        machine.reclaim();
    }

    /// Bytes of pages were copied since then.
    pub(crate) fn note_copied(&mut self, bytes: usize, started: Instant) {
        self.pace.note(bytes, self.measures.then(|| started.elapsed()));
    }

    /// A request has no slot any more.
    pub(crate) fn take_out(&mut self, index: usize) -> Running {
        let request = self.running.remove(index);
        self.scheduler.forget(request.arrival);
        request
    }

    /// The request in this place gives way, modulo their number; `None`: whoever gives way for pages. `false`: nobody has a
    /// slot. For tests, which do not wait until somebody must.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn make_give_way(&mut self, machine: &mut Machine<impl Compute>, place: Option<usize>) -> bool {
        let index = match place {
            Some(place) => place.checked_rem(self.running.len()),
            None if self.running.is_empty() => None,
            None => self.victim_for_pages(machine, self.running.len() - 1),
        };
        if let Some(index) = index {
            self.preempt(machine, index);
        }
        index.is_some()
    }

    /// Everybody inside the engine, by tenant: what the queue's bounds count besides those who came since.
    pub(crate) fn count_inside(&self, queue: &mut Queue) {
        queue.costs = *self.scheduler.costs();
        queue.inside.clear();
        for (requests, running) in [(&self.running, 1), (&self.waiting, 0)] {
            for request in requests {
                let inside = queue.inside.entry(request.label).or_default();
                *inside = inside.and(self.load_of(request, running));
            }
        }
    }

    /// A tenant's requests that are inside.
    fn load(&self, tenant: Label) -> Load {
        let of_tenant = |request: &&Running| request.label == tenant;
        let running = self.running.iter().filter(of_tenant).map(|request| self.load_of(request, 1));
        let waiting = self.waiting.iter().filter(of_tenant).map(|request| self.load_of(request, 0));
        running.chain(waiting).fold(Load::default(), Load::and)
    }

    fn load_of(&self, request: &Running, running: usize) -> Load {
        Load { running, waiting: 1 - running, work_ns: work_ns(self.scheduler.costs(), request) }
    }
}

/// Tokens that both begin with, in whole pages.
fn shared_tokens(one: &[u32], other: &[u32]) -> usize {
    let pages = std::iter::zip(one.as_chunks::<PAGE_TOKENS>().0, other.as_chunks::<PAGE_TOKENS>().0);
    pages.take_while(|(one, other)| one == other).count() * PAGE_TOKENS
}

/// Tokens of a request that need not be computed when it begins.
fn known_tokens(machine: &Machine<impl Compute>, request: &Running) -> usize {
    let cached = || machine.found(request.label, &request.tokens).tokens();
    request.swapped.as_ref().map_or_else(cached, |swapped| swapped.tokens)
}

/// What it finds in its tenant's cache. What comes back from outside of the pool needs pages of its own.
fn found(machine: &Machine<impl Compute>, request: &Running) -> KnownPrefix {
    if request.swapped.is_some() { KnownPrefix::default() } else { machine.found(request.label, &request.tokens) }
}

/// For all tokens so far and the next one.
fn pages_to_begin(request: &Running) -> usize {
    (request.tokens.len() + 1).div_ceil(PAGE_TOKENS)
}
