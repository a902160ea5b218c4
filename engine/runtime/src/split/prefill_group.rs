//! The group that computes prompts and hands them over.

#[cfg(feature = "fault-injection")]
mod planting;

use super::{HEARTBEAT, LEASE, Parcel, Prompt, Terms, held_by, life_of, measure, quarantine, slots};
use crate::compute::Compute;
use crate::machine::Machine;
use crate::outlet::Spoken;
use crate::running::Running;
use crate::step::{Left, PAGES_KEPT, Role, Stepper};
use crate::steps::StepError;
use engine_handoff::{
    Effect, FirstStep, HandoffId, Incarnation, Message, Order, PageSlot, Party, PrefillConfig, PrefillEnd, PrefillHost,
    PrefillInput, PrefillSide, Route, SealedPage,
};
use engine_kv::{OutboundTable, PAGE_TOKENS, PagePool, PageState};
use engine_scheduler::{Arrival, Fit, Key};
use policies_domain::{Generation, HolderId, Label, Outcome, PageId, PageLife, TicketKind};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everything that is computed before a first token. Made of the protocol's side, a step loop for prompts, and the pages of
/// what is on its way.
pub(crate) struct PrefillGroup {
    pub(crate) stepper: Stepper,
    pub(crate) outbox: VecDeque<Parcel>,
    side: PrefillSide,
    terms: Terms,
    /// What was sent and is not yet ordered. At most `handoffs_max`.
    prompts: BTreeMap<HandoffId, Box<Prompt>>,
    /// What is to be told of prompts, and is not in the outbox yet.
    spoken: Spoken,
    /// They wait for pages, in the order in which they were ordered.
    waiting: Vec<Running>,
    outbound: BTreeMap<HandoffId, Outbound>,
    /// Numbers the prompts.
    arrivals: u64,
    /// Numbers the copies that it makes, as holders of tickets.
    copies: u64,
    /// An offer that waits for another one to be exchanged with: a planted fault.
    #[cfg(feature = "fault-injection")]
    exchanged: Option<engine_handoff::SealedManifest>,
}

/// The pages of a prompt that is computed.
struct Outbound {
    /// Of the pages, where they are kept for later requests when the decode group has its own.
    tokens: Vec<u32>,
    pages: Vec<PageSlot>,
    /// `None` when the decode group has them, which it may where both have one pool, and when they are kept as evidence.
    table: Option<OutboundTable>,
    /// The decode group has them.
    away: bool,
    /// What ends when they come back: the sending, or everything because of a fence.
    fenced: bool,
}

struct Host<'a> {
    pool: &'a PagePool,
    outbound: &'a BTreeMap<HandoffId, Outbound>,
}

impl PrefillHost for Host<'_> {
    fn sealed(&self, route: Route, page: PageId) -> Option<Generation> {
        life_of(self.pool, &self.outbound.get(&route.id)?.pages, PageState::Outbound, page)
    }
}

impl PrefillGroup {
    /// `life`: drawn at random.
    pub(crate) fn new(stepper: Stepper, terms: Terms, life: Incarnation) -> Self {
        assert_eq!(stepper.role, Role::Prefill, "a prefill group computes prompts");
        let config = PrefillConfig {
            key: terms.key.clone(),
            fingerprint: terms.fingerprint,
            handoffs_max: terms.handoffs_max,
            lease_ms: LEASE.as_millis() as u32,
            heartbeat: HEARTBEAT,
            remember: 2 * LEASE,
            checks: terms.checks,
        };
        Self {
            stepper,
            outbox: VecDeque::new(),
            side: PrefillSide::new(Arc::new(config), life),
            terms,
            prompts: BTreeMap::new(),
            spoken: Spoken::default(),
            waiting: Vec::new(),
            arrivals: 0,
            outbound: BTreeMap::new(),
            copies: 0,
            #[cfg(feature = "fault-injection")]
            exchanged: None,
        }
    }

