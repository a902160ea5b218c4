//! The audit log: entries in, receipts out.
//!
//! [`AuditLog::open_request`] makes a request durable before anything is sent; [`OpenEntry`] lets each step through the
//! provenance gate and chains what leaves; sealing it ends the record. One thread numbers and commits entries in groups
//! (`sequence.rs` is the story), another publishes them as C2SP tiles with a signed checkpoint, from which receipts are
//! made, and has it cosigned by witnesses. The log holds commitments and never content. After any fault it stops, and the
//! next start recovers.
#![forbid(unsafe_code)]

// The disk of the tests says `audit_log`, from outside and, in the tests of the index, from inside.
#[cfg(test)]
extern crate self as audit_log;

mod blast_radius;
mod clock;
mod config;
mod consistency;
mod cosign;
mod evidence;
mod fault;
mod incidents;
mod index;
mod keeping;
mod keys;
mod lag;
mod log;
mod mailbox;
mod open_entry;
mod own_entries;
mod publish;
mod queue;
mod receipt;
mod recover;
mod replayed;
mod report_key;
mod retention;
mod rotation;
mod segment;
mod self_tests;
mod sequence;
mod signer;
mod slot;
mod storage;
#[cfg(test)]
#[path = "../tests/story/mod.rs"]
mod story;
mod trace_file;
mod witness;

pub use audit_provenance::{
    ActorRef, AuditVerdict, Containment, CosignerLag, CosignerRole, DetectorTrial, EngineFaultClass, Handover,
    Incident, IncidentClass, IncidentMoveError, IncidentStage, IncidentState, IsolationAudit, Leg, Released,
    ReleasedSteps, ReplayOutcome, ReplayTime, SealReason, SelfTest, Violation,
};
pub use audit_provenance::{EpochKey, ErasureAt, ErasureBasis, Held, Hold, HoldReason, KeepingError};
pub use audit_provenance::{PageClass, PageRun, TenantRef};
pub use audit_tlog::{CosignerKey, Hash};
pub use blast_radius::{
    BlastRadius, BlastRadiusError, BlastRadiusQuery, HOPS_MAX, LISTED_MAX, LIVES_MAX, Listed, ROWS_MAX, SHOWN_MAX,
    SharedLife, Suspect, Touched, Unknown, blast_radius,
};
pub use clock::{Clock, SystemClock};
pub use config::{AuditConfig, OPEN_REQUESTS_MAX, QUEUE_MAX};
pub use consistency::ConsistencyError;
pub use evidence::{EvidenceError, EvidenceQuery, Gathered, Proven, STATED_MAX, SelfTestsFound, gather_evidence};
pub use fault::{LogFault, OpenLogError};
pub use incidents::{Detected, IncidentEntry, IncidentMove, IncidentReport, IncidentSide, MovedAt, REPORTED_MAX};
pub use index::{IndexHealth, IndexStore, LookupError, PageReaders};
pub use keeping::{EraseKey, HoldId, PlaceHold};
pub use keys::TenantNames;
pub use log::{AppendError, AuditLog, IncidentId, LogHealth, Recorded, RequestFacts};
pub use open_entry::{OpenEntry, Outcome, Refused, Sealed};
pub use own_entries::{OWN_ENTRIES_MAX, OwnEntries, OwnEntriesError, OwnEntriesQuery, OwnEntry};
pub use receipt::ReceiptError;
pub use replayed::Replayed;
pub use report_key::ReportKey;
pub use rotation::{RotateKeyError, RotatedKey, drop_former_key, rotate_key};
pub use signer::SignerPlace;
pub use storage::{FolderStorage, Storage, StoredFile};
pub use witness::{
    Lag, WITNESS_ANSWER_BYTES_MAX, WITNESSES_MAX, Witness, WitnessAnswer, WitnessHealth, WitnessPolicy,
    WitnessTransport,
};
