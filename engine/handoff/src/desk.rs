//! The gateway's side: draws the ids, asks for the credit before the prefill, and tells both sides when a client leaves.

use crate::check::{Check, Checks};
use crate::effect::{Dropped, Effect, End};
use crate::ended::{Outcome, Tombstones};
use crate::identity::{Attempt, HandoffId, Incarnation, Party, Route};
use crate::message::{AbortReason, Message, Order};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a desk is told once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeskConfig {
    /// How long the decode side keeps pages for a prompt that is still computed.
    pub credit_ms: u32,
    /// Handoffs at a time, at most.
    pub handoffs_max: usize,
    /// Before something unanswered is said again.
    pub heartbeat: Duration,
    /// How long an ended handoff is remembered: twice the longest of lease and transport timeout.
    pub remember: Duration,
    /// Always [`Checks::ALL`], but in tests.
    pub checks: Checks,
}

/// Where a handoff stands at the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeskState {
    /// The decode side was asked for a credit.
    Asking,
    /// The prefill side was told to begin.
    Started,
}

/// Why no handoff was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The source of ids repeated one. It is broken, and nothing that it draws can be trusted.
    #[error("the source of ids repeated `{id}`")]
    Repeated {
        /// The id.
        id: HandoffId,
    },
    /// As many as there may be.
    #[error("{handoffs} handoffs are open")]
    Full {
        /// How many.
        handoffs: usize,
    },
}

/// What a handoff is opened for.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The request, from its permit and its tokens.
    pub order: Order,
    /// Which try of it.
    pub attempt: Attempt,
    /// The life of the prefill worker that was chosen.
    pub prefill: Incarnation,
    /// The life of the decode worker that was chosen.
    pub decode: Incarnation,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Handoff {
    route: Route,
    order: Order,
    state: DeskState,
}

/// All handoffs that a gateway has open. No map in it has a key that a client could choose.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HandoffDesk {
    config: Arc<DeskConfig>,
    handoffs: BTreeMap<HandoffId, Handoff>,
    tombstones: Tombstones,
    again_at: Duration,
}

impl HandoffDesk {
    /// A desk with nothing open.
    #[must_use]
    pub fn new(config: Arc<DeskConfig>) -> Self {
        let tombstones = Tombstones::default();
        Self { config, handoffs: BTreeMap::new(), tombstones, again_at: Duration::ZERO }
    }

    /// Where a handoff stands; `None` when it is not open.
    #[must_use]
    pub fn state(&self, id: HandoffId) -> Option<DeskState> {
        self.handoffs.get(&id).map(|handoff| handoff.state)
    }

    /// Opens a handoff under an id that `draw` makes of 16 random bytes.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is sent then.
    pub fn open(
        &mut self,
        opening: Opening,
        draw: impl FnOnce() -> HandoffId,
    ) -> Result<(Route, Vec<Effect>), OpenError> {
        if self.handoffs.len() >= self.config.handoffs_max || self.tombstones.is_full() {
            return Err(OpenError::Full { handoffs: self.handoffs.len() });
        }
        let id = draw();
        let used = self.handoffs.contains_key(&id) || self.tombstones.find(id).is_some();
        if used && self.config.checks.on(Check::G1) {
            return Err(OpenError::Repeated { id });
        }
        let Opening { order, attempt, prefill, decode } = opening;
        let route = Route { id, attempt, prefill, decode };
        let handoff = Handoff { route, order, state: DeskState::Asking };
        let mut out = vec![self.reserve(&handoff)];
        if !self.config.checks.on(Check::K1) {
            out.push(start(&handoff));
        }
        self.handoffs.insert(id, handoff);
        Ok((route, out))
    }

