//! The forward pass on small models made of random weights: the same bits for any schedule, and what can go wrong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use engine_kernels::{KvShape, MatrixKind, PageRef};
use proptest::prelude::*;

use super::*;
use crate::config::{Activation, BlockConfig, LayerRope, RopeConfig, RopePairs, RopeScaling};
use crate::gguf::TensorView;
use crate::tensor_kind::TensorKind;
use crate::weights::LoadWeightsError;

/// Smaller than real models in everything; odd where the kernels have to cope with it.
pub(super) fn config() -> ModelConfig {
    ModelConfig {
        architecture: "llama".to_owned(),
        layers: 2,
        width: 64,
        heads: 6,
        kv_heads: 2,
        head_dim: 16,
        ff_width: 96,
        vocab: 45,
        context_length: 600,
        rms_eps: 1e-5,
        rope_pairs: RopePairs::Neighbours,
        rope_dims: 12,
        rope: RopeConfig { base: 10_000.0, scaling: RopeScaling::None },
        local_rope: RopeConfig { base: 10_000.0, scaling: RopeScaling::None },
        blocks: vec![BlockConfig { window: None, rope: LayerRope::Global }; 2],
        attention_scale: 0.25,
        embedding_scale: 1.0,
        norm_offset: 0.0,
        has_query_key_norms: false,
        has_post_norms: false,
        has_qkv_bias: false,
        has_attention_output_bias: false,
        has_ff_bias: false,
        activation: Activation::Silu,
        is_tied: true,
    }
}

/// Tensors as a file would have them.
#[derive(Default)]
pub(super) struct Tensors {
    pub(super) tensors: HashMap<String, (Vec<usize>, TensorKind, Vec<u8>)>,
    state: u64,
}

impl Tensors {
    /// All tensors of a model; `kinds` (numbers in the file) are used in turn for its matrices.
    pub(super) fn new(config: &ModelConfig, kinds: &[u32], is_tied: bool) -> Self {
        let mut tensors = Self { state: 0x9e37_79b9_7f4a_7c15, ..Self::default() };
        let mut kinds = kinds.iter().copied().cycle();
        let (width, ff) = (config.width, config.ff_width);
        let (queries, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let mut matrices = vec![("token_embd.weight".to_owned(), [width, config.vocab])];
        if !is_tied {
            matrices.push(("output.weight".to_owned(), [width, config.vocab]));
        }
        for layer in 0..config.layers {
            for (name, shape) in [
                ("attn_q", [width, queries]),
                ("attn_k", [width, kv]),
                ("attn_v", [width, kv]),
                ("attn_output", [queries, width]),
                ("ffn_gate", [width, ff]),
                ("ffn_up", [width, ff]),
                ("ffn_down", [ff, width]),
            ] {
                matrices.push((format!("blk.{layer}.{name}.weight"), shape));
            }
            for name in ["attn_norm", "ffn_norm"] {
                tensors.add(&format!("blk.{layer}.{name}.weight"), &[width], 0);
            }
        }
        for (name, shape) in matrices {
            tensors.add(&name, &shape, kinds.next().unwrap());
        }
        tensors.add("output_norm.weight", &[width], 0);
        tensors
    }

    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn add(&mut self, name: &str, shape: &[usize], kind: u32) {
        let kind = TensorKind::from_number(kind).unwrap();
        let blocks = shape.iter().product::<usize>() / kind.block_weights() as usize;
        let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
        let mut bytes = Vec::new();
        for _ in 0..blocks {
            let float = self.random() as i32 as f32 / (1u64 << 32) as f32;
            match kind.name() {
                "F32" => bytes.extend((float + 0.6).to_le_bytes()),
                "F16" => bytes.extend(half(float / 4.0)),
                "BF16" => bytes.extend(half::bf16::from_f32(float / 4.0).to_le_bytes()),
                "Q4_1" | "Q5_1" => bytes.extend([half(0.02 + float.abs() / 50.0), half(-0.2)].concat()),
                "Q8_0" => bytes.extend(half(float / 300.0)),
                "Q4_K" | "Q5_K" => bytes.extend([half(float / 1_000.0), half(float / 100.0)].concat()),
                "Q6_K" => {
                    bytes.extend((0..208).map(|_| self.random() as u8));
                    bytes.extend(half(float / 5_000.0));
                }
                _ => bytes.extend(half(float / 30.0)),
            }
            while !bytes.len().is_multiple_of(kind.block_bytes() as usize) {
                bytes.push(self.random() as u8);
            }
        }
        self.tensors.insert(name.to_owned(), (shape.to_vec(), kind, bytes));
    }

    pub(super) fn load(&self, config: &ModelConfig) -> Result<Weights, LoadWeightsError> {
        Weights::from_tensors(config, 2, |name| {
            let (shape, kind, bytes) = self.tensors.get(name)?;
            Some(TensorView { shape, kind: *kind, bytes })
        })
    }
}

/// Q4_1 layers under a Q8_0 embedding, as the default model; and one of everything, with a head of its own.
fn models() -> &'static [(ModelConfig, Weights); 2] {
    static MODELS: OnceLock<[(ModelConfig, Weights); 2]> = OnceLock::new();
    MODELS.get_or_init(|| {
        [(&[8, 3, 3, 3, 3, 3, 3, 3][..], true), (&[8, 2, 1, 30, 0, 3, 6][..], false)].map(|(kinds, is_tied)| {
            let config = ModelConfig { is_tied, ..config() };
            let mut tensors = Tensors::new(&config, kinds, is_tied);
            if !is_tied {
                tensors.add("rope_freqs.weight", &[6], 0);
            }
            let weights = tensors.load(&config).unwrap();
            (config, weights)
        })
    })
}

