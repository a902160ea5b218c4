//! The configuration out of Hugging Face's `config.json`: the names, defaults and flags of each family.
//!
//! Source: the configuration classes of the library `transformers`, whose defaults stand where a file says nothing.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::{
    Activation, BlockConfig, CONTEXT, ConfigError, FF_WIDTH, HEAD_DIM, HEADS, LAYERS, LayerRope, ModelConfig, RMS_EPS,
    ROPE_BASE, ROPE_FACTOR, RopeConfig, RopePairs, RopeScaling, VOCAB, WIDTH,
};

/// Keys that change what a model computes, and what they stand for. A model with one of them, other than null, zero,
/// `false` or empty, is refused.
const FEATURES: [(&str, &str); 10] = [
    ("quantization_config", "quantised tensors in safetensors"),
    ("attn_logit_softcapping", "soft-capping of attention scores"),
    ("final_logit_softcapping", "soft-capping of logits"),
    ("use_bidirectional_attention", "attention to later positions"),
    ("num_local_experts", "a mixture of experts"),
    ("num_experts", "a mixture of experts"),
    ("vision_config", "images"),
    ("audio_config", "sound"),
    ("clip_qkv", "clamped queries, keys and values"),
    ("attention_chunk_size", "attention in chunks"),
];
/// SmolLM3: the last of so many blocks does not rotate, unless stated.
const UNROTATED_PERIOD: usize = 4;
/// Gemma 3: of so many blocks the last has no window, unless stated.
const WINDOW_PERIOD: usize = 6;
/// The window of Mistral, Qwen and Gemma 3, unless stated; null states that there is none.
const WINDOW: usize = 4_096;
const KV_HEADS: &str = "num_key_value_heads";
const WINDOW_KEY: &str = "sliding_window";

impl ModelConfig {
    /// Reads a `config.json` with `model_type` = `llama`, `mistral`, `qwen2`, `qwen3`, `smollm3` or `gemma3_text`.
    /// `has_head` where the weights bring a matrix for the head.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn from_hugging_face(config: &Value, has_head: bool) -> Result<Self, ConfigError> {
        let of = Keys { config };
        let family = of.text("model_type")?;
        check_family(family)?;
        of.check_features()?;

        let is_gemma = family == "gemma3_text";
        let layers = of.integer("num_hidden_layers", LAYERS)?;
        let width = of.integer("hidden_size", WIDTH)?;
        let heads = of.integer("num_attention_heads", HEADS)?;
        let head_dim = match family {
            "qwen3" => of.integer_or("head_dim", 128, HEAD_DIM)?,
            "gemma3_text" => of.integer_or("head_dim", 256, HEAD_DIM)?,
            _ => of.integer_or("head_dim", width / heads, HEAD_DIM)?,
        };
        let scored = if is_gemma { of.float_or("query_pre_attn_scalar", 256.0, 1.0..=1e6)? } else { head_dim as f64 };
        let has_bias = |key| of.boolean_or(key, false);
        let is_qwen2 = family == "qwen2";
        let (rope, local_rope) = of.ropes(family)?;
        Self {
            architecture: family.to_owned(),
            layers,
            width,
            heads,
            kv_heads: of.kv_heads(family, heads)?,
            head_dim,
            ff_width: of.integer("intermediate_size", FF_WIDTH)?,
            vocab: of.integer("vocab_size", VOCAB)?,
            context_length: of.integer("max_position_embeddings", CONTEXT)?,
            rms_eps: of.float_or("rms_norm_eps", 1e-6, RMS_EPS)? as f32,
            rope_pairs: RopePairs::Halves,
            rope_dims: head_dim,
            rope,
            local_rope,
            blocks: of.blocks(family, layers)?,
            attention_scale: 1.0 / (scored as f32).sqrt(),
            embedding_scale: if is_gemma { (width as f32).sqrt() } else { 1.0 },
            norm_offset: if is_gemma { 1.0 } else { 0.0 },
            has_query_key_norms: is_gemma || family == "qwen3",
            has_post_norms: is_gemma,
            has_qkv_bias: is_qwen2 || has_bias("attention_bias")?,
            has_attention_output_bias: !is_qwen2 && has_bias("attention_bias")?,
            has_ff_bias: has_bias("mlp_bias")?,
            activation: of.activation(is_gemma)?,
            is_tied: of.boolean_or("tie_word_embeddings", !has_head || is_gemma || family == "smollm3")?,
        }
        .checked()
    }
}

