//! Checkpoints: a tree's size and root hash under a log's signature, as C2SP tlog-checkpoint writes them.

use crate::{LogSigner, TREE_SIZE_MAX, VerifierKey};
use signed_note::{Note, NoteError, Signer, Verifier, VerifierList};
use tlog_tiles::Hash;

/// Longest checkpoint that is read: sixteen post-quantum cosignatures fit.
pub const CHECKPOINT_BYTES_MAX: usize = 64 * 1024;
/// Signature lines that are read: the specification asks for at least 16.
pub const SIGNATURES_MAX: usize = 16;

/// Exactly three lines: origin, size, root hash. No extension lines: not every cosignature covers them.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The log's name.
    pub origin: String,
    /// Entries in the tree.
    pub size: u64,
    /// The tree's root hash.
    pub root: Hash,
}

/// A checkpoint is not one, or not one of this log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Longer than [`CHECKPOINT_BYTES_MAX`].
    #[error("the checkpoint has {length} bytes, at most {CHECKPOINT_BYTES_MAX} are read")]
    TooLong {
        /// Bytes given.
        length: usize,
    },
    /// More than [`SIGNATURES_MAX`] signature lines.
    #[error("the checkpoint has {signatures} signatures, at most {SIGNATURES_MAX} are read")]
    Signatures {
        /// Lines given.
        signatures: usize,
    },
    /// Not a signed note.
    #[error("the checkpoint is not a signed note")]
    Note,
    /// The text is not origin, size and root hash in their one form.
    #[error("the checkpoint is not exactly origin, size and root hash")]
    Form,
    /// No signature of the expected key, or a false one.
    #[error("the checkpoint is not signed by the expected key")]
    Signature,
    /// Signed by a key that the log had, or was to have, and not by the one that counts for a tree of this size.
    #[error("the checkpoint of {size} entries is not signed by the key that the log has at this size")]
    OtherKey {
        /// Entries in the tree.
        size: u64,
    },
    /// Signed by the key, but for another origin.
    #[error("the checkpoint's origin is not the key's name")]
    Origin,
    /// The key could not sign.
    #[error("the checkpoint could not be signed")]
    Sign,
}

impl Checkpoint {
    /// The signed note, text and one signature line.
    ///
    /// # Errors
    /// [`CheckpointError::Origin`] when the key has another name, [`CheckpointError::Sign`].
    pub fn sign(&self, signer: &LogSigner) -> Result<String, CheckpointError> {
        self.sign_with(&[signer])
    }

    /// The signed note with a line of each of these keys: of two, while one of them takes the other's place.
    ///
    /// # Errors
    /// [`CheckpointError::Origin`] when a key has another name, [`CheckpointError::Sign`], also without a key.
    pub fn sign_with(&self, signers: &[&LogSigner]) -> Result<String, CheckpointError> {
        if signers.iter().any(|signer| self.origin != signer.name()) {
            return Err(CheckpointError::Origin);
        }
        let signers: Vec<&dyn Signer> = signers.iter().map(|signer| *signer as &dyn Signer).collect();
        if signers.is_empty() {
            return Err(CheckpointError::Sign);
        }
        let mut note = Note::new(self.text().as_bytes(), &[]).map_err(|_| CheckpointError::Form)?;
        note.add_sigs(&signers).map_err(|_| CheckpointError::Sign)?;
        String::from_utf8(note.to_bytes()).map_err(|_| CheckpointError::Form)
    }

