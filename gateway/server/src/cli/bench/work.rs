//! How much a pass has to read and to compute, by the model's dimensions: what a measured speed is compared with.

use anyhow::{Context, Result};
use engine_model::{Gguf, ModelConfig};
use serde::Serialize;
use std::path::Path;

/// Bytes of a value of K or V in the engine's default format.
const KV_VALUE_BYTES: u64 = 2;

/// Work that a model's passes are made of. An operation is a multiplication or an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Work {
    /// Weights that every step reads, the head's included; an embedding that is not the head is only looked up.
    pub(super) weight_bytes: u64,
    /// K and V of one position.
    pub(super) kv_bytes: u64,
    /// Of the layers' matrices, for each token.
    pub(super) layer_operations: u64,
    /// Of the head, for each token whose logits are wanted.
    pub(super) head_operations: u64,
    /// Of attention, for each token and each position that it sees.
    pub(super) attention_operations: u64,
}

/// What of a configuration decides it.
#[derive(Clone, Copy)]
struct Dimensions {
    layers: u64,
    width: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    ff_width: u64,
    vocab: u64,
}

impl Work {
    pub(super) fn read(path: &Path, config: &ModelConfig) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        let bytes = |name: &str| gguf.tensor(name).map(|tensor| tensor.bytes.len() as u64);
        let mut weight_bytes: u64 = gguf.tensor_names().filter_map(bytes).sum();
        if !config.is_tied {
            weight_bytes -= bytes("token_embd.weight").context("the model has no embedding")?;
        }
        let dimensions = Dimensions {
            layers: config.layers as u64,
            width: config.width as u64,
            heads: config.heads as u64,
            kv_heads: config.kv_heads as u64,
            head_dim: config.head_dim as u64,
            ff_width: config.ff_width as u64,
            vocab: config.vocab as u64,
        };
        Ok(Self { weight_bytes, ..Self::of(dimensions) })
    }

    fn of(dimensions: Dimensions) -> Self {
        let Dimensions { layers, width, heads, kv_heads, head_dim, ff_width, vocab } = dimensions;
        let attention_weights = width * head_dim * (2 * heads + 2 * kv_heads);
        Self {
            weight_bytes: 0,
            kv_bytes: layers * 2 * kv_heads * head_dim * KV_VALUE_BYTES,
            layer_operations: 2 * layers * (attention_weights + 3 * width * ff_width),
            head_operations: 2 * vocab * width,
            attention_operations: 4 * layers * heads * head_dim,
        }
    }

    /// Bytes that one step of `batch` sequences reads at least, each with `context` positions.
    pub(super) fn decode_bytes(&self, batch: usize, context: usize) -> f64 {
        (self.weight_bytes + self.kv_bytes * (batch * context) as u64) as f64
    }

    /// Operations of the matrices in one step of `batch` sequences.
    pub(super) fn decode_operations(&self, batch: usize) -> f64 {
        (self.layer_operations + self.head_operations) as f64 * batch as f64
    }

    /// Operations of the matrices for a prompt whose last token's logits are wanted.
    pub(super) fn prefill_operations(&self, tokens: usize) -> f64 {
        self.layer_operations as f64 * tokens as f64 + self.head_operations as f64
    }

    /// Operations of attention for a prompt: each token sees itself and those before it.
    pub(super) fn prefill_attention(&self, tokens: usize) -> f64 {
        self.attention_operations as f64 * (tokens * (tokens + 1) / 2) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_the_default_model_is_what_its_dimensions_say() {
        let work = Work {
            weight_bytes: 96_576_768,
            kv_bytes: 23_040,
            layer_operations: 2 * 106_168_320,
            head_operations: 2 * 28_311_552,
            attention_operations: 69_120,
        };
        let dimensions =
            Dimensions { layers: 30, width: 576, heads: 9, kv_heads: 3, head_dim: 64, ff_width: 1536, vocab: 49_152 };
        assert_eq!(Work { weight_bytes: 96_576_768, ..Work::of(dimensions) }, work);
        assert_eq!(work.decode_bytes(16, 100), 96_576_768.0 + 16.0 * 100.0 * 23_040.0);
        assert_eq!(work.decode_operations(2), 4.0 * 134_479_872.0);
        assert_eq!(work.prefill_operations(3), 3.0 * 212_336_640.0 + 56_623_104.0);
        // One token sees 1, the next 2, the third 3.
        assert_eq!(work.prefill_attention(3), 6.0 * 69_120.0);
    }
}
