//! Whoever is told what an engine does with its pages, past all that handles requests.

use policies_domain::{CustodyRecord, PageTrace, RequestId};

/// Is told on the thread that computes, in the order in which things happen, and must not make it wait.
///
/// Not told of what another process computes: see [`Split::Staged`](crate::Split::Staged).
pub trait Witness: std::fmt::Debug + Send + Sync {
    /// What happened to pages of a ledger whose first page has this number in all that others are told.
    fn custody(&self, first_page: u32, records: &[CustodyRecord]);

    /// A pass computed tokens of a request and read this, or the request goes on with these pages where another group had them: one
    /// of its steps, before anybody else is told of it.
    fn pass(&self, request: RequestId, trace: &PageTrace);
}
