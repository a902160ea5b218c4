//! Greedy decoding and first-token logits against llama.cpp on the same file, and against exact arithmetic.
//!
//! The golden data is made by `tests/golden/model/make_golden.py` and holds, for each generated token, the runner-up
//! and the margin between the two logits. Both engines quantise activations to 8 bits, each in its own way, so logits
//! differ a little, and a token whose margin is smaller than that difference can be either of the two. Every position
//! is computed with the reference's tokens before it (teacher forcing), so one such position does not end the
//! comparison.
//!
//! Logits are compared after subtracting the mean of the differences: a shift of all logits alike changes no
//! probability, and it is the largest part of what quantising does.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../src/test_model.rs"]
mod test_model;

use std::sync::Arc;

use engine_model::{Forward, KvShape, KvStore, Model, PAGE_TOKENS, PageRef, Span};
use serde_json::Value as Json;

/// Logits: below this margin the reference's second token is accepted too. Measured: the largest margin at which the
/// two engines disagree is 0.41.
const MARGIN_MIN: f32 = 0.45;
/// At least this share of all positions has a larger margin and admits one token only.
const STRICT_SHARE_MIN: f64 = 0.8;
/// At least at this share of all positions the best token is the reference's. Measured: 0.972.
const AGREEMENT_MIN: f64 = 0.95;
/// Largest difference of one first-token logit from llama.cpp's. Measured: up to 0.94.
const LOGIT_DIFFERENCE_MAX: f32 = 1.25;
/// Largest root mean square of the differences of one prompt's first-token logits. Measured: up to 0.22.
const LOGIT_RMS_MAX: f32 = 0.3;
/// Largest shift of all logits alike. Measured: up to 0.92.
const LOGIT_SHIFT_MAX: f32 = 2.0;
/// Over all prompts, the mean square error against exact arithmetic, in units of llama.cpp's own. Measured: 0.91.
const ERROR_RATIO_MAX: f32 = 1.25;
const THREADS: usize = 2;
const TAG: u32 = 1;

struct Case {
    name: String,
    prompt: Vec<u32>,
    /// Best token, second-best token, margin between their logits.
    steps: Vec<(u32, u32, f32)>,
    /// The reference's last token ends the answer.
    ended: bool,
    /// The first logits after the prompt that are compared: token, llama.cpp's, exact.
    first_logits: Vec<(usize, f32, f32)>,
}

fn cases() -> Vec<Case> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/model");
    let golden: Json =
        serde_json::from_str(&std::fs::read_to_string(format!("{folder}/greedy.json")).unwrap()).unwrap();
    let floats = |name: &str| -> std::vec::IntoIter<f32> {
        let bytes = std::fs::read(format!("{folder}/{name}")).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>().into_iter()
    };
    let (mut logits, mut exact) = (floats("first_logits.f32"), floats("exact_logits.f32"));
    let token = |json: &Json| u32::try_from(json.as_u64().unwrap()).unwrap();
    let tokens = |json: &Json| json.as_array().unwrap().iter().map(token).collect::<Vec<u32>>();
    let (vocab, stride) = (token(&golden["vocab"]) as usize, token(&golden["stride"]) as usize);
    let cases = golden["cases"].as_array().unwrap().iter().map(|case| Case {
        name: case["name"].as_str().unwrap().to_owned(),
        prompt: tokens(&case["prompt"]),
        steps: case["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| (token(&step[0]), token(&step[1]), step[2].as_f64().unwrap() as f32))
            .collect(),
        ended: case["ended"].as_bool().unwrap(),
        first_logits: (0..vocab)
            .step_by(stride)
            .chain(tokens(&case["top"]).into_iter().map(|token| token as usize))
            .map(|token| (token, logits.next().unwrap(), exact.next().unwrap()))
            .collect(),
    });
    let cases: Vec<Case> = cases.collect();
    assert_eq!((logits.next(), exact.next()), (None, None), "the logits belong to these prompts");
    cases
}

/// One sequence in pages of its own, scattered over the store.
struct Decoder {
    forward: Forward,
    store: KvStore,
    pages: Vec<PageRef>,
}

impl Decoder {
    fn new(model: &Arc<Model>, tokens_max: usize) -> Self {
        let config = model.config();
        let pages = tokens_max.div_ceil(PAGE_TOKENS);
        let shape = KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages };
        let mut store = KvStore::new(shape).unwrap();
        let pages: Vec<PageRef> =
            (0..u32::try_from(pages).unwrap()).rev().map(|page| PageRef { page, tag: TAG }).collect();
        pages.iter().for_each(|page| store.assign(*page).unwrap());
        Self { forward: Forward::new(Arc::clone(model), THREADS, 256), store, pages }
    }

    fn logits(&mut self, tokens: &[u32], mut position: usize) -> &[f32] {
        for chunk in tokens.chunks(256) {
            let span = Span { ticket: 0, tokens: chunk, position, pages: &self.pages, logits: true };
            self.forward.run(&mut self.store, &[span], &|| false).unwrap();
            assert_eq!(self.forward.fault(0), None);
            position += chunk.len();
        }
        self.forward.logits(0, 0).unwrap()
    }
}

