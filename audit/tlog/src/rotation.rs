//! How a log's key is changed: the old key names the new one, and the new one agrees. What they sign is no checkpoint of any log.
//!
//! Both sign a second time when the old key is dropped. Between the two lies the window in which both sign every checkpoint. Each
//! statement has the size and the root hash of the tree before it: who has the new key alone cannot put another history before
//! it. Whether the log holds it at that place is the caller's to look up.

use crate::{Checkpoint, CheckpointError, KeyError, LogSigner, VerifierKey};
use signed_note::Verifier as _;
use tlog_tiles::Hash;

/// First line of what both keys sign. It holds a space, which no origin does.
const PURPOSE: &str = "log key rotation v1";
/// Rotations of one log that are followed: more than a century of one in every month.
pub const ROTATIONS_MAX: usize = 1_536;

/// A rotation is none, or not one of this log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RotationError {
    /// A key line is malformed.
    #[error("the rotation's key: {0}")]
    Key(#[from] KeyError),
    /// The new key has another name: it is another log's.
    #[error("the new key has another name than the old one")]
    Name,
    /// The new key is the old one, or cannot be told from it by its id; or the log had it before.
    #[error("the new key is not a new one")]
    Same,
    /// One of the two signatures is false.
    #[error("the rotation is not signed by both keys")]
    Signature,
    /// The rotation begins at another key than the log's newest one.
    #[error("the rotation does not begin at the key that the log has")]
    Order,
    /// The rotation before it has no end.
    #[error("the rotation before this one is not finished")]
    Open,
    /// It ends what has not begun, or has ended.
    #[error("it finishes no rotation that has begun")]
    NotBegun,
    /// The tree before it is another than the one that both keys mean.
    #[error("the history before the rotation is not the one that both keys have signed")]
    History,
    /// More than [`ROTATIONS_MAX`].
    #[error("a log has at most {ROTATIONS_MAX} rotations of its key")]
    TooMany,
    /// A key could not sign.
    #[error("the rotation could not be signed")]
    Sign,
}

/// Which end of the window in which both keys sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationStage {
    /// From here on the new key must sign, and the old one signs, too.
    Begin,
    /// From here on the new key signs alone.
    Finish,
}

/// A key and the one that comes after it, each with its signature of both, and of the tree before.
#[derive(Debug, Clone, PartialEq)]
pub struct SignedRotation {
    /// Beginning or end.
    pub stage: RotationStage,
    /// The former key.
    pub previous: VerifierKey,
    /// The next one.
    pub next: VerifierKey,
    /// Entries before this one.
    pub size: u64,
    /// Root hash of their tree.
    pub root: Hash,
    /// Signature of the former key.
    pub by_previous: [u8; 64],
    /// Signature of the next one: nobody names a key that is not there to sign.
    pub by_next: [u8; 64],
}

impl SignedRotation {
    /// Lets both keys sign, for a log that has `size` entries with `root`.
    ///
    /// # Errors
    /// [`RotationError::Name`], [`RotationError::Same`], [`RotationError::Sign`].
    pub fn sign(
        stage: RotationStage,
        previous: &LogSigner,
        next: &LogSigner,
        size: u64,
        root: Hash,
    ) -> Result<Self, RotationError> {
        let (old, new) = (previous.verifier_key(), next.verifier_key());
        check_pair(&old, &new)?;
        let mut rotation = Self { stage, previous: old, next: new, size, root, by_previous: [0; 64], by_next: [0; 64] };
        let text = rotation.text();
        let sign = |signer: &LogSigner| signer.sign_bytes(text.as_bytes()).map_err(|_| RotationError::Sign);
        (rotation.by_previous, rotation.by_next) = (sign(previous)?, sign(next)?);
        Ok(rotation)
    }

    /// Verifies both signatures.
    ///
    /// # Errors
    /// [`RotationError`].
    pub fn verified(self) -> Result<Self, RotationError> {
        check_pair(&self.previous, &self.next)?;
        let text = self.text();
        let by_previous = self.previous.verifies(text.as_bytes(), &self.by_previous);
        let by_next = self.next.verifies(text.as_bytes(), &self.by_next);
        if by_previous && by_next { Ok(self) } else { Err(RotationError::Signature) }
    }

    /// Whether it stands where both keys mean it to: as the entry with `index`, behind a tree with `root`.
    ///
    /// # Errors
    /// [`RotationError::History`].
    pub fn stands_at(&self, index: u64, root: Hash) -> Result<(), RotationError> {
        if (self.size, self.root) == (index, root) { Ok(()) } else { Err(RotationError::History) }
    }

