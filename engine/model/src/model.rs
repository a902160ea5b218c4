//! A loaded model: its configuration, weights, tokenizer and chat template, immutable from then on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use engine_kernels::KvKind;
use sha2::{Digest, Sha256};

use crate::chat_template::{ChatMessage, ChatTemplate, ChatTemplateError, CompileChat, InProcess};
use crate::checkpoint::{Checkpoint, OpenCheckpointError, ReadTemplateError};
use crate::config::{ConfigError, ModelConfig};
use crate::fingerprint;
use crate::forward::gives_numbers;
use crate::numerics;
use crate::packed_weights::{Origin, Packer};
use crate::tokenizer::{LoadTokenizerError, Tokenizer};
use crate::weights::{EMBEDDING, LoadWeightsError, Weights};
use crate::weights_cache::{CacheLookup, UnsavedWeights};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadModelError {
    /// Not a readable checkpoint.
    #[error(transparent)]
    Open(#[from] OpenCheckpointError),
    /// Not a model that the engine runs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No tokenizer that can be used.
    #[error(transparent)]
    Tokenizer(#[from] LoadTokenizerError),
    /// A chat template that cannot be compiled.
    #[error(transparent)]
    Template(#[from] ReadTemplateError),
    /// The tokenizer gives tokens that the model has no embedding for, or the other way round.
    #[error("the tokenizer has {tokens} tokens and the embedding {rows} rows: they are not of one model")]
    Vocabulary {
        /// Of the tokenizer.
        tokens: usize,
        /// Of the embedding.
        rows: usize,
    },
    /// Tensors are missing or do not fit.
    #[error(transparent)]
    Weights(#[from] LoadWeightsError),
    /// There would be no room for an answer.
    #[error("the model's context of {context_length} tokens has no room for a prompt and an answer")]
    Context {
        /// Of the model.
        context_length: usize,
    },
    /// Every request would end with an error.
    #[error("what the model computes for its first two tokens is not a number: its weights cannot be used")]
    NotANumber,
}

/// Why a model that runs takes no conversations. Plain completions work.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ChatUnavailable {
    /// No template, or an empty one.
    #[error("the model brings no chat template")]
    NoTemplate,
    /// A template that compiles and takes no conversation at all: why not the simplest one.
    #[error("the model's chat template does not take the simplest conversation: {0}")]
    Template(ChatTemplateError),
}

/// A kind of conversation that a model's template does not take, while it takes others.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{kind}: {reason}")]
pub struct RefusedConversation {
    /// In words, such as `a system message and a user's`.
    pub kind: &'static str,
    /// Why.
    pub reason: ChatTemplateError,
}

/// A model, ready to run. Shared between threads behind an `Arc`.
#[derive(Debug)]
pub struct Model {
    name: String,
    digest: [u8; 32],
    parts: Parts,
}

/// How a model is to be loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Threads that repack or read the weights.
    pub threads: usize,
    /// The folder of repacked weights; none are kept when `None`.
    pub weights_cache: Option<PathBuf>,
    /// Where the chat template is compiled and rendered.
    pub templates: Arc<dyn CompileChat>,
}

impl LoadOptions {
    /// Without a cache, and with a chat template that runs in this process: see [`InProcess`].
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { threads, weights_cache: None, templates: Arc::new(InProcess) }
    }
}

/// A loaded model, and what a cache had to do with it.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub model: Model,
    /// Where its weights come from.
    pub cache: CacheUse,
}

/// What a cache of repacked weights had to do with a model.
#[derive(Debug)]
pub enum CacheUse {
    /// None was asked for.
    Off,
    /// The weights are from it.
    Restored,
    /// The weights were repacked, and can be saved for the next start.
    Unsaved(Box<UnsavedWeights>),
}

/// What [`Model::load`] makes of a file's content, and what `model inspect` tries.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: ModelConfig,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat_template: Option<ChatTemplate>,
    pub(crate) weights: Weights,
}

