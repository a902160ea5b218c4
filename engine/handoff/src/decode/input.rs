//! What a decode side is told: once, and as it happens.

use crate::check::Checks;
use crate::effect::PageSlot;
use crate::identity::{Fingerprint, Incarnation, Party, Route};
use crate::key::HandoffKey;
use crate::message::Message;
use crate::refusal::Landed;
use std::time::Duration;

/// What a decode side is told once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DecodeConfig {
    /// Shared with the prefill side.
    pub key: HandoffKey,
    /// Its own model and layout.
    pub fingerprint: Fingerprint,
    /// Tokens that a page holds, above 0.
    pub page_tokens: u32,
    /// Pages stay where they are: both sides use one pool, and nothing is copied.
    pub in_place: bool,
    /// Handoffs at a time, at most.
    pub handoffs_max: usize,
    /// Between two heartbeats, and before something unanswered is said again.
    pub heartbeat: Duration,
    /// How long an ended handoff is remembered: twice the longest of lease and transport timeout.
    pub remember: Duration,
    /// Always [`Checks::ALL`], but in tests.
    pub checks: Checks,
}

/// Where a handoff stands on the decode side. Its end is in [`DecodeSide::ended`](crate::DecodeSide::ended).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeState {
    /// Pages were asked for.
    Reserving,
    /// Pages are kept, nothing came yet.
    Reserved,
    /// The manifest is good as far as it can be said; bytes are coming.
    Receiving,
    /// All bytes came; they are being fenced and measured.
    Landed,
    /// They are the ones of the manifest; the prefill side was told.
    Verified,
    /// They are ours; tags are being written.
    Committed,
    /// Over; work at the pages has not ended yet.
    Aborting {
        /// The pages will be kept.
        evidence: bool,
    },
}

/// Something that happened to the decode side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "an offer is most of what comes, and each is taken in at once")]
pub enum DecodeInput {
    /// A message came. Who sent it is known by the transport, not by what it says.
    Message {
        /// Who sent it.
        from: Party,
        /// What it says.
        message: Message,
    },
    /// Pages are kept: as many as were asked for, none when they stay where they are.
    Reserved {
        /// For which handoff.
        route: Route,
        /// Which ones, in the order of the sequence.
        pages: Vec<PageSlot>,
    },
    /// There are not enough free pages.
    Exhausted {
        /// For which handoff.
        route: Route,
    },
    /// All bytes are here and the work of bringing them has ended.
    Arrived {
        /// Of which handoff.
        route: Route,
        /// Where they lie, in the order of the sequence.
        pages: Vec<PageSlot>,
    },
    /// The bytes did not come, and the work of bringing them has ended.
    Lost {
        /// Of which handoff.
        route: Route,
    },
    /// What lies in memory.
    Measured {
        /// Of which handoff.
        route: Route,
        /// What was found.
        landed: Landed,
    },
    /// The pages have their new owner and tags.
    Relabelled {
        /// Of which handoff.
        route: Route,
    },
    /// Nothing can touch the pages of this handoff any more.
    Fenced {
        /// Of which handoff.
        route: Route,
    },
    /// A life of the prefill worker is over.
    PeerGone {
        /// Which one.
        prefill: Incarnation,
    },
    /// Time has passed.
    Tick,
}
