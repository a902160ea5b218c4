//! Blast radius: which responses can something suspect have touched, with the evidence.
//!
//! Given a page, a time, a tenant, a build or a request, the log's own files say which responses had to do with it: those
//! that are suspect themselves, and those that read a page which a suspect response held. The folder is only read, while a
//! gateway may write to it, and no index is asked: every entry up to the published checkpoint is hashed, and the answer
//! counts only if all of them together have the root that the log signed. So nobody is left out, and whatever is not known
//! is counted: responses whose trace is gone, and requests that have not ended.

pub(crate) mod files;
mod lives;
mod passes;
#[cfg(test)]
mod tests;

use audit_provenance::{DecodeError, Entry, PageRun, SealReason, TenantRef};
use audit_tlog::{CHECKPOINT_BYTES_MAX, Checkpoint, CheckpointError, KeyError, VerifierKey};
use files::Folder;
use passes::Scan;
use policies_domain::{Digest, Generation, PageId, RequestId};
use std::io::{self, Read as _};
use std::path::Path;

/// Rows of one answer; more are counted.
pub const ROWS_MAX: usize = 1_000_000;
/// Lives of pages that may be suspect at once.
pub const LIVES_MAX: usize = 4_000_000;
/// How often suspicion is followed from response to page to response.
pub const HOPS_MAX: u32 = 32;
/// Entries of a kind that are named; more are counted.
pub const LISTED_MAX: usize = 1_000;
/// Lives that a row names, readers and tenants that a life names; more are counted.
pub const SHOWN_MAX: usize = 16;

/// What is suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspect {
    /// A page, in one of its lives or in all of them.
    Page {
        /// The page.
        page: PageId,
        /// The life; all when it is `None`.
        generation: Option<Generation>,
    },
    /// Whatever was served at some moment of this time, in microseconds since 1970, both ends included.
    Time {
        /// From here on.
        first_us: u64,
        /// Up to here.
        last_us: u64,
    },
    /// All of a tenant.
    Tenant(TenantRef),
    /// Whatever this build of the program served.
    Build(Digest),
    /// One request.
    Request(RequestId),
}

/// A question.
#[derive(Debug, Clone, Copy)]
pub struct BlastRadiusQuery {
    /// What is suspect.
    pub suspect: Suspect,
    /// Whether who read a suspect page makes its other pages suspect, and so on.
    pub transitive: bool,
    /// Whether pages that an operator declared everybody's are followed. They were computed before the first request, and
    /// no request writes to one.
    pub through_public: bool,
    /// Threads that read.
    pub threads: usize,
}

/// A response that could have been touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// Index of its sealed entry.
    pub index: u64,
    /// That entry's leaf hash.
    pub leaf: Digest,
    /// The request.
    pub request: RequestId,
    /// Index of its opened entry.
    pub opened_index: u64,
    /// Whose it is.
    pub tenant: TenantRef,
    /// When it was sealed, in microseconds since 1970.
    pub sealed_us: u64,
    /// How it ended.
    pub reason: SealReason,
    /// Whether it is suspect itself, and not only through pages.
    pub direct: bool,
    /// Payloads that were sent.
    pub payloads: u64,
    /// Tokens that were sampled.
    pub completion_tokens: u64,
    /// Payload bytes that had left, where an incident or a fault of the request says so; no other entry does.
    pub bytes_released: Option<u64>,
    /// The suspect lives of pages that it read, [`SHOWN_MAX`] of them.
    pub pages: Vec<PageRun>,
    /// How many there are.
    pub pages_count: u64,
}

/// A suspect life of a page that more than one response read, or that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLife {
    /// The page.
    pub page: PageId,
    /// Its life.
    pub generation: Generation,
    /// Responses that read it.
    pub readers_count: u64,
    /// The sealed entries of the first of them.
    pub readers: Vec<u64>,
    /// Whose they are, [`SHOWN_MAX`] at most.
    pub tenants: Vec<TenantRef>,
}

/// Entries of a kind: how many, and the first of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// All.
    pub count: u64,
    /// [`LISTED_MAX`] at most.
    pub first: Vec<u64>,
}

impl Listed {
    fn push(&mut self, index: u64) {
        self.count += 1;
        if self.first.len() < LISTED_MAX {
            self.first.push(index);
        }
    }
}

/// What the log does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unknown {
    /// Sealed after a crash: what they read and sent is not known.
    pub crashed: Listed,
    /// Their trace was dropped or damaged: which pages they read is not known.
    pub trace_gone: Listed,
    /// The trace beside the log is another than the one that the entry commits to.
    pub trace_changed: Listed,
    /// Opened, and not sealed under this checkpoint.
    pub in_flight: Listed,
    /// Of the suspect responses themselves, those whose pages are not known: what they shared is not in the answer.
    pub suspects_without_pages: u64,
    /// Pages of everybody's that suspect responses read and that were not followed.
    pub public_pages: u64,
}

