//! The words that every other crate speaks: who asks, what may flow where, what one engine step read and said.
//!
//! A leaf: no I/O, no async, no clock. Values that would need re-checking later (names, ids) can only be made
//! through a fallible `parse`, and values that grant something ([`Permit`]) only by the stage that decides it.
#![forbid(unsafe_code)]

mod canary;
mod custody;
mod ids;
mod label;
mod permit;
mod seal;
mod step;
mod text;

pub use canary::{Canary, Trial};
pub use custody::{
    CustodyAct, CustodyEvent, CustodyRecord, HolderId, Outcome, Owner, PageLife, QuarantineReason, SequenceId,
    TicketKind, TransferId,
};
pub use ids::{Digest, Generation, ModelName, PageId, ParseNameError, RequestId, TenantId, TenantName};
pub use label::Label;
pub use permit::{Permit, PolicyDecision, Principal};
pub use seal::{Binding, ConnectionId, Epoch, Layer, Origin, Seal, SealError, SealKey, Sealer, Verifier};
pub use step::{FinishReason, PageRead, PageTrace, Step};
pub use text::{Completion, Credential};