    /// Takes in a message that came at `now`.
    #[must_use]
    pub fn receive(&mut self, now: Duration, from: Party, message: &Message) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(route) = message.route() else { return vec![Effect::Count(Dropped::NotYours)] };
        let Some(handoff) = self.handoffs.get_mut(&route.id).filter(|handoff| handoff.route == route) else {
            return vec![Effect::Count(Dropped::Ended)];
        };
        match (from, message) {
            (Party::Decode, Message::Credit { .. }) if handoff.state == DeskState::Asking => {
                handoff.state = DeskState::Started;
                out.push(start(handoff));
            }
            (Party::Decode, Message::Credit { .. }) => out.push(Effect::Count(Dropped::Repeated)),
            (Party::Decode, Message::Decoding { .. }) => {
                self.end(now, route, End::Decoding, &mut out);
            }
            (from, Message::Abort { reason, .. }) => {
                // The side that ended it tells the other one too; what it says may be lost, and so may this.
                let other = if from == Party::Decode { Party::Prefill } else { Party::Decode };
                out.push(abort(other, route, *reason));
                self.end(now, route, End::Aborted(*reason), &mut out);
            }
            _ => out.push(Effect::Count(Dropped::NotYours)),
        }
        out
    }

    /// The client is gone: both sides are told, so that there is no moment in which one of them does not know.
    #[must_use]
    pub fn client_left(&mut self, now: Duration, id: HandoffId) -> Vec<Effect> {
        let mut out = Vec::new();
        if let Some(route) = self.handoffs.get(&id).map(|handoff| handoff.route) {
            out.push(abort(Party::Prefill, route, AbortReason::ClientLeft));
            if self.config.checks.on(Check::A7) {
                out.push(abort(Party::Decode, route, AbortReason::ClientLeft));
            }
            self.end(now, route, End::Aborted(AbortReason::ClientLeft), &mut out);
        }
        out
    }

    /// A worker's life is over: whatever was opened with it ends on both sides. What was started when a prefill worker
    /// dies is the decode side's to judge: it may have been committed, and then it needs no prefill worker any more.
    #[must_use]
    pub fn peer_gone(&mut self, now: Duration, life: Incarnation) -> Vec<Effect> {
        let mut out = Vec::new();
        let with_it = |handoff: &&Handoff| {
            let unstarted = handoff.state == DeskState::Asking;
            handoff.route.decode == life || (handoff.route.prefill == life && unstarted)
        };
        let routes: Vec<Route> = self.handoffs.values().filter(with_it).map(|handoff| handoff.route).collect();
        for route in routes {
            for to in [Party::Prefill, Party::Decode] {
                out.push(abort(to, route, AbortReason::PeerRestarted));
            }
            self.end(now, route, End::Aborted(AbortReason::PeerRestarted), &mut out);
        }
        out
    }

    /// Time has passed: what was not answered is said again, what ended long ago is forgotten.
    #[must_use]
    pub fn tick(&mut self, now: Duration) -> Vec<Effect> {
        self.tombstones.reap(now);
        if now < self.again_at + self.config.heartbeat {
            return Vec::new();
        }
        self.again_at = now;
        let again = |handoff: &Handoff| match handoff.state {
            DeskState::Asking => self.reserve(handoff),
            DeskState::Started => start(handoff),
        };
        self.handoffs.values().map(again).collect()
    }

    fn end(&mut self, now: Duration, route: Route, end: End, out: &mut Vec<Effect>) {
        self.handoffs.remove(&route.id);
        let outcome = if end == End::Decoding { Outcome::Committed } else { Outcome::Freed };
        self.tombstones.bury(route, outcome, now + self.config.remember);
        out.push(Effect::Ended { route, end });
    }

    fn reserve(&self, handoff: &Handoff) -> Effect {
        let Handoff { route, order, .. } = *handoff;
        let message = Message::Reserve { route, order, credit_ms: self.config.credit_ms };
        Effect::Send { to: Party::Decode, message }
    }
}

fn start(handoff: &Handoff) -> Effect {
    let message = Message::Start { route: handoff.route, order: handoff.order };
    Effect::Send { to: Party::Prefill, message }
}

fn abort(to: Party, route: Route, reason: AbortReason) -> Effect {
    Effect::Send { to, message: Message::Abort { route, reason } }
}
