//! Checks receipts and whole logs, offline: no server, no network, no key but the log's public one.
//!
//! It knows the formats (`audit-tlog`, `audit-provenance`) and nothing of the program that writes them, so that a fault
//! of the writer is not repeated by its checker.
#![forbid(unsafe_code)]

mod consistency;
mod file;
mod folder;
mod moment;
mod receipt;
mod response;
mod witnesses;

pub use audit_tlog::VerifierKey;
pub use consistency::{ConsistencyRefusal, ConsistencyReport, check_consistency};
pub use file::read_file;
pub use folder::{LogFollower, LogRefusal, LogReport, Taken, check_log};
pub use moment::rfc3339;
pub use receipt::{Evidence, ReceiptRefusal, ReceiptReport, ReplayAnswer, Unchecked, check_receipt, check_trace};
pub use response::{PayloadError, RESPONSE_BYTES_MAX, payloads};
pub use witnesses::{WitnessRefusal, Witnessed, Witnesses, WitnessesError};
