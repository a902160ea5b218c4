//! One request inside the engine: its tokens, its pages, its way out.

use crate::compute::Compute;
use crate::detokenizer::{Detokenized, Detokenizer};
use crate::draft::Draft;
use crate::machine::Swapped;
use crate::outlet::{Group, Outlet, Reader, Said, Spoken};
use crate::replay_digest::AnswerRecord;
use crate::sampling::{Sampler, Sampling, SamplingScratch};
use crate::sequence::Sequence;
use crate::split::Prompt;
use crate::steps::{Delivery, StepError, Timings, Usage};
use crate::ticket::{Ticket, Ticketed};
use crate::traced_table::TracedTable;
use engine_handoff::{FirstStep, FirstToken, Route};
use engine_kernels::PageRef;
use engine_kv::{BlockTable, PAGE_TOKENS};
use policies_domain::{Completion, Epoch, FinishReason, Label, PageTrace, RequestId, Sealer, Step};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A request from submission to its last step. Dropping it frees its pages.
pub(crate) struct Running {
    pub(crate) request: RequestId,
    /// In its latest admission; all its records have the same.
    pub(crate) ticket: Ticket,
    pub(crate) label: Label,
    /// Prompt, then completion.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt that were found in the prefix cache, in its first admission.
    pub(crate) cached_tokens: usize,
    /// Length at which the response is cut.
    pub(crate) tokens_max: usize,
    /// Tokens whose keys and values are in `block_table`.
    pub(crate) computed: usize,
    /// `None` until the request is admitted, again while it is preempted, and while its prompt is computed elsewhere.
    pub(crate) block_table: Option<BlockTable>,
    /// The handoff that its pages come through, when they do.
    pub(crate) route: Option<Route>,
    /// The token that came with its pages, before it was delivered.
    pub(crate) first: Option<FirstWord>,
    /// What was heard of its prompt and is not delivered yet, because its reader does not read.
    heard: VecDeque<Heard>,
    /// `block_table` as the kernels get it; says whose that is.
    table: Option<Ticketed<TracedTable>>,
    pub(crate) sampler: Ticketed<Sampler>,
    pub(crate) detokenizer: Ticketed<Detokenizer>,
    /// What it may say next, guessed from its own tokens.
    pub(crate) draft: Ticketed<Draft>,
    pub(crate) outlet: Outlet,
    pub(crate) submitted: Instant,
    /// Its number among all that were queued: the oldest has the lowest.
    pub(crate) arrival: u64,
    pub(crate) timings: Timings,
    /// When the step loop took it in.
    pub(crate) came: Duration,
    /// What it had computed before it gave way, when that is kept.
    pub(crate) swapped: Option<Swapped>,
    /// What was computed for it cost so much, in nanoseconds, and whoever answers for it was not told yet.
    pub(crate) cost_ns: u64,
    /// How often it was preempted.
    pub(crate) restarts: u32,
    /// Handoffs of it that ended for no reason of its own.
    pub(crate) handoffs_failed: u32,
    /// It was preempted, and no step has said so yet.
    pub(crate) restarted: bool,
}

/// A token that was sampled where the prompt was computed, and the replay digest after it.
#[derive(Clone, Copy)]
pub(crate) struct FirstWord {
    pub(crate) token: u32,
    pub(crate) digest: [u8; 32],
}

/// Something that the prefill group said.
enum Heard {
    Read { trace: PageTrace, restarted: bool },
    Failed(StepError),
}

/// What a request says in one step: one token, or several when it was guessed right.
#[derive(Default)]
pub(crate) struct Words {
    pub(crate) tokens: u32,
    pub(crate) text: String,
    pub(crate) finish: Option<FinishReason>,
}

