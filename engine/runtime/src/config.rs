//! Sizes of one engine, and what can go wrong before it runs.

use crate::draft::ROWS_MAX;
use engine_kernels::KvKind;
use engine_kv::PAGE_TOKENS;

/// Sizes and bounds of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Compute threads.
    pub threads: usize,
    /// KV pages of [`PAGE_TOKENS`] tokens. Their memory is touched only as they are used.
    pub pages: usize,
    /// Sequences that prefill or decode at the same time.
    pub sequences_max: usize,
    /// Requests that may wait for a slot; one more is refused. A quarter of all places, running and waiting, is always
    /// left to tenants other than the busiest.
    pub queue_max: usize,
    /// Prompt tokens that one step takes at most. How many it takes, [`EngineConfig::step_target_ms`] decides.
    pub prefill_chunk_tokens: usize,
    /// How long a step may take while somebody's answer is being written, in milliseconds: the pause between two tokens
    /// that the engine aims at. Prompts get what decoding leaves of it.
    pub step_target_ms: usize,
    /// How long a request may wait for its first slot, in milliseconds.
    pub queue_wait_max_ms: usize,
    /// Whether pages of earlier requests of the same tenant are used again. Changes no bit of an answer.
    pub prefix_cache: bool,
    /// Whether tokens may be guessed and verified several at a time. Changes no bit of an answer.
    pub speculation: bool,
    /// Host memory for pages of requests that gave way, in MiB; what does not fit is computed again.
    pub swap_mib: usize,
    /// Tokens of prompt and completion together that a request may have; the model's context when `None`.
    pub context_tokens_max: Option<usize>,
    /// What K and V are stored as: part of the model's fingerprint.
    pub kv: KvKind,
    /// The memory of all pages is taken at the start and kept: no request waits for the system to find it.
    pub preallocate: bool,
    /// Whether prompts are computed by a group of their own. Changes no bit of an answer.
    pub split: Split,
    /// With [`Split::Copy`], how many of the threads decode; a quarter when `None`. The others compute prompts.
    pub decode_threads: Option<usize>,
}

/// How prefill and decode share the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// [`Split::Relabel`]: on processors that share their memory, one team of threads that serves both groups in turn leaves
    /// none of them idle, and a handoff costs a digest of the pages.
    #[default]
    Auto,
    /// One group does both, and nothing is handed over.
    Off,
    /// Two groups on one team of threads and one pool: pages stay where they are and get another owner.
    Relabel,
    /// Two groups with threads and a pool each, which has [`EngineConfig::pages`]: pages are copied. No prefill makes a
    /// decode wait.
    Copy,
    /// Prompts are computed by a worker, which is another process, perhaps on another machine; pages come over a link. What
    /// [`Split::Auto`] is where there is one.
    Staged,
}

impl Split {
    /// As the configuration writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Auto, Self::Off, Self::Relabel, Self::Copy, Self::Staged]
            .into_iter()
            .find(|split| split.as_str() == text)
    }

    /// As the configuration writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Relabel => "relabel",
            Self::Copy => "copy",
            Self::Staged => "staged",
        }
    }

    /// What really runs, never [`Split::Auto`], where there is a prefill worker or none. `None` for what needs the other.
    #[must_use]
    pub fn resolved(self, has_worker: bool) -> Option<Self> {
        match (self, has_worker) {
            (Self::Auto | Self::Staged, true) => Some(Self::Staged),
            (Self::Auto | Self::Relabel, false) => Some(Self::Relabel),
            (Self::Off | Self::Copy, false) => Some(self),
            (Self::Staged, false) | (Self::Off | Self::Relabel | Self::Copy, true) => None,
        }
    }
}

impl EngineConfig {
    /// 65,536 tokens: 64 conversations of a thousand tokens, as many as run at the same time by default.
    pub const PAGES: usize = 4096;
    /// The batch width up to which a step is bound by memory rather than arithmetic, and then some.
    pub const SEQUENCES_MAX: usize = 64;
    /// Beyond this a newcomer would wait for minutes: better told at once.
    pub const QUEUE_MAX: usize = 256;
    /// More at a time makes no kernel faster, and a client that left is noticed between two steps.
    pub const PREFILL_CHUNK_TOKENS: usize = 256;
    /// Twelve tokens a second at least, which is faster than most people read.
    pub const STEP_TARGET_MS: usize = 80;
    /// Clients and proxies give up after half a minute to a minute.
    pub const QUEUE_WAIT_MAX_MS: usize = 30_000;
    /// Some 2,800 pages of the default model.
    pub const SWAP_MIB: usize = 1024;
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from).min(Self::LARGEST.threads),
            pages: Self::PAGES,
            sequences_max: Self::SEQUENCES_MAX,
            queue_max: Self::QUEUE_MAX,
            prefill_chunk_tokens: Self::PREFILL_CHUNK_TOKENS,
            step_target_ms: Self::STEP_TARGET_MS,
            queue_wait_max_ms: Self::QUEUE_WAIT_MAX_MS,
            prefix_cache: true,
            speculation: true,
            swap_mib: Self::SWAP_MIB,
            context_tokens_max: None,
            kv: KvKind::default(),
            preallocate: false,
            split: Split::default(),
            decode_threads: None,
        }
    }
}

