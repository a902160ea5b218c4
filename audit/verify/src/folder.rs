//! A whole log, from its files: every entry hashed and read, every tile, the root; and what the entries say, one after the other
//! (`story.rs`).

mod story;

use crate::file::read_file;
use crate::rotation::{KeysNamed, NamedKey};
use crate::self_tests::SelfTests;
use crate::witnesses::{WitnessRefusal, Witnessed, Witnesses};
use audit_provenance::{Body, DecodeError, ENTRY_BYTES_MAX, Entry, IncidentMoveError, KeepingError, TenantRef};
use audit_tlog::{
    BundleError, CHECKPOINT_BYTES_MAX, Checkpoint, CheckpointError, Edge, Hash, RotationError, TILE_WIDTH, TilePath,
    VerifierKey, leaf_hash, parse_bundle,
};
use policies_domain::RequestId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, io};
use story::Story;

/// What a sound log holds.
#[derive(Debug, Clone)]
pub struct LogReport {
    /// Its checkpoint.
    pub checkpoint: Checkpoint,
    /// When witnesses were asked for: the entries that they have cosigned, which may be fewer than there are, and who did.
    pub witnessed: Option<(u64, Vec<Witnessed>)>,
    /// Who signed the checkpoint, of the keys that the entries name, the log's first one included.
    pub signed_by: Vec<NamedKey>,
    /// Entries of each kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Sealed entries by reason.
    pub reasons: BTreeMap<&'static str, u64>,
    /// What probes said of the isolation between tenants, by verdict.
    pub audits: BTreeMap<&'static str, u64>,
    /// What came of computing responses again, by outcome.
    pub replays: BTreeMap<&'static str, u64>,
    /// How often the gateway tried its own detectors.
    pub self_tests: SelfTests,
    /// Incidents by where they stand.
    pub incidents: BTreeMap<&'static str, u64>,
    /// Erased keys: how many, and of how many the log does not say that no file is left.
    pub erasures: (u64, u64),
    /// Holds that were not released.
    pub holds: u64,
    /// The first entry whose trace was not dropped because of its age.
    pub pruned_before: u64,
    /// Tenants with entries.
    pub tenants: u64,
    /// Requests without a sealed entry: in flight when the checkpoint was made.
    pub unsealed: u64,
    /// Pages read, over all responses: own, public, foreign.
    pub pages: [u64; 3],
    /// Time of the first and the last entry, in microseconds since 1970.
    pub wall_us: (u64, u64),
}

