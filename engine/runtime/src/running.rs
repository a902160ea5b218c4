//! One request inside the engine: its tokens, its pages, its way out.

use crate::detokenizer::{Detokenized, Detokenizer};
use crate::sampling::{Sampler, SamplingScratch};
use crate::steps::{Delivery, STEPS_AHEAD, StepError, Timings, Usage};
use engine_kv::BlockTable;
use engine_model::Tokenizer;
use policies_domain::{Completion, FinishReason, Label, PageTrace, RequestId, Step};
use std::time::Instant;
use tokio::sync::mpsc;

/// A request from submission to its last step. Dropping it frees its pages.
pub(crate) struct Running {
    pub(crate) request: RequestId,
    pub(crate) label: Label,
    /// Prompt, then completion.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_tokens: usize,
    /// Length at which the response is cut.
    pub(crate) tokens_max: usize,
    /// Tokens whose keys and values are in `block_table`.
    pub(crate) computed: usize,
    /// `None` until the request is admitted, and again while it is preempted.
    pub(crate) block_table: Option<BlockTable>,
    pub(crate) sampler: Sampler,
    pub(crate) detokenizer: Detokenizer,
    pub(crate) deliveries: mpsc::Sender<Delivery>,
    pub(crate) submitted: Instant,
    pub(crate) timings: Timings,
    pub(crate) next_step: u32,
    /// How often it was preempted.
    pub(crate) restarts: u32,
    /// It was preempted, and no step has said so yet.
    pub(crate) restarted: bool,
}

/// Whether a request goes on after a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    GoesOn,
    Ended,
}

impl Running {
    /// The client has dropped its [`crate::Steps`].
    pub(crate) fn cancelled(&self) -> bool {
        self.deliveries.is_closed()
    }

    /// Its channel takes another step.
    pub(crate) fn has_room(&self) -> bool {
        self.deliveries.capacity() > 0
    }

    /// Its reader has taken all that was there and waits: going on is worth a recomputation.
    pub(crate) fn may_resume(&self) -> bool {
        self.deliveries.capacity() == STEPS_AHEAD
    }

    /// It has a slot. Only the first one ends its time in the queue.
    pub(crate) fn note_admission(&mut self) {
        if self.restarts == 0 {
            self.timings.queued_us = u64::try_from(self.submitted.elapsed().as_micros()).unwrap_or(u64::MAX);
        }
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
        tokenizer: &Tokenizer,
        scratch: &mut SamplingScratch,
    ) -> Next {
        let Some(token) = self.sampler.sample(logits, scratch) else {
            let position = self.tokens.len();
            tracing::error!(request_id = %self.request, position, "the model's output is not a number");
            return self.deliver_error(StepError::NotANumber);
        };
        self.tokens.push(token);
        let ends = tokenizer.is_end(token);
        let bytes = if tokenizer.is_control(token) { None } else { tokenizer.token_bytes(token) };
        let Detokenized { mut text, stopped } = self.detokenizer.push(bytes.unwrap_or_default());
        let finish = if ends || stopped {
            Some(FinishReason::Stop)
        } else if self.tokens.len() >= self.tokens_max {
            Some(FinishReason::Length)
        } else {
            None
        };
        if finish.is_some() && !stopped {
            text += &self.detokenizer.finish();
        }
        self.deliver_step(trace, 1, text, finish)
    }

    /// The request ends without its answer.
    pub(crate) fn deliver_error(&self, error: StepError) -> Next {
        // INVARIANT: `has_room` was asked before the step, and only this thread sends; a closed channel is a cancel.
        let _closed = self.deliveries.try_send(self.delivery(Err(error)));
        Next::Ended
    }

    fn deliver_step(&mut self, trace: PageTrace, tokens: u32, text: String, finish: Option<FinishReason>) -> Next {
        let text = Completion::new(text);
        let restarted = std::mem::take(&mut self.restarted);
        let step = Step { request: self.request, index: self.next_step, trace, restarted, tokens, text, finish };
        self.next_step += 1;
        let sent = self.deliveries.try_send(self.delivery(Ok(step)));
        if sent.is_err() || finish.is_some() { Next::Ended } else { Next::GoesOn }
    }

    fn delivery(&self, result: Result<Step, StepError>) -> Delivery {
        let completion_tokens = self.tokens.len() - self.prompt_tokens;
        let usage = Usage { prompt_tokens: self.prompt_tokens, completion_tokens };
        Delivery { result, usage, timings: self.timings }
    }
}
