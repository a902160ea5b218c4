//! The group that goes on from where the prefill group ends. It holds the desk, too: who has a slot here has a handoff.

#[cfg(feature = "fault-injection")]
mod planting;
mod transfer;

use super::{CREDIT, HEARTBEAT, LEASE, Parcel, Terms, life_of, measure, quarantine};
use crate::compute::Compute;
use crate::inbox::Queue;
use crate::machine::{Entries, Machine};
use crate::outlet::Said;
use crate::running::{FirstWord, Next, Running};
use crate::step::{Role, Stepper};
use crate::steps::{StepError, WORKER_AWAITED};
use engine_handoff::{
    AbortReason, Attempt, Check, DecodeConfig, DecodeHost, DecodeInput, DecodeSide, DeskConfig, Effect, End, FirstStep,
    HandoffDesk, HandoffId, Incarnation, Landed, Message, Opening, Order, PageSlot, Party, Refusal, RequestDigest,
    Route,
};
use engine_kv::{BlockTable, InboundTable, OutboundTable, PAGE_TOKENS, PageState, Ticket};
use policies_domain::{Generation, Outcome, PageId, PageTrace, TransferId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a request's handoff may end without a fault of anybody's, such as a lease that ran out.
const ATTEMPTS_MAX: u32 = 4;

/// Everything that is computed after a first token.
pub(crate) struct DecodeGroup {
    pub(crate) stepper: Stepper,
    pub(crate) outbox: VecDeque<Parcel>,
    desk: HandoffDesk,
    side: DecodeSide,
    terms: Terms,
    /// `None`: there is none at the moment.
    prefill: Option<Incarnation>,
    /// When it went away, or this group began.
    away_since: Duration,
    /// Handoffs that were opened and have not ended.
    inbound: BTreeMap<HandoffId, Inbound>,
    ids: ChaCha8Rng,
    transfers: u32,
    #[cfg(feature = "fault-injection")]
    abandoned: planting::Abandoned,
}

/// What is kept for a handoff, then what came of it.
struct Inbound {
    route: Route,
    transfer: TransferId,
    pages: Vec<PageSlot>,
    kept: Kept,
    /// For the bytes that are coming, and those that have come and are not in their pages yet.
    tickets: VecDeque<Ticket>,
    coming: Option<Coming>,
    /// The tags that the bytes brought along, in the order of the sequence.
    carried: Vec<u32>,
    refusal: Option<Refusal>,
}

/// Bytes that go into their pages step by step.
struct Coming {
    bytes: Vec<u8>,
    page_bytes: usize,
    /// The next page's place.
    next: usize,
}

enum Kept {
    Nothing,
    /// Pages of its own for bytes that come from another pool.
    Promised(InboundTable),
    /// The very pages, where both groups have one pool.
    Offered(OutboundTable),
    /// They are the request's.
    Owned(BlockTable),
}

struct Host<'a, C> {
    machine: &'a Machine<C>,
    inbound: &'a BTreeMap<HandoffId, Inbound>,
    running: &'a [Running],
    in_place: bool,
}

impl<C: Compute> DecodeHost for Host<'_, C> {
    fn kept(&self, route: Route, page: PageId) -> Option<Generation> {
        let state = if self.in_place { PageState::Outbound } else { PageState::Inbound };
        life_of(&self.machine.pool, &self.inbound.get(&route.id)?.pages, state, page)
    }

    fn admits(&self, route: Route, first: &FirstStep) -> bool {
        let request = self.running.iter().find(|request| request.route == Some(route));
        let known = first.token.reveal() < self.machine.compute.vocabulary() && first.grammar == [0; 32];
        let sampler = request.and_then(|request| request.sampler.of(request.ticket).ok());
        sampler.is_some_and(|sampler| sampler.state_after_one() == first.sampler) && known
    }
}

