//! What is read and what is refused.

use super::*;
use crate::gguf::tests::{File, boolean, booleans, float, number, numbers, scalar, strings};

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
    assert_eq!((config.head_dim, config.rope_dims, config.rope.base, config.vocab), (16, 16, 10_000.0, 2));
    assert_eq!((config.attention_scale, config.rope.scaling), (0.25, RopeScaling::None));
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

/// The smallest file of an architecture.
fn of(architecture: &str) -> File {
    [
        ("block_count", number(8)),
        ("embedding_length", number(64)),
        ("attention.head_count", number(2)),
        ("feed_forward_length", number(96)),
        ("context_length", number(128)),
        ("attention.layer_norm_rms_epsilon", float(1e-6)),
    ]
    .into_iter()
    .fold(
        File::default()
            .key("general.architecture", scalar(architecture))
            .key("tokenizer.ggml.tokens", strings(&["a", "b"])),
        |file, (suffix, value)| file.key(&format!("{architecture}.{suffix}"), value),
    )
}

#[test]
fn each_architecture_has_its_flags() {
    let llama = config(&of("llama").key("llama.attention.sliding_window", number(20))).unwrap();
    assert_eq!((llama.rope_pairs, llama.activation), (RopePairs::Neighbours, Activation::Silu));
    assert_eq!(llama.blocks, [BlockConfig { window: Some(20), rope: LayerRope::Global }; 8]);
    assert!(!llama.has_query_key_norms && !llama.has_post_norms && !llama.has_qkv_bias && llama.is_tied);

    let bias = of("qwen2").tensor("blk.0.attn_q.bias", &[1], 0, 0).tensor("output.weight", &[1], 0, 32);
    let qwen2 = config(&bias.data(vec![0; 64])).unwrap();
    assert_eq!((qwen2.rope_pairs, qwen2.has_qkv_bias, qwen2.is_tied), (RopePairs::Halves, true, false));
    assert!(!qwen2.has_attention_output_bias && !qwen2.has_ff_bias);

    let qwen3 = config(&of("qwen3").key("qwen3.attention.key_length", number(48))).unwrap();
    assert!(qwen3.has_query_key_norms && !qwen3.has_post_norms);
    assert_eq!((qwen3.head_dim, qwen3.attention_scale), (48, 1.0 / 48f32.sqrt()));

    let smollm3 = config(&of("smollm3")).unwrap();
    assert_eq!(smollm3.rope_pairs, RopePairs::Neighbours);
    let unrotated: Vec<usize> = (0..8).filter(|layer| smollm3.blocks[*layer].rope == LayerRope::None).collect();
    assert_eq!(unrotated, [3, 7]);
}

#[test]
fn gemma_has_a_window_in_most_blocks_and_a_rotation_of_its_own_there() {
    let file = || of("gemma3").key("gemma3.attention.sliding_window", number(20));
    let gemma = config(&file().key("gemma3.rope.freq_base", float(1e6))).unwrap();
    let local = BlockConfig { window: Some(20), rope: LayerRope::Local };
    let global = BlockConfig { window: None, rope: LayerRope::Global };
    assert_eq!(gemma.blocks, [local, local, local, local, local, global, local, local]);
    assert_eq!((gemma.rope.base, gemma.local_rope.base), (1e6, 10_000.0));
    assert!(gemma.has_query_key_norms && gemma.has_post_norms);
    assert_eq!((gemma.activation, gemma.embedding_scale, gemma.norm_offset), (Activation::GeluTanh, 8.0, 0.0));
    assert_eq!(gemma.attention_scale, 1.0 / 32f32.sqrt());
    let largest = file().without("gemma3.block_count").key("gemma3.block_count", number(62));
    let largest = largest.key("gemma3.attention.key_length", number(64));
    assert_eq!(config(&largest).unwrap().attention_scale, 1.0 / 32f32.sqrt());

    let pattern = "gemma3.attention.sliding_window_pattern";
    let every_second = config(&file().key(pattern, number(2))).unwrap().blocks;
    assert_eq!(every_second[..4], [local, global, local, global]);
    let listed = [false, true, true, false, false, false, false, true];
    let listed_blocks = config(&file().key(pattern, booleans(&listed))).unwrap().blocks;
    assert_eq!(listed_blocks, listed.map(|has_window| if has_window { local } else { global }));
    assert_eq!(config(&of("gemma3")).unwrap().blocks, [global; 8], "no window at all");
    for wrong in [booleans(&listed[1..]), number(0), number(1_000), scalar("2")] {
        let error = config(&file().key(pattern, wrong)).unwrap_err().to_string();
        assert!(error.contains(pattern), "{error}");
    }
}

