//! Several tokens of a request in one step: guessed before the pass, sampled one after the other behind it.
//!
//! The sampler is asked after every token, as without guesses, and what it says is what the request says. A guess only
//! decides whether the logits after the next token are there already: they are when the guess is what was sampled, and the
//! kernels give the same bits for a token in whatever pass it is. What was computed after a wrong guess is not written as
//! far as the ledger knows, and is overwritten before anybody reads it.

use super::{Part, Stepper};
use crate::compute::Compute;
use crate::draft::ROWS_MAX;
use crate::machine::Machine;
use crate::running::{Next, Running, Words};
use crate::steps::StepError;
use engine_kv::PAGE_TOKENS;
use policies_domain::PageTrace;
use std::borrow::Cow;

impl Stepper {
    /// Guesses for those who decode, as far as it pays and there is room.
    pub(super) fn guess(&mut self, machine: &mut Machine<impl Compute>, group: &mut [Part]) {
        let rows = group.len();
        if rows >= ROWS_MAX || !self.config.speculation {
            return;
        }
        for part in group {
            let request = &mut self.running[part.index];
            let terms = self.scheduler.tenancy().of(request.label);
            if !terms.speculates || terms.exclusive {
                continue;
            }
            // Whoever had more than its share has no rows that may be for nothing while others wait.
            if !self.scheduler.may_guess(request.label) {
                continue;
            }
            let row_part = self.scheduler.costs().row_part(request.computed) as f32;
            // Whoever finds another's draft in its row ends when its row is resolved.
            let Ok(draft) = request.draft.of_mut(request.ticket) else { continue };
            let wanted = draft.make(&request.tokens, rows, row_part);
            part.guesses = room(machine, request, part.end, wanted, self.config.sequences_max);
            part.end += part.guesses;
            if let Ok(draft) = request.draft.of_mut(request.ticket) {
                draft.shorten(part.guesses);
            }
        }
    }

    /// Samples after the part's last sure token, and after each guess as long as the sampler has said the same. All that was
    /// said leaves together.
    pub(super) fn say(&mut self, machine: &Machine<impl Compute>, part: &Part, span: usize, trace: PageTrace) -> Next {
        let (mut said, mut right) = (Words::default(), 0);
        let ended = loop {
            let Some(logits) = self.logits(machine, part, span + right) else {
                // Computed, without a fault and asked for: it is there, and another's.
                return self.running[part.index].refuse_row(StepError::RowBinding);
            };
            let request = &mut self.running[part.index];
            let sampled = match request.say(&logits, &machine.compute, &mut self.scratch, &mut said) {
                Ok(sampled) => sampled,
                Err(error) => break Some(error),
            };
            let guess = request.guesses().ok().and_then(|guesses| guesses.get(right).copied());
            if right == part.guesses || said.finish.is_some() || guess != Some(sampled) {
                break None;
            }
            right += 1;
        };
        self.counters.guessed(part.guesses, right);
        let request = &mut self.running[part.index];
        if let Ok(draft) = request.draft.of_mut(request.ticket)
            && part.guesses > 0
        {
            draft.learn(right);
        }
        if let Err(error) = request.note_written(right) {
            return request.deliver_error(error);
        }
        match ended {
            None => request.deliver_said(trace, said),
            // What was said before it is as good as without guesses.
            Some(StepError::NotANumber) if said.tokens > 0 => match request.deliver_said(trace, said) {
                Next::GoesOn => request.refuse(StepError::NotANumber),
                ended => ended,
            },
            Some(error) => request.refuse(error),
        }
    }

    /// The logits of one of the part's spans, for its own ticket.
    pub(super) fn logits<'a>(
        &self,
        machine: &'a Machine<impl Compute>,
        part: &Part,
        span: usize,
    ) -> Option<Cow<'a, [f32]>> {
        #[cfg(feature = "fault-injection")]
        if let Some(logits) = self.planted_logits(machine, part, span) {
            return Some(Cow::Owned(logits));
        }
        #[cfg(feature = "fault-injection")]
        let span = self.planted.row_for(self.running[part.index].label, span);
        machine.compute.logits(span, part.ticket.row()).map(Cow::Borrowed)
    }
}

/// How many guesses after the first `end` tokens there are pages for. One more page is taken when everybody could take one:
/// nobody gives way for a guess.
fn room(
    machine: &mut Machine<impl Compute>,
    request: &mut Running,
    end: usize,
    guesses: usize,
    sequences_max: usize,
) -> usize {
    let Some(block_table) = &mut request.block_table else { return 0 };
    let room = |pages: usize| (pages * PAGE_TOKENS).saturating_sub(end).min(guesses);
    let there = room(block_table.pages());
    if there == guesses || machine.pool.counts().free <= sequences_max {
        return there;
    }
    match machine.grow(block_table, end + guesses) {
        Ok(()) => guesses,
        Err(_) => room(block_table.pages()),
    }
}
