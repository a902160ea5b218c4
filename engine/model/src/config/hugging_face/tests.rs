//! What is read, what stands where nothing is said, and what is refused.

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

fn without(family: &str, key: &str) -> Result<ModelConfig, ConfigError> {
    let mut config = small(family);
    config.as_object_mut().unwrap().remove(key);
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
    // What the library's classes say where the file says nothing.
    for (family, is_tied) in [
        ("llama", false),
        ("mistral", false),
        ("qwen2", false),
        ("qwen3", false),
        ("smollm3", true),
        ("gemma3_text", true),
    ] {
        assert_eq!(without(family, "tie_word_embeddings").unwrap().is_tied, is_tied, "{family}");
    }
}

#[test]
fn absent_keys_have_the_defaults_of_their_family_and_null_is_not_absent() {
    // Of the library's classes: key/value heads where the key is absent, and where it is null.
    for (family, absent, null) in [
        ("llama", 32, Some(32)),
        ("mistral", 8, Some(32)),
        ("qwen2", 32, Some(32)),
        ("qwen3", 32, Some(32)),
        ("smollm3", 4, Some(32)),
        ("gemma3_text", 4, None),
    ] {
        let mut config = small(family);
        config["num_attention_heads"] = 32.into();
        let kv_heads = |config: &Value| ModelConfig::from_hugging_face(config, true).ok().map(|config| config.kv_heads);
        config[KV_HEADS] = Value::Null;
        assert_eq!(kv_heads(&config), null, "{family}");
        config.as_object_mut().unwrap().remove(KV_HEADS);
        assert_eq!(kv_heads(&config), Some(absent), "{family}");
    }
    // Windows where the key is absent, and where it is null; all of them are used.
    for (family, absent, null) in [
        ("llama", 0, Some(0)),
        ("mistral", 4_096, Some(0)),
        ("qwen2", 4_096, Some(0)),
        ("qwen3", 4_096, Some(0)),
        ("smollm3", 0, Some(0)),
        ("gemma3_text", 4_096, None),
    ] {
        let used = json!({"use_sliding_window": true, "max_window_layers": 0});
        let longest = |config: ModelConfig| windows(&config).into_iter().max().unwrap();
        assert_eq!(with(family, used.clone()).map(longest).ok(), Some(absent), "{family}");
        let null_window = json!({"use_sliding_window": true, "max_window_layers": 0, "sliding_window": null});
        assert_eq!(with(family, null_window).map(longest).ok(), null, "{family}");
    }
    assert!(error("mistral", json!({"sliding_window": 0})).contains("`sliding_window` is 0, outside 1 to"));
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
    let smollm3 = of("smollm3", json!({"sliding_window": 32, "use_sliding_window": true}));
    assert_eq!(windows(&smollm3), [0, 0, 0, 32, 0, 0, 0, 32]);
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
    let harmless = json!({"attn_logit_softcapping": null, "num_experts": 0, "vision_config": {}, "clip_qkv": []});
    assert!(with("llama", harmless).is_ok());
}