impl Model {
    /// Reads, checks and repacks a GGUF file or a folder of safetensors; `threads` is for the repacking. The digest is made
    /// meanwhile. The chat template runs in this process, which a hostile one can end: see [`InProcess`].
    ///
    /// # Errors
    /// [`LoadModelError`], naming what is wrong with the file.
    pub fn load(path: &Path, threads: usize) -> Result<Self, LoadModelError> {
        Ok(Self::load_with(path, &LoadOptions::new(threads))?.model)
    }

    /// As [`Model::load`], with the repacked weights from a cache when it has them.
    ///
    /// # Errors
    /// [`LoadModelError`], naming what is wrong with the file. Nothing that is wrong with the cache is an error.
    pub fn load_with(path: &Path, options: &LoadOptions) -> Result<Loaded, LoadModelError> {
        let checkpoint = Checkpoint::open(path)?;
        let folder = options.weights_cache.as_deref();
        let mut lookup = folder.map(|folder| CacheLookup { folder, hint: checkpoint.hint(), model: None });
        let (digest, parts) = thread::scope(|scope| {
            let digest = scope.spawn(|| checkpoint.digest());
            let parts = Parts::load_cached(&checkpoint, options, lookup.as_ref());
            (join(digest), parts)
        });
        let mut parts = parts?;
        // The weights were restored on the word of the cache that they are this file's. Another may be.
        if matches!(parts.weights.packed.origin, Origin::Cache(model) if model != digest) {
            drop(parts);
            lookup.iter_mut().for_each(|lookup| lookup.model = Some(digest));
            parts = Parts::load_cached(&checkpoint, options, lookup.as_ref())?;
        }
        let cache = match (&lookup, &mut parts.weights.packed.origin) {
            (None, _) => CacheUse::Off,
            (Some(_), Origin::Cache(_)) => CacheUse::Restored,
            (Some(CacheLookup { folder, hint, .. }), Origin::Repacked(reason)) => {
                let reason = reason.take();
                CacheUse::Unsaved(Box::new(UnsavedWeights::new(folder, digest, *hint, &parts.weights.packed, reason)))
            }
        };
        Ok(Loaded { model: Self { name: model_name(&checkpoint, path), digest, parts }, cache })
    }

    /// The model's dimensions.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.parts.config
    }

    /// `general.name`, or the file's stem, with what a model name may not hold replaced by `-`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of the file.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// SHA-256 of what decides the bits of the logits beside the file: with one file and one profile, one sequence of
    /// tokens has the same logits bit for bit, on whichever machine of one system, family of kernels and number of
    /// threads. A build whose kernels round or sum otherwise has another profile.
    #[must_use]
    pub fn numerics_profile(&self, kv: KvKind) -> [u8; 32] {
        numerics::profile(&self.parts.weights, kv)
    }

    /// SHA-256 of everything that decides which tokens a request gets: file, numerics profile, weights, tokenizer,
    /// chat template.
    #[must_use]
    pub fn fingerprint(&self, kv: KvKind) -> [u8; 32] {
        Sha256::digest(self.fingerprint_text(kv)).into()
    }

    /// What [`Model::fingerprint`] is the digest of: a line for each part.
    #[must_use]
    pub fn fingerprint_text(&self, kv: KvKind) -> String {
        fingerprint::description(self.digest, &self.parts, kv)
    }

    /// BLAKE3 of the weights as the kernels read them: the same whether they were repacked from the file or restored from
    /// a cache. Made from the bytes in memory, so a cache that somebody changed shows here.
    #[must_use]
    pub fn weights_digest(&self) -> [u8; 32] {
        self.parts.weights.digest
    }

    /// Text to tokens and back.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.parts.tokenizer
    }

    /// Conversations to tokens; `None` when the file brings no template.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.parts.chat_template.as_ref()
    }

    /// Whether conversations can be had, found out with ordinary ones of several kinds: to be said at the start, and not by
    /// the hundredth request. Blocks. The kinds that the template does not take are returned.
    ///
    /// # Errors
    /// [`ChatUnavailable`] when it takes none.
    pub fn check_chat(&self) -> Result<Vec<RefusedConversation>, ChatUnavailable> {
        check_chat(self.chat_template(), self.tokenizer(), self.config().context_length)
    }

    /// Which kernels compute with the weights, such as `avx512-vnni`, `avx2` or `scalar`.
    #[must_use]
    pub fn kernels(&self) -> &'static str {
        self.parts.weights.kernels()
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.parts.weights
    }
}

