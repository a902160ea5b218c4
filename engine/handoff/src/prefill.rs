//! The prefill side: computes a prompt, seals its pages, offers them, and commits them to the decode side once.

mod input;

pub use input::{PrefillConfig, PrefillEnd, PrefillInput, PrefillState, SealedPage};

use crate::cause::{Place, Why};
use crate::check::Check;
use crate::content::ContentDigest;
use crate::effect::{Dropped, Effect, PageSlot};
use crate::ended::{Job, Jobs, Outcome, Tombstones};
use crate::identity::{HandoffId, Incarnation, Party, Route};
use crate::manifest::{FirstStep, FirstToken, Manifest, ManifestPage, SamplerState, SealedManifest};
use crate::message::{AbortReason, HEARTBEAT_HANDOFFS_MAX, Message, Order};
use crate::refusal::{PrefillHost, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Handoff {
    route: Route,
    order: Order,
    state: PrefillState,
    jobs: Jobs,
    /// The end of the lease on this side's clock.
    until: Duration,
    /// Tokens and first step, once computed.
    computed: Option<(u32, FirstStep)>,
    pages: Vec<PageSlot>,
    offer: Option<Box<SealedManifest>>,
    /// The bytes were asked for.
    fetched: bool,
    /// The decode side is done with the source pages.
    drained: bool,
}

impl Handoff {
    /// The pages live the life that they were sealed in.
    fn lives(&self, host: &impl PrefillHost) -> bool {
        self.pages.iter().all(|slot| host.sealed(self.route, slot.page) == Some(slot.generation))
    }
}

/// All handoffs of one life of a prefill worker. A value: it is given what happened and returns what to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrefillSide {
    config: Arc<PrefillConfig>,
    life: Incarnation,
    handoffs: BTreeMap<HandoffId, Handoff>,
    tombstones: Tombstones,
    /// When something was last said again.
    again_at: Duration,
}

impl PrefillSide {
    /// `life`: drawn at random when the process starts.
    #[must_use]
    pub fn new(config: Arc<PrefillConfig>, life: Incarnation) -> Self {
        let tombstones = Tombstones::default();
        Self { config, life, handoffs: BTreeMap::new(), tombstones, again_at: Duration::ZERO }
    }

    /// Which life this is.
    #[must_use]
    pub fn life(&self) -> Incarnation {
        self.life
    }

    /// Where a handoff stands; `None` when it is not held.
    #[must_use]
    pub fn state(&self, id: HandoffId) -> Option<PrefillState> {
        self.handoffs.get(&id).map(|handoff| handoff.state)
    }

    /// Handoffs that are held.
    pub fn held(&self) -> impl Iterator<Item = (Route, PrefillState)> {
        self.handoffs.values().map(|handoff| (handoff.route, handoff.state))
    }

    /// How a handoff ended, as long as that is remembered.
    #[must_use]
    pub fn ended(&self, id: HandoffId) -> Option<Outcome> {
        self.tombstones.find(id).map(|(_, outcome)| outcome)
    }

    /// Takes in what happened at `now` (since this side's start, never going back) and says what to do about it.
    #[must_use]
    pub fn step(&mut self, now: Duration, input: PrefillInput, host: &impl PrefillHost) -> Vec<Effect> {
        let mut out = Vec::new();
        match input {
            PrefillInput::Message { from, message } => self.receive(now, from, message, host, &mut out),
            PrefillInput::PrefillBegan { route } => {
                if let Some(handoff) = self.of_route(route).filter(|handoff| handoff.state == PrefillState::Admitted) {
                    handoff.state = PrefillState::Prefilling;
                }
            }
            PrefillInput::Prefilled { route, end } => self.prefilled(now, route, end, &mut out),
            PrefillInput::Sealed { route, pages, layers } => self.sealed(now, route, &pages, layers, &mut out),
            PrefillInput::Sent { route } => {
                self.job_ended(now, route, Job::Send, &mut out);
            }
            PrefillInput::SendFailed { route } => {
                if self.job_ended(now, route, Job::Send, &mut out) == Some(PrefillState::Offered) {
                    self.abort(now, route.id, Why::Failed(AbortReason::TransferFailed), &mut out);
                }
            }
            PrefillInput::Fenced { route } => {
                let aborting = |handoff: &&mut Handoff| matches!(handoff.state, PrefillState::Aborting { .. });
                if let Some(handoff) = self.of_route(route).filter(aborting) {
                    handoff.jobs.clear();
                    self.bury_when_idle(now, route.id, false, &mut out);
                }
            }
            PrefillInput::PeerGone { decode } => self.peer_gone(now, decode, &mut out),
            PrefillInput::Tick => self.tick(now, &mut out),
        }
        out
    }

