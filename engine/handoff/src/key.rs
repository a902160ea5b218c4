//! The key that the prefill and the decode side share for one boot, and what is derived from it.

use std::fmt;
use std::hash::{Hash, Hasher};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// Keys for seals, frames, request digests and page digests, all derived from one secret. Never shown, wiped when dropped.
#[derive(Clone)]
pub struct HandoffKey {
    seal: [u8; 32],
    frame: [u8; 32],
    request: [u8; 32],
    content: [u8; 32],
}

impl HandoffKey {
    /// `boot_secret`: fresh random bytes that both sides were given when they were started.
    #[must_use]
    pub fn new(mut boot_secret: [u8; 32]) -> Self {
        let key = Self {
            seal: blake3::derive_key("bulkhead sealed handoff, manifests, 1", &boot_secret),
            frame: blake3::derive_key("bulkhead sealed handoff, frames, 1", &boot_secret),
            request: blake3::derive_key("bulkhead sealed handoff, request digests, 1", &boot_secret),
            content: blake3::derive_key("bulkhead sealed handoff, page digests, 1", &boot_secret),
        };
        boot_secret.zeroize();
        key
    }

    pub(crate) fn seal(&self, bytes: &[u8]) -> Seal {
        Seal(*blake3::keyed_hash(&self.seal, bytes).as_bytes())
    }

    pub(crate) fn frame(&self, bytes: &[u8]) -> Seal {
        Seal(*blake3::keyed_hash(&self.frame, bytes).as_bytes())
    }

    pub(crate) fn request(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.request)
    }

    /// Bytes for the constants of the page digest.
    pub(crate) fn content(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.content)
    }
}

impl Drop for HandoffKey {
    fn drop(&mut self) {
        self.seal.zeroize();
        self.frame.zeroize();
        self.request.zeroize();
        self.content.zeroize();
    }
}

impl PartialEq for HandoffKey {
    fn eq(&self, other: &Self) -> bool {
        // All four come from one secret.
        self.seal.ct_eq(&other.seal).into()
    }
}

impl Eq for HandoffKey {}

impl Hash for HandoffKey {
    /// Nothing of the key: whoever hashes a state must not learn a function of the secret.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for HandoffKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandoffKey")
    }
}

/// A keyed BLAKE3 hash over a manifest or a frame. Its `==` takes constant time.
#[derive(Clone, Copy)]
pub struct Seal([u8; 32]);

impl Seal {
    /// Bytes of a seal.
    pub const BYTES: usize = 32;

    /// As it was received. Worth nothing until it was compared.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// For the wire.
    #[must_use]
    pub fn bytes(self) -> [u8; 32] {
        self.0
    }
}

impl PartialEq for Seal {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Seal {}

impl Hash for Seal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_of_one_key_one_use_and_one_text() {
        let (key, other) = (HandoffKey::new([1; 32]), HandoffKey::new([2; 32]));
        assert_eq!(key.seal(b"a"), key.clone().seal(b"a"));
        assert_ne!(key.seal(b"a"), key.seal(b"b"));
        assert_ne!(key.seal(b"a"), other.seal(b"a"));
        assert_ne!(key.seal(b"a"), key.frame(b"a"), "a frame's seal is no manifest's");
        assert_ne!(key, other);
    }

    #[test]
    fn a_key_is_not_in_debug() {
        assert_eq!(format!("{:?} {:?}", HandoffKey::new([7; 32]), Seal([7; 32])), "HandoffKey Seal");
    }
}
