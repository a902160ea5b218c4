//! Who hands what to whom: ids of handoffs, lives of processes, digests that name a request and a model.

use crate::key::HandoffKey;
use policies_domain::Label;
use std::fmt;

fn hexadecimal(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// One handoff, once: 128 random bits that the gateway draws. A retry is another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandoffId([u8; 16]);

impl HandoffId {
    /// From bytes that were drawn at random by the gateway, or read from a peer that got them from there.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for HandoffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

impl fmt::Debug for HandoffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandoffId({self})")
    }
}

/// One life of a worker process: 64 random bits, drawn when it starts. What an earlier life knew is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// How often a request was tried, from 0. Every attempt has a [`HandoffId`] of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// What every message carries: which handoff, and between which lives of which workers. Compared as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// Which handoff.
    pub id: HandoffId,
    /// Which try of its request.
    pub attempt: Attempt,
    /// The life of the prefill worker that it was made for.
    pub prefill: Incarnation,
    /// The life of the decode worker that it was made for.
    pub decode: Incarnation,
}

/// The three who take part. A driver finds the peer's address by the incarnation in the message's route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Party {
    /// Draws the ids and knows the client.
    Gateway,
    /// Computes the prompt.
    Prefill,
    /// Goes on from there.
    Decode,
}

/// A keyed digest of everything about a request that decides its KV and its first token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestDigest(pub [u8; 32]);

impl fmt::Debug for RequestDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestDigest(")?;
        hexadecimal(f, &self.0)?;
        f.write_str(")")
    }
}

/// What a [`RequestDigest`] is made of. Each side fills it from its own copy of the request.
#[derive(Clone, Copy)]
pub struct RequestFacts<'a> {
    /// Whose request it is.
    pub domain: Label,
    /// The prompt.
    pub tokens: &'a [u32],
    /// Sampling settings that change the first token, in one fixed encoding of the driver's choice.
    pub sampling: &'a [u8],
    /// Which adapter in which version; 0 for none.
    pub adapter_generation: u64,
    /// With which model, in which layout.
    pub fingerprint: Fingerprint,
}

impl RequestFacts<'_> {
    /// Under a key, so that who sees the digest cannot confirm a guess of the prompt.
    #[must_use]
    pub fn digest(&self, key: &HandoffKey) -> RequestDigest {
        let mut hasher = key.request();
        hasher.update(&self.domain.bits().to_le_bytes());
        hasher.update(&self.adapter_generation.to_le_bytes());
        hasher.update(&self.fingerprint.0);
        // The lengths come first: no two requests have the same bytes.
        hasher.update(&(self.tokens.len() as u64).to_le_bytes());
        hasher.update(&(self.sampling.len() as u64).to_le_bytes());
        for token in self.tokens {
            hasher.update(&token.to_le_bytes());
        }
        hasher.update(self.sampling);
        RequestDigest(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for RequestFacts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestFacts({}, {} tokens)", self.domain, self.tokens.len())
    }
}

/// Model revision, tokenizer, weights, adapter, rope settings, page size, number format, map of layers and heads, and the
/// byte layout of every region, as one digest: pages of another one mean something else.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(")?;
        hexadecimal(f, &self.0)?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policies_domain::TenantId;

    #[test]
    fn every_fact_of_a_request_changes_its_digest() {
        let key = HandoffKey::new([1; 32]);
        let tenant = |number| Label::of(TenantId::new(number).unwrap());
        let facts = RequestFacts {
            domain: tenant(1),
            tokens: &[1, 2, 3],
            sampling: &[9, 9],
            adapter_generation: 0,
            fingerprint: Fingerprint([5; 32]),
        };
        let others = [
            RequestFacts { domain: tenant(2), ..facts },
            RequestFacts { tokens: &[1, 2], ..facts },
            RequestFacts { tokens: &[1, 3, 2], ..facts },
            RequestFacts { tokens: &[1, 2, 3, 0x0909], sampling: &[0, 0], ..facts },
            RequestFacts { sampling: &[9], ..facts },
            RequestFacts { sampling: &[], ..facts },
            RequestFacts { adapter_generation: 1, ..facts },
            RequestFacts { fingerprint: Fingerprint([6; 32]), ..facts },
        ];
        for other in others {
            assert_ne!(other.digest(&key), facts.digest(&key), "{other:?}");
        }
        assert_eq!(facts.digest(&key), RequestFacts { tokens: &[1, 2, 3], ..facts }.digest(&key));
        assert_ne!(facts.digest(&key), facts.digest(&HandoffKey::new([2; 32])), "a guess needs the key");
    }

    #[test]
    fn a_prompt_is_not_in_debug() {
        let facts = RequestFacts {
            domain: Label::of(TenantId::new(1).unwrap()),
            tokens: &[314_159],
            sampling: &[],
            adapter_generation: 0,
            fingerprint: Fingerprint([0; 32]),
        };
        assert!(!format!("{facts:?}").contains("314159"));
    }
}
