//! A model on disk, whichever format it has: one GGUF file, or a folder in Hugging Face's layout.
//!
//! Tensors have the names and the order of dimensions that GGUF files give them; how the rows of Q and K are ordered
//! and what is added to norms differs between the formats and stands in the configuration.

mod hugging_face;
mod safetensors;

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::chat_template::{ChatTemplate, CompileChat, LoadTemplateError};
use crate::config::{ConfigError, Keys, ModelConfig};
use crate::gguf::{Gguf, GgufError, TensorView, Value};
use crate::tokenizer::{LoadTokenizerError, Tokenizer};
use crate::weights_cache::hint;
use hugging_face::HuggingFace;

pub use hugging_face::OpenFolderError;
pub use safetensors::SafetensorsError;

/// Why a path is no checkpoint that can be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenCheckpointError {
    /// Not a readable GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Not a readable folder of a model.
    #[error(transparent)]
    Folder(#[from] OpenFolderError),
}

/// An opened checkpoint: its directory is read and checked, the tensors are still on disk.
#[derive(Debug)]
pub struct Checkpoint {
    content: Content,
}

#[derive(Debug)]
enum Content {
    Gguf(Gguf),
    HuggingFace(Box<HuggingFace>),
}

impl Checkpoint {
    /// Opens a GGUF file, or a folder with `config.json`, `tokenizer.json` and safetensors.
    ///
    /// # Errors
    /// [`OpenCheckpointError`], naming the first thing that is wrong.
    pub fn open(path: &Path) -> Result<Self, OpenCheckpointError> {
        let content = match path.is_dir() {
            true => Content::HuggingFace(Box::new(HuggingFace::open(path)?)),
            false => Content::Gguf(Gguf::open(path)?),
        };
        Ok(Self { content })
    }

    /// The GGUF file, if it is one.
    #[must_use]
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.content {
            Content::Gguf(gguf) => Some(gguf),
            Content::HuggingFace(_) => None,
        }
    }

    /// What the model is made of.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn config(&self) -> Result<ModelConfig, ConfigError> {
        match &self.content {
            Content::Gguf(gguf) => ModelConfig::from_gguf(gguf),
            Content::HuggingFace(folder) => folder.config(),
        }
    }

    /// Text to tokens and back.
    ///
    /// # Errors
    /// [`LoadTokenizerError`], naming the part or the token.
    pub fn tokenizer(&self) -> Result<Tokenizer, LoadTokenizerError> {
        match &self.content {
            Content::Gguf(gguf) => Tokenizer::from_gguf(gguf),
            Content::HuggingFace(folder) => folder.tokenizer(),
        }
    }

    /// Conversations to tokens, compiled by `compiler`; `None` when the checkpoint brings no template, or an empty one.
    ///
    /// # Errors
    /// [`ReadTemplateError`].
    pub fn chat_template(&self, compiler: &dyn CompileChat) -> Result<Option<ChatTemplate>, ReadTemplateError> {
        let source = self.chat_template_source()?;
        Ok(source.map(|source| ChatTemplate::new(&source, compiler)).transpose()?)
    }

    /// Whether the checkpoint brings a chat template that is not empty.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.chat_template_source().is_ok_and(|source| source.is_some())
    }

    fn chat_template_source(&self) -> Result<Option<String>, ConfigError> {
        let source = match &self.content {
            Content::Gguf(gguf) if gguf.metadata(TEMPLATE_KEY).is_none() => None,
            Content::Gguf(gguf) => Some(Keys { gguf }.text(TEMPLATE_KEY)?.to_owned()),
            Content::HuggingFace(folder) => folder.chat_template()?,
        };
        Ok(source.filter(|source| !source.trim().is_empty()))
    }

    /// A tensor by its name in GGUF files, such as `blk.0.attn_q.weight`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        match &self.content {
            Content::Gguf(gguf) => gguf.tensor(name),
            Content::HuggingFace(folder) => folder.tensor(name),
        }
    }

    /// A tensor that has no name in GGUF files, by the name that its own file gives it. No engine computes with it.
    pub(crate) fn unknown_tensor(&self) -> Option<&str> {
        match &self.content {
            Content::Gguf(_) => None,
            Content::HuggingFace(folder) => folder.unknown_tensor(),
        }
    }

    /// All tensors, those without a name in GGUF files, too.
    pub(crate) fn tensors(&self) -> Box<dyn Iterator<Item = TensorView<'_>> + '_> {
        match &self.content {
            Content::Gguf(gguf) => Box::new(gguf.tensor_names().filter_map(|name| gguf.tensor(name))),
            Content::HuggingFace(folder) => Box::new(folder.tensors()),
        }
    }

    /// The names of all tensors that have one in GGUF files.
    pub fn tensor_names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match &self.content {
            Content::Gguf(gguf) => Box::new(gguf.tensor_names()),
            Content::HuggingFace(folder) => Box::new(folder.tensor_names()),
        }
    }

    /// SHA-256 of the file. Of a folder: of the lines `sha256sum` prints for the files that are used, sorted by name.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        match &self.content {
            Content::Gguf(gguf) => sha256(gguf.file_bytes(), |part| gguf.release(part)),
            Content::HuggingFace(folder) => folder.digest(),
        }
    }

    /// A rough identity: see [`hint`]. Of a folder, that of the identities of its files.
    pub(crate) fn hint(&self) -> [u8; 32] {
        match &self.content {
            Content::Gguf(gguf) => hint(gguf.file_bytes()),
            Content::HuggingFace(folder) => {
                hint(folder.contents().into_values().map(hint).collect::<Vec<_>>().as_flattened())
            }
        }
    }

    /// Gives the memory of a part of a tensor's bytes back until it is read again.
    pub(crate) fn release(&self, part: &[u8]) {
        match &self.content {
            Content::Gguf(gguf) => gguf.release(part),
            Content::HuggingFace(folder) => folder.release(part),
        }
    }

    /// Size of all files that are used, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.content {
            Content::Gguf(gguf) => gguf.file_bytes().len() as u64,
            Content::HuggingFace(folder) => folder.bytes(),
        }
    }

    /// The name that a GGUF file gives itself, or under which a folder lies in a hub's cache.
    #[must_use]
    pub fn own_name(&self) -> Option<&str> {
        match &self.content {
            Content::Gguf(gguf) => gguf.metadata("general.name").and_then(Value::as_str),
            Content::HuggingFace(folder) => folder.own_name(),
        }
    }

    /// Its architecture, as its file names it.
    #[must_use]
    pub fn architecture(&self) -> Option<&str> {
        match &self.content {
            Content::Gguf(gguf) => gguf.metadata("general.architecture").and_then(Value::as_str),
            Content::HuggingFace(folder) => folder.architecture(),
        }
    }
}

/// Of a file, this much is in memory at a time while it is digested.
const DIGEST_BYTES: usize = 1 << 20;

fn sha256(bytes: &[u8], release: impl Fn(&[u8])) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in bytes.chunks(DIGEST_BYTES) {
        digest.update(part);
        release(part);
    }
    digest.finalize().into()
}

const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Why a checkpoint's chat template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadTemplateError {
    /// It is no text.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It does not compile.
    #[error(transparent)]
    Template(#[from] LoadTemplateError),
}

#[cfg(test)]
mod tests;
