//! How requests reach the engine's thread, and how it sleeps when there is nothing to do.

use crate::running::Running;
use policies_domain::Label;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Requests that wait for a slot, and how many are inside already.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<Running>,
    /// Running and preempted requests by tenant, as of the engine's last look.
    pub(crate) inside: HashMap<Label, usize>,
    /// Requests that were queued so far.
    arrivals: u64,
}

/// How requests come in. Shared by the engine's handle, its thread and every [`crate::Steps`].
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    /// Requests inside and waiting together.
    places: usize,
    /// Of one tenant: a quarter of all places is always left to the others.
    places_of_one: usize,
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

/// Of so many places, how many one tenant may have.
pub(crate) fn places_of_one(places: usize) -> usize {
    (places - places / 4).max(1)
}

impl Inbox {
    /// `places`: how many requests may run and wait in all.
    pub(crate) fn new(places: usize) -> Self {
        Self {
            queue: Mutex::new(Queue::default()),
            places,
            places_of_one: places_of_one(places),
            woken: Condvar::new(),
            asleep: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    /// Queues a request, unless there is no place left or nobody will ever read it.
    pub(crate) fn push(&self, mut request: Running) -> Result<(), Refused> {
        let mut queue = self.lock();
        // INVARIANT: `stop` empties the queue under the same lock, so nothing is queued after it and forgotten.
        if self.is_stopped() {
            return Err(Refused::Stopped);
        }
        if !self.has_place(&queue, request.label) {
            // Those who left while they waited hold no place.
            queue.waiting.retain(|request| !request.cancelled());
            if !self.has_place(&queue, request.label) {
                return Err(Refused::Full);
            }
        }
        request.arrival = queue.arrivals;
        queue.arrivals += 1;
        queue.waiting.push_back(request);
        drop(queue);
        self.woken.notify_one();
        Ok(())
    }

    fn has_place(&self, Queue { waiting, inside, .. }: &Queue, label: Label) -> bool {
        let of_one = waiting.iter().filter(|request| request.label == label).count();
        let of_one = of_one + inside.get(&label).copied().unwrap_or_default();
        waiting.len() + inside.values().sum::<usize>() < self.places && of_one < self.places_of_one
    }

    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Nothing runs any more: whoever waits is let go, which its client sees as the engine's end.
    pub(crate) fn stop(&self) {
        let mut queue = self.lock();
        self.stopped.store(true, Ordering::SeqCst);
        queue.waiting.clear();
        drop(queue);
        self.woken.notify_one();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// A channel was read or closed: what was stalled may go on. Costs one load while the engine is busy.
    pub(crate) fn wake_if_asleep(&self) {
        // Orders the reader's change before this look, as the other fence orders the engine's look after its flag.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            drop(self.lock());
            self.woken.notify_one();
        }
    }

    /// Runs `ready` with the queue until it says yes, `pause` is over or the engine is stopped; sleeps in between. `false`:
    /// stopped.
    pub(crate) fn wait_until(&self, pause: Option<Duration>, mut ready: impl FnMut(&mut Queue) -> bool) -> bool {
        let (mut queue, mut over) = (self.lock(), false);
        loop {
            // INVARIANT: `asleep` is set before `ready` looks, so whoever changes what it looked at will wake us.
            self.asleep.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let found = ready(&mut queue) || over;
            if found || self.is_stopped() {
                self.asleep.store(false, Ordering::SeqCst);
                return !self.is_stopped();
            }
            match pause {
                None => queue = self.woken.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(pause) => {
                    let waited = self.woken.wait_timeout(queue, pause).unwrap_or_else(PoisonError::into_inner);
                    over = waited.1.timed_out();
                    queue = waited.0;
                }
            }
        }
    }

    /// One look at the queue, without waiting.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut Queue) -> T) -> T {
        look(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