/// The largest sensible value of each setting that has one.
#[derive(Clone, Copy, Debug)]
pub struct EngineBounds {
    /// [`EngineConfig::threads`]; also of everything else that takes a number of compute threads.
    pub threads: usize,
    /// [`EngineConfig::pages`]: 64 million tokens. Each takes some hundred bytes beside K and V, whether it is used or not.
    pub pages: usize,
    /// [`EngineConfig::sequences_max`].
    pub sequences_max: usize,
    /// [`EngineConfig::queue_max`].
    pub queue_max: usize,
    /// [`EngineConfig::prefill_chunk_tokens`].
    pub prefill_chunk_tokens: usize,
    /// [`EngineConfig::step_target_ms`].
    pub step_target_ms: usize,
    /// [`EngineConfig::queue_wait_max_ms`].
    pub queue_wait_max_ms: usize,
}

/// From 1 to this, in words.
fn range(value_max: usize) -> String {
    if value_max == 1 { "1".to_owned() } else { format!("between 1 and {value_max}") }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartEngineError {
    /// A size is zero or beyond what the machine's integers hold.
    #[error("engine setting `{name}` is {value}, it must be {}", range(*value_max))]
    Setting {
        /// The field of [`EngineConfig`].
        name: &'static str,
        /// As given.
        value: usize,
        /// The largest sensible value.
        value_max: usize,
    },
    /// More context than the model was trained for: its answers would decay unnoticed.
    #[error(
        "engine setting `context_tokens_max` is {context_tokens_max}, the model's context has {context_length} tokens"
    )]
    Context {
        /// As given.
        context_tokens_max: usize,
        /// The model's.
        context_length: usize,
    },
    /// A pool that could never be used to the end: requests would take the machine's last memory first.
    #[error(
        "engine setting `pages` is {pages}: K and V of {pages} pages need {bytes} bytes, the machine has {memory_bytes}{}",
        if *preallocate { " to give, and `preallocate` takes all of it at once" } else { "" }
    )]
    PoolTooLarge {
        /// As given.
        pages: usize,
        /// Of all pages, with what is kept about them.
        bytes: u64,
        /// All memory of the machine, or what is free of it where all is taken at once.
        memory_bytes: u64,
        /// As given.
        preallocate: bool,
    },
    /// The KV store could not be made.
    #[error("the KV store could not be made")]
    Store(#[from] engine_kernels::KvStoreError),
    /// What is handed over is compared by a digest, and there is none for pages of this size.
    #[error("the model's pages are too large to be handed over: set `split` to \"off\"")]
    Handoff,
    /// Where prompts are computed and how that is set do not agree.
    #[error("engine setting `split` is \"{split}\", and there is {} prefill worker", if *has_worker { "a" } else { "no" })]
    Split {
        /// As given.
        split: &'static str,
        /// Whether there is one.
        has_worker: bool,
    },
    /// A declared prefix has no tokens.
    #[error("public prefix {number} cannot be read as a prompt")]
    PublicTokens {
        /// Counted from 1, in the order of the declaration.
        number: usize,
        /// Why.
        #[source]
        source: crate::TokenizeError,
    },
    /// A declared prefix is so short that there is nothing of it to share.
    #[error("public prefix {number} has {tokens} tokens that all prompts with it share, a page takes {page_tokens}")]
    PublicTooShort {
        /// Counted from 1, in the order of the declaration.
        number: usize,
        /// Those that all prompts share which begin with it.
        tokens: usize,
        /// The least that can be shared.
        page_tokens: usize,
    },
    /// More is to be everybody's than may be taken from the tenants.
    #[error(
        "the public prefixes need {pages} pages, {pages_max} at most can be everybody's: a tenth of engine setting `pages`"
    )]
    PublicTooMany {
        /// Of all declared prefixes.
        pages: usize,
        /// A tenth of the pool.
        pages_max: usize,
    },
    /// Prefixes are declared, and this process keeps none.
    #[error("public prefixes need a prefix cache in this process, and {}",
        if *has_worker { "a worker has a part of the work" } else { "engine setting `prefix_cache` is off" })]
    PublicWithoutCache {
        /// Whether a part of the work is another process's.
        has_worker: bool,
    },
    /// A declared prefix could not be computed.
    #[error("public prefix {number} could not be computed")]
    Public {
        /// Counted from 1, in the order of the declaration.
        number: usize,
        /// Why.
        #[source]
        source: crate::DeclareError,
    },
    /// The system gave no random bytes for the page tags.
    #[error("the system gave no random bytes")]
    Entropy,
    /// The engine's thread could not be started.
    #[error("the engine's thread could not be started")]
    Thread(#[from] std::io::Error),
}