/// The answer.
#[derive(Debug, Clone)]
pub struct BlastRadius {
    /// The checkpoint that all entries were compared with.
    pub checkpoint: Checkpoint,
    /// In the order of their sealed entries.
    pub rows: Vec<Touched>,
    /// Responses beyond [`ROWS_MAX`].
    pub rows_left_out: u64,
    /// Requests that were asked for, ended or not.
    pub suspects_count: u64,
    /// Of all rows: suspect themselves.
    pub direct_count: u64,
    /// Tenants with rows.
    pub tenants: Vec<TenantRef>,
    /// Suspect lives that responses have in common.
    pub lives: Vec<SharedLife>,
    /// How often suspicion was followed through pages.
    pub hops: u32,
    /// Whether following it once more would change nothing; without `transitive` it was followed once.
    pub followed_to_the_end: bool,
    /// What is not known.
    pub unknown: Unknown,
    /// Entries and traces that were read.
    pub read: (u64, u64),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum BlastRadiusError {
    /// A file is missing, unreadable, too long or no regular file.
    #[error("`{path}`: {source}")]
    File {
        /// Relative to the log's folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// `log.vkey` is no verifier key.
    #[error("`log.vkey`: {0}")]
    Key(#[from] KeyError),
    /// The checkpoint is not the log's.
    #[error("`checkpoint`: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// An entry is not there, or is damaged.
    #[error("entry {index} is missing or damaged")]
    Missing {
        /// Its index.
        index: u64,
    },
    /// An entry is none.
    #[error("entry {index}: {source}")]
    Entry {
        /// Its index.
        index: u64,
        /// What is wrong.
        source: DecodeError,
    },
    /// The entries are not those that the log signed.
    #[error("the {size} entries do not have the root hash of the checkpoint")]
    Root {
        /// How many.
        size: u64,
    },
    /// More than fits in memory.
    #[error("more than {LIVES_MAX} lives of pages are suspect: ask for less")]
    TooManyLives,
    /// A thread ended.
    #[error("a thread that reads the log has ended")]
    Stopped,
}

/// Answers a question from a log's folder, which is only read. `progress` is told what is done, how far, and of how much.
///
/// # Errors
/// [`BlastRadiusError`]; an answer is never made of a part of the log.
pub fn blast_radius(
    dir: &Path,
    query: &BlastRadiusQuery,
    mut progress: impl FnMut(&'static str, u64, u64),
) -> Result<BlastRadius, BlastRadiusError> {
    let key = read_small(dir, "log.vkey")?;
    let key = VerifierKey::parse(String::from_utf8_lossy(&key).trim_end_matches('\n'))?;
    let checkpoint = Checkpoint::open(&read_small(dir, "checkpoint")?, &key)?;
    let folder = Folder::open(dir, checkpoint.size)?;
    let mut scan = Scan::new(&folder, query, &checkpoint);
    scan.suspects(&mut progress)?;
    scan.follow(&mut progress)?;
    scan.rows(&mut progress)?;
    Ok(scan.into_answer())
}

pub(crate) fn read_small(dir: &Path, path: &str) -> Result<Vec<u8>, BlastRadiusError> {
    let read = || {
        if !dir.join(path).metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut bytes = Vec::new();
        std::fs::File::open(dir.join(path))?.take(CHECKPOINT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > CHECKPOINT_BYTES_MAX { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
    };
    read().map_err(|source| BlastRadiusError::File { path: path.to_owned(), source })
}

/// Whether an opened entry is one that is asked for, its end aside.
fn is_suspect(suspect: &Suspect, entry: &Entry, opened: &audit_provenance::Opened) -> bool {
    match suspect {
        Suspect::Page { .. } => false,
        Suspect::Time { last_us, .. } => entry.head.wall_us <= *last_us,
        Suspect::Tenant(tenant) => entry.head.tenant.is_some_and(|link| link.tenant == *tenant),
        Suspect::Build(build) => opened.build == *build,
        Suspect::Request(request) => entry.head.uuid == request.bytes(),
    }
}

/// Whether a response that was opened in time had not ended before the time began.
fn lasted_until(suspect: &Suspect, sealed_us: u64) -> bool {
    match suspect {
        Suspect::Time { first_us, .. } => sealed_us >= *first_us,
        _ => true,
    }
}
