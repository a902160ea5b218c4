//! The flavours of the Llama family against an independent implementation, and what each flag is worth.
//!
//! `tests/golden/flavours/logits.json` has logits of small models, computed by Hugging Face transformers in f32. Their
//! weights are a function of name and index ([`integers`]) and are made here once more. Each model runs as a GGUF file
//! would have it, its metadata and tensors as llama.cpp's converter would write them, and in Hugging Face's layout.

mod case;

use engine_kernels::PageRef;

use super::tests::{bits, store};
use super::*;
use crate::config::{Activation, BlockConfig, RopeConfig, RopePairs, RopeScaling};
use case::{Case, FORMATS, Format, case, golden};

/// Distance of all logits of a case from the reference's, relative to their norm. The reference has floats where we
/// have `i8` in blocks of 32 of as few as 64 values. Measured: 0.005 to 0.034.
const ERROR_MAX: f32 = 0.04;
/// A model with one flag turned is at least this far away. Measured: from 0.058 on, twelve of 33 from 0.4 on.
const WRONG_ERROR_MIN: f32 = 0.05;
/// And at least this many times as far as with all flags right. Measured: from 5.0 on.
const WRONG_TIMES_MIN: f32 = 4.0;

/// How a sequence is computed.
struct Schedule {
    family: KernelFamily,
    threads: usize,
    /// Tokens of the sequence in a run.
    step: usize,
    /// Another sequence is computed beside it.
    has_company: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { family: KernelFamily::Scalar, threads: 1, step: 1, has_company: false }
    }
}

/// Logits of all positions; `None` when this machine lacks the family.
fn logits(config: &ModelConfig, weights: &Weights, tokens: &[u32], schedule: &Schedule) -> Option<Vec<Vec<f32>>> {
    let mut store = store(config, 6);
    let pages: Vec<PageRef> = [4, 1, 2].map(|page| PageRef { page, tag: 1 }).to_vec();
    let other_pages: Vec<PageRef> = [0, 3, 5].map(|page| PageRef { page, tag: 2 }).to_vec();
    pages.iter().chain(&other_pages).for_each(|page| store.assign(*page).unwrap());
    let mut pass = Pass::new(config, weights, Team::with_family(schedule.threads, schedule.family)?, 2 * tokens.len());
    let mut all = Vec::new();
    for (index, chunk) in tokens.chunks(schedule.step).enumerate() {
        let first = index * schedule.step;
        let mut spans: Vec<Span<'_>> = Vec::new();
        if schedule.has_company {
            let position = first.min(1);
            spans.push(Span {
                ticket: 0,
                tokens: &tokens[position..][..chunk.len()],
                position: 0,
                pages: &other_pages,
                logits: true,
            });
        }
        let company = spans.len();
        // A span for each token, so that every position has logits; at the end, one for what is left.
        let split = if schedule.step > 10 { chunk.len() / 2 } else { chunk.len() };
        spans.extend(chunk[..split].chunks(1).enumerate().map(|(at, tokens)| Span {
            ticket: 0,
            tokens,
            position: first + at,
            pages: &pages,
            logits: true,
        }));
        if split < chunk.len() {
            spans.push(Span {
                ticket: 0,
                tokens: &chunk[split..],
                position: first + split,
                pages: &pages,
                logits: true,
            });
        }
        pass.run(config, weights, &mut store, &spans, &|| false).unwrap();
        for span in company..spans.len() {
            let _ = bits(pass.logits(span, 0));
            // Positions inside the last span have no logits.
            all.resize(first + (span - company), Vec::new());
            all.push(pass.logits(span, 0)?.to_vec());
        }
        let last = all.pop()?;
        all.resize(first + chunk.len() - 1, Vec::new());
        all.push(last);
    }
    Some(all)
}

/// Distance of our logits from the reference's, relative to the norm of those.
fn distance(case: &Case, config: &ModelConfig, format: Format) -> f32 {
    let golden = golden();
    let weights = case.weights(config, format);
    let got = logits(config, &weights, &golden.tokens, &Schedule::default()).unwrap();
    let (mut distance, mut norm) = (0.0, 0.0);
    for (position, wanted) in std::iter::zip(&golden.positions, &case.logits) {
        assert_eq!(got[*position].len(), wanted.len());
        for (got, wanted) in std::iter::zip(&got[*position], wanted) {
            distance += (got - wanted).powi(2);
            norm += wanted.powi(2);
        }
    }
    (distance / norm).sqrt()
}

