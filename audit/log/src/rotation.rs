//! The log's key is changed as planned: an entry names the next key, both sign checkpoints for a while, and then another entry
//! says that the former one is dropped. This is done by whoever has the folder, while no gateway has it open.
//!
//! The next key is written before it is named, and named before it signs. A crash in between leaves a key that no entry names:
//! it signs nothing, and the next rotation takes it. The end is said before the former key goes; after a crash in between the next
//! start drops it. What a key is good for is said by the entries, never by the files alone.

use crate::clock::SystemClock;
use crate::config::AuditConfig;
use crate::fault::{LogFault, OpenLogError, storage};
use crate::keys::write_whole;
use crate::log::folder_of;
use crate::publish::Published;
use crate::receipt::Tiles;
use crate::recover::{self, Start};
use crate::segment::{FRAME_HEAD, SEGMENTS, next_frame, segment_path};
use crate::signer::SignerPlace;
use crate::storage::Storage;
use audit_provenance::{Body, ENTRY_BYTES_MAX, Entry, KeyRotation, KeyRotationStage};
use audit_tlog::{
    Hash, KeyChain, RotationError, RotationStage, SignedRotation, TiledTree, TlogProof, TreeReadError, VerifierKey,
};
use policies_domain::Digest;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

/// Proofs of the entries that change the key, numbered from 1: for whoever knows only a former key. The odd ones begin a
/// rotation, the even ones finish it.
const PROOFS: &str = "rotations";

/// A key of the log, and the one that takes its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotatedKey {
    /// Verifier key line of the former key.
    pub former: String,
    /// Verifier key line of the key that takes its place.
    pub next: String,
    /// Index of the entry that names it: from there on both sign.
    pub begin: u64,
    /// Index of the entry that ends that: from there on the former key counts for nothing. `None` while both sign.
    pub finish: Option<u64>,
}

/// Why a key was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RotateKeyError {
    /// Its key is kept by another program, which signs checkpoints and nothing else.
    #[error(
        "the key of this log is kept by its signer, and cannot be changed from here: a signer signs checkpoints alone, and with \
         one key; end this log and begin one with another origin and key"
    )]
    External,
    /// There is no log whose key could be changed.
    #[error("there is no log in `{dir}`")]
    NoLog {
        /// The folder.
        dir: String,
    },
    /// No rotation has begun, so there is no former key to drop.
    #[error("no rotation of the key has begun, or it is finished")]
    NotBegun,
    /// The log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenLogError),
}

/// Makes the next key of a log and names it in an entry. From that entry on both keys sign.
///
/// # Errors
/// [`RotateKeyError`]; [`OpenLogError::Locked`] while a gateway has the log open, [`OpenLogError::RotationOpen`] while the former
/// key of an earlier rotation is not dropped.
pub fn rotate_key(config: &AuditConfig) -> Result<RotatedKey, RotateKeyError> {
    let store = log_to_rotate(config)?;
    crate::keys::prepare_next(&*store, &config.origin)?;
    let opened = recover::open_as(store, Arc::new(SystemClock::default()), config, Start::Rotate)?;
    opened.named.last_rotation().ok_or(RotateKeyError::NotBegun)
}

/// Says in an entry that the former key is dropped, and drops it: from here on the next one signs alone, and is the log's.
///
/// # Errors
/// [`RotateKeyError`].
pub fn drop_former_key(config: &AuditConfig) -> Result<RotatedKey, RotateKeyError> {
    let store = log_to_rotate(config)?;
    // The entry is committed and published under both keys: whatever is read from here on has a line of the next one.
    let opened = match recover::open_as(store, Arc::new(SystemClock::default()), config, Start::Finish) {
        Err(OpenLogError::RotationNotBegun) => return Err(RotateKeyError::NotBegun),
        opened => opened?,
    };
    opened.keys.drop_former()?;
    opened.named.last_rotation().ok_or(RotateKeyError::NotBegun)
}

fn log_to_rotate(config: &AuditConfig) -> Result<Arc<dyn Storage>, RotateKeyError> {
    if config.signer != SignerPlace::File {
        return Err(RotateKeyError::External);
    }
    if !config.dir.join(segment_path(0)).is_file() {
        return Err(RotateKeyError::NoLog { dir: config.dir.display().to_string() });
    }
    Ok(Arc::new(folder_of(config)?))
}

/// The entry of what both keys have signed.
pub(crate) fn body(signed: &SignedRotation) -> KeyRotation {
    let stage = match signed.stage {
        RotationStage::Begin => KeyRotationStage::Begin,
        RotationStage::Finish => KeyRotationStage::Finish,
    };
    let (previous, next) = (signed.previous.to_string(), signed.next.to_string());
    let (by_previous, by_next) = (signed.by_previous, signed.by_next);
    KeyRotation { stage, previous, next, size: signed.size, root: Digest(signed.root.0), by_previous, by_next }
}

