//! The configuration out of GGUF metadata: the keys and defaults of each architecture.
//!
//! Source: the keys' names and meaning are those of llama.cpp (`src/llama-arch.cpp`, `src/models`, `conversion`).

use super::{
    Activation, BlockConfig, CONTEXT, ConfigError, FF_WIDTH, HEAD_DIM, HEADS, LAYERS, LayerRope, ModelConfig, RMS_EPS,
    ROPE_BASE, ROPE_FACTOR, RopeConfig, RopePairs, RopeScaling, VOCAB, WIDTH,
};
use crate::gguf::{Array, Gguf, Value};

/// Keys behind the architecture's name that change what a model computes, and what they stand for. A model with one of
/// them, other than zero, `false` or empty, is refused.
const FEATURES: [(&str, &str); 18] = [
    ("expert_count", "a mixture of experts"),
    ("attention.q_lora_rank", "multi-head latent attention"),
    ("attention.kv_lora_rank", "multi-head latent attention"),
    ("attn_logit_softcapping", "soft-capping of attention scores"),
    ("final_logit_softcapping", "soft-capping of logits"),
    ("attention.clamp_kqv", "clamped queries, keys and values"),
    ("attention.max_alibi_bias", "biases of attention by distance"),
    ("attention.temperature_scale", "temperatures of attention by position"),
    ("attention.shared_kv_layers", "layers that share keys and values"),
    ("logit_scale", "a scale of the logits"),
    ("residual_scale", "a scale of the residual stream"),
    ("embedding_scale", "a scale of the embeddings"),
    ("use_parallel_residual", "attention beside the feed-forward part"),
    ("nextn_predict_layers", "layers that predict several tokens"),
    ("rope.dimension_sections", "rotations by sections"),
    ("rope.dimension_count_swa", "rotations of another size in a window"),
    ("rope.scaling.alpha", "rope scaling by a context's length"),
    ("rope.scaling.yarn_log_multiplier", "rope scaling with a multiplier of its logarithm"),
];
/// Base of the rotation in Gemma 3's windows, unless stated.
const LOCAL_ROPE_BASE: f64 = 10_000.0;
/// Gemma 3: of so many blocks, the last has no window, unless stated.
const WINDOW_PERIOD: usize = 6;
/// SmolLM3: the last of so many blocks does not rotate. No key says so.
const UNROTATED_PERIOD: usize = 4;
/// Gemma 3's largest model, known by its layers, scales scores by the width of its heads' share of the stream.
const GEMMA_LAYERS_LARGEST: usize = 62;

impl ModelConfig {
    /// Reads the keys of `general.architecture` = `llama` (Llama 2 and 3, Mistral, TinyLlama, SmolLM2), `qwen2`,
    /// `qwen3`, `smollm3` or `gemma3`.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let keys = Keys { gguf };
        let architecture = keys.text("general.architecture")?;
        check_architecture(architecture)?;
        let of = Prefixed { keys, architecture };
        of.check_features()?;

        let is_gemma = architecture == "gemma3";
        let layers = of.integer("block_count", LAYERS)?;
        let width = of.integer("embedding_length", WIDTH)?;
        let heads = of.integer("attention.head_count", HEADS)?;
        let kv_heads = of.integer_or("attention.head_count_kv", heads, HEADS)?;
        let ff_width = of.integer("feed_forward_length", FF_WIDTH)?;
        let context_length = of.integer("context_length", CONTEXT)?;
        let head_dim = of.integer_or("attention.key_length", width / heads, HEAD_DIM)?;
        let value_dim = of.integer_or("attention.value_length", head_dim, HEAD_DIM)?;
        let rope_dims = of.integer_or("rope.dimension_count", head_dim, HEAD_DIM)?;
        let rms_eps = of.float("attention.layer_norm_rms_epsilon", RMS_EPS)?;
        let rope_base = of.float_or("rope.freq_base", 10_000.0, ROPE_BASE)?;
        let local_base = of.float_or("rope.freq_base_swa", LOCAL_ROPE_BASE, ROPE_BASE)?;
        let vocab = of.keys.strings("tokenizer.ggml.tokens")?.len();
        let vocab_said = of.integer_or("vocab_size", vocab, VOCAB)?;
        if vocab_said != vocab {
            let text = format!("{vocab_said} tokens by number and {vocab} by list");
            return Err(ConfigError::Contradiction(text));
        }
        if value_dim != head_dim {
            let text = format!("keys have {head_dim} values and values {value_dim}");
            return Err(ConfigError::Contradiction(text));
        }

