//! One pass through a model that was just loaded: whether anything can come out of it.
//!
//! Finite weights can still make numbers that are not: a norm of 1e38, a rotation whose frequency is infinite. Such
//! a model would refuse every request; it is refused at the start instead.

use engine_kernels::{KvShape, KvStore, PageRef, Span, Team};

use super::Pass;
use crate::config::ModelConfig;
use crate::weights::Weights;

const PAGE: PageRef = PageRef { page: 0, tag: 1 };

/// Whether the logits after two tokens, the first and the last of the vocabulary, are numbers.
pub(crate) fn gives_numbers(config: &ModelConfig, weights: &Weights, threads: usize) -> bool {
    let ModelConfig { layers, kv_heads, head_dim, .. } = *config;
    let Ok(mut store) = KvStore::new(KvShape { layers, kv_heads, head_dim, pages: 1 }) else { return false };
    if store.assign(PAGE).is_err() {
        return false;
    }
    let last = u32::try_from(config.vocab.saturating_sub(1)).unwrap_or(u32::MAX);
    let spans = [Span { ticket: 0, tokens: &[0, last], position: 0, pages: &[PAGE], logits: true }];
    let mut pass = Pass::new(config, weights, Team::new(threads), 2);
    pass.run(config, weights, &mut store, &spans, &|| false).is_ok()
        && pass.logits(0, 0).is_some_and(|logits| logits.iter().all(|logit| logit.is_finite()))
}