#[test]
fn rope_scaling_is_read_in_all_its_ways() {
    let scaling = |keys: Vec<(&str, Vec<u8>)>| {
        let file =
            keys.into_iter().fold(of("qwen2"), |file, (key, value)| file.key(&format!("qwen2.rope.{key}"), value));
        config(&file).map(|config| config.rope.scaling)
    };
    assert_eq!(scaling(vec![("scaling.type", scalar("none")), ("scaling.factor", float(4.0))]), Ok(RopeScaling::None));
    assert_eq!(scaling(vec![("scale_linear", float(4.0))]), Ok(RopeScaling::Linear { factor: 4.0 }));
    assert_eq!(scaling(vec![("scaling.factor", float(0.0))]), Ok(RopeScaling::None));
    let linear = vec![("scaling.type", scalar("linear")), ("scaling.factor", float(8.0))];
    assert_eq!(scaling(linear), Ok(RopeScaling::Linear { factor: 8.0 }));
    let yarn = || vec![("scaling.type", scalar("yarn")), ("scaling.factor", float(4.0))];
    let wanted = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 128,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.138_629_4,
    };
    assert_eq!(scaling(yarn()), Ok(wanted));

    for (key, value, wanted) in [
        ("scaling.type", scalar("longrope"), "rope scaling `longrope`"),
        ("scaling.type", scalar("dynamic"), "rope scaling `dynamic`"),
        ("scaling.alpha", float(1_000.0), "rope scaling by a context's length"),
        ("scaling.attn_factor", float(1.2), "an attention factor without YaRN"),
        ("scaling.factor", float(0.5), "a rope factor of 0.5"),
        ("scaling.factor", float(f32::NAN), "`qwen2.rope.scaling.factor` is NaN"),
        ("dimension_sections", numbers(&[8, 8, 0, 0]), "rotations by sections"),
    ] {
        let error = scaling(vec![(key, value)]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    for (key, value, wanted) in [
        ("scaling.yarn_ext_factor", float(0.5), "a partial extrapolation of YaRN"),
        ("scaling.yarn_log_multiplier", float(0.1), "a multiplier of its logarithm"),
        ("scaling.yarn_attn_factor", float(0.0), "an attention factor 0"),
        ("scaling.yarn_beta_slow", float(64.0), "rope turns 64 and 32"),
        ("scaling.original_context_length", number(0), "is 0, outside"),
    ] {
        let error = scaling([yarn(), vec![(key, value)]].concat()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn what_the_forward_pass_does_not_compute_is_refused() {
    for (suffix, feature) in FEATURES {
        let key = format!("llama.{suffix}");
        for value in [number(8), float(0.5), boolean(true), scalar("yes")] {
            assert_eq!(with(&key, value), format!("the model uses {feature}, which is not supported"));
        }
        for something in [numbers(&[1]), strings(&[""])] {
            assert_eq!(with(&key, something), format!("the model uses {feature}, which is not supported"));
        }
        for nothing in [number(0), float(0.0), boolean(false), scalar(""), numbers(&[]), strings(&[])] {
            assert!(config(&small().key(&key, nothing)).is_ok(), "{key}");
        }
    }
    assert!(with("llama.attention.causal", boolean(false)).contains("attention to later positions"));
    for (architecture, feature) in [
        ("qwen3moe", "a mixture of experts (architecture `qwen3moe`)"),
        ("deepseek2", "multi-head latent attention (architecture `deepseek2`)"),
        ("gemma2", "soft-capping of attention scores (architecture `gemma2`)"),
        ("qwen2vl", "images (architecture `qwen2vl`)"),
    ] {
        assert!(with("general.architecture", scalar(architecture)).contains(feature));
    }
    assert!(with("general.architecture", scalar("rwkv6")).contains("architecture `rwkv6` is not supported"));
    let error = config(&of("qwen2").key("qwen2.attention.sliding_window", number(20))).unwrap_err().to_string();
    assert!(error.contains("a sliding window (architecture `qwen2`)"), "{error}");
}
