//! Ed25519 keys of logs in signed notes (algorithm byte 0x01), in the text forms that other implementations read.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ed25519_dalek::{SIGNATURE_LENGTH, Signature, SignatureError, Signer as _, SigningKey, VerifyingKey};
use std::{fmt, io};
use zeroize::{Zeroize as _, Zeroizing};

/// Algorithm byte of a log's signatures.
const ED25519: u8 = 1;
/// Longest key line that is read: a name, and 100 characters for the rest.
const KEY_BYTES_MAX: usize = 512;

/// A key line is not one that this program can use. The line itself is not shown: it may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The name is empty or has a space or a plus.
    #[error("the key's name is empty or has a space or a plus")]
    Name,
    /// Not the form of a key line.
    #[error("not a key line")]
    Form,
    /// The key is for signatures of another kind: a witness's where a log's belongs, or the other way round.
    #[error("the key is not of the kind that belongs here")]
    Algorithm,
    /// The key id does not belong to name and key.
    #[error("the key id does not belong to the key and its name")]
    Id,
}

fn check_name(name: &str) -> Result<(), KeyError> {
    let plain = !name.chars().any(char::is_control) && name.len() <= KEY_BYTES_MAX - 100;
    if plain && signed_note::is_key_name_valid(name) { Ok(()) } else { Err(KeyError::Name) }
}

/// A secret key under its name, for signatures of one algorithm. Its memory is zeroed when it is dropped.
pub(crate) struct NamedSecret<const ALGORITHM: u8> {
    pub(crate) name: String,
    pub(crate) id: u32,
    pub(crate) key: SigningKey,
}

impl<const ALGORITHM: u8> NamedSecret<ALGORITHM> {
    pub(crate) fn from_seed(name: &str, seed: &[u8; 32]) -> Result<Self, KeyError> {
        check_name(name)?;
        let key = SigningKey::from_bytes(seed);
        let id = key_id(name, ALGORITHM, key.verifying_key().as_bytes());
        Ok(Self { name: name.to_owned(), id, key })
    }

    /// Reads `PRIVATE+KEY+<name>+<id>+<key>`.
    pub(crate) fn parse(line: &str) -> Result<Self, KeyError> {
        let rest = line.strip_prefix("PRIVATE+KEY+").ok_or(KeyError::Form)?;
        let (name, id, key) = split(rest)?;
        let mut key = Zeroizing::new(key);
        let seed: Zeroizing<[u8; 32]> = Zeroizing::new(material(&key, ALGORITHM)?);
        key.zeroize();
        let secret = Self::from_seed(name, &seed)?;
        if secret.id == id { Ok(secret) } else { Err(KeyError::Id) }
    }

    /// As [`NamedSecret::parse`] reads it.
    pub(crate) fn line(&self) -> Zeroizing<String> {
        let mut material = Zeroizing::new([ALGORITHM; 33]);
        if let Some(place) = material.get_mut(1..) {
            place.copy_from_slice(self.key.as_bytes());
        }
        let key = Zeroizing::new(BASE64_STANDARD.encode(material.as_slice()));
        Zeroizing::new(format!("PRIVATE+KEY+{}+{:08x}+{}", self.name, self.id, key.as_str()))
    }
}

/// Signs where the secret is: in another process, in a security module.
pub trait ExternalSigner: Send + Sync {
    /// The Ed25519 signature of these bytes. May block.
    ///
    /// # Errors
    /// Whatever kept it from signing; it names no secret.
    fn sign(&self, message: &[u8]) -> io::Result<[u8; SIGNATURE_LENGTH]>;
}

/// A log's signing key. Its memory is zeroed when it is dropped, and it is never printed.
pub struct LogSigner(Held);

enum Held {
    Here(NamedSecret<ED25519>),
    Elsewhere { key: VerifierKey, signer: Box<dyn ExternalSigner> },
}

impl fmt::Debug for LogSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, id) = match &self.0 {
            Held::Here(secret) => (&secret.name, secret.id),
            Held::Elsewhere { key, .. } => (&key.name, key.id),
        };
        write!(f, "LogSigner({name}+{id:08x})")
    }
}

impl LogSigner {
    /// The key that belongs to a random seed. The name is the log's origin.
    ///
    /// # Errors
    /// [`KeyError::Name`].
    pub fn from_seed(name: &str, seed: &[u8; 32]) -> Result<Self, KeyError> {
        NamedSecret::from_seed(name, seed).map(|secret| Self(Held::Here(secret)))
    }

    /// The key whose public half is `key`, and whose secret is elsewhere.
    #[must_use]
    pub fn elsewhere(key: VerifierKey, signer: Box<dyn ExternalSigner>) -> Self {
        Self(Held::Elsewhere { key, signer })
    }

