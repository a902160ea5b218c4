//! The weights as the kernels want them: found by name, checked against the configuration, repacked.
//!
//! Everything is copied out of the file, token embeddings included (with a tied head they are the head's rows), so
//! that the mapping can be dropped: resident memory is the repacked weights and nothing else.

use std::cell::RefCell;

use engine_kernels::elementary::ANGLE_MAX;
use engine_kernels::{HEAD_DIM_MAX, KernelFamily, Matrix, MatrixKind, MatrixSource, PackError};
use half::{bf16, f16};

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
#[cfg(test)]
use crate::gguf::Gguf;
use crate::gguf::TensorView;
use crate::packed_weights::{PackedWeights, Packer};
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
    /// A weight, or the scale or minimum of a block of weights, is infinite or not a number.
    #[error("tensor `{tensor}` has a weight that is infinite or not a number")]
    NotFinite {
        /// Its name.
        tensor: String,
    },
    /// A divisor of the rotary frequencies that no model has, and with which a far position's angle could not be computed.
    #[error("tensor `{tensor}` divides a frequency by {factor}, which is outside {factor_min:e} to {factor_max:e}")]
    RopeFactor {
        /// Its name.
        tensor: &'static str,
        /// As in the file.
        factor: f32,
        /// With it, the last position of the context turns by the largest angle that can be computed.
        factor_min: f64,
        /// The largest that is taken.
        factor_max: f64,
    },
    /// The matrices could not be repacked.
    #[error("the weights could not be repacked: {0}")]
    Pack(PackError),
}

/// One decoder block. Matrices have their biases with them.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) query: Matrix,
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    /// Of queries and of keys, `[head_dim]` each.
    pub(crate) head_norms: Option<[Vec<f32>; 2]>,
    pub(crate) attention_output: Matrix,
    pub(crate) attention_post_norm: Option<Vec<f32>>,
    pub(crate) ff_norm: Vec<f32>,
    pub(crate) ff_gate: Matrix,
    pub(crate) ff_up: Matrix,
    pub(crate) ff_down: Matrix,
    pub(crate) ff_post_norm: Option<Vec<f32>>,
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
    /// The memory of all matrices.
    pub(crate) packed: PackedWeights,
    /// BLAKE3 of everything that is computed with: matrices as they lie in memory, norms and all other vectors.
    pub(crate) digest: [u8; 32],
}

/// Matrices of a decoder block, in the order in which a forward pass reads them.
const LAYER_MATRICES: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
const ATTENTION_NORM: &str = "attn_norm";
const HEAD_NORMS: [&str; 2] = ["attn_q_norm", "attn_k_norm"];
const ATTENTION_POST_NORM: &str = "post_attention_norm";
const FF_NORM: &str = "ffn_norm";
const FF_POST_NORM: &str = "post_ffw_norm";
pub(crate) const EMBEDDING: &str = "token_embd.weight";
const OUTPUT_NORM: &str = "output_norm.weight";
const HEAD: &str = "output.weight";
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Known models divide by up to 64.
const ROPE_FACTOR_MAX: f64 = 1e6;
/// What the digest of the weights is for, as BLAKE3's key derivation wants it: unique, and never changed.
const DIGEST_CONTEXT: &str = "bulkhead 2026-11-30 weights as they are computed with";

impl Weights {
    /// Reads, checks and repacks all tensors, on `threads`.
    ///
    /// # Errors
    /// [`LoadWeightsError`], naming the tensor.
    #[cfg(test)]
    pub(crate) fn load(gguf: &Gguf, config: &ModelConfig, threads: usize) -> Result<Self, LoadWeightsError> {
        let packer = Packer { threads, release: &|_| (), cache: None };
        Self::load_named(gguf.tensor_names(), |name| gguf.tensor(name), config, &packer)
    }

    /// Reads, checks and packs all tensors.
    ///
    /// # Errors
    /// [`LoadWeightsError`], naming the tensor.
    pub(crate) fn load_with(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        packer: &Packer<'_>,
    ) -> Result<Self, LoadWeightsError> {
        if let Some(tensor) = checkpoint.unknown_tensor() {
            return Err(LoadWeightsError::Unknown { tensor: tensor.to_owned() });
        }
        Self::load_named(checkpoint.tensor_names(), |name| checkpoint.tensor(name), config, packer)
    }