impl DecodeGroup {
    /// `life` and `ids` drawn at random; `prefill` is the life of the group that computes the prompts, if there is one yet.
    pub(crate) fn new(
        stepper: Stepper,
        terms: Terms,
        life: Incarnation,
        prefill: Option<Incarnation>,
        ids: [u8; 32],
    ) -> Self {
        assert_eq!(stepper.role, Role::Decode, "a decode group computes no prompts");
        let (handoffs_max, checks, remember) = (terms.handoffs_max, terms.checks, 2 * LEASE);
        let desk =
            DeskConfig { credit_ms: CREDIT.as_millis() as u32, handoffs_max, heartbeat: HEARTBEAT, remember, checks };
        let side = DecodeConfig {
            key: terms.key.clone(),
            fingerprint: terms.fingerprint,
            page_tokens: PAGE_TOKENS as u32,
            in_place: terms.in_place,
            handoffs_max,
            heartbeat: HEARTBEAT,
            remember,
            checks,
        };
        Self {
            stepper,
            outbox: VecDeque::new(),
            desk: HandoffDesk::new(Arc::new(desk)),
            side: DecodeSide::new(Arc::new(side), life),
            terms,
            prefill,
            away_since: Duration::ZERO,
            inbound: BTreeMap::new(),
            ids: ChaCha8Rng::from_seed(ids),
            transfers: 0,
            #[cfg(feature = "fault-injection")]
            abandoned: planting::Abandoned::default(),
        }
    }

    /// Handoffs are on their way: time matters.
    pub(crate) fn awaits(&self) -> bool {
        !self.inbound.is_empty() || (self.prefill.is_none() && !self.stepper.running.is_empty())
    }

    /// Admits whoever may have a slot. `false`: nobody can go on here.
    pub(crate) fn look(&mut self, machine: &mut Machine<impl Compute>, now: Duration, queue: &mut Queue) -> bool {
        // Before somebody is let in: whoever lost its slot may come back when all that was heard of it has been read.
        self.deliver_heard();
        self.stepper.now = now;
        let found = self.stepper.look(machine, queue);
        self.settle(machine, now);
        found || self.inbound.values().any(|inbound| inbound.coming.is_some())
    }

    /// One token for everybody who has pages.
    pub(crate) fn step(&mut self, machine: &mut Machine<impl Compute>, now: Duration) {
        self.stepper.now = now;
        self.deliver_heard();
        self.land(machine, now);
        self.deliver_firsts(machine);
        self.stepper.decode_once(machine);
        self.stepper.end_step();
        self.settle(machine, now);
    }

    /// Somebody gives way, as when others need what it has: see [`Stepper::make_give_way`].
    #[cfg(feature = "fault-injection")]
    pub(crate) fn make_give_way(
        &mut self,
        machine: &mut Machine<impl Compute>,
        now: Duration,
        place: Option<usize>,
    ) -> bool {
        let gave_way = self.stepper.make_give_way(machine, place);
        self.settle(machine, now);
        gave_way
    }

    /// Takes in what the prefill group sent.
    pub(crate) fn receive(&mut self, machine: &mut Machine<impl Compute>, now: Duration, parcel: Parcel) {
        match parcel {
            Parcel::Message { from, to: Party::Gateway, message } => {
                let effects = self.desk.receive(now, from, &message);
                self.act_all(machine, now, Party::Gateway, effects);
            }
            Parcel::Message { from, to: Party::Decode, message } => {
                if matches!(message, Message::Abort { .. }) {
                    // The desk is here: what was meant for it, too, may have been lost.
                    let effects = self.desk.receive(now, from, &message);
                    self.act_all(machine, now, Party::Gateway, effects);
                }
                self.tell(machine, now, DecodeInput::Message { from, message });
            }
            Parcel::Bytes { route, bytes, .. } => {
                #[cfg(feature = "fault-injection")]
                if self.overwrite_abandoned(machine, route, &bytes) {
                    return;
                }
                if self.arrive(route, bytes) {
                    self.land(machine, now);
                } else {
                    self.tell(machine, now, DecodeInput::Lost { route });
                }
            }
            Parcel::Table { route, table } => self.take(machine, now, route, *table),
            Parcel::Said { route, said } => {
                // Nobody waits for what is said of a handoff that its request has left.
                if let Some(request) = self.stepper.running.iter_mut().find(|request| request.route == Some(route)) {
                    if let Said::Read { cost_ns, .. } = &said {
                        self.stepper.scheduler.charge(request.arrival, *cost_ns);
                    }
                    request.hear(said);
                }
                self.deliver_heard();
            }
            Parcel::Peer { life } => self.meet(machine, now, life),
            // Not this group's to get.
            Parcel::Message { .. } | Parcel::Prompt { .. } | Parcel::Returned { .. } => (),
        }
    }