        let scored = if is_gemma && layers == GEMMA_LAYERS_LARGEST { width / heads } else { head_dim };
        let has = |tensor: &str| gguf.tensor(tensor).is_some();
        Self {
            architecture: architecture.to_owned(),
            layers,
            width,
            heads,
            kv_heads,
            head_dim,
            ff_width,
            vocab,
            context_length,
            rms_eps: rms_eps as f32,
            rope_pairs: match architecture {
                "llama" | "smollm3" => RopePairs::Neighbours,
                _ => RopePairs::Halves,
            },
            rope_dims,
            rope: RopeConfig { base: rope_base as f32, scaling: of.rope_scaling(context_length)? },
            local_rope: RopeConfig { base: local_base as f32, scaling: RopeScaling::None },
            blocks: of.blocks(layers)?,
            attention_scale: 1.0 / (scored as f32).sqrt(),
            embedding_scale: if is_gemma { (width as f32).sqrt() } else { 1.0 },
            norm_offset: 0.0,
            has_query_key_norms: is_gemma || architecture == "qwen3",
            has_post_norms: is_gemma,
            has_qkv_bias: has("blk.0.attn_q.bias"),
            has_attention_output_bias: has("blk.0.attn_output.bias"),
            has_ff_bias: has("blk.0.ffn_up.bias"),
            activation: if is_gemma { Activation::GeluTanh } else { Activation::Silu },
            is_tied: !has("output.weight"),
        }
        .checked()
    }
}

/// Names of architectures that are near to a known one are refused for what sets them apart.
fn check_architecture(architecture: &str) -> Result<(), ConfigError> {
    let feature = match architecture {
        "llama" | "qwen2" | "qwen3" | "smollm3" | "gemma3" => return Ok(()),
        "qwen2moe" | "qwen3moe" | "llama4" | "gpt-oss" | "granitemoe" | "olmoe" => "a mixture of experts",
        "deepseek2" | "minicpm3" => "multi-head latent attention",
        "gemma2" => "soft-capping of attention scores",
        "qwen2vl" | "qwen3vl" => "images",
        _ => return Err(ConfigError::Architecture(architecture.to_owned())),
    };
    Err(ConfigError::Feature(format!("{feature} (architecture `{architecture}`)")))
}

/// The keys of one architecture, by what stands behind its name.
struct Prefixed<'a> {
    keys: Keys<'a>,
    architecture: &'a str,
}

type Integers = std::ops::RangeInclusive<u64>;
type Floats = std::ops::RangeInclusive<f64>;

