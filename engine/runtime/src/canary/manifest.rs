//! The seal of a handoff's manifest: one that was changed on its way does not hold.

use engine_handoff::{
    Attempt, ContentDigest, Fingerprint, FirstStep, FirstToken, HandoffId, HandoffKey, Incarnation, Manifest,
    ManifestPage, RequestFacts, Route, SamplerState,
};
use policies_domain::{Canary, Generation, Trial};

/// Seals the manifest of a canary's handoff under a key of its own, made of `secret`, and opens it as it is and with the other
/// canary's label in it.
#[must_use]
pub fn try_manifest_seal(secret: [u8; 32]) -> Trial {
    let key = HandoffKey::new(secret);
    let sealed = manifest(&key).seal(&key);
    let mut changed = sealed.clone();
    changed.manifest.domain = Canary::B.label();
    Trial { control_passed: sealed.holds(&key), fault_found: !changed.holds(&key) }
}

fn manifest(key: &HandoffKey) -> Manifest {
    let (domain, fingerprint) = (Canary::A.label(), Fingerprint([0; 32]));
    let facts = RequestFacts { domain, tokens: &[0], sampling: &[], adapter_generation: 0, fingerprint };
    let life = Incarnation(0);
    Manifest {
        route: Route {
            id: HandoffId::from_bytes(Canary::A.request().bytes()),
            attempt: Attempt(0),
            prefill: life,
            decode: life,
        },
        domain,
        request: facts.digest(key),
        fingerprint,
        tokens: 1,
        pages: vec![ManifestPage { logical: 0, generation: Generation(1), tag: 1, digest: ContentDigest([1, 1]) }],
        layers: vec![ContentDigest([1, 1])],
        first: FirstStep {
            token: FirstToken::new(0),
            log_prob_bits: 0,
            sampler: SamplerState { seed: 0, step: 0 },
            grammar: [0; 32],
            replay: [0; 32],
        },
        lease_ms: 1,
    }
}
