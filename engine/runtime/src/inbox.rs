//! How requests reach the engine's thread, and how it sleeps when there is nothing to do.

use crate::running::Running;
use engine_scheduler::{Bounds, CostModel, Costs, Full, Load, Tenancy};
use policies_domain::Label;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Requests that came, and what is inside already.
pub(crate) struct Queue {
    /// Those that the engine has not taken yet.
    pub(crate) came: VecDeque<Running>,
    /// All others by tenant, as of the engine's last look.
    pub(crate) inside: HashMap<Label, Load>,
    /// What requests cost, as of the engine's last look.
    pub(crate) costs: CostModel,
    /// Requests that were queued so far.
    arrivals: u64,
    /// Of each tenant, clients that were told to come back and did not get in since: what one tenant is told depends on none of
    /// another's.
    sent_away: HashMap<Label, u32>,
}

impl Queue {
    /// One more client of this tenant is told to come back. How many of its clients come back before it.
    pub(crate) fn send_away(&mut self, tenant: Label) -> u32 {
        let before = self.sent_away.entry(tenant).or_default();
        *before = before.saturating_add(1);
        *before - 1
    }

    /// One of this tenant's clients got in.
    fn let_in(&mut self, tenant: Label) {
        if let Some(left) = self.sent_away.get_mut(&tenant) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.sent_away.remove(&tenant);
            }
        }
    }
}

/// How requests come in. Shared by the engine's handle, its thread and every [`crate::Steps`].
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    bounds: Bounds,
    woken: Condvar,
    /// The engine's thread has found nothing to do and is about to wait, or waits.
    asleep: AtomicBool,
    stopped: AtomicBool,
}

/// Why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full(Full),
    Stopped,
}

/// Tokens that an answer has until somebody knows better.
const ANSWER_TOKENS_EXPECTED: usize = 256;

/// What a request still costs, in nanoseconds.
pub(crate) fn work_ns(costs: &CostModel, request: &Running) -> u64 {
    let answer = request.tokens_max.saturating_sub(request.tokens.len()).min(ANSWER_TOKENS_EXPECTED);
    costs.request_ns(request.tokens.len(), request.computed, answer)
}

impl Inbox {
    /// `places`: how many requests may run and wait in all.
    pub(crate) fn new(places: usize) -> Self {
        Self::with_bounds(Bounds::new(places, Tenancy::default()))
    }

    pub(crate) fn with_bounds(bounds: Bounds) -> Self {
        let queue = Queue {
            came: VecDeque::new(),
            inside: HashMap::new(),
            costs: CostModel::new(Costs::GUESS),
            arrivals: 0,
            sent_away: HashMap::new(),
        };
        Self {
            queue: Mutex::new(queue),
            bounds,
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
        if let Err(full) = self.check(&queue, request.label) {
            // Those who left while they waited hold no place.
            queue.came.retain(|request| !request.cancelled());
            if self.check(&queue, request.label).is_err() {
                queue.send_away(request.label);
                return Err(Refused::Full(full));
            }
        }
        request.arrival = queue.arrivals;
        queue.arrivals += 1;
        queue.let_in(request.label);
        queue.came.push_back(request);
        drop(queue);
        self.woken.notify_one();
        Ok(())
    }

    fn check(&self, queue: &Queue, label: Label) -> Result<(), Full> {
        let Queue { came, inside, costs, sent_away, .. } = queue;
        let load = |request: &Running| Load { running: 0, waiting: 1, work_ns: work_ns(costs, request) };
        let came = came.iter().map(|request| (request.label, load(request)));
        let (mut own, mut all) = (Load::default(), Load::default());
        for (tenant, load) in came.chain(inside.iter().map(|(tenant, load)| (*tenant, *load))) {
            all = all.and(load);
            own = if tenant == label { own.and(load) } else { own };
        }
        self.bounds.check(label, own, all, sent_away.get(&label).copied().unwrap_or(0))
    }

    /// Requests that have no slot.
    pub(crate) fn waiting(&self) -> usize {
        let queue = self.lock();
        queue.came.len() + queue.inside.values().map(|load| load.waiting).sum::<usize>()
    }

    /// Nothing runs any more: whoever waits is let go, which its client sees as the engine's end.
    pub(crate) fn stop(&self) {
        let mut queue = self.lock();
        self.stopped.store(true, Ordering::SeqCst);
        queue.came.clear();
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
