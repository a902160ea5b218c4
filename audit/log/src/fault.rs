//! What ends a log: once memory may not match the disk any more, nothing is signed and the next start recovers.

use audit_provenance::DecodeError;
use audit_tlog::{CheckpointError, KeyError};
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
    /// A thread of the log ended where it should not.
    #[error("a thread of the log ended")]
    Stopped,
}

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
    /// A secret key file is not 64 hexadecimal digits.
    #[error("`{path}` is not 64 hexadecimal digits")]
    SecretForm {
        /// The key file.
        path: String,
    },
    /// There is a log, and its key is gone. A new key would be a new log.
    #[error("the log exists and `{path}` is missing")]
    KeyMissing {
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
    /// No copy of the commit slot is whole.
    #[error("no copy of the commit slot is whole")]
    Slot,
    /// A committed entry is damaged or missing.
    #[error("committed entry {index} is damaged or missing")]
    Entry {
        /// The entry.
        index: u64,
    },
    /// A committed entry is not one that this program reads.
    #[error("committed entry {index}: {source}")]
    Decode {
        /// The entry.
        index: u64,
        /// What is wrong.
        source: DecodeError,
    },
    /// The entries do not have the committed root hash.
    #[error("the {size} committed entries do not have the committed root hash")]
    Root {
        /// How many.
        size: u64,
    },
    /// The published checkpoint is damaged or somebody else's.
    #[error("the published checkpoint: {source}")]
    Checkpoint {
        /// What is wrong.
        source: CheckpointError,
    },
    /// The published checkpoint is newer than the committed state: the folder was rolled back.
    #[error(
        "the published checkpoint has {published} entries, only {committed} are committed: the folder was rolled back"
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
