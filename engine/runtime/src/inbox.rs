//! How requests reach the engine's thread, and how it sleeps when there is nothing to do.

use crate::running::Running;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Requests that wait for admission. Shared by the engine's handle, its thread and every [`crate::Steps`].
pub(crate) struct Inbox {
    waiting: Mutex<VecDeque<Running>>,
    waiting_max: usize,
    woken: Condvar,
    /// The engine's thread has found nothing to do and is about to wait, or waits.
    asleep: AtomicBool,
    stopped: AtomicBool,
}

/// Why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Stopped,
}

impl Inbox {
    pub(crate) fn new(waiting_max: usize) -> Self {
        Self {
            waiting: Mutex::new(VecDeque::new()),
            waiting_max,
            woken: Condvar::new(),
            asleep: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    /// Queues a request, unless the queue is full or nobody will ever read it.
    pub(crate) fn push(&self, request: Running) -> Result<(), Refused> {
        let mut waiting = self.lock();
        // INVARIANT: `stop` empties the queue under the same lock, so nothing is queued after it and forgotten.
        if self.is_stopped() {
            return Err(Refused::Stopped);
        }
        if waiting.len() >= self.waiting_max {
            // Those who left while they waited hold no place.
            waiting.retain(|request| !request.cancelled());
            if waiting.len() >= self.waiting_max {
                return Err(Refused::Full);
            }
        }
        waiting.push_back(request);
        drop(waiting);
        self.woken.notify_one();
        Ok(())
    }

    pub(crate) fn waiting(&self) -> usize {
        self.lock().len()
    }

    /// Nothing runs any more: whoever waits is let go, which its client sees as the engine's end.
    pub(crate) fn stop(&self) {
        let mut waiting = self.lock();
        self.stopped.store(true, Ordering::SeqCst);
        waiting.clear();
        drop(waiting);
        self.woken.notify_one();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// A channel was read or closed: what was stalled may go on. Costs one load while the engine is busy.
    pub(crate) fn wake_if_asleep(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            drop(self.lock());
            self.woken.notify_one();
        }
    }

    /// Runs `ready` with the queue until it says yes or the engine is stopped; sleeps in between. `false`: stopped.
    pub(crate) fn wait_until(&self, mut ready: impl FnMut(&mut VecDeque<Running>) -> bool) -> bool {
        let mut waiting = self.lock();
        loop {
            // INVARIANT: `asleep` is set before `ready` looks, so whoever changes what it looked at will wake us.
            self.asleep.store(true, Ordering::SeqCst);
            let found = ready(&mut waiting);
            if found || self.is_stopped() {
                self.asleep.store(false, Ordering::SeqCst);
                return !self.is_stopped();
            }
            waiting = self.woken.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Running>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
