//! The forward pass of a Llama-family decoder over a batch of spans.
//!
//! Bits: the logits of a token are the same whatever else is in the run, however its prompt was divided, wherever its
//! pages lie, on any number of threads, in prefill and in decode. Each kernel keeps that for itself (see
//! `engine_kernels`), and this file only calls them row by row or for all rows alike.

mod trial;

use std::sync::Arc;

use engine_kernels::{
    Activations, AttentionPlan, HeadNorms, HeadShape, HeadTransform, KernelFamily, KvStore, Matrix, PAGE_TOKENS,
    PageFault, PageFaults, PageRef, ReadSetRule, ReadSums, Rope, Span, Team, attention, product, product_add,
    product_swiglu, quantise, rms_norm, rms_norm_add, rotate_and_append,
};

use crate::config::{LayerRope, ModelConfig};
use crate::model::Model;
use crate::weights::{LayerWeights, Weights};
pub(crate) use trial::gives_numbers;

/// Why a run was not computed. No logits of it are to be had; K and V of its tokens may be in their pages or not, and
/// the same run may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// `stop` said so.
    #[error("the run was stopped")]
    Stopped,
    /// More tokens than the pass was made for.
    #[error("the run has {tokens} tokens, at most {tokens_max} are possible")]
    TooManyTokens {
        /// Of all spans.
        tokens: usize,
        /// As given to [`Forward::new`].
        tokens_max: usize,
    },
    /// A span has no tokens.
    #[error("span {span} is empty")]
    EmptySpan {
        /// Which one.
        span: usize,
    },
    /// A span has fewer pages than its tokens need.
    #[error("span {span} has {pages} pages, its tokens need {pages_needed}")]
    TooFewPages {
        /// Which one.
        span: usize,
        /// Pages given.
        pages: usize,
        /// Pages up to its last token.
        pages_needed: usize,
    },
    /// A span goes past the context that the model was made for.
    #[error("span {span} ends at position {end}, the context has {context_length}")]
    BeyondContext {
        /// Which one.
        span: usize,
        /// One past its last token.
        end: usize,
        /// Of the model.
        context_length: usize,
    },
    /// A span has a token that the vocabulary does not have.
    #[error("span {span} has a token outside the vocabulary of {vocab}")]
    UnknownToken {
        /// Which one.
        span: usize,
        /// Tokens that there are.
        vocab: usize,
    },
    /// The store was made for another model.
    #[error("the store of K and V has other dimensions than the model")]
    StoreShape,
}

/// A team of threads, the memory that a run needs, and the results of the last run.
pub struct Forward {
    model: Arc<Model>,
    pass: Pass,
}

impl Forward {
    /// For runs of up to `tokens_max` tokens on `threads`, the caller's included.
    #[must_use]
    pub fn new(model: Arc<Model>, threads: usize, tokens_max: usize) -> Self {
        let pass = Pass::new(model.config(), model.weights(), Team::new(threads), tokens_max);
        Self { model, pass }
    }

    /// As [`Forward::new`], with a family of instructions that is not the machine's best: for tests and comparisons.
    /// `None` when this machine lacks it.
    #[must_use]
    pub fn with_family(model: Arc<Model>, threads: usize, tokens_max: usize, family: KernelFamily) -> Option<Self> {
        let team = Team::with_family(threads, family)?;
        let pass = Pass::new(model.config(), model.weights(), team, tokens_max);
        Some(Self { model, pass })
    }

    /// Computes the tokens of all spans: appends their K and V to their pages, and computes the logits asked for.
    /// `stop` is asked before every layer, on the calling thread.
    ///
    /// Several spans may belong to one sequence, in order. A span whose pages are not its own gets a fault (see
    /// [`Forward::fault`]) and disturbs no other.
    ///
    /// # Errors
    /// [`ForwardError`]; nothing but `Stopped` happens after work has begun.
    pub fn run(
        &mut self,
        store: &mut KvStore,
        spans: &[Span<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), ForwardError> {
        self.pass.run(self.model.config(), self.model.weights(), store, spans, stop)
    }

    /// Logits `[vocab]` of a span's last token, of the last run. `None` for spans that did not ask, that had a fault, that
    /// came with another ticket, or that there are not.
    #[must_use]
    pub fn logits(&self, span: usize, ticket: u64) -> Option<&[f32]> {
        self.pass.logits(span, ticket)
    }

    /// The page that was found not to be the span's in the last run, if any. The span's logits are withheld then, and
    /// what it wrote is not to be used.
    #[must_use]
    pub fn fault(&self, span: usize) -> Option<PageFault> {
        self.pass.faults.of(span)
    }

    /// The digest of the pages that attention read for a span in the last run, made of the tags that it loaded; `None`
    /// for spans that there were not. See [`Forward::expected_read_set`].
    #[must_use]
    pub fn read_set(&self, span: usize) -> Option<u64> {
        self.pass.faults.read_set(span)
    }

    /// The digest that [`Forward::read_set`] is to give for a span of `tokens` from `position` on, when the sequence's
    /// pages have these sums and the span's last token is in `last`.
    #[must_use]
    pub fn expected_read_set(&self, position: usize, tokens: usize, sums: &ReadSums, last: PageRef) -> u64 {
        self.pass.reads.expected_by_sums(position, tokens, sums, last)
    }

    /// Ties the calling thread, which is to be the one that calls [`Forward::run`], to a processor of its own when there
    /// is a thread for every processor.
    pub fn tie_caller(&self) {
        self.pass.team.tie_caller();
    }

    /// Threads that really run.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pass.team.threads()
    }
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forward").field("team", &self.pass.team).field("tokens_max", &self.pass.tokens_max).finish()
    }
}

