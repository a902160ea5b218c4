//! What the prefill side says that it hands over: every fact that the decode side compares, under one seal.

use crate::content::ContentDigest;
use crate::encoding::{DecodeError, Decoder, Encoder};
use crate::identity::{Attempt, Fingerprint, HandoffId, Incarnation, RequestDigest, Route};
use crate::key::{HandoffKey, Seal};
use policies_domain::{Generation, Label};
use std::fmt;

/// A token that nobody but the decode side may see: it is part of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FirstToken(u32);

impl FirstToken {
    /// Wraps a token's number so that it cannot be printed by accident.
    #[must_use]
    pub const fn new(token: u32) -> Self {
        Self(token)
    }

    /// For the decode step and its grammar, and for nobody who writes logs.
    #[must_use]
    pub fn reveal(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for FirstToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FirstToken")
    }
}

/// Where the sampler stands after the first token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SamplerState {
    /// The seed of the request's random numbers.
    pub seed: u64,
    /// How many steps have drawn from it.
    pub step: u64,
}

impl fmt::Debug for SamplerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // With the seed one could repeat an answer.
        write!(f, "SamplerState(step {})", self.step)
    }
}

/// What sampling the first token left behind. Travels inside the manifest, never in a slot of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FirstStep {
    /// The first token of the answer.
    pub token: FirstToken,
    /// Its log-probability, as the bits of an `f32`.
    pub log_prob_bits: u32,
    /// The sampler after it.
    pub sampler: SamplerState,
    /// Digest of the grammar's state after it; zeros when the request has no grammar.
    pub grammar: [u8; 32],
    /// The replay digest after it; zeros when none is made.
    pub replay: [u8; 32],
}

impl fmt::Debug for FirstStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FirstStep({:?})", self.sampler)
    }
}

/// One page of the sequence, as it lay on the prefill side when it was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ManifestPage {
    /// Its place in the sequence, from 0.
    pub logical: u32,
    /// In which life of the source page.
    pub generation: Generation,
    /// The tag of that life, which stands in the page's own bytes too and travels with them.
    pub tag: u32,
    /// Digest of its bytes.
    pub digest: ContentDigest,
}

/// Everything that is handed over but the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Manifest {
    /// Which handoff, between whom.
    pub route: Route,
    /// Whose data it is.
    pub domain: Label,
    /// Which request, as the prefill side computed it from its own copy.
    pub request: RequestDigest,
    /// With which model it was computed.
    pub fingerprint: Fingerprint,
    /// Tokens that the pages hold.
    pub tokens: u32,
    /// The pages in the order of the sequence.
    pub pages: Vec<ManifestPage>,
    /// Digest of each layer over all pages.
    pub layers: Vec<ContentDigest>,
    /// The first token and what sampling it left.
    pub first: FirstStep,
    /// How long the source pages are kept for, from the moment at which this was sent. A duration: each side counts on
    /// its own clock.
    pub lease_ms: u32,
}

/// Pages of one handoff at most: a million tokens in pages of 16.
pub const PAGES_MAX: u32 = 1 << 16;
/// Layers of a model at most.
pub const LAYERS_MAX: u32 = 1 << 10;

const PAGE_BYTES: usize = 4 + 4 + 4 + DIGEST_BYTES;
const DIGEST_BYTES: usize = 16;
/// Bytes of the largest manifest.
pub(crate) const MANIFEST_BYTES_MAX: usize = 512 + PAGES_MAX as usize * PAGE_BYTES + LAYERS_MAX as usize * DIGEST_BYTES;

impl Manifest {
    /// The sum over all pages: what the decode side repeats when it has verified them.
    #[must_use]
    pub fn total(&self) -> ContentDigest {
        ContentDigest::sum(self.pages.iter().map(|page| page.digest))
    }