impl EngineConfig {
    /// What an engine does not start beyond.
    pub const LARGEST: EngineBounds = EngineBounds {
        threads: 256,
        pages: (64 << 20) / PAGE_TOKENS,
        sequences_max: 4_096,
        queue_max: 1 << 20,
        prefill_chunk_tokens: 4_096,
        step_target_ms: 60_000,
        queue_wait_max_ms: 86_400_000,
    };

    /// `context_length` is the model's.
    pub(crate) fn check(&self, context_length: usize) -> Result<(), StartEngineError> {
        if let Some(context_tokens_max) = self.context_tokens_max.filter(|tokens| *tokens > context_length) {
            return Err(StartEngineError::Context { context_tokens_max, context_length });
        }
        let largest = Self::LARGEST;
        let bounds = [
            ("threads", self.threads, largest.threads),
            ("pages", self.pages, largest.pages),
            ("sequences_max", self.sequences_max, largest.sequences_max),
            ("queue_max", self.queue_max, largest.queue_max),
            ("prefill_chunk_tokens", self.prefill_chunk_tokens, largest.prefill_chunk_tokens),
            ("step_target_ms", self.step_target_ms, largest.step_target_ms),
            ("queue_wait_max_ms", self.queue_wait_max_ms, largest.queue_wait_max_ms),
            ("decode_threads", self.decode_threads.unwrap_or(1), self.threads.max(2) - 1),
            ("context_tokens_max", self.context_tokens_max.unwrap_or(1), context_length),
        ];
        match bounds.into_iter().find(|(_, value, value_max)| *value == 0 || value > value_max) {
            Some((name, value, value_max)) => Err(StartEngineError::Setting { name, value, value_max }),
            None => Ok(()),
        }
    }

    /// Tokens of prompt and completion together at most, with a model of this context: the configured context, else the
    /// model's, or the pool if that is smaller.
    pub(crate) fn context_max(&self, context_length: usize) -> usize {
        self.context_tokens_max.unwrap_or(context_length).min(self.pages * PAGE_TOKENS)
    }

    /// Of the prefill and of the decode group, when each has a team of its own.
    pub(crate) fn teams(&self) -> [usize; 2] {
        let decode = self.decode_threads.unwrap_or(self.threads / 4).max(1);
        [self.threads.saturating_sub(decode).max(1), decode]
    }

    /// `page_bytes` are those of K and V; `memory_bytes` is what there is, where that is known: [`memory_bytes`].
    pub(crate) fn check_memory(&self, page_bytes: usize, memory_bytes: Option<u64>) -> Result<(), StartEngineError> {
        let Some(memory_bytes) = memory_bytes else { return Ok(()) };
        let pages = self.pages;
        // Groups that copy have a store each. When that is made at once, the first one is gone from what there is for the second.
        let stores = if self.split == Split::Copy && !self.preallocate { 2 } else { 1 };
        let page_bytes = (page_bytes as u64).saturating_add(PAGE_RECORD_BYTES);
        let bytes = (pages as u64).saturating_mul(page_bytes).saturating_mul(stores);
        if bytes > memory_bytes {
            Err(StartEngineError::PoolTooLarge { pages, bytes, memory_bytes, preallocate: self.preallocate })
        } else {
            Ok(())
        }
    }

    /// Tokens that one forward pass may take: a prefill chunk, or one token of every sequence, or of few sequences some more
    /// that are guessed.
    pub(crate) fn step_tokens_max(&self) -> usize {
        self.prefill_chunk_tokens.max(self.sequences_max).max(if self.speculation { ROWS_MAX } else { 0 })
    }
}

/// What is kept about a page beside its K and V: its record in the ledger, in the view of the custody log, its tag.
const PAGE_RECORD_BYTES: u64 = 192;

