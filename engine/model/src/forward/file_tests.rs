//! From a whole GGUF file with the K types to logits: the path of the models that most people have.

use std::path::Path;

use super::tests::{Tensors, bits, config};
use super::*;
use crate::gguf::tests::{File, float, number, numbers, scalar, strings};
use crate::inspection::inspect;
use crate::model::LoadOptions;
use crate::tensor_kind::TensorKind;
use engine_kernels::{KvKind, KvShape, MatrixKind, PageRef};

const VOCAB: usize = 48;
/// Element types, by their numbers in the file, that matrices get in turn: Q6_K first, as token embeddings often are.
const KINDS: [u32; 5] = [14, 12, 7, 13, 12];
const F32: u32 = 0;
const TOKENS: [u32; 21] = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 46, 26, 43, 38, 32, 7, 9, 5];
/// Errors of a position's logits, relative to their norm. Measured: a median of 6e-7, at most 1.4e-2, where activations
/// round to the next step for a last bit.
const MEDIAN_ERROR_MAX: f32 = 1e-5;
const ERROR_MAX: f32 = 3e-2;

fn wide() -> ModelConfig {
    let attention_scale = 1.0 / 32f32.sqrt();
    ModelConfig {
        width: 256,
        heads: 8,
        head_dim: 32,
        ff_width: 512,
        vocab: VOCAB,
        rope_dims: 32,
        attention_scale,
        ..config()
    }
}

/// The same weights, as the floats that the format's definition says they are.
fn dequantised(tensors: &Tensors) -> Tensors {
    let mut floats = Tensors::default();
    for (name, (shape, kind, bytes)) in &tensors.tensors {
        let of_kernels = match kind.number() {
            F32 => MatrixKind::F32,
            7 => MatrixKind::Q5_1,
            12 => MatrixKind::Q4_K,
            13 => MatrixKind::Q5_K,
            14 => MatrixKind::Q6_K,
            other => panic!("type {other} is not in these models"),
        };
        let mut weights = vec![0.0; of_kernels.block_weights()];
        let mut out = Vec::new();
        for block in bytes.chunks_exact(of_kernels.block_bytes()) {
            of_kernels.dequantise(block, &mut weights);
            out.extend(weights.iter().flat_map(|weight| weight.to_le_bytes()));
        }
        let kind = TensorKind::F32;
        floats.tensors.insert(name.clone(), (shape.clone(), kind, out));
    }
    floats
}

fn write(path: &Path, config: &ModelConfig, tensors: &Tensors) {
    let names: Vec<String> = (0..config.vocab as u8).map(|token| char::from(b'!' + token).to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let key = |value: usize| number(u32::try_from(value).unwrap());
    let mut file = File::default()
        .key("general.architecture", scalar("llama"))
        .key("llama.block_count", key(config.layers))
        .key("llama.embedding_length", key(config.width))
        .key("llama.attention.head_count", key(config.heads))
        .key("llama.attention.head_count_kv", key(config.kv_heads))
        .key("llama.feed_forward_length", key(config.ff_width))
        .key("llama.context_length", key(config.context_length))
        .key("llama.attention.layer_norm_rms_epsilon", float(config.rms_eps))
        .key("tokenizer.ggml.model", scalar("gpt2"))
        .key("tokenizer.ggml.tokens", strings(&names))
        .key("tokenizer.ggml.token_type", numbers(&vec![1; config.vocab]))
        .key("tokenizer.ggml.merges", strings(&[]))
        .key("tokenizer.ggml.eos_token_id", number(0));
    let mut data = Vec::new();
    for (name, (shape, kind, bytes)) in &tensors.tensors {
        let shape: Vec<u64> = shape.iter().map(|dimension| *dimension as u64).collect();
        file = file.tensor(name, &shape, kind.number(), data.len() as u64);
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    std::fs::write(path, file.data(data).bytes()).unwrap();
}

/// Logits of every position, in steps of `step` tokens.
fn logits(model: &Arc<Model>, family: KernelFamily, threads: usize, step: usize) -> Option<Vec<Vec<f32>>> {
    let ModelConfig { layers, kv_heads, head_dim, .. } = *model.config();
    // As computed: rounded K and V would hide small differences.
    let mut store = KvStore::with_kind(KvShape { layers, kv_heads, head_dim, pages: 2 }, KvKind::F32).unwrap();
    let pages: Vec<PageRef> = (0..2).map(|page| PageRef { page, tag: 1 }).collect();
    pages.iter().for_each(|page| store.assign(*page).unwrap());
    let mut forward = Forward::with_family(Arc::clone(model), threads, TOKENS.len(), family)?;
    let mut all = Vec::new();
    for (index, chunk) in TOKENS.chunks(step).enumerate() {
        // A span for each token, so that every position has logits.
        let spans: Vec<Span<'_>> = chunk
            .chunks(1)
            .enumerate()
            .map(|(at, tokens)| Span { ticket: 0, tokens, position: index * step + at, pages: &pages, logits: true })
            .collect();
        forward.run(&mut store, &spans, &|| false).unwrap();
        for span in 0..spans.len() {
            bits(forward.logits(span, 0));
            all.push(forward.logits(span, 0)?.to_vec());
        }
    }
    Some(all)
}

#[test]
fn a_file_with_the_k_types_runs_and_says_what_its_weights_say() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for is_tied in [true, false] {
        let tensors = Tensors::new(&wide(), &KINDS, is_tied);
        write(&path, &wide(), &tensors);
        let model = Arc::new(Model::load(&path, 2).unwrap());
        assert_eq!(*model.config(), ModelConfig { is_tied, ..wide() });
        let reference = logits(&model, KernelFamily::Scalar, 1, 1).unwrap();

        // The same bits for every family, number of threads and division of the prompt.
        for family in KernelFamily::ALL {
            for (threads, step) in [(1, 1), (2, 7), (1, TOKENS.len())] {
                let Some(got) = logits(&model, family, threads, step) else { continue };
                for (position, (got, wanted)) in got.iter().zip(&reference).enumerate() {
                    let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(got), bits(wanted), "{family}, {threads} threads, steps of {step}, {position}");
                }
            }
        }

        // Near those of the definition's floats, which go through none of the code for these types. What differs is the
        // last bits of sums, and an activation here and there that rounds to the next of its 255 steps for it.
        let other = folder.path().join("floats.gguf");
        write(&other, &wide(), &dequantised(&tensors));
        let floats = Arc::new(Model::load(&other, 2).unwrap());
        let wanted = logits(&floats, KernelFamily::Scalar, 1, 1).unwrap();
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
        let error = |(got, wanted): (&Vec<f32>, &Vec<f32>)| {
            norm(&mut got.iter().zip(wanted).map(|(got, wanted)| got - wanted)) / norm(&mut wanted.iter().copied())
        };
        let mut errors: Vec<f32> = reference.iter().zip(&wanted).map(error).collect();
        assert_eq!(errors.len(), TOKENS.len());
        errors.sort_by(f32::total_cmp);
        assert!(errors[TOKENS.len() / 2] <= MEDIAN_ERROR_MAX, "{errors:?}");
        assert!(errors[TOKENS.len() - 1] <= ERROR_MAX, "{errors:?}");
        assert_ne!(model.numerics_profile(KvKind::Bf16), floats.numerics_profile(KvKind::Bf16));
    }
}

