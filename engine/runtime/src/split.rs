//! Prefill and decode as two groups, which hand requests over by the protocol of `engine_handoff`.
//!
//! A group is a value that is given parcels and the time, works on its [`Machine`], and leaves parcels for the other one in
//! its outbox. It has no thread and no clock, and does not know how parcels travel: within a thread, between two, or (their
//! messages and bytes, not their tables) between processes. What it does is what the protocol's effects say; in the order
//! in which they are listed, and each before the next one.
//!
//! ```text
//! DecodeGroup: the desk, who has a slot, the decode side       PrefillGroup: the prefill side
//!      |---- Prompt, Start ------------------------------------------->|   computes, samples, seals
//!      |<------------------------------ Said: what was read ... Offer ----|
//!      |---- Fetch --------------------------------------------------->|
//!      |<--------------------------------- Bytes, or the Table itself -|   two pools, or one
//!      |---- Verified ------------------------------------------------>|
//!      |<--------------------------------------------------- Commit ---|
//!      |---- Drained, Returned --------------------------------------->|   and then the first token
//! ```

mod decode_group;
#[cfg(feature = "fault-injection")]
mod executor;
#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod fault_tests;
mod mailbox;
mod pair;
mod prefill_group;
#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod prefix_tests;
mod prompt;
#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod tests;
mod threads;

pub(crate) use decode_group::DecodeGroup;
#[cfg(feature = "fault-injection")]
pub use executor::SplitExecutor;
pub(crate) use mailbox::Mailbox;
pub(crate) use pair::Pair;
pub(crate) use prefill_group::PrefillGroup;
pub(crate) use prompt::Prompt;
pub(crate) use threads::Between;

use crate::compute::Compute;
use crate::machine::Machine;
use crate::outlet::Said;
use engine_handoff::{
    Checks, ContentDigest, ContentKey, ContentTotals, Fingerprint, HandoffKey, Incarnation, LandedPage, Message,
    PageSlot, Party, Route,
};
use engine_kernels::PageRef;
use engine_kv::{Capability, OutboundTable, PageLabel, PagePool, PageState};
use policies_domain::{Generation, PageLife, QuarantineReason};
use std::sync::Arc;
use std::time::Duration;

/// How long sealed pages are kept for a decode group that says nothing, which is longer than any step.
const LEASE: Duration = Duration::from_secs(10);
/// Between two heartbeats, and before something unanswered is said again.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long the decode group keeps pages for a prompt: the longest context takes minutes on a slow machine.
const CREDIT: Duration = Duration::from_secs(600);
/// Handoffs that the groups hold at a time for each slot: those that ended may wait a moment for their pages.
const HANDOFFS_PER_SLOT: usize = 4;
/// How often a group looks at what has expired.
const TICK: Duration = Duration::from_millis(250);

/// What the two groups of an engine share.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) key: HandoffKey,
    pub(crate) content: Arc<ContentKey>,
    pub(crate) fingerprint: Fingerprint,
    /// Both groups work on one machine: pages stay where they are.
    pub(crate) in_place: bool,
    /// Handoffs at a time, at most.
    pub(crate) handoffs_max: usize,
    pub(crate) checks: Checks,
}

impl Terms {
    /// Under a fresh secret, for pages with so many bytes of K and V in each layer. `None` when no digest is made for that.
    pub(crate) fn new(
        boot_secret: [u8; 32],
        content_bytes: usize,
        fingerprint: [u8; 32],
        in_place: bool,
        slots: usize,
    ) -> Option<Self> {
        let key = HandoffKey::new(boot_secret);
        let content = Arc::new(ContentKey::new(&key, content_bytes)?);
        let (fingerprint, handoffs_max) = (Fingerprint(fingerprint), HANDOFFS_PER_SLOT * slots);
        Some(Self { key, content, fingerprint, in_place, handoffs_max, checks: Checks::ALL })
    }
}

/// What goes from one group to the other.
pub(crate) enum Parcel {
    /// A word of the protocol.
    Message { from: Party, to: Party, message: Message },
    /// What the next `Start` is about.
    Prompt { route: Route, prompt: Box<Prompt> },
    /// What came of the prompt so far.
    Said { route: Route, said: Said },
    /// All pages of a handoff, one behind the other.
    Bytes { route: Route, pages: u32, bytes: Vec<u8> },
    /// The pages themselves, where both groups have one pool.
    Table { route: Route, table: Box<OutboundTable> },
    /// The pages of such a table have another owner now, or went back to the pool.
    Returned { route: Route },
    /// A prefill group in another process begins this life, or (`None`) is gone.
    Peer { life: Option<Incarnation> },
}

fn slot(life: PageLife, capability: Capability) -> PageSlot {
    PageSlot { page: life.page, generation: life.generation, tag: capability.tag() }
}

fn slots(table: &OutboundTable) -> Vec<PageSlot> {
    table.pages().map(|(life, capability, _)| slot(life, capability)).collect()
}

fn held_by(slot: &PageSlot) -> PageRef {
    PageRef { page: slot.page.0, tag: slot.tag }
}

/// Tags and digests of pages as they lie in memory at this moment, in the order of the sequence. A page that is held by
/// somebody else by now has no tag and nobody's digest.
pub(crate) fn measure(
    compute: &impl Compute,
    key: &ContentKey,
    pages: &[PageSlot],
) -> (Vec<LandedPage>, Vec<ContentDigest>) {
    let mut totals = ContentTotals::default();
    let mut landed = Vec::with_capacity(pages.len());
    for (logical, page) in (0..).zip(pages) {
        let Ok(bytes) = compute.held_page(held_by(page)) else {
            landed.push(LandedPage { tag: 0, digest: ContentDigest::default() });
            continue;
        };
        if totals.pages.is_empty() {
            totals = ContentTotals::new(pages.len(), bytes.contents().count());
        }
        for (layer, slab) in (0..).zip(bytes.contents()) {
            totals.add(logical, layer, key.slab(logical, layer, slab));
        }
        landed.push(LandedPage { tag: bytes.tag().unwrap_or(0), digest: ContentDigest::default() });
    }
    for (page, digest) in landed.iter_mut().zip(&totals.pages) {
        page.digest = *digest;
    }
    (landed, totals.layers)
}

/// The life of one of these pages, as long as the ledger has it in this state; or, where pages are offered, as one that the
/// tenant's later requests may hold as well.
fn life_of(pool: &PagePool, pages: &[PageSlot], state: PageState, page: policies_domain::PageId) -> Option<Generation> {
    let held = pages.iter().find(|held| held.page == page)?;
    let label = pool.label(page)?;
    let shared = state == PageState::Outbound && label.state == PageState::Shared;
    ((label.state == state || shared) && label.generation == held.generation).then_some(label.generation)
}

/// Takes pages out of use, but for those that are somebody else's by now. Without suspicion, those that wait for their scrub
/// are left alone, too: the ledger frees none that anybody may touch.
fn quarantine<C>(machine: &Machine<C>, pages: &[PageSlot], evidence: bool) {
    let reason = if evidence { QuarantineReason::VerifyFailed } else { QuarantineReason::Timeout };
    for page in pages {
        let label = machine.pool.label(page.page);
        // A shared page is not written, and is free only after whoever copies it: without suspicion nobody loses it.
        let held = |label: &PageLabel| evidence || !matches!(label.state, PageState::Draining | PageState::Shared);
        if label.filter(held).is_some_and(|label| label.generation == page.generation) {
            machine.pool.quarantine(page.page, reason);
        }
    }
}
