//! How a log is set up.

use crate::index::IndexStore;
use crate::signer::SignerPlace;
use crate::witness::WitnessPolicy;
use audit_provenance::Handover;
use policies_domain::Digest;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// Drafts that wait for the sequencer before new requests are refused: eight full batches.
pub const QUEUE_MAX: usize = 4_096;
/// Requests that may be open at once; each of them is owed a place for its last entries.
pub const OPEN_REQUESTS_MAX: usize = 16_384;
/// Where and how a log is kept.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    /// The log's folder. Made at first start, keys included; locked while the log is open.
    pub dir: PathBuf,
    /// The log's name in checkpoints, and the name of its key: `<host>/isolation/<half-year>`. No spaces, no plus.
    pub origin: String,
    /// Whether the folder's group may read what is published.
    pub group_may_read: bool,
    /// Where the key is that signs its checkpoints.
    pub signer: SignerPlace,
    /// Digest of the program that computes and serves; of the running executable when it is `None`.
    pub build: Option<Digest>,
    /// Whether the kernels compare page tags, as the entries' coverage then says.
    pub kernel_tag_check: bool,
    /// How the engine hands prompts' pages over, as the entries' coverage then says.
    pub handover: Handover,
    /// An idle log shows that it lives this often; never when it is `None`.
    pub heartbeat: Option<Duration>,
    /// See [`QUEUE_MAX`].
    pub queue_max: usize,
    /// Who cosigns its checkpoints.
    pub witnesses: WitnessPolicy,
    /// What its index is kept in.
    pub index: IndexStore,
    /// Traces are dropped, by whole files, when they are so many days old; never when it is `None`.
    pub retention_days: Option<NonZeroU32>,
}

impl AuditConfig {
    /// Defaults: the key in the log's folder, kernel tag check on, a heartbeat every ten seconds, the index in memory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, origin: impl Into<String>) -> Self {
        Self {
            dir: dir.into(),
            origin: origin.into(),
            group_may_read: false,
            signer: SignerPlace::File,
            build: None,
            kernel_tag_check: true,
            handover: Handover::None,
            heartbeat: Some(Duration::from_secs(10)),
            queue_max: QUEUE_MAX,
            witnesses: WitnessPolicy::default(),
            index: IndexStore::Memory,
            retention_days: None,
        }
    }
}