/// Ordinary conversations by their roles, the simplest first. One is longer than what templates that look at the first or
/// the last turns can tell apart.
const CONVERSATIONS: [(&str, &[&str]); 4] = [
    ("one message", &["user"]),
    ("a system message and a user's", &["system", "user"]),
    ("a second question", &["user", "assistant", "user"]),
    ("nine turns", &["user", "assistant", "user", "assistant", "user", "assistant", "user", "assistant", "user"]),
];

pub(crate) fn check_chat(
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
    tokens_max: usize,
) -> Result<Vec<RefusedConversation>, ChatUnavailable> {
    let template = template.ok_or(ChatUnavailable::NoTemplate)?;
    let mut refused = Vec::new();
    for (kind, roles) in CONVERSATIONS {
        let message = |role: &&str| ChatMessage { role: (*role).to_owned(), content: "Hello".to_owned() };
        let messages: Vec<ChatMessage> = roles.iter().map(message).collect();
        if let Err(reason) = template.tokens(tokenizer, &messages, tokens_max) {
            refused.push(RefusedConversation { kind, reason });
        }
    }
    if refused.len() == CONVERSATIONS.len() {
        return Err(ChatUnavailable::Template(refused.swap_remove(0).reason));
    }
    Ok(refused)
}

impl Parts {
    pub(crate) fn load_cached(
        checkpoint: &Checkpoint,
        LoadOptions { threads, templates, .. }: &LoadOptions,
        cache: Option<&CacheLookup<'_>>,
    ) -> Result<Self, LoadModelError> {
        let config = checkpoint.config()?;
        if let Some([_, rows]) = checkpoint.tensor(EMBEDDING).map(|tensor| tensor.shape)
            && *rows != config.vocab
        {
            return Err(LoadModelError::Vocabulary { tokens: config.vocab, rows: *rows });
        }
        let context_length = config.context_length;
        if context_length < CONTEXT_MIN {
            return Err(LoadModelError::Context { context_length });
        }
        let chat_template = checkpoint.chat_template(templates.as_ref())?;
        let (tokenizer, weights) = thread::scope(|scope| {
            let tokenizer = scope.spawn(|| checkpoint.tokenizer());
            let packer = Packer { threads: *threads, release: &|part| checkpoint.release(part), cache };
            let weights = Weights::load_with(checkpoint, &config, &packer);
            (join(tokenizer), weights)
        });
        let (tokenizer, weights) = (tokenizer?, weights?);
        if !gives_numbers(&config, &weights, *threads) {
            return Err(LoadModelError::NotANumber);
        }
        Ok(Self { config, tokenizer, chat_template, weights })
    }
}

