//! What a Llama-family decoder is made of, whichever format its file has: dimensions, constants and flags.
//!
//! The readers ([`ModelConfig::from_gguf`] and others) know a format's names and defaults; what is the same for all of
//! them is here: the ranges of the numbers, and that they fit together ([`ModelConfig::checked`]).

mod gguf;
mod hugging_face;
mod rope;

use std::fmt::Debug;
use std::ops::RangeInclusive;

use engine_kernels::HEAD_DIM_MAX;
pub use engine_kernels::{Activation, RopePairs};
use serde::{Serialize, Serializer};

pub(crate) use gguf::Keys;
pub use rope::{RopeConfig, RopeScaling};

/// Why a file's metadata do not describe a model that the engine runs.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// An architecture that the engine does not know.
    #[error("architecture `{0}` is not supported (`llama`, `qwen2`, `qwen3`, `smollm3` and `gemma3` are)")]
    Architecture(String),
    /// A key that every model of this architecture has.
    #[error("metadata key `{0}` is missing")]
    MissingKey(String),
    /// A key's value has another type than it should.
    #[error("metadata key `{key}` is not {wanted}")]
    KeyKind {
        /// The key.
        key: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A number outside what the engine accepts.
    #[error("metadata key `{key}` is {value}, outside {range}")]
    Range {
        /// The key.
        key: String,
        /// As read.
        value: f64,
        /// Accepted values.
        range: String,
    },
    /// Values that contradict each other.
    #[error("the model's dimensions contradict each other: {0}")]
    Contradiction(String),
    /// A feature of the architecture that the engine does not compute.
    #[error("the model uses {0}, which is not supported")]
    Feature(String),
}

/// Ranges that the numbers of any format have to be in; a reader names its own key when one is not.
pub(crate) const LAYERS: RangeInclusive<u64> = 1..=512;
pub(crate) const WIDTH: RangeInclusive<u64> = 32..=32_768;
pub(crate) const HEADS: RangeInclusive<u64> = 1..=512;
pub(crate) const HEAD_DIM: RangeInclusive<u64> = 2..=HEAD_DIM_MAX as u64;
pub(crate) const FF_WIDTH: RangeInclusive<u64> = 32..=262_144;
pub(crate) const CONTEXT: RangeInclusive<u64> = 1..=1 << 24;
/// The largest known vocabulary has 262,144 tokens.
pub(crate) const VOCAB: RangeInclusive<u64> = 1..=1 << 20;
pub(crate) const RMS_EPS: RangeInclusive<f64> = 1e-12..=0.1;
pub(crate) const ROPE_BASE: RangeInclusive<f64> = 1.0..=1e10;
/// Known models are scaled by up to 64.
pub(crate) const ROPE_FACTOR: RangeInclusive<f64> = 1.0..=1e6;

/// A Llama-family decoder. All numbers in range and consistent, once [`ModelConfig::checked`] has seen them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// The architecture as its file names it, such as `llama`. Nothing is decided by it: the flags are complete.
    pub architecture: String,
    /// Decoder blocks.
    pub layers: usize,
    /// Values of one token between blocks.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values of one head; even.
    pub head_dim: usize,
    /// Values inside the feed-forward part.
    pub ff_width: usize,
    /// Tokens.
    pub vocab: usize,
    /// Tokens of context that the model was made for.
    pub context_length: usize,
    /// Added to the mean square in RMS norms.
    pub rms_eps: f32,
    /// Which values of a head are rotated together.
    #[serde(serialize_with = "by_name")]
    pub rope_pairs: RopePairs,
    /// Values of each head that are rotated, from its first on; even, at most `head_dim`.
    pub rope_dims: usize,
    /// The rotation of blocks with [`LayerRope::Global`].
    pub rope: RopeConfig,
    /// The rotation of blocks with [`LayerRope::Local`].
    pub local_rope: RopeConfig,
    /// What differs from block to block, for each of them.
    pub blocks: Vec<BlockConfig>,
    /// What the products of queries and keys are multiplied by; `1/sqrt(head_dim)` in most models.
    pub attention_scale: f32,
    /// What token embeddings are multiplied by; 1 in most models, `sqrt(width)` in Gemma.
    pub embedding_scale: f32,
    /// Added to the weights of all RMS norms when they are read; 0 in most models and in all GGUF files, whose makers
    /// have added it; 1 in Gemma's own files.
    pub norm_offset: f32,
    /// Queries and keys have RMS norms, head by head, before they are rotated (Qwen3, Gemma 3).
    pub has_query_key_norms: bool,
    /// What attention and the feed-forward part give has RMS norms before it is added to the stream (Gemma 3).
    pub has_post_norms: bool,
    /// The products for queries, keys and values have biases (Qwen2).
    pub has_qkv_bias: bool,
    /// The product behind attention has a bias.
    pub has_attention_output_bias: bool,
    /// The three products of the feed-forward part have biases.
    pub has_ff_bias: bool,
    /// Of the gate in the feed-forward part.
    #[serde(serialize_with = "by_name")]
    pub activation: Activation,
    /// The head's matrix is that of the token embeddings.
    pub is_tied: bool,
}

