//! Checks receipts and whole logs, offline: no server, no network, no key but the log's public one.
//!
//! It knows the formats (`audit-tlog`, `audit-provenance`) and nothing of the program that writes them, so that a fault
//! of the writer is not repeated by its checker.
#![forbid(unsafe_code)]

mod bundle;
mod consistency;
mod file;
mod folder;
mod mine;
mod page;
mod receipt;
mod response;
mod rotation;
mod self_tests;
mod witnesses;

pub use audit_evidence::{BUNDLE_BYTES_MAX, Statement, rfc3339};
pub use audit_tlog::{PROOF_BYTES_MAX, VerifierKey};
pub use bundle::{BundleEvidence, BundleRefusal, BundleReport, BundleUnchecked, check_bundle, cosigners};
pub use consistency::{ConsistencyRefusal, ConsistencyReport, check_consistency};
pub use file::read_file;
pub use folder::{LogFollower, LogRefusal, LogReport, Taken, check_log};
pub use mine::{Held, HistoryFault, MINE_BYTES_MAX, MineRefusal, MineReport, check_mine};
pub use page::{VerifierPage, page};
pub use receipt::{Evidence, ReceiptRefusal, ReceiptReport, ReplayAnswer, Unchecked, check_receipt, check_trace};
pub use response::{PayloadError, RESPONSE_BYTES_MAX, payloads};
pub use rotation::{LogKeys, NamedKey, RotationRefusal, follow_rotations, named_keys};
pub use self_tests::SelfTests;
pub use witnesses::{WitnessRefusal, Witnessed, Witnesses, WitnessesError};