/// Why a log is refused.
#[derive(Debug, thiserror::Error)]
pub enum LogRefusal {
    /// A file is missing, unreadable, too long or no regular file.
    #[error("`{path}`: {source}")]
    File {
        /// Relative to the log's folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The checkpoint is malformed or not signed by the key.
    #[error("{0}")]
    Signature(#[from] CheckpointError),
    /// Not cosigned by enough of the witnesses.
    #[error("{0}")]
    Witnesses(#[from] WitnessRefusal),
    /// The witnesses have cosigned another tree than the one that the entries make.
    #[error("the witnesses have cosigned another tree of {size} entries than this log's: it has two histories")]
    WitnessedTree {
        /// Its size.
        size: u64,
    },
    /// A bundle is malformed.
    #[error("`{path}`: {source}")]
    Bundle {
        /// The bundle.
        path: TilePath,
        /// What is wrong.
        source: BundleError,
    },
    /// A tile does not hold the hashes of the entries.
    #[error("`{path}` does not hold the hashes of the entries")]
    Tile {
        /// The tile.
        path: TilePath,
    },
    /// The entries have another root.
    #[error("the {size} entries do not have the root hash of the checkpoint")]
    Root {
        /// How many.
        size: u64,
    },
    /// An entry is malformed.
    #[error("entry {index}: {source}")]
    Entry {
        /// Its index.
        index: u64,
        /// What is wrong.
        source: DecodeError,
    },
    /// The first entry is no genesis of this log, or a later one is.
    #[error("entry {index}: the first entry, and only it, is the genesis of this log and key")]
    Genesis {
        /// Its index.
        index: u64,
    },
    /// The given key is not the log's first one, and no entry names it.
    #[error("the given key is neither the log's first one nor one that its entries name")]
    UnnamedKey,
    /// An entry names a key as it may not.
    #[error("entry {index}: {source}")]
    Rotation {
        /// Its index.
        index: u64,
        /// What is wrong.
        source: RotationError,
    },
    /// An entry names a key that has not signed the checkpoint: whoever has only a key that was dropped has gone on.
    #[error("the checkpoint is not signed by the newest key that its entries name")]
    NewestKey,
    /// Both keys must sign, and only the next one has.
    #[error("the log's key is being changed, and the checkpoint is not signed by the former one as well")]
    FormerKey,
    /// A tenant's chain is not dense.
    #[error("entry {index} is number {number} of tenant {}, expected was {wanted}", hex::encode(tenant))]
    TenantNumber {
        /// Its index.
        index: u64,
        /// The tenant.
        tenant: TenantRef,
        /// The number found.
        number: u64,
        /// The number due.
        wanted: u64,
    },
    /// An entry does not name its tenant's previous one.
    #[error("entry {index} does not name the previous entry of tenant {}", hex::encode(tenant))]
    TenantLink {
        /// Its index.
        index: u64,
        /// The tenant.
        tenant: TenantRef,
    },
    /// An entry of a kind that belongs to a tenant has none.
    #[error("entry {index} has no tenant")]
    NoTenant {
        /// Its index.
        index: u64,
    },
    /// A request is opened twice.
    #[error("entry {index} opens request {request} a second time")]
    OpenedTwice {
        /// Its index.
        index: u64,
        /// The request.
        request: RequestId,
    },
    /// A sealed or incident entry has no open request.
    #[error("entry {index} belongs to no open request, or to another opened entry")]
    Pairing {
        /// Its index.
        index: u64,
    },
    /// A response was stopped for an isolation fault, and there is no incident; or the other way round.
    #[error("entry {index}: the end of the response and its incidents do not agree")]
    Incident {
        /// Its index.
        index: u64,
    },
    /// The engine failed a request, and its response claims another end.
    #[error("entry {index}: the engine failed the request, and the response does not end as an error")]
    Fault {
        /// Its index.
        index: u64,
    },
    /// An entry has an older format than one before it.
    #[error("entry {index} has an older format than the entries before it")]
    Version {
        /// Its index.
        index: u64,
    },
    /// A replay of a response that is not sealed, is another one, was replayed before or has no digest; or its incident and
    /// its outcome do not agree.
    #[error("entry {index}: the replay does not agree with the response or with its incidents")]
    Replay {
        /// Its index.
        index: u64,
    },
    /// An incident moves where it may not.
    #[error("entry {index}: {source}")]
    IncidentMove {
        /// Its index.
        index: u64,
        /// Why not.
        source: IncidentMoveError,
    },
    /// A state of an incident that was never detected, or twice one of the same id, or in another tenant's chain.
    #[error("entry {index} belongs to no incident, or to one of another tenant")]
    NoIncident {
        /// Its index.
        index: u64,
    },
    /// The lag of a cosigner stands in a tenant's chain.
    #[error("entry {index} says in a tenant's chain that a cosigner has fallen behind")]
    Lag {
        /// Its index.
        index: u64,
    },
    /// A self-test stands in a tenant's chain.
    #[error("entry {index} says in a tenant's chain what came of a self-test")]
    SelfTest {
        /// Its index.
        index: u64,
    },
    /// What was held is destroyed, an erased key is used, or what is said of keeping does not follow from what was said before.
    #[error("entry {index}: {source}")]
    Keeping {
        /// Its index.
        index: u64,
        /// Why not.
        source: KeepingError,
    },
    /// A page of another tenant was read, and the response was not stopped.
    #[error("entry {index}: {foreign} foreign pages were read and the response was not stopped")]
    Pages {
        /// Its index.
        index: u64,
        /// How many.
        foreign: u64,
    },
}

impl LogRefusal {
    /// The name of the check that failed.
    #[must_use]
    pub fn check(&self) -> &'static str {
        match self {
            Self::File { .. } => "files",
            Self::Signature(_) => "signature",
            Self::Witnesses(_) | Self::WitnessedTree { .. } => "witnesses",
            Self::Bundle { .. } | Self::Tile { .. } => "tiles",
            Self::Root { .. } => "root",
            Self::Entry { .. } | Self::Genesis { .. } | Self::Version { .. } => "entries",
            Self::UnnamedKey | Self::Rotation { .. } | Self::NewestKey | Self::FormerKey => "keys",
            Self::TenantNumber { .. } | Self::TenantLink { .. } | Self::NoTenant { .. } => "tenants",
            Self::OpenedTwice { .. } | Self::Pairing { .. } => "pairing",
            Self::Incident { .. } | Self::IncidentMove { .. } | Self::NoIncident { .. } => "incidents",
            Self::Lag { .. } | Self::SelfTest { .. } => "incidents",
            Self::Keeping { .. } => "keeping",
            Self::Replay { .. } => "replays",
            Self::Fault { .. } => "faults",
            Self::Pages { .. } => "pages",
        }
    }
}

/// Checks the log in a folder. `progress` is told how many entries are checked, and of how many.
///
/// # Errors
/// The first check that fails.
pub fn check_log(
    dir: &Path,
    key: &VerifierKey,
    witnesses: Option<&Witnesses>,
    mut progress: impl FnMut(u64, u64),
) -> Result<LogReport, LogRefusal> {
    let note = read(dir, "checkpoint", CHECKPOINT_BYTES_MAX)?;
    let checkpoint = open_followed(dir, &note, key)?;
    let witnessed = witnesses.map(|witnesses| witnessed(dir, key, &checkpoint, &note, witnesses)).transpose()?;
    let mut follower = LogFollower::new(dir, key);
    follower.story.expect(checkpoint.size);
    while follower.size() < checkpoint.size {
        follower.advance(checkpoint.size, |taken| match &witnessed {
            Some((older, _)) if older.size == taken.tree.size() && older.root != taken.tree.root() => {
                Err(LogRefusal::WitnessedTree { size: older.size })
            }
            _ => Ok(()),
        })?;
        progress(follower.size(), checkpoint.size);
    }
    for (level, number, hashes) in follower.edge.partial_tiles() {
        check_tile(dir, TilePath { level: Some(level), number, width: hashes.len() }, hashes)?;
    }
    if follower.root() != checkpoint.root {
        return Err(LogRefusal::Root { size: checkpoint.size });
    }
    // What was looked up in advance is not believed: these are the keys of the entries that were checked.
    if let Some(keys) = follower.story.keys.chain() {
        if !keys.has(key) {
            return Err(LogRefusal::UnnamedKey);
        }
        follower.is_signed(&note)?;
    }
    let signed_by = follower.story.keys.signers(&note);
    let mut report = follower.story.report(checkpoint);
    report.signed_by = signed_by;
    report.witnessed = witnessed.map(|(older, cosigned)| (older.size, cosigned));
    Ok(report)
}

/// A checkpoint under the given key, or under one that the log's entries lead to from it. Those entries are only looked up here;
/// whether they are in the log, and which of them counts, shows when all are checked.
fn open_followed(dir: &Path, note: &[u8], key: &VerifierKey) -> Result<Checkpoint, LogRefusal> {
    let refusal = match Checkpoint::open(note, key) {
        Err(refusal @ CheckpointError::Signature) => refusal,
        opened => return Ok(opened?),
    };
    let keys = look_ahead(dir, note);
    let after = keys.chain().and_then(|chain| chain.since(key));
    let after: Vec<VerifierKey> = after.ok_or(refusal)?.keys().cloned().collect();
    Ok(Checkpoint::open_under(note, &after)?.0)
}

/// The keys that the entries under an unverified checkpoint name, as far as they can be read.
fn look_ahead(dir: &Path, note: &[u8]) -> KeysNamed {
    let mut keys = KeysNamed::default();
    let text = note.windows(2).position(|two| two == b"\n\n").and_then(|end| note.get(..=end));
    let Some(Ok(unverified)) = text.map(Checkpoint::from_text) else { return keys };
    let width = TILE_WIDTH as u64;
    for number in 0..unverified.size.div_ceil(width) {
        let width = usize::try_from((unverified.size - number * width).min(width)).unwrap_or(TILE_WIDTH);
        let path = TilePath { level: None, number, width };
        let Ok((path, bundle)) = read_bundle(dir, path) else { return keys };
        let Ok(entries) = parse_bundle(&bundle, path.width) else { return keys };
        for (index, bytes) in (number * TILE_WIDTH as u64..).zip(entries.into_iter().take(width)) {
            if Entry::decode(bytes).is_ok_and(|entry| keys.note(index, None, &entry).is_err()) {
                return keys;
            }
        }
    }
    keys
}

/// A bundle of entries. A partial one goes when the whole one has been there for a while: it begins with the same entries.
fn read_bundle(dir: &Path, path: TilePath) -> Result<(TilePath, Vec<u8>), LogRefusal> {
    let read_one = |path: TilePath| read(dir, &path.to_string(), path.width * (ENTRY_BYTES_MAX + 2));
    match read_one(path) {
        Err(LogRefusal::File { source, .. }) if source.kind() == io::ErrorKind::NotFound && path.width < TILE_WIDTH => {
            let whole = TilePath { width: TILE_WIDTH, ..path };
            Ok((whole, read_one(whole)?))
        }
        bundle => Ok((path, bundle?)),
    }
}

/// Takes in a log that grows, entry by entry, with the checks of [`check_log`] that need no end.
pub struct LogFollower {
    dir: PathBuf,
    edge: Edge,
    story: Story,
}

/// An entry that was taken in.
#[derive(Debug)]
pub struct Taken<'a> {
    /// Its index.
    pub index: u64,
    /// What it says.
    pub entry: &'a Entry,
    /// The tree that ends with it.
    pub tree: &'a Edge,
}

impl LogFollower {
    /// At the beginning of the log in this folder.
    #[must_use]
    pub fn new(dir: &Path, key: &VerifierKey) -> Self {
        Self { dir: dir.to_owned(), edge: Edge::new(), story: Story::new(key) }
    }

