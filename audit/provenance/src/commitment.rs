//! Commitments: what the log holds in the place of content. Without its salt a commitment tells nothing, not even to
//! somebody who can guess the content; with it, it can be opened by anyone.

use sha2::{Digest as _, Sha256};

/// A commitment's salt, 32 bytes. Derived from a key that can be destroyed: see `audit-log`.
pub type Salt = [u8; 32];

/// What a commitment is about; part of its hash and of its salt, so that one cannot stand for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The request body as received.
    Request,
    /// The tenant's name.
    Tenant,
    /// The payloads of a response, one after the other.
    Response,
    /// The chain over the payloads of a response.
    Chunks,
    /// The replay digest of a response.
    Replay,
}

impl Field {
    /// The field's name in hashes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Tenant => "tenant",
            Self::Response => "response",
            Self::Chunks => "chunks",
            Self::Replay => "replay",
        }
    }
}

/// Takes content piece by piece and commits to all of it:
/// SHA-256(`isolog/v1/` field 0x00 salt content).
#[derive(Clone)]
pub struct Commitment(Sha256);

impl std::fmt::Debug for Commitment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Commitment(..)")
    }
}

impl Commitment {
    /// Begins with nothing but the salt.
    #[must_use]
    pub fn new(field: Field, salt: &Salt) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"isolog/v1/");
        hash.update(field.name());
        hash.update([0]);
        hash.update(salt);
        Self(hash)
    }

    /// Adds content.
    pub fn update(&mut self, content: &[u8]) {
        self.0.update(content);
    }

    /// The commitment.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    /// Commits to content that is all there.
    #[must_use]
    pub fn of(field: Field, salt: &Salt, content: &[u8]) -> [u8; 32] {
        let mut commitment = Self::new(field, salt);
        commitment.update(content);
        commitment.finish()
    }
}

/// The chain over what was sent, which ties every chunk to its place and to the steps that it comes from.
///
/// `c0` is the commitment of the request's commitment under the field `chunks`: salted, or a short answer could be
/// guessed from the log. `ci = SHA-256(c(i-1) u32 length, payload, u32 first step, u32 last step)`, big-endian.
#[derive(Debug, Clone)]
pub struct ChunkChain {
    head: [u8; 32],
    chunks: u64,
}

impl ChunkChain {
    /// The chain before the first chunk.
    #[must_use]
    pub fn new(salt: &Salt, request_commitment: &[u8; 32]) -> Self {
        Self { head: Commitment::of(Field::Chunks, salt, request_commitment), chunks: 0 }
    }

    /// Adds a payload as sent, framing excluded. A payload is below 4 GiB; its length is hashed modulo that.
    pub fn push(&mut self, payload: &[u8], first_step: u32, last_step: u32) {
        let mut hash = Sha256::new();
        hash.update(self.head);
        #[expect(clippy::cast_possible_truncation, reason = "documented: the length counts modulo 2^32")]
        hash.update((payload.len() as u32).to_be_bytes());
        hash.update(payload);
        hash.update(first_step.to_be_bytes());
        hash.update(last_step.to_be_bytes());
        self.head = hash.finalize().into();
        self.chunks += 1;
    }

    /// The head after the chunks so far.
    #[must_use]
    pub fn head(&self) -> [u8; 32] {
        self.head
    }

    /// Chunks so far.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }
}