    /// Somebody's prompt can be computed now, or can never be.
    pub(crate) fn has_work(&self, machine: &Machine<impl Compute>) -> bool {
        // Whoever is exclusive and waits for its period is no work: it would be waited for by turning round and round.
        self.stepper.running.iter().any(|request| self.stepper.is_due(request.label))
            || self.waiting.iter().any(|request| self.may_begin(machine, request))
    }

    /// Takes in what the decode group sent.
    pub(crate) fn receive(&mut self, machine: &mut Machine<impl Compute>, now: Duration, parcel: Parcel) {
        match parcel {
            #[cfg_attr(not(feature = "fault-injection"), allow(unused_mut, reason = "a fault changes it"))]
            Parcel::Prompt { route, mut prompt } => {
                #[cfg(feature = "fault-injection")]
                self.plant_prompt(&mut prompt);
                if self.prompts.len() < self.terms.handoffs_max {
                    self.prompts.insert(route.id, prompt);
                }
            }
            Parcel::Message { from, to: Party::Prefill, message } => {
                let message = self.own_order(message);
                let started = match &message {
                    Message::Start { route, .. } => Some(route.id),
                    _ => None,
                };
                self.tell(machine, now, PrefillInput::Message { from, message });
                // Taken by now, unless it was said again or refused.
                started.and_then(|id| self.prompts.remove(&id));
            }
            Parcel::Returned { route } => self.returned(machine, now, route),
            // Not this group's to get.
            Parcel::Message { .. }
            | Parcel::Bytes { .. }
            | Parcel::Table { .. }
            | Parcel::Said { .. }
            | Parcel::Peer { .. } => (),
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, machine: &mut Machine<impl Compute>, now: Duration) {
        self.tell(machine, now, PrefillInput::Tick);
    }

    /// Chunks of prompts, for which there are so many microseconds.
    pub(crate) fn step(&mut self, machine: &mut Machine<impl Compute>, now: Duration, left_us: f64) {
        self.stepper.now = now;
        self.forget_the_cancelled(machine, now);
        self.begin(machine, now);
        self.stepper.prefill_chunks(machine, left_us);
        self.stepper.periods.begin(now, self.stepper.target());
        self.speak();
        let idle = self.stepper.running.is_empty() && self.waiting.is_empty() && self.outbound.is_empty();
        if idle && !self.terms.in_place {
            machine.compute.give_back(PAGES_KEPT);
        }
        for Left { request, first } in std::mem::take(&mut self.stepper.left) {
            self.prefilled(machine, now, request, first);
        }
    }

    /// The order as this group's own copy of the request says it.
    fn own_order(&self, message: Message) -> Message {
        let Message::Start { route, order } = message else { return message };
        let own = self.prompts.get(&route.id).map(|prompt| Order {
            domain: prompt.label,
            request: prompt.digest(&self.terms),
            tokens: prompt.tokens.len() as u32,
        });
        Message::Start { route, order: own.unwrap_or(order) }
    }

    /// Nobody wants what they compute. The abort that says so may be late, or lost.
    fn forget_the_cancelled(&mut self, machine: &mut Machine<impl Compute>, now: Duration) {
        let (waiting, running) = (self.waiting.iter(), self.stepper.running.iter());
        let cancelled: Vec<Route> =
            waiting.chain(running).filter(|request| request.cancelled()).filter_map(|request| request.route).collect();
        self.let_go(machine, Running::cancelled);
        machine.reclaim();
        for route in cancelled {
            self.tell(machine, now, PrefillInput::Prefilled { route, end: PrefillEnd::Failed });
        }
    }

    fn take_in(&mut self, machine: &Machine<impl Compute>, prompt: Prompt, route: Route) {
        let mut request = Running::of_prompt(prompt, route, self.spoken.clone());
        self.arrivals += 1;
        (request.arrival, request.came) = (self.arrivals, self.stepper.now);
        let arrival = Arrival {
            tenant: request.label,
            prompt_tokens: request.tokens.len(),
            cached_tokens: machine.found(request.label, &request.tokens).tokens(),
            restarts: 0,
        };
        self.stepper.scheduler.arrive(request.came, request.arrival, arrival);
        self.waiting.push(request);
    }

    /// Forgets requests, whether they wait or run.
    fn let_go(&mut self, machine: &mut Machine<impl Compute>, goes: impl Fn(&Running) -> bool) {
        let scheduler = &mut self.stepper.scheduler;
        for requests in [&mut self.waiting, &mut self.stepper.running] {
            requests.retain(|request| {
                let goes = goes(request);
                if goes {
                    machine.follow();
                    scheduler.forget(request.arrival);
                }
                !goes
            });
        }
    }

    /// Gives pages to those who wait, as far as there are any: all that a prompt needs at once, so that nobody waits half-way.
    fn begin(&mut self, machine: &mut Machine<impl Compute>, now: Duration) {
        while let Some(key) = self.stepper.scheduler.next(now, |key| self.fit(machine, key)) {
            let Some(index) = self.waiting.iter().position(|request| request.arrival == key) else {
                self.stepper.scheduler.forget(key);
                continue;
            };
            let mut request = self.waiting.remove(index);
            let mut block_table = machine.begin_table(request.label, &request.tokens);
            self.make_free(machine, &request, block_table.pages());
            let reserved = block_table.reserve(request.tokens.len());
            let Some(route) = request.route else { continue };
            match reserved {
                Ok(()) => {
                    request.begin(block_table);
                    self.stepper.scheduler.admit(key);
                    self.stepper.running.push(request);
                    self.tell(machine, now, PrefillInput::PrefillBegan { route });
                }
                Err(_) => {
                    drop(block_table);
                    machine.reclaim();
                    // Nobody holds a page: waiting would be for ever.
                    self.stepper.scheduler.forget(key);
                    request.deliver_error(StepError::PoolExhausted);
                    self.tell(machine, now, PrefillInput::Prefilled { route, end: PrefillEnd::Failed });
                }
            }
        }
    }

    /// Whether a prompt can begin, or can never.
    fn fit(&self, machine: &Machine<impl Compute>, key: Key) -> Fit {
        let Some(request) = self.waiting.iter().find(|request| request.arrival == key) else { return Fit::Now };
        if self.may_begin(machine, request) { Fit::Now } else { Fit::Later }
    }

    /// Whether there are pages for a prompt, with those that caches would give for it, or there will never be more.
    fn may_begin(&self, machine: &Machine<impl Compute>, request: &Running) -> bool {
        let found = machine.found(request.label, &request.tokens);
        let pages = request.tokens.len().div_ceil(PAGE_TOKENS) - found.pages;
        let given: usize = machine.caching_tenants().map(|tenant| self.given_by(machine, tenant, request.label)).sum();
        // What it finds of its tenant's own does not come free for it.
        pages <= machine.pool.counts().free + given.saturating_sub(found.own) || is_alone(machine, 0)
    }

    /// Pages that a tenant's cache gives for a prompt of `label`: all of its own, of others' what is above their guarantees.
    fn given_by(&self, machine: &Machine<impl Compute>, tenant: Label, label: Label) -> usize {
        let kept = machine.pool.kept_alone(tenant);
        if tenant == label { kept } else { kept.min(self.over_guarantee(machine, tenant)) }
    }

    fn over_guarantee(&self, machine: &Machine<impl Compute>, tenant: Label) -> usize {
        let guaranteed = self.stepper.scheduler.guaranteed_pages(tenant);
        machine.pool.held_by(tenant).saturating_sub(guaranteed)
    }

    /// Caches give what a prompt lacks: its tenant's own first.
    fn make_free(&self, machine: &mut Machine<impl Compute>, request: &Running, pages: usize) {
        let needed = request.tokens.len().div_ceil(PAGE_TOKENS).saturating_sub(pages);
        let missing = |machine: &Machine<_>| needed.saturating_sub(machine.pool.counts().free);
        let tenants: Vec<Label> = machine.caching_tenants().filter(|tenant| *tenant != request.label).collect();
        if missing(machine) > 0 {
            machine.evict(request.label, missing(machine));
        }
        for tenant in &tenants {
            let pages = missing(machine).min(self.over_guarantee(machine, *tenant));
            if pages > 0 {
                machine.evict(*tenant, pages);
            }
        }
        let alone = is_alone(machine, pages);
        for tenant in tenants.iter().filter(|_| alone) {
            let pages = missing(machine);
            if pages > 0 {
                machine.evict(*tenant, pages);
            }
        }
    }

    fn prefilled(
        &mut self,
        machine: &mut Machine<impl Compute>,
        now: Duration,
        mut request: Running,
        first: Option<FirstStep>,
    ) {
        let Some(route) = request.route else { return };
        let tokens = request.tokens.len() as u32;
        let keeps = machine.cache.is_some() && !self.terms.in_place;
        let kept = if keeps { std::mem::take(&mut request.tokens) } else { Vec::new() };
        let complete = request.block_table.take().zip(first).and_then(|(block_table, first)| {
            let table = OutboundTable::offer(block_table).ok()?;
            let outbound =
                Outbound { tokens: kept, pages: slots(&table), table: Some(table), away: false, fenced: false };
            self.outbound.insert(route.id, outbound);
            Some(PrefillEnd::Complete { tokens, first })
        });
        self.tell(machine, now, PrefillInput::Prefilled { route, end: complete.unwrap_or(PrefillEnd::Failed) });
    }

    fn returned(&mut self, machine: &mut Machine<impl Compute>, now: Duration, route: Route) {
        let Some(outbound) = self.outbound.get_mut(&route.id) else { return };
        outbound.away = false;
        let fenced = outbound.fenced;
        let input = if fenced { PrefillInput::Fenced { route } } else { PrefillInput::Sent { route } };
        self.tell(machine, now, input);
    }

    /// What was said comes before what the protocol makes of it.
    fn speak(&mut self) {
        let spoken = self.spoken.take().into_iter();
        self.outbox.extend(spoken.map(|(route, said)| Parcel::Said { route, said }));
    }

    fn tell(&mut self, machine: &mut Machine<impl Compute>, now: Duration, input: PrefillInput) {
        self.speak();
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let host = Host { pool: &machine.pool, outbound: &self.outbound };
            for effect in self.side.step(now, input, &host) {
                inputs.extend(self.act(machine, effect));
            }
        }
        // What the protocol is done with is held no longer: given back, or taken out of use by that.
        let side = &self.side;
        self.outbound.retain(|id, outbound| {
            let stays = outbound.away || side.state(*id).is_some();
            if !stays {
                machine.follow();
            }
            stays
        });
    }

