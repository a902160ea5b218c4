//! A folder as Hugging Face's libraries write it: configuration, tokenizer and safetensors, in one file or several.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use engine_kernels::MappedFile;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::safetensors::{self, Place, SafetensorsError};
use crate::config::{ConfigError, ModelConfig};
use crate::gguf::TensorView;
use crate::tokenizer::{LoadTokenizerError, Settings, Tokenizer};

/// Most files that the tensors are divided among; a 405-billion-parameter model has 191.
const SHARDS_MAX: usize = 1_024;
const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const ONE_FILE: &str = "model.safetensors";
const EOS_NUMBERS: &str = "eos_token_id";
const INDEX: &str = "model.safetensors.index.json";
/// Largest of each, bytes. Gemma's tokenizer has 33 MB, an index under a megabyte, the others some kilobytes.
const SMALL_FILES: [(&str, u64); 6] = [
    (CONFIG, 1 << 20),
    (GENERATION, 1 << 20),
    (TOKENIZER, 128 << 20),
    (TOKENIZER_CONFIG, 8 << 20),
    (TEMPLATE, 1 << 20),
    (INDEX, 16 << 20),
];

/// Why a folder is not a model that can be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenFolderError {
    /// A file cannot be read.
    #[error("`{file}` cannot be read: {source}")]
    Io {
        /// Its name.
        file: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file that every model has.
    #[error("the folder has no `{0}`")]
    Missing(&'static str),
    /// Neither `model.safetensors` nor an index of several files.
    #[error("the folder has no `{ONE_FILE}` and no `{INDEX}`: other formats of weights are not supported")]
    NoWeights,
    /// A file is larger than any real one.
    #[error("`{file}` has more than the {bytes_max} bytes accepted")]
    TooLarge {
        /// Its name.
        file: &'static str,
        /// The bound.
        bytes_max: u64,
    },
    /// A file is no JSON, or has another structure.
    #[error("`{file}` is not valid: {source}")]
    Json {
        /// Its name.
        file: &'static str,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The index names what is no file of this folder, or too many files.
    #[error("`{INDEX}` names `{0}`, which is no name of a safetensors file in this folder")]
    ShardName(String),
    /// Too many files.
    #[error("`{INDEX}` names {0} files, at most {SHARDS_MAX} are accepted")]
    ShardCount(usize),
    /// The index and the files it names do not have the same tensors.
    #[error("tensor `{tensor}` is not where `{INDEX}` says, or in no place that it names")]
    Index {
        /// The tensor.
        tensor: String,
    },
    /// A file of weights is damaged.
    #[error("`{file}`: {source}")]
    Safetensors {
        /// Its name.
        file: String,
        /// What is wrong.
        source: SafetensorsError,
    },
}

/// An opened folder.
#[derive(Debug)]
pub(super) struct HuggingFace {
    /// Out of the path, where it lies in a hub's cache.
    name: Option<String>,
    config: Value,
    /// `generation_config.json` and `tokenizer_config.json`, null where there is none.
    generation: Value,
    tokenizer_config: Value,
    /// The small files that there are, by name.
    files: BTreeMap<&'static str, Vec<u8>>,
    shards: BTreeMap<String, MappedFile>,
    /// By their names in GGUF files.
    tensors: HashMap<String, (String, Place)>,
    /// Those that have no name there, by their own: whatever it is, nobody finds them in `tensors`.
    unknown: BTreeMap<String, (String, Place)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl HuggingFace {
    pub(super) fn open(folder: &Path) -> Result<Self, OpenFolderError> {
        let mut files = BTreeMap::new();
        for (name, bytes_max) in SMALL_FILES {
            if let Some(bytes) = read_small(folder, name, bytes_max)? {
                files.insert(name, bytes);
            }
        }
        let config = json(&files, CONFIG)?.ok_or(OpenFolderError::Missing(CONFIG))?;
        let object = |file| Ok::<_, OpenFolderError>(json(&files, file)?.map_or(Value::Null, Value::Object));
        let (generation, tokenizer_config) = (object(GENERATION)?, object(TOKENIZER_CONFIG)?);
        if !files.contains_key(TOKENIZER) {
            return Err(OpenFolderError::Missing(TOKENIZER));
        }
        // An index beside one file belongs to something else.
        let index: Option<Index> = match folder.join(ONE_FILE).exists() {
            true => {
                files.remove(INDEX);
                None
            }
            false => Some(json(&files, INDEX)?.ok_or(OpenFolderError::NoWeights)?),
        };
        let name = cached_name(folder);
        let (shards, tensors, unknown) = (BTreeMap::new(), HashMap::new(), BTreeMap::new());
        let unmapped = Self { name, config, generation, tokenizer_config, files, shards, tensors, unknown };
        let mut folder = unmapped.map(folder, index)?;
        if folder.config().is_ok_and(|config| config.is_tied) {
            // Some files have the matrix of the embeddings twice.
            folder.tensors.remove("output.weight");
        }
        Ok(folder)
    }

    fn map(mut self, folder: &Path, index: Option<Index>) -> Result<Self, OpenFolderError> {
        let names = match &index {
            None => BTreeSet::from([ONE_FILE]),
            Some(index) => index.weight_map.values().map(String::as_str).collect(),
        };
        if names.len() > SHARDS_MAX {
            return Err(OpenFolderError::ShardCount(names.len()));
        }
        let renames_post_norm = self.config["model_type"].as_str().is_some_and(|kind| kind.starts_with("gemma"));
        let mut found = 0;
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let is_shard = |name: &str| is_plain(name) && !name.starts_with('.') && name.ends_with(".safetensors");
        if let Some(name) = names.iter().find(|name| !is_shard(name)) {
            return Err(OpenFolderError::ShardName((*name).to_owned()));
        }
        for name in names {
            let file = MappedFile::open(&folder.join(name))
                .map_err(|source| OpenFolderError::Io { file: name.to_owned(), source })?;
            let places = safetensors::read(file.bytes())
                .map_err(|source| OpenFolderError::Safetensors { file: name.to_owned(), source })?;
            for (tensor, place) in places {
                let is_expected =
                    index.as_ref().is_none_or(|index| index.weight_map.get(&tensor).is_some_and(|shard| shard == name));
                if !is_expected {
                    return Err(OpenFolderError::Index { tensor });
                }
                found += 1;
                // Old files hold the frequencies of the rotation, which follow from the configuration.
                if tensor.ends_with(".rotary_emb.inv_freq") {
                    continue;
                }
                let place = (name.to_owned(), place);
                let before = match gguf_name(&tensor, renames_post_norm) {
                    Some(ours) => self.tensors.insert(ours, place),
                    None => self.unknown.insert(tensor.clone(), place),
                };
                if before.is_some() {
                    return Err(OpenFolderError::Index { tensor });
                }
            }
            self.shards.insert(name.to_owned(), file);
        }
        if let Some(Index { weight_map }) = index
            && weight_map.len() != found
        {
            let is_missing = |(tensor, _): &(String, String)| {
                let is_there = match gguf_name(tensor, renames_post_norm) {
                    Some(ours) => self.tensors.contains_key(&ours),
                    None => self.unknown.contains_key(tensor) || tensor.ends_with(".inv_freq"),
                };
                !is_there
            };
            let missing = weight_map.into_iter().find(is_missing);
            return Err(OpenFolderError::Index { tensor: missing.map_or_else(String::new, |(tensor, _)| tensor) });
        }
        Ok(self)
    }

    pub(super) fn config(&self) -> Result<ModelConfig, ConfigError> {
        ModelConfig::from_hugging_face(&self.config, self.tensors.contains_key("output.weight"))
    }

    pub(super) fn own_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(super) fn architecture(&self) -> Option<&str> {
        self.config["model_type"].as_str()
    }

    pub(super) fn tokenizer(&self) -> Result<Tokenizer, LoadTokenizerError> {
        let of = Member { file: TOKENIZER_CONFIG, object: &self.tokenizer_config };
        let mut ends = Member { file: GENERATION, object: &self.generation }.token_numbers(EOS_NUMBERS)?;
        ends.extend(Member { file: CONFIG, object: &self.config }.token_numbers(EOS_NUMBERS)?);
        let settings = Settings {
            vocab: self.config()?.vocab,
            bos: of.token_text("bos_token")?,
            eos: of.token_text("eos_token")?,
            adds_bos: of.boolean("add_bos_token")?,
            ends,
        };
        Tokenizer::from_json(self.files.get(TOKENIZER).map_or(&[], Vec::as_slice), &settings)
    }

    /// The template of its own file, or that of `tokenizer_config.json`: one, or the one called `default`.
    pub(super) fn chat_template(&self) -> Result<Option<String>, ConfigError> {
        let not_text = |key: &str| ConfigError::KeyKind { key: key.to_owned(), wanted: "text" };
        if let Some(bytes) = self.files.get(TEMPLATE) {
            let text = std::str::from_utf8(bytes).map_err(|_| not_text(TEMPLATE))?;
            return Ok(Some(text.to_owned()));
        }
        match &self.tokenizer_config["chat_template"] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            Value::Array(list) => {
                let Some(default) = list.iter().find(|template| template["name"] == "default") else { return Ok(None) };
                let text = default["template"].as_str().ok_or_else(|| not_text("chat_template"))?;
                Ok(Some(text.to_owned()))
            }
            _ => Err(not_text("chat_template")),
        }
    }

    pub(super) fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.view(self.tensors.get(name)?)
    }

    fn view<'a>(&'a self, (shard, place): &'a (String, Place)) -> Option<TensorView<'a>> {
        let bytes = self.shards.get(shard)?.bytes().get(place.bytes.clone())?;
        Some(TensorView { shape: &place.shape, kind: place.kind, bytes })
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.tensors.values().chain(self.unknown.values()).filter_map(|place| self.view(place))
    }

    pub(super) fn unknown_tensor(&self) -> Option<&str> {
        self.unknown.keys().next().map(String::as_str)
    }

    pub(super) fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Gives the memory of a part of a tensor's bytes back; every file leaves what is not its own alone.
    pub(super) fn release(&self, part: &[u8]) {
        self.shards.values().for_each(|file| file.release(part));
    }

    pub(super) fn contents(&self) -> BTreeMap<&str, &[u8]> {
        let small = self.files.iter().map(|(&name, bytes)| (name, bytes.as_slice()));
        small.chain(self.shards.iter().map(|(name, file)| (name.as_str(), file.bytes()))).collect()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.contents().values().map(|bytes| bytes.len() as u64).sum()
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        let mut lines = String::new();
        for (name, bytes) in self.contents() {
            // INVARIANT: writing to a string does not fail.
            let _ = writeln!(lines, "{}  {name}", hex::encode(super::sha256(bytes, |part| self.release(part))));
        }
        Sha256::digest(lines).into()
    }
}

/// A file's object, whose keys are named with it when something is wrong.
struct Member<'a> {
    file: &'static str,
    object: &'a Value,
}

