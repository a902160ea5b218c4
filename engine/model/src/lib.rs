//! A model from a GGUF file: its reader, configuration, tokenizer, chat template, weights and forward pass.
//!
//! The file is untrusted input. Nothing here knows tenants, requests or sampling.
#![forbid(unsafe_code)]

mod chat_template;
mod checkpoint;
mod config;
mod fingerprint;
mod forward;
mod gguf;
mod inspection;
mod model;
mod numerics;
mod packed_weights;
mod printable;
mod tensor_kind;
#[cfg(test)]
mod test_model;
mod tokenizer;
mod weights;
mod weights_cache;

pub use chat_template::{
    ChatMessage, ChatTemplate, ChatTemplateError, CompileChat, Conversation, InProcess, LoadTemplateError,
    MESSAGES_MAX, RENDERING_BYTES_MAX, RenderChat, RenderError,
};
pub use checkpoint::{Checkpoint, OpenCheckpointError, OpenFolderError, ReadTemplateError, SafetensorsError};
pub use config::{Activation, BlockConfig, ConfigError, LayerRope, ModelConfig, RopeConfig, RopePairs, RopeScaling};
pub use engine_kernels::{KernelFamily, KvKind, KvShape, KvStore, KvStoreError, PAGE_TOKENS, PageFault, PageRef, Span};
pub use forward::{Forward, ForwardError};
pub use gguf::{Array, Gguf, GgufError, TensorView, Value};
pub use inspection::{Inspection, TensorShare, TokenizerFacts, inspect};
pub use model::{CacheUse, ChatUnavailable, LoadModelError, LoadOptions, Loaded, Model, RefusedConversation};
pub use printable::{PRINTABLE_BYTES_MAX, printable};
pub use tensor_kind::TensorKind;
pub use tokenizer::{LoadTokenizerError, TEXT_BYTES_MAX, TokenizeError, Tokenizer};
pub use weights::LoadWeightsError;
pub use weights_cache::{SaveWeightsError, UnsavedWeights, UnusableCache};