    fn receive(
        &mut self,
        now: Duration,
        from: Party,
        message: Message,
        host: &impl PrefillHost,
        out: &mut Vec<Effect>,
    ) {
        let Some(route) = message.route() else {
            return self.heartbeat(now, message, out);
        };
        if route.prefill != self.life {
            return out.push(Effect::Count(Dropped::OtherLife));
        }
        if let Some((_, outcome)) = self.tombstones.find(route.id) {
            out.push(Effect::Count(Dropped::Ended));
            // Whoever waits for an answer gets one; an abort is none that is answered.
            let waits = matches!(message, Message::Fetch { .. } | Message::Verified { .. });
            if waits && outcome != Outcome::Committed {
                out.push(not_held(route));
            }
            return;
        }
        match (from, message) {
            (Party::Gateway, Message::Start { order, .. }) => self.start(route, order, out),
            (Party::Decode, Message::Fetch { .. }) => self.fetch(now, route, host, out),
            (Party::Decode, Message::Verified { total, .. }) => self.verified(now, route, total, host, out),
            (Party::Decode, Message::Drained { .. }) => self.drained(now, route, out),
            (from, Message::Abort { reason, .. }) => match self.handoffs.get_mut(&route.id) {
                Some(handoff) if handoff.route != route => out.push(Effect::Count(Dropped::OtherLife)),
                Some(handoff) if matches!(handoff.state, PrefillState::Draining { .. }) => {
                    // The commit is out: only the decode side can say that it will not be used.
                    if from == Party::Decode {
                        self.drained(now, route, out)
                    } else {
                        out.push(Effect::Count(Dropped::Repeated))
                    }
                }
                Some(_) => self.abort(now, route.id, Why::Told(reason), out),
                // The abort overtook what it aborts.
                None => self.bury(now, route, Outcome::Freed),
            },
            _ => out.push(Effect::Count(Dropped::NotYours)),
        }
    }

    fn start(&mut self, route: Route, order: Order, out: &mut Vec<Effect>) {
        if self.handoffs.contains_key(&route.id) {
            return out.push(Effect::Count(Dropped::Repeated));
        }
        if self.handoffs.len() >= self.config.handoffs_max || self.tombstones.is_full() {
            let message = Message::Abort { route, reason: AbortReason::PrefillFailed };
            out.push(Effect::Send { to: Party::Gateway, message: message.clone() });
            return out.push(Effect::Send { to: Party::Decode, message });
        }
        let mut jobs = Jobs::default();
        jobs.begin(Job::Prefill);
        let handoff = Handoff {
            route,
            order,
            state: PrefillState::Admitted,
            jobs,
            until: Duration::ZERO,
            computed: None,
            pages: Vec::new(),
            offer: None,
            fetched: false,
            drained: false,
        };
        self.handoffs.insert(route.id, handoff);
        out.push(Effect::StartPrefill { route, order });
    }

    fn prefilled(&mut self, now: Duration, route: Route, end: PrefillEnd, out: &mut Vec<Effect>) {
        let state = self.job_ended(now, route, Job::Prefill, out);
        if !matches!(state, Some(PrefillState::Admitted | PrefillState::Prefilling)) {
            return;
        }
        let failures_pass = !self.on(Check::A5);
        let Some(handoff) = self.of_route(route) else { return };
        let computed = match end {
            PrefillEnd::Complete { tokens, first } => Some((tokens, first)),
            PrefillEnd::Failed => failures_pass.then_some((handoff.order.tokens, PLACEHOLDER)),
        };
        if computed.is_none() {
            return self.abort(now, route.id, Why::Failed(AbortReason::PrefillFailed), out);
        }
        handoff.computed = computed;
        handoff.state = PrefillState::Sealed;
        handoff.jobs.begin(Job::Seal);
        out.push(Effect::Seal { route });
    }

    fn sealed(
        &mut self,
        now: Duration,
        route: Route,
        pages: &[SealedPage],
        layers: Vec<ContentDigest>,
        out: &mut Vec<Effect>,
    ) {
        let state = self.job_ended(now, route, Job::Seal, out);
        let config = Arc::clone(&self.config);
        let Some(handoff) = self.of_route(route).filter(|_| state == Some(PrefillState::Sealed)) else { return };
        let Some((tokens, first)) = handoff.computed else { return };
        let manifest = Manifest {
            route,
            domain: handoff.order.domain,
            request: handoff.order.request,
            fingerprint: config.fingerprint,
            tokens,
            pages: pages
                .iter()
                .map(|page| ManifestPage {
                    logical: page.logical,
                    generation: page.slot.generation,
                    tag: page.slot.tag,
                    digest: page.digest,
                })
                .collect(),
            layers,
            first,
            lease_ms: config.lease_ms,
        };
        handoff.pages = pages.iter().map(|page| page.slot).collect();
        handoff.until = now + Duration::from_millis(config.lease_ms.into());
        handoff.state = PrefillState::Offered;
        let offer = manifest.seal(&config.key);
        handoff.offer = Some(Box::new(offer.clone()));
        out.push(Effect::Send { to: Party::Decode, message: Message::Offer(offer) });
    }