pub(super) fn store(config: &ModelConfig, pages: usize) -> KvStore {
    let ModelConfig { layers, kv_heads, head_dim, .. } = *config;
    KvStore::new(KvShape { layers, kv_heads, head_dim, pages }).unwrap()
}

fn team(threads: usize, family: KernelFamily) -> Team {
    Team::with_family(threads, family).unwrap_or_else(|| Team::new(threads))
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| (i.wrapping_mul(i).wrapping_add(seed.wrapping_mul(7_919)) >> 1) % 45).collect()
}

/// Logits as bits, of a kind that a comparison means something for.
pub(super) fn bits(logits: Option<&[f32]>) -> Vec<u32> {
    let logits = logits.expect("the span has logits");
    assert!(logits.iter().all(|logit| logit.is_finite()));
    let spread = logits.iter().copied().fold(f32::MIN, f32::max) - logits.iter().copied().fold(f32::MAX, f32::min);
    assert!(spread > 0.1, "logits of a model that says nothing");
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Logits of every position, one token at a time, on one thread, in plain Rust.
fn serial(model: usize, tokens: &[u32]) -> Arc<Vec<Vec<u32>>> {
    type Known = Mutex<HashMap<(usize, Vec<u32>), Arc<Vec<Vec<u32>>>>>;
    static KNOWN: OnceLock<Known> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Known::default).lock().unwrap();
    let compute = || {
        let (config, weights) = &models()[model];
        let count = tokens.len().div_ceil(PAGE_TOKENS);
        let mut store = store(config, count);
        let pages: Vec<PageRef> = (0..count as u32).map(|page| PageRef { page, tag: 1 }).collect();
        pages.iter().for_each(|page| store.assign(*page).unwrap());
        let mut pass = Pass::new(config, weights, team(1, KernelFamily::Scalar), 1);
        let mut all = Vec::new();
        for (position, token) in tokens.iter().enumerate() {
            let span = Span { ticket: 0, tokens: &[*token], position, pages: &pages, logits: true };
            pass.run(config, weights, &mut store, &[span], &|| false).unwrap();
            all.push(bits(pass.logits(0, 0)));
        }
        Arc::new(all)
    };
    Arc::clone(known.entry((model, tokens.to_vec())).or_insert_with(compute))
}

