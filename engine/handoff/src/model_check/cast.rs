//! Who and what appears in a world: mail, work, defects, requests, and what the shadow remembers.

use super::world::PAGE_TOKENS;
use crate::{
    DecodeConfig, DeskConfig, FirstStep, FirstToken, HandoffId, Incarnation, Incident, Message, Order, PageSlot, Party,
    PrefillConfig, RequestDigest, Route, SamplerState,
};
use policies_domain::{Label, TenantId};
use std::sync::Arc;

/// Something on its way.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are messages")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mail {
    Message {
        from: Party,
        to: Party,
        message: Message,
    },
    /// The transport noticed that a life is over.
    Gone {
        to: Party,
        life: Incarnation,
    },
}

/// Work at pages that was begun and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Prefill { route: Route, order: Order, pages: Option<Vec<PageSlot>> },
    Seal { route: Route },
    Send { route: Route, pages: Vec<PageSlot>, read: bool },
    Reserve { route: Route, pages: u32 },
    Receive { route: Route, into: Vec<PageSlot> },
    Measure { route: Route, pages: Vec<PageSlot> },
    Relabel { route: Route, pages: Vec<PageSlot> },
    Decode { route: Route },
    Fence { side: Party, route: Route },
}

/// How some work ends, when it does not end as it should: a defect that is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Defect {
    /// A bit of the manifest flips on its way.
    FlipManifest,
    /// A bit of a page flips: before it was sent, or after it landed.
    FlipPage,
    /// A bit of a page's tag flips after it landed.
    FlipTag,
    /// The prefill worker takes another tenant's label for its own.
    WrongDomain,
    /// The prefill worker computes another prompt of the same tenant.
    OtherRequest,
    /// The pages are listed in another order than they have.
    ShuffledPages,
    /// The last page is not listed, although all tokens are.
    MissingPage,
    /// The sampler draws a token that there is none of.
    OddToken,
    /// The prompt cannot be computed whole.
    PrefillFails,
    /// A prompt that is too long is answered with one token's placeholder, as if that were a success.
    Placeholder,
    /// The decode side's pool gives a page away that is kept for a handoff.
    KeptPageGivenAway,
    /// The prefill side's pool gives a page away that is offered.
    OfferedPageGivenAway,
    /// The gateway's source of ids repeats one.
    RepeatedId,
}

/// What one request of a scenario is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) tenant: u32,
    pub(super) pages: u32,
}

impl Request {
    fn domain(self) -> Label {
        Label::of(TenantId::new(self.tenant).unwrap())
    }

    pub(super) fn order(self, content: u8) -> Order {
        Order { domain: self.domain(), request: digest_of(content), tokens: self.pages * PAGE_TOKENS - 3 }
    }
}

pub(super) fn digest_of(content: u8) -> RequestDigest {
    RequestDigest([content; 32])
}

pub(super) fn first_of(content: u8) -> FirstStep {
    FirstStep {
        token: FirstToken::new(7 + u32::from(content)),
        log_prob_bits: 0,
        sampler: SamplerState { seed: 1, step: 1 },
        grammar: [0; 32],
        replay: [0; 32],
    }
}

/// What the three parties are told.
#[derive(Clone, Debug)]
pub(super) struct Configs {
    pub(super) desk: Arc<DeskConfig>,
    pub(super) prefill: Arc<PrefillConfig>,
    pub(super) decode: Arc<DecodeConfig>,
}

/// What may still go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) losses: u8,
    pub(super) duplicates: u8,
    pub(super) crashes: u8,
    pub(super) clients_that_leave: u8,
    pub(super) retries: u8,
    pub(super) defects: u8,
    pub(super) ticks: [u8; 3],
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Progress {
    Waiting { attempt: u32 },
    Open(Route),
    Over,
}

/// What the shadow has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// Invariants that were broken at some moment, one bit each.
    pub(super) broken: u32,
    pub(super) credits: Vec<Route>,
    pub(super) offered_at: Vec<(Route, u8)>,
    pub(super) commits_sent: Vec<Route>,
    pub(super) committed: Vec<Route>,
    pub(super) drained: Vec<Route>,
    pub(super) reused: Vec<Route>,
    pub(super) incidents: Vec<Incident>,
    /// Per side.
    pub(super) aborted: Vec<(Party, Route)>,
    pub(super) ids: Vec<HandoffId>,
    /// A message was lost or a party crashed: what was said need not have been heard.
    pub(super) disturbed: bool,
}

impl Work {
    pub(super) fn side(&self) -> Party {
        match self {
            Self::Prefill { .. } | Self::Seal { .. } | Self::Send { .. } => Party::Prefill,
            Self::Fence { side, .. } => *side,
            _ => Party::Decode,
        }
    }

    pub(super) fn route(&self) -> Route {
        match self {
            Self::Prefill { route, .. }
            | Self::Seal { route }
            | Self::Send { route, .. }
            | Self::Reserve { route, .. }
            | Self::Receive { route, .. }
            | Self::Measure { route, .. }
            | Self::Relabel { route, .. }
            | Self::Decode { route }
            | Self::Fence { route, .. } => *route,
        }
    }

    /// The pages that it reads or writes, as far as it was told which.
    pub(super) fn pages(&self) -> (&[PageSlot], bool) {
        match self {
            Self::Prefill { pages: Some(pages), .. } => (pages, true),
            Self::Send { pages, .. } | Self::Measure { pages, .. } => (pages, false),
            Self::Receive { into, .. } => (into, true),
            Self::Relabel { pages, .. } => (pages, true),
            _ => (&[], false),
        }
    }
}