    /// Reads `PRIVATE+KEY+<name>+<id>+<key>`.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(line: &str) -> Result<Self, KeyError> {
        NamedSecret::parse(line).map(|secret| Self(Held::Here(secret)))
    }

    /// Whether the secret is in this process, which then signs more than checkpoints.
    #[must_use]
    pub fn is_here(&self) -> bool {
        matches!(self.0, Held::Here(_))
    }

    /// The secret line that [`LogSigner::parse`] reads; `None` when the secret is elsewhere.
    #[must_use]
    pub fn secret_line(&self) -> Option<Zeroizing<String>> {
        match &self.0 {
            Held::Here(secret) => Some(secret.line()),
            Held::Elsewhere { .. } => None,
        }
    }

    /// The public half.
    #[must_use]
    pub fn verifier_key(&self) -> VerifierKey {
        match &self.0 {
            Held::Here(NamedSecret { name, id, key }) => {
                VerifierKey { name: name.clone(), id: *id, key: key.verifying_key() }
            }
            Held::Elsewhere { key, .. } => key.clone(),
        }
    }

    /// The key's name, which is the log's origin.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Held::Here(secret) => &secret.name,
            Held::Elsewhere { key, .. } => &key.name,
        }
    }

    /// The signature of these bytes. What comes from elsewhere is verified first: a signature that nobody could verify would
    /// end the log.
    ///
    /// # Errors
    /// Whatever kept it from signing; it names no secret.
    pub fn sign_bytes(&self, message: &[u8]) -> io::Result<[u8; SIGNATURE_LENGTH]> {
        match &self.0 {
            Held::Here(secret) => Ok(secret.key.try_sign(message).map_err(io::Error::other)?.to_bytes()),
            Held::Elsewhere { key, signer } => {
                let signature = signer.sign(message)?;
                if key.verifies(message, &signature) { Ok(signature) } else { Err(io::ErrorKind::InvalidData.into()) }
            }
        }
    }
}

impl signed_note::Signer for LogSigner {
    fn name(&self) -> &str {
        self.name()
    }

    fn key_id(&self) -> u32 {
        match &self.0 {
            Held::Here(secret) => secret.id,
            Held::Elsewhere { key, .. } => key.id,
        }
    }

    fn sign(&self, msg: &[u8]) -> Result<Vec<u8>, SignatureError> {
        self.sign_bytes(msg).map(Vec::from).map_err(SignatureError::from_source)
    }
}

/// A log's public key. `Display` writes the line that [`VerifierKey::parse`] reads.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifierKey {
    name: String,
    id: u32,
    key: VerifyingKey,
}

impl VerifierKey {
    /// Reads `<name>+<id>+<key>`, without a newline.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(line: &str) -> Result<Self, KeyError> {
        let (name, id, key) = parse_public(line, ED25519)?;
        Ok(Self { name, id, key })
    }

    /// The key of these bytes, under this name.
    ///
    /// # Errors
    /// [`KeyError::Name`]; [`KeyError::Form`] when they are no key.
    pub fn from_bytes(name: &str, key: &[u8; 32]) -> Result<Self, KeyError> {
        check_name(name)?;
        let line = format!("{name}+{:08x}+", key_id(name, ED25519, key));
        let mut material = vec![ED25519];
        material.extend_from_slice(key);
        Self::parse(&(line + &BASE64_STANDARD.encode(material)))
    }

    /// The key's name, which is the log's origin.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in signature lines, which says which key is meant and nothing more.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether this is its signature of these bytes.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = <&[u8; SIGNATURE_LENGTH]>::try_from(signature) else { return false };
        self.key.verify_strict(message, &Signature::from_bytes(signature)).is_ok()
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&signed_note::new_ed25519_verifier_key(&self.name, &self.key))
    }
}

impl fmt::Debug for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifierKey({self})")
    }
}

impl signed_note::Verifier for VerifierKey {
    fn name(&self) -> &str {
        &self.name
    }

    fn key_id(&self) -> u32 {
        self.id
    }

    fn verify(&self, msg: &[u8], sig: &[u8]) -> bool {
        self.verifies(msg, sig)
    }
}

fn key_id(name: &str, algorithm: u8, key: &[u8; 32]) -> u32 {
    let mut material = vec![algorithm];
    material.extend_from_slice(key);
    signed_note::key_id(name, &material)
}

/// Reads `<name>+<id>+<key>` of a public key of that kind.
pub(crate) fn parse_public(line: &str, algorithm: u8) -> Result<(String, u32, VerifyingKey), KeyError> {
    let (name, id, key) = split(line)?;
    let key = VerifyingKey::from_bytes(&material(&key, algorithm)?).map_err(|_| KeyError::Form)?;
    // A key of small order would accept signatures of anybody.
    if key.is_weak() {
        return Err(KeyError::Form);
    }
    if key_id(name, algorithm, key.as_bytes()) != id {
        return Err(KeyError::Id);
    }
    Ok((name.to_owned(), id, key))
}

