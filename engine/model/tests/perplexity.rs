//! How well the model predicts a text, against llama.cpp on the same file and the same tokens.
//!
//! `tests/golden/model/make_perplexity.py` names the text, which is in the public domain, and made the expected numbers.
//! Greedy tokens show that the best logit is right; this shows that the whole distribution is.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../src/test_model.rs"]
mod test_model;

use std::sync::Arc;

use engine_model::{Forward, KvKind, KvShape, KvStore, Model, PAGE_TOKENS, PageRef, Span};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

/// Share by which the perplexity may differ from llama.cpp's, up or down.
const DIFFERENCE_MAX: f64 = 0.003;
/// The same for each window of the text: a few hundred tokens differ more than the whole.
const WINDOW_DIFFERENCE_MAX: f64 = 0.03;
/// Tokens of one pass; each is a span of its own, because a span has the logits of its last token only.
const CHUNK: usize = 64;
const THREADS: usize = 2;
const TAG: u32 = 1;

/// Reads windows of text one after the other, each as if there were no other.
struct Reader {
    forward: Forward,
    store: KvStore,
    pages: Vec<PageRef>,
}

impl Reader {
    fn new(model: &Arc<Model>, kv: KvKind, window_tokens: usize) -> Self {
        let config = model.config();
        let pages = window_tokens.div_ceil(PAGE_TOKENS);
        let shape = KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages };
        let mut store = KvStore::with_kind(shape, kv).unwrap();
        let pages: Vec<PageRef> = (0..pages as u32).map(|page| PageRef { page, tag: TAG }).collect();
        pages.iter().for_each(|page| store.assign(*page).unwrap());
        Self { forward: Forward::new(Arc::clone(model), THREADS, CHUNK), store, pages }
    }

    /// Sum of the negative logarithms of the probabilities of all tokens of a window but the first.
    fn loss(&mut self, window: &[u32]) -> f64 {
        let Self { forward, store, pages } = self;
        let mut loss = 0.0;
        // The last token is predicted and predicts nothing.
        let inputs = &window[..window.len() - 1];
        for start in (0..inputs.len()).step_by(CHUNK) {
            let spans: Vec<Span<'_>> = (start..inputs.len().min(start + CHUNK))
                .map(|position| Span { ticket: 0, tokens: &inputs[position..=position], position, pages, logits: true })
                .collect();
            forward.run(store, &spans, &|| false).unwrap();
            let logits: Vec<&[f32]> = (0..spans.len()).map(|number| forward.logits(number, 0).unwrap()).collect();
            let rows: Vec<(&[f32], u32)> = std::iter::zip(logits, window[start + 1..].iter().copied()).collect();
            // Half a billion exponentials, unoptimised: a thread for each half.
            loss += std::thread::scope(|scope| {
                let halves = rows.chunks(rows.len().div_ceil(THREADS));
                let halves: Vec<_> = halves.map(|rows| scope.spawn(move || loss_of(rows))).collect();
                halves.into_iter().map(|half| half.join().unwrap()).sum::<f64>()
            });
        }
        loss
    }
}

/// The same for rows of logits and the tokens that came.
fn loss_of(rows: &[(&[f32], u32)]) -> f64 {
    rows.iter().map(|(logits, token)| log_sum(logits) - f64::from(logits[*token as usize])).sum()
}

/// ln of the sum of `e^logit`.
fn log_sum(logits: &[f32]) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
    f64::from(top) + sum.ln()
}

/// Whether `ours` is as close to `theirs` as wanted; NaN is not.
fn is_close(ours: f64, theirs: f64, share_max: f64) -> bool {
    (ours / theirs - 1.0).abs() <= share_max
}

#[test]
fn a_distance_is_seen_in_both_directions() {
    assert!(is_close(10.02, 10.0, DIFFERENCE_MAX) && is_close(9.98, 10.0, DIFFERENCE_MAX));
    assert!(!is_close(10.04, 10.0, DIFFERENCE_MAX) && !is_close(9.96, 10.0, DIFFERENCE_MAX));
    assert!(!is_close(f64::NAN, 10.0, DIFFERENCE_MAX));
    // ln(e^0 + e^0 + e^ln2).
    assert!((log_sum(&[0.0, 0.0, std::f32::consts::LN_2]) - 4.0f64.ln()).abs() < 1e-6);
    assert!((log_sum(&[1_000.0, 1_000.0]) - (1_000.0 + 2.0f64.ln())).abs() < 1e-3, "no overflow");
}

