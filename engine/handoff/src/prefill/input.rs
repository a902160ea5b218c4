//! What a prefill side is told: once, and as it happens.

use crate::check::Checks;
use crate::content::ContentDigest;
use crate::effect::PageSlot;
use crate::identity::{Fingerprint, Incarnation, Party, Route};
use crate::key::HandoffKey;
use crate::manifest::FirstStep;
use crate::message::Message;
use std::time::Duration;

/// What a prefill side is told once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrefillConfig {
    /// Shared with the decode side.
    pub key: HandoffKey,
    /// Its own model and layout.
    pub fingerprint: Fingerprint,
    /// Handoffs at a time, at most.
    pub handoffs_max: usize,
    /// How long sealed pages are kept for a decode side that says nothing.
    pub lease_ms: u32,
    /// Before something unanswered is said again.
    pub heartbeat: Duration,
    /// How long an ended handoff is remembered: twice the longest of lease and transport timeout.
    pub remember: Duration,
    /// Always [`Checks::ALL`], but in tests.
    pub checks: Checks,
}

/// Where a handoff stands on the prefill side. Its end is in [`PrefillSide::ended`](crate::PrefillSide::ended).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefillState {
    /// Taken, not begun.
    Admitted,
    /// Being computed.
    Prefilling,
    /// Computed; the pages are being sealed.
    Sealed,
    /// The decode side has the manifest.
    Offered,
    /// Committed; the decode side has not yet said that it is done with it.
    Draining {
        /// It took so long that the pages are set aside.
        late: bool,
    },
    /// Over; work at the pages has not ended yet.
    Aborting {
        /// The pages will be kept.
        evidence: bool,
    },
}

/// One page as it was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SealedPage {
    /// Its place in the sequence, from 0.
    pub logical: u32,
    /// Which page, in which life.
    pub slot: PageSlot,
    /// Digest of its bytes.
    pub digest: ContentDigest,
}

/// How a prefill ended. A failure is no short success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefillEnd {
    /// The last write of the last chunk is done.
    Complete {
        /// Tokens that the pages hold.
        tokens: u32,
        /// The first token and what sampling it left.
        first: FirstStep,
    },
    /// It could not be computed, or not whole.
    Failed,
}

/// Something that happened to the prefill side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PrefillInput {
    /// A message came. Who sent it is known by the transport, not by what it says.
    Message {
        /// Who sent it.
        from: Party,
        /// What it says.
        message: Message,
    },
    /// The first chunk is being computed.
    PrefillBegan {
        /// Of which handoff.
        route: Route,
    },
    /// Nothing writes to the pages any more.
    Prefilled {
        /// Of which handoff.
        route: Route,
        /// How it went.
        end: PrefillEnd,
    },
    /// The pages are sealed.
    Sealed {
        /// Of which handoff.
        route: Route,
        /// In the order of the sequence.
        pages: Vec<SealedPage>,
        /// Digest of each layer over all pages.
        layers: Vec<ContentDigest>,
    },
    /// The bytes were given away; nothing reads the pages any more.
    Sent {
        /// Of which handoff.
        route: Route,
    },
    /// They could not be; nothing reads the pages any more.
    SendFailed {
        /// Of which handoff.
        route: Route,
    },
    /// Nothing can touch the pages of this handoff any more.
    Fenced {
        /// Of which handoff.
        route: Route,
    },
    /// A life of the decode worker is over.
    PeerGone {
        /// Which one.
        decode: Incarnation,
    },
    /// Time has passed.
    Tick,
}