/// A panic in the thread is a bug of ours and goes on in the caller.
fn join<T>(handle: thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A token of a prompt and one of an answer.
const CONTEXT_MIN: usize = 2;
/// Longest name, bytes.
const NAME_BYTES_MAX: usize = 128;

pub(crate) fn model_name(checkpoint: &Checkpoint, path: &Path) -> String {
    let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let stem = stem.map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let given = checkpoint.own_name().unwrap_or_default();
    [given, stem.as_str()].into_iter().map(fit_name).find(|name| !name.is_empty()).unwrap_or_else(|| "model".to_owned())
}

/// `Smollm2 135M (8k)` becomes `Smollm2-135M-8k`.
fn fit_name(text: &str) -> String {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "-_.:/".contains(c)));
    let mut name = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
    name.truncate(NAME_BYTES_MAX);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat_template::RenderError;
    use crate::gguf::Gguf;
    use crate::test_model;

    #[test]
    fn names_hold_only_what_a_model_name_may_hold() {
        assert_eq!(fit_name("Smollm2 135M (8k) \u{1f600} v1.0"), "Smollm2-135M-8k-v1.0");
        assert_eq!(fit_name("a\r\nb\u{0}c\"d"), "a-b-c-d");
        assert_eq!(fit_name(" \u{e9} "), "");
        assert_eq!(fit_name(&"x".repeat(1_000)).len(), NAME_BYTES_MAX);
    }

    #[test]
    fn files_that_are_no_models_are_refused_for_their_own_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        let error = |path: &Path| Model::load(path, 1).unwrap_err().to_string();
        assert!(error(&path).contains("No such file"), "{}", error(&path));
        std::fs::write(&path, b"PK\x03\x04 not a model").unwrap();
        assert!(error(&path).contains("does not begin with `GGUF`"), "{}", error(&path));
        std::fs::write(&path, b"GG").unwrap();
        assert!(error(&path).contains("does not begin with `GGUF`"), "{}", error(&path));
        assert!(error(folder.path()).contains("the folder has no `config.json`"), "{}", error(folder.path()));
    }

    #[test]
    fn a_vocabulary_of_another_model_is_named() {
        use crate::gguf::tests::{File, float, number, scalar, strings};
        let file = File::default()
            .key("general.architecture", scalar("llama"))
            .key("llama.block_count", number(1))
            .key("llama.embedding_length", number(32))
            .key("llama.attention.head_count", number(2))
            .key("llama.feed_forward_length", number(32))
            .key("llama.context_length", number(128))
            .key("llama.attention.layer_norm_rms_epsilon", float(1e-5))
            .key("tokenizer.ggml.model", scalar("gpt2"))
            .key("tokenizer.ggml.pre", scalar("gpt-2"))
            .key("tokenizer.ggml.tokens", strings(&["a", "b", "c"]))
            .key("tokenizer.ggml.merges", strings(&[]))
            .tensor("token_embd.weight", &[32, 4], 0, 0)
            .data(vec![0; 32 * 4 * 4]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.gguf");
        std::fs::write(&path, file.bytes()).unwrap();
        let error = Model::load(&path, 1).unwrap_err().to_string();
        assert_eq!(error, "the tokenizer has 3 tokens and the embedding 4 rows: they are not of one model");
    }

    #[test]
    fn whether_a_model_takes_conversations_is_known_at_the_start() {
        let tokenizer = Tokenizer::from_gguf(&Gguf::open(&test_model::path()).unwrap()).unwrap();
        let check = |source| check_chat(Some(&ChatTemplate::new(source, &InProcess).unwrap()), &tokenizer, 8_192);
        assert_eq!(check_chat(None, &tokenizer, 8_192), Err(ChatUnavailable::NoTemplate));
        assert_eq!(check("{{ messages[0].content }}"), Ok(vec![]));
        let error = check("{{ raise_exception('only tools') }}").unwrap_err().to_string();
        let simplest = "the model's chat template does not take the simplest conversation: ";
        assert_eq!(error, format!("{simplest}the model's chat template refuses the conversation: only tools"));
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
        assert_eq!(check(endless), Err(ChatUnavailable::Template(RenderError::TooMuchWork.into())));
        assert!(matches!(check("{{ messages[0].content.nothing() }}"), Err(ChatUnavailable::Template(_))));
        assert_eq!(check("{# nothing #}"), Err(ChatUnavailable::Template(ChatTemplateError::Nothing)));
    }

    #[test]
    fn kinds_of_conversations_that_a_template_refuses_are_named() {
        let tokenizer = Tokenizer::from_gguf(&Gguf::open(&test_model::path()).unwrap()).unwrap();
        let kinds = |condition| {
            let source = format!("{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}x");
            let refused =
                check_chat(Some(&ChatTemplate::new(&source, &InProcess).unwrap()), &tokenizer, 8_192).unwrap();
            refused.into_iter().map(|refused| refused.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds("messages[0].role == 'system'"), ["a system message and a user's"]);
        assert_eq!(kinds("messages|length == 1"), ["one message"]);
        assert_eq!(kinds("messages|length > 2"), ["a second question", "nine turns"]);
        assert_eq!(kinds("messages|length > 3"), ["nine turns"]);
    }

    #[test]
    fn a_model_that_is_cut_short_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut.gguf");
        let whole = Gguf::open(&test_model::path()).unwrap();
        for (bytes, wanted) in [(3_000_000, "after the end of the file"), (1_000_000, "cut short"), (100, "cut short")]
        {
            std::fs::write(&path, &whole.file_bytes()[..bytes]).unwrap();
            let error = Model::load(&path, 1).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
