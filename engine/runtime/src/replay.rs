//! An answer computed again, alone, to be compared bit for bit.
//!
//! A [`Replayer`] has pages, a ledger and a custody log of its own, and nothing else in common with the engine but the
//! model's weights: no prefix cache, no handoff, no guesses, nobody in its passes but the one answer. It reads prompt and
//! answer as one prompt, with logits at each place where a token was sampled, and asks a sampler of its own. The kernels give
//! a token the same bits in whatever pass it is, so whatever differs had another cause than the request. It has no thread and
//! no clock: between its passes it asks whoever drives it whether to go on.

use crate::compute::{Compute, CpuCompute};
use crate::config::{EngineConfig, Split, StartEngineError};
use crate::custody;
use crate::detokenizer::Detokenizer;
use crate::engine::cpu_machine;
use crate::machine::Machine;
use crate::replay_digest::AnswerRecord;
use crate::sampling::{Sampler, Sampling, SamplingScratch};
use crate::sequence::{PromptInput, Sequence, TokenizeError, tokens_of};
use crate::traced_table::TracedTable;
use engine_kernels::Span;
use engine_kv::{BlockTable, PAGE_TOKENS};
use engine_model::Model;
use policies_domain::{Label, PageId, QuarantineReason, TenantId};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Tokens of one pass: a few milliseconds of one thread with the default model, after which others are asked.
const CHUNK_TOKENS: usize = 32;
/// The one answer that is computed has this ticket.
const TICKET: u64 = 1;

/// What was asked, kept apart from the engine until its answer is there. Its `Debug` shows no token.
#[derive(Clone)]
pub struct AskedPrompt {
    tokens: Vec<u32>,
    label: Label,
}

impl Sequence {
    /// A copy for computing the answer again.
    #[must_use]
    pub fn asked(&self) -> AskedPrompt {
        AskedPrompt { tokens: self.tokens.clone(), label: self.label }
    }
}

impl AskedPrompt {
    /// Of a prompt that comes from nobody who is served here, but with a receipt; of `tokens_max` tokens at most.
    ///
    /// # Errors
    /// [`TokenizeError`].
    pub fn of_receipt(model: &Model, prompt: &PromptInput, tokens_max: usize) -> Result<Self, TokenizeError> {
        let tokens = tokens_of(model, prompt, tokens_max)?;
        // Any tenant's: nobody else is there.
        Ok(Self { tokens, label: TenantId::new(1).map_or(Label::NOBODY, Label::of) })
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }
}

impl fmt::Debug for AskedPrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AskedPrompt({} tokens, {})", self.tokens.len(), self.label)
    }
}

/// An answer, and what was asked.
#[derive(Debug)]
pub struct ReplayJob {
    /// The prompt, as the gateway tokenized it.
    pub asked: AskedPrompt,
    /// As the gateway read it from the request.
    pub sampling: Sampling,
    /// What the engine says of its answer.
    pub answer: AnswerRecord,
}

impl ReplayJob {
    /// Tokens of prompt and answer: what it costs, and four bytes of memory each.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.asked.tokens.len().saturating_add(self.answer.tokens.len())
    }
}

/// Whether an answer has the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayVerdict {
    /// The same tokens, of the same logits.
    Same,
    /// Other ones.
    Different {
        /// Place of the first token that differs; `None`: the tokens are the same, the logits are not.
        first_difference: Option<usize>,
    },
}

/// Why an answer was not computed again. Nothing is known of it then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Whoever drives it said so.
    #[error("the replay was stopped")]
    Stopped,
    /// An answer without a token, or without a prompt.
    #[error("there is nothing to compute")]
    Empty,
    /// It does not fit.
    #[error("prompt and answer have {tokens} tokens, the replay takes {tokens_max}")]
    TooLong {
        /// Of both.
        tokens: usize,
        /// That fit.
        tokens_max: usize,
    },
    /// A page of its own was found not to be: the replay is as little to be trusted as anything else then.
    #[error("the replay read other pages than its own")]
    Pages,
    /// The model failed.
    #[error("the model failed")]
    Model,
}

/// What was computed anew from a prompt and a seed.
pub struct Regenerated {
    /// The replay digest.
    pub digest: [u8; 32],
    /// The text that the tokens make, as far as a stop string lets it.
    pub text: String,
    /// Logits that were no numbers ended it here.
    pub ended_early: bool,
}

impl fmt::Debug for Regenerated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Regenerated({} bytes)", self.text.len())
    }
}

/// Computes answers again on a model, with pages of its own.
pub struct Replayer(Replaying<CpuCompute>);