/// [`Forward`] without the model: tests run it on weights of their own.
pub(crate) struct Pass {
    team: Team,
    tokens_max: usize,
    vocab: usize,
    heads: HeadShape,
    rope: Rope,
    /// Of blocks with a rotation of their own; without frequencies where no block has one.
    local_rope: Rope,
    attention: AttentionPlan,
    faults: PageFaults,
    reads: ReadSetRule,
    /// The residual stream, `[tokens][width]`.
    x: Vec<f32>,
    /// Input of the next product.
    input: Activations,
    /// Output of gate and up, input of down.
    hidden: Activations,
    /// `[tokens][qkv_width]`.
    qkv: Vec<f32>,
    /// `[tokens][query_width]`.
    attended: Vec<f32>,
    /// `[tokens][width]`: what is normed before it is added to the stream; empty where models do not do that.
    branch: Vec<f32>,
    /// 0, 1, 2, ...: rows of a norm over all tokens.
    all_rows: Vec<u32>,
    /// Rows whose logits are wanted, and the row of the logits of each span.
    logit_rows: Vec<u32>,
    logits_of: Vec<Option<usize>>,
    /// Of each span.
    tickets: Vec<u64>,
    /// `[wanted][vocab, padded]`.
    logits: Vec<f32>,
    /// Room of one row of `logits`.
    logits_stride: usize,
}

impl Pass {
    pub(crate) fn new(config: &ModelConfig, weights: &Weights, team: Team, tokens_max: usize) -> Self {
        let heads = HeadShape { heads: config.heads, kv_heads: config.kv_heads, head_dim: config.head_dim };
        let input_width = config.width.max(heads.query_width());
        Self {
            team,
            tokens_max,
            vocab: config.vocab,
            heads,
            rope: config.global_rotation(&weights.rope_factors),
            local_rope: config.local_rotation(),
            attention: AttentionPlan::default(),
            faults: PageFaults::default(),
            reads: ReadSetRule::new(config.kv_heads, config.blocks.iter().map(|block| block.window)),
            x: vec![0.0; tokens_max * config.width],
            input: Activations::new(tokens_max, input_width),
            hidden: Activations::new(tokens_max, config.ff_width),
            qkv: vec![0.0; tokens_max * heads.qkv_width()],
            attended: vec![0.0; tokens_max * heads.query_width()],
            branch: vec![0.0; if config.has_post_norms { tokens_max * config.width } else { 0 }],
            all_rows: (0u32..).take(tokens_max).collect(),
            logit_rows: Vec::new(),
            logits_of: Vec::new(),
            tickets: Vec::new(),
            logits: Vec::new(),
            logits_stride: weights.head.rows_padded(),
        }
    }

