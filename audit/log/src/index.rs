//! Where entries are. Three parts know it, and one of them is never believed.
//!
//! The *outline* (`outline.rs`) is made of the entries themselves, at every start by the reading that recovery does in any
//! case: which requests each block of entries may have something of, in four bytes each, and what hashes the segments
//! must have there. The *tail* (`tail.rs`) holds the newest entries. The *store* (`store.rs`: B-trees in memory, or sled)
//! says at which entry exactly something lies, and which requests read a page; it is written behind the commits by its own
//! thread (`service.rs`). What the store says is looked up in the segments, and what it denies is believed where the outline
//! denies it too; otherwise the block that the outline names is read. So a store that lies, fails, panics, hangs or falls
//! behind costs time and nothing else, and one that was caught is made anew (`lookup.rs`).

mod disk;
mod lookup;
mod memory;
mod outline;
mod pages;
mod record;
mod service;
mod source;
mod store;
mod tail;
#[cfg(test)]
mod tests;

pub(crate) use lookup::{Lookup, RequestRecord, TraceAt};
pub use lookup::{LookupError, PageReaders};
pub use service::{IndexHealth, IndexStore};
pub(crate) use source::Known;

use audit_provenance::{Body, Entry, TenantRef};
use audit_tlog::Hash;
use policies_domain::{Digest, RequestId};
use std::collections::HashMap;

/// Entries that are indexed at a time: a store says something of whole blocks only. So many are read when a store does not
/// help, in a few milliseconds.
#[cfg(not(test))]
pub(crate) const BLOCK: u64 = 4_096;
/// Small in tests, so that a few requests fill one.
#[cfg(test)]
pub(crate) const BLOCK: u64 = 256;

/// A request that has no sealed entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenRequest {
    pub(crate) tenant: TenantRef,
    pub(crate) index: u64,
    pub(crate) leaf: Digest,
}

/// What is open while the entries are read in order.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests(HashMap<RequestId, OpenRequest>);

impl OpenRequests {
    /// Notes the next entry.
    pub(crate) fn note(&mut self, index: u64, leaf: Hash, entry: &Entry) {
        match (&entry.body, entry.head.tenant) {
            (Body::Opened(_), Some(link)) => {
                let open = OpenRequest { tenant: link.tenant, index, leaf: Digest(leaf.0) };
                self.0.insert(RequestId::from_bytes(entry.head.uuid), open);
            }
            (Body::Sealed(sealed), _) => {
                self.0.remove(&sealed.request);
            }
            _ => {}
        }
    }

    /// What stayed open, in the order of opening.
    pub(crate) fn into_sorted(self) -> Vec<(RequestId, OpenRequest)> {
        let mut open: Vec<_> = self.0.into_iter().collect();
        open.sort_by_key(|(_, request)| request.index);
        open
    }
}