/// Splits `<name>+<id>+<key>`, the key still with its algorithm byte.
fn split(line: &str) -> Result<(&str, u32, Vec<u8>), KeyError> {
    if line.len() > KEY_BYTES_MAX {
        return Err(KeyError::Form);
    }
    let mut parts = line.splitn(3, '+');
    let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(KeyError::Form);
    };
    check_name(name)?;
    // `from_str_radix` also takes a sign; eight characters that print again as they were are the one form.
    let number = u32::from_str_radix(id, 16).map_err(|_| KeyError::Form)?;
    if format!("{number:08x}") != id {
        return Err(KeyError::Form);
    }
    Ok((name, number, BASE64_STANDARD.decode(key).map_err(|_| KeyError::Form)?))
}

fn material(key: &[u8], algorithm: u8) -> Result<[u8; 32], KeyError> {
    match key.split_first() {
        Some((found, key)) if *found == algorithm => key.try_into().map_err(|_| KeyError::Form),
        Some(_) => Err(KeyError::Algorithm),
        None => Err(KeyError::Form),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signed_note::{Signer as _, Verifier as _};

    #[test]
    fn key_lines_are_read_back() {
        let signer = LogSigner::from_seed("example.com/log", &[3; 32]).unwrap();
        let again = LogSigner::parse(&signer.secret_line().unwrap()).unwrap();
        assert_eq!(again.verifier_key(), signer.verifier_key());
        let line = signer.verifier_key().to_string();
        let verifier = VerifierKey::parse(&line).unwrap();
        assert!(verifier.verify(b"text", &again.sign(b"text").unwrap()));
        assert!(!verifier.verify(b"texT", &again.sign(b"text").unwrap()));
        assert!(!verifier.verify(b"text", &again.sign(b"text").unwrap()[..63]));
        // The other implementation of the same text form agrees.
        assert!(signed_note::StandardVerifier::new(&line).is_ok());
        assert!(signed_note::StandardSigner::new(&signer.secret_line().unwrap()).is_ok());
    }

    #[test]
    fn the_published_key_of_the_note_package_is_read() {
        let line = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
        assert_eq!(VerifierKey::parse(line).map(|key| key.to_string()).as_deref(), Ok(line));
    }

    #[test]
    fn other_lines_are_refused() {
        let line = LogSigner::from_seed("log", &[3; 32]).unwrap().verifier_key().to_string();
        for position in 0..line.len() {
            let mut bytes = line.clone().into_bytes();
            bytes[position] ^= 1;
            assert!(VerifierKey::parse(std::str::from_utf8(&bytes).unwrap()).is_err(), "byte {position}");
        }
        assert_eq!(VerifierKey::parse(&format!("{line}\n")), Err(KeyError::Form));
        assert_eq!(VerifierKey::parse(&line.to_uppercase()).unwrap_err(), KeyError::Form);
        assert_eq!(VerifierKey::parse(""), Err(KeyError::Form));
        assert_eq!(VerifierKey::parse(&format!("{}+00000000+AQ==", "n".repeat(600))), Err(KeyError::Form));
        assert!(matches!(LogSigner::from_seed("two words", &[3; 32]), Err(KeyError::Name)));
        assert!(matches!(LogSigner::from_seed("a+b", &[3; 32]), Err(KeyError::Name)));
        assert!(matches!(LogSigner::from_seed("", &[3; 32]), Err(KeyError::Name)));
        let mut weak = vec![ED25519];
        weak.extend_from_slice(&[0; 32]);
        let id = signed_note::key_id("log", &weak);
        let weak = format!("log+{id:08x}+{}", BASE64_STANDARD.encode(&weak));
        assert_eq!(VerifierKey::parse(&weak), Err(KeyError::Form));
    }

    /// Signs with a key of its own, whatever it was asked for.
    struct Other(LogSigner);

    impl ExternalSigner for Other {
        fn sign(&self, message: &[u8]) -> io::Result<[u8; SIGNATURE_LENGTH]> {
            self.0.sign_bytes(message)
        }
    }

    #[test]
    fn a_signature_from_elsewhere_is_verified_before_it_is_used() {
        let signer = |seed| LogSigner::from_seed("log", &[seed; 32]).unwrap();
        let elsewhere = |seed| LogSigner::elsewhere(signer(3).verifier_key(), Box::new(Other(signer(seed))));
        let own = elsewhere(3);
        assert_eq!(own.sign(b"text").unwrap(), signer(3).sign(b"text").unwrap());
        assert_eq!(
            (own.name(), own.key_id(), own.verifier_key()),
            ("log", signer(3).key_id(), signer(3).verifier_key())
        );
        assert!(own.secret_line().is_none());
        assert!(elsewhere(4).sign(b"text").is_err());
        let bytes = *signer(3).verifier_key().key.as_bytes();
        assert_eq!(VerifierKey::from_bytes("log", &bytes), Ok(signer(3).verifier_key()));
        assert_eq!(VerifierKey::from_bytes("two words", &bytes), Err(KeyError::Name));
        assert_eq!(VerifierKey::from_bytes("log", &[0; 32]), Err(KeyError::Form));
    }

    #[test]
    fn debug_shows_no_secret() {
        let signer = LogSigner::from_seed("log", &[3; 32]).unwrap();
        assert!(!format!("{signer:?}").contains(&signer.secret_line().unwrap().as_str()[25..]));
    }
}
