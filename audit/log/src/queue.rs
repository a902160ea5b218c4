//! What stands between the requests and the sequencer: a queue that never blocks a request, and never loses the end of
//! one that was opened.

use crate::AppendError;
use crate::open_entry::OpenEntry;
use crate::sequence::{BATCH_MAX, Draft, Placed};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// When a full queue is worth another try: a few group commits later.
const RETRY_AFTER_MS: u64 = 100;

/// Fewer than these are not waited for: a sync is not dear beside them.
const GATHERED_MIN: usize = 64;
/// How often it is looked whether more have come, and how many times at most: a few milliseconds, as a sync takes.
const GATHER_LOOK: Duration = Duration::from_micros(200);
const GATHER_LOOKS_MAX: usize = 10;

/// Who waits for a draft.
pub(crate) enum Reply {
    Nobody,
    /// Gets the entry that it can then fill. When nobody waits any more, the entry is dropped, which seals it.
    Opened(Box<OpenEntry>, oneshot::Sender<Result<Box<OpenEntry>, AppendError>>),
    Sealed(oneshot::Sender<Result<Placed, AppendError>>),
}

/// A draft in the queue.
pub(crate) struct Queued {
    pub(crate) draft: Draft,
    pub(crate) reply: Reply,
}

/// What the sequencer finds.
pub(crate) enum Taken {
    Drafts(Vec<Queued>),
    /// Nothing came for as long as the caller wanted to wait.
    Idle,
    Closed,
}

struct State {
    waiting: VecDeque<Queued>,
    /// Set once; what is pushed afterwards gets this answer.
    closed: Option<AppendError>,
}

/// Bounded in two ways: new requests are refused when `bound` drafts wait, and the last entries of open requests, which
/// are always taken, are bounded by the number of open requests.
pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    bound: usize,
}

impl Queue {
    pub(crate) fn new(bound: usize) -> Self {
        let state = State { waiting: VecDeque::new(), closed: None };
        Self { state: Mutex::new(state), arrived: Condvar::new(), bound }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new request's first draft, if there is room.
    pub(crate) fn push_new(&self, queued: Queued) -> Result<(), AppendError> {
        let mut state = self.state();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        if state.waiting.len() >= self.bound {
            return Err(AppendError::Busy { retry_after_ms: RETRY_AFTER_MS });
        }
        state.waiting.push_back(queued);
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes drafts of a request that was opened: always, together, unless the log ended.
    pub(crate) fn push_owed(&self, queued: Vec<Queued>) -> Result<(), AppendError> {
        let mut state = self.state();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        state.waiting.extend(queued);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for drafts, for `idle` at most. What waits when the queue is closed is still given out.
    pub(crate) fn take(&self, idle: Option<Duration>) -> Taken {
        let mut state = self.state();
        if state.waiting.is_empty() && state.closed.is_none() {
            let nothing = |state: &mut State| state.waiting.is_empty() && state.closed.is_none();
            state = match idle {
                None => self.arrived.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner),
                Some(idle) => {
                    self.arrived.wait_timeout_while(state, idle, nothing).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let alone = state.waiting.iter().take(BATCH_MAX).position(|queued| queued.draft.stands_alone());
        let batch = alone.map_or(state.waiting.len().min(BATCH_MAX), |place| place.max(1));
        match (batch, &state.closed) {
            (0, Some(_)) => Taken::Closed,
            (0, None) => Taken::Idle,
            _ => Taken::Drafts(state.waiting.drain(..batch).collect()),
        }
    }

    /// Many who were answered together ask again together. Lets as many gather as were `answered`, while more of them come and for
    /// a moment at most, so that no commit is spent on the first few.
    pub(crate) fn gather(&self, answered: usize) {
        if answered < GATHERED_MIN {
            return;
        }
        let mut before = None;
        for _ in 0..GATHER_LOOKS_MAX {
            let (waiting, closed) = {
                let state = self.state();
                (state.waiting.len(), state.closed.is_some())
            };
            if closed || waiting >= answered || before == Some(waiting) {
                return;
            }
            before = Some(waiting);
            std::thread::sleep(GATHER_LOOK);
        }
    }

    /// Ends the queue; the first reason stays.
    pub(crate) fn close(&self, error: AppendError) {
        self.state().closed.get_or_insert(error);
        self.arrived.notify_all();
    }

    /// Answers everything that waits with the reason for which the queue was closed.
    pub(crate) fn refuse_waiting(&self) {
        let (waiting, error) = {
            let mut state = self.state();
            (std::mem::take(&mut state.waiting), state.closed.clone().unwrap_or(AppendError::Closed))
        };
        // Outside the lock: a dropped entry wants to push.
        waiting.into_iter().for_each(|queued| queued.reply.refuse(error.clone()));
    }

    pub(crate) fn len(&self) -> usize {
        self.state().waiting.len()
    }
}

impl Reply {
    /// The draft has its place.
    pub(crate) fn place(self, placed: Placed) {
        match self {
            Self::Nobody => {}
            Self::Opened(mut entry, reply) => {
                entry.opened_at(&placed);
                // When nobody waits any more the entry comes back, and dropping it seals it.
                drop(reply.send(Ok(entry)));
            }
            Self::Sealed(reply) => drop(reply.send(Ok(placed))),
        }
    }

    /// The draft will never have a place.
    pub(crate) fn refuse(self, error: AppendError) {
        match self {
            Self::Nobody => {}
            Self::Opened(entry, reply) => {
                drop(entry);
                drop(reply.send(Err(error)));
            }
            Self::Sealed(reply) => drop(reply.send(Err(error))),
        }
    }
}

/// Why the log ended, as every later caller is told.
pub(crate) fn failed(reason: &str) -> AppendError {
    AppendError::Failed { reason: Arc::from(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use audit_provenance::Body;

    #[test]
    fn whoever_gathers_waits_for_nobody_who_does_not_come() {
        let queue = Queue::new(8);
        let draft = || Draft { uuid: [1; 16], tenant: None, body: Body::Heartbeat, trace: None };
        for _ in 0..3 {
            queue.push_new(Queued { draft: draft(), reply: Reply::Nobody }).unwrap();
        }
        for answered in [0, 3, GATHERED_MIN, usize::MAX] {
            queue.gather(answered);
            assert_eq!(queue.len(), 3, "what came stays");
        }
        queue.close(AppendError::Closed);
        queue.gather(usize::MAX);
        assert!(matches!(queue.take(None), Taken::Drafts(drafts) if drafts.len() == 3));
    }
}
