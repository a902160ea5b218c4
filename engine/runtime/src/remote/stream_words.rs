//! Words about a request whose reader is in the gateway, while it is decoded by a worker.

use super::wire::{FailureWord, PromptBounds, SamplingWord, TraceWord, WordError, size};
use crate::replay_digest::AnswerRecord;
use crate::running::Running;
use crate::sampling::Sampling;
use crate::steps::{StepError, Timings, Usage};
use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use policies_domain::{
    Binding, Completion, ConnectionId, Epoch, FinishReason, Label, Layer, Origin, RequestId, Seal, SealKey, Sealer,
    Step,
};

/// One word. The number of its stream comes before it.
#[derive(Debug, Encode, Decode)]
pub(super) enum StreamWord {
    /// To the worker: a request.
    #[n(0)]
    Submit(#[n(0)] SubmitWord),
    /// To the worker: its reader is gone.
    #[n(1)]
    Cancel,
    /// To the worker: so many steps were read since the last of these words.
    #[n(2)]
    Room(#[n(0)] u32),
    /// To the gateway: a step.
    #[n(3)]
    Step(#[n(0)] StepWord),
    /// To the gateway: there is no answer. Nothing follows.
    #[n(4)]
    Failed(#[n(0)] FailureWord, #[n(1)] CountsWord),
}

/// Whose a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct BindingWord {
    #[n(0)]
    request: ByteArray<16>,
    #[n(1)]
    label: u32,
    #[n(2)]
    connection: u64,
}

/// A request. Its `Debug` shows neither its tokens nor its secret.
#[derive(Encode, Decode)]
pub(super) struct SubmitWord {
    #[n(0)]
    binding: BindingWord,
    #[n(1)]
    tokens: Vec<u32>,
    #[n(2)]
    completion_tokens_max: u64,
    #[n(3)]
    sampling: SamplingWord,
    #[n(4)]
    stop: Vec<String>,
    /// With which the steps are sealed where they are made.
    #[n(5)]
    key: ByteArray<32>,
    #[n(6)]
    after: AfterWord,
    /// A replay digest is to be made.
    #[n(7)]
    digests: bool,
}

/// What the reader has got before, from a worker that is gone: steps without a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct AfterWord {
    /// So many.
    #[n(0)]
    pub(super) steps: u32,
    /// The admission of the last one.
    #[n(1)]
    pub(super) epoch: u64,
    /// So many of them are not read yet.
    #[n(2)]
    pub(super) unread: u32,
}

impl std::fmt::Debug for SubmitWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SubmitWord({} tokens)", self.tokens.len())
    }
}

/// What a worker is to compute.
pub(super) struct Submitted {
    pub(super) label: Label,
    pub(super) request: RequestId,
    pub(super) tokens: Vec<u32>,
    pub(super) sampling: Sampling,
    pub(super) sealer: Sealer,
    pub(super) after: AfterWord,
}

/// A step as it says itself whose it is: that is judged where its reader is. Its `Debug` shows no text.
#[derive(Encode, Decode)]
pub(super) struct StepWord {
    #[n(0)]
    request: ByteArray<16>,
    #[n(1)]
    binding: BindingWord,
    #[n(2)]
    epoch: u64,
    #[n(3)]
    index: u32,
    #[n(4)]
    sealed_index: u32,
    #[n(5)]
    mac: ByteArray<32>,
    #[n(6)]
    trace: TraceWord,
    #[n(7)]
    restarted: bool,
    #[n(8)]
    tokens: u32,
    #[n(9)]
    text: String,
    /// 0: none, 1: stop, 2: length.
    #[n(10)]
    finish: u8,
    #[n(11)]
    counts: CountsWord,
    /// With the last one, where it was wanted.
    #[n(12)]
    record: Option<RecordWord>,
}

/// What an answer was sampled from. Its `Debug` shows no token.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub(super) struct RecordWord {
    #[n(0)]
    digest: ByteArray<32>,
    #[n(1)]
    tokens: Vec<u32>,
}

impl std::fmt::Debug for RecordWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecordWord({} tokens)", self.tokens.len())
    }
}

impl std::fmt::Debug for StepWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StepWord({})", self.index)
    }
}

/// Tokens and times so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct CountsWord {
    #[n(0)]
    prompt_tokens: u64,
    #[n(1)]
    completion_tokens: u64,
    #[n(2)]
    queued_us: u64,
    #[n(3)]
    prefill_us: u64,
    #[n(4)]
    decode_us: u64,
    #[n(5)]
    cached_tokens: u64,
}

impl BindingWord {
    fn of(Binding { request, label, connection }: Binding) -> Self {
        Self { request: request.bytes().into(), label: label.bits(), connection: connection.0 }
    }