/// A sequence in a random schedule.
struct Sequence {
    tokens: Vec<u32>,
    done: usize,
    pages: Vec<PageRef>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any batch composition, chunking, page placement, loss of pages, thread count and family against one token at a time.
    #[test]
    fn any_schedule_gives_the_bits_of_the_serial_reference(
        model in 0..2usize,
        lengths in proptest::collection::vec(prop_oneof![1usize..40, Just(300), Just(523)], 1..5),
        threads in 1usize..4,
        family in 0..KernelFamily::ALL.len(),
        choices in proptest::collection::vec(any::<u32>(), 64),
    ) {
        let (config, weights) = &models()[model];
        let mut choices = choices.into_iter().cycle();
        let mut choose = |count: usize| choices.next().map_or(0, |choice| choice as usize % count);

        // Pages of all sequences, shuffled over a store with room to spare.
        let needed: usize = lengths.iter().map(|length| length.div_ceil(PAGE_TOKENS)).sum();
        let mut places: Vec<u32> = (0..needed as u32 + 5).collect();
        for place in (1..places.len()).rev() {
            places.swap(place, choose(place + 1));
        }
        let mut store = store(config, places.len());
        let mut sequences: Vec<Sequence> = lengths.iter().enumerate().map(|(number, length)| {
            let pages = places.split_off(places.len() - length.div_ceil(PAGE_TOKENS));
            let pages: Vec<PageRef> = pages.into_iter().map(|page| PageRef { page, tag: number as u32 + 1 }).collect();
            pages.iter().for_each(|page| store.assign(*page).unwrap());
            // Few different prompts, so that their references are computed once.
            Sequence { tokens: tokens(*length, number as u32 % 2), done: 0, pages }
        }).collect();

        let mut pass = Pass::new(config, weights, team(threads, KernelFamily::ALL[family]), 128);
        let mut preemptions = 2;
        while sequences.iter().any(|sequence| sequence.done < sequence.tokens.len()) {
            // Sometimes one loses its pages and is computed anew, on the same ones in another order under another tag.
            let number = choose(sequences.len());
            if preemptions > 0 && sequences[number].done > 0 && choose(4) == 0 {
                preemptions -= 1;
                let Sequence { done, pages, .. } = &mut sequences[number];
                *done = 0;
                pages.iter().for_each(|page| store.scrub(page.page).unwrap());
                pages.reverse();
                for page in pages {
                    page.tag += 100;
                    store.assign(*page).unwrap();
                }
            }
            // Some sequences, each with some of its next tokens; sometimes two spans of the same one.
            let mut spans = Vec::new();
            let mut room = 128;
            for (number, sequence) in sequences.iter_mut().enumerate() {
                for _ in 0..1 + choose(2) {
                    let left = (sequence.tokens.len() - sequence.done).min(room);
                    let count = [0, 1, 1 + choose(20), 1 + choose(128)][choose(4)].min(left);
                    if count > 0 {
                        spans.push((number, sequence.done, count));
                        sequence.done += count;
                        room -= count;
                    }
                }
            }
            let run: Vec<Span<'_>> = spans.iter().map(|&(number, position, count)| {
                let Sequence { tokens, pages, .. } = &sequences[number];
                Span { ticket: 0, tokens: &tokens[position..][..count], position, pages, logits: !count.is_multiple_of(3) }
            }).collect();
            pass.run(config, weights, &mut store, &run, &|| false).unwrap();
            for (span, &(number, position, count)) in spans.iter().enumerate() {
                prop_assert_eq!(pass.faults.of(span), None);
                if count.is_multiple_of(3) {
                    prop_assert!(pass.logits(span, 0).is_none());
                } else {
                    let reference = serial(model, &sequences[number].tokens);
                    prop_assert_eq!(&bits(pass.logits(span, 0)), &reference[position + count - 1]);
                }
            }
            prop_assert!(pass.logits(spans.len(), 0).is_none());
        }
    }
}

/// Two sequences of 20 tokens, their prompts computed; the store has one page more.
fn two_sequences() -> (Pass, KvStore, [Vec<PageRef>; 2]) {
    let (config, weights) = &models()[0];
    let mut store = store(config, 5);
    let pages = [[0, 1], [3, 2]].map(|pages| pages.map(|page| PageRef { page, tag: 10 + page / 2 }).to_vec());
    pages.iter().flatten().for_each(|page| store.assign(*page).unwrap());
    let mut pass = Pass::new(config, weights, Team::new(2), 64);
    let prompt = tokens(20, 0);
    let spans =
        [0, 1].map(|number| Span { ticket: 0, tokens: &prompt, position: 0, pages: &pages[number], logits: true });
    pass.run(config, weights, &mut store, &spans, &|| false).unwrap();
    (pass, store, pages)
}

