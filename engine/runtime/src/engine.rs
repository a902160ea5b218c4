//! The handle that the gateway holds.

use crate::compute::CpuCompute;
use crate::config::{EngineConfig, StartEngineError};
use crate::inbox::{Inbox, Refused};
use crate::machine::{Machine, Pages};
use crate::running::Running;
use crate::sampling::Sampling;
use crate::sequence::{PromptInput, Sequence, TokenizeError};
use crate::step::{Role, Stepper};
use crate::steps::{STEPS_AHEAD, Steps};
use engine_kernels::{KvKind, KvShape, KvStore};
use engine_kv::{PAGE_TOKENS, PageCounts, PageFormat, PagePool};
use engine_model::Model;
use policies_domain::Permit;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// What a full queue tells a client to wait: about the time of one short answer.
const RETRY_AFTER_MS: u64 = 1000;

/// A running engine. Clones share it; the last one to go stops it.
#[derive(Clone)]
pub struct Engine(Arc<Handle>);

struct Handle {
    model: Arc<Model>,
    fingerprint: [u8; 32],
    pool: PagePool,
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
    context_max: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
    #[cfg(feature = "fault-injection")]
    planted: crate::fault::Planted,
}

/// Numbers that the engine's thread keeps and everybody may read.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) running: AtomicUsize,
    prefilled: AtomicU64,
    decoded: AtomicU64,
    alive: AtomicBool,
}

impl Counters {
    /// Of an engine that runs.
    pub(crate) fn new() -> Self {
        Self { alive: AtomicBool::new(true), ..Self::default() }
    }

    pub(crate) fn computed(&self, prefill: bool, tokens: usize) {
        let counter = if prefill { &self.prefilled } else { &self.decoded };
        counter.fetch_add(tokens as u64, Ordering::Relaxed);
    }
}

/// Lowers the flag however the engine's thread ends.
struct Alive(Arc<Counters>, Arc<Inbox>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::SeqCst);
        self.1.stop();
    }
}

/// A look at the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// The step loop runs.
    pub alive: bool,
    /// Admitted requests.
    pub sequences_running: usize,
    /// Requests in the queue.
    pub sequences_waiting: usize,
    /// Pages by state.
    pub pages: PageCounts,
    /// Prompt tokens computed since the start, recomputed ones included.
    pub tokens_prefilled_total: u64,
    /// Tokens computed in decode steps since the start.
    pub tokens_decoded_total: u64,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("the queue is full, try again in {retry_after_ms} ms")]
    Full {
        /// When to come back.
        retry_after_ms: u64,
    },
    /// Prompt and `max_tokens` do not fit the context.
    #[error("prompt and completion need {tokens} tokens, the context has {tokens_max}")]
    TooLong {
        /// Prompt plus `max_tokens`.
        tokens: usize,
        /// The context.
        tokens_max: usize,
    },
    /// The sequence was tokenized under another permit.
    #[error("the sequence belongs to another permit")]
    PermitMismatch,
    /// The engine has ended.
    #[error("the engine has stopped")]
    Stopped,
}

