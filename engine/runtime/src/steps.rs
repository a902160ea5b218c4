//! The receiving end of one request.

use crate::inbox::Inbox;
use crate::replay_digest::AnswerRecord;
use engine_handoff::Check;
use policies_domain::{PageId, RequestId, Step};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Steps that may wait in a request's channel. A client that does not read makes its own sequence wait, nobody else's.
pub(crate) const STEPS_AHEAD: usize = 32;

/// How long requests wait for a worker that is away.
pub(crate) const WORKER_AWAITED: Duration = Duration::from_secs(10);

/// Tokens so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Of these, the tokens that were found in the tenant's own prefix cache.
    pub cached_tokens: usize,
    /// Sampled, the end-of-turn token included.
    pub completion_tokens: usize,
}

/// Where the time went so far, in microseconds. Prefill and decode are separate stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From submission to the first prefill step.
    pub queued_us: u64,
    /// In prefill steps of this request.
    pub prefill_us: u64,
    /// In decode steps that this request took part in.
    pub decode_us: u64,
}

/// Why a request ended without its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Isolation fault: a kernel found a page that does not carry the tag it was promised.
    #[error("`{page}` did not carry its tag when layer {layer} read it")]
    PageFault {
        /// The page; it is quarantined.
        page: PageId,
        /// The layer that saw it first.
        layer: u32,
    },
    /// Isolation fault: what the kernels read is not what was written down before. Each page carried its tag.
    #[error("the kernels read other pages than were written down")]
    ReadSet,
    /// Isolation fault: what the prefill group handed over is not what was ordered, or not what arrived.
    #[error("the handoff was refused by its check {check:?}")]
    Handoff {
        /// Which one.
        check: Check,
    },
    /// Isolation fault: a record of another request, or of another admission, stood in the place of this one's.
    #[error("a record of the row is not this request's")]
    RowBinding,
    /// The sequence needs more pages than there are: some of the pool are kept as evidence.
    #[error("there are not enough pages for this request")]
    PoolExhausted,
    /// A part of the engine is a worker that is not connected: it did not come while the request waited, or went away in the
    /// middle of it.
    #[error("a worker of the engine is not connected")]
    WorkerAway,
    /// It waited too long for a slot. Nothing was computed.
    #[error("the request waited too long for its turn, try again in {retry_after_ms} ms")]
    Expired {
        /// When to come back.
        retry_after_ms: u64,
    },
    /// The engine has ended.
    #[error("the engine has stopped")]
    Stopped,
    /// A logit was not finite. The text so far is no answer, and the same request would end the same way again.
    #[error("the model's output is not a number")]
    NotANumber,
    /// The engine's own bookkeeping failed; a defect.
    #[error("the engine failed")]
    Internal,
}

pub(crate) struct Delivery {
    pub(crate) result: Result<Step, StepError>,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    /// With the last step, where one was wanted.
    pub(crate) record: Option<Box<AnswerRecord>>,
}

/// The steps of one request, in order. Dropping it cancels the request.
pub struct Steps {
    request: RequestId,
    deliveries: mpsc::Receiver<Delivery>,
    inbox: Arc<Inbox>,
    usage: Usage,
    timings: Timings,
    record: Option<Box<AnswerRecord>>,
    ended: bool,
}

impl Steps {
    pub(crate) fn new(
        request: RequestId,
        deliveries: mpsc::Receiver<Delivery>,
        inbox: Arc<Inbox>,
        prompt_tokens: usize,
    ) -> Self {
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Self { request, deliveries, inbox, usage, timings: Timings::default(), record: None, ended: false }
    }

    /// The next step; `None` after the last one or after an error.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Result<Step, StepError>> {
        if self.ended {
            return None;
        }
        let delivery = self.deliveries.recv().await;
        Some(self.receive(delivery))
    }

    /// The next step if it is there: for tests that make the engine's steps themselves.
    #[cfg(feature = "fault-injection")]
    pub fn try_next(&mut self) -> Option<Result<Step, StepError>> {
        if self.ended {
            return None;
        }
        match self.deliveries.try_recv() {
            Ok(delivery) => Some(self.receive(Some(delivery))),
            Err(mpsc::error::TryRecvError::Empty) => None,
            Err(mpsc::error::TryRecvError::Disconnected) => Some(self.receive(None)),
        }
    }

    /// `None`: the engine let go of the channel without a last word.
    fn receive(&mut self, delivery: Option<Delivery>) -> Result<Step, StepError> {
        let Some(Delivery { result, usage, timings, record }) = delivery else {
            self.ended = true;
            return Err(StepError::Stopped);
        };
        self.inbox.wake_if_asleep();
        (self.usage, self.timings, self.record) = (usage, timings, record);
        self.ended = result.as_ref().map_or(true, |step| step.finish.is_some());
        result
    }

    /// Tokens of the steps that were received.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What it takes to compare the answer with one that is computed again: after its last step, when the request wanted it.
    #[must_use]
    pub fn record(&self) -> Option<&AnswerRecord> {
        self.record.as_deref()
    }

    /// Times of the steps that were received.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.timings
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.deliveries.close();
        self.inbox.wake_if_asleep();
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Steps({}, {:?})", self.request, self.usage)
    }
}