#[test]
fn every_flavour_is_near_the_reference() {
    let golden = golden();
    assert!(golden.cases.len() >= 12 && golden.positions.len() >= 5);
    let mut far = Vec::new();
    for (case, format) in golden.cases.iter().flat_map(|case| FORMATS.map(|format| (case, format))) {
        if case.is_in(format) {
            let error = distance(case, &case.config(format), format);
            let line = format!("{}, {format:?}: {error}", case.name);
            // Written so that NaN is far.
            if !matches!(error, 0.0..=ERROR_MAX) {
                far.push(line);
            }
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}

/// Further from the reference than a right model, beyond doubt.
fn is_wrong(error: f32, case: &Case, format: Format) -> bool {
    let right = distance(case, &case.config(format), format);
    error >= WRONG_ERROR_MIN && error >= WRONG_TIMES_MIN * right
}

#[test]
fn every_flag_is_worth_something() {
    let blocks = |config: &mut ModelConfig, change: &dyn Fn(usize, &mut BlockConfig)| {
        config.blocks.iter_mut().enumerate().for_each(|(layer, block)| change(layer, block));
    };
    let yarn = |config: &mut ModelConfig, factor: f32, original: usize, attention: f32| {
        if let RopeScaling::Yarn { factor: f, original_context, attention_factor, .. } = &mut config.rope.scaling {
            (*f, *original_context, *attention_factor) = (factor, original, attention);
        }
    };
    type Change<'a> = &'a dyn Fn(&mut ModelConfig);
    let changes: [(&str, &str, Change<'_>); 33] = [
        ("llama2", "pairs", &|c| c.rope_pairs = RopePairs::Halves),
        ("llama2", "fewer rotated values", &|c| c.rope_dims = 8),
        ("llama2", "the base of the rotation", &|c| c.rope.base = 500_000.0),
        ("llama2", "the scale of scores", &|c| c.attention_scale = 0.125),
        ("llama2", "no rotation", &|c| blocks(c, &|_, block| block.rope = LayerRope::None)),
        ("llama2", "a tied head", &|c| c.is_tied = true),
        ("llama2", "the activation", &|c| c.activation = Activation::GeluTanh),
        ("qwen3", "fewer rotated values", &|c| c.rope_dims = 16),
        ("mistral", "no window", &|c| blocks(c, &|_, block| block.window = None)),
        ("mistral", "a window of one less", &|c| blocks(c, &|_, block| block.window = Some(19))),
        ("mistral", "a window of one more", &|c| blocks(c, &|_, block| block.window = Some(21))),
        ("mistral", "no window in one block", &|c| c.blocks[1].window = None),
        ("llama with biases", "biases of Q, K and V", &|c| c.has_qkv_bias = false),
        ("llama with biases", "the bias behind attention", &|c| c.has_attention_output_bias = false),
        ("llama with biases", "biases of the feed-forward part", &|c| c.has_ff_bias = false),
        ("smollm2", "the base of the rotation", &|c| c.rope.base = 10_000.0),
        ("smollm3", "a rotation in the fourth block", &|c| c.blocks[3].rope = LayerRope::Global),
        ("smollm3", "no rotation in the third block", &|c| c.blocks[2].rope = LayerRope::None),
        ("qwen2", "biases of Q, K and V", &|c| c.has_qkv_bias = false),
        ("qwen2", "pairs", &|c| c.rope_pairs = RopePairs::Neighbours),
        ("qwen2.5 with yarn", "no scaling", &|c| c.rope.scaling = RopeScaling::None),
        ("qwen2.5 with yarn", "linear scaling", &|c| c.rope.scaling = RopeScaling::Linear { factor: 4.0 }),
        ("qwen2.5 with yarn", "the attention factor", &|c| yarn(c, 4.0, 32, 1.0)),
        ("qwen2.5 with yarn", "the original context", &|c| yarn(c, 4.0, 128, 1.138_629_4)),
        ("qwen3", "norms of queries and keys", &|c| c.has_query_key_norms = false),
        ("gemma3", "norms of queries and keys", &|c| c.has_query_key_norms = false),
        ("gemma3", "norms of what is added", &|c| c.has_post_norms = false),
        ("gemma3", "the activation", &|c| c.activation = Activation::Silu),
        ("gemma3", "the scale of embeddings", &|c| c.embedding_scale = 1.0),
        ("gemma3", "the offset of norms", &|c| c.norm_offset = 1.0),
        ("gemma3", "no windows", &|c| blocks(c, &|_, block| block.window = None)),
        ("gemma3", "the local rotation", &|c| c.local_rope = c.rope),
        ("gemma3", "the global rotation", &|c| c.rope = c.local_rope),
    ];
    let mut weak = Vec::new();
    for (name, what, change) in changes {
        let case = case(name);
        let mut config = case.config(Format::Gguf);
        change(&mut config);
        let error = distance(&case, &config, Format::Gguf);
        if !is_wrong(error, &case, Format::Gguf) {
            weak.push(format!("{name}, {what}: {error}"));
        }
    }
    assert!(weak.is_empty(), "{weak:#?}");
}

#[test]
fn every_number_of_llama_3_s_scaling_is_worth_something() {
    let case = case("llama3.1");
    let right = case.config(Format::HuggingFace);
    let scaled = |factor, low_freq_factor, high_freq_factor, original_context| RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_context,
    };
    assert_eq!(right.rope.scaling, scaled(8.0, 1.0, 4.0, 32));
    for scaling in [
        RopeScaling::None,
        RopeScaling::Linear { factor: 8.0 },
        scaled(2.0, 1.0, 4.0, 32),
        scaled(8.0, 0.25, 4.0, 32),
        scaled(8.0, 1.0, 16.0, 32),
        scaled(8.0, 1.0, 4.0, 128),
    ] {
        let config = ModelConfig { rope: RopeConfig { scaling, ..right.rope }, ..right.clone() };
        let error = distance(&case, &config, Format::HuggingFace);
        assert!(is_wrong(error, &case, Format::HuggingFace), "{scaling:?}: {error}");
    }
    let gguf = case.config(Format::Gguf);
    assert_eq!(gguf.rope.scaling, RopeScaling::None, "the divisors are a tensor");
    let mut weights = case.weights(&gguf, Format::Gguf);
    assert_eq!(std::mem::take(&mut weights.rope_factors).len(), 16);
    let golden = golden();
    let without = logits(&gguf, &weights, &golden.tokens, &Schedule::default()).unwrap();
    let with = logits(&gguf, &case.weights(&gguf, Format::Gguf), &golden.tokens, &Schedule::default()).unwrap();
    assert_ne!(without[20], with[20]);
}

#[test]
fn every_flavour_has_the_same_bits_in_every_schedule() {
    let golden = golden();
    for case in &golden.cases {
        let format = if case.is_in(Format::Gguf) { Format::Gguf } else { Format::HuggingFace };
        let config = case.config(format);
        let weights = case.weights(&config, format);
        let reference = logits(&config, &weights, &golden.tokens, &Schedule::default()).unwrap();
        for family in KernelFamily::ALL {
            for (threads, step, has_company) in [(1, 1, true), (2, 7, true), (2, 45, false), (1, 16, false)] {
                let schedule = Schedule { family, threads, step, has_company };
                let Some(got) = logits(&config, &weights, &golden.tokens, &schedule) else { continue };
                assert_eq!(got.len(), reference.len());
                let mut compared = 0;
                for (position, (got, wanted)) in std::iter::zip(&got, &reference).enumerate() {
                    if !got.is_empty() {
                        compared += 1;
                        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
                        assert_eq!(bits(got), bits(wanted), "{}, {family}, steps of {step}, {position}", case.name);
                    }
                }
                assert!(compared >= 20, "{compared} positions");
            }
        }
    }
}

#[test]
fn a_file_with_a_tensor_that_its_flags_do_not_know_is_refused() {
    for (name, tensor, change) in [
        ("qwen2", "blk.0.attn_k.bias", (|c| c.has_qkv_bias = false) as fn(&mut ModelConfig)),
        ("llama with biases", "blk.0.attn_output.bias", |c| c.has_attention_output_bias = false),
        ("llama with biases", "blk.0.ffn_down.bias", |c| c.has_ff_bias = false),
        ("qwen3", "blk.0.attn_k_norm.weight", |c| c.has_query_key_norms = false),
        ("gemma3", "blk.0.post_attention_norm.weight", |c| c.has_post_norms = false),
        ("llama2", "output.weight", |c| c.is_tied = true),
    ] {
        let case = case(name);
        let mut config = case.config(Format::Gguf);
        assert!(Weights::load(&case.file(), &config, 1).is_ok(), "{name}");
        change(&mut config);
        let error = Weights::load(&case.file(), &config, 1).unwrap_err().to_string();
        assert_eq!(error, format!("tensor `{tensor}` is not part of a model that the engine runs"));
    }
}

#[test]
fn a_flag_without_its_tensor_is_refused() {
    let plain = case("smollm2");
    for (tensor, change) in [
        ("blk.0.attn_q.bias", (|c| c.has_qkv_bias = true) as fn(&mut ModelConfig)),
        ("blk.0.attn_output.bias", |c| c.has_attention_output_bias = true),
        ("blk.0.ffn_gate.bias", |c| c.has_ff_bias = true),
        ("blk.0.attn_q_norm.weight", |c| c.has_query_key_norms = true),
        ("blk.0.post_attention_norm.weight", |c| c.has_post_norms = true),
        ("output.weight", |c| c.is_tied = false),
    ] {
        let mut config = plain.config(Format::Gguf);
        change(&mut config);
        let error = Weights::load(&plain.file(), &config, 1).unwrap_err().to_string();
        assert_eq!(error, format!("tensor `{tensor}` is missing"));
    }
}
