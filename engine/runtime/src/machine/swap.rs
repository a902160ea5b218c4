//! Pages of requests that gave way, kept outside of the pool until their requests go on.
//!
//! They leave and come back as pages do that are handed from one group to another: copied under tickets, measured where they
//! lie, and given to their request in a new life when what came back is what left. Whose they are is kept beside them and
//! compared; a difference ends the request with an incident, and the pages are kept as evidence.

use super::{Machine, page_ref};
use crate::compute::Compute;
use crate::running::Running;
use crate::split::measure;
use engine_handoff::{Check, ContentDigest, ContentKey, HandoffKey, LandedPage, PageSlot};
use engine_kv::{BlockTable, Capability, InboundTable, PAGE_TOKENS};
use policies_domain::{HolderId, Label, Outcome, PageLife, QuarantineReason, RequestId, TicketKind, TransferId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zeroize::Zeroizing;

/// Room for pages outside of the pool.
pub(crate) struct Swap {
    key: ContentKey,
    room: Arc<Room>,
    /// Counts the copies, each of which is a transfer of its own in the ledger.
    copies: u32,
}

struct Room {
    bytes_max: usize,
    bytes: AtomicUsize,
}

/// A request's pages. Dropping it wipes them.
pub(crate) struct Swapped {
    request: RequestId,
    label: Label,
    /// Tokens whose keys and values are in the pages: the first ones of the request.
    pub(crate) tokens: usize,
    bytes: Zeroizing<Vec<u8>>,
    pages: Vec<LandedPage>,
    layers: Vec<ContentDigest>,
    room: Arc<Room>,
}

/// Why pages did not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwapInError {
    /// There are not enough free ones: the request is computed again.
    NoPages,
    /// What came back is not what left, or not this request's.
    Refused(Check),
}

impl Swap {
    /// For so many bytes, of pages with `content_bytes` of K and V in each layer, under a fresh secret. `None` when no digest is
    /// made for that.
    pub(crate) fn new(secret: [u8; 32], content_bytes: usize, bytes_max: usize) -> Option<Self> {
        let key = ContentKey::new(&HandoffKey::new(secret), content_bytes)?;
        Some(Self { key, room: Arc::new(Room { bytes_max, bytes: AtomicUsize::new(0) }), copies: 0 })
    }

    /// Another copy's number. Transfers of the handoff count from the other end.
    fn number(&mut self) -> Option<(TransferId, HolderId)> {
        self.copies = (self.copies + 1) % (TransferId::MAX / 2);
        let number = TransferId::MAX - self.copies;
        Some((TransferId::new(number)?, HolderId(u64::from(number))))
    }
}

