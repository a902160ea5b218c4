//! The weights as the kernels want them: found by name, checked against the configuration, repacked.
//!
//! Everything is copied out of the file, token embeddings included (with a tied head they are the head's rows), so
//! that the mapping can be dropped: resident memory is the repacked weights and nothing else.

use engine_kernels::{HEAD_DIM_MAX, KernelFamily, Matrix, MatrixKind, MatrixSource, PackError};

use crate::config::ModelConfig;
use crate::gguf::{Gguf, TensorView};
use crate::tensor_kind::TensorKind;

/// Why the tensors do not make up the model that the configuration describes.
#[derive(Debug, thiserror::Error)]
pub enum LoadWeightsError {
    /// A tensor that every model of this architecture has.
    #[error("tensor `{tensor}` is missing")]
    Missing {
        /// Its name.
        tensor: String,
    },
    /// The engine has no kernel for the tensor's element type.
    #[error("tensor `{tensor}` has type {kind}, which is not supported here")]
    Kind {
        /// Its name.
        tensor: String,
        /// Its type.
        kind: TensorKind,
    },
    /// The shape does not follow from the configuration.
    #[error("tensor `{tensor}` has shape {shape:?}, not {wanted:?}")]
    Shape {
        /// Its name.
        tensor: String,
        /// As in the file.
        shape: Vec<usize>,
        /// As the configuration asks for.
        wanted: Vec<usize>,
    },
    /// A tensor that the forward pass would ignore, such as a bias: the results would be wrong.
    #[error("tensor `{tensor}` is not part of a model that the engine runs")]
    Unknown {
        /// Its name.
        tensor: String,
    },
    /// A dimension that the kernels cannot divide evenly.
    #[error("{dimension} is {value}, not a multiple of {multiple_of} up to {value_max}")]
    Dimension {
        /// What it is.
        dimension: &'static str,
        /// As configured.
        value: usize,
        /// What it has to be a multiple of.
        multiple_of: usize,
        /// The largest possible.
        value_max: usize,
    },
    /// The matrices could not be repacked.
    #[error("the weights could not be repacked: {0}")]
    Pack(#[from] PackError),
}

/// One decoder block.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) query: Matrix,
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    pub(crate) attention_output: Matrix,
    pub(crate) ff_norm: Vec<f32>,
    pub(crate) ff_gate: Matrix,
    pub(crate) ff_up: Matrix,
    pub(crate) ff_down: Matrix,
}

/// All weights of a model, repacked.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) output_norm: Vec<f32>,
    pub(crate) head: Matrix,
    /// Its rows are the token embeddings; the head itself where the file has one matrix for both.
    pub(crate) embedding: Matrix,
    /// Divisors of the rotary frequencies; empty in most models.
    pub(crate) rope_factors: Vec<f32>,
}

/// Matrices of a decoder block, in the order in which a forward pass reads them.
const LAYER_MATRICES: [&str; 7] = [
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
];
const EMBEDDING: &str = "token_embd.weight";
const OUTPUT_NORM: &str = "output_norm.weight";
const HEAD: &str = "output.weight";
const ROPE_FACTORS: &str = "rope_freqs.weight";

impl Weights {
    /// Reads, checks and repacks all tensors, on `threads`.
    ///
    /// # Errors
    /// [`LoadWeightsError`], naming the tensor.
    pub(crate) fn load(gguf: &Gguf, config: &ModelConfig, threads: usize) -> Result<Self, LoadWeightsError> {
        for name in gguf.tensor_names() {
            if !is_known(name, config.layers) {
                return Err(LoadWeightsError::Unknown { tensor: name.to_owned() });
            }
        }
        Self::from_tensors(config, threads, |name| gguf.tensor(name))
    }

