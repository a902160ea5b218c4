//! Where a request's entries are. In memory, rebuilt from the segments at every start: it can be slow, never wrong.

use crate::segment::TracePlace;
use crate::sequence::Placed;
use audit_provenance::{Body, Entry, TenantRef};
use audit_tlog::Hash;
use policies_domain::{Digest, RequestId};
use std::collections::{HashMap, HashSet};

/// A request's entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestRecord {
    pub(crate) tenant: TenantRef,
    pub(crate) opened: u64,
    pub(crate) sealed: Option<u64>,
    pub(crate) trace: Option<TracePlace>,
}

/// A request that has no sealed entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenRequest {
    pub(crate) tenant: TenantRef,
    pub(crate) index: u64,
    pub(crate) leaf: Digest,
}

/// All requests of the log. About 100 bytes each.
#[derive(Debug, Default)]
pub(crate) struct Index {
    requests: HashMap<RequestId, RequestRecord>,
    /// Tenants and epochs of opened entries: those whose commitment key was used.
    epochs: HashSet<(TenantRef, u64)>,
}

impl Index {
    /// Notes a committed entry.
    pub(crate) fn note(&mut self, index: u64, entry: &Entry, trace: Option<TracePlace>) {
        let Some(link) = entry.head.tenant else { return };
        match &entry.body {
            Body::Opened(opened) => {
                self.epochs.insert((link.tenant, opened.epoch));
                let request = RequestId::from_bytes(entry.head.uuid);
                let record = RequestRecord { tenant: link.tenant, opened: index, sealed: None, trace: None };
                self.requests.insert(request, record);
            }
            Body::Sealed(sealed) => {
                if let Some(record) = self.requests.get_mut(&sealed.request) {
                    record.sealed = Some(index);
                    record.trace = trace;
                }
            }
            Body::Genesis { .. }
            | Body::Incident(_)
            | Body::Fault(_)
            | Body::Audit(_)
            | Body::Replay(_)
            | Body::IncidentState(_)
            | Body::Recovered { .. }
            | Body::Heartbeat => {}
        }
    }

    /// Notes where the trace of a sealed request lies.
    pub(crate) fn note_trace(&mut self, request: RequestId, trace: TracePlace) {
        if let Some(record) = self.requests.get_mut(&request) {
            record.trace = Some(trace);
        }
    }

    /// Whether the log has an opened entry of the tenant under its key of the epoch.
    pub(crate) fn has_epoch(&self, tenant: TenantRef, epoch: u64) -> bool {
        self.epochs.contains(&(tenant, epoch))
    }

    pub(crate) fn get(&self, request: RequestId) -> Option<RequestRecord> {
        self.requests.get(&request).copied()
    }
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

/// Notes a whole committed batch.
pub(crate) fn note_batch(index: &mut Index, entries: &[Placed]) {
    for placed in entries {
        // INVARIANT: the sequencer encoded these bytes a moment ago; what does not decode could not be found again.
        if let Ok(entry) = Entry::decode(&placed.bytes) {
            index.note(placed.index, &entry, placed.trace);
        }
    }
}
