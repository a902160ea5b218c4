//! Signed notes that are no checkpoints: a text of a fixed first line, under one signature.
//!
//! What a key signs here can never be read as a checkpoint, so a key that signs both says nothing of a tree that it did not
//! mean to say.

use crate::{Checkpoint, LogSigner, VerifierKey};
use signed_note::{Note, VerifierList};

/// Longest signed text that is read.
pub const SIGNED_TEXT_BYTES_MAX: usize = 64 * 1024;

/// A text is not signed, or not as it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignedTextError {
    /// Longer than [`SIGNED_TEXT_BYTES_MAX`].
    #[error("the signed text has {length} bytes, at most {SIGNED_TEXT_BYTES_MAX} are read")]
    TooLong {
        /// Bytes given.
        length: usize,
    },
    /// Not a signed note with exactly one signature.
    #[error("it is not a text with exactly one signature")]
    Form,
    /// The first line is another: it was signed for something else, or is a checkpoint.
    #[error("it was signed for something else")]
    Purpose,
    /// No signature of the expected key, or a false one.
    #[error("it is not signed by the expected key")]
    Signature,
    /// The key could not sign.
    #[error("it could not be signed")]
    Sign,
}

/// A purpose holds a space, which no origin does: its text is no checkpoint of any log.
fn is_for(text: &str, purpose: &str) -> bool {
    let first = text.split('\n').next();
    purpose.contains(' ') && first == Some(purpose) && Checkpoint::from_text(text.as_bytes()).is_err()
}

/// Signs a text whose first line is `purpose`.
///
/// # Errors
/// [`SignedTextError::Purpose`] for any other text, [`SignedTextError::Sign`].
pub fn sign_text(purpose: &str, text: &str, signer: &LogSigner) -> Result<String, SignedTextError> {
    if !is_for(text, purpose) {
        return Err(SignedTextError::Purpose);
    }
    let mut note = Note::new(text.as_bytes(), &[]).map_err(|_| SignedTextError::Form)?;
    note.add_sigs(&[signer]).map_err(|_| SignedTextError::Sign)?;
    let note = note.to_bytes();
    if note.len() > SIGNED_TEXT_BYTES_MAX {
        return Err(SignedTextError::TooLong { length: note.len() });
    }
    String::from_utf8(note).map_err(|_| SignedTextError::Form)
}

/// The text of a signed note whose first line is `purpose` and whose one signature is of `key`.
///
/// # Errors
/// [`SignedTextError`].
pub fn open_text(purpose: &str, note: &[u8], key: &VerifierKey) -> Result<String, SignedTextError> {
    if note.len() > SIGNED_TEXT_BYTES_MAX {
        return Err(SignedTextError::TooLong { length: note.len() });
    }
    let read = Note::from_bytes(note).map_err(|_| SignedTextError::Form)?;
    let known = VerifierList::new(vec![Box::new(key.clone())]);
    let (signatures, _) = read.verify(&known).map_err(|_| SignedTextError::Signature)?;
    let text = read.text();
    // Written again it is the same: there is no other signature, and each byte was looked at.
    if Note::new(text, &signatures).map_err(|_| SignedTextError::Form)?.to_bytes() != note {
        return Err(SignedTextError::Form);
    }
    let text = String::from_utf8(text.to_vec()).map_err(|_| SignedTextError::Form)?;
    if is_for(&text, purpose) { Ok(text) } else { Err(SignedTextError::Purpose) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURPOSE: &str = "example purpose v1";

    fn signer() -> LogSigner {
        LogSigner::from_seed("example.com/log", &[9; 32]).unwrap()
    }

    #[test]
    fn a_signed_text_is_never_a_checkpoint() {
        let root = crate::leaf_hash(b"x");
        let checkpoint = Checkpoint { origin: "example.com/log".into(), size: 12, root };
        for (purpose, text) in [
            ("example.com/log", checkpoint.text()),
            ("example.com/log", "example.com/log\nother\n".to_owned()),
            (PURPOSE, checkpoint.text()),
            ("two words", format!("two words\n12\n{root}\n")),
        ] {
            assert_eq!(sign_text(purpose, &text, &signer()), Err(SignedTextError::Purpose), "{text}");
        }
        // And a checkpoint is no signed text.
        let note = checkpoint.sign(&signer()).unwrap();
        let key = signer().verifier_key();
        for purpose in [PURPOSE, "example.com/log"] {
            assert_eq!(open_text(purpose, note.as_bytes(), &key), Err(SignedTextError::Purpose));
        }
    }

    #[test]
    fn any_flipped_bit_of_a_signed_text_is_refused() {
        let text = format!("{PURPOSE}\nsays this\n");
        let note = sign_text(PURPOSE, &text, &signer()).unwrap().into_bytes();
        let key = signer().verifier_key();
        assert_eq!(open_text(PURPOSE, &note, &key), Ok(text));
        for bit in 0..note.len() * 8 {
            let mut changed = note.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(open_text(PURPOSE, &changed, &key).is_err(), "bit {bit}");
        }
        let mut twice = note.clone();
        twice.extend_from_slice("— witness.example AAAAAAECAwQFBgc=\n".as_bytes());
        assert_eq!(open_text(PURPOSE, &twice, &key), Err(SignedTextError::Form));
        let other = LogSigner::from_seed("example.com/log", &[8; 32]).unwrap().verifier_key();
        assert_eq!(open_text(PURPOSE, &note, &other), Err(SignedTextError::Signature));
        assert_eq!(open_text("another purpose v1", &note, &key), Err(SignedTextError::Purpose));
    }
}
