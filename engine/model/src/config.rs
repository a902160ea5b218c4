//! A model's dimensions, out of GGUF metadata, every one of them checked.

use serde::Serialize;

use crate::gguf::{Gguf, Value};

/// Why the metadata does not describe a model that the engine runs.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Another architecture than `llama`.
    #[error("architecture `{0}` is not supported (`llama` is)")]
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

/// Dimensions and constants of a Llama-family decoder. All of them in range and consistent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// `llama`.
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
    /// Tokens of context that the model was trained for.
    pub context_length: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Values of each head that are rotated, in neighbouring pairs; even, at most `head_dim`.
    pub rope_dims: usize,
    /// Added to the mean square in RMS norms.
    pub rms_eps: f32,
}

impl ModelConfig {
    /// Reads the keys of `general.architecture` = `llama`.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let keys = Keys { gguf };
        let architecture = keys.text("general.architecture")?;
        if architecture != "llama" {
            return Err(ConfigError::Architecture(architecture.to_owned()));
        }
        for (key, feature) in
            [("llama.expert_count", "a mixture of experts"), ("llama.attention.sliding_window", "a sliding window")]
        {
            if keys.integer_or(key, 0, 0, u32::MAX.into())? > 0 {
                return Err(ConfigError::Feature(feature.to_owned()));
            }
        }
        match keys.gguf.metadata("llama.rope.scaling.type").map(Value::as_str) {
            None | Some(Some("none")) => {}
            Some(kind) => return Err(ConfigError::Feature(format!("rope scaling `{}`", kind.unwrap_or("?")))),
        }
        if keys.float_or("llama.rope.scale_linear", 1.0, 1e-6, 1e6)? != 1.0
            || keys.float_or("llama.rope.scaling.factor", 1.0, 0.0, 1e6)? > 1.0
        {
            return Err(ConfigError::Feature("linear rope scaling".to_owned()));
        }

        let layers = keys.integer("llama.block_count", 1, 512)?;
        let width = keys.integer("llama.embedding_length", 32, 32_768)?;
        let heads = keys.integer("llama.attention.head_count", 1, 512)?;
        let kv_heads = keys.integer_or("llama.attention.head_count_kv", heads, 1, 512)?;
        let ff_width = keys.integer("llama.feed_forward_length", 32, 262_144)?;
        let context_length = keys.integer("llama.context_length", 1, 1 << 24)?;
        let head_dim = keys.integer_or("llama.attention.key_length", width / heads, 2, 512)?;
        let value_dim = keys.integer_or("llama.attention.value_length", head_dim, 2, 512)?;
        let rope_dims = keys.integer_or("llama.rope.dimension_count", head_dim, 2, 512)?;
        let rope_base = keys.float_or("llama.rope.freq_base", 10_000.0, 1.0, 1e10)?;
        let rms_eps = keys.float("llama.attention.layer_norm_rms_epsilon", 1e-12, 0.1)?;
        let tokens = keys.strings("tokenizer.ggml.tokens")?;
        let vocab = tokens.len();

        let contradiction = |text: String| Err(ConfigError::Contradiction(text));
        if !heads.is_multiple_of(kv_heads) {
            return contradiction(format!("{kv_heads} key/value heads do not divide {heads} heads"));
        }
        if !head_dim.is_multiple_of(2) || !(2..=512).contains(&head_dim) {
            return contradiction(format!("{width} values in {heads} heads give a head of {head_dim}"));
        }
        if value_dim != head_dim {
            return contradiction(format!("keys have {head_dim} values and values {value_dim}"));
        }
        if !rope_dims.is_multiple_of(2) || rope_dims > head_dim {
            return contradiction(format!("{rope_dims} rotated values in a head of {head_dim}"));
        }
        let vocab_said = keys.integer_or("llama.vocab_size", vocab, 1, VOCAB_MAX)?;
        if vocab_said != vocab || !(1..=VOCAB_MAX as usize).contains(&vocab) {
            return contradiction(format!("{vocab_said} tokens by number and {vocab} by list"));
        }
        Ok(Self {
            architecture: architecture.to_owned(),
            layers,
            width,
            heads,
            kv_heads,
            head_dim,
            ff_width,
            vocab,
            context_length,
            rope_base: rope_base as f32,
            rope_dims,
            rms_eps: rms_eps as f32,
        })
    }
}

/// Most tokens; the largest known vocabulary has 262,144.
const VOCAB_MAX: u64 = 1 << 20;

/// Typed, range-checked reading of metadata. Shared with the tokenizer.
pub(crate) struct Keys<'a> {
    pub(crate) gguf: &'a Gguf,
}

