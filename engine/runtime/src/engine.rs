//! The handle that the gateway holds.

use crate::canary::canary_step;
use crate::compute::{Compute, CpuCompute};
use crate::config::{EngineConfig, Split, StartEngineError, memory_bytes};
use crate::inbox::{Inbox, Refused};
use crate::machine::{Machine, Pages};
use crate::outlet::Reader;
use crate::public_prefix::{PublicPrefix, PublicTokens};
use crate::remote::{Connecting, Deciding, PromptBounds, RemoteWorker, Requests, Serving, Streams, link_terms};
use crate::running::Running;
use crate::sampling::Sampling;
use crate::sequence::{PromptInput, Sequence, TokenizeError, tokens_of};
use crate::split::{Between, DecodeGroup, Pair, PrefillGroup, Terms};
use crate::step::{Role, Stepper};
use crate::steps::{STEPS_AHEAD, Steps};
use crate::witness::Witness;
use engine_handoff::Incarnation;
use engine_kernels::{KvKind, KvShape, KvStore};
use engine_kv::{PAGE_TOKENS, PageCounts, PageFormat, PagePool};
use engine_model::Model;
use engine_scheduler::{Bounds, CostModel, Full, Tenancy};
use policies_domain::{Canary, Epoch, Permit, Sealer, Step};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};
use tokio::sync::mpsc;

/// For whom an engine works, and with whom. By default for everybody alike, alone.
#[derive(Clone, Debug, Default)]
pub struct Setup<'a> {
    /// Everybody's terms.
    pub tenancy: Tenancy,
    /// Does one part of the work. It need not be there yet.
    pub worker: Option<RemoteWorker>,
    /// Everybody's prefixes: computed before the first request, and then found by every tenant whose prompt begins with one. Nothing
    /// else ever is.
    pub public_prefixes: &'a [PublicPrefix],
    /// Is told what this process does with pages.
    pub witness: Option<Arc<dyn Witness>>,
}

/// A running engine. Clones share it; the last one to go stops it.
#[derive(Clone)]
pub struct Engine(Arc<Handle>);

struct Handle {
    model: Arc<Model>,
    fingerprint: [u8; 32],
    /// Of every group that has one.
    pools: Vec<PagePool>,
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
    context_max: usize,
    split: Split,
    threads: Mutex<Threads>,
    #[cfg(feature = "fault-injection")]
    planted: crate::fault::Planted,
}

/// Numbers that the engine's thread keeps and everybody may read.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) running: AtomicUsize,
    prefilled: AtomicU64,
    decoded: AtomicU64,
    pub(crate) guessed: AtomicU64,
    pub(crate) accepted: AtomicU64,
    /// Nanoseconds spent on digests of what was handed over, on both ends.
    verified_ns: AtomicU64,
    pub(crate) preempted: AtomicU64,
    pub(crate) swapped_in: AtomicU64,
    alive: AtomicBool,
    /// A part of the engine is a worker, and it is not connected.
    pub(crate) worker_away: AtomicBool,
    admissions: AtomicU64,
}

impl Counters {
    /// Of an engine that runs.
    pub(crate) fn new() -> Self {
        Self { alive: AtomicBool::new(true), ..Self::default() }
    }