#[test]
fn logits_are_given_to_their_ticket_alone() {
    let (config, weights) = &models()[0];
    let (mut pass, mut store, pages) = two_sequences();
    let reference = serial(0, &[tokens(20, 0), vec![7]].concat());
    let spans =
        [0, 1].map(|n| Span { ticket: 40 + n as u64, tokens: &[7], position: 20, pages: &pages[n], logits: true });
    pass.run(config, weights, &mut store, &spans, &|| false).unwrap();
    for (span, ticket) in [(0, 41), (1, 40), (0, 0), (0, 39), (2, 40), (2, 42)] {
        assert!(pass.logits(span, ticket).is_none(), "span {span} for ticket {ticket}");
    }
    assert_eq!(
        [bits(pass.logits(0, 40)), bits(pass.logits(1, 41))],
        [&reference[20], &reference[20]].map(Clone::clone)
    );
    // What is asked for after the next run is the next run's.
    let span = Span { ticket: 50, tokens: &[8], position: 21, pages: &pages[0], logits: true };
    pass.run(config, weights, &mut store, &[span], &|| false).unwrap();
    assert!(pass.logits(0, 40).is_none() && pass.logits(0, 50).is_some());
}

#[test]
fn a_fault_takes_the_logits_of_its_span_and_nothing_else() {
    let (config, weights) = &models()[0];
    let (mut pass, mut store, pages) = two_sequences();
    let reference = serial(0, &[tokens(20, 0), vec![7]].concat());
    for (index, planted) in [
        (0, PageRef { page: 3, tag: 10 }),
        (0, PageRef { page: 0, tag: 11 }),
        (1, PageRef { page: 4, tag: 10 }),
        (1, PageRef { page: 5, tag: 10 }),
        (1, PageRef { page: 1, tag: 0 }),
    ] {
        let mut table = pages[0].clone();
        table[index] = planted;
        let spans = [
            Span { ticket: 0, tokens: &[7], position: 20, pages: &table, logits: true },
            Span { ticket: 0, tokens: &[7], position: 20, pages: &pages[1], logits: true },
        ];
        pass.run(config, weights, &mut store, &spans, &|| false).unwrap();
        assert_eq!(pass.faults.of(0), Some(PageFault { layer: 0, page: planted.page }));
        assert!(pass.logits(0, 0).is_none());
        assert_eq!(pass.faults.of(1), None);
        assert_eq!(bits(pass.logits(1, 0)), reference[20]);
    }
    // The same sequence with its own table goes on as if nothing had been.
    let span = Span { ticket: 0, tokens: &[7], position: 20, pages: &pages[0], logits: true };
    pass.run(config, weights, &mut store, &[span], &|| false).unwrap();
    assert_eq!(bits(pass.logits(0, 0)), reference[20]);
}

#[test]
fn a_stopped_run_can_be_repeated() {
    let (config, weights) = &models()[0];
    let (mut pass, mut store, pages) = two_sequences();
    let span = [Span { ticket: 0, tokens: &[7, 8], position: 20, pages: &pages[0], logits: true }];
    let reference = serial(0, &[tokens(20, 0), vec![7, 8]].concat());
    for layer in 0..config.layers {
        let polls = AtomicUsize::new(0);
        let stop = || polls.fetch_add(1, Ordering::Relaxed) == layer;
        assert_eq!(pass.run(config, weights, &mut store, &span, &stop), Err(ForwardError::Stopped));
        assert_eq!(polls.into_inner(), layer + 1, "asked once a layer, and not again");
        assert!(pass.logits(0, 0).is_none() && pass.faults.of(0).is_none());
    }
    pass.run(config, weights, &mut store, &span, &|| false).unwrap();
    assert_eq!(bits(pass.logits(0, 0)), reference[21]);
}