    /// The one encoding of this manifest.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        self.write(&mut encoder);
        encoder.finish()
    }

    pub(crate) fn write(&self, to: &mut Encoder) {
        write_route(to, self.route);
        to.u32(self.domain.bits());
        to.bytes(&self.request.0);
        to.bytes(&self.fingerprint.0);
        to.u32(self.tokens);
        to.length(self.pages.len());
        for page in &self.pages {
            to.u32(page.logical);
            to.u32(page.generation.0);
            to.u32(page.tag);
            write_digest(to, page.digest);
        }
        to.length(self.layers.len());
        self.layers.iter().for_each(|layer| write_digest(to, *layer));
        to.u32(self.first.token.reveal());
        to.u32(self.first.log_prob_bits);
        to.u64(self.first.sampler.seed);
        to.u64(self.first.sampler.step);
        to.bytes(&self.first.grammar);
        to.bytes(&self.first.replay);
        to.u32(self.lease_ms);
    }

    /// Reads what [`Manifest::encode`] wrote.
    ///
    /// # Errors
    /// [`DecodeError`] for any other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(bytes);
        let manifest = Self::read(&mut decoder)?;
        decoder.finish()?;
        Ok(manifest)
    }

    pub(crate) fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            route: read_route(from)?,
            domain: read_domain(from)?,
            request: RequestDigest(from.array()?),
            fingerprint: Fingerprint(from.array()?),
            tokens: from.u32()?,
            pages: from.list("pages", PAGES_MAX, PAGE_BYTES, |from| {
                Ok(ManifestPage {
                    logical: from.u32()?,
                    generation: Generation(from.u32()?),
                    tag: from.u32()?,
                    digest: read_digest(from)?,
                })
            })?,
            layers: from.list("layers", LAYERS_MAX, DIGEST_BYTES, read_digest)?,
            first: FirstStep {
                token: FirstToken::new(from.u32()?),
                log_prob_bits: from.u32()?,
                sampler: SamplerState { seed: from.u64()?, step: from.u64()? },
                grammar: from.array()?,
                replay: from.array()?,
            },
            lease_ms: from.u32()?,
        })
    }

    /// Seals it under the key that both sides share.
    #[must_use]
    pub fn seal(self, key: &HandoffKey) -> SealedManifest {
        let seal = key.seal(&self.encode());
        SealedManifest { manifest: self, seal }
    }
}

/// A manifest with its seal, good or not: whoever received one asks [`SealedManifest::holds`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SealedManifest {
    /// What it says.
    pub manifest: Manifest,
    /// The seal that came with it.
    pub seal: Seal,
}

impl SealedManifest {
    /// Is this the manifest that was sealed? Constant time in the seal.
    #[must_use]
    pub fn holds(&self, key: &HandoffKey) -> bool {
        key.seal(&self.manifest.encode()) == self.seal
    }
}

pub(crate) fn write_route(to: &mut Encoder, route: Route) {
    to.bytes(&route.id.bytes());
    to.u32(route.attempt.0);
    to.u64(route.prefill.0);
    to.u64(route.decode.0);
}

pub(crate) fn read_route(from: &mut Decoder<'_>) -> Result<Route, DecodeError> {
    Ok(Route {
        id: HandoffId::from_bytes(from.array()?),
        attempt: Attempt(from.u32()?),
        prefill: Incarnation(from.u64()?),
        decode: Incarnation(from.u64()?),
    })
}

pub(crate) fn write_digest(to: &mut Encoder, digest: ContentDigest) {
    digest.0.iter().for_each(|lane| to.u64(*lane));
}

pub(crate) fn read_digest(from: &mut Decoder<'_>) -> Result<ContentDigest, DecodeError> {
    Ok(ContentDigest([from.u64()?, from.u64()?]))
}