impl Prefixed<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn value(&self, suffix: &str) -> Option<&Value> {
        self.keys.gguf.metadata(&self.key(suffix))
    }

    fn integer(&self, suffix: &str, range: Integers) -> Result<usize, ConfigError> {
        self.keys.integer(&self.key(suffix), *range.start(), *range.end())
    }

    fn integer_or(&self, suffix: &str, default: usize, range: Integers) -> Result<usize, ConfigError> {
        if self.value(suffix).is_none() { Ok(default) } else { self.integer(suffix, range) }
    }

    fn float(&self, suffix: &str, range: Floats) -> Result<f64, ConfigError> {
        self.keys.float(&self.key(suffix), range)
    }

    fn float_or(&self, suffix: &str, default: f64, range: Floats) -> Result<f64, ConfigError> {
        if self.value(suffix).is_none() { Ok(default) } else { self.float(suffix, range) }
    }

    fn check_features(&self) -> Result<(), ConfigError> {
        let refused = |feature: &str| Err(ConfigError::Feature(feature.to_owned()));
        for (suffix, feature) in FEATURES {
            match self.value(suffix) {
                None | Some(Value::Unsigned(0) | Value::Signed(0) | Value::Bool(false)) => {}
                Some(Value::Float(value)) if *value == 0.0 => {}
                Some(Value::String(text)) if text.is_empty() => {}
                Some(Value::Array(array)) if array.is_empty() => {}
                Some(_) => return refused(feature),
            }
        }
        match self.value("attention.causal") {
            None | Some(Value::Bool(true)) => Ok(()),
            Some(_) => refused("attention to later positions"),
        }
    }

    /// Without a type, a factor means linear scaling, as files had it before there were types.
    fn rope_scaling(&self, context_length: usize) -> Result<RopeScaling, ConfigError> {
        let kind = match self.value("rope.scaling.type") {
            None => "linear",
            Some(_) => self.keys.text(&self.key("rope.scaling.type"))?,
        };
        let old_factor = self.float_or("rope.scale_linear", 1.0, 0.0..=*ROPE_FACTOR.end())?;
        let factor = self.float_or("rope.scaling.factor", old_factor, 0.0..=*ROPE_FACTOR.end())? as f32;
        let further_factor = self.float_or("rope.scaling.attn_factor", 1.0, 0.0..=100.0)? as f32;
        if kind != "yarn" && further_factor != 1.0 {
            return Err(ConfigError::Feature("an attention factor without YaRN".to_owned()));
        }
        match kind {
            "none" => Ok(RopeScaling::None),
            "linear" if factor == 0.0 || factor == 1.0 => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => {
                if self.float_or("rope.scaling.yarn_ext_factor", 1.0, -1e6..=1e6)? != 1.0 {
                    return Err(ConfigError::Feature("a partial extrapolation of YaRN".to_owned()));
                }
                let usual = RopeScaling::yarn_attention_factor(factor);
                let stated = self.float_or("rope.scaling.yarn_attn_factor", usual.into(), 0.0..=100.0)? as f32;
                Ok(RopeScaling::Yarn {
                    factor,
                    original_context: self.integer_or(
                        "rope.scaling.original_context_length",
                        context_length,
                        CONTEXT,
                    )?,
                    beta_fast: self.float_or("rope.scaling.yarn_beta_fast", 32.0, 0.0..=1e6)? as f32,
                    beta_slow: self.float_or("rope.scaling.yarn_beta_slow", 1.0, 0.0..=1e6)? as f32,
                    attention_factor: stated * further_factor,
                })
            }
            other => Err(ConfigError::Feature(format!("rope scaling `{other}`"))),
        }
    }

    fn blocks(&self, layers: usize) -> Result<Vec<BlockConfig>, ConfigError> {
        let window = match self.integer_or("attention.sliding_window", 0, 0..=*CONTEXT.end())? {
            0 => None,
            window => Some(window),
        };
        if window.is_some() && !["llama", "gemma3"].contains(&self.architecture) {
            return Err(ConfigError::Feature(format!("a sliding window (architecture `{}`)", self.architecture)));
        }
        let has_window = self.windows(layers)?;
        Ok((0..layers)
            .map(|layer| match self.architecture {
                "gemma3" if window.is_some() && has_window[layer] => BlockConfig { window, rope: LayerRope::Local },
                "gemma3" => BlockConfig { window: None, rope: LayerRope::Global },
                "smollm3" if (layer + 1).is_multiple_of(UNROTATED_PERIOD) => {
                    BlockConfig { window, rope: LayerRope::None }
                }
                _ => BlockConfig { window, rope: LayerRope::Global },
            })
            .collect())
    }

    /// Which of Gemma 3's blocks have the window: a list, or a period whose last block has none.
    fn windows(&self, layers: usize) -> Result<Vec<bool>, ConfigError> {
        let suffix = "attention.sliding_window_pattern";
        match self.value(suffix) {
            Some(Value::Array(Array::Bool(has_window))) if has_window.len() == layers => Ok(has_window.clone()),
            Some(Value::Array(_)) => Err(kind(&self.key(suffix), "a truth value for each layer")),
            _ => {
                let period = self.integer_or(suffix, WINDOW_PERIOD, 1..=*LAYERS.end())?;
                Ok((0..layers).map(|layer| layer % period < period - 1).collect())
            }
        }
    }
}

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

    pub(crate) fn floats(&self, key: &str) -> Result<Vec<f64>, ConfigError> {
        match self.value(key)? {
            Value::Array(Array::Float(values)) => Ok(values.clone()),
            _ => Err(kind(key, "a list of floats")),
        }
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

    fn float(&self, key: &str, range: Floats) -> Result<f64, ConfigError> {
        let value = self.value(key)?.as_f64().ok_or_else(|| kind(key, "a float"))?;
        // NaN is in no range.
        if range.contains(&value) {
            return Ok(value);
        }
        let range = format!("{:e} to {:e}", range.start(), range.end());
        Err(ConfigError::Range { key: key.to_owned(), value, range })
    }
}

fn kind(key: &str, wanted: &'static str) -> ConfigError {
    ConfigError::KeyKind { key: key.to_owned(), wanted }
}

#[cfg(test)]
mod tests;