#[test]
fn impossible_runs_are_refused_before_any_work() {
    let (config, weights) = &models()[0];
    let (mut pass, mut kv, pages) = two_sequences();
    let span = |tokens, position| Span { ticket: 0, tokens, position, pages: &pages[0], logits: true };
    let good = span(&[1], 20);
    let many = vec![1; 65];
    for (spans, wanted) in [
        (vec![good, span(&[], 20)], ForwardError::EmptySpan { span: 1 }),
        (vec![span(&many, 0)], ForwardError::TooManyTokens { tokens: 65, tokens_max: 64 }),
        (vec![good, span(&[45], 20)], ForwardError::UnknownToken { span: 1, vocab: 45 }),
        (vec![span(&[u32::MAX], 20)], ForwardError::UnknownToken { span: 0, vocab: 45 }),
        (vec![span(&[1, 1], 31)], ForwardError::TooFewPages { span: 0, pages: 2, pages_needed: 3 }),
        (vec![span(&[1], 600)], ForwardError::BeyondContext { span: 0, end: 601, context_length: 600 }),
        (vec![span(&[1], usize::MAX)], ForwardError::BeyondContext { span: 0, end: usize::MAX, context_length: 600 }),
    ] {
        let never = || panic!("no layer is begun");
        assert_eq!(pass.run(config, weights, &mut kv, &spans, &never), Err(wanted));
        assert!(pass.logits(0, 0).is_none());
    }
    let mut other = store(&ModelConfig { layers: 3, ..config.clone() }, 5);
    assert_eq!(pass.run(config, weights, &mut other, &[good], &|| false), Err(ForwardError::StoreShape));
    assert_eq!(pass.run(config, weights, &mut kv, &[], &|| false), Ok(()));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let config = config();
    let load = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = Tensors::new(&config, &[3], true);
        change(&mut tensors);
        tensors.load(&config).unwrap_err().to_string()
    };
    let name = "blk.1.ffn_up.weight";
    let missing = load(&|tensors| drop(tensors.tensors.remove(name)));
    assert_eq!(missing, "tensor `blk.1.ffn_up.weight` is missing");
    let shape = load(&|tensors| tensors.add(name, &[96, 64], 3));
    assert_eq!(shape, "tensor `blk.1.ffn_up.weight` has shape [96, 64], not [64, 96]");
    let kind = load(&|tensors| tensors.add(name, &[64, 96], 9));
    assert_eq!(kind, "tensor `blk.1.ffn_up.weight` has type Q8_1, which is not supported here");
    let norm = load(&|tensors| tensors.add("output_norm.weight", &[64], 8));
    assert_eq!(norm, "tensor `output_norm.weight` has type Q8_0, which is not supported here");
    let factors = load(&|tensors| tensors.add("rope_freqs.weight", &[7], 0));
    assert_eq!(factors, "tensor `rope_freqs.weight` has shape [7], not [6]");
}

#[test]
fn divisors_of_the_rotation_that_only_far_positions_would_suffer_from_are_refused() {
    let config = ModelConfig { context_length: 1 << 20, ..config() };
    let load = |factor: f32| {
        let mut tensors = Tensors::new(&config, &[8], true);
        tensors.add("rope_freqs.weight", &[6], 0);
        let bytes = &mut tensors.tensors.get_mut("rope_freqs.weight").unwrap().2;
        bytes[20..].copy_from_slice(&factor.to_le_bytes());
        tensors.load(&config).map_err(|error| error.to_string())
    };
    // The last position of this context, divided by 1/16, is the largest angle that can be computed.
    for factor in [0.0625, 1.0, 64.0, 1e6] {
        assert!(load(factor).is_ok(), "{factor}");
    }
    for factor in [0.0624, 1e-20, 1e-44, 0.0, -0.0, -1.0, 1.1e6, 3e38] {
        let error = load(factor).unwrap_err();
        let wanted = format!("tensor `rope_freqs.weight` divides a frequency by {factor}, which is outside 6.24");
        assert!(error.starts_with(&wanted), "{error}");
    }
}