/// The lowest token among those with the largest logit.
fn best(logits: &[f32]) -> u32 {
    let best = (0u32..).zip(logits).reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.expect("a vocabulary is never empty").0
}

fn model() -> Arc<Model> {
    Arc::new(Model::load(&test_model::path(), THREADS).unwrap())
}

#[test]
fn the_golden_data_covers_what_it_should() {
    let cases = cases();
    assert!(cases.len() >= 8);
    assert!(cases.iter().all(|case| case.ended || case.steps.len() >= 32), "too few tokens");
    assert!(cases.iter().any(|case| case.prompt.len() >= 1_500), "no long prompt");
    let positions: usize = cases.iter().map(|case| case.steps.len()).sum();
    let strict = cases.iter().flat_map(|case| &case.steps).filter(|step| step.2 >= MARGIN_MIN).count();
    assert!(strict as f64 >= STRICT_SHARE_MIN * positions as f64, "{strict} of {positions} positions are strict");
}

#[test]
fn greedy_decoding_gives_the_tokens_of_the_reference() {
    let model = model();
    let (mut positions, mut strict, mut agreed, mut wrong) = (0, 0, 0, Vec::new());
    for case in cases() {
        let mut decoder = Decoder::new(&model, case.prompt.len() + case.steps.len());
        let mut input = case.prompt.clone();
        let mut position = 0;
        for (step, &(first, second, margin)) in case.steps.iter().enumerate() {
            let logits = decoder.logits(&input, position);
            let ours = best(logits);
            // Where more than two are near, ours may be one that the reference does not name.
            let own_margin = logits[ours as usize] - logits[first as usize];
            positions += 1;
            agreed += usize::from(ours == first);
            strict += usize::from(margin >= MARGIN_MIN);
            if ours != first {
                let line =
                    format!("{}, token {step}: {ours}, reference {first} or {second}, margin {margin}", case.name);
                println!("{line}");
                if margin >= MARGIN_MIN || (ours != second && own_margin >= MARGIN_MIN) {
                    wrong.push(line);
                }
            }
            position += input.len();
            input = vec![first];
        }
        if case.ended {
            assert!(model.tokenizer().is_end(case.steps.last().unwrap().0), "{}", case.name);
        }
    }
    println!("the best token is the reference's at {agreed} of {positions} positions; {strict} admit no other");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(agreed as f64 >= AGREEMENT_MIN * positions as f64, "{agreed} of {positions}");
}

/// Mean of the differences, and what is left without it: root mean square and largest.
struct Distance {
    shift: f32,
    rms: f32,
    max: f32,
}

fn distance(pairs: impl Iterator<Item = (f32, f32)>) -> Distance {
    let differences: Vec<f32> = pairs.map(|(a, b)| a - b).collect();
    let count = differences.len() as f32;
    let shift = differences.iter().sum::<f32>() / count;
    let rms = (differences.iter().map(|d| (d - shift).powi(2)).sum::<f32>() / count).sqrt();
    Distance { shift, rms, max: differences.iter().fold(0.0, |max, d| max.max((d - shift).abs())) }
}

#[test]
fn first_token_logits_are_as_close_as_the_reference_is() {
    let model = model();
    let (mut ours_squared, mut theirs_squared, mut wrong) = (0.0, 0.0, Vec::new());
    for case in cases() {
        let mut decoder = Decoder::new(&model, case.prompt.len());
        let logits = decoder.logits(&case.prompt, 0);
        let Distance { shift, rms, max } =
            distance(case.first_logits.iter().map(|&(t, theirs, _)| (logits[t], theirs)));
        let ours_exact = distance(case.first_logits.iter().map(|&(t, _, exact)| (logits[t], exact)));
        let theirs_exact = distance(case.first_logits.iter().map(|&(_, theirs, exact)| (theirs, exact)));
        ours_squared += ours_exact.rms.powi(2);
        theirs_squared += theirs_exact.rms.powi(2);
        let line = format!(
            "{}: from llama.cpp shift {shift:.3}, rms {rms:.3}, max {max:.3}; from exact rms {:.3} (llama.cpp {:.3})",
            case.name, ours_exact.rms, theirs_exact.rms
        );
        println!("{line}");
        // Written so that NaN is wrong.
        if !(max <= LOGIT_DIFFERENCE_MAX && rms <= LOGIT_RMS_MAX && shift.abs() <= LOGIT_SHIFT_MAX) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let ratio = ours_squared / theirs_squared;
    println!("mean square error from exact arithmetic: {ratio:.3} of llama.cpp's");
    assert!(ratio <= ERROR_RATIO_MAX, "{ratio}");
}
