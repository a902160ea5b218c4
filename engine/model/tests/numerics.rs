//! The numerics profile and golden bits of logits, pinned side by side.
//!
//! Other bits under the same profile mean that a kernel rounds or sums otherwise: raise `PROFILE_VERSION`, then pin both
//! anew. Another profile with the same bits means that the profile's description was changed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../src/test_model.rs"]
mod test_model;

use std::sync::Arc;

use engine_model::{Forward, KernelFamily, KvKind, KvShape, KvStore, Model, PageRef, Span};
use sha2::{Digest, Sha256};

const PROFILE: &str = "1789df1592dddef066bd01e5c1e3a6f3c081be38db7ca9b1d84c4b03d66167fd";
/// A prompt, and the SHA-256 of the f32 bits (little-endian) of the logits of all its positions, in order.
const GOLDEN_BITS: [(&str, &str); 2] = [
    ("The capital of France is", "c325458fb72e25e42d604997ba3b74fb77cc9a86000e3155ed64ea45410bdcdc"),
    (
        "fn main() {\n    let x = 3.14;\n    // Grüße, 世界: 0123456789",
        "a2faad135aad2454a07a56088ef571c91d62b5a6ffcc004d6bb1c6948298f52d",
    ),
];

fn digest_of_logits(model: &Arc<Model>, tokens: &[u32], family: KernelFamily) -> Option<String> {
    let config = model.config();
    let shape = KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages: 4 };
    let mut store = KvStore::new(shape).unwrap();
    let pages: Vec<PageRef> = (0..4).map(|page| PageRef { page, tag: 1 }).collect();
    pages.iter().for_each(|page| store.assign(*page).unwrap());
    let mut forward = Forward::with_family(Arc::clone(model), 2, tokens.len(), family)?;
    let spans: Vec<Span<'_>> = (0..tokens.len())
        .map(|position| Span { ticket: 0, tokens: &tokens[position..=position], position, pages: &pages, logits: true })
        .collect();
    forward.run(&mut store, &spans, &|| false).unwrap();
    let mut digest = Sha256::new();
    for span in 0..spans.len() {
        for logit in forward.logits(span, 0).unwrap() {
            assert!(logit.is_finite());
            digest.update(logit.to_le_bytes());
        }
    }
    Some(hex::encode(digest.finalize()))
}

#[test]
fn changed_bits_need_another_profile() {
    let model = Arc::new(Model::load(&test_model::path(), 2).unwrap());
    assert_eq!(hex::encode(model.numerics_profile(KvKind::default())), PROFILE, "the profile");
    for (prompt, wanted) in GOLDEN_BITS {
        let tokens = model.tokenizer().encode(prompt, false).unwrap();
        assert!((5..40).contains(&tokens.len()), "{} tokens", tokens.len());
        for family in KernelFamily::ALL {
            if let Some(digest) = digest_of_logits(&model, &tokens, family) {
                assert_eq!(digest, wanted, "the bits of {prompt:?} with {family}");
            }
        }
    }
}