    fn fetch(&mut self, now: Duration, route: Route, host: &impl PrefillHost, out: &mut Vec<Effect>) {
        let checks = self.config.checks;
        let Some(handoff) = self.of_route(route) else { return unknown(route, out) };
        if handoff.state != PrefillState::Offered || handoff.fetched || now >= handoff.until {
            return out.push(Effect::Count(Dropped::Repeated));
        }
        if checks.on(Check::C3) && !handoff.lives(host) {
            return self.abort(now, route.id, Why::Refused(Refusal::SourceChanged), out);
        }
        handoff.fetched = true;
        handoff.jobs.begin(Job::Send);
        out.push(Effect::BeginSend { route, pages: handoff.pages.clone() });
    }

    /// The one place that commits: only what is offered (C1), within the lease (C2), while the pages are the same (C3).
    fn verified(
        &mut self,
        now: Duration,
        route: Route,
        total: ContentDigest,
        host: &impl PrefillHost,
        out: &mut Vec<Effect>,
    ) {
        let checks = self.config.checks;
        let Some(handoff) = self.of_route(route) else { return unknown(route, out) };
        if matches!(handoff.state, PrefillState::Draining { .. }) {
            // The commit may have been lost.
            return out.push(commit(route));
        }
        if checks.on(Check::C1) && handoff.state != PrefillState::Offered {
            return out.push(Effect::Count(Dropped::Repeated));
        }
        if checks.on(Check::C2) && now >= handoff.until {
            return self.abort(now, route.id, Why::Timer, out);
        }
        let same_total = handoff.offer.as_deref().is_some_and(|offer| offer.manifest.total() == total);
        if checks.on(Check::C3) && !(same_total && handoff.lives(host)) {
            return self.abort(now, route.id, Why::Refused(Refusal::SourceChanged), out);
        }
        handoff.state = PrefillState::Draining { late: false };
        out.push(commit(route));
    }

    fn drained(&mut self, now: Duration, route: Route, out: &mut Vec<Effect>) {
        let Some(handoff) = self.of_route(route) else {
            return out.push(Effect::Count(Dropped::Unknown));
        };
        match handoff.state {
            PrefillState::Draining { .. } => {
                handoff.drained = true;
                self.bury_when_idle(now, route.id, false, out);
            }
            _ => out.push(Effect::Count(Dropped::Repeated)),
        }
    }

    fn heartbeat(&mut self, now: Duration, message: Message, out: &mut Vec<Effect>) {
        let Message::Heartbeat { beat, prefill, decode, handoffs } = message else {
            return out.push(Effect::Count(Dropped::NotYours));
        };
        if prefill != self.life {
            return out.push(Effect::Count(Dropped::OtherLife));
        }
        let lease = Duration::from_millis(self.config.lease_ms.into());
        let mut renewed = Vec::new();
        for id in handoffs.into_iter().take(HEARTBEAT_HANDOFFS_MAX as usize) {
            let Some(handoff) = self.handoffs.get_mut(&id) else { continue };
            let offered = handoff.state == PrefillState::Offered && now < handoff.until;
            if offered && handoff.route.decode == decode {
                handoff.until = now + lease;
                renewed.push(id);
            }
        }
        let message = Message::HeartbeatAck { beat, prefill, decode, handoffs: renewed };
        out.push(Effect::Send { to: Party::Decode, message });
    }

    fn peer_gone(&mut self, now: Duration, decode: Incarnation, out: &mut Vec<Effect>) {
        let of_peer = |handoff: &&Handoff| handoff.route.decode == decode;
        let ids: Vec<Route> = self.handoffs.values().filter(of_peer).map(|handoff| handoff.route).collect();
        for route in ids {
            match self.state(route.id) {
                // Who is dead commits nothing.
                Some(PrefillState::Draining { .. }) => self.drained(now, route, out),
                Some(PrefillState::Aborting { .. }) | None => {}
                Some(_) => self.abort(now, route.id, Why::Failed(AbortReason::PeerRestarted), out),
            }
        }
    }