impl Replayer {
    /// For answers of an engine with this configuration, on so many threads. Pages for one answer of `tokens_max` tokens with
    /// its prompt.
    ///
    /// # Errors
    /// [`StartEngineError`].
    pub fn new(
        model: Arc<Model>,
        config: EngineConfig,
        tokens_max: usize,
        threads: usize,
    ) -> Result<Self, StartEngineError> {
        let own = EngineConfig {
            threads,
            pages: tokens_max.div_ceil(PAGE_TOKENS) + 1,
            sequences_max: 1,
            prefill_chunk_tokens: CHUNK_TOKENS,
            prefix_cache: false,
            speculation: false,
            swap_mib: 0,
            split: Split::Off,
            decode_threads: None,
            preallocate: false,
            ..config
        };
        let (machine, _) = cpu_machine(&model, own, threads, 0)?;
        Ok(Self(Replaying::new(machine)))
    }

    /// Computes an answer again. `go_on` is asked between passes; it may take its time.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn replay(&mut self, job: &ReplayJob, go_on: &mut dyn FnMut() -> bool) -> Result<ReplayVerdict, ReplayError> {
        self.0.replay(job, go_on)
    }

    /// Computes an answer of `tokens` tokens of which only prompt, sampling and seed are known: what was sampled is sampled
    /// again. `go_on` is told how many tokens are done.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn regenerate(
        &mut self,
        asked: &AskedPrompt,
        sampling: &Sampling,
        tokens: usize,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Regenerated, ReplayError> {
        self.0.regenerate(asked, sampling, tokens, go_on)
    }
}

impl fmt::Debug for Replayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replayer({:?})", self.0.machine.pool.counts())
    }
}

/// [`Replayer`] on anything that computes.
pub(crate) struct Replaying<C> {
    machine: Machine<C>,
    scratch: SamplingScratch,
}

/// The pages of the one answer, as the ledger and as the kernels have them.
struct Pages {
    block_table: BlockTable,
    table: TracedTable,
    label: Label,
}

impl Pages {
    /// Tokens that are written.
    fn written(&self) -> usize {
        self.block_table.tokens()
    }
}

impl<C: Compute> Replaying<C> {
    pub(crate) fn new(machine: Machine<C>) -> Self {
        Self { machine, scratch: SamplingScratch::new() }
    }

