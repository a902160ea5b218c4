//! The engine's forward pass as the benchmark runs it: the same calls as the engine's step loop makes, without the
//! scheduler, the gate and the channels around it. It is what a peer's own batch interface is compared with.
//! As the engine does, it runs on a thread that is tied to a processor; nobody else's, peers least of all, inherits that.

use anyhow::{Context, Result};
use engine_model::{Forward, KvShape, KvStore, Model, PAGE_TOKENS, PageRef, Span};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prompt tokens of one pass: as many as the peer computes at a time.
const CHUNK: usize = 512;

/// A forward pass with room for some sequences.
pub(super) struct Own {
    forward: Forward,
    store: KvStore,
    tables: Vec<Vec<PageRef>>,
}

impl Own {
    /// `sequences` of up to `tokens` each, on `threads`.
    pub(super) fn new(model: &Arc<Model>, threads: usize, sequences: usize, tokens: usize) -> Result<Self> {
        let pages_each = tokens.div_ceil(PAGE_TOKENS);
        let mut store = store(model, sequences * pages_each)?;
        let mut tables = vec![Vec::with_capacity(pages_each); sequences];
        // A sequence's pages do not lie together, as they do not in an engine that has run for a while.
        for number in 0..sequences * pages_each {
            let sequence = number % sequences;
            let page = PageRef { page: u32::try_from(number)?, tag: u32::try_from(sequence)? + 1 };
            store.assign(page)?;
            tables[sequence].push(page);
        }
        let forward = Forward::new(Arc::clone(model), threads, CHUNK.max(sequences));
        Ok(Self { forward, store, tables })
    }

    /// Time to compute a prompt, with the logits of its last token.
    pub(super) fn prefill(&mut self, prompt: &[u32]) -> Result<Duration> {
        self.on_its_thread(|own| {
            let start = Instant::now();
            own.fill(0, prompt, true)?;
            Ok(start.elapsed())
        })
    }

    /// Time of `steps` steps in which `batch` sequences decode one token each, after prompts that are not timed.
    pub(super) fn decode(&mut self, batch: usize, steps: usize, prompt: &[u32]) -> Result<Duration> {
        self.on_its_thread(|own| own.time_decode(batch, steps, prompt))
    }

    fn on_its_thread<T: Send>(&mut self, work: impl FnOnce(&mut Self) -> Result<T> + Send) -> Result<T> {
        let run = || {
            self.forward.tie_caller();
            work(self)
        };
        let done = std::thread::scope(|scope| scope.spawn(run).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn time_decode(&mut self, batch: usize, steps: usize, prompt: &[u32]) -> Result<Duration> {
        for sequence in 0..batch {
            self.fill(sequence, prompt, false)?;
        }
        let start = Instant::now();
        for step in 0..steps {
            // The peer is given the same tokens; choosing the next one is no part of either's time.
            let tokens: Vec<[u32; 1]> =
                (0..batch).filter_map(|sequence| prompt.get((step + sequence) % prompt.len())).map(|t| [*t]).collect();
            let spans: Vec<Span<'_>> = std::iter::zip(&tokens, &self.tables)
                .map(|(tokens, pages)| Span { ticket: 0, tokens, position: prompt.len() + step, pages, logits: true })
                .collect();
            self.forward.run(&mut self.store, &spans, &|| false)?;
        }
        Ok(start.elapsed())
    }

    fn fill(&mut self, sequence: usize, prompt: &[u32], logits: bool) -> Result<()> {
        let pages = self.tables.get(sequence).context("no room for the sequence")?;
        let mut position = 0;
        for tokens in prompt.chunks(CHUNK) {
            let logits = logits && position + tokens.len() == prompt.len();
            self.forward.run(&mut self.store, &[Span { ticket: 0, tokens, position, pages, logits }], &|| false)?;
            position += tokens.len();
        }
        Ok(())
    }
}

/// An empty store for the model, in the engine's default format.
pub(super) fn store(model: &Model, pages: usize) -> Result<KvStore> {
    let config = model.config();
    let shape = KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages };
    Ok(KvStore::new(shape)?)
}
