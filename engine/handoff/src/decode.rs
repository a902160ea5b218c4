//! The decode side: keeps pages, takes bytes in, checks them, and begins to decode when it was told that they are its own.

mod input;

pub use input::{DecodeConfig, DecodeInput, DecodeState};

use crate::cause::{Place, Why};
use crate::check::Check;
use crate::content::ContentDigest;
use crate::effect::{Dropped, Effect, PageSlot};
use crate::ended::{Job, Jobs, Outcome, Tombstones};
use crate::identity::{Fingerprint, HandoffId, Incarnation, Party, Route};
use crate::manifest::{PAGES_MAX, SealedManifest};
use crate::message::{AbortReason, HEARTBEAT_HANDOFFS_MAX, Message, Order};
use crate::refusal::{DecodeHost, Held, Landed, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Of a lease the decode side uses this much: it stops before the prefill side does, although its clock started later.
const LEASE_PERCENT: u32 = 80;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Handoff {
    route: Route,
    order: Order,
    state: DecodeState,
    jobs: Jobs,
    /// The end of the credit, then of the lease, on this side's clock.
    until: Duration,
    /// What was kept, then where the bytes lie.
    pages: Vec<PageSlot>,
    offer: Option<Box<SealedManifest>>,
    /// Of the pages as they were found here.
    total: ContentDigest,
}

impl Handoff {
    fn leased(&self) -> bool {
        matches!(self.state, DecodeState::Receiving | DecodeState::Landed | DecodeState::Verified)
    }
}

/// All handoffs of one life of a decode worker. A value: it is given what happened and returns what to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DecodeSide {
    config: Arc<DecodeConfig>,
    life: Incarnation,
    handoffs: BTreeMap<HandoffId, Handoff>,
    tombstones: Tombstones,
    beat: u64,
    /// When the last heartbeat was sent.
    beat_at: Duration,
}

impl DecodeSide {
    /// `life`: drawn at random when the process starts.
    #[must_use]
    pub fn new(config: Arc<DecodeConfig>, life: Incarnation) -> Self {
        let tombstones = Tombstones::default();
        Self { config, life, handoffs: BTreeMap::new(), tombstones, beat: 0, beat_at: Duration::ZERO }
    }

    /// Which life this is.
    #[must_use]
    pub fn life(&self) -> Incarnation {
        self.life
    }

    /// Where a handoff stands; `None` when it is not held.
    #[must_use]
    pub fn state(&self, id: HandoffId) -> Option<DecodeState> {
        self.handoffs.get(&id).map(|handoff| handoff.state)
    }

    /// Handoffs that are held.
    pub fn held(&self) -> impl Iterator<Item = (Route, DecodeState)> {
        self.handoffs.values().map(|handoff| (handoff.route, handoff.state))
    }

    /// How a handoff ended, as long as that is remembered.
    #[must_use]
    pub fn ended(&self, id: HandoffId) -> Option<Outcome> {
        self.tombstones.find(id).map(|(_, outcome)| outcome)
    }

    /// For the shadow that judges the commit: what was offered, and where it lies.
    #[cfg(test)]
    pub(crate) fn offer_of(&self, id: HandoffId) -> Option<(&crate::Manifest, &[PageSlot])> {
        let handoff = self.handoffs.get(&id)?;
        handoff.offer.as_deref().map(|offer| (&offer.manifest, &handoff.pages[..]))
    }

