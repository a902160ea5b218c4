//! Persistent threads that share one piece of work at a time.
//!
//! A forward pass hands out about 150 pieces of work, most of them under 30 microseconds, so waiting is by spinning.
//! It is also a guest on a machine with other tenants, so nobody spins for long: after [`SPIN`] a waiter sleeps, and
//! an idle team uses no CPU. Nothing here allocates after [`Team::new`].

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::KernelFamily;

/// How long a thread spins before it sleeps: longer than any gap inside a forward pass, shorter than a neighbour
/// would notice.
const SPIN: Duration = Duration::from_micros(20);
/// Spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 32;

/// A line of the cache of its own, so that two counters do not slow each other down.
#[repr(align(128))]
struct OwnLine<T>(T);

/// The work of one round, as the workers see it. Valid from the round's start until every worker has counted itself
/// in `finished`.
type Work = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts rounds; a worker starts when it sees a new number.
    round: OwnLine<AtomicU64>,
    /// Workers that are done with the round.
    finished: OwnLine<AtomicUsize>,
    work: UnsafeCell<Option<Work>>,
    ending: AtomicBool,
    /// The first panic of a worker in this round.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    round_started: Bell,
    round_finished: Bell,
}

// SAFETY: `work` is written only by the owner of the team while no round is running, before the release store of
// `round`, and read by workers only after they have acquired that store and before they count themselves finished.
unsafe impl Sync for Shared {}
// SAFETY: as above; everything else in it is `Send`.
unsafe impl Send for Shared {}

/// Threads and the instructions they use. One owner hands out work; dropping it ends the threads.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    family: KernelFamily,
}

impl Team {
    /// A team of `threads` (at least 1) that counts the calling thread, with the machine's best instructions.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self::start(threads, KernelFamily::detect())
    }

    /// As [`Team::new`], with another family: for tests. `None` when this machine lacks it.
    #[must_use]
    pub fn with_family(threads: usize, family: KernelFamily) -> Option<Self> {
        family.is_available().then(|| Self::start(threads, family))
    }

    /// A thread that the system refuses is done without: the results do not depend on their number.
    fn start(threads: usize, family: KernelFamily) -> Self {
        let shared = Arc::new(Shared {
            round: OwnLine(AtomicU64::new(0)),
            finished: OwnLine(AtomicUsize::new(0)),
            work: UnsafeCell::new(None),
            ending: AtomicBool::new(false),
            panic: Mutex::new(None),
            round_started: Bell::default(),
            round_finished: Bell::default(),
        });
        let mut workers = Vec::new();
        for index in 1..threads {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("kernels-{index}"));
            match thread.spawn(move || shared.serve(index)) {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        Self { shared, workers, family }
    }

    /// How many threads there are, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instructions that work of this team uses.
    #[must_use]
    pub fn family(&self) -> KernelFamily {
        self.family
    }

    /// Calls `work(index)` once for each index below [`Team::threads`], each on its own thread, and waits for all.
    ///
    /// # Panics
    /// With the panic of `work`, after all of them have ended.
    pub fn run(&mut self, work: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if self.workers.is_empty() {
            return work(0);
        }
        shared.finished.0.store(0, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. The pointer is used by workers in this round only, and this function
        // does not return (nor unwind, see `catch_unwind`) before all of them have counted themselves finished.
        let work_erased = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Work>(work) };
        // SAFETY: no round is running (`&mut self`, and the last one was waited for), so no worker reads it now.
        unsafe { *shared.work.get() = Some(work_erased) };
        shared.round.0.fetch_add(1, Ordering::SeqCst);
        shared.round_started.ring();

        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        let workers = self.workers.len();
        shared.round_finished.wait(|| shared.finished.0.load(Ordering::SeqCst) == workers);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        let theirs = lock(&shared.panic).take();
        if let Some(panic) = theirs {
            resume_unwind(panic);
        }
    }

    /// Splits `units` into one stretch per thread, as even as possible and in order, and calls `work` on each.
    pub(crate) fn split(&mut self, units: usize, work: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        let threads = self.threads();
        self.run(&|index| {
            let range = units * index / threads..units * (index + 1) / threads;
            if !range.is_empty() {
                work(range);
            }
        });
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.round_started.wait(|| self.round.0.load(Ordering::SeqCst) != seen);
            seen += 1;
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the round that was just seen has set `work` before it was announced, and it stays set until
            // this worker has counted itself finished.
            let work = unsafe { *self.work.get() };
            if let Some(work) = work {
                // SAFETY: `Team::run` keeps the closure alive until this worker has counted itself finished.
                let work = unsafe { &*work };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(index))) {
                    lock(&self.panic).get_or_insert(panic);
                }
            }
            self.finished.0.fetch_add(1, Ordering::SeqCst);
            self.round_finished.ring();
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        self.shared.round.0.fetch_add(1, Ordering::SeqCst);
        self.shared.round_started.ring();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its work; its own end cannot fail.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).field("family", &self.family).finish()
    }
}

