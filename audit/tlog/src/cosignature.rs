//! Cosignatures: a witness's word that it has seen a checkpoint, and that everything it saw before is a part of it.
//!
//! C2SP tlog-cosignature, Ed25519 (algorithm byte 0x04, `cosignature/v1`).

use crate::checkpoint::{CHECKPOINT_BYTES_MAX, SIGNATURES_MAX, signature_lines};
use crate::key::{NamedSecret, parse_public};
use crate::{Checkpoint, CheckpointError, KeyError};
use ed25519_dalek::{SIGNATURE_LENGTH, Signature, Signer as _, VerifyingKey};
use std::fmt;
use zeroize::Zeroizing;

const COSIGNATURE_V1: u8 = 4;
/// Seconds since 1970 that a cosignature can hold.
const SECONDS_MAX: u64 = i64::MAX as u64;

/// A witness's key. Its memory is zeroed when it is dropped, and it is never printed.
pub struct Cosigner(NamedSecret<COSIGNATURE_V1>);

impl fmt::Debug for Cosigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cosigner({}+{:08x})", self.0.name, self.0.id)
    }
}

impl Cosigner {
    /// The key that belongs to a random seed. The name is the witness's.
    ///
    /// # Errors
    /// [`KeyError::Name`].
    pub fn from_seed(name: &str, seed: &[u8; 32]) -> Result<Self, KeyError> {
        NamedSecret::from_seed(name, seed).map(Self)
    }

    /// Reads `PRIVATE+KEY+<name>+<id>+<key>`.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(line: &str) -> Result<Self, KeyError> {
        NamedSecret::parse(line).map(Self)
    }

    /// The secret line that [`Cosigner::parse`] reads.
    #[must_use]
    pub fn secret_line(&self) -> Zeroizing<String> {
        self.0.line()
    }

    /// The public half.
    #[must_use]
    pub fn verifier_key(&self) -> CosignerKey {
        let NamedSecret { name, id, key } = &self.0;
        CosignerKey { name: name.clone(), id: *id, key: key.verifying_key() }
    }

    /// The signature line, newline included, with which the witness says that at `unix_seconds` this was the largest
    /// tree that it had seen of the log. Whoever calls this has checked that it is so.
    ///
    /// # Errors
    /// [`CheckpointError::Sign`], also for a time that is no time: zero, or more than a cosignature can hold.
    pub fn cosign(&self, checkpoint: &Checkpoint, unix_seconds: u64) -> Result<String, CheckpointError> {
        if unix_seconds == 0 || unix_seconds > SECONDS_MAX {
            return Err(CheckpointError::Sign);
        }
        let message = message(checkpoint, unix_seconds);
        let signature = self.0.key.try_sign(message.as_bytes()).map_err(|_| CheckpointError::Sign)?;
        let mut stamped = unix_seconds.to_be_bytes().to_vec();
        stamped.extend_from_slice(&signature.to_bytes());
        let line = signed_note::Signature::new(self.0.name.clone(), self.0.id, stamped);
        let line = line.map_err(|_| CheckpointError::Sign)?.to_bytes();
        String::from_utf8(line).map_err(|_| CheckpointError::Form)
    }
}

/// A witness's public key. `Display` writes the line that [`CosignerKey::parse`] reads.
#[derive(Clone, PartialEq, Eq)]
pub struct CosignerKey {
    name: String,
    id: u32,
    key: VerifyingKey,
}

impl CosignerKey {
    /// Reads `<name>+<id>+<key>`, without a newline.
    ///
    /// # Errors
    /// [`KeyError`]; [`KeyError::Algorithm`] for the key of a log.
    pub fn parse(line: &str) -> Result<Self, KeyError> {
        let (name, id, key) = parse_public(line, COSIGNATURE_V1)?;
        Ok(Self { name, id, key })
    }