    /// The prefill group has begun a life, or is gone: then all handoffs with it end, but for those that are committed.
    fn meet(&mut self, machine: &mut Machine<impl Compute>, now: Duration, life: Option<Incarnation>) {
        if let Some(prefill) = std::mem::replace(&mut self.prefill, life) {
            self.away_since = now;
            let effects = self.desk.peer_gone(now, prefill);
            self.act_all(machine, now, Party::Gateway, effects);
            self.tell(machine, now, DecodeInput::PeerGone { prefill });
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, machine: &mut Machine<impl Compute>, now: Duration) {
        let effects = self.desk.tick(now);
        self.act_all(machine, now, Party::Gateway, effects);
        self.tell(machine, now, DecodeInput::Tick);
    }

    /// Makes handoffs and slots agree: a handoff whose request is gone or lost its slot ends, a request that got a slot and
    /// has no pages gets a handoff.
    fn settle(&mut self, machine: &mut Machine<impl Compute>, now: Duration) {
        let running = &self.stepper.running;
        let wanted =
            |route: &Route| running.iter().any(|request| request.route == Some(*route) && !request.cancelled());
        let gone: Vec<Route> =
            self.inbound.values().map(|inbound| inbound.route).filter(|route| !wanted(route)).collect();
        for route in gone {
            #[cfg(feature = "fault-injection")]
            self.free_early(machine, now, route);
            let effects = self.desk.client_left(now, route.id);
            self.act_all(machine, now, Party::Gateway, effects);
        }
        let homeless = |request: &Running| !request.is_here() && request.route.is_none();
        while let Some(index) = self.stepper.running.iter().position(homeless) {
            let goes_on = match self.prefill {
                Some(prefill) => self.open(machine, now, index, prefill),
                None if now >= self.away_since + WORKER_AWAITED => {
                    self.stepper.fail(index, StepError::WorkerAway);
                    true
                }
                None => false,
            };
            if !goes_on {
                break;
            }
        }
        machine.reclaim();
        self.stepper.pages_awaited = false;
    }

    /// Opens a handoff for a request. `false`: there are too many already.
    fn open(&mut self, machine: &mut Machine<impl Compute>, now: Duration, index: usize, prefill: Incarnation) -> bool {
        let request = &self.stepper.running[index];
        let order = Order { domain: request.label, request: self.digest(request), tokens: request.tokens.len() as u32 };
        let (attempt, ids) = (Attempt(request.restarts), &mut self.ids);
        let opening = Opening { order, attempt, prefill, decode: self.side.life() };
        let draw = || {
            let mut bytes = [0; 16];
            ids.fill_bytes(&mut bytes);
            HandoffId::from_bytes(bytes)
        };
        let Ok((route, effects)) = self.desk.open(opening, draw) else { return false };
        self.transfers = (self.transfers + 1) & TransferId::MAX;
        let Some(transfer) = TransferId::new(self.transfers) else { return false };
        self.stepper.running[index].route = Some(route);
        let inbound = Inbound {
            route,
            transfer,
            pages: Vec::new(),
            kept: Kept::Nothing,
            tickets: VecDeque::new(),
            coming: None,
            carried: Vec::new(),
            refusal: None,
        };
        self.inbound.insert(route.id, inbound);
        self.act_all(machine, now, Party::Gateway, effects);
        true
    }

    /// What was heard of prompts leaves, as their readers read. Whoever has failed or left goes with the next look, together
    /// with its handoff: nothing of it may come and find nobody.
    fn deliver_heard(&mut self) {
        for request in self.stepper.running.iter_mut().chain(&mut self.stepper.waiting) {
            if let Some(error) = request.deliver_heard() {
                tracing::error!(request_id = %request.request, %error, "its prompt could not be computed");
                request.deliver_error(error);
            }
        }
    }

    /// The first tokens of what was committed leave, as their readers read.
    fn deliver_firsts(&mut self, machine: &mut Machine<impl Compute>) {
        let mut index = 0;
        while index < self.stepper.running.len() {
            let request = &mut self.stepper.running[index];
            index += 1;
            if !request.has_room() || !request.is_here() || request.has_heard() {
                continue;
            }
            let Some(first) = request.first.take() else { continue };
            let next = match first_trace(machine, request) {
                Ok(trace) => request.deliver_first(trace, first, &machine.compute),
                Err(error) => request.deliver_error(error),
            };
            if next == Next::Ended {
                index -= 1;
                drop(self.stepper.take_out(index));
                machine.follow();
            }
        }
    }

    fn tell(&mut self, machine: &mut Machine<impl Compute>, now: Duration, input: DecodeInput) {
        let effects = self.side_step(machine, now, input);
        self.act_all(machine, now, Party::Decode, effects);
    }

    fn side_step(&mut self, machine: &Machine<impl Compute>, now: Duration, input: DecodeInput) -> Vec<Effect> {
        let (inbound, running) = (&self.inbound, &self.stepper.running[..]);
        let host = Host { machine, inbound, running, in_place: self.terms.in_place };
        self.side.step(now, input, &host)
    }

    /// Does what the desk or the side asks for, and what the answers lead to, in order.
    fn act_all(&mut self, machine: &mut Machine<impl Compute>, now: Duration, by: Party, effects: Vec<Effect>) {
        let mut queue: VecDeque<(Party, Effect)> = effects.into_iter().map(|effect| (by, effect)).collect();
        while let Some((by, effect)) = queue.pop_front() {
            let input = match effect {
                Effect::Send { to: Party::Gateway, message } => {
                    let effects = self.desk.receive(now, by, &message);
                    queue.extend(effects.into_iter().map(|effect| (Party::Gateway, effect)));
                    continue;
                }
                Effect::Send { to: Party::Decode, message } => {
                    Some(DecodeInput::Message { from: by, message: self.own_order(message) })
                }
                effect => self.act(machine, by, effect),
            };
            if let Some(input) = input {
                let effects = self.side_step(machine, now, input);
                queue.extend(effects.into_iter().map(|effect| (Party::Decode, effect)));
            }
        }
        let side = &self.side;
        let desk = &self.desk;
        self.inbound.retain(|id, _| side.state(*id).is_some() || desk.state(*id).is_some());
    }

    /// The order as this group's own copy of the request says it.
    fn own_order(&self, message: Message) -> Message {
        let Message::Reserve { route, order, credit_ms } = message else { return message };
        let own = self.request(route).map(|request| Order {
            domain: request.label,
            request: self.digest(request),
            tokens: request.tokens.len() as u32,
        });
        Message::Reserve { route, order: own.unwrap_or(order), credit_ms }
    }

    fn digest(&self, request: &Running) -> RequestDigest {
        self.terms.digest(request.label, &request.tokens, request.sampler.of(request.ticket).ok())
    }

    fn request(&self, route: Route) -> Option<&Running> {
        self.stepper.running.iter().find(|request| request.route == Some(route))
    }

    fn act(&mut self, machine: &mut Machine<impl Compute>, by: Party, effect: Effect) -> Option<DecodeInput> {
        match effect {
            Effect::Send { to, message } => {
                if let Message::Start { route, .. } = &message
                    && let Some(request) = self.request(*route)
                {
                    let prompt = Box::new(request.prompt());
                    self.outbox.push_back(Parcel::Prompt { route: *route, prompt });
                }
                self.outbox.push_back(Parcel::Message { from: by, to, message });
                None
            }
            Effect::ReservePages { route, pages, .. } => Some(self.reserve(machine, route, pages)),
            Effect::BeginReceive { route, into } => self.begin_receive(machine, route, &into),
            Effect::Measure { route, pages } => {
                let started = Instant::now();
                let (pages, layers) = measure(&machine.compute, &self.terms.content, &pages);
                self.stepper.counters.verified(started.elapsed());
                if let Some(inbound) = self.inbound.get_mut(&route.id) {
                    inbound.carried = pages.iter().map(|page| page.tag).collect();
                }
                Some(DecodeInput::Measured { route, landed: Landed { pages, layers } })
            }
            Effect::Relabel { route, .. } => Some(self.relabel(machine, route)),
            Effect::StartDecode { route, tokens, first } => {
                if let Some(index) = self.start(route, tokens, &first) {
                    self.stepper.publish(machine, index);
                }
                None
            }
            Effect::Quarantine { route, evidence } => {
                if let Some(inbound) = self.inbound.get(&route.id) {
                    quarantine(machine, &inbound.pages, evidence);
                }
                None
            }
            Effect::Fence { route } => {
                // Nothing works at pages here while this is done; what may still come finds no ticket.
                #[cfg(feature = "fault-injection")]
                self.abandon(route);
                if let Some(inbound) = self.inbound.get_mut(&route.id) {
                    transfer::settle_all(&mut inbound.tickets, Outcome::Failed);
                    inbound.coming = None;
                }
                self.let_go(machine, route);
                Some(DecodeInput::Fenced { route })
            }
            Effect::Release { route } => {
                self.let_go(machine, route);
                None
            }
            Effect::Incident(incident) => {
                tracing::error!(?incident, "handoff refused");
                if let Some(inbound) = self.inbound.get_mut(&incident.route.id) {
                    inbound.refusal = Some(incident.refusal);
                }
                self.let_go(machine, incident.route);
                None
            }
            Effect::Ended { route, end } => {
                self.ended(machine, route, end);
                None
            }
            Effect::Count(dropped) => {
                tracing::debug!(?dropped, "a message that no handoff waits for");
                None
            }
            // Not this side's to do.
            Effect::StartPrefill { .. } | Effect::Seal { .. } | Effect::BeginSend { .. } => None,
        }
    }

    /// The place of the request that goes on.
    fn start(&mut self, route: Route, tokens: u32, first: &FirstStep) -> Option<usize> {
        let kept = self.inbound.get_mut(&route.id).map(|inbound| std::mem::replace(&mut inbound.kept, Kept::Nothing));
        let index = self.stepper.running.iter().position(|request| request.route == Some(route))?;
        let request = &mut self.stepper.running[index];
        match kept {
            Some(Kept::Owned(block_table)) => {
                request.hold(block_table);
                request.computed = tokens as usize;
                request.first = Some(FirstWord { token: first.token.reveal(), digest: first.replay });
                request.route = None;
                Some(index)
            }
            // The ledger found something after all: nothing of it is used.
            _ => {
                self.stepper.fail(index, StepError::Handoff { check: Check::V9 });
                None
            }
        }
    }

    fn ended(&mut self, machine: &Machine<impl Compute>, route: Route, end: End) {
        let End::Aborted(reason) = end else { return };
        let Some(index) = self.stepper.running.iter().position(|request| request.route == Some(route)) else { return };
        let refusal = self.inbound.get(&route.id).and_then(|inbound| inbound.refusal);
        if self.stepper.running[index].will_fail() {
            return;
        }
        let counts = machine.pool.counts();
        // Pages of handoffs that are ending come back; with nobody's to come, waiting would be for ever.
        let free = counts.free + machine.cached();
        let alone = self.stepper.running.len() == 1 && free + machine.never_free() == counts.total;
        match reason {
            // The prefill side has one check; all others are this side's.
            AbortReason::Refused => {
                let check = refusal.map_or(Check::C3, Refusal::check);
                self.stepper.fail(index, StepError::Handoff { check });
            }
            AbortReason::NoCredit if alone => self.stepper.fail(index, StepError::PoolExhausted),
            AbortReason::NoCredit => self.again(index),
            // When it was the prompt's own fault, its client was told by the prefill group, and nobody waits any more.
            AbortReason::ClientLeft
            | AbortReason::PrefillFailed
            | AbortReason::TransferFailed
            | AbortReason::Expired
            | AbortReason::PeerRestarted
            | AbortReason::NotHeld => {
                if self.stepper.running[index].handoffs_failed < ATTEMPTS_MAX {
                    self.stepper.running[index].handoffs_failed += 1;
                    self.again(index);
                } else {
                    self.stepper.fail(index, StepError::Internal);
                }
            }
        }
    }

    /// It waits for another slot and another handoff.
    fn again(&mut self, index: usize) {
        let mut request = self.stepper.take_out(index);
        request.begin_anew();
        self.stepper.waiting.push(request);
    }
}

/// Everything that the pages of a prompt are. The request's first step compares them with the custody log.
fn first_trace(machine: &mut Machine<impl Compute>, request: &mut Running) -> Result<PageTrace, StepError> {
    let written = request.computed;
    let (block_table, table) = request.table()?;
    let Entries { capabilities, reads, .. } = machine.entries.emptied();
    block_table.capabilities(0, written, capabilities);
    machine.pool.trace(0, capabilities, written, reads).map_err(|_| StepError::Internal)?;
    // INVARIANT: nothing is settled that was not compared with the log.
    table.note(reads, 0);
    let trace = machine.told(table.tell());
    machine.witness_pass(request.request, &trace);
    Ok(trace)
}

#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod tests {
    use super::*;
    use crate::compute::tracer::Tracer;
    use crate::executor::tests::{label, prompt, sealer};
    use crate::machine::Pages;
    use crate::outlet::Reader;
    use crate::sampling::Sampling;
    use crate::sequence::Sequence;
    use engine_kv::PageFormat;
    use policies_domain::RequestId;

