//! What a side asks of its driver. The protocol decides; threads, pools, kernels and sockets are the driver's.

use crate::identity::{Party, Route};
use crate::manifest::FirstStep;
use crate::message::{AbortReason, Message, Order};
use crate::refusal::Refusal;
use policies_domain::{Generation, Label, PageId};

/// A page in one life: what a ledger gave out. A ledger does nothing to a page on behalf of another life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageSlot {
    /// Which page.
    pub page: PageId,
    /// In which life.
    pub generation: Generation,
    /// The tag of that life.
    pub tag: u32,
}

/// One thing to do, in the order in which they are listed. *Of the route* means every page that this side's ledger holds
/// for it: the ledger is the authority on which these are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send a message; the route in it says to which life of the party.
    Send {
        /// To whom.
        to: Party,
        /// What.
        message: Message,
    },
    /// D: keep `pages` free pages for what will come (state inbound). Answer `Reserved` or `Exhausted`.
    ReservePages {
        /// For which handoff.
        route: Route,
        /// Whose data they will hold.
        domain: Label,
        /// How many.
        pages: u32,
    },
    /// D: take the bytes in. Answer `Arrived` or `Lost`; until then the pages have a writer.
    BeginReceive {
        /// Of which handoff.
        route: Route,
        /// Where to; empty when the pages stay where they are.
        into: Vec<PageSlot>,
    },
    /// D: fence, then compute tags and digests from this side's own memory. Answer `Measured`.
    Measure {
        /// Of which handoff.
        route: Route,
        /// Which pages, in the order of the sequence.
        pages: Vec<PageSlot>,
    },
    /// D: make the pages the sequence's own (inbound to open, in a new life, with new tags). Answer `Relabelled`.
    Relabel {
        /// Of which handoff.
        route: Route,
        /// Which pages, in the order of the sequence.
        pages: Vec<PageSlot>,
    },
    /// D: go on with the answer. Its first token leaves now and not earlier.
    StartDecode {
        /// Of which handoff.
        route: Route,
        /// Tokens that the pages hold.
        tokens: u32,
        /// The first token and what sampling it left.
        first: FirstStep,
    },
    /// P: compute the prompt into fresh pages of the order's domain. Answer `PrefillBegan`, then `Prefilled`.
    StartPrefill {
        /// Of which handoff.
        route: Route,
        /// Which prompt.
        order: Order,
    },
    /// P: the last write is done: seal the pages (open to outbound) and compute their digests. Answer `Sealed`.
    Seal {
        /// Of which handoff.
        route: Route,
    },
    /// P: give the bytes to the decode side. Answer `Sent` or `SendFailed`; until then the pages have a reader.
    BeginSend {
        /// Of which handoff.
        route: Route,
        /// Which pages, in the order of the sequence.
        pages: Vec<PageSlot>,
    },
    /// Take the pages of the route out of use. They keep their bytes.
    Quarantine {
        /// Of which handoff.
        route: Route,
        /// They stay: something was wrong with them.
        evidence: bool,
    },
    /// End whatever is still at work on the pages of the route: stop kernels, join copies, synchronise streams, tear down
    /// mappings. Answer `Fenced` when nothing can touch them any more.
    Fence {
        /// Of which handoff.
        route: Route,
    },
    /// The handoff needs the pages of the route no longer: scrub and free them, or keep them as their domain's prefix.
    Release {
        /// Of which handoff.
        route: Route,
    },
    /// An isolation fault was stopped: put it on record.
    Incident(Incident),
    /// G: tell who waits for it how the handoff ended.
    Ended {
        /// Which handoff.
        route: Route,
        /// How.
        end: End,
    },
    /// Count it: it was not acted on.
    Count(Dropped),
}

/// An isolation fault, and where it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incident {
    /// Which handoff.
    pub route: Route,
    /// Whose request it was.
    pub domain: Label,
    /// Who saw it.
    pub seen_by: Party,
    /// What was wrong.
    pub refusal: Refusal,
}

/// How a handoff ended at the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The decode side goes on with it.
    Decoding,
    /// It is over; a retry is a new handoff.
    Aborted(AbortReason),
}

/// Why a message was counted and not acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dropped {
    /// Meant for another life of this worker, or from one of the peer's that the handoff does not know.
    OtherLife,
    /// The handoff ended before.
    Ended,
    /// The handoff is in a state in which this says nothing new.
    Repeated,
    /// Nobody here holds that handoff.
    Unknown,
    /// A party sent what is not its to send.
    NotYours,
}