#[test]
fn inspection_says_that_such_a_file_runs_and_which_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut tensors = Tensors::new(&wide(), &KINDS, true);
    write(&path, &wide(), &tensors);
    let inspection = inspect(&path, &LoadOptions::new(1)).unwrap();
    assert_eq!(inspection.refusal, None);
    let mut kinds: Vec<&str> = inspection.tensors.iter().map(|share| share.kind.as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["F32", "Q4_K", "Q5_1", "Q5_K", "Q6_K"]);

    let (_, kind, bytes) = tensors.tensors.get_mut("blk.1.ffn_up.weight").unwrap();
    *kind = TensorKind::from_number(10).unwrap();
    bytes.truncate(256 * 512 / 256 * 84);
    bytes.resize(256 * 512 / 256 * 84, 0);
    write(&path, &wide(), &tensors);
    let refusal = inspect(&path, &LoadOptions::new(1)).unwrap().refusal.unwrap();
    assert_eq!(refusal, "tensor `blk.1.ffn_up.weight` has type Q2_K, which is not supported here");
}

#[test]
fn scales_that_are_no_numbers_are_refused_and_zeros_are_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for hostile in [0xff, 0x7c, 0x00] {
        let mut tensors = Tensors::new(&wide(), &KINDS, true);
        for (shape, _, bytes) in tensors.tensors.values_mut() {
            if shape.len() == 2 {
                bytes.fill(hostile);
            }
        }
        write(&path, &wide(), &tensors);
        let loaded = Model::load(&path, 2);
        if hostile != 0 {
            let error = loaded.unwrap_err().to_string();
            assert!(error.contains("has a weight that is infinite or not a number"), "{error}");
            continue;
        }
        let model = Arc::new(loaded.unwrap());
        for family in KernelFamily::ALL {
            let Some(mut forward) = Forward::with_family(Arc::clone(&model), 2, 16, family) else { continue };
            let ModelConfig { layers, kv_heads, head_dim, .. } = *model.config();
            let mut store = KvStore::new(KvShape { layers, kv_heads, head_dim, pages: 1 }).unwrap();
            let pages = [PageRef { page: 0, tag: 1 }];
            store.assign(pages[0]).unwrap();
            let span = Span { ticket: 0, tokens: &TOKENS[..12], position: 0, pages: &pages, logits: true };
            forward.run(&mut store, &[span], &|| false).unwrap();
            assert_eq!(forward.logits(0, 0).unwrap(), [0.0; VOCAB], "{family}");
        }
    }
}