    /// Does what the protocol asks for; what comes of it is told to the protocol.
    fn act(&mut self, machine: &mut Machine<impl Compute>, effect: Effect) -> Option<PrefillInput> {
        match effect {
            Effect::Send { to, message } => {
                #[cfg(feature = "fault-injection")]
                let messages = self.plant_offer(message);
                #[cfg(not(feature = "fault-injection"))]
                let messages = [message];
                let from = Party::Prefill;
                self.outbox.extend(messages.into_iter().map(|message| Parcel::Message { from, to, message }));
                None
            }
            Effect::StartPrefill { route, .. } => match self.prompts.remove(&route.id) {
                Some(prompt) => {
                    self.take_in(machine, *prompt, route);
                    None
                }
                None => Some(PrefillInput::Prefilled { route, end: PrefillEnd::Failed }),
            },
            Effect::Seal { route } => Some(self.seal(machine, route)),
            Effect::BeginSend { route, pages } => self.send(machine, route, &pages),
            Effect::Quarantine { route, evidence } => {
                if let Some(outbound) = self.outbound.get(&route.id) {
                    quarantine(machine, &outbound.pages, evidence);
                }
                None
            }
            Effect::Fence { route } => self.fence(machine, route),
            Effect::Release { route } => {
                self.keep(machine, route);
                None
            }
            Effect::Incident(incident) => {
                tracing::error!(?incident, "handoff refused");
                None
            }
            Effect::Count(dropped) => {
                tracing::debug!(?dropped, "a message that no handoff waits for");
                None
            }
            // Not this side's to do.
            Effect::ReservePages { .. }
            | Effect::BeginReceive { .. }
            | Effect::Measure { .. }
            | Effect::Relabel { .. }
            | Effect::StartDecode { .. }
            | Effect::Ended { .. } => None,
        }
    }