    pub(crate) fn run(
        &mut self,
        config: &ModelConfig,
        weights: &Weights,
        store: &mut KvStore,
        spans: &[Span<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), ForwardError> {
        self.logits_of.clear();
        self.tickets.clear();
        self.faults.reset(0);
        let tokens = self.check(config, store, spans)?;
        self.faults.reset(spans.len());
        self.tickets.extend(spans.iter().map(|span| span.ticket));
        self.rope.prepare(spans);
        self.local_rope.prepare(spans);
        self.attention.prepare(spans, self.heads, self.team.threads());
        self.embed(config, weights, spans);
        for (layer, weights) in weights.layers.iter().enumerate() {
            if stop() {
                return Err(ForwardError::Stopped);
            }
            self.layer(config, layer, weights, store, spans, tokens);
        }
        self.head(config, weights, spans);
        Ok(())
    }

    pub(crate) fn logits(&self, span: usize, ticket: u64) -> Option<&[f32]> {
        let row = (*self.logits_of.get(span)?)?;
        if self.faults.of(span).is_some() || self.tickets.get(span) != Some(&ticket) {
            return None;
        }
        self.logits.get(row * self.logits_stride..)?.get(..self.vocab)
    }

    /// Checks everything that the kernels rely on; gives the number of tokens.
    fn check(&self, config: &ModelConfig, store: &KvStore, spans: &[Span<'_>]) -> Result<usize, ForwardError> {
        let shape = store.shape();
        if (shape.layers, shape.kv_heads, shape.head_dim) != (config.layers, config.kv_heads, config.head_dim) {
            return Err(ForwardError::StoreShape);
        }
        let tokens = spans.iter().fold(0usize, |sum, span| sum.saturating_add(span.tokens.len()));
        if tokens > self.tokens_max {
            return Err(ForwardError::TooManyTokens { tokens, tokens_max: self.tokens_max });
        }
        for (number, span) in spans.iter().enumerate() {
            if span.tokens.is_empty() {
                return Err(ForwardError::EmptySpan { span: number });
            }
            let end = span.position.saturating_add(span.tokens.len());
            if end > config.context_length {
                let context_length = config.context_length;
                return Err(ForwardError::BeyondContext { span: number, end, context_length });
            }
            if !span.is_covered() {
                let (pages, pages_needed) = (span.pages.len(), end.div_ceil(PAGE_TOKENS));
                return Err(ForwardError::TooFewPages { span: number, pages, pages_needed });
            }
            if span.tokens.iter().any(|token| *token as usize >= config.vocab) {
                return Err(ForwardError::UnknownToken { span: number, vocab: config.vocab });
            }
        }
        Ok(tokens)
    }

    fn embed(&mut self, config: &ModelConfig, weights: &Weights, spans: &[Span<'_>]) {
        let tokens = spans.iter().flat_map(|span| span.tokens);
        for (token, x) in std::iter::zip(tokens, self.x.chunks_exact_mut(config.width)) {
            weights.embedding.row(*token as usize, x);
            if config.embedding_scale != 1.0 {
                x.iter_mut().for_each(|value| *value *= config.embedding_scale);
            }
        }
    }

    fn layer(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        weights: &LayerWeights,
        store: &mut KvStore,
        spans: &[Span<'_>],
        tokens: usize,
    ) {
        let Self { team, heads, attention: plan, faults, input, hidden, .. } = self;
        let x = &mut self.x[..tokens * config.width];
        let qkv = &mut self.qkv[..tokens * heads.qkv_width()];
        let attended = &mut self.attended[..tokens * heads.query_width()];
        let branch = &mut self.branch[..if config.has_post_norms { x.len() } else { 0 }];
        let all = &self.all_rows[..tokens];
        let eps = config.rms_eps;
        let transform = HeadTransform {
            norms: weights.head_norms.as_ref().map(|[query, key]| HeadNorms { query, key, eps }),
            rope: match config.blocks[layer].rope {
                LayerRope::None => None,
                LayerRope::Global => Some(&self.rope),
                LayerRope::Local => Some(&self.local_rope),
            },
            scale: config.attention_scale,
        };

        rms_norm(team, x, all, &weights.attention_norm, eps, input);
        product(team, &[&weights.query, &weights.key, &weights.value], input, qkv);
        rotate_and_append(team, store, layer, *heads, &transform, spans, qkv, faults);
        attention(team, store, layer, *heads, config.blocks[layer].window, plan, spans, qkv, faults, attended);
        quantise(team, attended, heads.query_width(), input);
        add(team, &weights.attention_output, input, weights.attention_post_norm.as_deref(), eps, branch, x);

        rms_norm(team, x, all, &weights.ff_norm, eps, input);
        product_swiglu(team, &weights.ff_gate, &weights.ff_up, config.activation, input, hidden);
        add(team, &weights.ff_down, hidden, weights.ff_post_norm.as_deref(), eps, branch, x);
    }

    /// Logits of the last tokens of the spans that asked.
    fn head(&mut self, config: &ModelConfig, weights: &Weights, spans: &[Span<'_>]) {
        self.logit_rows.clear();
        let mut row = 0;
        for span in spans {
            row += span.tokens.len() as u32;
            self.logits_of.push(span.logits.then_some(self.logit_rows.len()));
            if span.logits {
                self.logit_rows.push(row - 1);
            }
        }
        let wanted = self.logit_rows.len() * self.logits_stride;
        if self.logits.len() < wanted {
            self.logits.resize(wanted, 0.0);
        }
        if wanted > 0 {
            let Self { team, input, logit_rows, .. } = self;
            rms_norm(team, &self.x, logit_rows, &weights.output_norm, config.rms_eps, input);
            product(team, &[&weights.head], input, &mut self.logits[..wanted]);
        }
    }
}

/// `x += input x matrix^T`, or the norm of that where the model has one.
fn add(
    team: &mut Team,
    matrix: &Matrix,
    input: &Activations,
    post_norm: Option<&[f32]>,
    eps: f32,
    branch: &mut [f32],
    x: &mut [f32],
) {
    match post_norm {
        None => product_add(team, matrix, input, x),
        Some(weight) => {
            product(team, &[matrix], input, branch);
            rms_norm_add(team, branch, weight, eps, x);
        }
    }
}

#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod finite_tests;
#[cfg(test)]
mod flavour_tests;
#[cfg(test)]
mod tests;
