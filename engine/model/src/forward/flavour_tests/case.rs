//! The models of `tests/golden/flavours`: the reference's logits, and the same weights made once more.

use std::collections::HashMap;

use serde_json::Value as Json;

use crate::config::{ModelConfig, RopeConfig, RopePairs, RopeScaling};
use crate::gguf::tests::{File, float, number, scalar, strings};
use crate::gguf::{Gguf, TensorView};
use crate::tensor_kind::TensorKind;
use crate::weights::Weights;

pub(super) struct Case {
    pub(super) name: String,
    config: Json,
    tensors: Vec<String>,
    pub(super) logits: Vec<Vec<f32>>,
}

pub(super) struct Golden {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<usize>,
    pub(super) cases: Vec<Case>,
}

pub(super) fn golden() -> Golden {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/flavours/logits.json");
    let json: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let integers = |json: &Json| json.as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect::<Vec<_>>();
    let row = |json: &Json| json.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    let cases = json["cases"].as_array().unwrap().iter().map(|case| Case {
        name: case["name"].as_str().unwrap().to_owned(),
        config: case["config"].clone(),
        tensors: case["tensors"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect(),
        logits: case["logits"].as_array().unwrap().iter().map(row).collect(),
    });
    Golden {
        tokens: integers(&json["tokens"]).into_iter().map(|token| token as u32).collect(),
        positions: integers(&json["positions"]).into_iter().map(|position| position as usize).collect(),
        cases: cases.collect(),
    }
}

pub(super) fn case(name: &str) -> Case {
    golden().cases.into_iter().find(|case| case.name == name).unwrap()
}

/// From -128 to 127: a hash of the name, and of each index with it.
fn integers(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(2_166_136_261u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    let mix = |index: usize| {
        let x = (index as u32).wrapping_mul(0x9e37_79b9).wrapping_add(seed);
        let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
        let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
        ((x ^ x >> 16) >> 24) as f32 - 128.0
    };
    (0..count).map(mix).collect()
}

/// How a file has its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Format {
    /// Neighbouring pairs where the architecture has them, offsets of norms added, Llama 3's divisors as a tensor.
    Gguf,
    HuggingFace,
}

pub(super) const FORMATS: [Format; 2] = [Format::Gguf, Format::HuggingFace];

impl Case {
    fn number(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    fn architecture(&self) -> &str {
        match self.config["model_type"].as_str().unwrap() {
            "mistral" => "llama",
            "gemma3_text" => "gemma3",
            other => other,
        }
    }

    /// `rope_parameters`, of blocks without a window where there are two kinds.
    fn rope(&self) -> &Json {
        let rope = &self.config["rope_parameters"];
        rope.get("full_attention").unwrap_or(rope)
    }

    fn shape(&self, name: &str) -> Vec<usize> {
        let (width, ff) = (self.number("hidden_size"), self.number("intermediate_size"));
        let head_dim = self.number("head_dim");
        let queries = self.number("num_attention_heads") * head_dim;
        let kv = self.number("num_key_value_heads") * head_dim;
        let part = name.rsplit('.').nth(1).unwrap();
        let shape = match part {
            "token_embd" | "output" => [width, self.number("vocab_size")],
            "attn_q" => [width, queries],
            "attn_k" | "attn_v" => [width, kv],
            "attn_output" => [queries, width],
            "ffn_gate" | "ffn_up" => [width, ff],
            "ffn_down" => [ff, width],
            "attn_q_norm" | "attn_k_norm" => return vec![head_dim],
            _ => return vec![width],
        };
        if name.ends_with("bias") { vec![shape[1]] } else { shape.to_vec() }
    }

    fn tensor(&self, name: &str, format: Format) -> Vec<f32> {
        let shape = self.shape(name);
        let values = integers(name, shape.iter().product());
        let is_gemma = self.architecture() == "gemma3";
        let (divisor, offset) = match name {
            _ if name.contains("norm") => (256.0, if is_gemma && format == Format::HuggingFace { 0.0 } else { 1.0 }),
            _ if name.ends_with("bias") || name == "token_embd.weight" => (128.0, 0.0),
            _ => (512.0, 0.0),
        };
        let values: Vec<f32> = values.into_iter().map(|value| value / divisor + offset).collect();
        let is_rotated = ["attn_q.", "attn_k."].iter().any(|part| name.contains(part));
        if format == Format::Gguf && is_rotated && ["llama", "smollm3"].contains(&self.architecture()) {
            let width = if shape.len() == 2 { shape[0] } else { 1 };
            return neighbours(&values, width, self.number("head_dim"));
        }
        values
    }

    /// As llama.cpp's converter would write it.
    pub(super) fn file(&self) -> Gguf {
        let architecture = self.architecture();
        let key = |suffix: &str| format!("{architecture}.{suffix}");
        let count = |name: &str| number(self.number(name) as u32);
        let vocab: Vec<String> = (0..self.number("vocab_size")).map(|token| token.to_string()).collect();
        let mut file = File::default()
            .key("general.architecture", scalar(architecture))
            .key("tokenizer.ggml.tokens", strings(&vocab.iter().map(String::as_str).collect::<Vec<_>>()))
            .key(&key("block_count"), count("num_hidden_layers"))
            .key(&key("embedding_length"), count("hidden_size"))
            .key(&key("feed_forward_length"), count("intermediate_size"))
            .key(&key("context_length"), count("max_position_embeddings"))
            .key(&key("attention.head_count"), count("num_attention_heads"))
            .key(&key("attention.head_count_kv"), count("num_key_value_heads"))
            .key(&key("attention.key_length"), count("head_dim"))
            .key(&key("attention.value_length"), count("head_dim"))
            .key(&key("attention.layer_norm_rms_epsilon"), float(self.config["rms_norm_eps"].as_f64().unwrap() as f32))
            .key(&key("rope.freq_base"), float(self.rope()["rope_theta"].as_f64().unwrap() as f32));
        if self.config.get("sliding_window").is_some() {
            file = file.key(&key("attention.sliding_window"), count("sliding_window"));
        }
        let kind = self.rope()["rope_type"].as_str().unwrap();
        if ["linear", "yarn"].contains(&kind) {
            let factor = self.rope()["factor"].as_f64().unwrap() as f32;
            file = file.key(&key("rope.scaling.type"), scalar(kind)).key(&key("rope.scaling.factor"), float(factor));
        }
        if kind == "yarn" {
            let original = self.rope()["original_max_position_embeddings"].as_u64().unwrap() as u32;
            file = file.key(&key("rope.scaling.original_context_length"), number(original));
        }
        let mut data: Vec<u8> = Vec::new();
        let mut add = |file: File, name: &str, shape: Vec<usize>, values: Vec<f32>| {
            let shape: Vec<u64> = shape.iter().map(|dimension| *dimension as u64).collect();
            let file = file.tensor(name, &shape, TensorKind::F32.number(), data.len() as u64);
            data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            data.resize(data.len().next_multiple_of(32), 0);
            file
        };
        for name in &self.tensors {
            file = add(file, name, self.shape(name), self.tensor(name, Format::Gguf));
        }
        if kind == "llama3" {
            let divisors = llama3_divisors(self.rope(), self.number("head_dim"));
            file = add(file, "rope_freqs.weight", vec![divisors.len()], divisors);
        }
        Gguf::from_bytes(file.data(data).bytes()).unwrap()
    }

    /// What the file says, and what Hugging Face's layout has otherwise.
    pub(super) fn config(&self, format: Format) -> ModelConfig {
        let config = ModelConfig::from_gguf(&self.file()).unwrap();
        if format == Format::Gguf {
            return config;
        }
        let scaling = match self.rope()["rope_type"].as_str().unwrap() {
            "llama3" => {
                let factor = |key: &str| self.rope()[key].as_f64().unwrap() as f32;
                RopeScaling::Llama3 {
                    factor: factor("factor"),
                    low_freq_factor: factor("low_freq_factor"),
                    high_freq_factor: factor("high_freq_factor"),
                    original_context: self.rope()["original_max_position_embeddings"].as_u64().unwrap() as usize,
                }
            }
            _ => config.rope.scaling,
        };
        let attention_scale = match self.config.get("query_pre_attn_scalar") {
            Some(scalar) => 1.0 / (scalar.as_f64().unwrap() as f32).sqrt(),
            None => config.attention_scale,
        };
        let norm_offset = if self.architecture() == "gemma3" { 1.0 } else { 0.0 };
        let rope = RopeConfig { scaling, ..config.rope };
        ModelConfig { rope_pairs: RopePairs::Halves, rope, attention_scale, norm_offset, ..config }.checked().unwrap()
    }

    pub(super) fn weights(&self, config: &ModelConfig, format: Format) -> Weights {
        if format == Format::Gguf {
            let file = self.file();
            return Weights::from_tensors(config, 1, |name| file.tensor(name)).unwrap();
        }
        let tensors: HashMap<&str, (Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|name| {
                let bytes = self.tensor(name, format).iter().flat_map(|value| value.to_le_bytes()).collect();
                (name.as_str(), (self.shape(name), bytes))
            })
            .collect();
        let view = |name: &str| {
            let (shape, bytes) = tensors.get(name)?;
            Some(TensorView { shape, kind: TensorKind::F32, bytes })
        };
        Weights::from_tensors(config, 1, view).unwrap()
    }

    /// The file cannot say what this model's scores are multiplied by.
    pub(super) fn is_in(&self, format: Format) -> bool {
        let scalar = self.config.get("query_pre_attn_scalar");
        format == Format::HuggingFace || scalar.is_none_or(|scalar| *scalar == self.config["head_dim"])
    }
}

/// Rows of Q or K in the order that GGUF files of `llama` have: halves of a head become neighbours.
fn neighbours(values: &[f32], width: usize, head_dim: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks_exact(width).collect();
    (0..rows.len())
        .flat_map(|row| {
            let (head, at) = (row / head_dim * head_dim, row % head_dim);
            rows[head + at % 2 * head_dim / 2 + at / 2].iter().copied()
        })
        .collect()
}

/// The divisors of frequencies by the definition that comes with Llama 3.1.
fn llama3_divisors(rope: &Json, head_dim: usize) -> Vec<f32> {
    let number = |key: &str| rope[key].as_f64().unwrap();
    let (factor, low, high) = (number("factor"), number("low_freq_factor"), number("high_freq_factor"));
    let original = number("original_max_position_embeddings");
    let divisor = |pair: usize| {
        let frequency = number("rope_theta").powf(-2.0 * pair as f64 / head_dim as f64);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..head_dim / 2).map(|pair| divisor(pair) as f32).collect()
}
