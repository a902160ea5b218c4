//! What the three parties say to each other.

use crate::content::ContentDigest;
use crate::identity::{HandoffId, Incarnation, RequestDigest, Route};
use crate::manifest::SealedManifest;
use policies_domain::Label;

/// What the gateway ordered, as it authenticated and tokenized it. Goes to both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// Whose request it is.
    pub domain: Label,
    /// Which request. A worker that has the request itself computes this anew and puts its own in the place of it.
    pub request: RequestDigest,
    /// Tokens of the prompt.
    pub tokens: u32,
}

/// Handoffs that one heartbeat names at most; a peer with more of them sends several.
pub const HEARTBEAT_HANDOFFS_MAX: u32 = 4096;

/// One message. `G`, `P` and `D` are the gateway, the prefill and the decode side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// G to D: keep pages for this.
    Reserve {
        /// Which handoff.
        route: Route,
        /// What will be handed over.
        order: Order,
        /// How long D keeps them before anything has come.
        credit_ms: u32,
    },
    /// D to G: the pages are kept. Without it no prefill begins.
    Credit {
        /// Which handoff.
        route: Route,
        /// How many pages.
        pages: u32,
    },
    /// G to P: compute this prompt.
    Start {
        /// Which handoff.
        route: Route,
        /// What to compute.
        order: Order,
    },
    /// P to D: it is computed and sealed. There is no other way to say so, and none to say so of a prefill that failed.
    Offer(SealedManifest),
    /// D to P: the manifest is good, send the bytes.
    Fetch {
        /// Which handoff.
        route: Route,
    },
    /// D to P: the bytes are in my memory and are the ones of the manifest.
    Verified {
        /// Which handoff.
        route: Route,
        /// The sum of the page digests, as D computed them.
        total: ContentDigest,
    },
    /// P to D: they are yours.
    Commit {
        /// Which handoff.
        route: Route,
    },
    /// D to P: committed, nothing of yours is needed any more.
    Drained {
        /// Which handoff.
        route: Route,
    },
    /// D to G: decoding has begun.
    Decoding {
        /// Which handoff.
        route: Route,
    },
    /// Anybody to anybody: this handoff is over.
    Abort {
        /// Which handoff.
        route: Route,
        /// Why.
        reason: AbortReason,
    },
    /// D to P: these are still wanted; keep their pages for another lease.
    Heartbeat {
        /// Counts D's heartbeats to this peer.
        beat: u64,
        /// The life of P that it is meant for.
        prefill: Incarnation,
        /// The life of D that sends it.
        decode: Incarnation,
        /// Which handoffs.
        handoffs: Vec<HandoffId>,
    },
    /// P to D: of those I still hold these, for another lease.
    HeartbeatAck {
        /// The heartbeat that is answered.
        beat: u64,
        /// The life of P that sends it.
        prefill: Incarnation,
        /// The life of D that it is meant for.
        decode: Incarnation,
        /// Which handoffs.
        handoffs: Vec<HandoffId>,
    },
}

impl Message {
    /// The handoff that it speaks of; heartbeats speak of many.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        match self {
            Self::Reserve { route, .. }
            | Self::Credit { route, .. }
            | Self::Start { route, .. }
            | Self::Fetch { route }
            | Self::Verified { route, .. }
            | Self::Commit { route }
            | Self::Drained { route }
            | Self::Decoding { route }
            | Self::Abort { route, .. } => Some(*route),
            Self::Offer(sealed) => Some(sealed.manifest.route),
            Self::Heartbeat { .. } | Self::HeartbeatAck { .. } => None,
        }
    }
}

/// Why a handoff ended before its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AbortReason {
    /// The client left.
    ClientLeft,
    /// D has no pages for it, or too many handoffs.
    NoCredit,
    /// The prompt could not be computed, or not whole.
    PrefillFailed,
    /// The bytes could not be brought over.
    TransferFailed,
    /// The credit or the lease ran out.
    Expired,
    /// A check refused it: an isolation fault, with an incident on the side that saw it.
    Refused,
    /// A peer began a new life.
    PeerRestarted,
    /// Whoever was asked does not hold it, or ended it before.
    NotHeld,
}

impl AbortReason {
    pub(crate) const ALL: [Self; 8] = [
        Self::ClientLeft,
        Self::NoCredit,
        Self::PrefillFailed,
        Self::TransferFailed,
        Self::Expired,
        Self::Refused,
        Self::PeerRestarted,
        Self::NotHeld,
    ];

    /// As logs, records and the wire name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientLeft => "client_left",
            Self::NoCredit => "no_credit",
            Self::PrefillFailed => "prefill_failed",
            Self::TransferFailed => "transfer_failed",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::PeerRestarted => "peer_restarted",
            Self::NotHeld => "not_held",
        }
    }
}