    /// Reads a signed note and checks the signature of `key`; other signatures are ignored.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn open(note: &[u8], key: &VerifierKey) -> Result<Self, CheckpointError> {
        Self::open_note(note, key).map(|(checkpoint, _)| checkpoint)
    }

    /// The same, and the note again with the signature of `key` alone.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn open_note(note: &[u8], key: &VerifierKey) -> Result<(Self, String), CheckpointError> {
        Self::open_under(note, std::slice::from_ref(key))
    }

    /// Reads a signed note that one of these keys of the log has signed; a false signature of any of them refuses it, others are
    /// ignored. Gives the note again with their signatures alone.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn open_under(note: &[u8], keys: &[VerifierKey]) -> Result<(Self, String), CheckpointError> {
        if note.len() > CHECKPOINT_BYTES_MAX {
            return Err(CheckpointError::TooLong { length: note.len() });
        }
        let signatures = signature_lines(note).count();
        if signatures > SIGNATURES_MAX {
            return Err(CheckpointError::Signatures { signatures });
        }
        let note = Note::from_bytes(note).map_err(|_| CheckpointError::Note)?;
        let known = keys.iter().map(|key| Box::new(key.clone()) as Box<dyn Verifier>);
        let known = VerifierList::new(known.collect());
        let (signatures, _) = note.verify(&known).map_err(|error| match error {
            NoteError::MalformedNote => CheckpointError::Note,
            _ => CheckpointError::Signature,
        })?;
        let checkpoint = Self::from_text(note.text())?;
        if keys.iter().any(|key| checkpoint.origin != key.name()) {
            return Err(CheckpointError::Origin);
        }
        let own = Note::new(note.text(), &signatures).map_err(|_| CheckpointError::Form)?.to_bytes();
        Ok((checkpoint, String::from_utf8(own).map_err(|_| CheckpointError::Form)?))
    }

    /// The three lines that are signed.
    pub(crate) fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, self.root)
    }

    /// Reads the three lines that are signed; whatever does not print again as it was is refused.
    ///
    /// # Errors
    /// [`CheckpointError::Form`].
    pub fn from_text(text: &[u8]) -> Result<Self, CheckpointError> {
        let text = std::str::from_utf8(text).map_err(|_| CheckpointError::Form)?;
        let mut lines = text.split('\n');
        let (Some(origin), Some(size), Some(root)) = (lines.next(), lines.next(), lines.next()) else {
            return Err(CheckpointError::Form);
        };
        let size: u64 = size.parse().map_err(|_| CheckpointError::Form)?;
        let root = Hash::parse_hash(root).map_err(|_| CheckpointError::Form)?;
        let checkpoint = Self { origin: origin.to_owned(), size, root };
        let exact = checkpoint.text() == text && !origin.is_empty() && size <= TREE_SIZE_MAX;
        if exact { Ok(checkpoint) } else { Err(CheckpointError::Form) }
    }
}