#[test]
fn the_perplexity_of_a_text_is_llama_cpps() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/model");
    let text = std::fs::read_to_string(format!("{folder}/perplexity.txt")).unwrap();
    let golden: Json =
        serde_json::from_str(&std::fs::read_to_string(format!("{folder}/perplexity.json")).unwrap()).unwrap();
    let number = |json: &Json| json.as_f64().unwrap();
    let model = Arc::new(Model::load(&test_model::path(), THREADS).unwrap());

    let tokens = model.tokenizer().encode(&text, false).unwrap();
    assert!(tokens.len() >= 6_000, "a text of {} tokens shows little", tokens.len());
    let mut digest = Sha256::new();
    tokens.iter().for_each(|token| digest.update(token.to_le_bytes()));
    assert_eq!(hex::encode(digest.finalize()), golden["tokens_sha256"].as_str().unwrap(), "the tokens are llama.cpp's");

    let window_tokens = golden["window"].as_u64().unwrap() as usize;
    let mut reader = Reader::new(&model, KvKind::default(), window_tokens);

    let (mut ours, mut theirs, mut scored, mut wrong) = (0.0, 0.0, 0.0, Vec::new());
    let windows = golden["windows"].as_array().unwrap();
    assert_eq!(windows.len(), tokens.len().div_ceil(window_tokens));
    for (window, golden) in std::iter::zip(tokens.chunks(window_tokens), windows) {
        assert_eq!(window.len() - 1, golden["scored"].as_u64().unwrap() as usize);
        let (loss, reference) = (reader.loss(window), number(&golden["loss"]));
        let of_window = |loss: f64| (loss / number(&golden["scored"])).exp();
        if !is_close(of_window(loss), of_window(reference), WINDOW_DIFFERENCE_MAX) {
            wrong.push(format!("{} instead of {}", of_window(loss), of_window(reference)));
        }
        (ours, theirs, scored) = (ours + loss, theirs + reference, scored + number(&golden["scored"]));
    }
    let (ours, theirs) = ((ours / scored).exp(), (theirs / scored).exp());
    println!("perplexity {ours:.4}, llama.cpp {theirs:.4}: {:+.3} %", (ours / theirs - 1.0) * 100.0);
    assert!((theirs - number(&golden["perplexity"])).abs() < 1e-3, "the golden file contradicts itself");
    assert!(is_close(ours, theirs, DIFFERENCE_MAX), "perplexity {ours}, llama.cpp has {theirs}");
    assert!(wrong.is_empty(), "windows: {wrong:#?}");
}

/// The other ways of storing K and V against the usual one, on the first windows: on the whole text f32 is 0.17 % better
/// and int8 0.03 % worse (24.798 and 24.848 against 24.840).
#[test]
fn other_kinds_of_k_and_v_predict_as_well() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/model/perplexity.txt"));
    let model = Arc::new(Model::load(&test_model::path(), THREADS).unwrap());
    let tokens = model.tokenizer().encode(&text.unwrap(), false).unwrap();
    let (window_tokens, windows) = (512, 4);
    let perplexity = |kv| {
        let mut reader = Reader::new(&model, kv, window_tokens);
        let loss: f64 = tokens.chunks(window_tokens).take(windows).map(|window| reader.loss(window)).sum();
        (loss / (windows * (window_tokens - 1)) as f64).exp()
    };
    let usual = perplexity(KvKind::default());
    for (kv, difference_max) in [(KvKind::F32, 0.008), (KvKind::Int8, 0.008)] {
        let other = perplexity(kv);
        println!("{kv:?} {other:.4}, {:?} {usual:.4}: {:+.3} %", KvKind::default(), (other / usual - 1.0) * 100.0);
        assert!(is_close(other, usual, difference_max), "{kv:?}: {other} instead of {usual}");
        assert!(other.to_bits() != usual.to_bits(), "{kv:?} was not used");
    }
}