/// Names of families that are near to a known one are refused for what sets them apart.
fn check_family(family: &str) -> Result<(), ConfigError> {
    let feature = match family {
        "llama" | "mistral" | "qwen2" | "qwen3" | "smollm3" | "gemma3_text" => return Ok(()),
        "mixtral" | "qwen2_moe" | "qwen3_moe" | "llama4" | "gpt_oss" => "a mixture of experts",
        "gemma2" => "soft-capping of attention scores",
        "gemma3" | "mistral3" | "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "mllama" => "images",
        _ => return Err(ConfigError::Architecture(family.to_owned())),
    };
    Err(ConfigError::Feature(format!("{feature} (architecture `{family}`)")))
}

fn feature<T>(feature: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Feature(feature.into()))
}

/// An object of the file; null is the same as absent.
#[derive(Clone, Copy)]
struct Keys<'a> {
    config: &'a Value,
}

impl<'a> Keys<'a> {
    fn value(&self, key: &str) -> Option<&'a Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    fn required(&self, key: &str) -> Result<&'a Value, ConfigError> {
        self.value(key).ok_or_else(|| ConfigError::MissingKey(key.to_owned()))
    }

    fn text(&self, key: &str) -> Result<&'a str, ConfigError> {
        self.required(key)?.as_str().ok_or_else(|| kind(key, "text"))
    }

    fn boolean_or(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        self.value(key).map_or(Ok(default), |value| value.as_bool().ok_or_else(|| kind(key, "true or false")))
    }

    fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Result<usize, ConfigError> {
        let value = self.required(key)?.as_u64().ok_or_else(|| kind(key, "a non-negative integer"))?;
        match usize::try_from(value) {
            Ok(fits) if range.contains(&value) => Ok(fits),
            _ => {
                let range = format!("{} to {}", range.start(), range.end());
                Err(ConfigError::Range { key: key.to_owned(), value: value as f64, range })
            }
        }
    }

    fn integer_or(&self, key: &str, default: usize, range: RangeInclusive<u64>) -> Result<usize, ConfigError> {
        if self.value(key).is_none() { Ok(default) } else { self.integer(key, range) }
    }

    fn float(&self, key: &str, range: RangeInclusive<f64>) -> Result<f64, ConfigError> {
        let value = self.required(key)?.as_f64().ok_or_else(|| kind(key, "a number"))?;
        if range.contains(&value) {
            return Ok(value);
        }
        let range = format!("{:e} to {:e}", range.start(), range.end());
        Err(ConfigError::Range { key: key.to_owned(), value, range })
    }

    fn float_or(&self, key: &str, default: f64, range: RangeInclusive<f64>) -> Result<f64, ConfigError> {
        if self.value(key).is_none() { Ok(default) } else { self.float(key, range) }
    }

    fn object(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(config) if config.is_object() => Ok(Some(Self { config })),
            Some(_) => Err(kind(key, "an object")),
        }
    }

    fn check_features(&self) -> Result<(), ConfigError> {
        for (key, name) in FEATURES {
            match self.value(key) {
                None | Some(Value::Bool(false)) => {}
                Some(value) if value.as_f64() == Some(0.0) || is_empty(value) => {}
                Some(_) => return feature(name),
            }
        }
        if self.float_or("partial_rotary_factor", 1.0, 0.0..=1.0)? != 1.0 {
            return feature("a rotation of a part of each head");
        }
        Ok(())
    }

    /// Absent, each family has its own number; null stands for as many as there are query heads.
    fn kv_heads(&self, family: &str, heads: usize) -> Result<usize, ConfigError> {
        match self.config.get(KV_HEADS) {
            None => Ok(match family {
                "mistral" => 8,
                "qwen2" | "qwen3" => 32,
                "smollm3" | "gemma3_text" => 4,
                _ => heads,
            }),
            Some(Value::Null) if family != "gemma3_text" => Ok(heads),
            Some(_) => self.integer(KV_HEADS, HEADS),
        }
    }

    fn activation(&self, is_gemma: bool) -> Result<Activation, ConfigError> {
        let (key, default) = if is_gemma { ("hidden_activation", "gelu_pytorch_tanh") } else { ("hidden_act", "silu") };
        match if self.value(key).is_none() { default } else { self.text(key)? } {
            "silu" => Ok(Activation::Silu),
            "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
            other => feature(format!("the activation `{other}`")),
        }
    }

    /// The rotations of blocks without and with a window. Newer files have both in `rope_parameters`, base included;
    /// older ones have `rope_theta` and `rope_scaling`.
    fn ropes(&self, family: &str) -> Result<(RopeConfig, RopeConfig), ConfigError> {
        let default = match family {
            "gemma3_text" => 1_000_000.0,
            "smollm3" => 2_000_000.0,
            _ => 10_000.0,
        };
        let base = self.float_or("rope_theta", default, ROPE_BASE)?;
        let local_base = self.float_or("rope_local_base_freq", 10_000.0, ROPE_BASE)?;
        let Some(parameters) = self.object("rope_parameters")? else {
            let local = RopeConfig { base: local_base as f32, scaling: RopeScaling::None };
            return Ok((self.rope(self.object("rope_scaling")?, base)?, local));
        };
        match (parameters.object("full_attention")?, parameters.object("sliding_attention")?) {
            (None, None) => {
                let local = RopeConfig { base: local_base as f32, scaling: RopeScaling::None };
                Ok((self.rope(Some(parameters), base)?, local))
            }
            (global, local) => Ok((self.rope(global, base)?, self.rope(local, local_base)?)),
        }
    }

    /// One rotation; `base` where it states none.
    fn rope(&self, scaling: Option<Self>, base: f64) -> Result<RopeConfig, ConfigError> {
        let Some(of) = scaling else { return Ok(RopeConfig { base: base as f32, scaling: RopeScaling::None }) };
        let base = of.float_or("rope_theta", base, ROPE_BASE)? as f32;
        if of.float_or("partial_rotary_factor", 1.0, 0.0..=1.0)? != 1.0 {
            return feature("a rotation of a part of each head");
        }
        let kind = if of.value("rope_type").is_none() { of.text("type")? } else { of.text("rope_type")? };
        let factor = || of.float("factor", ROPE_FACTOR).map(|factor| factor as f32);
        let scaling = match kind {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: factor()? },
            "llama3" => RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: of.float("low_freq_factor", 0.0..=1e6)? as f32,
                high_freq_factor: of.float("high_freq_factor", 0.0..=1e6)? as f32,
                original_context: of.integer("original_max_position_embeddings", CONTEXT)?,
            },
            "yarn" => {
                if ["mscale", "mscale_all_dim"].into_iter().any(|key| of.value(key).is_some()) {
                    return feature("rope scaling with a multiplier of its logarithm");
                }
                if !of.boolean_or("truncate", true)? {
                    return feature("rope scaling with borders between pairs");
                }
                let factor = factor()?;
                let usual = RopeScaling::yarn_attention_factor(factor);
                let original_context = match of.value("original_max_position_embeddings") {
                    None => self.integer("max_position_embeddings", CONTEXT)?,
                    Some(_) => of.integer("original_max_position_embeddings", CONTEXT)?,
                };
                RopeScaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: of.float_or("beta_fast", 32.0, 0.0..=1e6)? as f32,
                    beta_slow: of.float_or("beta_slow", 1.0, 0.0..=1e6)? as f32,
                    attention_factor: of.float_or("attention_factor", usual.into(), 0.0..=100.0)? as f32,
                }
            }
            other => return feature(format!("rope scaling `{other}`")),
        };
        Ok(RopeConfig { base, scaling })
    }

    fn blocks(&self, family: &str, layers: usize) -> Result<Vec<BlockConfig>, ConfigError> {
        let window = self.window(family)?;
        let rotates = self.rotating(family, layers)?;
        let has_window = self.windows(family, &rotates)?;
        Ok(std::iter::zip(has_window, rotates)
            .map(|(has_window, rotates)| {
                let window = window.filter(|_| has_window);
                let rope = match (rotates, window) {
                    (false, _) => LayerRope::None,
                    (true, Some(_)) if family == "gemma3_text" => LayerRope::Local,
                    (true, _) => LayerRope::Global,
                };
                BlockConfig { window, rope }
            })
            .collect())
    }

    /// The window of blocks that have one.
    fn window(&self, family: &str) -> Result<Option<usize>, ConfigError> {
        let is_used = match family {
            "llama" => false,
            "mistral" | "gemma3_text" => true,
            _ => self.boolean_or("use_sliding_window", false)?,
        };
        match self.config.get(WINDOW_KEY) {
            _ if !is_used => Ok(None),
            None => Ok((family != "smollm3").then_some(WINDOW)),
            // Gemma's blocks with a window rotate otherwise than those without: no window is no description of them.
            Some(Value::Null) if family != "gemma3_text" => Ok(None),
            Some(_) => self.integer(WINDOW_KEY, CONTEXT).map(Some),
        }
    }

    /// Which blocks have the window, where there is one.
    fn windows(&self, family: &str, rotates: &[bool]) -> Result<Vec<bool>, ConfigError> {
        let layers = rotates.len();
        if let Some(list) = self.value("layer_types") {
            let types = list.as_array().filter(|list| list.len() == layers);
            let types = types.ok_or_else(|| kind("layer_types", "a type for each layer"))?;
            let has_window = |kind: &Value| match kind.as_str() {
                Some("full_attention") => Ok(false),
                Some("sliding_attention") => Ok(true),
                other => feature(format!("layers of type `{}`", other.unwrap_or("?"))),
            };
            return types.iter().map(has_window).collect();
        }
        let layer = 0..layers;
        Ok(match family {
            "gemma3_text" => {
                let period = self.integer_or("sliding_window_pattern", WINDOW_PERIOD, 1..=*LAYERS.end())?;
                layer.map(|layer| !(layer + 1).is_multiple_of(period)).collect()
            }
            "qwen2" | "qwen3" => {
                let first = self.integer_or("max_window_layers", 28, 0..=1 << 20)?;
                layer.map(|layer| layer >= first).collect()
            }
            "smollm3" => rotates.iter().map(|rotates| !rotates).collect(),
            _ => vec![true; layers],
        })
    }

    /// Which blocks rotate queries and keys.
    fn rotating(&self, family: &str, layers: usize) -> Result<Vec<bool>, ConfigError> {
        if family != "smollm3" {
            return Ok(vec![true; layers]);
        }
        let key = "no_rope_layers";
        let Some(list) = self.value(key) else {
            let period = self.integer_or("no_rope_layer_interval", UNROTATED_PERIOD, 1..=*LAYERS.end())?;
            return Ok((1..=layers).map(|layer| !layer.is_multiple_of(period)).collect());
        };
        // The list says 1 where there is a rotation, whatever its name.
        let list = list.as_array().filter(|list| list.len() == layers);
        let numbers = list.ok_or_else(|| kind(key, "0 or 1 for each layer"))?.iter().map(Value::as_u64);
        numbers
            .map(|number| match number {
                Some(0) => Ok(false),
                Some(1) => Ok(true),
                _ => Err(kind(key, "0 or 1 for each layer")),
            })
            .collect()
    }
}

/// Text, a list or an object without anything in it.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn kind(key: &str, wanted: &'static str) -> ConfigError {
    ConfigError::KeyKind { key: key.to_owned(), wanted }
}

#[cfg(test)]
mod tests;