/// Data of one tenant: what is nobody's or everybody's is not handed over.
pub(crate) fn read_domain(from: &mut Decoder<'_>) -> Result<Label, DecodeError> {
    match Label::from_bits(from.u32()?) {
        Some(label) if label != Label::NOBODY && label != Label::PUBLIC => Ok(label),
        _ => Err(DecodeError::Field { field: "domain" }),
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use policies_domain::TenantId;
    use proptest::prelude::*;

    pub(crate) fn route() -> impl Strategy<Value = Route> {
        (any::<[u8; 16]>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(id, attempt, prefill, decode)| Route {
            id: HandoffId::from_bytes(id),
            attempt: Attempt(attempt),
            prefill: Incarnation(prefill),
            decode: Incarnation(decode),
        })
    }

    pub(crate) fn digest() -> impl Strategy<Value = ContentDigest> {
        any::<[u64; 2]>().prop_map(ContentDigest)
    }

    pub(crate) fn domain() -> impl Strategy<Value = Label> {
        (1..TenantId::MAX).prop_map(|number| Label::of(TenantId::new(number).unwrap()))
    }

    pub(crate) fn manifest() -> impl Strategy<Value = Manifest> {
        let page =
            (any::<u32>(), any::<u32>(), any::<u32>(), digest()).prop_map(|(logical, generation, tag, digest)| {
                ManifestPage { logical, generation: Generation(generation), tag, digest }
            });
        let first = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<[[u8; 32]; 2]>()).prop_map(
            |(token, log_prob_bits, seed, step, [grammar, replay])| FirstStep {
                token: FirstToken::new(token),
                log_prob_bits,
                sampler: SamplerState { seed, step },
                grammar,
                replay,
            },
        );
        let lists = (proptest::collection::vec(page, 0..4), proptest::collection::vec(digest(), 0..4));
        let rest = (any::<[u8; 32]>(), any::<[u8; 32]>(), any::<u32>(), any::<u32>());
        (route(), domain(), lists, first, rest).prop_map(|(route, domain, (pages, layers), first, rest)| Manifest {
            route,
            domain,
            request: RequestDigest(rest.0),
            fingerprint: Fingerprint(rest.1),
            tokens: rest.2,
            pages,
            layers,
            first,
            lease_ms: rest.3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_manifest_is_read_as_it_was_written(manifest in samples::manifest()) {
            prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }

        #[test]
        fn different_manifests_have_different_bytes(a in samples::manifest(), b in samples::manifest()) {
            prop_assert_eq!(a == b, a.encode() == b.encode());
        }

        /// Bytes that are a manifest are the ones that the manifest is written as.
        #[test]
        fn there_is_no_second_encoding(manifest in samples::manifest(), at in any::<prop::sample::Index>(), change in 1u8..) {
            let mut bytes = manifest.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            if let Ok(other) = Manifest::decode(&bytes) {
                prop_assert_eq!(other.encode(), bytes);
                prop_assert_ne!(other, manifest);
            }
        }

        #[test]
        fn every_flipped_bit_breaks_the_seal(manifest in samples::manifest(), at in any::<prop::sample::Index>(), bit in 0u32..8) {
            let key = HandoffKey::new([1; 32]);
            let sealed = manifest.seal(&key);
            prop_assert!(sealed.holds(&key) && !sealed.holds(&HandoffKey::new([2; 32])));
            let mut bytes = sealed.manifest.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            if let Ok(manifest) = Manifest::decode(&bytes) {
                let other = SealedManifest { manifest, seal: sealed.seal };
                prop_assert!(!other.holds(&key));
            }
            let mut seal = sealed.seal.bytes();
            seal[at % 32] ^= 1 << bit;
            let other = SealedManifest { seal: Seal::from_bytes(seal), ..sealed };
            prop_assert!(!other.holds(&key));
        }
    }

    #[test]
    fn the_data_of_nobody_and_of_everybody_is_not_handed_over() {
        for label in [Label::NOBODY, Label::PUBLIC] {
            let bytes = label.bits().to_le_bytes();
            assert_eq!(read_domain(&mut Decoder::new(&bytes)), Err(DecodeError::Field { field: "domain" }));
        }
        assert!(read_domain(&mut Decoder::new(&2u32.to_le_bytes())).is_ok());
    }

    #[test]
    fn no_token_and_no_seed_is_in_debug() {
        let first = FirstStep {
            token: FirstToken::new(31_415),
            log_prob_bits: 0,
            sampler: SamplerState { seed: 27_182, step: 1 },
            grammar: [0; 32],
            replay: [0; 32],
        };
        let text = format!("{first:?} {:?} {:?}", first.token, first.sampler);
        assert!(!text.contains("31415") && !text.contains("27182"), "{text}");
    }
}
