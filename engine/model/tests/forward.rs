//! The forward pass on the real file: the same bits however the work is divided.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../src/test_model.rs"]
mod test_model;

use std::sync::Arc;

use engine_model::{Forward, KvShape, KvStore, Model, PAGE_TOKENS, PageRef, Span};

fn store(model: &Model, pages: &[PageRef]) -> KvStore {
    let config = model.config();
    let shape = KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages: 64 };
    let mut store = KvStore::new(shape).unwrap();
    pages.iter().for_each(|page| store.assign(*page).unwrap());
    store
}

fn bits(forward: &Forward, span: usize) -> Vec<u32> {
    let logits = forward.logits(span, 0).expect("asked for");
    assert!(logits.len() == 49_152 && logits.iter().all(|logit| logit.is_finite()));
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn prefill_decode_batches_and_pages_give_the_same_bits() {
    let model = Arc::new(Model::load(&test_model::path(), 2).unwrap());
    let text = "The capital of France is Paris, and the capital of Italy is Rome. What about Spain?";
    let tokens = model.tokenizer().encode(text, false).unwrap();
    let count = tokens.len();
    assert!(count > PAGE_TOKENS, "more than one page");

    let pages: Vec<PageRef> = (0..4).map(|page| PageRef { page, tag: 1 }).collect();
    let mut alone = Forward::new(Arc::clone(&model), 1, 1);
    let mut serial_store = store(&model, &pages);
    let mut reference = Vec::new();
    for (position, token) in tokens.iter().enumerate() {
        let span = Span { ticket: 0, tokens: &[*token], position, pages: &pages, logits: true };
        alone.run(&mut serial_store, &[span], &|| false).unwrap();
        reference.push(bits(&alone, 0));
    }
    assert_ne!(reference[count - 1], reference[count - 2]);

    let mut forward = Forward::new(Arc::clone(&model), 2, 256);
    for chunk in [count, 7] {
        // Three sequences with the same prompt, each somewhere else in the store and one chunk behind the one before.
        let tables: Vec<Vec<PageRef>> = (0..3u32)
            .map(|number| (0..4).map(|index| PageRef { page: 60 - 7 * index - number, tag: number + 9 }).collect())
            .collect();
        let mut store = store(&model, &tables.concat());
        for step in 0..count.div_ceil(chunk) + 2 {
            let mut ends = Vec::new();
            let mut spans = Vec::new();
            for (number, pages) in tables.iter().enumerate() {
                let Some(position) = step.checked_sub(number).map(|step| step * chunk).filter(|from| *from < count)
                else {
                    continue;
                };
                let tokens = &tokens[position..count.min(position + chunk)];
                ends.push(position + tokens.len() - 1);
                spans.push(Span { ticket: 0, tokens, position, pages, logits: true });
            }
            forward.run(&mut store, &spans, &|| false).unwrap();
            for (span, end) in ends.into_iter().enumerate() {
                assert!(forward.fault(span).is_none());
                assert!(bits(&forward, span) == reference[end], "chunks of {chunk}, step {step}, position {end}");
            }
        }
    }
}