impl Engine {
    /// Makes the KV store and starts the engine's thread.
    ///
    /// # Errors
    /// [`StartEngineError`].
    pub fn start(model: Arc<Model>, config: EngineConfig) -> Result<Self, StartEngineError> {
        config.check(model.config().context_length)?;
        let shape = KvShape {
            layers: model.config().layers,
            kv_heads: model.config().kv_heads,
            head_dim: model.config().head_dim,
            pages: config.pages,
        };
        let store = KvStore::with_kind(shape, config.kv)?;
        let mut boot_secret = [0; 32];
        getrandom::fill(&mut boot_secret).map_err(|_| StartEngineError::Entropy)?;
        let fingerprint = model.fingerprint(config.kv);
        let compute = CpuCompute::new(&model, store, config.threads, config.step_tokens_max());
        let compat = u16::from_le_bytes([fingerprint[0], fingerprint[1]]);
        let format = page_format(config.kv);
        let machine = Machine::new(compute, Pages { count: config.pages, first: 0, boot_secret, format, compat });
        let pool = machine.pool.clone();
        let inbox = Arc::new(Inbox::new(config.sequences_max + config.queue_max));
        let counters = Arc::new(Counters::new());
        let stepper = Stepper::new(Role::Whole, inbox.clone(), counters.clone(), config);
        #[cfg(feature = "fault-injection")]
        let planted = stepper.planted.clone();
        let alive = Alive(counters.clone(), inbox.clone());
        let thread = std::thread::Builder::new().name("engine-step".into()).spawn(move || {
            let _alive = alive;
            stepper.run(machine);
        })?;
        let context_length = config.context_tokens_max.unwrap_or(model.config().context_length);
        let context_max = context_length.min(config.pages * PAGE_TOKENS);
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Handle {
            fingerprint,
            model,
            pool,
            inbox,
            counters,
            context_max,
            thread,
            #[cfg(feature = "fault-injection")]
            planted,
        })))
    }

    /// The model that it runs.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.0.model
    }

    /// Digest of all that decides the bits of an answer.
    #[must_use]
    pub fn model_fingerprint(&self) -> [u8; 32] {
        self.0.fingerprint
    }

    /// Tokens of prompt and completion together at most: the configured context, else the model's, or the pool if that is
    /// smaller.
    #[must_use]
    pub fn context_max(&self) -> usize {
        self.0.context_max
    }

    /// Turns a prompt into tokens that carry the permit's label. CPU work: not for an async thread.
    ///
    /// # Errors
    /// [`TokenizeError`].
    pub fn tokenize(&self, permit: &Permit, prompt: &PromptInput) -> Result<Sequence, TokenizeError> {
        let tokenizer = self.0.model.tokenizer();
        let tokens_max = self.0.context_max - 1;
        // No token is longer than the longest: a text that cannot fit is refused before the work of tokenizing it.
        let tokens_min = prompt.text_bytes() / tokenizer.longest_token_bytes().max(1);
        if tokens_min > tokens_max {
            return Err(TokenizeError::TooLong { tokens: tokens_min, tokens_max });
        }
        let tokens = match prompt {
            PromptInput::Chat(messages) => {
                let template = self.0.model.chat_template().ok_or(TokenizeError::NoChatTemplate)?;
                template.tokens(tokenizer, messages)?
            }
            PromptInput::Text(text) => {
                let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
                bos.into_iter().chain(tokenizer.encode(text, false)?).collect()
            }
            PromptInput::Tokens(tokens) => {
                let vocab = tokenizer.vocab();
                if tokens.iter().any(|token| *token as usize >= vocab) {
                    return Err(TokenizeError::UnknownToken { vocab });
                }
                tokens.clone()
            }
        };
        if tokens.is_empty() {
            return Err(TokenizeError::Empty);
        }
        if tokens.len() > tokens_max {
            return Err(TokenizeError::TooLong { tokens: tokens.len(), tokens_max });
        }
        Ok(Sequence { tokens, label: permit.label(), request: permit.request() })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing is queued then.
    pub fn submit(&self, permit: &Permit, sequence: Sequence, sampling: Sampling) -> Result<Steps, SubmitError> {
        if sequence.label != permit.label() || sequence.request != permit.request() {
            return Err(SubmitError::PermitMismatch);
        }
        enqueue(&self.0.inbox, self.0.context_max, sequence, sampling)
    }

    /// How it is doing.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let counters = &self.0.counters;
        EngineStats {
            alive: counters.alive.load(Ordering::SeqCst),
            sequences_running: counters.running.load(Ordering::Relaxed),
            sequences_waiting: self.0.inbox.waiting(),
            pages: self.0.pool.counts(),
            tokens_prefilled_total: counters.prefilled.load(Ordering::Relaxed),
            tokens_decoded_total: counters.decoded.load(Ordering::Relaxed),
        }
    }

    /// Replaces the planted faults.
    #[cfg(feature = "fault-injection")]
    pub fn plant(&self, faults: Vec<crate::Fault>) {
        self.0.planted.set(faults);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the engine's thread has been reported by the hook and has failed its requests.
            let _panicked = thread.join();
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({:?})", self.stats())
    }
}

/// Puts a request into the inbox of an engine whose context has `context_max` tokens.
pub(crate) fn enqueue(
    inbox: &Arc<Inbox>,
    context_max: usize,
    sequence: Sequence,
    sampling: Sampling,
) -> Result<Steps, SubmitError> {
    let prompt_tokens = sequence.tokens.len();
    let tokens_max = match sampling.max_tokens {
        None => context_max,
        Some(max) => prompt_tokens.saturating_add(max),
    };
    if tokens_max > context_max || tokens_max <= prompt_tokens {
        return Err(SubmitError::TooLong { tokens: tokens_max, tokens_max: context_max });
    }
    let (sender, receiver) = mpsc::channel(STEPS_AHEAD);
    let request = Running::new(sequence, sampling, tokens_max, sender);
    let steps = Steps::new(request.request, receiver, inbox.clone(), prompt_tokens);
    match inbox.push(request) {
        Ok(()) => Ok(steps),
        Err(Refused::Full) => Err(SubmitError::Full { retry_after_ms: RETRY_AFTER_MS }),
        Err(Refused::Stopped) => Err(SubmitError::Stopped),
    }
}

fn page_format(kind: KvKind) -> PageFormat {
    match kind {
        KvKind::Bf16 => PageFormat::Bf16,
        KvKind::F32 => PageFormat::F32,
        KvKind::Int8 => PageFormat::Int8,
    }
}