    /// Its own model and layout.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.config.fingerprint
    }

    /// Takes in what happened at `now` (since this side's start, never going back) and says what to do about it.
    #[must_use]
    pub fn step(&mut self, now: Duration, input: DecodeInput, host: &impl DecodeHost) -> Vec<Effect> {
        let mut out = Vec::new();
        match input {
            DecodeInput::Message { from, message } => self.receive(now, from, message, host, &mut out),
            DecodeInput::Reserved { route, pages } => self.reserved(now, route, pages, &mut out),
            DecodeInput::Exhausted { route } => {
                if self.job_ended(now, route, Job::Reserve, &mut out) == Some(DecodeState::Reserving) {
                    self.abort(now, route.id, Why::Failed(AbortReason::NoCredit), &mut out);
                }
            }
            DecodeInput::Arrived { route, pages } => self.arrived(now, route, pages, &mut out),
            DecodeInput::Lost { route } => {
                if self.job_ended(now, route, Job::Receive, &mut out) == Some(DecodeState::Receiving) {
                    self.abort(now, route.id, Why::Failed(AbortReason::TransferFailed), &mut out);
                }
            }
            DecodeInput::Measured { route, landed } => self.measured(now, route, &landed, host, &mut out),
            DecodeInput::Relabelled { route } => self.relabelled(now, route, &mut out),
            DecodeInput::Fenced { route } => {
                let aborting = |handoff: &&mut Handoff| matches!(handoff.state, DecodeState::Aborting { .. });
                if let Some(handoff) = self.of_route(route).filter(aborting) {
                    handoff.jobs.clear();
                    self.bury_when_idle(now, route.id, false, &mut out);
                }
            }
            DecodeInput::PeerGone { prefill } => self.peer_gone(now, prefill, &mut out),
            DecodeInput::Tick => self.tick(now, &mut out),
        }
        out
    }

    fn receive(&mut self, now: Duration, from: Party, message: Message, host: &impl DecodeHost, out: &mut Vec<Effect>) {
        let Some(route) = message.route() else {
            return self.heartbeat_answered(message, out);
        };
        if route.decode != self.life && self.on(Check::V1) {
            return out.push(Effect::Count(Dropped::OtherLife));
        }
        if let Some((buried, outcome)) = self.tombstones.find(route.id) {
            return late(route, &message, buried == route && outcome == Outcome::Committed, out);
        }
        match (from, message) {
            (Party::Gateway, Message::Reserve { order, credit_ms, .. }) => {
                self.reserve(now, route, order, credit_ms, out);
            }
            (Party::Prefill, Message::Offer(offer)) => self.offered(now, offer, host, out),
            (Party::Prefill, Message::Commit { .. }) => self.committed(now, route, host, out),
            (_, Message::Abort { reason, .. }) => match self.handoffs.get(&route.id) {
                Some(handoff) if handoff.route != route => out.push(Effect::Count(Dropped::OtherLife)),
                Some(_) => self.abort(now, route.id, Why::Told(reason), out),
                // The abort overtook what it aborts.
                None => self.bury(now, route, Outcome::Freed),
            },
            _ => out.push(Effect::Count(Dropped::NotYours)),
        }
    }

    fn reserve(&mut self, now: Duration, route: Route, order: Order, credit_ms: u32, out: &mut Vec<Effect>) {
        if let Some(handoff) = self.handoffs.get(&route.id) {
            match handoff.state {
                // The answer may have been lost.
                DecodeState::Reserved if handoff.route == route => out.push(credit(handoff)),
                _ => out.push(Effect::Count(Dropped::Repeated)),
            }
            return;
        }
        let pages = order.tokens.div_ceil(self.config.page_tokens.max(1));
        let full = self.handoffs.len() >= self.config.handoffs_max || self.tombstones.is_full();
        if full || pages == 0 || pages > PAGES_MAX {
            let message = Message::Abort { route, reason: AbortReason::NoCredit };
            return out.push(Effect::Send { to: Party::Gateway, message });
        }
        let mut jobs = Jobs::default();
        jobs.begin(Job::Reserve);
        let until = now + Duration::from_millis(credit_ms.into());
        let handoff = Handoff {
            route,
            order,
            state: DecodeState::Reserving,
            jobs,
            until,
            pages: Vec::new(),
            offer: None,
            total: ContentDigest::default(),
        };
        self.handoffs.insert(route.id, handoff);
        out.push(Effect::ReservePages { route, domain: order.domain, pages });
    }

    fn reserved(&mut self, now: Duration, route: Route, pages: Vec<PageSlot>, out: &mut Vec<Effect>) {
        let state = self.job_ended(now, route, Job::Reserve, out);
        let Some(handoff) = self.of_route(route) else { return };
        if state == Some(DecodeState::Reserving) {
            handoff.pages = pages;
            handoff.state = DecodeState::Reserved;
            out.push(credit(handoff));
        }
    }

    fn offered(&mut self, now: Duration, offer: SealedManifest, host: &impl DecodeHost, out: &mut Vec<Effect>) {
        let (config, route) = (Arc::clone(&self.config), offer.manifest.route);
        let Some(handoff) = self.handoffs.get_mut(&route.id) else {
            out.push(Effect::Count(Dropped::Unknown));
            return out.push(not_held(route));
        };
        match handoff.held_by(&config).check_offer(config.checks, &offer, host) {
            // Says nothing about the handoff that is held: it goes on.
            Err(Refusal::NotExpected) => return out.push(Effect::Count(Dropped::Repeated)),
            Err(refusal) if config.checks.on(Check::A6) => {
                return self.abort(now, route.id, Why::Refused(refusal), out);
            }
            _ => {}
        }
        handoff.until = now + lease(&offer);
        handoff.offer = Some(Box::new(offer));
        handoff.state = DecodeState::Receiving;
        handoff.jobs.begin(Job::Receive);
        out.push(Effect::BeginReceive { route, into: handoff.pages.clone() });
        out.push(Effect::Send { to: Party::Prefill, message: Message::Fetch { route } });
    }

    fn arrived(&mut self, now: Duration, route: Route, pages: Vec<PageSlot>, out: &mut Vec<Effect>) {
        let state = self.job_ended(now, route, Job::Receive, out);
        let in_place = self.config.in_place;
        let Some(handoff) = self.of_route(route) else { return };
        if state == Some(DecodeState::Receiving) {
            if in_place {
                handoff.pages.clone_from(&pages);
            }
            handoff.state = DecodeState::Landed;
            handoff.jobs.begin(Job::Measure);
            out.push(Effect::Measure { route, pages });
        }
    }

    fn measured(
        &mut self,
        now: Duration,
        route: Route,
        landed: &Landed,
        host: &impl DecodeHost,
        out: &mut Vec<Effect>,
    ) {
        let state = self.job_ended(now, route, Job::Measure, out);
        let config = Arc::clone(&self.config);
        let Some(handoff) = self.of_route(route).filter(|_| state == Some(DecodeState::Landed)) else { return };
        let Some(offer) = &handoff.offer else { return };
        let held = handoff.held_by(&config);
        match held.check_landing(config.checks, &offer.manifest, &handoff.pages, landed, host) {
            Err(refusal) if config.checks.on(Check::A6) => self.abort(now, route.id, Why::Refused(refusal), out),
            _ => {
                handoff.state = DecodeState::Verified;
                handoff.total = ContentDigest::sum(landed.pages.iter().map(|page| page.digest));
                out.push(verified(handoff));
            }
        }
    }

    fn committed(&mut self, now: Duration, route: Route, host: &impl DecodeHost, out: &mut Vec<Effect>) {
        let config = Arc::clone(&self.config);
        let Some(handoff) = self.of_route(route) else {
            out.push(Effect::Count(Dropped::Unknown));
            return out.push(not_held(route));
        };
        let Some(offer) = handoff.offer.as_deref().filter(|_| handoff.state == DecodeState::Verified) else {
            return out.push(Effect::Count(Dropped::Repeated));
        };
        // Time has passed since the landing was checked.
        let held = handoff.held_by(&config);
        if let Err(refusal) = held.check_place(config.checks, &offer.manifest, &handoff.pages, host) {
            return self.abort(now, route.id, Why::Refused(refusal), out);
        }
        handoff.state = DecodeState::Committed;
        handoff.jobs.begin(Job::Relabel);
        out.push(Effect::Relabel { route, pages: handoff.pages.clone() });
    }

    fn relabelled(&mut self, now: Duration, route: Route, out: &mut Vec<Effect>) {
        let state = self.job_ended(now, route, Job::Relabel, out);
        let Some(handoff) = self.of_route(route).filter(|_| state == Some(DecodeState::Committed)) else { return };
        let (tokens, first) = match &handoff.offer {
            Some(offer) => (offer.manifest.tokens, offer.manifest.first),
            None => return,
        };
        self.handoffs.remove(&route.id);
        self.bury(now, route, Outcome::Committed);
        out.push(Effect::StartDecode { route, tokens, first });
        out.push(Effect::Send { to: Party::Prefill, message: Message::Drained { route } });
        out.push(Effect::Send { to: Party::Gateway, message: Message::Decoding { route } });
    }

    fn peer_gone(&mut self, now: Duration, prefill: Incarnation, out: &mut Vec<Effect>) {
        let of_peer = |handoff: &&Handoff| handoff.route.prefill == prefill;
        // What is committed is ours and needs no peer.
        let open = |handoff: &&Handoff| !matches!(handoff.state, DecodeState::Committed | DecodeState::Aborting { .. });
        let ids: Vec<HandoffId> =
            self.handoffs.values().filter(of_peer).filter(open).map(|handoff| handoff.route.id).collect();
        for id in ids {
            self.abort(now, id, Why::Failed(AbortReason::PeerRestarted), out);
        }
    }

    /// The reaper. It looks at all handoffs: neither credits nor leases end in the order in which they began.
    fn tick(&mut self, now: Duration, out: &mut Vec<Effect>) {
        self.tombstones.reap(now);
        let over = |handoff: &&Handoff| {
            let waits = matches!(handoff.state, DecodeState::Reserving | DecodeState::Reserved) || handoff.leased();
            waits && now >= handoff.until
        };
        let ids: Vec<HandoffId> = self.handoffs.values().filter(over).map(|handoff| handoff.route.id).collect();
        for id in ids {
            self.abort(now, id, Why::Timer, out);
        }
        if now >= self.beat_at + self.config.heartbeat {
            self.beat_at = now;
            self.say_again(out);
        }
    }

    /// Heartbeats for what is leased, and whatever may have been lost.
    fn say_again(&mut self, out: &mut Vec<Effect>) {
        let mut leased: BTreeMap<Incarnation, Vec<HandoffId>> = BTreeMap::new();
        for handoff in self.handoffs.values() {
            let route = handoff.route;
            if handoff.leased() {
                leased.entry(route.prefill).or_default().push(route.id);
            }
            match handoff.state {
                DecodeState::Receiving => {
                    out.push(Effect::Send { to: Party::Prefill, message: Message::Fetch { route } });
                }
                DecodeState::Verified => out.push(verified(handoff)),
                _ => {}
            }
        }
        if !leased.is_empty() {
            self.beat += 1;
        }
        for (prefill, handoffs) in leased {
            for handoffs in handoffs.chunks(HEARTBEAT_HANDOFFS_MAX as usize) {
                let (beat, decode, handoffs) = (self.beat, self.life, handoffs.to_vec());
                let message = Message::Heartbeat { beat, prefill, decode, handoffs };
                out.push(Effect::Send { to: Party::Prefill, message });
            }
        }
    }

    /// The lease counts from when the heartbeat was sent: the prefill side renewed it later than that.
    fn heartbeat_answered(&mut self, message: Message, out: &mut Vec<Effect>) {
        match message {
            Message::HeartbeatAck { beat, prefill, decode, handoffs } if decode == self.life && beat == self.beat => {
                for id in handoffs {
                    let Some(handoff) = self.handoffs.get_mut(&id) else { continue };
                    if let Some(offer) = handoff.offer.as_deref().filter(|_| handoff.route.prefill == prefill) {
                        handoff.until = handoff.until.max(self.beat_at + lease(offer));
                    }
                }
            }
            Message::HeartbeatAck { .. } => out.push(Effect::Count(Dropped::OtherLife)),
            _ => out.push(Effect::Count(Dropped::NotYours)),
        }
    }

    fn abort(&mut self, now: Duration, id: HandoffId, why: Why, out: &mut Vec<Effect>) {
        let checks = self.config.checks;
        let Some(handoff) = self.handoffs.get_mut(&id) else { return };
        let route = handoff.route;
        let early = matches!(handoff.state, DecodeState::Reserving | DecodeState::Reserved);
        if matches!(handoff.state, DecodeState::Aborting { .. }) || !(early || checks.on(Check::A1) || why.is_own()) {
            return out.push(Effect::Count(Dropped::Repeated));
        }
        // The prefill side waits to hear what became of its commit.
        let committed = handoff.state == DecodeState::Committed;
        handoff.state = DecodeState::Aborting { evidence: why.leaves_evidence() };
        let place = Place { route, domain: handoff.order.domain, side: Party::Decode };
        why.stop_work(checks, &mut handoff.jobs, &place, out);
        let message = Message::Abort { route, reason: why.reason() };
        if why.is_own() {
            out.push(Effect::Send { to: Party::Gateway, message: message.clone() });
        }
        if why.is_own() || committed {
            out.push(Effect::Send { to: Party::Prefill, message });
        }
        self.bury_when_idle(now, id, why.frees_at_once(checks), out);
    }

    /// An aborted handoff is over when nothing works at its pages any more, and not a moment earlier.
    fn bury_when_idle(&mut self, now: Duration, id: HandoffId, anyway: bool, out: &mut Vec<Effect>) {
        let Some(handoff) = self.handoffs.get(&id) else { return };
        let DecodeState::Aborting { evidence } = handoff.state else { return };
        let idle = handoff.jobs.none() || anyway || !self.on(Check::A3);
        if idle {
            let route = handoff.route;
            self.handoffs.remove(&id);
            let outcome = if evidence { Outcome::Quarantined } else { Outcome::Freed };
            if !evidence {
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

    /// Takes note that some work ended; returns the state that the handoff is in, unless that was the last of its work.
    fn job_ended(&mut self, now: Duration, route: Route, job: Job, out: &mut Vec<Effect>) -> Option<DecodeState> {
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

impl Handoff {
    fn held_by<'a>(&'a self, config: &'a DecodeConfig) -> Held<'a> {
        Held {
            route: self.route,
            order: self.order,
            waits: self.state == DecodeState::Reserved,
            fingerprint: config.fingerprint,
            page_tokens: config.page_tokens.max(1),
            key: &config.key,
            kept: (!config.in_place).then_some(&self.pages),
        }
    }
}

/// A message for a handoff that is over: counted, and answered where the peer waits for an answer.
fn late(route: Route, message: &Message, committed: bool, out: &mut Vec<Effect>) {
    out.push(Effect::Count(Dropped::Ended));
    match message {
        Message::Commit { .. } if committed => {
            out.push(Effect::Send { to: Party::Prefill, message: Message::Drained { route } });
        }
        Message::Commit { .. } | Message::Offer(_) if !committed => out.push(not_held(route)),
        _ => {}
    }
}

fn not_held(route: Route) -> Effect {
    Effect::Send { to: Party::Prefill, message: Message::Abort { route, reason: AbortReason::NotHeld } }
}

fn credit(handoff: &Handoff) -> Effect {
    let message = Message::Credit { route: handoff.route, pages: handoff.pages.len() as u32 };
    Effect::Send { to: Party::Gateway, message }
}

fn verified(handoff: &Handoff) -> Effect {
    let message = Message::Verified { route: handoff.route, total: handoff.total };
    Effect::Send { to: Party::Prefill, message }
}

fn lease(offer: &SealedManifest) -> Duration {
    Duration::from_millis(offer.manifest.lease_ms.into()) * LEASE_PERCENT / 100
}
