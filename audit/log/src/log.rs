//! The handle that the gateway holds.

use crate::AuditConfig;
use audit_provenance::{Gate, Released, Violation};
use policies_domain::{Digest, Permit, Principal, RequestId, Step};
use std::sync::Arc;

/// What a request is, as the log commits to it.
#[derive(Clone, Copy)]
pub struct RequestFacts<'a> {
    /// The request body as received.
    pub body: &'a [u8],
    /// Digest of the model file.
    pub model: Digest,
    /// Whether the response is a stream.
    pub stream: bool,
}

impl std::fmt::Debug for RequestFacts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RequestFacts({} bytes)", self.body.len())
    }
}

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealReason {
    /// The model ended its turn or a stop string was met.
    Stop,
    /// The token limit was reached.
    Length,
    /// The client went away, or the gateway gave up on it.
    Aborted,
    /// The engine failed.
    Error,
    /// An isolation fault stopped it.
    Isolation,
}

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended.
    pub reason: SealReason,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens sampled, as billed.
    pub completion_tokens: u64,
    /// Time in the queue, in microseconds.
    pub queued_us: u64,
    /// Time in prefill, in microseconds.
    pub prefill_us: u64,
    /// Time in decode, in microseconds.
    pub decode_us: u64,
}

/// A sealed response's place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Index of the sealed entry.
    pub index: u64,
    /// Its leaf hash.
    pub leaf_hash: Digest,
    /// Head of the chunk chain.
    pub chain_head: Digest,
    /// Payloads in the chain.
    pub chunks: u64,
}

/// An incident's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IncidentId(pub [u8; 16]);

impl std::fmt::Display for IncidentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&RequestId::from_bytes(self.0), f)
    }
}

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {}

/// Why an entry was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Too many entries wait, or too many requests are open.
    #[error("the audit log is busy, retry in {retry_after_ms} ms")]
    Busy {
        /// When it is worth another try.
        retry_after_ms: u64,
    },
    /// The log stopped for good after a fault; it needs a restart, and somebody to look at `reason`.
    #[error("the audit log has stopped: {reason}")]
    Failed {
        /// What happened first.
        reason: Arc<str>,
    },
    /// The log was shut down.
    #[error("the audit log is shut down")]
    Closed,
}

/// Why there is no receipt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// No such request of this tenant.
    #[error("no such request")]
    NotFound,
    /// The response is not sealed, or its checkpoint not published.
    #[error("not published yet, retry in {retry_after_ms} ms")]
    NotYet {
        /// When it is worth another try.
        retry_after_ms: u64,
    },
    /// What is stored does not verify, or could not be read.
    #[error("the stored log does not verify: {reason}")]
    Damaged {
        /// What did not.
        reason: Arc<str>,
    },
}

/// How the log does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHealth {
    /// Entries committed.
    pub size: u64,
    /// Entries under the published checkpoint.
    pub published: u64,
    /// Wall time of the last commit, in microseconds since 1970.
    pub committed_us: u64,
    /// Drafts that wait.
    pub queued: usize,
    /// Why the log stopped, when it did.
    pub failed: Option<Arc<str>>,
}

/// A log that is open for writing. Clones are handles of the same log.
#[derive(Clone, Debug)]
pub struct AuditLog;

impl AuditLog {
    /// Opens a log; makes one, keys included, where there is none; recovers what a crash left.
    ///
    /// # Errors
    /// [`OpenLogError`].
    pub fn open(_config: AuditConfig) -> Result<Self, OpenLogError> {
        Ok(Self)
    }

    /// Records a request. Durable when it returns: nothing may be sent before.
    ///
    /// # Errors
    /// [`AppendError`].
    ///
    /// # Cancel safety
    /// A dropped future leaves no open request behind: what was written is sealed as aborted.
    pub async fn open_request(&self, _permit: &Permit, _facts: RequestFacts<'_>) -> Result<OpenEntry, AppendError> {
        Err(AppendError::Closed)
    }

    /// The receipt of a request of this principal's tenant. Reads files: call it where blocking is allowed.
    ///
    /// # Errors
    /// [`ReceiptError`].
    pub fn receipt(&self, _principal: &Principal, _request: RequestId) -> Result<String, ReceiptError> {
        Err(ReceiptError::NotFound)
    }

    /// The verifier key line, as `log.vkey` in the log's folder holds it.
    #[must_use]
    pub fn verifier_key(&self) -> String {
        String::new()
    }

    /// How the log does.
    #[must_use]
    pub fn health(&self) -> LogHealth {
        LogHealth { size: 0, published: 0, committed_us: 0, queued: 0, failed: None }
    }

    /// Commits and publishes what waits, then ends. Blocks until it is done.
    pub fn shutdown(&self) {}
}

/// A request that is recorded and not sealed. Dropping it seals it as aborted, or as stopped by an isolation fault.
#[derive(Debug)]
pub struct OpenEntry {
    gate: Gate,
}

impl OpenEntry {
    /// Releases the step's text if everything that it read may reach the principal.
    ///
    /// # Errors
    /// The violation; nothing more may be sent, and [`OpenEntry::refuse`] writes the incident.
    pub fn check(&mut self, step: Step) -> Result<Released, Violation> {
        self.gate.check(step)
    }

    /// Notes a violation that the engine reported.
    pub fn fault(&mut self, violation: Violation) {
        self.gate.close(violation);
    }

    /// Adds a payload that goes out: an SSE event's data or a whole body, framing excluded.
    pub fn sent(&mut self, _payload: &[u8], _released: &Released) {}

    /// After a violation: writes the incident and seals. Durable when it returns.
    ///
    /// # Errors
    /// [`AppendError`].
    pub async fn refuse(self) -> Result<IncidentId, AppendError> {
        Err(AppendError::Closed)
    }

    /// Seals. Durable when it returns.
    ///
    /// # Errors
    /// [`AppendError`].
    pub async fn seal(self, _outcome: Outcome) -> Result<Sealed, AppendError> {
        Err(AppendError::Closed)
    }
}