/// What may differ from one decoder block to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockConfig {
    /// A token sees this many of the last positions, its own included; `None`: all of them.
    pub window: Option<usize>,
    /// How queries and keys are rotated.
    pub rope: LayerRope,
}

/// Which rotation a block's queries and keys have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LayerRope {
    /// None at all: the block knows no positions (SmolLM3, every fourth).
    None,
    /// [`ModelConfig::rope`].
    Global,
    /// [`ModelConfig::local_rope`] (Gemma 3, blocks with a window).
    Local,
}

/// Enums of the kernels are written as the names of their variants.
fn by_name<T: Debug, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:?}"))
}

impl ModelConfig {
    /// That the numbers fit together. For a reader's last line.
    ///
    /// # Errors
    /// [`ConfigError::Contradiction`].
    pub fn checked(self) -> Result<Self, ConfigError> {
        let Self { layers, heads, kv_heads, head_dim, rope_dims, vocab, .. } = self;
        let contradiction = |text: String| Err(ConfigError::Contradiction(text));
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return contradiction(format!("{kv_heads} key/value heads do not divide {heads} heads"));
        }
        if !head_dim.is_multiple_of(2) || !HEAD_DIM.contains(&(head_dim as u64)) {
            return contradiction(format!("{heads} heads of {head_dim} values"));
        }
        if rope_dims == 0 || !rope_dims.is_multiple_of(2) || rope_dims > head_dim {
            return contradiction(format!("{rope_dims} rotated values in a head of {head_dim}"));
        }
        if !VOCAB.contains(&(vocab as u64)) {
            return contradiction(format!("a vocabulary of {vocab} tokens"));
        }
        if self.blocks.len() != layers {
            return contradiction(format!("{layers} layers, and properties of {}", self.blocks.len()));
        }
        if self.blocks.iter().any(|block| block.window == Some(0)) {
            return contradiction("a window without positions".to_owned());
        }
        for rope in [self.rope, self.local_rope] {
            rope.check()?;
        }
        if ![self.attention_scale, self.embedding_scale].iter().all(|scale| scale.is_finite() && *scale > 0.0) {
            return contradiction(format!("scales of {} and {}", self.attention_scale, self.embedding_scale));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let rope = RopeConfig { base: 10_000.0, scaling: RopeScaling::None };
        ModelConfig {
            architecture: "llama".to_owned(),
            layers: 2,
            width: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ff_width: 96,
            vocab: 45,
            context_length: 600,
            rms_eps: 1e-5,
            rope_pairs: RopePairs::Halves,
            rope_dims: 16,
            rope,
            local_rope: rope,
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

    #[test]
    fn what_fits_together_passes_and_is_written_by_names() {
        let config = config().checked().unwrap();
        let json = serde_json::to_value(&config).unwrap();
        assert_eq!((&json["rope_pairs"], &json["activation"]), (&"Halves".into(), &"Silu".into()));
        assert_eq!(json["blocks"][1], serde_json::json!({ "window": null, "rope": "Global" }));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let windowless = BlockConfig { window: Some(0), rope: LayerRope::Global };
        let scaled = |scaling| RopeConfig { base: 10_000.0, scaling };
        for (wrong, wanted) in [
            (ModelConfig { kv_heads: 3, ..config() }, "3 key/value heads do not divide 4 heads"),
            (ModelConfig { kv_heads: 0, ..config() }, "0 key/value heads"),
            (ModelConfig { head_dim: 15, ..config() }, "4 heads of 15 values"),
            (ModelConfig { head_dim: 1_024, ..config() }, "4 heads of 1024 values"),
            (ModelConfig { rope_dims: 18, ..config() }, "18 rotated values in a head of 16"),
            (ModelConfig { rope_dims: 5, ..config() }, "5 rotated values"),
            (ModelConfig { rope_dims: 0, ..config() }, "0 rotated values"),
            (ModelConfig { vocab: 0, ..config() }, "a vocabulary of 0 tokens"),
            (ModelConfig { vocab: 1 << 21, ..config() }, "a vocabulary of 2097152 tokens"),
            (ModelConfig { layers: 3, ..config() }, "3 layers, and properties of 2"),
            (ModelConfig { blocks: vec![windowless; 2], ..config() }, "a window without positions"),
            (ModelConfig { attention_scale: f32::NAN, ..config() }, "scales of NaN and 1"),
            (ModelConfig { embedding_scale: 0.0, ..config() }, "scales of 0.25 and 0"),
            (ModelConfig { rope: scaled(RopeScaling::Linear { factor: 0.5 }), ..config() }, "a rope factor of 0.5"),
            (ModelConfig { local_rope: scaled(RopeScaling::Linear { factor: f32::NAN }), ..config() }, "a rope factor"),
        ] {
            let error = wrong.checked().unwrap_err().to_string();
            assert!(
                error.starts_with("the model's dimensions contradict each other") && error.contains(wanted),
                "{error}"
            );
        }
    }
}