    #[test]
    fn the_first_trace_names_every_page_and_leaves_the_comparison_to_the_first_step() {
        let pages = Pages { count: 8, first: 100, boot_secret: [1; 32], format: PageFormat::F32, compat: 0 };
        let mut machine = Machine::new(Tracer::new(8), pages);
        let (request, label) = (RequestId::from_bytes([1; 16]), label(1));
        let reader = Reader::new(tokio::sync::mpsc::channel(4).0, sealer(label, request));
        let sequence = Sequence { tokens: prompt(1, 40), label, request };
        let mut request = Running::new(sequence, Sampling::default(), 64, reader);
        assert_eq!(first_trace(&mut machine, &mut request), Err(StepError::Internal), "there is no table");
        let mut block_table = BlockTable::new(&machine.pool, label);
        machine.grow(&mut block_table, 40).unwrap();
        block_table.advance(40).unwrap();
        request.hold(block_table);
        request.computed = 41;
        let beyond = first_trace(&mut machine, &mut request);
        assert_eq!(beyond, Err(StepError::Internal), "more than was written");
        request.computed = 40;
        let trace = first_trace(&mut machine, &mut request).unwrap();
        let named: Vec<u32> = trace.pages.iter().map(|read| read.page.0).collect();
        assert_eq!((trace.kept, named), (0, vec![100, 101, 102]));
        assert_eq!(request.table().unwrap().1.settled(), 0);
        // Of another sequence than the one that was handed over.
        request.block_table = Some(BlockTable::new(&machine.pool, label));
        assert_eq!(first_trace(&mut machine, &mut request), Err(StepError::RowBinding));
    }
}
