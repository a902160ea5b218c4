//! What `bulkhead model inspect` shows: a file's facts, and whether the engine runs it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use engine_kernels::KvKind;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::checkpoint::{Checkpoint, OpenCheckpointError};
use crate::config::ModelConfig;
use crate::fingerprint;
use crate::gguf::{Gguf, Value};
use crate::model::{ChatUnavailable, LoadOptions, Parts, check_chat, model_name};
use crate::printable::{PRINTABLE_BYTES_MAX, printable};
use crate::tensor_kind::TensorKind;

/// Longest reason that is shown, bytes: words of the file among our own.
const REFUSAL_BYTES_MAX: usize = 1_024;

/// A model's facts. Texts are shown as the file has them, control characters replaced and long ones cut.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// The name under which the model would be served.
    pub name: String,
    /// The architecture, as its file names it.
    pub architecture: Option<String>,
    /// `general.license` of a GGUF file.
    pub licence: Option<String>,
    /// Size of the file, or of all files that are used.
    pub bytes: u64,
    /// Digest of the file, or of the list of the files and their digests; hexadecimal.
    pub sha256: String,
    /// Version of the format, of a GGUF file.
    pub gguf_version: Option<u32>,
    /// `general.file_type`, by its name where that is known.
    pub file_type: Option<String>,
    /// Tensors by element type, the largest share first.
    pub tensors: Vec<TensorShare>,
    /// The dimensions, when the metadata describes a model that the engine knows.
    pub config: Option<ModelConfig>,
    /// The tokenizer, when it can be used.
    pub tokenizer: Option<TokenizerFacts>,
    /// The file brings a chat template that is not empty.
    pub chat_template: bool,
    /// What the chat template does not take, and why, of a model that the engine runs.
    pub chat_refused: Vec<String>,
    /// [`crate::Model::fingerprint`] with the default kind of K and V, hexadecimal; `None` when the engine does not run it.
    pub fingerprint: Option<String>,
    /// Why the engine does not run it; `None` when it does.
    pub refusal: Option<String>,
}