impl Member<'_> {
    fn kind(&self, key: &str, wanted: &'static str) -> ConfigError {
        ConfigError::KeyKind { key: format!("{}: {key}", self.file), wanted }
    }

    /// A token's number, several, or none: absent or null.
    fn token_numbers(&self, key: &str) -> Result<Vec<u64>, ConfigError> {
        let numbers = match &self.object[key] {
            Value::Null => Some(Vec::new()),
            Value::Array(list) => list.iter().map(Value::as_u64).collect(),
            number => number.as_u64().map(|number| vec![number]),
        };
        numbers.ok_or_else(|| self.kind(key, "a token's number or a list of such numbers"))
    }

    /// A token's text, as it is or with its properties.
    fn token_text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        let token = &self.object[key];
        match token.as_str().or_else(|| token["content"].as_str()) {
            None if !token.is_null() => Err(self.kind(key, "a token's text")),
            text => Ok(text.map(str::to_owned)),
        }
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        match &self.object[key] {
            Value::Null => Ok(None),
            Value::Bool(value) => Ok(Some(*value)),
            _ => Err(self.kind(key, "true or false")),
        }
    }
}

/// The repository's name of `models--OWNER--NAME/snapshots/COMMIT`.
fn cached_name(folder: &Path) -> Option<String> {
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let repository = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    Some(repository.rsplit("--").next()?.to_owned())
}

