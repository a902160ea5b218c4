//! The ten checks of the decode side and the three of the prefill side, and what each says when it refuses.

use crate::check::{Check, Checks};
use crate::content::ContentDigest;
use crate::effect::PageSlot;
use crate::identity::{Fingerprint, Route};
use crate::key::HandoffKey;
use crate::manifest::{FirstStep, Manifest, SealedManifest};
use crate::message::Order;
use policies_domain::{Generation, Label, PageId};

/// Why a handoff was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// V1: no handoff waits for this offer.
    #[error("no handoff waits for this offer")]
    NotExpected,
    /// V2.
    #[error("the seal of the manifest does not hold")]
    BrokenSeal,
    /// V3.
    #[error("the manifest is of `{offered}`, the request of `{held}`")]
    OtherDomain {
        /// In the manifest.
        offered: Label,
        /// As authenticated.
        held: Label,
    },
    /// V4.
    #[error("the manifest is of another request")]
    OtherRequest,
    /// V5.
    #[error("the manifest is of another model or layout")]
    OtherFingerprint,
    /// V6: the pages are not those of the prompt.
    #[error("{pages} pages with {tokens} tokens were offered for a prompt of {tokens_held}")]
    Incomplete {
        /// Pages in the manifest.
        pages: usize,
        /// Tokens in the manifest.
        tokens: u32,
        /// Tokens of the prompt.
        tokens_held: u32,
    },
    /// V7, by page; a layer's total that differs alone counts as page 0 of it.
    #[error("page {logical} does not have the bytes that were sealed")]
    OtherContent {
        /// The page's place in the sequence.
        logical: u32,
    },
    /// V8.
    #[error("page {logical} carries the tag of another life than the one that was sealed")]
    OtherLife {
        /// The page's place in the sequence.
        logical: u32,
    },
    /// V9.
    #[error("page {logical} did not land where a page was kept for it")]
    OtherPlace {
        /// The page's place in the sequence.
        logical: u32,
    },
    /// V10. The token is not named.
    #[error("the first token is not one that this request may have")]
    FirstToken,
    /// C3, or a total that the decode side computed otherwise.
    #[error("the source pages are not what they were when they were sealed")]
    SourceChanged,
}

impl Refusal {
    /// The check that refused.
    #[must_use]
    pub fn check(self) -> Check {
        match self {
            Self::NotExpected => Check::V1,
            Self::BrokenSeal => Check::V2,
            Self::OtherDomain { .. } => Check::V3,
            Self::OtherRequest => Check::V4,
            Self::OtherFingerprint => Check::V5,
            Self::Incomplete { .. } => Check::V6,
            Self::OtherContent { .. } => Check::V7,
            Self::OtherLife { .. } => Check::V8,
            Self::OtherPlace { .. } => Check::V9,
            Self::FirstToken => Check::V10,
            Self::SourceChanged => Check::C3,
        }
    }
}

/// What the decode side asks of its ledger and its grammars while it decides.
pub trait DecodeHost {
    /// The life of a page that is kept for this handoff (inbound, or outbound when pages stay where they are), else `None`.
    fn kept(&self, route: Route, page: PageId) -> Option<Generation>;
    /// Is the first token in the vocabulary, allowed by the request's grammar, and is the grammar then in that state?
    fn admits(&self, route: Route, first: &FirstStep) -> bool;
}

/// What the prefill side asks of its ledger while it decides.
pub trait PrefillHost {
    /// The life of a page that is sealed for this handoff and not yet given back, else `None`.
    fn sealed(&self, route: Route, page: PageId) -> Option<Generation>;
}

/// What the decode side found in its own memory, after its own fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Landed {
    /// One for each page, in the order of the sequence.
    pub pages: Vec<LandedPage>,
    /// Digest of each layer over all pages.
    pub layers: Vec<ContentDigest>,
}

/// One page as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LandedPage {
    /// The tag in its own bytes; 0 when its layers do not agree on one.
    pub tag: u32,
    /// Digest of its bytes.
    pub digest: ContentDigest,
}