    /// Entries that were taken in.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.edge.size()
    }

    /// Whether the given key is the log's first one, or one that the entries taken in name; nothing is said without entries.
    #[must_use]
    pub fn names_key(&self) -> bool {
        self.story.keys.chain().is_none_or(|keys| keys.has(&self.story.key))
    }

    /// Whether the keys that count for a tree of these entries have signed this note of it: the newest, and the one before while
    /// both sign.
    ///
    /// # Errors
    /// [`LogRefusal::Signature`], [`LogRefusal::NewestKey`], [`LogRefusal::FormerKey`].
    pub fn is_signed(&self, note: &[u8]) -> Result<(), LogRefusal> {
        let Some(keys) = self.story.keys.chain() else { return Ok(()) };
        keys.open(note).map_err(|refusal| match refusal {
            CheckpointError::OtherKey { .. } => LogRefusal::NewestKey,
            refusal => LogRefusal::Signature(refusal),
        })?;
        match keys.last_rotation() {
            Some((former, window)) if window.finish.is_none() && Checkpoint::open(note, former).is_err() => {
                Err(LogRefusal::FormerKey)
            }
            _ => Ok(()),
        }
    }

    /// The root hash of the tree of these entries.
    #[must_use]
    pub fn root(&self) -> Hash {
        self.edge.root()
    }

