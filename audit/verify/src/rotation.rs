//! From a key of a log that one knows to the keys that came after it. A rotation counts when both keys have signed it and the log
//! holds its entry, behind the history that both mean. A key that no such entry names signs nothing, whoever put its line under a
//! checkpoint, and a former key counts for the trees of its time alone.

use audit_provenance::{Body, DecodeError, Entry, KeyRotation, KeyRotationStage};
use audit_tlog::{
    CheckpointError, Hash, KeyChain, ProofError, RotationError, RotationStage, SignedRotation, TlogProof, TreeError,
    VerifierKey, check_inclusion, leaf_hash, root_before,
};
use std::borrow::Cow;

/// The keys of one log that are believed: one, or that and those which follow on it, each for the trees of its time.
pub trait LogKeys {
    /// All of them, in order.
    fn chain(&self) -> Cow<'_, KeyChain>;
}

impl LogKeys for VerifierKey {
    fn chain(&self) -> Cow<'_, KeyChain> {
        Cow::Owned(KeyChain::new(self.clone()))
    }
}

impl LogKeys for KeyChain {
    fn chain(&self) -> Cow<'_, KeyChain> {
        Cow::Borrowed(self)
    }
}

/// A key that the log's entries lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedKey {
    /// The key.
    pub key: VerifierKey,
    /// The entry that names it.
    pub entry: u64,
}

/// The keys after the one that a chain begins with, each with the entry that names it.
#[must_use]
pub fn named_keys(chain: &KeyChain) -> Vec<NamedKey> {
    let named = chain.keys().skip(1).zip(chain.windows());
    named.map(|(key, window)| NamedKey { key: key.clone(), entry: window.begin }).collect()
}

/// Why what is given as a rotation is refused.
#[derive(Debug, thiserror::Error)]
pub enum RotationRefusal {
    /// Not a proof file.
    #[error("{0}")]
    Format(#[from] ProofError),
    /// It holds no entry.
    #[error("it holds no entry")]
    NoEntry,
    /// The entry is malformed.
    #[error("{0}")]
    Entry(#[from] DecodeError),
    /// The entry names no key.
    #[error("its entry is no rotation of a key")]
    Kind,
    /// The rotation is not signed by both keys, or does not follow on the one before.
    #[error("{0}")]
    Rotation(#[from] RotationError),
    /// The checkpoint is not signed by the key that counts there.
    #[error("{0}")]
    Signature(#[from] CheckpointError),
    /// The entry is not in the log.
    #[error("its entry is not in the log: {0}")]
    Inclusion(#[from] TreeError),
}

impl RotationRefusal {
    /// The name of the check that failed.
    #[must_use]
    pub fn check(&self) -> &'static str {
        match self {
            Self::Format(_) | Self::NoEntry | Self::Entry(_) | Self::Kind => "format",
            Self::Rotation(_) => "rotation",
            Self::Signature(_) => "signature",
            Self::Inclusion(_) => "inclusion",
        }
    }
}

/// The rotation that an entry says, both signatures verified.
fn signed(body: &KeyRotation) -> Result<SignedRotation, RotationError> {
    let rotation = SignedRotation {
        stage: match body.stage {
            KeyRotationStage::Begin => RotationStage::Begin,
            KeyRotationStage::Finish => RotationStage::Finish,
        },
        previous: VerifierKey::parse(&body.previous)?,
        next: VerifierKey::parse(&body.next)?,
        size: body.size,
        root: Hash(body.root.0),
        by_previous: body.by_previous,
        by_next: body.by_next,
    };
    rotation.verified()
}

/// Follows a key through these proofs, in any order, each as the log publishes it in `rotations`: of the beginnings of rotations
/// and of their ends. Those of keys that came before the given one say nothing of it.
///
/// # Errors
/// [`RotationRefusal`], for any of them.
pub fn follow_rotations(known: &VerifierKey, proofs: &[Vec<u8>]) -> Result<KeyChain, RotationRefusal> {
    let mut proofs = proofs.iter().map(|proof| Proven::read(proof)).collect::<Result<Vec<_>, _>>()?;
    proofs.sort_by_key(|proven| proven.proof.index);
    proofs.dedup_by(|one, other| one.leaf == other.leaf);
    let (mut chain, mut used) = (KeyChain::new(known.clone()), Vec::new());
    for proven in proofs {
        let follows = match proven.rotation.stage {
            RotationStage::Begin => proven.rotation.previous == *chain.current(),
            RotationStage::Finish => chain.has(&proven.rotation.previous),
        };
        if follows {
            chain.follow(&proven.rotation)?;
            used.push(proven);
        }
    }
    // A proof may be under a later key's checkpoint than the one that it names.
    for Proven { proof, leaf, rotation } in &used {
        let checkpoint = chain.open(proof.checkpoint.as_bytes())?;
        check_inclusion(&proof.hashes, checkpoint.size, checkpoint.root, proof.index, *leaf)?;
        // The same hashes are those of the tree before it.
        let before = root_before(&proof.hashes, checkpoint.size, proof.index).ok_or(RotationError::History)?;
        rotation.stands_at(proof.index, before)?;
    }
    Ok(chain)
}

/// A proof of a rotation, its checkpoint not yet verified.
struct Proven {
    proof: TlogProof,
    leaf: Hash,
    rotation: SignedRotation,
}

impl Proven {
    fn read(file: &[u8]) -> Result<Self, RotationRefusal> {
        let proof = TlogProof::parse(file)?;
        let bytes = proof.extra.as_deref().ok_or(RotationRefusal::NoEntry)?;
        let Body::KeyRotation(rotation) = Entry::decode(bytes)?.body else { return Err(RotationRefusal::Kind) };
        Ok(Self { leaf: leaf_hash(bytes), rotation: signed(&rotation)?, proof })
    }
}

/// The keys of a log as its entries name them, taken in order.
#[derive(Debug, Default)]
pub(crate) struct KeysNamed {
    chain: Option<KeyChain>,
}

impl KeysNamed {
    /// Takes in an entry: the first one names the first key. `before` is the root hash of the tree that it stands behind; without
    /// one its place is not compared.
    pub(crate) fn note(&mut self, index: u64, before: Option<Hash>, entry: &Entry) -> Result<(), RotationError> {
        match &entry.body {
            Body::Genesis { verifier_key, .. } if index == 0 => {
                self.chain = Some(KeyChain::new(VerifierKey::parse(verifier_key)?));
            }
            Body::KeyRotation(rotation) => {
                let rotation = signed(rotation)?;
                if let Some(before) = before {
                    rotation.stands_at(index, before)?;
                }
                // It is the log's, not a tenant's.
                if entry.head.tenant.is_some() {
                    return Err(RotationError::Order);
                }
                self.chain.as_mut().ok_or(RotationError::Order)?.follow(&rotation)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The first key, and all that follow on it; `None` before the first entry.
    pub(crate) fn chain(&self) -> Option<&KeyChain> {
        self.chain.as_ref()
    }

    /// The keys that have signed a checkpoint, each with the entry that names it; the log's first key with entry 0.
    pub(crate) fn signers(&self, note: &[u8]) -> Vec<NamedKey> {
        let Some(chain) = &self.chain else { return Vec::new() };
        let first = NamedKey { key: chain.first().clone(), entry: 0 };
        let signed = chain.signers(note);
        std::iter::once(first).chain(named_keys(chain)).filter(|named| signed.contains(&named.key)).collect()
    }
}
