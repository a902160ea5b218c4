//! Text that passed the gate, with the seals of the steps that it comes from.

use policies_domain::{Completion, FinishReason, Seal, SealError, Step, Verifier};

/// Text that passed the gate. There is no other way to make one, and `send` takes nothing else.
#[derive(Debug)]
pub struct Released {
    text: Completion,
    finish: Option<FinishReason>,
    tokens: u32,
    first_step: u32,
    last_step: u32,
    /// One for each step, in order; their bytes together are the text.
    seals: Vec<StepSeal>,
}

/// How much of the text one step made, and its seal.
#[derive(Debug)]
struct StepSeal {
    bytes: usize,
    seal: Seal,
}

/// Which steps released text comes from: of text that passed the gate, and of nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleasedSteps {
    first: u32,
    last: u32,
}

impl ReleasedSteps {
    /// The first of them.
    #[must_use]
    pub fn first(self) -> u32 {
        self.first
    }

    /// The last of them.
    #[must_use]
    pub fn last(self) -> u32 {
        self.last
    }

    /// These and all up to those.
    #[must_use]
    pub fn through(self, later: Self) -> Self {
        Self { first: self.first.min(later.first), last: self.last.max(later.last) }
    }
}

impl Released {
    /// For the gate alone.
    pub(crate) fn of(step: Step) -> Self {
        Self {
            seals: vec![StepSeal { bytes: step.text.len(), seal: step.seal }],
            text: step.text,
            finish: step.finish,
            tokens: step.tokens,
            first_step: step.index,
            last_step: step.index,
        }
    }

    /// Compares the text with the seals that its steps were given at sampling. The gate does not: it has no key.
    ///
    /// # Errors
    /// That of the first step that the verifier refuses.
    pub fn verify(&self, verifier: &mut Verifier) -> Result<(), SealError> {
        let (mut rest, last) = (self.text.reveal().as_bytes(), self.seals.len().saturating_sub(1));
        for (number, StepSeal { bytes, seal }) in self.seals.iter().enumerate() {
            let (text, after) = rest.split_at_checked(*bytes).ok_or_else(|| verifier.refuse())?;
            verifier.verify(seal, text, self.finish.filter(|_| number == last))?;
            rest = after;
        }
        if rest.is_empty() { Ok(()) } else { Err(verifier.refuse()) }
    }

    /// What may be sent; empty when the step made no text final.
    #[must_use]
    pub fn text(&self) -> &Completion {
        &self.text
    }

    /// Set with the last step of a response.
    #[must_use]
    pub fn finish(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Completion tokens of these steps.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The first step that this text comes from.
    #[must_use]
    pub fn first_step(&self) -> u32 {
        self.first_step
    }

    /// The last step that this text comes from.
    #[must_use]
    pub fn last_step(&self) -> u32 {
        self.last_step
    }

    /// All of them.
    #[must_use]
    pub fn steps(&self) -> ReleasedSteps {
        ReleasedSteps { first: self.first_step, last: self.last_step }
    }

    /// Joins the text of the step that follows directly, for responses that leave in one piece.
    ///
    /// # Errors
    /// Gives `next` back, and leaves `self` as it was, when it does not begin where `self` ends.
    pub fn append(&mut self, next: Self) -> Result<(), Self> {
        if self.last_step.checked_add(1) != Some(next.first_step) || self.finish.is_some() {
            return Err(next);
        }
        let mut text = String::with_capacity(self.text.len() + next.text.len());
        text.push_str(self.text.reveal());
        text.push_str(next.text.reveal());
        self.text = Completion::new(text);
        self.finish = next.finish;
        self.tokens = self.tokens.saturating_add(next.tokens);
        self.last_step = next.last_step;
        self.seals.extend(next.seals);
        Ok(())
    }
}
