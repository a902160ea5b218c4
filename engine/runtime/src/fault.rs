//! Faults that a test plants. Compiled only with the feature `fault-injection`, which no shipped binary has.

use policies_domain::{Label, TenantId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What goes wrong with every request of `reader`. A wrong entry stands in the first place of the block table and is taken
/// from another tenant's running request; nothing happens while no other tenant has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The whole capability, and the custody log says so, too: what it would be if the allocator had given the page away
    /// twice. The kernel's tag check passes, and so does the comparison with the log.
    ForeignCapability {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// The whole capability, in the block table alone, as a scheduler that mixes up two requests would put it there.
    ForeignEntry {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// Only the page's index, after the trace was taken, as a corrupted upload of the block table would be.
    ForeignPageIndex {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// The reader's own first two pages, in each other's place, after the trace was taken. Needs nobody else, and a
    /// sequence of more than one page.
    SwappedPages {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// The reader's own first two pages, in each other's place, in the trace alone: what is written down is not what the
    /// kernels are given. Needs nobody else, and a sequence of more than one page.
    FalseTrace {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// The prompt's pages are freed as soon as they are offered, before anybody has fetched them.
    EarlyFree {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// Somebody who writes late under the tag of another life reaches a page that landed, after its bytes have come.
    LateWriter {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// One byte of a page's K and V is flipped on its way.
    FlippedByte {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// The prefill group seals its manifests with those of two handoffs exchanged: this tenant's and the next one's.
    SwappedManifests {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// The prefill group takes the request for the next tenant's.
    WrongDomain {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// The prefill group computes another prompt of the same length.
    OtherPrompt {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// The sampler takes the logits so many rows behind its own, as an index into a batch that has moved does; from the
    /// last row it wraps to the first.
    RowOffset {
        /// Whose requests are hit.
        reader: TenantId,
        /// How far.
        rows: usize,
        /// Rows of the batch, or of the array that the index is taken modulo.
        of: usize,
    },
    /// One logit, as weights that overflow or a broken kernel would give it. Needs nobody else.
    Logit {
        /// Whose requests are hit.
        reader: TenantId,
        /// In the place of the last logit: NaN or an infinity.
        value: f32,
    },
    /// The activations of the reader's row are another's of the pass when the head is computed: the logits are the other one's,
    /// and come with the reader's ticket.
    SwappedActivations {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// A little of another row's logits is added to the reader's, as an adapter that is not its own would add it.
    ForeignBias {
        /// Whose requests are hit.
        reader: TenantId,
    },
}

/// The faults that are planted now; shared with the engine's handle.
#[derive(Clone, Default)]
pub(crate) struct Planted {
    faults: Arc<Mutex<Vec<Fault>>>,
    unchecked: Arc<AtomicBool>,
    one_sided: Arc<AtomicBool>,
    frees_early: Arc<AtomicBool>,
    blinds_canaries: Arc<AtomicBool>,
}

impl Planted {
    /// The step loop compares nothing any more.
    pub(crate) fn uncheck(&self) {
        self.unchecked.store(true, Ordering::Relaxed);
    }

    pub(crate) fn unchecked(&self) -> bool {
        self.unchecked.load(Ordering::Relaxed)
    }

    /// Bytes of a handoff are written where they were going, whatever has become of the handoff. With `frees_early`, one
    /// that is given up does not wait for them.
    pub(crate) fn make_one_sided(&self, frees_early: bool) {
        self.one_sided.store(true, Ordering::Relaxed);
        self.frees_early.store(frees_early, Ordering::Relaxed);
    }

    pub(crate) fn frees_early(&self) -> bool {
        self.frees_early.load(Ordering::Relaxed)
    }

    pub(crate) fn one_sided(&self) -> bool {
        self.one_sided.load(Ordering::Relaxed)
    }

    /// What canaries read is their own, whatever they were to read.
    pub(crate) fn blind_canaries(&self, blind: bool) {
        self.blinds_canaries.store(blind, Ordering::Relaxed);
    }

    pub(crate) fn blinds_canaries(&self) -> bool {
        self.blinds_canaries.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, faults: Vec<Fault>) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// What is wrong is wrong where the block table is made, so that it is made anew.
    pub(crate) fn remakes_table(&self, label: Label) -> bool {
        matches!(
            self.fault_for(label),
            Some(Fault::ForeignCapability { .. } | Fault::ForeignEntry { .. } | Fault::FalseTrace { .. })
        )
    }

    /// The row whose logits a sampler takes.
    pub(crate) fn row_for(&self, label: Label, span: usize) -> usize {
        match self.fault_for(label) {
            Some(Fault::RowOffset { rows, of, .. }) => (span + rows) % of.max(1),
            _ => span,
        }
    }

    pub(crate) fn fault_for(&self, label: Label) -> Option<Fault> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.iter().copied().find(|fault| {
            let (Fault::ForeignCapability { reader }
            | Fault::ForeignEntry { reader }
            | Fault::ForeignPageIndex { reader }
            | Fault::SwappedPages { reader }
            | Fault::FalseTrace { reader }
            | Fault::EarlyFree { reader }
            | Fault::LateWriter { reader }
            | Fault::FlippedByte { reader }
            | Fault::SwappedManifests { reader }
            | Fault::WrongDomain { reader }
            | Fault::OtherPrompt { reader }
            | Fault::RowOffset { reader, .. }
            | Fault::SwappedActivations { reader }
            | Fault::ForeignBias { reader }
            | Fault::Logit { reader, .. }) = fault;
            Label::of(*reader) == label
        })
    }
}