/// What an entry says that both keys have signed, verified.
fn verified(body: &KeyRotation) -> Result<SignedRotation, RotationError> {
    let stage = match body.stage {
        KeyRotationStage::Begin => RotationStage::Begin,
        KeyRotationStage::Finish => RotationStage::Finish,
    };
    let (previous, next) = (VerifierKey::parse(&body.previous)?, VerifierKey::parse(&body.next)?);
    let (by_previous, by_next) = (body.by_previous, body.by_next);
    SignedRotation { stage, previous, next, size: body.size, root: Hash(body.root.0), by_previous, by_next }.verified()
}

/// The keys that the entries name, and where.
#[derive(Debug, Default)]
pub(crate) struct NamedKeys {
    chain: Option<KeyChain>,
    rotations: Vec<u64>,
}

impl NamedKeys {
    /// Takes in the next entry, which stands behind a tree with the root hash `before`.
    pub(crate) fn note(
        &mut self,
        index: u64,
        before: impl FnOnce() -> Hash,
        entry: &Entry,
    ) -> Result<(), RotationError> {
        match &entry.body {
            Body::Genesis { verifier_key, .. } if index == 0 => {
                self.chain = Some(KeyChain::new(VerifierKey::parse(verifier_key)?));
            }
            Body::KeyRotation(rotation) => {
                let rotation = verified(rotation)?;
                rotation.stands_at(index, before())?;
                self.chain.as_mut().ok_or(RotationError::Order)?.follow(&rotation)?;
                self.rotations.push(index);
            }
            _ => {}
        }
        Ok(())
    }

    /// From the first to the newest; `None` before the first entry.
    pub(crate) fn chain(&self) -> Option<&KeyChain> {
        self.chain.as_ref()
    }

    /// The rotation to the newest key.
    pub(crate) fn last_rotation(&self) -> Option<RotatedKey> {
        let chain = self.chain.as_ref()?;
        let (former, window) = chain.last_rotation()?;
        let (former, next) = (former.to_string(), chain.current().to_string());
        Some(RotatedKey { former, next, begin: window.begin, finish: window.finish })
    }

    /// Writes the proofs that are not there. Which checkpoint they are under does not matter, if a key signed it that they
    /// lead to.
    pub(crate) fn publish(&self, store: &dyn Storage, published: &Published) -> Result<(), LogFault> {
        if self.rotations.is_empty() {
            return Ok(());
        }
        let held = store.list(PROOFS).map_err(storage("list", PROOFS))?;
        let files = Tiles(store);
        let tree = TiledTree::new(published.size, published.root, &files);
        let prove = |index| {
            let extra = Some(tree.entry(index)?);
            let (hashes, checkpoint) = (tree.prove_inclusion(index)?, published.note.clone());
            Ok::<_, TreeReadError>(TlogProof { extra, index, hashes, checkpoint })
        };
        for (number, index) in (1_u64..).zip(&self.rotations) {
            if held.contains(&number.to_string()) {
                continue;
            }
            let path = format!("{PROOFS}/{number}");
            let proof = prove(*index).map_err(|error| storage("prove", &path)(io::Error::other(error)))?;
            write_whole(store, &path, proof.encode().as_bytes())?;
        }
        Ok(())
    }
}

/// Proof of the rotation with this number, from 1, as it is published; `None` when there was none.
pub(crate) fn proof(store: &dyn Storage, number: u32) -> io::Result<Option<String>> {
    let proof = match store.read(&format!("{PROOFS}/{number}"), audit_tlog::PROOF_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        proof => proof?,
    };
    String::from_utf8(proof).map(Some).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The key that a log was begun with, from its first entry. The sums of its secret files are bound to it as long as the log
/// lives. `None` where that entry is not whole: then the start says so, which reads it again.
pub(crate) fn first_key(store: &dyn Storage) -> Result<Option<VerifierKey>, LogFault> {
    let path = segment_path(0);
    // Opening makes a file where there is none.
    let names = store.list(SEGMENTS).map_err(storage("list", SEGMENTS))?;
    if !names.iter().any(|name| format!("{SEGMENTS}/{name}") == path) {
        return Ok(None);
    }
    let file = store.open(&path).map_err(storage("open", &path))?;
    let length = file.length().map_err(storage("measure", &path))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(FRAME_HEAD + ENTRY_BYTES_MAX);
    let frame = file.read_at(0, length).map_err(storage("read", &path))?;
    Ok(genesis_key(&frame))
}

/// The same from a folder, which is only read.
pub(crate) fn first_key_in(dir: &Path) -> Option<VerifierKey> {
    let path = dir.join(segment_path(0));
    // Opening a pipe would wait for its other end.
    path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut frame = Vec::new();
    let length = (FRAME_HEAD + ENTRY_BYTES_MAX) as u64;
    std::fs::File::open(path).ok()?.take(length).read_to_end(&mut frame).ok()?;
    genesis_key(&frame)
}

fn genesis_key(mut frame: &[u8]) -> Option<VerifierKey> {
    let (entry, _) = next_frame(&mut frame)?;
    match Entry::decode(entry).ok()?.body {
        Body::Genesis { verifier_key, .. } => VerifierKey::parse(&verifier_key).ok(),
        _ => None,
    }
}
