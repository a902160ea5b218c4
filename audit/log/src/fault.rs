//! What ends a log: once memory may not match the disk any more, nothing is signed and the next start recovers.

use audit_provenance::{DecodeError, KeepingError};
use audit_tlog::{CheckpointError, KeyError, RotationError};
use std::io;

/// A fault that stops the log. A restart recovers what was committed; the cause has to be removed first.
#[derive(Debug, thiserror::Error)]
pub enum LogFault {
    /// The storage failed: disk full, device error, permission.
    #[error("could not {action} `{path}`: {source}")]
    Storage {
        /// What was tried.
        action: &'static str,
        /// On which file, relative to the log's folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// What was read back is not what was written.
    #[error("entry {index} read back from the segment is not the one written")]
    ReadBack {
        /// The entry.
        index: u64,
    },
    /// The wall clock does not run forwards.
    #[error("the clock shows {now_us} us, the last checkpoint was signed at {last_us} us")]
    Clock {
        /// What it shows.
        now_us: u64,
        /// What it showed.
        last_us: u64,
    },
    /// The commit slot on disk is not the one this writer left there.
    #[error("the commit slot was changed by somebody else")]
    SlotMoved,
    /// A checkpoint could not be signed.
    #[error("{0}")]
    Sign(CheckpointError),
    /// The published tree and the committed one differ: memory is damaged.
    #[error("the tree to be published at size {size} is not the committed one")]
    Root {
        /// Its size.
        size: u64,
    },
    /// A published file is there with other content.
    #[error("`{path}` is published with other content")]
    Conflict {
        /// The file.
        path: String,
    },
    /// An entry does not fit.
    #[error("an entry of {length} bytes does not fit")]
    EntryTooLong {
        /// Its length.
        length: usize,
    },
    /// The system has no random bytes.
    #[error("no random bytes")]
    Random,
    /// An incident was moved as it may not be, which is refused before: memory is damaged.
    #[error("an incident does not stand where its entries say")]
    Incident,
    /// What was held was destroyed, or what was erased was used, which is refused before: memory is damaged.
    #[error("what is held or erased is not what the entries say")]
    Keeping,
    /// A key was named as it may not be, which is refused before: memory is damaged.
    #[error("the keys of the log are not what its entries say")]
    Keys,
    /// A thread of the log ended where it should not.
    #[error("a thread of the log ended")]
    Stopped,
}

/// What an operator can do about a folder that does not fit together.
const RESTORE: &str = "restore the whole folder from a backup that is not older than its last published checkpoint, or \
                       move it away and begin a new log";

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {
    /// Another process, or another part of this one, writes to it.
    #[error("`{dir}` is in use by another writer")]
    Locked {
        /// The log's folder.
        dir: String,
    },
    /// The folder cannot be made or used.
    #[error("cannot use `{dir}`: {source}")]
    Folder {
        /// The log's folder.
        dir: String,
        /// What the system said.
        source: io::Error,
    },
    /// Writing or reading failed, or the clock is wrong.
    #[error(transparent)]
    Fault(#[from] LogFault),
    /// The origin cannot be a key's name, or a key file is damaged.
    #[error("`{path}`: {source}")]
    Key {
        /// The key file.
        path: String,
        /// What is wrong.
        source: KeyError,
    },
    /// A secret key file does not have the sum that binds it to this log and this name.
    #[error("`{path}` is damaged or belongs elsewhere: restore it from a backup")]
    KeyDamaged {
        /// The key file.
        path: String,
    },
    /// The program that signs for the log does not.
    #[error("the signer `{command}`: {reason}")]
    Signer {
        /// The program.
        command: String,
        /// What is wrong.
        reason: String,
    },
    /// There is a log, and its key is gone. A new key would be a new log.
    #[error("the log exists and `{path}` is missing: restore it from a backup")]
    KeyMissing {
        /// The key file.
        path: String,
    },
    /// The log has entries under a tenant's key, and the key is gone. A new key would not open them.
    #[error(
        "the log has entries under `{path}`, which is missing: restore it from a backup, or let two operators erase that \
         epoch (`bulkhead audit erase`)"
    )]
    TenantKeyLost {
        /// The key file.
        path: String,
    },
    /// The folder holds a log of another origin.
    #[error("the folder holds the log `{held}`, not `{wanted}`")]
    Origin {
        /// The origin of the key in the folder.
        held: String,
        /// The origin of the configuration.
        wanted: String,
    },
    /// No copy of the commit slot is whole, or the whole one contradicts itself.
    #[error("no copy in `slot` is whole: {RESTORE}")]
    Slot,
    /// A committed entry is damaged or missing.
    #[error("committed entry {index} is damaged or missing in `{path}`: {RESTORE}")]
    Entry {
        /// The entry.
        index: u64,
        /// The segment that holds it, or should.
        path: String,
    },
    /// A committed entry is not one that this program reads.
    #[error("committed entry {index} in `{path}`: {source}")]
    Decode {
        /// The entry.
        index: u64,
        /// The segment that holds it.
        path: String,
        /// What is wrong.
        source: DecodeError,
    },
    /// A committed entry destroys what was held, uses what was erased, or names what is not there.
    #[error("committed entry {index} in `{path}`: {source}")]
    Keeping {
        /// The entry.
        index: u64,
        /// The segment that holds it.
        path: String,
        /// What is wrong.
        source: KeepingError,
    },
    /// A committed entry names a key as it may not.
    #[error("committed entry {index} in `{path}`: {source}")]
    Rotation {
        /// The entry.
        index: u64,
        /// The segment that holds it.
        path: String,
        /// What is wrong.
        source: RotationError,
    },
    /// The signing key is not the one that the entries lead to, nor the one before that.
    #[error("the log's entries lead to the key {named}, and the folder has {held}: restore it from a backup")]
    KeyNotNamed {
        /// The key in the folder.
        held: String,
        /// The newest key that an entry names.
        named: String,
    },
    /// The key that is to take the log's key's place cannot.
    #[error("`{path}`: {source}")]
    NextKey {
        /// Its file.
        path: String,
        /// What is wrong.
        source: RotationError,
    },
    /// One rotation after the other: the former key of the last one is not dropped.
    #[error("a rotation to the key {next} has begun: drop the former key before the next one")]
    RotationOpen {
        /// The key that it is to.
        next: String,
    },
    /// There is no former key to drop: no rotation has begun, or the last one is finished.
    #[error("no rotation of the key has begun, or it is finished")]
    RotationNotBegun,
    /// There is no history that a rotation could be bound to.
    #[error("the log has no entry yet: start the gateway once before its key is changed")]
    RotationEmpty,
    /// Both keys must sign, and only the next one is there.
    #[error("the log's key is being changed, and its former key {former} is not in `keys`: restore it from a backup")]
    FormerKeyMissing {
        /// The former key.
        former: String,
    },
    /// The entries do not have the committed root hash.
    #[error("the {size} committed entries in `segments` do not have the root hash in `slot`: {RESTORE}")]
    Root {
        /// How many.
        size: u64,
    },
    /// The published checkpoint is damaged or somebody else's.
    #[error("the signed checkpoint in `{path}`: {source}")]
    Checkpoint {
        /// The file: the published checkpoint, or the slot.
        path: &'static str,
        /// What is wrong.
        source: CheckpointError,
    },
    /// The published checkpoint is newer than the committed state: the slot's newest copy is damaged, or the folder was
    /// rolled back. Which it was cannot be told from the folder alone, so nothing is continued.
    #[error(
        "`checkpoint` has {published} entries, and the newest whole copy in `slot` has {committed}: the slot is damaged \
         or the folder was rolled back; {RESTORE}"
    )]
    RolledBack {
        /// Entries under the checkpoint.
        published: u64,
        /// Entries committed.
        committed: u64,
    },
    /// The published checkpoint has another history.
    #[error("the published checkpoint of {size} entries has another root hash: the log was forked")]
    Forked {
        /// Its size.
        size: u64,
    },
    /// A witness says that it has cosigned a larger tree of this log: the folder was rolled back. A size is not signed, so
    /// the witness may be lying; then it is no witness for this log.
    #[error(
        "witness `{witness}` says that it has seen {theirs} entries of this log, and the folder has {ours}: the folder was \
         rolled back (restore its newest state), or the witness is wrong (ask whoever runs it for the checkpoint that it \
         has seen, and take it out of the configuration if there is none)"
    )]
    WitnessAhead {
        /// Its name.
        witness: String,
        /// Entries that it says it has seen.
        theirs: u64,
        /// Entries that are committed.
        ours: u64,
    },
    /// A witness has seen another tree under this log's key.
    #[error(
        "witness `{witness}` has seen another tree of {size} entries than the one that the folder's {ours} entries begin \
         with: the log was forked, two histories have its key"
    )]
    WitnessForked {
        /// Its name.
        witness: String,
        /// Size of the tree that it has seen.
        size: u64,
        /// Entries that are committed.
        ours: u64,
    },
    /// Too few witnesses could say that this is the newest state, and the configuration asks for them.
    #[error("{agreed} witnesses have confirmed that this log is the newest that they saw, {quorum} are required")]
    WitnessQuorum {
        /// How many did.
        agreed: usize,
        /// How many are required.
        quorum: usize,
    },
    /// A thread could not be started.
    #[error("cannot start the sequencer: {source}")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
}

/// Names the action and the file of a storage error.
pub(crate) fn storage(action: &'static str, path: &str) -> impl FnOnce(io::Error) -> LogFault {
    move |source| LogFault::Storage { action, path: path.to_owned(), source }
}