impl Words {
    /// Copies nothing as long as there is only one piece.
    fn say(&mut self, text: String) {
        if self.text.is_empty() {
            self.text = text;
        } else {
            self.text += &text;
        }
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
    pub(crate) fn new(sequence: Sequence, sampling: Sampling, tokens_max: usize, reader: Reader) -> Self {
        let Sequence { tokens, label, request } = sequence;
        let ticket = Ticket::of(request);
        let detokenizer = Ticketed::new(ticket, Detokenizer::new(&sampling.stop));
        let prompt = Prompt {
            request,
            ticket,
            label,
            prompt_tokens: tokens.len(),
            tokens_max,
            sampler: Ticketed::new(ticket, Sampler::new(sampling, &tokens)),
            tokens,
            restarts: 0,
            presence: None,
        };
        Self::with(prompt, detokenizer, Outlet::Reader(reader))
    }

    /// Of a request whose prompt is computed here for another group, which is told what is read.
    pub(crate) fn of_prompt(mut prompt: Prompt, route: Route, spoken: Spoken) -> Self {
        let detokenizer = Ticketed::new(prompt.ticket, Detokenizer::new(&[]));
        let outlet = Outlet::Group(Group { request: prompt.request, route, presence: prompt.presence.take(), spoken });
        Self { route: Some(route), ..Self::with(prompt, detokenizer, outlet) }
    }

    fn with(prompt: Prompt, detokenizer: Ticketed<Detokenizer>, outlet: Outlet) -> Self {
        let Prompt { request, ticket, label, tokens, prompt_tokens, tokens_max, sampler, restarts, presence: _ } =
            prompt;
        Self {
            request,
            ticket,
            label,
            tokens,
            prompt_tokens,
            cached_tokens: 0,
            tokens_max,
            computed: 0,
            block_table: None,
            route: None,
            first: None,
            heard: VecDeque::new(),
            table: None,
            detokenizer,
            sampler,
            draft: Ticketed::new(ticket, Draft::new(tokens_max)),
            outlet,
            submitted: Instant::now(),
            arrival: 0,
            timings: Timings::default(),
            came: Duration::ZERO,
            swapped: None,
            cost_ns: 0,
            restarts,
            handoffs_failed: 0,
            restarted: false,
        }
    }

    /// The client has dropped its [`crate::Steps`] or was told of a failure, or this is an earlier try of the request.
    pub(crate) fn cancelled(&self) -> bool {
        self.outlet.is_closed(self.restarts)
    }

    /// Its channel takes another step, and a last word after it.
    pub(crate) fn has_room(&self) -> bool {
        self.outlet.has_room()
    }

    /// Its reader has taken all that was there and waits: going on is worth a recomputation.
    pub(crate) fn may_resume(&self) -> bool {
        self.outlet.is_empty() && self.heard.is_empty()
    }

    /// What a prefill group gets to know of the request.
    pub(crate) fn prompt(&self) -> Prompt {
        let presence = match &self.outlet {
            Outlet::Reader(reader) => Some(reader.presence.clone()),
            Outlet::Group(_) => None,
        };
        Prompt {
            request: self.request,
            ticket: self.ticket,
            label: self.label,
            tokens: self.tokens.clone(),
            prompt_tokens: self.prompt_tokens,
            tokens_max: self.tokens_max,
            sampler: self.sampler.clone(),
            restarts: self.restarts,
            presence,
        }
    }

    /// With which its steps are sealed, where its own reader's way out is.
    pub(crate) fn sealer(&self) -> Option<&Sealer> {
        match &self.outlet {
            Outlet::Reader(reader) if self.outlet.check(self.request).is_ok() => Some(reader.sealer()),
            _ => None,
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

    /// Of these, what comes free when it gives way: what others hold as well, its tenant's cache among them, does not.
    pub(crate) fn pages_to_give(&self) -> usize {
        self.pages() - self.block_table.as_ref().map_or(0, BlockTable::pages_shared)
    }

    /// It gets pages, of which it has read nothing. Those that its tenant's cache had are computed already. When a step was
    /// delivered before, its reader learns that these are others.
    pub(crate) fn begin(&mut self, block_table: BlockTable) {
        self.computed = block_table.tokens();
        if self.restarts == 0 {
            self.cached_tokens = self.computed;
        }
        self.hold(block_table);
        self.restarted |= matches!(&self.outlet, Outlet::Reader(reader) if reader.has_begun());
    }

    /// It lets go of its pages and is computed anew from its first token.
    pub(crate) fn begin_anew(&mut self) {
        (self.block_table, self.table, self.route, self.first) = (None, None, None, None);
        self.computed = 0;
        if let Ok(draft) = self.draft.of_mut(self.ticket) {
            draft.rest();
        }
        self.restarted = true;
        self.restarts += 1;
        if let Outlet::Reader(reader) = &self.outlet {
            reader.presence.note_restart(self.restarts);
        }
    }

    /// It gets pages, for this admission.
    pub(crate) fn hold(&mut self, block_table: BlockTable) {
        self.table = Some(Ticketed::new(self.ticket, TracedTable::new(block_table.sequence())));
        self.block_table = Some(block_table);
    }

    /// The block table that it was given in this admission, and as the kernels get it.
    ///
    /// # Errors
    /// [`StepError::RowBinding`] when another stands in its place.
    pub(crate) fn table(&mut self) -> Result<(&BlockTable, &mut TracedTable), StepError> {
        let block_table = self.block_table.as_ref().ok_or(StepError::Internal)?;
        let table = self.table.as_mut().ok_or(StepError::RowBinding)?.of_mut(self.ticket)?;
        if block_table.sequence() == table.sequence() { Ok((block_table, table)) } else { Err(StepError::RowBinding) }
    }

    /// What the kernels get; nothing when it is not this admission's.
    pub(crate) fn entries(&self) -> &[PageRef] {
        self.table.as_ref().and_then(|table| table.of(self.ticket).ok()).map_or(&[], TracedTable::entries)
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
        self.draft.renew(self.ticket, ticket)?;
        self.ticket = ticket;
        if let Outlet::Reader(reader) = &mut self.outlet {
            reader.note_admission(epoch);
        }
        if self.restarts == 0 {
            self.timings.queued_us = u64::try_from(self.submitted.elapsed().as_micros()).unwrap_or(u64::MAX);
        }
        Ok(())
    }

    /// Its next tokens are in its pages.
    ///
    /// # Errors
    /// [`StepError::Internal`] when a page was put out of use meanwhile.
    pub(crate) fn note_written(&mut self, tokens: usize) -> Result<(), StepError> {
        self.computed += tokens;
        let block_table = self.block_table.as_mut().ok_or(StepError::Internal)?;
        block_table.advance(tokens).map_err(|_| StepError::Internal)
    }

    /// One token is left to compute, and it is one that was sampled.
    pub(crate) fn decodes(&self) -> bool {
        self.tokens.len() > self.prompt_tokens && self.tokens.len() - self.computed == 1
    }

    /// A prefill chunk that gives no text, or not here.
    pub(crate) fn deliver_read(&mut self, trace: PageTrace) -> Next {
        if let Outlet::Reader(_) = &self.outlet {
            return self.deliver_step(trace, 0, String::new(), None);
        }
        if self.cancelled() {
            return Next::Ended;
        }
        if let Err(error) = self.outlet.check(self.request) {
            return self.refuse_row(error);
        }
        if let Outlet::Group(group) = &self.outlet {
            let (prefill_us, cost_ns) =
                (std::mem::take(&mut self.timings.prefill_us), std::mem::take(&mut self.cost_ns));
            let cached_tokens = self.cached_tokens;
            group.say(Said::Read { trace, prefill_us, cost_ns, cached_tokens });
        }
        Next::GoesOn
    }

    /// Takes in what the prefill group said: for the reader, as soon as it reads.
    pub(crate) fn hear(&mut self, said: Said) {
        self.heard.push_back(match said {
            Said::Read { trace, prefill_us, cost_ns: _, cached_tokens } => {
                if self.restarts == 0 {
                    self.cached_tokens = cached_tokens;
                }
                self.timings.prefill_us += prefill_us;
                Heard::Read { trace, restarted: std::mem::take(&mut self.restarted) }
            }
            Said::Failed(error) => Heard::Failed(error),
        });
    }

    /// The reader gets what it has room for. `Some`: the prompt could not be computed.
    pub(crate) fn deliver_heard(&mut self) -> Option<StepError> {
        while self.has_room() {
            match self.heard.pop_front()? {
                Heard::Read { trace, restarted } => {
                    let since = std::mem::replace(&mut self.restarted, restarted);
                    self.deliver_read(trace);
                    self.restarted = since;
                }
                Heard::Failed(error) => return Some(error),
            }
        }
        None
    }

    /// Something was heard and is not delivered.
    pub(crate) fn has_heard(&self) -> bool {
        !self.heard.is_empty()
    }

    /// It is known that its prompt cannot be computed, and its reader will be told.
    pub(crate) fn will_fail(&self) -> bool {
        self.heard.iter().any(|heard| matches!(heard, Heard::Failed(_)))
    }

    /// The logits after the last token: samples one, turns it into text, notices the end.
    ///
    /// # Errors
    /// Why the request ends without this token.
    pub(crate) fn say(
        &mut self,
        logits: &[f32],
        compute: &impl Compute,
        scratch: &mut SamplingScratch,
        said: &mut Words,
    ) -> Result<u32, StepError> {
        let token = self.sample(logits, scratch)?;
        self.take_in(token, compute, said)?;
        Ok(token)
    }

    /// What was said in a step leaves.
    pub(crate) fn deliver_said(&mut self, trace: PageTrace, said: Words) -> Next {
        let Words { tokens, text, finish } = said;
        self.deliver_step(trace, tokens, text, finish)
    }

    /// The next token; or the request ends, because the sampler is another's or a logit is not a number.
    fn sample(&mut self, logits: &[f32], scratch: &mut SamplingScratch) -> Result<u32, StepError> {
        self.sampler.of_mut(self.ticket)?.sample(logits, scratch).ok_or(StepError::NotANumber)
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
            Err(error) => return self.refuse(error),
        };
        let log_prob_bits = log_prob(logits, token).to_bits();
        let (sampler, replay) = match self.sampler.of(self.ticket) {
            Ok(sampler) => (sampler.state(), sampler.digest().unwrap_or_default().bytes()),
            Err(error) => return self.refuse_row(error),
        };
        let first = FirstStep { token: FirstToken::new(token), log_prob_bits, sampler, grammar: [0; 32], replay };
        match self.deliver_read(trace) {
            Next::GoesOn => Next::Prefilled(first),
            ended => ended,
        }
    }

    /// The token that came with the pages. They are the request's now, which no step has said so far.
    pub(crate) fn deliver_first(&mut self, trace: PageTrace, first: FirstWord, compute: &impl Compute) -> Next {
        let token = first.token;
        match self.sampler.of_mut(self.ticket) {
            Ok(sampler) => {
                sampler.skip(token);
                sampler.take_digest(first.digest);
            }
            Err(error) => return self.refuse_row(error),
        }
        self.restarted = true;
        let mut said = Words::default();
        match self.take_in(token, compute, &mut said) {
            Ok(()) => self.deliver_said(trace, said),
            Err(error) => self.refuse_row(error),
        }
    }

    /// The next token is known.
    fn take_in(&mut self, token: u32, compute: &impl Compute, said: &mut Words) -> Result<(), StepError> {
        self.tokens.push(token);
        said.tokens += 1;
        let detokenizer = self.detokenizer.of_mut(self.ticket)?;
        let Detokenized { text, stopped } = detokenizer.push(compute.text(token).unwrap_or_default());
        said.say(text);
        said.finish = if compute.is_end(token) || stopped {
            Some(FinishReason::Stop)
        } else if self.tokens.len() >= self.tokens_max {
            Some(FinishReason::Length)
        } else {
            None
        };
        if said.finish.is_some() && !stopped {
            said.say(detokenizer.finish());
        }
        Ok(())
    }

    /// Its guesses of this step.
    ///
    /// # Errors
    /// [`StepError::RowBinding`] when they are another's.
    pub(crate) fn guesses(&self) -> Result<&[u32], StepError> {
        Ok(self.draft.of(self.ticket)?.guesses())
    }

    /// It ends without an answer, or without the rest of it.
    pub(crate) fn refuse(&self, error: StepError) -> Next {
        match error {
            StepError::NotANumber => {
                let position = self.tokens.len();
                tracing::error!(request_id = %self.request, position, "the model's output is not a number");
                self.deliver_error(error)
            }
            error => self.refuse_row(error),
        }
    }

    /// Nobody can say whose answer this would be: it ends, the others go on.
    pub(crate) fn refuse_row(&self, error: StepError) -> Next {
        tracing::error!(request_id = %self.request, "a record of another request, or of another admission, in its row");
        self.deliver_error(error)
    }

    /// The request ends without its answer.
    pub(crate) fn deliver_error(&self, error: StepError) -> Next {
        if !self.cancelled() {
            match &self.outlet {
                Outlet::Reader(reader) => {
                    // INVARIANT: a place is always kept for this; a closed channel is a cancel.
                    let _closed = reader.send(self.delivery(Err(error)));
                    reader.presence.note_failure();
                }
                Outlet::Group(group) => group.say(Said::Failed(error)),
            }
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
        let Outlet::Reader(reader) = &mut self.outlet else { return self.deliver_error(StepError::Internal) };
        let restarted = std::mem::take(&mut self.restarted);
        let (index, seal) = reader.seal(&text, finish);
        let text = Completion::new(text);
        let step = Step { request: self.request, index, trace, restarted, tokens, text, finish, seal };
        let delivery = self.delivery(Ok(step));
        let sent = matches!(&self.outlet, Outlet::Reader(reader) if reader.send(delivery));
        if sent && finish.is_none() { Next::GoesOn } else { Next::Ended }
    }

    fn delivery(&self, result: Result<Step, StepError>) -> Delivery {
        let completion_tokens = self.tokens.len() - self.prompt_tokens;
        let (prompt_tokens, cached_tokens) = (self.prompt_tokens, self.cached_tokens);
        let usage = Usage { prompt_tokens, cached_tokens, completion_tokens };
        let ends = result.as_ref().is_ok_and(|step| step.finish.is_some());
        let record = if ends { self.record().map(Box::new) } else { None };
        Delivery { result, usage, timings: self.timings, record }
    }

    /// Of the whole answer, where that is wanted.
    fn record(&self) -> Option<AnswerRecord> {
        let digest = self.sampler.of(self.ticket).ok()?.digest()?.bytes();
        Some(AnswerRecord { tokens: self.tokens[self.prompt_tokens..].to_vec(), digest })
    }
}

/// Of a token that was sampled, before penalties and temperature. For who examines a manifest; nothing depends on it.
fn log_prob(logits: &[f32], token: u32) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    (f64::from(logit - largest) - sum.ln()) as f32
}
