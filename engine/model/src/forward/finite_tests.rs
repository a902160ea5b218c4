//! Numbers that grow out of f32 inside a model: the logits of that sequence say so, and no other's bits change.

use engine_kernels::{PageRef, Team};

use super::tests::{Tensors, config, store};
use super::*;

/// Every matrix is F32, so that any finite number can stand in it.
fn weights(change: impl FnOnce(&mut Tensors)) -> Weights {
    let config = ModelConfig { is_tied: false, ..config() };
    let mut tensors = Tensors::new(&config, &[0], false);
    change(&mut tensors);
    tensors.load(&config).unwrap()
}

/// Logits of two sequences of one run; both are computed with one token in the prompt and one behind it.
fn logits(weights: &Weights, first: u32, second: u32) -> [Vec<f32>; 2] {
    let config = ModelConfig { is_tied: false, ..config() };
    let mut store = store(&config, 2);
    let pages = [0, 1].map(|page| [PageRef { page, tag: page + 1 }]);
    pages.iter().for_each(|page| store.assign(page[0]).unwrap());
    let mut pass = Pass::new(&config, weights, Team::new(2), 8);
    let prompts = [[first, 7, 8], [second, 9, 10]];
    let spans = [0, 1].map(|n| Span { ticket: 0, tokens: &prompts[n], position: 0, pages: &pages[n], logits: false });
    pass.run(&config, weights, &mut store, &spans, &|| false).unwrap();
    let spans = [0, 1].map(|n| Span { ticket: 0, tokens: &[11], position: 3, pages: &pages[n], logits: true });
    pass.run(&config, weights, &mut store, &spans, &|| false).unwrap();
    [0, 1].map(|n| pass.logits(n, 0).unwrap().to_vec())
}

fn are_finite(logits: &[f32]) -> bool {
    logits.iter().all(|logit| logit.is_finite())
}

#[test]
fn an_embedding_that_overflows_shows_in_the_logits_of_its_sequence_alone() {
    let width = config().width;
    for overflowing in [1, width] {
        let weights = weights(|tensors| {
            let bytes = &mut tensors.tensors.get_mut("token_embd.weight").unwrap().2;
            for value in bytes[3 * width * 4..].chunks_exact_mut(4).take(overflowing) {
                value.copy_from_slice(&3e38f32.to_le_bytes());
            }
        });
        let clean = logits(&weights, 4, 5);
        assert!(clean.iter().all(|logits| are_finite(logits)));
        // The token is two places before the last, so its keys and values are what carries it.
        let [hit, other] = logits(&weights, 3, 5);
        assert!(!are_finite(&hit), "{overflowing} values of 3e38 are not seen in the logits");
        assert_eq!(other, clean[1]);
    }
}

#[test]
fn a_layer_that_overflows_shows_in_the_logits() {
    // Each of these makes numbers that no f32 holds, in another kernel.
    for name in ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    {
        let weights = weights(|tensors| {
            let bytes = &mut tensors.tensors.get_mut(&format!("blk.0.{name}.weight")).unwrap().2;
            bytes.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&3e38f32.to_le_bytes()));
        });
        let [first, second] = logits(&weights, 4, 5);
        assert!(!are_finite(&first) && !are_finite(&second), "{name} is not seen in the logits");
    }
}

#[test]
fn a_model_that_can_only_give_what_is_no_number_is_known_before_it_is_asked() {
    let config = ModelConfig { is_tied: false, ..config() };
    let usable = |change: fn(&mut Tensors)| gives_numbers(&config, &weights(change), 2);
    assert!(usable(|_| ()));
    for name in ["attn_norm", "ffn_down"] {
        let mut tensors = Tensors::new(&config, &[0], false);
        let bytes = &mut tensors.tensors.get_mut(&format!("blk.1.{name}.weight")).unwrap().2;
        bytes.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&3e38f32.to_le_bytes()));
        assert!(!gives_numbers(&config, &tensors.load(&config).unwrap(), 2), "{name}");
    }
    // Divisors of the rotation's frequencies.
    for factor in [0.0, -1e-30, 1e-44] {
        let mut weights = weights(|_| ());
        weights.rope_factors = vec![factor; config.head_dim / 2];
        assert!(!gives_numbers(&config, &weights, 1), "{factor:e}");
    }
}