    fn binding(self) -> Result<Binding, WordError> {
        Ok(Binding {
            request: RequestId::from_bytes(self.request.into()),
            label: Label::from_bits(self.label).ok_or(WordError::Field("label"))?,
            connection: ConnectionId(self.connection),
        })
    }
}

impl SubmitWord {
    /// `None` when a record of the request is another's.
    pub(super) fn of(request: &Running, after: AfterWord) -> Option<Self> {
        let sampling = request.sampler.of(request.ticket).ok()?.sampling();
        let sealer = request.sealer()?;
        Some(Self {
            binding: BindingWord::of(*sealer.binding()),
            tokens: request.tokens.clone(),
            completion_tokens_max: request.tokens_max.saturating_sub(request.tokens.len()) as u64,
            sampling: SamplingWord::of(sampling),
            stop: sampling.stop.clone(),
            digests: sampling.digests,
            key: (*sealer.key().reveal()).into(),
            after,
        })
    }

    pub(super) fn submitted(self, bounds: PromptBounds) -> Result<Submitted, WordError> {
        bounds.check(&self.tokens)?;
        let binding = self.binding.binding()?;
        let max_tokens = Some(size(self.completion_tokens_max, "completion_tokens_max")?);
        let sampling = Sampling { max_tokens, stop: self.stop, digests: self.digests, ..self.sampling.sampling()? };
        let sealer = SealKey::from_bytes(self.key.into()).sealer(Layer::Text, binding);
        let (label, request, after) = (binding.label, binding.request, self.after);
        Ok(Submitted { label, request, tokens: self.tokens, sampling, sealer, after })
    }
}

impl StepWord {
    pub(super) fn of(step: &Step, usage: Usage, timings: Timings, record: Option<&AnswerRecord>) -> Self {
        let record = record.map(|record| RecordWord { digest: record.digest.into(), tokens: record.tokens.clone() });
        let origin = step.seal.origin();
        Self {
            request: step.request.bytes().into(),
            binding: BindingWord::of(origin.binding),
            epoch: origin.epoch.0,
            index: step.index,
            sealed_index: origin.index,
            mac: step.seal.mac().into(),
            trace: TraceWord::of(&step.trace),
            restarted: step.restarted,
            tokens: step.tokens,
            text: step.text.reveal().to_owned(),
            finish: match step.finish {
                None => 0,
                Some(FinishReason::Stop) => 1,
                Some(FinishReason::Length) => 2,
            },
            counts: CountsWord::of(usage, timings),
            record,
        }
    }

    /// The worker's pages have numbers from `first_page` on here.
    pub(super) fn step(
        self,
        first_page: u32,
        pages: u32,
    ) -> Result<(Step, Usage, Timings, Option<AnswerRecord>), WordError> {
        let finish = match self.finish {
            0 => None,
            1 => Some(FinishReason::Stop),
            2 => Some(FinishReason::Length),
            _ => return Err(WordError::Field("finish")),
        };
        let origin = Origin { binding: self.binding.binding()?, epoch: Epoch(self.epoch), index: self.sealed_index };
        let step = Step {
            request: RequestId::from_bytes(self.request.into()),
            index: self.index,
            trace: self.trace.trace(first_page, pages)?,
            restarted: self.restarted,
            tokens: self.tokens,
            text: Completion::new(self.text),
            finish,
            seal: Seal::received(origin, self.mac.into()),
        };
        let (usage, timings) = self.counts.counts()?;
        let record = match self.record {
            Some(word) if step.finish.is_none() || word.tokens.len() != usage.completion_tokens => {
                return Err(WordError::Field("record"));
            }
            word => word.map(|word| AnswerRecord { tokens: word.tokens, digest: word.digest.into() }),
        };
        Ok((step, usage, timings, record))
    }
}

impl CountsWord {
    pub(super) fn of(usage: Usage, timings: Timings) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens as u64,
            cached_tokens: usage.cached_tokens as u64,
            completion_tokens: usage.completion_tokens as u64,
            queued_us: timings.queued_us,
            prefill_us: timings.prefill_us,
            decode_us: timings.decode_us,
        }
    }

    pub(super) fn counts(self) -> Result<(Usage, Timings), WordError> {
        let usage = Usage {
            prompt_tokens: size(self.prompt_tokens, "prompt_tokens")?,
            cached_tokens: size(self.cached_tokens, "cached_tokens")?,
            completion_tokens: size(self.completion_tokens, "completion_tokens")?,
        };
        let Self { queued_us, prefill_us, decode_us, .. } = self;
        Ok((usage, Timings { queued_us, prefill_us, decode_us }))
    }
}

impl StreamWord {
    pub(super) fn failed(error: StepError, usage: Usage, timings: Timings) -> Self {
        Self::Failed(error.into(), CountsWord::of(usage, timings))
    }
}