    /// The reaper. It looks at all handoffs: leases do not end in the order in which they began.
    fn tick(&mut self, now: Duration, out: &mut Vec<Effect>) {
        self.tombstones.reap(now);
        let over = |handoff: &&mut Handoff| now >= handoff.until;
        let mut expired = Vec::new();
        for handoff in self.handoffs.values_mut().filter(over) {
            match handoff.state {
                PrefillState::Offered => expired.push(handoff.route.id),
                // Whether the pages are still read nobody knows: they are set aside until the decode side says so.
                PrefillState::Draining { late: false } => {
                    handoff.state = PrefillState::Draining { late: true };
                    out.push(Effect::Quarantine { route: handoff.route, evidence: false });
                }
                _ => {}
            }
        }
        for id in expired {
            self.abort(now, id, Why::Timer, out);
        }
        if now >= self.again_at + self.config.heartbeat {
            self.again_at = now;
            self.handoffs.values().for_each(|handoff| say_again(handoff, out));
        }
    }

    fn abort(&mut self, now: Duration, id: HandoffId, why: Why, out: &mut Vec<Effect>) {
        let checks = self.config.checks;
        let Some(handoff) = self.handoffs.get_mut(&id) else { return };
        let route = handoff.route;
        let early = matches!(handoff.state, PrefillState::Admitted | PrefillState::Prefilling);
        if matches!(handoff.state, PrefillState::Aborting { .. }) || !(early || checks.on(Check::A1) || why.is_own()) {
            return out.push(Effect::Count(Dropped::Repeated));
        }
        handoff.state = PrefillState::Aborting { evidence: why.leaves_evidence() };
        let place = Place { route, domain: handoff.order.domain, side: Party::Prefill };
        why.stop_work(checks, &mut handoff.jobs, &place, out);
        if why.is_own() {
            for to in [Party::Decode, Party::Gateway] {
                out.push(Effect::Send { to, message: Message::Abort { route, reason: why.reason() } });
            }
        }
        self.bury_when_idle(now, id, why.frees_at_once(checks), out);
    }

    /// A handoff is over when nothing works at its pages any more, and not a moment earlier.
    fn bury_when_idle(&mut self, now: Duration, id: HandoffId, anyway: bool, out: &mut Vec<Effect>) {
        let Some(handoff) = self.handoffs.get(&id) else { return };
        let outcome = match handoff.state {
            PrefillState::Draining { .. } if handoff.drained => Outcome::Committed,
            PrefillState::Aborting { evidence: true } => Outcome::Quarantined,
            PrefillState::Aborting { evidence: false } => Outcome::Freed,
            _ => return,
        };
        if handoff.jobs.none() || anyway || !self.on(Check::A3) {
            let route = handoff.route;
            self.handoffs.remove(&id);
            if outcome != Outcome::Quarantined {
                out.push(Effect::Release { route });
            }
            self.bury(now, route, outcome);
        }
    }

    fn bury(&mut self, now: Duration, route: Route, outcome: Outcome) {
        if self.on(Check::A2) {
            self.tombstones.bury(route, outcome, now + self.config.remember);
        }
    }

    /// Takes note that some work ended; returns the state that the handoff is in.
    fn job_ended(&mut self, now: Duration, route: Route, job: Job, out: &mut Vec<Effect>) -> Option<PrefillState> {
        let handoff = self.of_route(route)?;
        if !handoff.jobs.has(job) {
            out.push(Effect::Count(Dropped::Repeated));
            return None;
        }
        handoff.jobs.end(job);
        let state = handoff.state;
        self.bury_when_idle(now, route.id, false, out);
        Some(state)
    }

    fn of_route(&mut self, route: Route) -> Option<&mut Handoff> {
        self.handoffs.get_mut(&route.id).filter(|handoff| handoff.route == route)
    }

    fn on(&self, check: Check) -> bool {
        self.config.checks.on(check)
    }
}

/// What a failed prefill would hand over if it were let: nothing that anybody sampled.
const PLACEHOLDER: FirstStep = FirstStep {
    token: FirstToken::new(0),
    log_prob_bits: 0,
    sampler: SamplerState { seed: 0, step: 0 },
    grammar: [0; 32],
    replay: [0; 32],
};

fn say_again(handoff: &Handoff, out: &mut Vec<Effect>) {
    match (handoff.state, &handoff.offer) {
        (PrefillState::Offered, Some(offer)) if !handoff.fetched => {
            out.push(Effect::Send { to: Party::Decode, message: Message::Offer((**offer).clone()) });
        }
        (PrefillState::Draining { .. }, _) if !handoff.drained => out.push(commit(handoff.route)),
        _ => {}
    }
}

fn commit(route: Route) -> Effect {
    Effect::Send { to: Party::Decode, message: Message::Commit { route } }
}

fn unknown(route: Route, out: &mut Vec<Effect>) {
    out.push(Effect::Count(Dropped::Unknown));
    out.push(not_held(route));
}

fn not_held(route: Route) -> Effect {
    Effect::Send { to: Party::Decode, message: Message::Abort { route, reason: AbortReason::NotHeld } }
}