    /// The witness's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This witness's cosignature of the checkpoint among the signature lines of a note or of an answer, if it is there.
    /// Lines of others are ignored.
    ///
    /// # Errors
    /// [`CheckpointError::Signature`] for a line that claims to be this witness's and is not; also for text that is
    /// longer, or has more lines, than a checkpoint may.
    pub fn find(&self, checkpoint: &Checkpoint, lines: &[u8]) -> Result<Option<Cosignature>, CheckpointError> {
        if lines.len() > CHECKPOINT_BYTES_MAX {
            return Err(CheckpointError::TooLong { length: lines.len() });
        }
        let signatures = signature_lines(lines).count();
        if signatures > SIGNATURES_MAX {
            return Err(CheckpointError::Signatures { signatures });
        }
        for line in signature_lines(lines) {
            let signature = signed_note::Signature::from_bytes(line).map_err(|_| CheckpointError::Note)?;
            if signature.name() == self.name && signature.id() == self.id {
                return self.check(checkpoint, &signature).map(Some).ok_or(CheckpointError::Signature);
            }
        }
        Ok(None)
    }

    fn check(&self, checkpoint: &Checkpoint, signature: &signed_note::Signature) -> Option<Cosignature> {
        let (seconds, bytes) = signature.signature().split_first_chunk::<8>()?;
        let unix_seconds = u64::from_be_bytes(*seconds);
        let bytes = <&[u8; SIGNATURE_LENGTH]>::try_from(bytes).ok()?;
        if unix_seconds == 0 || unix_seconds > SECONDS_MAX {
            return None;
        }
        let message = message(checkpoint, unix_seconds);
        self.key.verify_strict(message.as_bytes(), &Signature::from_bytes(bytes)).ok()?;
        let line = String::from_utf8(signature.to_bytes()).ok()?;
        Some(Cosignature { unix_seconds, line })
    }
}

impl fmt::Display for CosignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut material = vec![COSIGNATURE_V1];
        material.extend_from_slice(self.key.as_bytes());
        let key = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, material);
        write!(f, "{}+{:08x}+{key}", self.name, self.id)
    }
}

impl fmt::Debug for CosignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CosignerKey({self})")
    }
}

/// A checked cosignature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cosignature {
    /// When the witness made it, by its own clock.
    pub unix_seconds: u64,
    /// The signature line, newline included.
    pub line: String,
}