    /// The pages have arrived, or nobody wants them: they are kept for later requests of their tenant.
    fn keep(&mut self, machine: &mut Machine<impl Compute>, route: Route) {
        let Some(Outbound { tokens, table: Some(table), .. }) = self.outbound.remove(&route.id) else { return };
        // Pages under suspicion are not kept.
        if let Ok(mut table) = table.withdraw() {
            let pages_max = self.stepper.scheduler.guaranteed_pages(table.label());
            machine.publish(&tokens, &mut table, pages_max);
        }
    }

    fn seal(&self, machine: &Machine<impl Compute>, route: Route) -> PrefillInput {
        let pages = self.outbound.get(&route.id).map_or(&[][..], |outbound| &outbound.pages);
        let started = Instant::now();
        let (found, layers) = measure(&machine.compute, &self.terms.content, pages);
        self.stepper.counters.verified(started.elapsed());
        let sealed = (0..).zip(pages).zip(found);
        let sealed = sealed.map(|((logical, slot), page)| SealedPage { logical, slot: *slot, digest: page.digest });
        PrefillInput::Sealed { route, pages: sealed.collect(), layers }
    }

    /// Copies the pages into the parcel under a ticket for each, or gives the table itself away. The decode side compares
    /// what it got with the manifest, so nothing is compared here.
    fn send(&mut self, machine: &mut Machine<impl Compute>, route: Route, pages: &[PageSlot]) -> Option<PrefillInput> {
        #[cfg(feature = "fault-injection")]
        self.plant_bytes(machine, route, pages);
        let failed = Some(PrefillInput::SendFailed { route });
        let Some(outbound) = self.outbound.get_mut(&route.id) else { return failed };
        if self.terms.in_place {
            let Some(table) = outbound.table.take() else { return failed };
            outbound.away = true;
            self.outbox.push_back(Parcel::Table { route, table: Box::new(table) });
            return None;
        }
        self.copies += 1;
        let mut bytes = Vec::new();
        let mut whole = true;
        for page in pages {
            let life = PageLife { page: page.page, generation: page.generation };
            let Ok(ticket) = machine.pool.ticket(life, TicketKind::Read, HolderId(self.copies)) else { return failed };
            let held = machine.compute.held_page(held_by(page));
            whole &= held.is_ok();
            let outcome = if held.is_ok() { Outcome::Done } else { Outcome::Failed };
            if let Ok(held) = held {
                bytes.reserve(if bytes.is_empty() { held.all().len() * pages.len() } else { 0 });
                bytes.extend_from_slice(held.all());
            }
            whole &= ticket.settle(outcome).is_ok();
        }
        if !whole {
            return failed;
        }
        self.outbox.push_back(Parcel::Bytes { route, pages: pages.len() as u32, bytes });
        Some(PrefillInput::Sent { route })
    }

    /// This group works at nothing while it is told something. What the decode group has comes back first.
    fn fence(&mut self, machine: &mut Machine<impl Compute>, route: Route) -> Option<PrefillInput> {
        self.prompts.remove(&route.id);
        self.let_go(machine, |request| request.route == Some(route));
        match self.outbound.get_mut(&route.id) {
            Some(outbound) if outbound.away => {
                outbound.fenced = true;
                None
            }
            _ => Some(PrefillInput::Fenced { route }),
        }
    }
}

/// Nothing comes free by waiting: whoever asks has these pages, and but for them only caches have any.
fn is_alone(machine: &Machine<impl Compute>, pages: usize) -> bool {
    let counts = machine.pool.counts();
    counts.free + pages + machine.cached() + machine.never_free() >= counts.total
}