/// What the decode side holds for a handoff, against which an offer and a landing are compared.
pub(crate) struct Held<'a> {
    pub(crate) route: Route,
    pub(crate) order: Order,
    /// It waits for an offer: none came before.
    pub(crate) waits: bool,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) page_tokens: u32,
    pub(crate) key: &'a HandoffKey,
    /// The pages that were kept; `None` when the pages stay where they are.
    pub(crate) kept: Option<&'a [PageSlot]>,
}

impl Held<'_> {
    /// V1 to V6, V9 and V10: everything that can be said before a byte moves.
    pub(crate) fn check_offer(
        &self,
        on: Checks,
        offer: &SealedManifest,
        host: &impl DecodeHost,
    ) -> Result<(), Refusal> {
        let manifest = &offer.manifest;
        let kept = self.kept.unwrap_or_default();
        unless(on, Check::V1, || self.v1_expected(manifest))?;
        unless(on, Check::V2, || self.v2_sealed(offer))?;
        unless(on, Check::V3, || self.v3_domain(manifest))?;
        unless(on, Check::V4, || self.v4_request(manifest))?;
        unless(on, Check::V5, || self.v5_fingerprint(manifest))?;
        unless(on, Check::V6, || self.v6_pages(manifest))?;
        unless(on, Check::V9, || self.v9_place(manifest, kept, host, self.kept.is_none()))?;
        unless(on, Check::V10, || self.v10_first_token(manifest, host))
    }

    /// V7, V8 and V9 again: what can be said of the bytes.
    pub(crate) fn check_landing(
        &self,
        on: Checks,
        manifest: &Manifest,
        places: &[PageSlot],
        landed: &Landed,
        host: &impl DecodeHost,
    ) -> Result<(), Refusal> {
        unless(on, Check::V7, || v7_content(manifest, landed))?;
        unless(on, Check::V8, || v8_life(manifest, landed))?;
        self.check_place(on, manifest, places, host)
    }

    /// V9 once more, at the commit.
    pub(crate) fn check_place(
        &self,
        on: Checks,
        manifest: &Manifest,
        places: &[PageSlot],
        host: &impl DecodeHost,
    ) -> Result<(), Refusal> {
        unless(on, Check::V9, || self.v9_place(manifest, places, host, false))
    }

    fn v1_expected(&self, manifest: &Manifest) -> Result<(), Refusal> {
        refuse_unless(self.waits && manifest.route == self.route, Refusal::NotExpected)
    }

    fn v2_sealed(&self, offer: &SealedManifest) -> Result<(), Refusal> {
        refuse_unless(offer.holds(self.key), Refusal::BrokenSeal)
    }

    fn v3_domain(&self, manifest: &Manifest) -> Result<(), Refusal> {
        let refusal = Refusal::OtherDomain { offered: manifest.domain, held: self.order.domain };
        refuse_unless(manifest.domain == self.order.domain, refusal)
    }

    fn v4_request(&self, manifest: &Manifest) -> Result<(), Refusal> {
        refuse_unless(manifest.request == self.order.request, Refusal::OtherRequest)
    }

    fn v5_fingerprint(&self, manifest: &Manifest) -> Result<(), Refusal> {
        refuse_unless(manifest.fingerprint == self.fingerprint, Refusal::OtherFingerprint)
    }

    fn v6_pages(&self, manifest: &Manifest) -> Result<(), Refusal> {
        let needed = self.order.tokens.div_ceil(self.page_tokens);
        let in_order = (0..needed).eq(manifest.pages.iter().map(|page| page.logical));
        let refusal = Refusal::Incomplete {
            pages: manifest.pages.len(),
            tokens: manifest.tokens,
            tokens_held: self.order.tokens,
        };
        refuse_unless(manifest.tokens == self.order.tokens && needed > 0 && in_order, refusal)
    }

    fn v9_place(
        &self,
        manifest: &Manifest,
        places: &[PageSlot],
        host: &impl DecodeHost,
        nothing_landed: bool,
    ) -> Result<(), Refusal> {
        if nothing_landed {
            return Ok(());
        }
        refuse_unless(places.len() == manifest.pages.len(), Refusal::OtherPlace { logical: places.len() as u32 })?;
        for (i, (place, page)) in places.iter().zip(&manifest.pages).enumerate() {
            // What was kept; or, where pages stay, the very life that was sealed.
            let ours = match self.kept {
                Some(kept) => kept.get(i) == Some(place),
                None => place.generation == page.generation,
            };
            let lives = host.kept(self.route, place.page) == Some(place.generation);
            refuse_unless(ours && lives, Refusal::OtherPlace { logical: i as u32 })?;
        }
        Ok(())
    }

    fn v10_first_token(&self, manifest: &Manifest, host: &impl DecodeHost) -> Result<(), Refusal> {
        refuse_unless(host.admits(self.route, &manifest.first), Refusal::FirstToken)
    }
}