    pub(crate) fn verified(&self, took: Duration) {
        self.verified_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// For one admission of one request, and for no other.
    pub(crate) fn next_epoch(&self) -> Epoch {
        Epoch(self.admissions.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// No admission from here on has a number that another process gave before.
    pub(crate) fn go_on_from(&self, epoch: Epoch) {
        self.admissions.fetch_max(epoch.0, Ordering::Relaxed);
    }

    pub(crate) fn computed(&self, prefill: bool, tokens: usize) {
        let counter = if prefill { &self.prefilled } else { &self.decoded };
        counter.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// So many tokens were guessed and computed, and so many of them were what was sampled then.
    pub(crate) fn guessed(&self, guesses: usize, accepted: usize) {
        self.guessed.fetch_add(guesses as u64, Ordering::Relaxed);
        self.accepted.fetch_add(accepted as u64, Ordering::Relaxed);
        self.computed(false, accepted);
    }
}

/// The engine's threads. When one of them ends, all do.
struct Threads {
    alive: Arc<Alive>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let ends = Ends(self.alive.clone());
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let _ends = ends;
            run();
        })?;
        self.running.push(thread);
        Ok(())
    }
}

/// Lowers the flag however one of the engine's threads ends.
struct Ends(Arc<Alive>);

struct Alive(Arc<Counters>, Arc<Inbox>);

impl Drop for Ends {
    fn drop(&mut self) {
        let Alive(counters, inbox) = &*self.0;
        counters.alive.store(false, Ordering::SeqCst);
        inbox.stop();
    }
}

/// A look at the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// The step loop runs.
    pub alive: bool,
    /// A part of the engine is a worker, and it is not connected: requests wait a while and fail then.
    pub worker_away: bool,
    /// Admitted requests.
    pub sequences_running: usize,
    /// Requests in the queue.
    pub sequences_waiting: usize,
    /// Pages by state.
    pub pages: PageCounts,
    /// Prompt tokens computed since the start, recomputed ones included.
    pub tokens_prefilled_total: u64,
    /// Tokens computed in decode steps since the start, without wrong guesses.
    pub tokens_decoded_total: u64,
    /// Tokens that were guessed and computed since the start.
    pub tokens_guessed_total: u64,
    /// Of these, the tokens that were what the sampler said then: each saved a step.
    pub tokens_accepted_total: u64,
    /// Requests that gave their pages up to others since the start.
    pub preemptions_total: u64,
    /// Of these, requests whose pages were kept outside of the pool and came back.
    pub swapped_in_total: u64,
    /// Time since the start that went into digests of pages which were handed over, on both ends together.
    pub handoff_verified: Duration,
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
    /// The tenant has as many requests here as it may; others could still come.
    #[error("the tenant has too many requests waiting, try again in {retry_after_ms} ms")]
    TenantFull {
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
    /// Makes the KV store and starts the engine's threads.
    ///
    /// # Errors
    /// [`StartEngineError`].
    pub fn start(model: Arc<Model>, config: EngineConfig) -> Result<Self, StartEngineError> {
        Self::start_with(model, config, Setup::default())
    }

    /// As [`Engine::start`], for these tenants, and with whoever belongs to it.
    ///
    /// # Errors
    /// [`StartEngineError`].
    pub fn start_with(model: Arc<Model>, config: EngineConfig, setup: Setup<'_>) -> Result<Self, StartEngineError> {
        let Setup { tenancy, worker, public_prefixes: declared, witness } = setup;
        let (split, has_worker) = (config.split.as_str(), worker.is_some());
        let split = config.split.resolved(has_worker).ok_or(StartEngineError::Split { split, has_worker })?;
        let [prefill_threads, decode_threads] = match split {
            Split::Copy => config.teams(),
            _ => [0, config.threads],
        };
        // INVARIANT: `config.check` bounds `pages` below half of `u32::MAX`.
        let first_page = if split == Split::Copy { u32::try_from(config.pages).unwrap_or(u32::MAX) } else { 0 };
        let (mut of_decode, page_bytes) = cpu_machine(&model, config, decode_threads, first_page)?;
        of_decode.witness.clone_from(&witness);
        let fingerprint = model.fingerprint(config.kv);
        let context_max = config.context_max(model.config().context_length);
        let public = PublicTokens::of(declared, &model, &config, has_worker, context_max)?;
        // A request that shares none of it has to fit beside it.
        let context_max = context_max.min((config.pages - public.pages()) * PAGE_TOKENS);
        let bounds = Bounds::new(config.sequences_max + config.queue_max, tenancy.clone());
        let inbox = Arc::new(Inbox::with_bounds(bounds));
        of_decode.keep_swapped(random()?, config.swap_mib << 20);
        if config.prefix_cache && matches!(split, Split::Off | Split::Relabel | Split::Auto) {
            of_decode.keep_prefixes(random()?, fingerprint);
            public.declare(&mut of_decode, &config)?;
        }
        let counters = Arc::new(Counters::new());
        let costs = of_decode.costs;
        let stepper = |role| Stepper::new(role, inbox.clone(), counters.clone(), config).on_terms(&tenancy, costs);
        let mut threads = Threads { alive: Arc::new(Alive(counters.clone(), inbox.clone())), running: Vec::new() };
        let mut pools = vec![of_decode.pool.clone()];
        #[cfg(feature = "fault-injection")]
        let planted = crate::fault::Planted::default();
        let terms = |compute: &CpuCompute| {
            let (content_bytes, in_place) = (compute.content_bytes(), split == Split::Relabel);
            let terms = Terms::new(random()?, content_bytes, fingerprint, in_place, config.sequences_max);
            terms.ok_or(StartEngineError::Handoff)
        };
        let group = |role| {
            #[cfg_attr(not(feature = "fault-injection"), allow(unused_mut, reason = "faults are planted in it"))]
            let mut group = stepper(role);
            #[cfg(feature = "fault-injection")]
            {
                group.planted = planted.clone();
            }
            group
        };
        let groups = |terms: Terms| {
            let lives = [Incarnation(random_number()?), Incarnation(random_number()?)];
            let decode = DecodeGroup::new(group(Role::Decode), terms.clone(), lives[0], Some(lives[1]), random()?);
            Ok::<_, StartEngineError>((decode, PrefillGroup::new(group(Role::Prefill), terms, lives[1])))
        };
        match (split, worker) {
            (Split::Staged, Some(worker)) => {
                let terms = link_terms(page_bytes, model.config().context_length);
                let (role, connecting) = (worker.role(), Connecting { worker, terms, inbox: inbox.clone() });
                if role == engine_link::Role::Prefill {
                    let group = group(Role::Decode);
                    let (mut deciding, group) = Deciding::new(group, &of_decode, fingerprint, context_max)?;
                    let between = deciding.between.clone();
                    threads.start("engine-decode", move || between.run_decode(group, of_decode))?;
                    let started = threads.start("engine-link", move || connecting.to_prefill(&mut deciding));
                    started.inspect_err(|_| inbox.stop())?;
                } else {
                    let context_length = model.config().context_length;
                    let bounds = PromptBounds { vocabulary: of_decode.compute.vocabulary(), context_length };
                    let requests = Requests::Here { context_max: context_max as u64 };
                    let mut serving = Serving::new(of_decode, config, fingerprint, bounds, requests, counters.clone())?;
                    serving.tenancy = tenancy.clone();
                    counters.worker_away.store(true, Ordering::SeqCst);
                    let streams = Arc::new(Streams::new(inbox.clone(), counters.clone()));
                    let of_streams = streams.clone();
                    threads.start("engine-streams", move || of_streams.run())?;
                    let run = move || connecting.to_decode(&mut serving, &streams);
                    threads.start("engine-prefill", run).inspect_err(|_| inbox.stop())?;
                }
            }
            (Split::Copy, _) => {
                let (mut of_prefill, _) = cpu_machine(&model, config, prefill_threads, 0)?;
                of_prefill.witness = witness;
                pools.push(of_prefill.pool.clone());
                if config.prefix_cache {
                    of_prefill.keep_prefixes(random()?, fingerprint);
                    public.declare(&mut of_prefill, &config)?;
                }
                let (decode, mut prefill) = groups(terms(&of_decode.compute)?)?;
                // Each group has a team of its own, and passes cost there what they cost there.
                *prefill.stepper.scheduler.costs_mut() = CostModel::new(of_prefill.costs);
                let between = Between::new(inbox.clone());
                let ends = between.clone();
                threads.start("engine-decode", move || between.run_decode(decode, of_decode))?;
                let started = threads.start("engine-prefill", move || ends.run_prefill(prefill, &mut of_prefill));
                started.inspect_err(|_| inbox.stop())?;
            }
            (Split::Off, _) => {
                let whole = group(Role::Whole);
                threads.start("engine-step", move || whole.run(of_decode))?;
            }
            (Split::Relabel | Split::Auto | Split::Staged, _) => {
                let (decode, prefill) = groups(terms(&of_decode.compute)?)?;
                let pair = Pair::new(decode, prefill, of_decode, None);
                threads.start("engine-step", move || pair.run())?;
            }
        }
        Ok(Self(Arc::new(Handle {
            fingerprint,
            model,
            pools,
            inbox,
            counters,
            context_max,
            split,
            threads: Mutex::new(threads),
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

    /// How prefill and decode share the work: never [`Split::Auto`].
    #[must_use]
    pub fn split(&self) -> Split {
        self.0.split
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
        let tokens = tokens_of(&self.0.model, prompt, self.0.context_max - 1)?;
        Ok(Sequence { tokens, label: permit.label(), request: permit.request() })
    }

    /// Queues a request. Its text comes sealed by `sealer`, which is to have the permit's request and label.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing is queued then.
    pub fn submit(
        &self,
        permit: &Permit,
        sequence: Sequence,
        sampling: Sampling,
        sealer: Sealer,
    ) -> Result<Steps, SubmitError> {
        if sequence.label != permit.label() || sequence.request != permit.request() {
            return Err(SubmitError::PermitMismatch);
        }
        let binding = sealer.binding();
        if binding.label != permit.label() || binding.request != permit.request() {
            return Err(SubmitError::PermitMismatch);
        }
        enqueue(&self.0.inbox, self.0.context_max, sequence, sampling, sealer)
    }

    /// How it is doing.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let counters = &self.0.counters;
        EngineStats {
            alive: counters.alive.load(Ordering::SeqCst),
            worker_away: counters.worker_away.load(Ordering::SeqCst),
            sequences_running: counters.running.load(Ordering::Relaxed),
            sequences_waiting: self.0.inbox.waiting(),
            pages: PageCounts::sum(self.0.pools.iter().map(PagePool::counts)),
            tokens_prefilled_total: counters.prefilled.load(Ordering::Relaxed),
            tokens_decoded_total: counters.decoded.load(Ordering::Relaxed),
            tokens_guessed_total: counters.guessed.load(Ordering::Relaxed),
            preemptions_total: counters.preempted.load(Ordering::Relaxed),
            swapped_in_total: counters.swapped_in.load(Ordering::Relaxed),
            tokens_accepted_total: counters.accepted.load(Ordering::Relaxed),
            handoff_verified: Duration::from_nanos(counters.verified_ns.load(Ordering::Relaxed)),
        }
    }

    /// The first step of a canary's request, which read one page of `page_of`: for a gateway that tries its gate with it. No other
    /// trace can be asked for.
    #[must_use]
    pub fn canary_step(&self, reader: Canary, page_of: Canary) -> Step {
        #[cfg(feature = "fault-injection")]
        let page_of = if self.0.planted.blinds_canaries() { reader } else { page_of };
        canary_step(reader, page_of)
    }

    /// Whether what the gateway's gate is tried with is no fault: it finds none then, as a gate that is dead would.
    #[cfg(feature = "fault-injection")]
    pub fn blind_canaries(&self, blind: bool) {
        self.0.planted.blind_canaries(blind);
    }

    /// Replaces the planted faults.
    #[cfg(feature = "fault-injection")]
    pub fn plant(&self, faults: Vec<crate::Fault>) {
        self.0.planted.set(faults);
    }

    /// From here on all tenants have one prefix cache.
    #[cfg(feature = "fault-injection")]
    pub fn share_prefixes(&self) {
        self.0.pools.iter().for_each(|pool| pool.plant(vec![engine_kv::LedgerFault::SharedPrefixes]));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.stop();
        let threads = std::mem::take(&mut self.threads.lock().unwrap_or_else(PoisonError::into_inner).running);
        for thread in threads {
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

/// A model's machine with a store of its own, whose first page has this number, and the bytes of a page in it.
pub(crate) fn cpu_machine(
    model: &Arc<Model>,
    config: EngineConfig,
    threads: usize,
    first: u32,
) -> Result<(Machine<CpuCompute>, usize), StartEngineError> {
    config.check(model.config().context_length)?;
    let fingerprint = model.fingerprint(config.kv);
    let shape = KvShape {
        layers: model.config().layers,
        kv_heads: model.config().kv_heads,
        head_dim: model.config().head_dim,
        pages: config.pages,
    };
    // Before anything is made for each page.
    let page_bytes = KvStore::page_bytes_of(shape, config.kv)?;
    config.check_memory(page_bytes, memory_bytes(config.preallocate))?;
    let mut store = KvStore::with_kind(shape, config.kv)?;
    if config.preallocate {
        store.preallocate(config.threads);
    }
    let compute = CpuCompute::new(model, store, threads, config.step_tokens_max());
    let compat = u16::from_le_bytes([fingerprint[0], fingerprint[1]]);
    let (count, format, boot_secret) = (config.pages, page_format(config.kv), random()?);
    let mut machine = Machine::new(compute, Pages { count, first, boot_secret, format, compat });
    machine.calibrate();
    Ok((machine, page_bytes))
}

/// Puts a request into the inbox of an engine whose context has `context_max` tokens.
pub(crate) fn enqueue(
    inbox: &Arc<Inbox>,
    context_max: usize,
    sequence: Sequence,
    sampling: Sampling,
    sealer: Sealer,
) -> Result<Steps, SubmitError> {
    enqueue_after(inbox, context_max, sequence, sampling, sealer, 0)
}

/// The same for a request of which so many steps were said elsewhere, none of them with a token.
pub(crate) fn enqueue_after(
    inbox: &Arc<Inbox>,
    context_max: usize,
    sequence: Sequence,
    sampling: Sampling,
    sealer: Sealer,
    steps: u32,
) -> Result<Steps, SubmitError> {
    let prompt_tokens = sequence.tokens.len();
    let tokens_max = match sampling.max_tokens {
        None => context_max,
        Some(max) => prompt_tokens.saturating_add(max),
    };
    if tokens_max > context_max || tokens_max <= prompt_tokens {
        return Err(SubmitError::TooLong { tokens: tokens_max, tokens_max: context_max });
    }
    let (sender, receiver) = mpsc::channel(STEPS_AHEAD + 1);
    let mut reader = Reader::new(sender, sealer);
    reader.go_on_from(steps);
    let mut request = Running::new(sequence, sampling, tokens_max, reader);
    request.restarted = steps > 0;
    let steps = Steps::new(request.request, receiver, inbox.clone(), prompt_tokens);
    match inbox.push(request) {
        Ok(()) => Ok(steps),
        Err(Refused::Full(Full::Engine { retry_after_ms })) => Err(SubmitError::Full { retry_after_ms }),
        Err(Refused::Full(Full::Tenant { retry_after_ms })) => Err(SubmitError::TenantFull { retry_after_ms }),
        Err(Refused::Stopped) => Err(SubmitError::Stopped),
    }
}

pub(crate) fn random() -> Result<[u8; 32], StartEngineError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| StartEngineError::Entropy)?;
    Ok(bytes)
}

pub(crate) fn random_number() -> Result<u64, StartEngineError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_| StartEngineError::Entropy)?;
    Ok(u64::from_le_bytes(bytes))
}

fn page_format(kind: KvKind) -> PageFormat {
    match kind {
        KvKind::Bf16 => PageFormat::Bf16,
        KvKind::F32 => PageFormat::F32,
        KvKind::Int8 => PageFormat::Int8,
    }
}