    /// Takes in what is new in the next bundle of a log that has `size` entries. `each` is told of every entry, after its own
    /// checks. It is of no use any more after an error, but for one of a file that could not be read.
    ///
    /// # Errors
    /// [`LogRefusal`]: the first check that fails, or what `each` says.
    pub fn advance<E: From<LogRefusal>>(
        &mut self,
        size: u64,
        mut each: impl FnMut(Taken<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let begin = self.edge.size() / TILE_WIDTH as u64 * TILE_WIDTH as u64;
        let width = usize::try_from(size.saturating_sub(begin)).unwrap_or(TILE_WIDTH).min(TILE_WIDTH);
        let known = usize::try_from(self.edge.size() - begin).unwrap_or(TILE_WIDTH);
        let path = TilePath { level: None, number: begin / TILE_WIDTH as u64, width };
        let (path, bundle) = read_bundle(&self.dir, path)?;
        let entries = parse_bundle(&bundle, path.width).map_err(|source| LogRefusal::Bundle { path, source })?;
        for bytes in entries.into_iter().take(width).skip(known) {
            let (index, leaf) = (self.edge.size(), leaf_hash(bytes));
            let entry = Entry::decode(bytes);
            let rotates = matches!(entry, Ok(Entry { body: Body::KeyRotation(_), .. }));
            let before = rotates.then(|| self.edge.root());
            for tile in self.edge.push(leaf) {
                let path = TilePath { level: Some(tile.level), number: tile.number, width: TILE_WIDTH };
                check_tile(&self.dir, path, &tile.hashes)?;
            }
            let entry = entry.map_err(|source| LogRefusal::Entry { index, source })?;
            self.story.entry(index, leaf, before, &entry)?;
            each(Taken { index, entry: &entry, tree: &self.edge })?;
        }
        Ok(())
    }
}

impl fmt::Debug for LogFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogFollower({} entries)", self.size())
    }
}