#[test]
fn tensors_that_are_not_finite_are_named() {
    let config = ModelConfig { is_tied: false, ..config() };
    // Every kind twice: whichever tensor it is, and whichever of its two places in a block has the number.
    for (is_last, half) in [(false, 0x7c00_u16), (true, 0xfc00), (false, 0x7e00), (true, 0x7c01)] {
        let mut tensors = Tensors::new(&config, &[8, 2, 1, 30, 0, 3, 6, 7], false);
        tensors.add("rope_freqs.weight", &[6], 0);
        tensors.load(&config).unwrap();
        for name in tensors.tensors.keys().cloned().collect::<Vec<_>>() {
            let (_, kind, bytes) = tensors.tensors.get_mut(&name).unwrap();
            let good = bytes.clone();
            // The first block of the first row, or the last of the last.
            let block = if is_last { bytes.len() - kind.block_bytes() as usize } else { 0 };
            match kind.name() {
                "F32" => bytes[block + 2..block + 4].copy_from_slice(&(half | 0x7f80).to_le_bytes()),
                "BF16" => bytes[block..block + 2].copy_from_slice(&(half | 0x7f80).to_le_bytes()),
                _ => bytes[block..block + 2].copy_from_slice(&half.to_le_bytes()),
            }
            let error = tensors.load(&config).unwrap_err();
            assert_eq!(error.to_string(), format!("tensor `{name}` has a weight that is infinite or not a number"));
            tensors.tensors.get_mut(&name).unwrap().2 = good;
        }
        tensors.load(&config).unwrap();
    }
}

#[test]
fn every_tensor_is_in_the_digest_of_the_weights() {
    let config = ModelConfig { is_tied: false, has_qkv_bias: true, ..config() };
    let mut tensors = Tensors::new(&config, &[8, 2, 1, 30, 0, 3, 6, 7], false);
    tensors.add("rope_freqs.weight", &[6], 0);
    for (layer, (name, rows)) in
        [0, 1].into_iter().flat_map(|l| [("q", 96), ("k", 32), ("v", 32)].map(|part| (l, part)))
    {
        tensors.add(&format!("blk.{layer}.attn_{name}.bias"), &[rows], 0);
    }
    let digest = |tensors: &Tensors| tensors.load(&config).unwrap().digest;
    let wanted = digest(&tensors);
    assert_eq!(digest(&tensors), wanted);
    for name in tensors.tensors.keys().cloned().collect::<Vec<_>>() {
        // Its last bit, which makes no number infinite in any kind but F16 of the largest numbers.
        let flip = |tensors: &mut Tensors| {
            let (_, _, bytes) = tensors.tensors.get_mut(&name).unwrap();
            let last = bytes.len() - 4;
            bytes[last] ^= 1;
        };
        flip(&mut tensors);
        assert_ne!(digest(&tensors), wanted, "{name}");
        flip(&mut tensors);
    }
}

#[test]
fn dimensions_that_do_not_divide_are_named() {
    let refused = |config: ModelConfig| Weights::from_tensors(&config, 1, |_| None).unwrap_err().to_string();
    assert_eq!(
        refused(ModelConfig { head_dim: 24, ..config() }),
        "the head dimension is 24, not a multiple of 16 up to 512"
    );
    assert!(refused(ModelConfig { width: 48, ..config() }).starts_with("the width is 48"));
    assert!(refused(ModelConfig { ff_width: 80, ..config() }).starts_with("the feed-forward width is 80"));
    assert!(refused(ModelConfig { heads: 5, kv_heads: 5, ..config() }).starts_with("the width of all heads is 80"));
}

#[test]
fn the_kinds_of_the_file_are_those_of_the_kernels() {
    for (number, kind) in [
        (0, MatrixKind::F32),
        (1, MatrixKind::F16),
        (2, MatrixKind::Q4_0),
        (3, MatrixKind::Q4_1),
        (6, MatrixKind::Q5_0),
        (7, MatrixKind::Q5_1),
        (8, MatrixKind::Q8_0),
        (12, MatrixKind::Q4_K),
        (13, MatrixKind::Q5_K),
        (14, MatrixKind::Q6_K),
        (30, MatrixKind::BF16),
    ] {
        let of_file = TensorKind::from_number(number).unwrap();
        assert_eq!(of_file.name(), format!("{kind:?}"));
        let blocks = kind.block_weights() / of_file.block_weights() as usize;
        assert!(blocks == 1 || of_file.block_weights() == 1);
        assert_eq!(of_file.block_bytes() as usize * blocks, kind.block_bytes());
    }
}