    fn text(&self) -> String {
        let Self { previous, next, size, root, .. } = self;
        let stage = match self.stage {
            RotationStage::Begin => "begin",
            RotationStage::Finish => "finish",
        };
        format!("{PURPOSE}\n{stage}\n{previous}\n{next}\n{size}\n{root}\n")
    }
}

/// A verifier tells keys apart by name and id: of one name, two need two ids.
fn check_pair(previous: &VerifierKey, next: &VerifierKey) -> Result<(), RotationError> {
    if previous.name() != next.name() {
        return Err(RotationError::Name);
    }
    if previous.key_id() == next.key_id() { Err(RotationError::Same) } else { Ok(()) }
}

/// The window in which a former key and the next one both sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Index of the entry that begins it: a tree with more entries has the next key.
    pub begin: u64,
    /// Index of the entry that finishes it: in a tree with more entries the former key says nothing. `None` while none is known.
    pub finish: Option<u64>,
}

/// The keys of one log, from one that is known to the newest one that it leads to, and from which size on each of them counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChain {
    /// All but the newest, oldest first, each with the window in which it makes room for the one after it.
    former: Vec<(VerifierKey, Window)>,
    current: VerifierKey,
}

impl KeyChain {
    /// Begins with a key that is believed.
    #[must_use]
    pub fn new(first: VerifierKey) -> Self {
        Self { former: Vec::new(), current: first }
    }

    /// Takes in what the newest key says next: the key after it, or that the former one is dropped.
    ///
    /// # Errors
    /// [`RotationError::Order`], [`RotationError::Open`], [`RotationError::NotBegun`], [`RotationError::Same`],
    /// [`RotationError::TooMany`]; the chain is then as it was.
    pub fn follow(&mut self, rotation: &SignedRotation) -> Result<(), RotationError> {
        match rotation.stage {
            RotationStage::Begin => self.begin(rotation),
            RotationStage::Finish => self.finish(rotation),
        }
    }

    fn begin(&mut self, rotation: &SignedRotation) -> Result<(), RotationError> {
        if rotation.previous != self.current {
            return Err(RotationError::Order);
        }
        if let Some((_, window)) = self.former.last() {
            let finish = window.finish.ok_or(RotationError::Open)?;
            if rotation.size <= finish {
                return Err(RotationError::Order);
            }
        }
        if self.former.iter().any(|(key, _)| key.key_id() == rotation.next.key_id()) {
            return Err(RotationError::Same);
        }
        if self.former.len() >= ROTATIONS_MAX {
            return Err(RotationError::TooMany);
        }
        let former = std::mem::replace(&mut self.current, rotation.next.clone());
        self.former.push((former, Window { begin: rotation.size, finish: None }));
        Ok(())
    }

    fn finish(&mut self, rotation: &SignedRotation) -> Result<(), RotationError> {
        let Some((former, window)) = self.former.last_mut() else { return Err(RotationError::NotBegun) };
        let its_keys = (&rotation.previous, &rotation.next) == (&*former, &self.current);
        if !its_keys || window.finish.is_some() || rotation.size <= window.begin {
            return Err(RotationError::NotBegun);
        }
        window.finish = Some(rotation.size);
        Ok(())
    }

    /// The newest key.
    #[must_use]
    pub fn current(&self) -> &VerifierKey {
        &self.current
    }

    /// The key that is believed to begin with.
    #[must_use]
    pub fn first(&self) -> &VerifierKey {
        self.former.first().map_or(&self.current, |(key, _)| key)
    }

    /// The key before the newest, and the window in which it makes room.
    #[must_use]
    pub fn last_rotation(&self) -> Option<(&VerifierKey, Window)> {
        self.former.last().map(|(key, window)| (key, *window))
    }

    /// All of them, oldest first.
    pub fn keys(&self) -> impl Iterator<Item = &VerifierKey> {
        self.former.iter().map(|(key, _)| key).chain([&self.current])
    }

    /// The windows between them, in order: one less than there are keys.
    pub fn windows(&self) -> impl Iterator<Item = Window> {
        self.former.iter().map(|(_, window)| *window)
    }

    /// Whether it leads to this key, or begins with it.
    #[must_use]
    pub fn has(&self, key: &VerifierKey) -> bool {
        self.keys().any(|held| held == key)
    }

    /// This key and those after it; `None` when it is not among them.
    #[must_use]
    pub fn since(&self, key: &VerifierKey) -> Option<Self> {
        if self.current == *key {
            return Some(Self::new(key.clone()));
        }
        let place = self.former.iter().position(|(held, _)| held == key)?;
        Some(Self { former: self.former.get(place..)?.to_vec(), current: self.current.clone() })
    }

    /// The key that must have signed a checkpoint of a tree of `size` entries: the newest that they name.
    #[must_use]
    pub fn key_at(&self, size: u64) -> &VerifierKey {
        self.keys_at(size).0
    }