/// The newest checkpoint of the folder that the witnesses have cosigned: the published one, or the one that is kept for when
/// that is too new.
fn witnessed(
    dir: &Path,
    key: &VerifierKey,
    published: &Checkpoint,
    note: &[u8],
    witnesses: &Witnesses,
) -> Result<(Checkpoint, Vec<Witnessed>), LogRefusal> {
    let refusal = match witnesses.check(published, note) {
        Ok(cosigned) => return Ok((published.clone(), cosigned)),
        Err(refusal @ WitnessRefusal::Quorum { .. }) => refusal,
        Err(refusal) => return Err(refusal.into()),
    };
    let note = match read(dir, "checkpoint.witnessed", CHECKPOINT_BYTES_MAX) {
        Err(LogRefusal::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Err(refusal.into()),
        note => note?,
    };
    // Before a rotation there was another key, which the given one need not lead to: its tree is compared with this one.
    let older = match Checkpoint::open(&note, key) {
        Err(refusal @ CheckpointError::Signature) => {
            let keys = look_ahead(dir, &note);
            keys.chain().ok_or(refusal).and_then(|chain| chain.open(&note))
        }
        older => older,
    }?;
    let cosigned = witnesses.check(&older, &note)?;
    // One that is larger was cosigned, and is not shown.
    if older.size == 0 || older.size > published.size {
        return Err(LogRefusal::WitnessedTree { size: older.size });
    }
    Ok((older, cosigned))
}

fn check_tile(dir: &Path, path: TilePath, hashes: &[Hash]) -> Result<(), LogRefusal> {
    let held = read(dir, &path.to_string(), hashes.len() * 32)?;
    let same = held.as_chunks::<32>().0.iter().eq(hashes.iter().map(|hash| &hash.0)) && held.len() == hashes.len() * 32;
    if same { Ok(()) } else { Err(LogRefusal::Tile { path }) }
}

/// Reads a file of at most `bytes_max` bytes.
fn read(dir: &Path, path: &str, bytes_max: usize) -> Result<Vec<u8>, LogRefusal> {
    read_file(&dir.join(path), bytes_max).map_err(|source| LogRefusal::File { path: path.to_owned(), source })
}