    /// As [`Weights::load`], from wherever the tensors are.
    pub(crate) fn from_tensors<'a>(
        config: &ModelConfig,
        threads: usize,
        tensor: impl Fn(&str) -> Option<TensorView<'a>>,
    ) -> Result<Self, LoadWeightsError> {
        check_dimension("the head dimension", config.head_dim, 16, HEAD_DIM_MAX)?;
        check_dimension("the width", config.width, 32, usize::MAX)?;
        check_dimension("the feed-forward width", config.ff_width, 32, usize::MAX)?;
        check_dimension("the width of all heads", config.heads * config.head_dim, 32, usize::MAX)?;

        let tensors = Tensors { tensor };
        let (width, ff_width) = (config.width, config.ff_width);
        let (query_width, kv_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let shapes = [
            [width, query_width],
            [width, kv_width],
            [width, kv_width],
            [query_width, width],
            [width, ff_width],
            [width, ff_width],
            [ff_width, width],
        ];

        let mut norms = Vec::with_capacity(config.layers);
        let mut sources = Vec::with_capacity(config.layers * LAYER_MATRICES.len() + 2);
        for layer in 0..config.layers {
            norms.push((
                tensors.floats(&format!("blk.{layer}.attn_norm.weight"), width)?,
                tensors.floats(&format!("blk.{layer}.ffn_norm.weight"), width)?,
            ));
            for (name, shape) in std::iter::zip(LAYER_MATRICES, shapes) {
                sources.push(tensors.matrix(&format!("blk.{layer}.{name}"), shape)?);
            }
        }
        sources.push(tensors.matrix(EMBEDDING, [width, config.vocab])?);
        if tensors.has(HEAD) {
            sources.push(tensors.matrix(HEAD, [width, config.vocab])?);
        }
        let output_norm = tensors.floats(OUTPUT_NORM, width)?;
        let rope_factors = match tensors.has(ROPE_FACTORS) {
            true => tensors.floats(ROPE_FACTORS, config.rope_dims / 2)?,
            false => Vec::new(),
        };

        let mut matrices = Matrix::pack(&sources, threads)?.into_iter();
        // Comes out as it went in: one matrix for each source.
        let mut next = || matrices.next().ok_or(LoadWeightsError::Missing { tensor: EMBEDDING.to_owned() });
        let mut layers = Vec::with_capacity(config.layers);
        for (attention_norm, ff_norm) in norms {
            layers.push(LayerWeights {
                attention_norm,
                query: next()?,
                key: next()?,
                value: next()?,
                attention_output: next()?,
                ff_norm,
                ff_gate: next()?,
                ff_up: next()?,
                ff_down: next()?,
            });
        }
        let embedding = next()?;
        let head = next().unwrap_or_else(|_| embedding.clone());
        Ok(Self { layers, output_norm, head, embedding, rope_factors })
    }

    /// All matrices, in the order in which a forward pass reads them. A tied head is there once more, as the head.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let layers = self.layers.iter().flat_map(|layer| {
            let LayerWeights { query, key, value, attention_output, ff_gate, ff_up, ff_down, .. } = layer;
            [query, key, value, attention_output, ff_gate, ff_up, ff_down]
        });
        std::iter::once(&self.embedding).chain(layers).chain(std::iter::once(&self.head))
    }

    /// The family of kernels that this machine computes with.
    pub(crate) fn kernels(&self) -> &'static str {
        KernelFamily::detect().name()
    }
}

fn check_dimension(
    dimension: &'static str,
    value: usize,
    multiple_of: usize,
    value_max: usize,
) -> Result<(), LoadWeightsError> {
    if value.is_multiple_of(multiple_of) && value <= value_max {
        return Ok(());
    }
    Err(LoadWeightsError::Dimension { dimension, value, multiple_of, value_max })
}

fn is_known(name: &str, layers: usize) -> bool {
    if [EMBEDDING, OUTPUT_NORM, HEAD, ROPE_FACTORS].contains(&name) {
        return true;
    }
    let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else { return false };
    layer.parse::<usize>().is_ok_and(|layer| layer < layers)
        && (LAYER_MATRICES.contains(&part) || ["attn_norm.weight", "ffn_norm.weight"].contains(&part))
}

struct Tensors<F> {
    tensor: F,
}

impl<'a, F: Fn(&str) -> Option<TensorView<'a>>> Tensors<F> {
    fn has(&self, name: &str) -> bool {
        (self.tensor)(name).is_some()
    }

    fn of_shape(&self, name: &str, wanted: &[usize]) -> Result<TensorView<'a>, LoadWeightsError> {
        let tensor = (self.tensor)(name).ok_or_else(|| LoadWeightsError::Missing { tensor: name.to_owned() })?;
        if tensor.shape != wanted {
            let (shape, wanted) = (tensor.shape.to_vec(), wanted.to_vec());
            return Err(LoadWeightsError::Shape { tensor: name.to_owned(), shape, wanted });
        }
        Ok(tensor)
    }

    fn floats(&self, name: &str, length: usize) -> Result<Vec<f32>, LoadWeightsError> {
        let tensor = self.of_shape(name, &[length])?;
        if tensor.kind != TensorKind::F32 {
            return Err(LoadWeightsError::Kind { tensor: name.to_owned(), kind: tensor.kind });
        }
        Ok(tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    fn matrix(&self, name: &str, [width, rows]: [usize; 2]) -> Result<MatrixSource<'a>, LoadWeightsError> {
        let tensor = self.of_shape(name, &[width, rows])?;
        // By number: the types that the kernels can repack are theirs to list.
        let kind = match tensor.kind.number() {
            0 => MatrixKind::F32,
            1 => MatrixKind::F16,
            2 => MatrixKind::Q4_0,
            3 => MatrixKind::Q4_1,
            6 => MatrixKind::Q5_0,
            7 => MatrixKind::Q5_1,
            8 => MatrixKind::Q8_0,
            12 => MatrixKind::Q4_K,
            13 => MatrixKind::Q5_K,
            14 => MatrixKind::Q6_K,
            30 => MatrixKind::BF16,
            _ => return Err(LoadWeightsError::Kind { tensor: name.to_owned(), kind: tensor.kind }),
        };
        Ok(MatrixSource { kind, rows, width, bytes: tensor.bytes })
    }
}
