//! A loaded model: the file, its configuration, weights, tokenizer and chat template, immutable from then on.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::config::{ConfigError, ModelConfig};
use crate::gguf::{Gguf, GgufError};
use crate::weights::{LoadWeightsError, Weights};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadModelError {
    /// Not a readable GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Not a model that the engine runs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Tensors are missing or do not fit.
    #[error(transparent)]
    Weights(#[from] LoadWeightsError),
}

/// A model, ready to run. Shared between threads behind an `Arc`.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    name: String,
    digest: [u8; 32],
    weights: Weights,
}

impl Model {
    /// Reads, checks and repacks a GGUF file; `threads` is for the repacking.
    ///
    /// # Errors
    /// [`LoadModelError`], naming what is wrong with the file.
    pub fn load(path: &Path, threads: usize) -> Result<Self, LoadModelError> {
        let gguf = Gguf::open(path)?;
        let config = ModelConfig::from_gguf(&gguf)?;
        let (digest, weights) = std::thread::scope(|scope| {
            let digest = scope.spawn(|| Sha256::digest(gguf.file_bytes()));
            let weights = Weights::load(&gguf, &config, threads);
            // A digest that cannot be made is a bug of ours: the panic goes on.
            (digest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), weights)
        });
        Ok(Self { config, name: String::new(), digest: digest.into(), weights: weights? })
    }

    /// The model's dimensions.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// `general.name`, or the file's stem, with every character that a model name may not have replaced by `-`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of the file.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Which kernels compute with the weights: `avx512-vnni`, `avx2` or `scalar`.
    #[must_use]
    pub fn kernels(&self) -> &'static str {
        self.weights.kernels()
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }
}
