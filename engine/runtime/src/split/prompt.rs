//! What a prefill group gets to know of a request.

use super::Terms;
use crate::outlet::Presence;
use crate::sampling::Sampler;
use crate::ticket::{Ticket, Ticketed};
use engine_handoff::{RequestDigest, RequestFacts};
use policies_domain::{Label, RequestId};

/// A request as far as its first token depends on it. No text comes of it, and no way to its reader is in it.
pub(crate) struct Prompt {
    pub(crate) request: RequestId,
    /// In the admission that it is computed for.
    pub(crate) ticket: Ticket,
    pub(crate) label: Label,
    /// What was sampled before a preemption is part of it.
    pub(crate) tokens: Vec<u32>,
    /// Tokens of them that the client sent.
    pub(crate) prompt_tokens: usize,
    pub(crate) tokens_max: usize,
    pub(crate) sampler: Ticketed<Sampler>,
    /// Which try it is.
    pub(crate) restarts: u32,
    /// Of the reader, when it is in this process.
    pub(crate) presence: Option<Presence>,
}

impl Prompt {
    /// As [`Terms::digest`] makes it.
    pub(crate) fn digest(&self, terms: &Terms) -> RequestDigest {
        terms.digest(self.label, &self.tokens, self.sampler.of(self.ticket).ok())
    }
}

impl Terms {
    /// Of one's own copy of a request. A sampler that is another request's gives a digest that is nobody's.
    pub(crate) fn digest(&self, domain: Label, tokens: &[u32], sampler: Option<&Sampler>) -> RequestDigest {
        let sampling = &sampler.map(Sampler::facts).unwrap_or_default();
        let facts = RequestFacts { domain, tokens, sampling, adapter_generation: 0, fingerprint: self.fingerprint };
        facts.digest(&self.key)
    }
}