    /// That key, and the former one that must have signed beside it, because the tree has the beginning of a window, and not its
    /// end.
    fn keys_at(&self, size: u64) -> (&VerifierKey, Option<&VerifierKey>) {
        let named = self.former.iter().take_while(|(_, window)| window.begin < size).count();
        let Some((former, window)) = named.checked_sub(1).and_then(|last| self.former.get(last)) else {
            return (self.first(), None);
        };
        let newest = self.former.get(named).map_or(&self.current, |(key, _)| key);
        (newest, window.finish.filter(|finish| size <= *finish).map(|_| former))
    }

    /// Reads a signed note that the keys have signed which count for its size; others are ignored, a false signature of any of
    /// them refuses it.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn open(&self, note: &[u8]) -> Result<Checkpoint, CheckpointError> {
        let keys: Vec<VerifierKey> = self.keys().cloned().collect();
        let (checkpoint, _) = Checkpoint::open_under(note, &keys)?;
        let (newest, beside) = self.keys_at(checkpoint.size);
        let has_signed = |key: &VerifierKey| Checkpoint::open(note, key).is_ok();
        if has_signed(newest) && beside.is_none_or(has_signed) {
            Ok(checkpoint)
        } else {
            Err(CheckpointError::OtherKey { size: checkpoint.size })
        }
    }

    /// Which of them have signed it.
    #[must_use]
    pub fn signers(&self, note: &[u8]) -> Vec<VerifierKey> {
        self.keys().filter(|key| Checkpoint::open(note, key).is_ok()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf_hash;

    fn signer(seed: u8) -> LogSigner {
        LogSigner::from_seed("example.com/log", &[seed; 32]).unwrap()
    }

    fn key(seed: u8) -> VerifierKey {
        signer(seed).verifier_key()
    }

    fn rotation(stage: RotationStage, from: u8, to: u8, size: u64) -> SignedRotation {
        SignedRotation::sign(stage, &signer(from), &signer(to), size, leaf_hash(b"before")).unwrap()
    }

    fn begin(from: u8, to: u8, size: u64) -> SignedRotation {
        rotation(RotationStage::Begin, from, to, size)
    }

    fn finish(from: u8, to: u8, size: u64) -> SignedRotation {
        rotation(RotationStage::Finish, from, to, size)
    }

    #[test]
    fn a_rotation_takes_the_word_of_both_keys() {
        let good = begin(1, 2, 7);
        assert_eq!(good.clone().verified(), Ok(good.clone()));
        for bit in 0..512 {
            let mut bad = good.clone();
            bad.by_previous[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(bad.verified(), Err(RotationError::Signature), "bit {bit} of the old key's signature");
            let mut bad = good.clone();
            bad.by_next[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(bad.verified(), Err(RotationError::Signature), "bit {bit} of the new key's signature");
        }
        // Whoever has only one of the keys signs for both.
        for (by_previous, by_next) in [(good.by_next, good.by_next), (good.by_previous, good.by_previous)] {
            let forged = SignedRotation { by_previous, by_next, ..good.clone() };
            assert_eq!(forged.verified(), Err(RotationError::Signature));
        }
        for changed in [
            SignedRotation { next: key(3), ..good.clone() },
            SignedRotation { previous: good.next.clone(), next: good.previous.clone(), ..good.clone() },
            SignedRotation { stage: RotationStage::Finish, ..good.clone() },
            SignedRotation { size: 8, ..good.clone() },
            SignedRotation { root: leaf_hash(b"another history"), ..good.clone() },
        ] {
            assert_eq!(changed.verified(), Err(RotationError::Signature));
        }
    }

    #[test]
    fn a_rotation_stands_behind_the_history_that_both_keys_mean() {
        let good = begin(1, 2, 7);
        assert_eq!(good.stands_at(7, leaf_hash(b"before")), Ok(()));
        assert_eq!(good.stands_at(8, leaf_hash(b"before")), Err(RotationError::History));
        assert_eq!(good.stands_at(7, leaf_hash(b"another")), Err(RotationError::History));
    }

    #[test]
    fn a_rotation_is_to_another_key_of_the_same_log() {
        let root = leaf_hash(b"before");
        let sign = |next: &LogSigner| SignedRotation::sign(RotationStage::Begin, &signer(1), next, 7, root);
        assert_eq!(sign(&signer(1)), Err(RotationError::Same));
        let other = LogSigner::from_seed("example.com/other", &[2; 32]).unwrap();
        assert_eq!(sign(&other), Err(RotationError::Name));
        let good = begin(1, 2, 7);
        let elsewhere = SignedRotation { next: other.verifier_key(), ..good.clone() };
        assert_eq!(elsewhere.verified(), Err(RotationError::Name));
        assert_eq!(SignedRotation { next: key(1), ..good }.verified(), Err(RotationError::Same));
    }

    #[test]
    fn a_chain_goes_from_each_key_to_the_one_that_it_names() {
        let mut chain = KeyChain::new(key(1));
        assert_eq!(chain.follow(&begin(2, 3, 5)), Err(RotationError::Order), "of a key that nobody named");
        assert_eq!(chain.follow(&finish(1, 2, 5)), Err(RotationError::NotBegun));
        chain.follow(&begin(1, 2, 5)).unwrap();
        assert_eq!(chain.follow(&begin(1, 3, 6)), Err(RotationError::Order), "of a key that was followed");
        assert_eq!(chain.follow(&begin(2, 3, 6)), Err(RotationError::Open));
        assert_eq!(chain.follow(&finish(1, 3, 6)), Err(RotationError::NotBegun), "of another rotation");
        assert_eq!(chain.follow(&finish(1, 2, 5)), Err(RotationError::NotBegun), "not behind its beginning");
        chain.follow(&finish(1, 2, 9)).unwrap();
        assert_eq!(chain.follow(&finish(1, 2, 10)), Err(RotationError::NotBegun), "twice");
        assert_eq!(chain.follow(&begin(2, 3, 9)), Err(RotationError::Order), "not behind the end of the one before");
        assert_eq!(chain.follow(&begin(2, 1, 12)), Err(RotationError::Same), "back to the one before");
        chain.follow(&begin(2, 3, 12)).unwrap();
        let last = chain.last_rotation().map(|(key, window)| (key.clone(), window));
        assert_eq!((chain.current(), last), (&key(3), Some((key(2), Window { begin: 12, finish: None }))));
        let after = chain.since(&key(2)).unwrap();
        assert_eq!((after.keys().cloned().collect::<Vec<_>>(), after.first()), (vec![key(2), key(3)], &key(2)));
        assert_eq!(chain.since(&key(3)), Some(KeyChain::new(key(3))));
        assert!(chain.has(&key(1)) && !chain.has(&key(4)) && chain.since(&key(4)).is_none());
    }

    /// Who must have signed, for each size: the former key up to the beginning, both up to the end, the next one behind it.
    #[test]
    fn the_key_that_counts_is_the_newest_that_the_tree_names() {
        let mut chain = KeyChain::new(key(1));
        let signed = |size: u64, by: &[u8]| {
            let checkpoint = Checkpoint { origin: "example.com/log".into(), size, root: leaf_hash(b"x") };
            let signers: Vec<LogSigner> = by.iter().map(|seed| signer(*seed)).collect();
            checkpoint.sign_with(&signers.iter().collect::<Vec<_>>()).unwrap()
        };
        let check = |chain: &KeyChain, size: u64, by: &[u8], right: bool| {
            let opened = chain.open(signed(size, by).as_bytes());
            let wanted = if right { Ok(size) } else { Err(CheckpointError::OtherKey { size }) };
            assert_eq!(opened.map(|checkpoint| checkpoint.size), wanted, "{size} entries, signed by {by:?}");
        };
        chain.follow(&begin(1, 2, 5)).unwrap();
        // Its end is not known: the next key must sign, and the former one may.
        for (size, by, right) in
            [(5, &[1][..], true), (5, &[2], false), (6, &[1], false), (6, &[2], true), (6, &[1, 2], true)]
        {
            check(&chain, size, by, right);
        }
        chain.follow(&finish(1, 2, 9)).unwrap();
        for (size, by, right) in [
            (5, &[1][..], true),
            (5, &[2], false),
            (6, &[2], false),
            (6, &[1], false),
            (6, &[1, 2], true),
            (9, &[1, 2], true),
            (9, &[2], false),
            (10, &[2], true),
            (10, &[1, 2], true),
            (10, &[1], false),
            (1_000, &[1], false),
        ] {
            check(&chain, size, by, right);
        }
        chain.follow(&begin(2, 3, 12)).unwrap();
        for (size, by, right) in [(12, &[2][..], true), (12, &[3], false), (13, &[3], true), (13, &[1, 2], false)] {
            check(&chain, size, by, right);
        }
        assert_eq!(chain.open(signed(13, &[4]).as_bytes()), Err(CheckpointError::Signature));
        assert_eq!(chain.signers(signed(13, &[1, 3, 4]).as_bytes()), [key(1), key(3)]);
    }

    #[test]
    fn what_is_signed_is_no_checkpoint() {
        let text = begin(1, 2, 7).text();
        assert_eq!(text.lines().count(), 6);
        assert!(Checkpoint::from_text(text.as_bytes()).is_err());
        assert!(PURPOSE.contains(' '), "which no log's name does");
    }
}
