//! The audit log: entries in, receipts out.
#![forbid(unsafe_code)]

mod config;
mod log;

pub use audit_provenance::{Released, Violation};
pub use config::{AuditConfig, OPEN_REQUESTS_MAX, QUEUE_MAX};
pub use log::{
    AppendError, AuditLog, IncidentId, LogHealth, OpenEntry, OpenLogError, Outcome, ReceiptError, RequestFacts,
    SealReason, Sealed,
};