/// What is signed. The witness's name is not in it, so a key belongs to one witness.
fn message(checkpoint: &Checkpoint, unix_seconds: u64) -> String {
    format!("cosignature/v1\ntime {unix_seconds}\n{}", checkpoint.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogSigner, VerifierKey};

    fn checkpoint() -> Checkpoint {
        Checkpoint { origin: "example.com/log".into(), size: 12, root: crate::leaf_hash(b"x") }
    }

    fn witness() -> Cosigner {
        Cosigner::from_seed("witness.example/w1", &[5; 32]).unwrap()
    }

    #[test]
    fn a_cosigned_note_is_good_for_both_keys() {
        let log = LogSigner::from_seed("example.com/log", &[9; 32]).unwrap();
        let line = witness().cosign(&checkpoint(), 1_679_315_147).unwrap();
        assert!(line.starts_with("— witness.example/w1 ") && line.ends_with('\n') && line.len() < 160, "{line}");
        let note = checkpoint().sign(&log).unwrap() + &line;
        assert_eq!(Checkpoint::open(note.as_bytes(), &log.verifier_key()), Ok(checkpoint()));
        let found = witness().verifier_key().find(&checkpoint(), note.as_bytes()).unwrap();
        assert_eq!(found, Some(Cosignature { unix_seconds: 1_679_315_147, line }));
        let other = Cosigner::from_seed("witness.example/w1", &[6; 32]).unwrap().verifier_key();
        assert_eq!(other.find(&checkpoint(), note.as_bytes()), Ok(None), "a namesake's line is another's");
    }

    #[test]
    fn the_message_is_the_one_of_the_specification() {
        let root = tlog_tiles::Hash::parse_hash("CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=").unwrap();
        let behind = Checkpoint { origin: "example.com/behind-the-sofa".into(), size: 20_852_163, root };
        let wanted = "cosignature/v1\ntime 1679315147\nexample.com/behind-the-sofa\n20852163\n\
                      CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n";
        assert_eq!(message(&behind, 1_679_315_147), wanted);
    }

    #[test]
    fn any_flipped_bit_of_a_cosignature_is_no_cosignature() {
        let (key, line) = (witness().verifier_key(), witness().cosign(&checkpoint(), 7).unwrap().into_bytes());
        assert!(key.find(&checkpoint(), &line).unwrap().is_some());
        for bit in 0..line.len() * 8 {
            let mut changed = line.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(key.find(&checkpoint(), &changed), Ok(Some(_))), "bit {bit}");
        }
        let other = Checkpoint { size: 13, ..checkpoint() };
        assert_eq!(key.find(&other, &line), Err(CheckpointError::Signature));
        let other = Checkpoint { origin: "example.com/other".into(), ..checkpoint() };
        assert_eq!(key.find(&other, &line), Err(CheckpointError::Signature));
    }

    #[test]
    fn a_time_that_is_none_is_not_signed_and_not_believed() {
        for seconds in [0, SECONDS_MAX + 1, u64::MAX] {
            assert_eq!(witness().cosign(&checkpoint(), seconds), Err(CheckpointError::Sign));
            // Signed all the same, by a witness with another program.
            let signature = witness().0.key.sign(message(&checkpoint(), seconds).as_bytes());
            let stamped = [&seconds.to_be_bytes()[..], &signature.to_bytes()[..]].concat();
            let line = signed_note::Signature::new(witness().0.name, witness().0.id, stamped).unwrap().to_bytes();
            let found = witness().verifier_key().find(&checkpoint(), &line);
            assert_eq!(found, Err(CheckpointError::Signature), "{seconds}");
        }
    }

    #[test]
    fn what_is_searched_is_bounded() {
        let key = witness().verifier_key();
        let line = "— other.example AAAAAAECAwQFBgc=\n";
        assert_eq!(key.find(&checkpoint(), line.repeat(16).as_bytes()), Ok(None));
        let many = key.find(&checkpoint(), line.repeat(17).as_bytes());
        assert_eq!(many, Err(CheckpointError::Signatures { signatures: 17 }));
        let long = key.find(&checkpoint(), &vec![b'a'; CHECKPOINT_BYTES_MAX + 1]);
        assert!(matches!(long, Err(CheckpointError::TooLong { .. })));
        assert_eq!(key.find(&checkpoint(), b"no line of anybody\n"), Ok(None));
    }

    #[test]
    fn keys_of_witnesses_and_logs_are_told_apart() {
        let line = witness().verifier_key().to_string();
        assert_eq!(CosignerKey::parse(&line), Ok(witness().verifier_key()));
        assert_eq!(VerifierKey::parse(&line), Err(KeyError::Algorithm));
        let again = Cosigner::parse(&witness().secret_line()).unwrap();
        assert_eq!(again.verifier_key(), witness().verifier_key());
        let log = LogSigner::from_seed("example.com/log", &[9; 32]).unwrap();
        assert_eq!(CosignerKey::parse(&log.verifier_key().to_string()), Err(KeyError::Algorithm));
        assert!(matches!(Cosigner::parse(&log.secret_line().unwrap()), Err(KeyError::Algorithm)));
        for position in 0..line.len() {
            let mut bytes = line.clone().into_bytes();
            bytes[position] ^= 1;
            assert!(CosignerKey::parse(std::str::from_utf8(&bytes).unwrap()).is_err(), "byte {position}");
        }
        assert!(!format!("{:?}", witness()).contains(&witness().secret_line().as_str()[35..]));
    }
}