    pub(crate) fn replay(
        &mut self,
        job: &ReplayJob,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<ReplayVerdict, ReplayError> {
        let ReplayJob { asked, sampling, answer } = job;
        let Some((_, fed)) = answer.tokens.split_last() else { return Err(ReplayError::Empty) };
        let all: Vec<u32> = asked.tokens.iter().chain(fed).copied().collect();
        self.with_pages(asked, all.len(), |own, pages| {
            let mut sampler = own.sampler(asked, sampling);
            let mut sampled = answer.tokens.iter().copied().zip(0..);
            while pages.written() < all.len() {
                if !go_on() {
                    return Err(ReplayError::Stopped);
                }
                let end = (pages.written() + CHUNK_TOKENS).min(all.len());
                let rows = own.pass(&all[..end], asked.tokens.len() - 1, pages)?;
                for (row, (wanted, place)) in rows.zip(sampled.by_ref()) {
                    let logits = own.machine.compute.logits(row, TICKET).ok_or(ReplayError::Pages)?;
                    if sampler.sample(logits, &mut own.scratch) != Some(wanted) {
                        return Ok(ReplayVerdict::Different { first_difference: Some(place) });
                    }
                }
            }
            let digest = sampler.digest().unwrap_or_default().bytes();
            Ok(match digest == answer.digest {
                true => ReplayVerdict::Same,
                false => ReplayVerdict::Different { first_difference: None },
            })
        })
    }

    pub(crate) fn regenerate(
        &mut self,
        asked: &AskedPrompt,
        sampling: &Sampling,
        tokens: usize,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Regenerated, ReplayError> {
        let prompt_tokens = asked.tokens.len();
        if tokens == 0 {
            return Err(ReplayError::Empty);
        }
        self.with_pages(asked, prompt_tokens.saturating_add(tokens) - 1, |own, pages| {
            let (mut sampler, mut detokenizer) = (own.sampler(asked, sampling), Detokenizer::new(&sampling.stop));
            let (mut all, mut text) = (asked.tokens.clone(), String::new());
            let mut stopped = false;
            while all.len() < prompt_tokens + tokens {
                if !go_on(pages.written()) {
                    return Err(ReplayError::Stopped);
                }
                let end = (pages.written() + CHUNK_TOKENS).min(all.len());
                let mut rows = own.pass(&all[..end], prompt_tokens - 1, pages)?;
                let Some(row) = rows.next() else { continue };
                let logits = own.machine.compute.logits(row, TICKET).ok_or(ReplayError::Pages)?;
                let Some(token) = sampler.sample(logits, &mut own.scratch) else { break };
                all.push(token);
                if !stopped {
                    let said = detokenizer.push(own.machine.compute.text(token).unwrap_or_default());
                    text += &said.text;
                    stopped = said.stopped;
                }
            }
            if !stopped {
                text += &detokenizer.finish();
            }
            let digest = sampler.digest().unwrap_or_default().bytes();
            Ok(Regenerated { digest, text, ended_early: all.len() < prompt_tokens + tokens })
        })
    }

    fn sampler(&self, asked: &AskedPrompt, sampling: &Sampling) -> Sampler {
        Sampler::new(Sampling { digests: true, ..sampling.clone() }, &asked.tokens)
    }

    /// Pages for so many tokens, which are scrubbed behind it whatever happens.
    fn with_pages<T>(
        &mut self,
        asked: &AskedPrompt,
        tokens: usize,
        work: impl FnOnce(&mut Self, &mut Pages) -> Result<T, ReplayError>,
    ) -> Result<T, ReplayError> {
        let tokens_max = self.machine.pool.counts().total * PAGE_TOKENS;
        if asked.tokens.is_empty() {
            return Err(ReplayError::Empty);
        }
        if tokens > tokens_max {
            return Err(ReplayError::TooLong { tokens, tokens_max });
        }
        let block_table = BlockTable::new(&self.machine.pool, asked.label);
        let table = TracedTable::new(block_table.sequence());
        let mut pages = Pages { block_table, table, label: asked.label };
        let worked = work(self, &mut pages);
        drop(pages);
        self.machine.reclaim();
        worked
    }

    /// One pass over the tokens that are not written. There are logits at each place from `first_row` on; the spans that have
    /// them are given back. Traced, compared with the custody log and with what the kernels read, as any pass of the engine.
    fn pass(&mut self, tokens: &[u32], first_row: usize, pages: &mut Pages) -> Result<Range<usize>, ReplayError> {
        let (first, end) = (pages.written(), tokens.len());
        let Self { machine, .. } = self;
        let Pages { block_table, table, label } = pages;
        machine.grow(block_table, end).map_err(|_| ReplayError::Pages)?;
        machine.follow();
        machine.lay(block_table, table, first, end).map_err(|_| ReplayError::Pages)?;
        let difference = machine.trace(table, first).map_err(|_| ReplayError::Pages)?;
        if difference.is_some() || table.reads().iter().any(|page| page.label != *label) {
            return Err(ReplayError::Pages);
        }
        let planned = spans(first..end, first_row);
        let sums = machine.custody.sums(table.sequence()).map_err(|_| ReplayError::Pages)?;
        let mut expected = Vec::with_capacity(planned.len());
        for span in &planned {
            let behind = end.div_ceil(PAGE_TOKENS) - span.end.div_ceil(PAGE_TOKENS);
            let last = machine.entries.held.iter().nth_back(behind).map(custody::page_ref);
            let last = last.ok_or(ReplayError::Pages)?;
            expected.push(machine.compute.expected_read_set(span.start, span.len(), sums, last));
        }
        let entries = table.entries();
        let logits = |span: &Range<usize>| span.end > first_row;
        let spans: Vec<Span<'_>> = planned
            .iter()
            .map(|span| Span {
                ticket: TICKET,
                tokens: &tokens[span.clone()],
                position: span.start,
                pages: entries,
                logits: logits(span),
            })
            .collect();
        let step = machine.pool.issue_step();
        let computed = machine.compute.run(&spans, &|| false);
        // No thread of the pass touches a page any more, however it ended.
        assert!(machine.pool.retire_step(step).is_ok(), "one step at a time");
        computed.map_err(|_| ReplayError::Model)?;
        if let Some(fault) = (0..planned.len()).find_map(|span| machine.compute.fault(span)) {
            machine.pool.quarantine(PageId(fault.page), QuarantineReason::TagMismatch);
            return Err(ReplayError::Pages);
        }
        if expected.iter().zip(0..).any(|(wanted, span)| machine.compute.read_set(span) != Some(*wanted)) {
            return Err(ReplayError::Pages);
        }
        block_table.advance(end - first).map_err(|_| ReplayError::Pages)?;
        let without = planned.iter().filter(|span| !logits(span)).count();
        Ok(without..planned.len())
    }
}

/// The spans of a pass: one as far as the first place that has logits, then one for each, because logits come after the last
/// token of a span.
fn spans(tokens: Range<usize>, first_row: usize) -> Vec<Range<usize>> {
    let known = tokens.end.min(first_row + 1).max(tokens.start);
    let before = (known > tokens.start).then_some(tokens.start..known);
    before.into_iter().chain((known..tokens.end).map(|place| place..place + 1)).collect()
}

#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod tests;