/// The tensors of one element type.
#[derive(Debug, PartialEq, Serialize)]
pub struct TensorShare {
    /// Element type.
    pub kind: String,
    /// How many tensors.
    pub tensors: usize,
    /// Elements of all of them.
    pub weights: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// A tokenizer's facts.
#[derive(Debug, PartialEq, Serialize)]
pub struct TokenizerFacts {
    /// In words, such as `byte-level BPE`.
    pub kind: &'static str,
    /// The pre-tokenizer.
    pub pre: String,
    /// Tokens.
    pub tokens: usize,
    /// Begin of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Prompts begin with BOS.
    pub adds_bos: bool,
    /// Bytes that no token can write.
    pub byte_tokens_missing: usize,
}

/// Reads a file's facts and tries to load it as it would be served, but for the cache of weights.
///
/// # Errors
/// [`OpenCheckpointError`] when it is no readable model. One that the engine does not run is no error: see
/// [`Inspection::refusal`].
pub fn inspect(path: &Path, options: &LoadOptions) -> Result<Inspection, OpenCheckpointError> {
    let checkpoint = Checkpoint::open(path)?;
    let metadata = |key| checkpoint.gguf().and_then(|gguf| gguf.metadata(key));
    let tokenizer = checkpoint.tokenizer().ok();
    let digest = checkpoint.digest();
    // Only loading it tells whether all of it fits.
    let parts = Parts::load_cached(&checkpoint, options, None);
    let fingerprint =
        |parts: &Parts| hex::encode(Sha256::digest(fingerprint::description(digest, parts, KvKind::default())));
    Ok(Inspection {
        name: model_name(&checkpoint, path),
        architecture: checkpoint.architecture().map(shown),
        licence: metadata("general.license").and_then(Value::as_str).map(shown),
        bytes: checkpoint.bytes(),
        sha256: hex::encode(digest),
        gguf_version: checkpoint.gguf().map(Gguf::version),
        file_type: metadata("general.file_type").and_then(Value::as_u64).map(file_type),
        tensors: shares(&checkpoint),
        config: checkpoint.config().ok(),
        tokenizer: tokenizer.map(|tokenizer| TokenizerFacts {
            kind: tokenizer.kind(),
            pre: shown(tokenizer.pre()),
            tokens: tokenizer.vocab(),
            bos: tokenizer.bos(),
            eos: tokenizer.eos(),
            adds_bos: tokenizer.adds_bos(),
            byte_tokens_missing: tokenizer.byte_tokens_missing(),
        }),
        chat_template: checkpoint.has_chat_template(),
        chat_refused: parts.as_ref().map(chat_refused).unwrap_or_default(),
        fingerprint: parts.as_ref().ok().map(fingerprint),
        refusal: parts.err().map(|error| printable(&error.to_string(), REFUSAL_BYTES_MAX)),
    })
}

fn chat_refused(parts: &Parts) -> Vec<String> {
    match check_chat(parts.chat_template.as_ref(), &parts.tokenizer, parts.config.context_length) {
        Ok(refused) => refused.iter().map(|refused| printable(&refused.to_string(), REFUSAL_BYTES_MAX)).collect(),
        Err(ChatUnavailable::NoTemplate) => Vec::new(),
        Err(ChatUnavailable::Template(reason)) => vec![printable(&format!("everything: {reason}"), REFUSAL_BYTES_MAX)],
    }
}

fn shown(text: &str) -> String {
    printable(text, PRINTABLE_BYTES_MAX)
}

fn shares(checkpoint: &Checkpoint) -> Vec<TensorShare> {
    let mut by_kind: BTreeMap<TensorKind, TensorShare> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let none = || TensorShare { kind: tensor.kind.to_string(), tensors: 0, weights: 0, bytes: 0 };
        let share = by_kind.entry(tensor.kind).or_insert_with(none);
        share.tensors += 1;
        share.weights += tensor.shape.iter().map(|&dimension| dimension as u64).product::<u64>();
        share.bytes += tensor.bytes.len() as u64;
    }
    let mut shares: Vec<TensorShare> = by_kind.into_values().collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

/// Source: `llama_ftype` of llama.cpp.
fn file_type(number: u64) -> String {
    let name = match number {
        0 => "all F32",
        1 => "mostly F16",
        2 => "mostly Q4_0",
        3 => "mostly Q4_1",
        7 => "mostly Q8_0",
        8 => "mostly Q5_0",
        9 => "mostly Q5_1",
        10 => "mostly Q2_K",
        11..=13 => "mostly Q3_K",
        14 | 15 => "mostly Q4_K",
        16 | 17 => "mostly Q5_K",
        18 => "mostly Q6_K",
        32 => "mostly BF16",
        _ => return format!("number {number}"),
    };
    name.to_owned()
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "not stated".to_owned();
        let yes_no = |yes| if yes { "yes" } else { "no" };
        let mut line = |key: &str, value: &dyn fmt::Display| writeln!(f, "{key:<16}{value}");
        line("name", &self.name)?;
        line("architecture", &self.architecture.clone().unwrap_or_else(unknown))?;
        line("licence", &self.licence.clone().unwrap_or_else(unknown))?;
        let format = self.gguf_version.map_or("safetensors".to_owned(), |version| format!("GGUF version {version}"));
        line("file", &format!("{}, {format}", bytes(self.bytes)))?;
        line("sha256", &self.sha256)?;
        line("file type", &self.file_type.clone().unwrap_or_else(unknown))?;
        for share in &self.tensors {
            let TensorShare { kind, tensors, weights, bytes: size } = share;
            line("tensors", &format!("{kind:<8} {tensors:>5} tensors {weights:>14} weights  {}", bytes(*size)))?;
        }
        if let Some(config) = &self.config {
            line("context", &format!("{} tokens", config.context_length))?;
            line("layers", &format!("{} of width {}, feed-forward {}", config.layers, config.width, config.ff_width))?;
            let (heads, kv_heads, head_dim) = (config.heads, config.kv_heads, config.head_dim);
            line("heads", &format!("{heads}, {kv_heads} for keys and values, of {head_dim}"))?;
            line("vocabulary", &format!("{} tokens", config.vocab))?;
        }
        if let Some(tokenizer) = &self.tokenizer {
            let number = |token: Option<u32>| token.map_or("none".to_owned(), |token| token.to_string());
            let added = if tokenizer.adds_bos { " (added to prompts)" } else { "" };
            let (bos, eos) = (number(tokenizer.bos), number(tokenizer.eos));
            line(
                "tokenizer",
                &format!("{}, pre-tokenizer {}, BOS {bos}{added}, EOS {eos}", tokenizer.kind, tokenizer.pre),
            )?;
            line("unwritable", &format!("{} of 256 bytes", tokenizer.byte_tokens_missing))?;
        }
        line("chat template", &yes_no(self.chat_template))?;
        for refused in &self.chat_refused {
            line("chat refused", refused)?;
        }
        if let Some(fingerprint) = &self.fingerprint {
            line("fingerprint", fingerprint)?;
        }
        match &self.refusal {
            None => line("runs", &"yes"),
            Some(refusal) => line("runs", &format!("no: {refusal}")),
        }
    }
}