fn v7_content(manifest: &Manifest, landed: &Landed) -> Result<(), Refusal> {
    let differs =
        |i: usize| landed.pages.get(i).map(|page| page.digest) != manifest.pages.get(i).map(|page| page.digest);
    let pages = manifest.pages.len().max(landed.pages.len());
    if let Some(i) = (0..pages).find(|i| differs(*i)) {
        return Err(Refusal::OtherContent { logical: i as u32 });
    }
    refuse_unless(manifest.layers == landed.layers, Refusal::OtherContent { logical: 0 })
}

fn v8_life(manifest: &Manifest, landed: &Landed) -> Result<(), Refusal> {
    let mut pairs = manifest.pages.iter().zip(&landed.pages);
    match pairs.position(|(sealed, found)| sealed.tag != found.tag) {
        Some(i) => Err(Refusal::OtherLife { logical: i as u32 }),
        None => Ok(()),
    }
}

fn unless(on: Checks, check: Check, test: impl FnOnce() -> Result<(), Refusal>) -> Result<(), Refusal> {
    if on.on(check) { test() } else { Ok(()) }
}

fn refuse_unless(holds: bool, refusal: Refusal) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(refusal) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::samples;
    use proptest::prelude::*;

    fn landed(manifest: &Manifest) -> Landed {
        let found = manifest.pages.iter().map(|page| LandedPage { tag: page.tag, digest: page.digest });
        Landed { pages: found.collect(), layers: manifest.layers.clone() }
    }

    proptest! {
        #[test]
        fn pages_and_layers_are_compared_each_for_itself(manifest in samples::manifest(), at in any::<prop::sample::Index>()) {
            let as_sealed = landed(&manifest);
            prop_assert_eq!(v7_content(&manifest, &as_sealed), Ok(()));
            prop_assert_eq!(v8_life(&manifest, &as_sealed), Ok(()));
            for lane in 0..2 {
                let mut found = as_sealed.clone();
                if let Some(layer) = found.layers.first_mut() {
                    layer.0[lane] ^= 1;
                    prop_assert!(v7_content(&manifest, &found).is_err());
                }
                let mut found = as_sealed.clone();
                if !found.pages.is_empty() {
                    let i = at.index(found.pages.len());
                    found.pages[i].digest.0[lane] ^= 1 << 63;
                    prop_assert_eq!(v7_content(&manifest, &found), Err(Refusal::OtherContent { logical: i as u32 }));
                    found.pages[i].tag ^= 1;
                    prop_assert_eq!(v8_life(&manifest, &found), Err(Refusal::OtherLife { logical: i as u32 }));
                }
            }
            let mut short = as_sealed.clone();
            let mut long = as_sealed;
            long.pages.push(LandedPage { tag: 0, digest: ContentDigest::default() });
            prop_assert!(v7_content(&manifest, &long).is_err());
            if short.pages.pop().is_some() {
                prop_assert!(v7_content(&manifest, &short).is_err());
            }
        }
    }

    #[test]
    fn every_refusal_names_its_check_and_no_token() {
        for (refusal, check) in [
            (Refusal::NotExpected, Check::V1),
            (Refusal::BrokenSeal, Check::V2),
            (Refusal::OtherRequest, Check::V4),
            (Refusal::OtherFingerprint, Check::V5),
            (Refusal::FirstToken, Check::V10),
            (Refusal::SourceChanged, Check::C3),
        ] {
            assert_eq!(refusal.check(), check);
            assert!(!refusal.to_string().contains(|c: char| c.is_ascii_digit()), "{refusal}");
        }
    }
}