/// All memory of this machine, or of it what programs may take now without anything being swapped; where the system tells.
pub(crate) fn memory_bytes(available: bool) -> Option<u64> {
    let name = if available { "MemAvailable:" } else { "MemTotal:" };
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_of_zero_is_named() {
        assert!(EngineConfig::default().check(8).is_ok());
        let error = EngineConfig { pages: 0, ..EngineConfig::default() }.check(8).unwrap_err();
        assert_eq!(error.to_string(), "engine setting `pages` is 0, it must be between 1 and 4194304");
        let one_thread = EngineConfig { threads: 1, decode_threads: Some(2), ..EngineConfig::default() };
        assert_eq!(one_thread.check(8).unwrap_err().to_string(), "engine setting `decode_threads` is 2, it must be 1");
        assert!(EngineConfig { threads: 5000, ..EngineConfig::default() }.check(8).is_err());
        let error = EngineConfig { context_tokens_max: Some(0), ..EngineConfig::default() }.check(8).unwrap_err();
        assert_eq!(error.to_string(), "engine setting `context_tokens_max` is 0, it must be between 1 and 8");
    }

    #[test]
    fn threads_are_divided_and_none_is_left_over() {
        let teams =
            |threads, decode_threads| EngineConfig { threads, decode_threads, ..EngineConfig::default() }.teams();
        assert_eq!(
            [1, 2, 3, 4, 8, 16].map(|threads| teams(threads, None)),
            [[1, 1], [1, 1], [2, 1], [3, 1], [6, 2], [12, 4]]
        );
        assert_eq!(teams(8, Some(5)), [3, 5]);
        let of = |threads, decode_threads| EngineConfig { threads, decode_threads, ..EngineConfig::default() };
        assert!(
            of(8, Some(7)).check(8).is_ok() && of(8, Some(8)).check(8).is_err() && of(8, Some(0)).check(8).is_err()
        );
    }

    #[test]
    fn a_split_is_read_as_it_is_written_and_auto_is_one_of_the_others() {
        for split in [Split::Auto, Split::Off, Split::Relabel, Split::Copy, Split::Staged] {
            assert_eq!(Split::parse(split.as_str()), Some(split));
            for has_worker in [false, true] {
                assert_ne!(split.resolved(has_worker), Some(Split::Auto));
                let fits = split == Split::Auto || has_worker == (split == Split::Staged);
                assert_eq!(split.resolved(has_worker).is_some(), fits, "{split:?}");
            }
        }
        assert_eq!(Split::parse("both"), None);
    }

    #[test]
    fn a_pool_that_the_machine_cannot_hold_is_refused_with_numbers() {
        let config = EngineConfig { pages: 1 << 22, ..EngineConfig::default() };
        assert!(config.check(8).is_ok());
        let error = config.check_memory(368_640, Some(24 << 30)).unwrap_err().to_string();
        let wanted = "engine setting `pages` is 4194304: K and V of 4194304 pages need 1546993532928 bytes, the machine \
                      has 25769803776";
        assert_eq!(error, wanted);
        assert!(EngineConfig { pages: 4_096, ..config }.check_memory(368_640, Some(24 << 30)).is_ok());
        assert!(config.check_memory(usize::MAX, Some(u64::MAX - 1)).is_err(), "no overflow");
        assert!(config.check_memory(368_640, None).is_ok());
        let copying = EngineConfig { split: Split::Copy, pages: 40_000, ..config };
        assert!(copying.check_memory(368_640, Some(24 << 30)).is_err());
        assert!(
            EngineConfig { preallocate: true, ..copying }.check_memory(368_640, Some(16 << 30)).is_ok(),
            "the first one"
        );
        assert!(EngineConfig { split: Split::Off, ..copying }.check_memory(368_640, Some(24 << 30)).is_ok());
        let [all, free] = [false, true].map(|available| memory_bytes(available).unwrap());
        assert!(all > 100 << 20 && free > 0 && free < all);
        let at_once = EngineConfig { preallocate: true, ..config };
        let error = at_once.check_memory(368_640, Some(24 << 30)).unwrap_err().to_string();
        assert!(error.ends_with("to give, and `preallocate` takes all of it at once"), "{error}");
        let error = EngineConfig { pages: (1 << 22) + 1, ..config }.check(8).unwrap_err().to_string();
        assert_eq!(error, "engine setting `pages` is 4194305, it must be between 1 and 4194304");
    }

    #[test]
    fn a_context_beyond_the_model_s_is_refused_before_the_first_request() {
        let of = |context_tokens_max| EngineConfig { context_tokens_max, ..EngineConfig::default() };
        assert!(of(None).check(8192).is_ok() && of(Some(8192)).check(8192).is_ok());
        assert_eq!(
            of(Some(8193)).check(8192).unwrap_err().to_string(),
            "engine setting `context_tokens_max` is 8193, the model's context has 8192 tokens"
        );
    }
}
