//! What a witness signs and what it refuses.

use crate::store::{Store, StoreError};
use audit_tlog::{
    AddCheckpoint, Checkpoint, CheckpointError, Cosigner, CosignerKey, VerifierKey, check_consistency, origin_of,
};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Logs that one witness follows.
pub const LOGS_MAX: usize = 1_024;
/// Keys of one log: the former and the next one, while it changes.
const KEYS_OF_A_LOG_MAX: usize = 2;

/// A witness with its memory.
pub struct Witness {
    cosigner: Cosigner,
    store: Store,
    /// By origin.
    logs: BTreeMap<String, Followed>,
}

struct Followed {
    /// One; two while the log changes its key.
    keys: Vec<VerifierKey>,
    /// Who has a say besides.
    examiner: Option<Box<dyn Examine>>,
    /// SHA-256 of the origin, hexadecimal: the name of its file, and of its place on the network.
    origin_hash: String,
    /// Held from the check until the new state is on the device, so that no two requests are checked against one state.
    latest: Mutex<Option<Seen>>,
}

/// Whoever looks into a log before its checkpoints are cosigned.
pub trait Examine: Send + Sync {
    /// Looks at everything below this checkpoint, and at `note`, which is it with whatever signatures it came with. Blocks.
    ///
    /// # Errors
    /// [`Examined`].
    fn examine(&self, checkpoint: &Checkpoint, note: &[u8]) -> Result<(), Examined>;
}

/// Why a checkpoint is not cosigned, for the log's operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Examined {
    /// It must not be.
    Refused(String),
    /// It could not be looked at now.
    Unable(String),
}

struct Seen {
    checkpoint: Checkpoint,
    /// The log's signed note, with this witness's cosignature.
    note: String,
}

/// The answer to `add-checkpoint`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// 200: the cosignature, a signature line.
    Cosigned(String),
    /// 400: not a request, or one that contradicts itself.
    Malformed(&'static str),
    /// 403: not signed by the log's key.
    NotSigned,
    /// 404: not a log that this witness follows.
    UnknownLog,
    /// 409: the old size is not that of the latest checkpoint that was cosigned.
    OtherSize(u64),
    /// 422: the tree does not continue the one that was seen.
    Inconsistent(&'static str),
    /// 422: whoever looks into the log says that it must not be cosigned.
    Refused(String),
    /// 500: the witness could not keep what it would have signed, so it did not sign.
    Failed,
}

/// Why a witness did not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenWitnessError {
    /// The folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// More logs than [`LOGS_MAX`].
    #[error("{logs} logs are more than a witness follows, {LOGS_MAX} at most")]
    TooMany {
        /// How many.
        logs: usize,
    },
    /// A log is listed with the same key twice, or with more than two keys.
    #[error("`{origin}` is listed twice with one key, or with more than {KEYS_OF_A_LOG_MAX} keys")]
    Twice {
        /// Its origin.
        origin: String,
    },
    /// What was kept for a log is not what this witness signed: the file is damaged, or the log's key was exchanged.
    #[error("what was kept of `{origin}` is damaged, or the log has another key: {source}")]
    Damaged {
        /// The log's origin.
        origin: String,
        /// What is wrong.
        source: CheckpointError,
    },
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Witness({}, {} logs)", self.cosigner.verifier_key(), self.logs.len())
    }
}

impl Witness {
    /// Opens a folder that [`crate::make_key`] made, to follow these logs. A key's name is its log's origin. Two keys of one log
    /// are its former key and its next one, in this order, while it changes: a checkpoint that either has signed is its, until one
    /// was seen that the next one has signed. From then on the next one must have.
    ///
    /// # Errors
    /// [`OpenWitnessError`].
    pub fn open(dir: &Path, keys: Vec<VerifierKey>) -> Result<Self, OpenWitnessError> {
        if keys.len() > LOGS_MAX {
            return Err(OpenWitnessError::TooMany { logs: keys.len() });
        }
        let (store, cosigner) = Store::open(dir)?;
        let mut keys_of: BTreeMap<String, Vec<VerifierKey>> = BTreeMap::new();
        for key in keys {
            let of = keys_of.entry(key.name().to_owned()).or_default();
            // The same twice says nothing, and no log has three at a time.
            if of.contains(&key) || of.len() >= KEYS_OF_A_LOG_MAX {
                return Err(OpenWitnessError::Twice { origin: key.name().to_owned() });
            }
            of.push(key);
        }
        let mut logs = BTreeMap::new();
        for (origin, keys) in keys_of {
            let origin_hash = hex::encode(Sha256::digest(&origin));
            let kept = store.latest(&origin_hash)?;
            let latest = kept.map(|note| seen(note, &keys, &cosigner.verifier_key())).transpose();
            let latest = latest.map_err(|source| OpenWitnessError::Damaged { origin: origin.clone(), source })?;
            let followed = Followed { keys, examiner: None, origin_hash, latest: Mutex::new(latest) };
            logs.insert(origin, followed);
        }
        Ok(Self { cosigner, store, logs })
    }

    /// From here on checkpoints of this log are cosigned only after `examiner` has looked at them. `false`: it is not followed.
    pub fn examine(&mut self, origin: &str, examiner: Box<dyn Examine>) -> bool {
        let log = self.logs.get_mut(origin);
        log.map(|log| log.examiner = Some(examiner)).is_some()
    }

    /// The key with which its cosignatures are checked.
    #[must_use]
    pub fn verifier_key(&self) -> CosignerKey {
        self.cosigner.verifier_key()
    }