/// Wakes those who sleep until something becomes true.
#[derive(Default)]
struct Bell {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Bell {
    /// Returns once `happened` is true, spinning first, then asleep. `happened` reads its atomics `SeqCst`.
    fn wait(&self, happened: impl Fn() -> bool) {
        let mut spins = 0u32;
        let mut since = None;
        while !happened() {
            std::hint::spin_loop();
            spins += 1;
            if !spins.is_multiple_of(SPINS_PER_LOOK) {
                continue;
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= SPIN {
                return self.sleep(happened);
            }
        }
    }

    #[cold]
    fn sleep(&self, happened: impl Fn() -> bool) {
        // INVARIANT: a sleeper announces itself before its last look, and whoever makes it true does so before
        // looking for sleepers; both in the one order of `SeqCst`, so at least one of them sees the other.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.lock);
        while !happened() {
            guard = self.woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// To be called after something became true.
    fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Taken and given back, so that a sleeper is either before its last look or already waiting.
            drop(lock(&self.lock));
            self.woken.notify_all();
        }
    }
}

/// What the locks guard is valid at any moment, so a poisoned lock is as good as another.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_runs_once_a_round_whether_threads_spin_or_sleep() {
        for threads in [0, 1, 2, 5] {
            let mut team = Team::new(threads);
            let counts: Vec<AtomicUsize> = (0..team.threads()).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..2_000 {
                team.run(&|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2_000));
        }
    }

    #[test]
    fn a_team_that_fell_asleep_wakes_up() {
        let mut team = Team::new(3);
        let sum = AtomicUsize::new(0);
        for _ in 0..3 {
            // Until all workers sleep: no clock, only the state itself.
            while team.shared.round_started.sleepers.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            team.run(&|index| {
                sum.fetch_add(index, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 9);
    }

    #[test]
    fn a_panic_reaches_the_caller_after_the_round_and_the_team_goes_on() {
        let mut team = Team::new(2);
        for guilty in 0..2 {
            let ended = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|index| {
                    ended.fetch_add(1, Ordering::Relaxed);
                    assert!(index != guilty, "planted");
                });
            }));
            assert!(caught.is_err());
            assert_eq!(ended.into_inner(), 2);
        }
        let calm = AtomicUsize::new(0);
        team.run(&|_| {
            calm.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calm.into_inner(), 2);
    }

    #[test]
    fn a_split_covers_every_unit_once() {
        for (threads, units) in [(1, 7), (2, 7), (4, 3), (3, 0), (5, 64)] {
            let mut team = Team::new(threads);
            let seen: Vec<AtomicUsize> = (0..units).map(|_| AtomicUsize::new(0)).collect();
            team.split(units, &|range| {
                for unit in range {
                    seen[unit].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}
