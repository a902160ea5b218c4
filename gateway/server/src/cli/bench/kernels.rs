//! The matrix products of a pass one by one, on the model's own weights: how long the ceilings say that each must take
//! at least, and how long it takes.

use super::ceilings::{Ceilings, Sample};
use super::spread::{Series, Spread};
use anyhow::{Context, Result, bail};
use engine_kernels::{
    ACTIVATION_BLOCK, Activation, Activations, Matrix, MatrixKind, MatrixSource, Team, product, product_add,
    product_swiglu, quantise,
};
use engine_model::{Gguf, ModelConfig, TensorView};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::Instant;

/// Tokens of a pass: one decode, a batch, a prompt's chunk.
const TOKENS: [usize; 3] = [1, 16, 512];
/// Logits are wanted of this many at a time.
const HEAD_TOKENS_MAX: usize = 64;

/// A kernel in one layer (the head: once), in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    kernel: &'static str,
    tokens: usize,
    /// The slower of reading its weights and doing its operations at the ceilings.
    predicted_us: f64,
    reached_us: Spread,
    share: f64,
}

/// By their names, which are those of the file's types.
const KINDS: [MatrixKind; 11] = [
    MatrixKind::F32,
    MatrixKind::F16,
    MatrixKind::BF16,
    MatrixKind::Q4_0,
    MatrixKind::Q4_1,
    MatrixKind::Q5_0,
    MatrixKind::Q5_1,
    MatrixKind::Q8_0,
    MatrixKind::Q4_K,
    MatrixKind::Q5_K,
    MatrixKind::Q6_K,
];

/// What is called.
#[derive(Clone, Copy)]
enum Call {
    Store,
    Add,
    Gated,
}

/// A kernel, and the tensors of one layer that it reads.
const KERNELS: [(&str, Call, &[&str]); 5] = [
    ("query, key, value", Call::Store, &["attn_q", "attn_k", "attn_v"]),
    ("attention output", Call::Add, &["attn_output"]),
    ("gate, up, product", Call::Gated, &["ffn_gate", "ffn_up"]),
    ("down", Call::Add, &["ffn_down"]),
    ("head", Call::Store, &[]),
];

/// Measures all of them; every layer's weights in turn, so that they come from where they come from in a pass.
pub(super) fn measure(
    path: &Path,
    config: &ModelConfig,
    threads: usize,
    repetitions: usize,
    ceilings: &mut Ceilings,
) -> Result<Vec<Row>> {
    let gguf = Gguf::open(path)?;
    let mut team = Team::new(threads);
    let mut rows = Vec::new();
    for (kernel, call, names) in KERNELS {
        let layers: Vec<Vec<String>> = if names.is_empty() {
            let head = if config.is_tied { "token_embd.weight" } else { "output.weight" };
            vec![vec![head.to_owned()]]
        } else {
            let name = |layer: usize| names.iter().map(|name| format!("blk.{layer}.{name}.weight")).collect();
            (0..config.layers).map(name).collect()
        };
        let mut packed = Vec::new();
        let mut bytes = 0;
        for names in &layers {
            let sources = names.iter().map(|name| source(&gguf, name)).collect::<Result<Vec<_>>>()?;
            bytes += sources.iter().map(|source| source.bytes.len()).sum::<usize>();
            packed.push(Matrix::pack(&sources, threads)?);
        }
        // The head sees the last token of each sequence only.
        for tokens in TOKENS.into_iter().filter(|tokens| !names.is_empty() || *tokens <= HEAD_TOKENS_MAX) {
            let (mut reached, mut predicted) = (Series::new(), Series::new());
            let mut run = Run::new(&mut team, call, config.activation, &packed, tokens)?;
            for repetition in 0..=repetitions {
                let start = Instant::now();
                packed.iter().try_for_each(|matrices| run.layer(&mut team, matrices))?;
                let us = start.elapsed().as_secs_f64() * 1e6 / packed.len() as f64;
                if repetition > 0 {
                    reached.push(us);
                    let operations = 2.0 * tokens as f64 * weights(&packed) as f64;
                    predicted.push(at_least(bytes, operations, ceilings.sample()) * 1e6 / packed.len() as f64);
                }
            }
            let (reached_us, predicted_us) = (Spread::of(&reached)?, Spread::of(&predicted)?.median);
            rows.push(Row { kernel, tokens, predicted_us, reached_us, share: predicted_us / reached_us.median });
        }
    }
    Ok(rows)
}

/// Seconds.
fn at_least(bytes: usize, operations: f64, ceiling: Sample) -> f64 {
    (bytes as f64 / ceiling.bytes).max(operations / ceiling.int8_operations)
}

fn weights(packed: &[Vec<Matrix>]) -> usize {
    packed.iter().flatten().map(|matrix| matrix.rows() * matrix.width()).sum()
}

fn source<'a>(gguf: &'a Gguf, name: &str) -> Result<MatrixSource<'a>> {
    let TensorView { kind, shape, bytes } = gguf.tensor(name).with_context(|| format!("no tensor `{name}`"))?;
    let kind = KINDS.into_iter().find(|matrix| format!("{matrix:?}") == kind.name());
    let kind = kind.with_context(|| format!("no kernel for `{name}`"))?;
    match *shape {
        [width, rows] => Ok(MatrixSource { kind, rows, width, bytes }),
        _ => bail!("`{name}` is no matrix"),
    }
}

/// Inputs and outputs of one kernel.
struct Run {
    call: Call,
    activation: Activation,
    input: Activations,
    hidden: Activations,
    out: Vec<f32>,
}

impl Run {
    fn new(team: &mut Team, call: Call, activation: Activation, packed: &[Vec<Matrix>], tokens: usize) -> Result<Self> {
        let first = packed.first().context("no layers")?;
        let width = first.first().context("no matrices")?.width();
        let outputs: usize = first.iter().map(Matrix::rows_padded).sum();
        let mut input = Activations::new(tokens, width);
        // Any values cost the same.
        let values: Vec<f32> = (0..tokens * width).map(|index| (index % 37) as f32 / 37.0 - 0.5).collect();
        quantise(team, &values, width, &mut input);
        let hidden = Activations::new(tokens, outputs.next_multiple_of(ACTIVATION_BLOCK));
        Ok(Self { call, activation, input, hidden, out: vec![0.0; tokens * outputs] })
    }

    fn layer(&mut self, team: &mut Team, matrices: &[Matrix]) -> Result<()> {
        match (self.call, matrices) {
            (Call::Store, _) => {
                let matrices: Vec<&Matrix> = matrices.iter().collect();
                product(team, &matrices, &self.input, &mut self.out);
            }
            (Call::Add, [matrix]) => product_add(team, matrix, &self.input, &mut self.out),
            (Call::Gated, [gate, up]) => {
                product_swiglu(team, gate, up, self.activation, &self.input, &mut self.hidden);
            }
            _ => bail!("the kernel has another number of matrices"),
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, tokens, predicted_us, reached_us, share } = self;
        write!(f, "{kernel:<18}{tokens:>4} {predicted_us:>10.1} {:>10.1} {share:>6.2}", reached_us.median)
    }
}