    /// Checks a checkpoint against what was seen of its log, and cosigns it. Blocks: what is signed is on the device
    /// before it returns.
    pub fn add_checkpoint(&self, body: &[u8], unix_seconds: u64) -> Answer {
        let Ok(request) = AddCheckpoint::parse(body) else { return Answer::Malformed("not an add-checkpoint request") };

        // "If the checkpoint origin is unknown, the witness MUST respond with 404."
        let log = origin_of(&request.checkpoint).and_then(|origin| self.logs.get(origin));
        let Some(log) = log else { return Answer::UnknownLog };

        // "... 403 if no signature from a trusted key is present, or one fails to verify." Other signatures are ignored.
        let (checkpoint, own_note) = match Checkpoint::open_under(request.checkpoint.as_bytes(), &log.keys) {
            Ok(opened) => opened,
            Err(CheckpointError::Signature | CheckpointError::Origin) => return Answer::NotSigned,
            Err(_) => return Answer::Malformed("not a checkpoint of three lines"),
        };

        // "The old size MUST be equal to or lower than the checkpoint size."
        if request.old_size > checkpoint.size {
            return Answer::Malformed("the old size is larger than the checkpoint's");
        }

        // From here on nobody else is answered about this log.
        let mut latest = log.latest.lock().unwrap_or_else(PoisonError::into_inner);

        // A tree that continues one with a newer key's name has that key's name, too: the former one alone signs it no more.
        let newest = |note: &str| log.keys.iter().rposition(|key| Checkpoint::open(note.as_bytes(), key).is_ok());
        if latest.as_ref().is_some_and(|seen| newest(&own_note) < newest(&seen.note)) {
            return Answer::NotSigned;
        }

        // "The witness MUST check that the old size matches the size of the latest checkpoint it cosigned."
        let old_size = latest.as_ref().map_or(0, |seen| seen.checkpoint.size);
        if request.old_size != old_size {
            return Answer::OtherSize(old_size);
        }

        // "A checkpoint of size zero MUST have the root hash of the empty tree."
        let empty = audit_tlog::Edge::new().root();
        if checkpoint.size == 0 && checkpoint.root != empty {
            return Answer::Inconsistent("the empty tree has another root hash");
        }

        // "If the old size matches the checkpoint size, the witness MUST check that the root hashes are also identical."
        if let Some(seen) = latest.as_ref()
            && seen.checkpoint.size == checkpoint.size
            && seen.checkpoint.root != checkpoint.root
        {
            self.keep_evidence(log, seen, &own_note);
            return Answer::Inconsistent("another tree of this size was seen");
        }

        // "The consistency proof lines MUST encode a Merkle Consistency Proof from the old size to the checkpoint size."
        let old_root = latest.as_ref().map_or(empty, |seen| seen.checkpoint.root);
        if check_consistency(&request.proof, checkpoint.size, checkpoint.root, old_size, old_root).is_err() {
            return Answer::Inconsistent("the proof does not lead from the tree that was seen to this one");
        }

        if let Some(examiner) = &log.examiner
            && let Err(reason) = examiner.examine(&checkpoint, request.checkpoint.as_bytes())
        {
            let (origin, size) = (&checkpoint.origin, checkpoint.size);
            return match reason {
                Examined::Refused(reason) => {
                    tracing::error!(origin, size, reason, "not cosigned");
                    Answer::Refused(reason)
                }
                Examined::Unable(reason) => {
                    tracing::warn!(origin, size, reason, "not cosigned now");
                    Answer::Failed
                }
            };
        }

        // "The witness MUST persist the new checkpoint before responding." What is kept is what was signed, with the two
        // signatures and nobody else's.
        let Ok(line) = self.cosigner.cosign(&checkpoint, unix_seconds) else {
            tracing::error!(origin = checkpoint.origin, "cannot sign: the system's clock shows no time");
            return Answer::Failed;
        };
        let note = own_note + &line;
        if let Err(error) = self.store.keep(&log.origin_hash, &note) {
            tracing::error!(origin = checkpoint.origin, %error, "not signed: what would be signed cannot be kept");
            return Answer::Failed;
        }
        *latest = Some(Seen { checkpoint, note });
        Answer::Cosigned(line)
    }

    /// The latest cosigned checkpoint of the log whose origin has this hash, with both signatures.
    #[must_use]
    pub fn checkpoint(&self, origin_hash: &str) -> Option<String> {
        let log = self.logs.values().find(|log| log.origin_hash == origin_hash)?;
        log.latest.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|seen| seen.note.clone())
    }

    /// Two trees of one size under one key: with that, anybody can be shown what the log did.
    fn keep_evidence(&self, log: &Followed, seen: &Seen, other: &str) {
        let origin = seen.checkpoint.origin.as_str();
        match self.store.keep_evidence(&log.origin_hash, &seen.note, other) {
            Ok(path) => {
                tracing::error!(origin, size = seen.checkpoint.size, evidence = %path.display(), "the log has two histories");
            }
            Err(error) => {
                tracing::error!(origin, size = seen.checkpoint.size, %error, "the log has two histories; not kept");
            }
        }
    }
}

/// Reads back what was kept; both signatures must be there, the log's of one of its keys.
fn seen(note: Vec<u8>, log: &[VerifierKey], witness: &CosignerKey) -> Result<Seen, CheckpointError> {
    let (checkpoint, _) = Checkpoint::open_under(&note, log)?;
    witness.find(&checkpoint, &note)?.ok_or(CheckpointError::Signature)?;
    let note = String::from_utf8(note).map_err(|_| CheckpointError::Form)?;
    Ok(Seen { checkpoint, note })
}
