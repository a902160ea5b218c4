//! Faults that a test plants. Compiled only with the feature `fault-injection`, which no shipped binary has.

use policies_domain::{Label, TenantId};
use std::sync::{Arc, Mutex, PoisonError};

/// A wrong entry in the first place of the block table of every request of `reader`, taken from another tenant's
/// running request. Nothing happens while no other tenant has a request running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The whole capability: the kernel's tag check passes, as it would if the allocator had given the page away twice.
    ForeignCapability {
        /// Whose requests are hit.
        reader: TenantId,
    },
    /// Only the page's index, after the trace was taken, as a corrupted upload of the block table would be.
    ForeignPageIndex {
        /// Whose requests are hit.
        reader: TenantId,
    },
}

/// The faults that are planted now; shared with the engine's handle.
#[derive(Clone, Default)]
pub(crate) struct Planted(Arc<Mutex<Vec<Fault>>>);

impl Planted {
    pub(crate) fn set(&self, faults: Vec<Fault>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    pub(crate) fn fault_for(&self, label: Label) -> Option<Fault> {
        let faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        faults.iter().copied().find(|fault| {
            let (Fault::ForeignCapability { reader } | Fault::ForeignPageIndex { reader }) = fault;
            Label::of(*reader) == label
        })
    }
}
