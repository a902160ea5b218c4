//! One request inside the engine: its tokens, its pages, its way out.

use crate::compute::Compute;
use crate::detokenizer::{Detokenized, Detokenizer};
use crate::sampling::{Sampler, Sampling, SamplingScratch};
use crate::sequence::Sequence;
use crate::steps::{Delivery, STEPS_AHEAD, StepError, Timings, Usage};
use crate::ticket::{Ticket, Ticketed};
use engine_handoff::{FirstStep, FirstToken, Route};
use engine_kv::{BlockTable, PAGE_TOKENS};
use policies_domain::{Completion, Epoch, FinishReason, Label, PageTrace, RequestId, Seal, Sealer, SequenceId, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::mpsc;

/// A request from submission to its last step. Dropping it frees its pages.
pub(crate) struct Running {
    pub(crate) request: RequestId,
    /// In its latest admission; all its records have the same.
    pub(crate) ticket: Ticket,
    pub(crate) label: Label,
    /// Prompt, then completion.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_tokens: usize,
    /// Length at which the response is cut.
    pub(crate) tokens_max: usize,
    /// Tokens whose keys and values are in `block_table`.
    pub(crate) computed: usize,
    /// `None` until the request is admitted, again while it is preempted, and while its prompt is computed elsewhere.
    pub(crate) block_table: Option<BlockTable>,
    /// The handoff that its pages come through, when they do.
    pub(crate) route: Option<Route>,
    /// The token that came with its pages, before it was delivered.
    pub(crate) first: Option<u32>,
    /// Whose `block_table` that is.
    table: Option<Ticketed<SequenceId>>,
    pub(crate) sampler: Ticketed<Sampler>,
    pub(crate) detokenizer: Ticketed<Detokenizer>,
    pub(crate) outlet: Outlet,
    pub(crate) submitted: Instant,
    /// Its number among all that were queued: the oldest has the lowest.
    pub(crate) arrival: u64,
    pub(crate) timings: Timings,
    /// How often it was preempted.
    pub(crate) restarts: u32,
    /// Handoffs of it that ended for no reason of its own.
    pub(crate) handoffs_failed: u32,
    /// It was preempted, and no step has said so yet.
    pub(crate) restarted: bool,
}

/// The way to a request's reader, and what was said on it so far. Whoever computes a part of the request has a clone, and
/// there is no moment at which two of them say something.
#[derive(Clone)]
pub(crate) struct Outlet {
    deliveries: mpsc::Sender<Delivery>,
    sealer: Arc<Sealer>,
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Progress {
    next_step: AtomicU32,
    /// How often the request was begun anew: whoever works at an earlier try has nothing to say any more.
    restarts: AtomicU32,
    /// The reader was told that the request failed: nothing follows.
    failed: AtomicBool,
    /// The latest admission.
    epoch: AtomicU64,
    prefill_us: AtomicU64,
}

impl Outlet {
    /// What is said comes sealed.
    pub(crate) fn new(deliveries: mpsc::Sender<Delivery>, sealer: Sealer) -> Self {
        Self { deliveries, sealer: Arc::new(sealer), progress: Arc::default() }
    }

    /// Steps from here on belong to this admission, whoever says them.
    fn note_admission(&self, epoch: Epoch) {
        self.progress.epoch.fetch_max(epoch.0, Ordering::Relaxed);
    }

    /// Whether it is this request's way out.
    fn check(&self, request: RequestId) -> Result<(), StepError> {
        if self.sealer.binding().request == request { Ok(()) } else { Err(StepError::RowBinding) }
    }

    fn seal(&self, index: u32, text: &str, finish: Option<FinishReason>) -> Seal {
        self.sealer.seal(Epoch(self.progress.epoch.load(Ordering::Relaxed)), index, text.as_bytes(), finish)
    }

    pub(crate) fn note_prefill(&self, took_us: u64) {
        self.progress.prefill_us.fetch_add(took_us, Ordering::Relaxed);
    }
}

/// Whether a request goes on after a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    GoesOn,
    Ended,
    /// Its prompt is computed, and this was sampled; somebody else goes on with it.
    Prefilled(FirstStep),
}

impl Running {
    /// Of a request that was just submitted; its response is cut at `tokens_max` tokens of prompt and completion.
    pub(crate) fn new(sequence: Sequence, sampling: Sampling, tokens_max: usize, outlet: Outlet) -> Self {
        let Sequence { tokens, label, request } = sequence;
        let ticket = Ticket::of(request);
        Self {
            request,
            ticket,
            label,
            prompt_tokens: tokens.len(),
            tokens_max,
            computed: 0,
            block_table: None,
            route: None,
            first: None,
            table: None,
            detokenizer: Ticketed::new(ticket, Detokenizer::new(&sampling.stop)),
            sampler: Ticketed::new(ticket, Sampler::new(sampling, &tokens)),
            tokens,
            outlet,
            submitted: Instant::now(),
            arrival: 0,
            timings: Timings::default(),
            restarts: 0,
            handoffs_failed: 0,
            restarted: false,
        }
    }

    /// The client has dropped its [`crate::Steps`] or was told of a failure, or this is an earlier try of the request.
    pub(crate) fn cancelled(&self) -> bool {
        let Progress { restarts, failed, .. } = &*self.outlet.progress;
        let earlier = restarts.load(Ordering::SeqCst) != self.restarts;
        earlier || failed.load(Ordering::SeqCst) || self.outlet.deliveries.is_closed()
    }

    /// Its channel takes another step, and a last word after it.
    pub(crate) fn has_room(&self) -> bool {
        self.outlet.deliveries.capacity() > 1
    }

    /// Its reader has taken all that was there and waits: going on is worth a recomputation.
    pub(crate) fn may_resume(&self) -> bool {
        self.outlet.deliveries.capacity() > STEPS_AHEAD
    }

    /// What a prefill group gets to know of the request: no text comes from there.
    pub(crate) fn for_prefill(&self) -> Self {
        Self {
            request: self.request,
            ticket: self.ticket,
            table: None,
            label: self.label,
            tokens: self.tokens.clone(),
            prompt_tokens: self.prompt_tokens,
            tokens_max: self.tokens_max,
            computed: 0,
            block_table: None,
            route: self.route,
            first: None,
            sampler: self.sampler.clone(),
            detokenizer: Ticketed::new(self.ticket, Detokenizer::new(&[])),
            outlet: self.outlet.clone(),
            submitted: self.submitted,
            arrival: self.arrival,
            timings: self.timings,
            restarts: self.restarts,
            handoffs_failed: self.handoffs_failed,
            restarted: self.restarted,
        }
    }

    /// It has pages, and they are this group's.
    pub(crate) fn is_here(&self) -> bool {
        self.block_table.is_some()
    }

    /// Pages that it holds, or that are kept for it.
    pub(crate) fn pages(&self) -> usize {
        match &self.block_table {
            Some(block_table) => block_table.pages(),
            None if self.route.is_some() => self.tokens.len().div_ceil(PAGE_TOKENS),
            None => 0,
        }
    }

    /// It gets pages, none of which it has read. When a step was delivered before, its reader learns that these are others.
    pub(crate) fn begin(&mut self, block_table: BlockTable) {
        self.hold(block_table);
        self.restarted |= self.outlet.progress.next_step.load(Ordering::Relaxed) > 0;
    }

    /// It lets go of its pages and is computed anew from its first token.
    pub(crate) fn begin_anew(&mut self) {
        (self.block_table, self.table, self.route, self.first) = (None, None, None, None);
        self.computed = 0;
        self.restarted = true;
        self.restarts += 1;
        self.outlet.progress.restarts.store(self.restarts, Ordering::SeqCst);
    }

    /// It gets pages, for this admission.
    pub(crate) fn hold(&mut self, block_table: BlockTable) {
        self.table = Some(Ticketed::new(self.ticket, block_table.sequence()));
        self.block_table = Some(block_table);
    }

    /// The block table that it was given in this admission.
    ///
    /// # Errors
    /// [`StepError::RowBinding`] when another stands in its place.
    pub(crate) fn table(&self) -> Result<&BlockTable, StepError> {
        let block_table = self.block_table.as_ref().ok_or(StepError::Internal)?;
        let wanted = self.table.as_ref().ok_or(StepError::RowBinding)?.of(self.ticket)?;
        if block_table.sequence() == *wanted { Ok(block_table) } else { Err(StepError::RowBinding) }
    }

    /// It has a slot, and a new ticket. Only the first one ends its time in the queue.
    ///
    /// # Errors
    /// [`StepError::RowBinding`] when a record is not its own: the ticket is not given then.
    pub(crate) fn note_admission(&mut self, epoch: Epoch) -> Result<(), StepError> {
        let ticket = Ticket { request: self.request, epoch };
        self.outlet.check(self.request)?;
        self.sampler.renew(self.ticket, ticket)?;
        self.detokenizer.renew(self.ticket, ticket)?;
        self.ticket = ticket;
        self.outlet.note_admission(epoch);
        if self.restarts == 0 {
            self.timings.queued_us = u64::try_from(self.submitted.elapsed().as_micros()).unwrap_or(u64::MAX);
        }
        Ok(())
    }

    /// One token is left to compute, and it is one that was sampled.
    pub(crate) fn decodes(&self) -> bool {
        self.tokens.len() > self.prompt_tokens && self.tokens.len() - self.computed == 1
    }

    /// A prefill chunk that did not reach the end of the prompt.
    pub(crate) fn deliver_read(&mut self, trace: PageTrace) -> Next {
        self.deliver_step(trace, 0, String::new(), None)
    }

    /// The logits after the last token: samples one, turns it into text, notices the end.
    pub(crate) fn deliver_token(
        &mut self,
        trace: PageTrace,
        logits: &[f32],
        compute: &impl Compute,
        scratch: &mut SamplingScratch,
    ) -> Next {
        match self.sample(logits, scratch) {
            Ok(token) => self.deliver_sampled(trace, token, compute),
            Err(ended) => ended,
        }
    }

    /// The next token; or the request has ended, because the sampler is another's or a logit is not a number.
    fn sample(&mut self, logits: &[f32], scratch: &mut SamplingScratch) -> Result<u32, Next> {
        let sampler = self.sampler.of_mut(self.ticket);
        let sampled = sampler.map(|sampler| sampler.sample(logits, scratch));
        sampled.map_err(|error| self.refuse_row(error))?.ok_or_else(|| {
            let position = self.tokens.len();
            tracing::error!(request_id = %self.request, position, "the model's output is not a number");
            self.deliver_error(StepError::NotANumber)
        })
    }

    /// The end of a prompt that somebody else goes on with: samples the first token and keeps it secret.
    pub(crate) fn deliver_prefilled(
        &mut self,
        trace: PageTrace,
        logits: &[f32],
        scratch: &mut SamplingScratch,
    ) -> Next {
        let token = match self.sample(logits, scratch) {
            Ok(token) => token,
            Err(ended) => return ended,
        };
        let log_prob_bits = log_prob(logits, token).to_bits();
        let sampler = match self.sampler.of(self.ticket) {
            Ok(sampler) => sampler.state(),
            Err(error) => return self.refuse_row(error),
        };
        let first = FirstStep { token: FirstToken::new(token), log_prob_bits, sampler, grammar: [0; 32] };
        match self.deliver_read(trace) {
            Next::GoesOn => Next::Prefilled(first),
            ended => ended,
        }
    }

    /// The token that came with the pages. They are the request's now, which no step has said so far.
    pub(crate) fn deliver_first(&mut self, trace: PageTrace, token: u32, compute: &impl Compute) -> Next {
        match self.sampler.of_mut(self.ticket) {
            Ok(sampler) => sampler.skip(token),
            Err(error) => return self.refuse_row(error),
        }
        self.restarted = true;
        self.deliver_sampled(trace, token, compute)
    }

    fn deliver_sampled(&mut self, trace: PageTrace, token: u32, compute: &impl Compute) -> Next {
        self.tokens.push(token);
        let ends = compute.is_end(token);
        let detokenizer = match self.detokenizer.of_mut(self.ticket) {
            Ok(detokenizer) => detokenizer,
            Err(error) => return self.refuse_row(error),
        };
        let Detokenized { mut text, stopped } = detokenizer.push(compute.text(token).unwrap_or_default());
        let finish = if ends || stopped {
            Some(FinishReason::Stop)
        } else if self.tokens.len() >= self.tokens_max {
            Some(FinishReason::Length)
        } else {
            None
        };
        if finish.is_some() && !stopped {
            text += &detokenizer.finish();
        }
        self.deliver_step(trace, 1, text, finish)
    }

    /// Nobody can say whose answer this would be: it ends, the others go on.
    pub(crate) fn refuse_row(&self, error: StepError) -> Next {
        tracing::error!(request_id = %self.request, "a record of another request, or of another admission, in its row");
        self.deliver_error(error)
    }

    /// The request ends without its answer.
    pub(crate) fn deliver_error(&self, error: StepError) -> Next {
        if !self.cancelled() {
            // INVARIANT: a place is always kept for this; a closed channel is a cancel.
            let _closed = self.outlet.deliveries.try_send(self.delivery(Err(error)));
            self.outlet.progress.failed.store(true, Ordering::SeqCst);
        }
        Next::Ended
    }

    fn deliver_step(&mut self, trace: PageTrace, tokens: u32, text: String, finish: Option<FinishReason>) -> Next {
        if self.cancelled() {
            return Next::Ended;
        }
        if let Err(error) = self.outlet.check(self.request) {
            return self.refuse_row(error);
        }
        let restarted = std::mem::take(&mut self.restarted);
        let index = self.outlet.progress.next_step.fetch_add(1, Ordering::Relaxed);
        let seal = self.outlet.seal(index, &text, finish);
        let text = Completion::new(text);
        let step = Step { request: self.request, index, trace, restarted, tokens, text, finish, seal };
        let sent = self.outlet.deliveries.try_send(self.delivery(Ok(step)));
        if sent.is_err() || finish.is_some() { Next::Ended } else { Next::GoesOn }
    }

    fn delivery(&self, result: Result<Step, StepError>) -> Delivery {
        let completion_tokens = self.tokens.len() - self.prompt_tokens;
        let usage = Usage { prompt_tokens: self.prompt_tokens, completion_tokens };
        let prefill_us = self.outlet.progress.prefill_us.load(Ordering::Relaxed);
        Delivery { result, usage, timings: Timings { prefill_us, ..self.timings } }
    }
}

/// Of a token that was sampled, before penalties and temperature. For who examines a manifest; nothing depends on it.
fn log_prob(logits: &[f32], token: u32) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    (f64::from(logit - largest) - sum.ln()) as f32
}
