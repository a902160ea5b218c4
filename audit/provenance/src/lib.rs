//! Is every page that a response read allowed to reach its reader, and how is that written down?
//!
//! [`Gate`] decides, step by step, before anything is sent. [`Entry`] is what the log keeps of it, byte for byte;
//! `audit-log` writes entries, `audit-verify` reads them, and both use the codec of this crate. Nothing here does I/O.
#![forbid(unsafe_code)]

mod cbor;
mod commitment;
mod disclosure;
mod entry;
mod fault;
mod gate;
mod incident_state;
mod isolation_audit;
mod keeping;
mod key_rotation;
mod lag;
mod released;
mod replay;
mod report_key;
mod self_test;
mod trace;

pub use cbor::DecodeError;
pub use commitment::{ChunkChain, Commitment, Field, Salt};
pub use disclosure::{Disclosure, DisclosureVersion, Openings};
pub use entry::{
    Body, Coverage, ENTRY_BYTES_MAX, Entry, EntryVersion, Handover, Head, Opened, SCHEMA, SealReason, Sealing,
    TenantLink, TenantRef, determining_digest,
};
pub use fault::{EngineFault, EngineFaultClass, Incident, IncidentClass};
pub use gate::{Gate, Leg, PageCounts, Violation};
pub use incident_state::{ActorRef, Containment, IncidentLife, IncidentMoveError, IncidentStage, IncidentState};
pub use isolation_audit::{AuditVerdict, IsolationAudit};
pub use keeping::{
    EpochKey, Erased, Erasure, ErasureAt, ErasureBasis, Held, Hold, HoldReason, Keeping, KeepingError, Prune, Release,
};
pub use key_rotation::{KeyRotation, KeyRotationStage};
pub use lag::{CosignerLag, CosignerRole};
pub use released::{Released, ReleasedSteps};
pub use replay::{Replay, ReplayOutcome, ReplayTime};
pub use report_key::{REPORT_KEY_PURPOSE, report_key_name, report_key_text};
pub use self_test::{DETECTORS_MAX, DetectorTrial, SelfTest};
pub use trace::{ChunkRun, ChunkRuns, PageClass, PageRecord, PageRun, TRACE_RUNS_MAX, Trace};
