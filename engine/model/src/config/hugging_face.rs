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
            kv_heads: of.integer_or("num_key_value_heads", heads, HEADS)?,
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
            is_tied: of.boolean_or("tie_word_embeddings", !has_head)?,
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
                Some(value) if value.as_f64() == Some(0.0) => {}
                Some(_) => return feature(name),
            }
        }
        if self.float_or("partial_rotary_factor", 1.0, 0.0..=1.0)? != 1.0 {
            return feature("a rotation of a part of each head");
        }
        Ok(())
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
        let is_used = match family {
            "llama" => false,
            "mistral" | "gemma3_text" => true,
            _ => self.boolean_or("use_sliding_window", false)?,
        };
        let window = match self.integer_or("sliding_window", 0, 0..=*CONTEXT.end())? {
            0 => None,
            window => is_used.then_some(window),
        };
        let has_window = self.windows(family, layers)?;
        let rotates = self.rotating(family, layers)?;
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

    /// Which blocks have the window, where there is one.
    fn windows(&self, family: &str, layers: usize) -> Result<Vec<bool>, ConfigError> {
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

fn kind(key: &str, wanted: &'static str) -> ConfigError {
    ConfigError::KeyKind { key: key.to_owned(), wanted }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn small(family: &str) -> Value {
        json!({
            "model_type": family, "num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 45,
            "max_position_embeddings": 600, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": false,
        })
    }

    fn with(family: &str, change: Value) -> Result<ModelConfig, ConfigError> {
        let mut config = small(family);
        for (key, value) in change.as_object().unwrap() {
            config[key] = value.clone();
        }
        ModelConfig::from_hugging_face(&config, true)
    }

    fn error(family: &str, change: Value) -> String {
        with(family, change).unwrap_err().to_string()
    }

    #[test]
    fn every_family_has_its_flags() {
        for family in ["llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3_text"] {
            let config = with(family, json!({})).unwrap();
            let is_gemma = family == "gemma3_text";
            assert_eq!(config.has_qkv_bias, family == "qwen2", "{family}");
            assert_eq!(config.has_query_key_norms, is_gemma || family == "qwen3", "{family}");
            assert_eq!((config.has_post_norms, config.norm_offset != 0.0), (is_gemma, is_gemma), "{family}");
            assert_eq!(config.embedding_scale, if is_gemma { 8.0 } else { 1.0 }, "{family}");
            assert_eq!(config.attention_scale, if is_gemma { 1.0 / 16.0 } else { 0.25 }, "{family}");
            assert_eq!(config.activation == Activation::GeluTanh, is_gemma, "{family}");
            assert!(config.rope_pairs == RopePairs::Halves && !config.is_tied && config.rope.base == 5e5, "{family}");
        }
        let biased = with("llama", json!({"attention_bias": true, "mlp_bias": true})).unwrap();
        assert!(biased.has_qkv_bias && biased.has_attention_output_bias && biased.has_ff_bias);
    }

    #[test]
    fn a_head_is_tied_when_the_file_says_so_or_brings_none() {
        let mut config = small("llama");
        config["tie_word_embeddings"] = Value::Null;
        assert!(!ModelConfig::from_hugging_face(&config, true).unwrap().is_tied);
        assert!(ModelConfig::from_hugging_face(&config, false).unwrap().is_tied);
        assert!(with("llama", json!({"tie_word_embeddings": true})).unwrap().is_tied);
    }

    #[test]
    fn scalings_are_read_in_both_spellings() {
        let linear = RopeScaling::Linear { factor: 4.0 };
        for change in [
            json!({"rope_scaling": {"type": "linear", "factor": 4.0}}),
            json!({"rope_scaling": {"rope_type": "linear", "factor": 4}}),
            json!({"rope_theta": null, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}),
        ] {
            let config = with("llama", change.clone()).unwrap();
            assert_eq!(config.rope, RopeConfig { base: 5e5, scaling: linear }, "{change}");
        }
        let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": 256});
        let scaling = with("llama", json!({"rope_scaling": llama3})).unwrap().rope.scaling;
        let (factor, low_freq_factor, high_freq_factor, original_context) = (8.0, 1.0, 4.0, 256);
        let wanted = RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context };
        assert_eq!(scaling, wanted);
        let yarn = with("qwen2", json!({"rope_scaling": {"type": "yarn", "factor": 4.0}})).unwrap().rope.scaling;
        let attention_factor = RopeScaling::yarn_attention_factor(4.0);
        let (factor, original_context, beta_fast, beta_slow) = (4.0, 600, 32.0, 1.0);
        assert_eq!(yarn, RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor });
        let both = json!({"full_attention": {"rope_type": "linear", "factor": 4, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}});
        let gemma = with("gemma3_text", json!({"rope_parameters": both})).unwrap();
        assert_eq!((gemma.rope, gemma.local_rope.base), (RopeConfig { base: 1e6, scaling: linear }, 2e4));
    }

    fn windows(config: &ModelConfig) -> Vec<u32> {
        config.blocks.iter().map(|block| block.window.map_or(0, |window| window as u32)).collect()
    }

    #[test]
    fn windows_and_blocks_without_rotation_are_where_each_family_has_them() {
        let of = |family, change| with(family, change).unwrap();
        assert_eq!(windows(&of("llama", json!({"sliding_window": 32}))), [0; 8]);
        assert_eq!(windows(&of("mistral", json!({"sliding_window": 32}))), [32; 8]);
        assert_eq!(windows(&of("mistral", json!({"sliding_window": null}))), [0; 8]);
        assert_eq!(windows(&of("qwen2", json!({"sliding_window": 32}))), [0; 8]);
        let partly = json!({"sliding_window": 32, "use_sliding_window": true, "max_window_layers": 6});
        assert_eq!(windows(&of("qwen3", partly)), [0, 0, 0, 0, 0, 0, 32, 32]);
        let gemma = of("gemma3_text", json!({"sliding_window": 32}));
        assert_eq!(windows(&gemma), [32, 32, 32, 32, 32, 0, 32, 32]);
        assert!(gemma.blocks.iter().all(|block| (block.rope == LayerRope::Local) == block.window.is_some()));
        let types: Vec<&str> =
            (0..8).map(|layer| if layer == 2 { "sliding_attention" } else { "full_attention" }).collect();
        let listed = of("gemma3_text", json!({"sliding_window": 32, "layer_types": types}));
        assert_eq!(windows(&listed), [0, 0, 32, 0, 0, 0, 0, 0]);
        let rotates = |config: &ModelConfig| -> Vec<bool> {
            config.blocks.iter().map(|block| block.rope == LayerRope::Global).collect()
        };
        assert_eq!(rotates(&of("smollm3", json!({}))), [true, true, true, false, true, true, true, false]);
        let list = json!({"no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 1]});
        assert_eq!(rotates(&of("smollm3", list)), [true, false, true, true, true, true, true, true]);
    }

    #[test]
    fn what_is_missing_or_out_of_range_is_named() {
        for key in [
            "model_type",
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
            "vocab_size",
            "max_position_embeddings",
        ] {
            assert_eq!(error("llama", json!({key: null})), format!("metadata key `{key}` is missing"));
        }
        for (change, wanted) in [
            (json!({"num_hidden_layers": 0}), "`num_hidden_layers` is 0, outside 1 to 512"),
            (json!({"hidden_size": 1 << 30}), "`hidden_size` is 1073741824, outside"),
            (json!({"hidden_size": -1}), "`hidden_size` is not a non-negative integer"),
            (json!({"vocab_size": "a"}), "`vocab_size` is not a non-negative integer"),
            (json!({"rms_norm_eps": 0.5}), "`rms_norm_eps` is 0.5, outside"),
            (json!({"rope_theta": "x"}), "`rope_theta` is not a number"),
            (json!({"attention_bias": 1}), "`attention_bias` is not true or false"),
            (json!({"rope_scaling": 4}), "`rope_scaling` is not an object"),
            (json!({"rope_scaling": {"factor": 4}}), "`type` is missing"),
            (json!({"rope_scaling": {"type": "linear"}}), "`factor` is missing"),
            (json!({"rope_scaling": {"type": "linear", "factor": 0.5}}), "`factor` is 0.5, outside"),
            (json!({"layer_types": ["full_attention"]}), "`layer_types` is not a type for each layer"),
            (json!({"num_key_value_heads": 3}), "3 key/value heads do not divide 4 heads"),
        ] {
            assert!(error("llama", change.clone()).contains(wanted), "{}", error("llama", change));
        }
        for list in [json!([1]), json!([1, 1, 1, 1, 1, 1, 1, 2]), json!(4)] {
            assert!(error("smollm3", json!({"no_rope_layers": list})).contains("is not 0 or 1 for each layer"));
        }
    }

    #[test]
    fn what_the_forward_pass_does_not_compute_is_refused() {
        assert!(error("rwkv", json!({})).contains("architecture `rwkv` is not supported"));
        assert!(error("mixtral", json!({})).contains("a mixture of experts (architecture `mixtral`)"));
        assert!(error("gemma3", json!({})).contains("images"));
        for (change, wanted) in [
            (json!({"quantization_config": {"quant_method": "gptq"}}), "quantised tensors"),
            (json!({"num_local_experts": 8}), "a mixture of experts"),
            (json!({"attn_logit_softcapping": 50.0}), "soft-capping of attention scores"),
            (json!({"partial_rotary_factor": 0.5}), "a rotation of a part of each head"),
            (json!({"hidden_act": "gelu"}), "the activation `gelu`"),
            (json!({"rope_scaling": {"type": "dynamic", "factor": 2}}), "rope scaling `dynamic`"),
            (json!({"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1}}), "a multiplier of its logarithm"),
            (json!({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": false}}), "borders between pairs"),
            (
                json!({"layer_types": ["chunked_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention"]}),
                "layers of type `chunked_attention`",
            ),
        ] {
            assert!(error("llama", change.clone()).contains(wanted), "{}", error("llama", change));
        }
        assert!(with("llama", json!({"attn_logit_softcapping": null, "num_experts": 0})).is_ok());
    }
}