/// `98.4 MB (98362432 bytes)`.
fn bytes(count: u64) -> String {
    let (unit, divisor) = match count {
        0..1_000_000 => ("kB", 1e3),
        1_000_000..1_000_000_000 => ("MB", 1e6),
        _ => ("GB", 1e9),
    };
    format!("{:.1} {unit} ({count} bytes)", count as f64 / divisor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::tests::{File, scalar};
    use crate::test_model;

    #[test]
    fn facts_of_the_test_model() {
        let inspection = inspect(&test_model::path(), &LoadOptions::new(2)).unwrap();
        assert_eq!(inspection.refusal, None);
        assert_eq!(inspection.name, "Smollm2-135M-8k-Lc100K-Mix1-Ep2");
        assert_eq!(inspection.sha256, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
        let share = |kind: &str, tensors, weights, bytes| TensorShare { kind: kind.into(), tensors, weights, bytes };
        assert_eq!(
            inspection.tensors,
            [
                share("Q4_1", 210, 106_168_320, 66_355_200),
                share("Q8_0", 1, 28_311_552, 30_081_024),
                share("F32", 61, 35_136, 140_544),
            ]
        );
        let shown = inspection.to_string();
        for wanted in
            ["apache-2.0", "mostly Q4_1", "8192 tokens", "9, 3 for keys and values, of 64", "runs            yes"]
        {
            assert!(shown.contains(wanted), "{wanted:?} in\n{shown}");
        }
        let json = serde_json::to_value(&inspection).unwrap();
        assert_eq!((&json["config"]["layers"], &json["chat_template"]), (&30.into(), &true.into()));
    }

    #[test]
    fn a_file_that_does_not_run_says_why_and_cannot_write_to_the_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.gguf");
        let bytes = File::default().key("general.architecture", scalar("rwkv\u{1b}[31m")).bytes();
        std::fs::write(&path, bytes).unwrap();
        let inspection = inspect(&path, &LoadOptions::new(1)).unwrap();
        let refusal = inspection.refusal.as_deref().unwrap();
        assert!(refusal.contains("architecture `rwkv\u{fffd}[31m` is not supported"), "{refusal}");
        assert!(inspection.config.is_none() && inspection.tokenizer.is_none() && !inspection.chat_template);
        assert!(!inspection.to_string().contains('\u{1b}'));
    }

    #[test]
    fn long_texts_of_a_file_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.gguf");
        let long = "L".repeat(60_000);
        let keys = ["general.architecture", "general.license", "tokenizer.ggml.model", "tokenizer.chat_template"];
        let file = keys.into_iter().fold(File::default(), |file, key| file.key(key, scalar(&long)));
        std::fs::write(&path, file.bytes()).unwrap();
        let inspection = inspect(&path, &LoadOptions::new(1)).unwrap();
        let (shown, json) = (inspection.to_string(), serde_json::to_string(&inspection).unwrap());
        assert!(shown.len() < 3_000 && json.len() < 3_000, "{} and {} bytes", shown.len(), json.len());
    }
}