impl Room {
    /// `false`: it is full.
    fn take(&self, bytes: usize) -> bool {
        let taken = |before: usize| before.checked_add(bytes).filter(|after| *after <= self.bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

impl Swapped {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl Drop for Swapped {
    fn drop(&mut self) {
        self.room.bytes.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
    }
}

impl fmt::Debug for Swapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Swapped({}, {} pages)", self.request, self.pages.len())
    }
}

impl<C: Compute> Machine<C> {
    /// From here on pages of requests that give way are kept, as far as there is room for them.
    pub(crate) fn keep_swapped(&mut self, secret: [u8; 32], bytes_max: usize) {
        self.swap = Swap::new(secret, self.compute.content_bytes(), bytes_max).filter(|_| bytes_max > 0);
    }

    /// Copies the beginning of what a request has computed, in whole pages, as far as there is time for so many bytes; all of
    /// it, or nothing, when `all` is set. `None`: there is nothing, no room, no time, or a page is out of use; then the request
    /// is computed again.
    pub(crate) fn swap_out(&mut self, request: &Running, bytes_max: usize, all: bool) -> Option<Swapped> {
        let (swap, table) = (self.swap.as_mut()?, request.block_table.as_ref()?);
        let mut tokens = table.tokens();
        let mut capabilities = Vec::new();
        table.capabilities(0, tokens, &mut capabilities);
        let page_bytes = self.compute.held_page(page_ref(*capabilities.first()?)).ok()?.all().len();
        let pages_max = bytes_max.checked_div(page_bytes)?;
        if capabilities.len() > pages_max {
            if all || pages_max == 0 {
                return None;
            }
            capabilities.truncate(pages_max);
            tokens = pages_max * PAGE_TOKENS;
        }
        let whole = capabilities.len().checked_mul(page_bytes)?;
        let (_, holder) = swap.number()?;
        if !swap.room.take(whole) {
            return None;
        }
        let bytes = Zeroizing::new(Vec::with_capacity(whole));
        let room = swap.room.clone();
        let (request, label) = (request.request, request.label);
        let mut swapped = Swapped { request, label, tokens, bytes, pages: Vec::new(), layers: Vec::new(), room };
        let mut slots = Vec::with_capacity(capabilities.len());
        for capability in capabilities {
            let held = self.pool.label(capability.page())?;
            // What is another's does not become this tenant's on its way back.
            if !held.domain.flows_to(label) {
                return None;
            }
            let generation = held.generation;
            let life = PageLife { page: capability.page(), generation };
            let ticket = self.pool.ticket(life, TicketKind::Read, holder).ok()?;
            let copied =
                self.compute.read_page(page_ref(capability)).map(|page| swapped.bytes.extend_from_slice(page.all()));
            ticket.settle(if copied.is_ok() { Outcome::Done } else { Outcome::Failed }).ok()?;
            copied.ok()?;
            slots.push(PageSlot { page: capability.page(), generation, tag: capability.tag() });
        }
        (swapped.pages, swapped.layers) = measure(&self.compute, &self.swap.as_ref()?.key, &slots);
        Some(swapped)
    }

    /// Gives a request its pages back, in new lives, when they are what left.
    ///
    /// # Errors
    /// [`SwapInError`]; no page is kept then, but for evidence.
    pub(crate) fn swap_in(&mut self, request: &Running, swapped: &Swapped) -> Result<BlockTable, SwapInError> {
        if swapped.label != request.label {
            return Err(SwapInError::Refused(Check::V3));
        }
        if swapped.request != request.request || swapped.pages.len() != swapped.tokens.div_ceil(PAGE_TOKENS) {
            return Err(SwapInError::Refused(Check::V4));
        }
        let swap = self.swap.as_mut().ok_or(SwapInError::NoPages)?;
        let (transfer, holder) = swap.number().ok_or(SwapInError::NoPages)?;
        let (compute, mut assigned) = (&mut self.compute, true);
        let assign = |capability: Capability| assigned &= compute.assign(page_ref(capability)).is_ok();
        let table = InboundTable::reserve(&self.pool, request.label, transfer, swapped.tokens, assign);
        assert!(assigned, "the pool and the store disagree about which pages exist");
        let table = table.map_err(|_| SwapInError::NoPages)?;
        let slot = |(life, capability): (PageLife, Capability)| PageSlot {
            page: life.page,
            generation: life.generation,
            tag: capability.tag(),
        };
        let slots: Vec<PageSlot> = table.pages().map(slot).collect();
        if !self.land_swapped(&slots, swapped, holder) {
            return Err(self.refuse_swapped(&slots));
        }
        let Some(swap) = &self.swap else { return Err(SwapInError::NoPages) };
        let (landed, layers) = measure(&self.compute, &swap.key, &slots);
        if (landed.as_slice(), layers.as_slice()) != (swapped.pages.as_slice(), swapped.layers.as_slice()) {
            return Err(self.refuse_swapped(&slots));
        }
        let (compute, mut carried) = (&mut self.compute, landed.iter());
        let committed = table.commit(swapped.tokens, |before, now| {
            let carried = carried.next().map_or(0, |page| page.tag);
            compute.relabel(page_ref(before), carried, now.tag()).is_ok()
        });
        committed.map_err(|_| SwapInError::Refused(Check::V9))
    }

    /// Copies the bytes into the pages that wait for them.
    fn land_swapped(&mut self, slots: &[PageSlot], swapped: &Swapped, holder: HolderId) -> bool {
        let page_bytes = swapped.bytes.len() / slots.len().max(1);
        slots.iter().zip(swapped.bytes.chunks(page_bytes.max(1))).all(|(slot, bytes)| {
            let life = PageLife { page: slot.page, generation: slot.generation };
            let Ok(ticket) = self.pool.ticket(life, TicketKind::Write, holder) else { return false };
            let page = engine_kernels::PageRef { page: slot.page.0, tag: slot.tag };
            let landed = self.compute.land(page, bytes).is_ok();
            ticket.settle(if landed { Outcome::Done } else { Outcome::Failed }).is_ok() && landed
        })
    }

    fn refuse_swapped(&self, slots: &[PageSlot]) -> SwapInError {
        for slot in slots {
            self.pool.quarantine(slot.page, QuarantineReason::VerifyFailed);
        }
        SwapInError::Refused(Check::V7)
    }
}

#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod tests;