    fn load_named<'a>(
        names: impl Iterator<Item = &'a str>,
        tensor: impl Fn(&str) -> Option<TensorView<'a>>,
        config: &ModelConfig,
        packer: &Packer<'_>,
    ) -> Result<Self, LoadWeightsError> {
        for name in names {
            if !is_known(name, config) {
                return Err(LoadWeightsError::Unknown { tensor: name.to_owned() });
            }
        }
        Self::from_tensors_with(config, packer, tensor)
    }

    /// As [`Weights::load`], from wherever the tensors are.
    #[cfg(test)]
    pub(crate) fn from_tensors<'a>(
        config: &ModelConfig,
        threads: usize,
        tensor: impl Fn(&str) -> Option<TensorView<'a>>,
    ) -> Result<Self, LoadWeightsError> {
        Self::from_tensors_with(config, &Packer { threads, release: &|_| (), cache: None }, tensor)
    }

    /// As [`Weights::load_with`], from wherever the tensors are. They are asked for by their names in GGUF files.
    pub(crate) fn from_tensors_with<'a>(
        config: &ModelConfig,
        packer: &Packer<'_>,
        tensor: impl Fn(&str) -> Option<TensorView<'a>>,
    ) -> Result<Self, LoadWeightsError> {
        check_dimension("the head dimension", config.head_dim, 16, HEAD_DIM_MAX)?;
        check_dimension("the width", config.width, 32, usize::MAX)?;
        check_dimension("the feed-forward width", config.ff_width, 32, usize::MAX)?;
        check_dimension("the width of all heads", config.heads * config.head_dim, 32, usize::MAX)?;

        let (digest, matrices) = (RefCell::default(), RefCell::default());
        let tensors = Tensors { tensor, norm_offset: config.norm_offset, digest, matrices };
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
        let mut biases = Vec::with_capacity(sources.capacity());
        for layer in 0..config.layers {
            norms.push(LayerNorms::load(&tensors, config, layer)?);
            for (name, shape) in std::iter::zip(LAYER_MATRICES, shapes) {
                sources.push(tensors.matrix(&format!("blk.{layer}.{name}.weight"), shape)?);
                biases.push(match has_bias(name, config) {
                    true => Some(tensors.floats(&format!("blk.{layer}.{name}.bias"), shape[1])?),
                    false => None,
                });
            }
        }
        sources.push(tensors.matrix(EMBEDDING, [width, config.vocab])?);
        if !config.is_tied {
            sources.push(tensors.matrix(HEAD, [width, config.vocab])?);
        }
        let output_norm = tensors.norm(OUTPUT_NORM, width)?;
        let rope_factors = match tensors.has(ROPE_FACTORS) {
            true => check_rope_factors(tensors.floats(ROPE_FACTORS, config.rope_dims / 2)?, config.context_length)?,
            false => Vec::new(),
        };

        let packed = packer.pack(&sources).map_err(|error| tensors.name(error))?;
        let digest = tensors.finish(&packed);
        let biases = biases.into_iter().chain(std::iter::repeat(None));
        let matrices = packed.matrices.matrices().iter().cloned();
        let mut matrices = std::iter::zip(matrices, biases).map(|(matrix, bias)| match bias {
            Some(bias) => matrix.with_bias(bias),
            None => matrix,
        });
        // Comes out as it went in: one matrix for each source.
        let mut next = || matrices.next().ok_or(LoadWeightsError::Missing { tensor: EMBEDDING.to_owned() });
        let mut layers = Vec::with_capacity(config.layers);
        for norms in norms {
            layers.push(LayerWeights {
                attention_norm: norms.attention,
                query: next()?,
                key: next()?,
                value: next()?,
                head_norms: norms.heads,
                attention_output: next()?,
                attention_post_norm: norms.attention_post,
                ff_norm: norms.ff,
                ff_gate: next()?,
                ff_up: next()?,
                ff_down: next()?,
                ff_post_norm: norms.ff_post,
            });
        }
        let embedding = next()?;
        let head = if config.is_tied { embedding.clone() } else { next()? };
        Ok(Self { layers, output_norm, head, embedding, rope_factors, packed, digest })
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

/// Frequencies are at most 1 before they are divided, see [`crate::config::ROPE_BASE`].
fn check_rope_factors(factors: Vec<f32>, context_length: usize) -> Result<Vec<f32>, LoadWeightsError> {
    let factor_min = context_length.saturating_sub(1) as f64 / ANGLE_MAX;
    let range = factor_min..=ROPE_FACTOR_MAX;
    match factors.iter().find(|factor| !range.contains(&f64::from(**factor)) || **factor <= 0.0) {
        None => Ok(factors),
        Some(&factor) => {
            let (tensor, factor_max) = (ROPE_FACTORS, ROPE_FACTOR_MAX);
            Err(LoadWeightsError::RopeFactor { tensor, factor, factor_min, factor_max })
        }
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

/// The tensors that a model of this configuration has; any other one would be ignored, and the results be wrong.
fn is_known(name: &str, config: &ModelConfig) -> bool {
    if [EMBEDDING, OUTPUT_NORM, ROPE_FACTORS].contains(&name) {
        return true;
    }
    if name == HEAD {
        return !config.is_tied;
    }
    let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else { return false };
    // A number has one form: `blk.00` would be passed over beside `blk.0`.
    if !layer.parse::<usize>().is_ok_and(|number| number < config.layers && number.to_string() == layer) {
        return false;
    }
    match part.rsplit_once('.') {
        Some((name, "weight")) => {
            LAYER_MATRICES.contains(&name)
                || [ATTENTION_NORM, FF_NORM].contains(&name)
                || (config.has_query_key_norms && HEAD_NORMS.contains(&name))
                || (config.has_post_norms && [ATTENTION_POST_NORM, FF_POST_NORM].contains(&name))
        }
        Some((name, "bias")) => has_bias(name, config),
        _ => false,
    }
}

fn has_bias(matrix: &str, config: &ModelConfig) -> bool {
    match matrix {
        "attn_q" | "attn_k" | "attn_v" => config.has_qkv_bias,
        "attn_output" => config.has_attention_output_bias,
        "ffn_gate" | "ffn_up" | "ffn_down" => config.has_ff_bias,
        _ => false,
    }
}

/// The norms of a block.
struct LayerNorms {
    attention: Vec<f32>,
    heads: Option<[Vec<f32>; 2]>,
    attention_post: Option<Vec<f32>>,
    ff: Vec<f32>,
    ff_post: Option<Vec<f32>>,
}

impl LayerNorms {
    fn load<'a, F>(tensors: &Tensors<F>, config: &ModelConfig, layer: usize) -> Result<Self, LoadWeightsError>
    where
        F: Fn(&str) -> Option<TensorView<'a>>,
    {
        let norm = |name: &str, length| tensors.norm(&format!("blk.{layer}.{name}.weight"), length);
        let post_norm = |name| if config.has_post_norms { norm(name, config.width).map(Some) } else { Ok(None) };
        Ok(Self {
            attention: norm(ATTENTION_NORM, config.width)?,
            heads: match config.has_query_key_norms {
                true => Some([norm(HEAD_NORMS[0], config.head_dim)?, norm(HEAD_NORMS[1], config.head_dim)?]),
                false => None,
            },
            attention_post: post_norm(ATTENTION_POST_NORM)?,
            ff: norm(FF_NORM, config.width)?,
            ff_post: post_norm(FF_POST_NORM)?,
        })
    }
}

struct Tensors<F> {
    tensor: F,
    /// Added to the weights of norms.
    norm_offset: f32,
    /// Of all vectors so far.
    digest: RefCell<blake3::Hasher>,
    /// The names of all matrices so far.
    matrices: RefCell<Vec<String>>,
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

    /// A vector of floats of any width.
    fn floats(&self, name: &str, length: usize) -> Result<Vec<f32>, LoadWeightsError> {
        let tensor = self.of_shape(name, &[length])?;
        let halves = || tensor.bytes.as_chunks::<2>().0.iter();
        let floats: Vec<f32> = match tensor.kind.name() {
            "F32" => tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            "F16" => halves().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
            "BF16" => halves().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
            _ => return Err(LoadWeightsError::Kind { tensor: name.to_owned(), kind: tensor.kind }),
        };
        if !floats.iter().all(|value| value.is_finite()) {
            return Err(LoadWeightsError::NotFinite { tensor: name.to_owned() });
        }
        let mut digest = self.digest.borrow_mut();
        digest.update(format!("{name} {length}\n").as_bytes());
        for value in &floats {
            digest.update(&value.to_le_bytes());
        }
        Ok(floats)
    }

    fn norm(&self, name: &str, length: usize) -> Result<Vec<f32>, LoadWeightsError> {
        let mut weight = self.floats(name, length)?;
        weight.iter_mut().for_each(|weight| *weight += self.norm_offset);
        Ok(weight)
    }

    /// The error with the tensor's name where it is about one.
    fn name(&self, error: PackError) -> LoadWeightsError {
        let PackError::NotFinite { matrix } = error else { return LoadWeightsError::Pack(error) };
        match self.matrices.borrow().get(matrix) {
            Some(tensor) => LoadWeightsError::NotFinite { tensor: tensor.clone() },
            None => LoadWeightsError::Pack(error),
        }
    }

    /// The digest of all vectors and matrices.
    fn finish(&self, packed: &PackedWeights) -> [u8; 32] {
        let mut digest = blake3::Hasher::new_derive_key(DIGEST_CONTEXT);
        digest.update(&packed.shapes).update(&packed.content);
        digest.update(self.digest.borrow().finalize().as_bytes());
        digest.finalize().into()
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
        self.matrices.borrow_mut().push(name.to_owned());
        Ok(MatrixSource { kind, rows, width, bytes: tensor.bytes })
    }
}
