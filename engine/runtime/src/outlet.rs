//! Where what is said of a request goes: to its reader, or to the group that goes on with it.

use crate::steps::{Delivery, STEPS_AHEAD, StepError};
use engine_handoff::Route;
use policies_domain::{Epoch, FinishReason, PageTrace, RequestId, Seal, Sealer};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// The way out of a request.
pub(crate) enum Outlet {
    /// To its reader. There is one in the whole engine.
    Reader(Reader),
    /// To the group that goes on when the prompt is computed.
    Group(Group),
}

impl Outlet {
    /// Whether it is this request's way out.
    ///
    /// # Errors
    /// [`StepError::RowBinding`] when it is another's.
    pub(crate) fn check(&self, request: RequestId) -> Result<(), StepError> {
        let own = match self {
            Self::Reader(reader) => reader.sealer.binding().request == request,
            Self::Group(group) => group.request == request,
        };
        if own { Ok(()) } else { Err(StepError::RowBinding) }
    }

    /// The reader is gone or was told of a failure, or the request was begun anew since its try number `restarts`.
    pub(crate) fn is_closed(&self, restarts: u32) -> bool {
        match self {
            Self::Reader(reader) => reader.presence.is_over(restarts),
            Self::Group(group) => group.presence.as_ref().is_some_and(|presence| presence.is_over(restarts)),
        }
    }

    /// It takes another step, and a last word after it. A group takes all: what it hears of a prompt is bounded by the
    /// prompt's chunks.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Self::Reader(reader) => reader.presence.deliveries.capacity() > 1,
            Self::Group(_) => true,
        }
    }

    /// All that was said has been taken.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Reader(reader) => reader.presence.deliveries.capacity() > STEPS_AHEAD,
            Self::Group(_) => true,
        }
    }
}

/// The way to a request's reader, and what was said on it so far. What is said comes sealed.
pub(crate) struct Reader {
    pub(crate) presence: Presence,
    sealer: Sealer,
    next_step: u32,
    /// The latest admission.
    epoch: Epoch,
}

impl Reader {
    pub(crate) fn new(deliveries: mpsc::Sender<Delivery>, sealer: Sealer) -> Self {
        let presence = Presence { deliveries, progress: Arc::default() };
        Self { presence, sealer, next_step: 0, epoch: Epoch::default() }
    }

    /// So many steps were said before, by somebody else.
    pub(crate) fn go_on_from(&mut self, steps: u32) {
        self.next_step = steps;
    }

    /// Steps from here on belong to this admission.
    pub(crate) fn note_admission(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    /// With which its steps are sealed.
    pub(crate) fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// What was said and is not taken yet.
    pub(crate) fn waiting(&self) -> u32 {
        let deliveries = &self.presence.deliveries;
        u32::try_from(deliveries.max_capacity() - deliveries.capacity()).unwrap_or(u32::MAX)
    }

    /// Something was said to it.
    pub(crate) fn has_begun(&self) -> bool {
        self.next_step > 0
    }

    /// The number of the next step, and the seal of its text.
    pub(crate) fn seal(&mut self, text: &str, finish: Option<FinishReason>) -> (u32, Seal) {
        let index = self.next_step;
        self.next_step += 1;
        (index, self.sealer.seal(self.epoch, index, text.as_bytes(), finish))
    }

    /// `false`: nobody takes it.
    pub(crate) fn send(&self, delivery: Delivery) -> bool {
        self.presence.deliveries.try_send(delivery).is_ok()
    }
}

/// Whether somebody still waits for a request's answer, for whoever works at it in the same process.
#[derive(Clone)]
pub(crate) struct Presence {
    deliveries: mpsc::Sender<Delivery>,
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Progress {
    /// How often the request was begun anew: whoever works at an earlier try has nothing to say any more.
    restarts: AtomicU32,
    /// The reader was told that the request failed: nothing follows.
    failed: AtomicBool,
}

impl Presence {
    fn is_over(&self, restarts: u32) -> bool {
        let Progress { restarts: latest, failed } = &*self.progress;
        latest.load(Ordering::SeqCst) != restarts || failed.load(Ordering::SeqCst) || self.deliveries.is_closed()
    }

    pub(crate) fn note_restart(&self, restarts: u32) {
        self.progress.restarts.store(restarts, Ordering::SeqCst);
    }

    pub(crate) fn note_failure(&self) {
        self.progress.failed.store(true, Ordering::SeqCst);
    }
}

/// What one group says to the other of a prompt that it computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Pages were read.
    Read {
        trace: PageTrace,
        /// What the steps took in which that happened, microseconds.
        prefill_us: u64,
        /// Its own part of what these steps took, nanoseconds.
        cost_ns: u64,
        /// Tokens of the prompt that were not computed, because the tenant's cache had them.
        cached_tokens: usize,
    },
    /// The prompt cannot be computed, or not whole. Nothing follows.
    Failed(StepError),
}

/// What a prefill group has said and not sent yet, in order.
#[derive(Clone, Default)]
pub(crate) struct Spoken(Arc<Mutex<VecDeque<(Route, Said)>>>);

impl Spoken {
    pub(crate) fn take(&self) -> VecDeque<(Route, Said)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The way to the group that goes on with a request. No text goes there: a prompt's first token is in its manifest.
pub(crate) struct Group {
    pub(crate) request: RequestId,
    pub(crate) route: Route,
    /// `None` when the reader is in another process: then an abort says that it left.
    pub(crate) presence: Option<Presence>,
    pub(crate) spoken: Spoken,
}

impl Group {
    pub(crate) fn say(&self, said: Said) {
        self.spoken.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((self.route, said));
    }
}