fn json<T: serde::de::DeserializeOwned>(
    files: &BTreeMap<&'static str, Vec<u8>>,
    file: &'static str,
) -> Result<Option<T>, OpenFolderError> {
    let parse = |bytes: &Vec<u8>| serde_json::from_slice(bytes);
    files.get(file).map(parse).transpose().map_err(|source| OpenFolderError::Json { file, source })
}

fn read_small(folder: &Path, file: &'static str, bytes_max: u64) -> Result<Option<Vec<u8>>, OpenFolderError> {
    let path = folder.join(file);
    let failed = |source| OpenFolderError::Io { file: file.to_owned(), source };
    // Asked before opening: opening a named pipe for reading would wait for its writer.
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.is_file() => {
            return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file")));
        }
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(OpenFolderError::TooLarge { file, bytes_max });
    }
    Ok(Some(bytes))
}

/// A tensor's name in GGUF files; `None` for one that has none. Gemma has one norm more than the others, and their
/// second norm's name means another one there.
fn gguf_name(name: &str, renames_post_norm: bool) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".to_owned()),
        "model.norm.weight" => return Some("output_norm.weight".to_owned()),
        "lm_head.weight" => return Some("output.weight".to_owned()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    // A number has one form: `00` is no layer's.
    let layer = layer.parse::<usize>().ok().filter(|number| number.to_string() == layer)?;
    let (part, kind) = part.rsplit_once('.')?;
    let part = match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "post_attention_layernorm" if renames_post_norm => "post_attention_norm",
        "pre_feedforward_layernorm" if renames_post_norm => "ffn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.{kind}"))
}