impl<'a> Keys<'a> {
    fn value(&self, key: &str) -> Result<&'a Value, ConfigError> {
        self.gguf.metadata(key).ok_or_else(|| ConfigError::MissingKey(key.to_owned()))
    }

    pub(crate) fn text(&self, key: &str) -> Result<&'a str, ConfigError> {
        self.value(key)?.as_str().ok_or_else(|| kind(key, "text"))
    }

    pub(crate) fn strings(&self, key: &str) -> Result<&'a [String], ConfigError> {
        self.value(key)?.as_strings().ok_or_else(|| kind(key, "a list of strings"))
    }

    pub(crate) fn unsigned(&self, key: &str) -> Result<Vec<u64>, ConfigError> {
        self.value(key)?.as_unsigned().ok_or_else(|| kind(key, "a list of non-negative integers"))
    }

    pub(crate) fn boolean(&self, key: &str) -> Result<bool, ConfigError> {
        self.value(key)?.as_bool().ok_or_else(|| kind(key, "true or false"))
    }

    pub(crate) fn integer(&self, key: &str, from: u64, to: u64) -> Result<usize, ConfigError> {
        let value = self.value(key)?.as_u64().ok_or_else(|| kind(key, "a non-negative integer"))?;
        match usize::try_from(value) {
            Ok(fits) if (from..=to).contains(&value) => Ok(fits),
            _ => Err(ConfigError::Range { key: key.to_owned(), value: value as f64, range: format!("{from} to {to}") }),
        }
    }

    fn integer_or(&self, key: &str, default: usize, from: u64, to: u64) -> Result<usize, ConfigError> {
        if self.gguf.metadata(key).is_none() { Ok(default) } else { self.integer(key, from, to) }
    }

    fn float(&self, key: &str, from: f64, to: f64) -> Result<f64, ConfigError> {
        let value = self.value(key)?.as_f64().ok_or_else(|| kind(key, "a float"))?;
        // Written so that NaN is outside.
        if value >= from && value <= to {
            Ok(value)
        } else {
            Err(ConfigError::Range { key: key.to_owned(), value, range: format!("{from:e} to {to:e}") })
        }
    }

    fn float_or(&self, key: &str, default: f64, from: f64, to: f64) -> Result<f64, ConfigError> {
        if self.gguf.metadata(key).is_none() { Ok(default) } else { self.float(key, from, to) }
    }
}

fn kind(key: &str, wanted: &'static str) -> ConfigError {
    ConfigError::KeyKind { key: key.to_owned(), wanted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::tests::{File, float, number, scalar, strings};

    fn small() -> File {
        File::default()
            .key("general.architecture", scalar("llama"))
            .key("llama.block_count", number(2))
            .key("llama.embedding_length", number(64))
            .key("llama.attention.head_count", number(4))
            .key("llama.attention.head_count_kv", number(2))
            .key("llama.feed_forward_length", number(96))
            .key("llama.context_length", number(128))
            .key("llama.attention.layer_norm_rms_epsilon", float(1e-5))
            .key("tokenizer.ggml.tokens", strings(&["a", "b"]))
    }

    fn config(file: &File) -> Result<ModelConfig, ConfigError> {
        ModelConfig::from_gguf(&Gguf::from_bytes(file.bytes()).unwrap())
    }

    fn with(key: &str, value: Vec<u8>) -> String {
        config(&small().without(key).key(key, value)).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_stated_has_the_defaults_of_the_architecture() {
        let config = config(&small()).unwrap();
        assert_eq!((config.head_dim, config.rope_dims, config.rope_base, config.vocab), (16, 16, 10_000.0, 2));
    }

    #[test]
    fn missing_keys_are_named() {
        for key in [
            "general.architecture",
            "llama.block_count",
            "llama.embedding_length",
            "llama.attention.head_count",
            "llama.feed_forward_length",
            "llama.context_length",
            "llama.attention.layer_norm_rms_epsilon",
            "tokenizer.ggml.tokens",
        ] {
            assert_eq!(config(&small().without(key)), Err(ConfigError::MissingKey(key.to_owned())));
        }
    }

    #[test]
    fn values_out_of_range_or_of_another_type_are_refused() {
        for (key, value) in [
            ("llama.block_count", 0),
            ("llama.block_count", 513),
            ("llama.embedding_length", u32::MAX),
            ("llama.attention.head_count", 0),
            ("llama.attention.head_count_kv", 0),
            ("llama.feed_forward_length", 1 << 30),
            ("llama.context_length", 0),
            ("llama.attention.key_length", 1 << 20),
        ] {
            assert!(with(key, number(value)).contains(&format!("`{key}` is {value}, outside")), "{key}");
        }
        for value in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
            assert!(with("llama.attention.layer_norm_rms_epsilon", float(value)).contains("outside"), "{value}");
            assert!(with("llama.rope.freq_base", float(value)).contains("outside"), "{value}");
        }
        assert!(with("llama.block_count", scalar("2")).contains("is not a non-negative integer"));
        assert!(with("llama.block_count", float(2.0)).contains("is not a non-negative integer"));
        assert!(with("tokenizer.ggml.tokens", number(2)).contains("is not a list of strings"));
    }

    #[test]
    fn dimensions_that_contradict_each_other_are_refused() {
        for (key, value) in [
            ("llama.attention.head_count_kv", 3),
            ("llama.attention.head_count", 64),
            ("llama.attention.value_length", 8),
            ("llama.rope.dimension_count", 32),
            ("llama.rope.dimension_count", 3),
            ("llama.vocab_size", 3),
        ] {
            assert!(with(key, number(value)).contains("contradict each other"), "{key}: {}", with(key, number(value)));
        }
        assert!(with("tokenizer.ggml.tokens", strings(&[])).contains("contradict each other"));
    }

    #[test]
    fn what_the_forward_pass_does_not_compute_is_refused() {
        assert!(with("general.architecture", scalar("gemma3")).contains("architecture `gemma3`"));
        assert!(with("llama.expert_count", number(8)).contains("a mixture of experts"));
        assert!(with("llama.attention.sliding_window", number(4096)).contains("a sliding window"));
        assert!(with("llama.rope.scaling.type", scalar("yarn")).contains("rope scaling `yarn`"));
        assert!(with("llama.rope.scale_linear", float(2.0)).contains("linear rope scaling"));
    }
}