/// The signature lines of a note, or of a witness's answer, without their newlines.
pub(crate) fn signature_lines(note: &[u8]) -> impl Iterator<Item = &[u8]> {
    note.split(|byte| *byte == b'\n').filter(|line| line.starts_with("— ".as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer() -> LogSigner {
        LogSigner::from_seed("example.com/log", &[9; 32]).unwrap()
    }

    fn signed(text: &str) -> Vec<u8> {
        let mut note = Note::new(text.as_bytes(), &[]).unwrap();
        note.add_sigs(&[&signer()]).unwrap();
        note.to_bytes()
    }

    #[test]
    fn any_flipped_bit_is_refused() {
        let checkpoint = Checkpoint { origin: "example.com/log".into(), size: 12, root: crate::leaf_hash(b"x") };
        let note = checkpoint.sign(&signer()).unwrap().into_bytes();
        assert_eq!(Checkpoint::open(&note, &signer().verifier_key()), Ok(checkpoint));
        for bit in 0..note.len() * 8 {
            let mut changed = note.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Checkpoint::open(&changed, &signer().verifier_key()).is_err(), "bit {bit}");
        }
        for length in 0..note.len() {
            assert!(Checkpoint::open(&note[..length], &signer().verifier_key()).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn other_forms_are_refused_even_when_signed() {
        let root = crate::leaf_hash(b"x").to_string();
        let key = signer().verifier_key();
        let open = |text: String| Checkpoint::open(&signed(&text), &key);
        assert!(open(format!("example.com/log\n12\n{root}\n")).is_ok());
        for text in [
            format!("example.com/log\n012\n{root}\n"),
            format!("example.com/log\n+12\n{root}\n"),
            format!("example.com/log\n-1\n{root}\n"),
            format!("example.com/log\n9223372036854775808\n{root}\n"),
            format!("example.com/log\n12\n{root}\nextension\n"),
            format!("example.com/log\n12\n{}\n", &root[..40]),
            format!("\n12\n{root}\n"),
            "example.com/log\n12\n".into(),
            "example.com/log\n".into(),
        ] {
            assert_eq!(open(text.clone()), Err(CheckpointError::Form), "{text:?}");
        }
        assert_eq!(open(format!("example.com/other\n12\n{root}\n")), Err(CheckpointError::Origin));
    }

    #[test]
    fn another_key_of_the_same_name_is_refused() {
        let checkpoint = Checkpoint { origin: "example.com/log".into(), size: 12, root: crate::leaf_hash(b"x") };
        let note = checkpoint.sign(&signer()).unwrap();
        let other = LogSigner::from_seed("example.com/log", &[8; 32]).unwrap().verifier_key();
        assert_eq!(Checkpoint::open(note.as_bytes(), &other), Err(CheckpointError::Signature));
        let elsewhere = Checkpoint { origin: "example.com/2".into(), ..checkpoint };
        assert_eq!(elsewhere.sign(&signer()), Err(CheckpointError::Origin));
    }

    #[test]
    fn of_two_keys_either_is_enough_and_a_line_of_neither_is_ignored() {
        let checkpoint = Checkpoint { origin: "example.com/log".into(), size: 12, root: crate::leaf_hash(b"x") };
        let next = LogSigner::from_seed("example.com/log", &[8; 32]).unwrap();
        let stranger = LogSigner::from_seed("example.com/log", &[7; 32]).unwrap();
        let (old, new, other) = (signer().verifier_key(), next.verifier_key(), stranger.verifier_key());
        let both = checkpoint.sign_with(&[&signer(), &next]).unwrap();
        assert_eq!(both.lines().count(), 6);
        for known in [vec![old.clone()], vec![new.clone()], vec![new.clone(), old.clone()]] {
            assert_eq!(Checkpoint::open_under(both.as_bytes(), &known).unwrap().0, checkpoint);
        }
        assert_eq!(Checkpoint::open_under(both.as_bytes(), &[old.clone(), new.clone()]).unwrap().1, both);
        // What is given on has the lines of the keys that are known, and no others.
        let alone = checkpoint.sign(&signer()).unwrap();
        assert_eq!(Checkpoint::open_note(both.as_bytes(), &old), Ok((checkpoint.clone(), alone.clone())));
        let with_stranger = checkpoint.sign_with(&[&signer(), &stranger]).unwrap();
        assert_eq!(
            Checkpoint::open_under(with_stranger.as_bytes(), &[old.clone(), new.clone()]).unwrap().1,
            alone,
            "a line of a key that nobody named"
        );
        let by_stranger = checkpoint.sign(&stranger).unwrap();
        let refused = Checkpoint::open_under(by_stranger.as_bytes(), &[old.clone(), new.clone()]);
        assert_eq!(refused, Err(CheckpointError::Signature));
        // A false line of a key that is known is worse than none.
        let torn = both.replace(both.lines().last().unwrap(), with_stranger.lines().last().unwrap());
        assert!(Checkpoint::open_under(torn.as_bytes(), &[old.clone(), new.clone()]).is_ok(), "another id");
        let mut false_line = both.into_bytes();
        let last = false_line.len() - 5;
        false_line[last] ^= 1;
        assert!(Checkpoint::open_under(&false_line, &[old.clone(), new]).is_err());
        assert_eq!(checkpoint.sign_with(&[]), Err(CheckpointError::Sign));
        let elsewhere = LogSigner::from_seed("example.com/2", &[8; 32]).unwrap();
        assert_eq!(checkpoint.sign_with(&[&signer(), &elsewhere]), Err(CheckpointError::Origin));
        assert!(Checkpoint::open_under(alone.as_bytes(), &[old, other, elsewhere.verifier_key()]).is_err());
    }

    #[test]
    fn sixteen_signatures_are_read_and_a_thousand_are_not() {
        let checkpoint = Checkpoint { origin: "example.com/log".into(), size: 12, root: crate::leaf_hash(b"x") };
        let key = signer().verifier_key();
        let mut note = checkpoint.sign(&signer()).unwrap();
        let witness = "— witness.example AAAAAAECAwQFBgc=\n";
        let bare = note.clone();
        note.push_str(&witness.repeat(15));
        assert_eq!(Checkpoint::open_note(note.as_bytes(), &key), Ok((checkpoint, bare)));
        note.push_str(witness);
        assert_eq!(Checkpoint::open(note.as_bytes(), &key), Err(CheckpointError::Signatures { signatures: 17 }));
        note.push_str(&witness.repeat(983));
        assert_eq!(Checkpoint::open(note.as_bytes(), &key), Err(CheckpointError::Signatures { signatures: 1_000 }));
        note.push_str(&witness.repeat(1_000));
        assert!(matches!(Checkpoint::open(note.as_bytes(), &key), Err(CheckpointError::TooLong { .. })));
    }
}
