//! Persistent threads that share one piece of work at a time.
//!
//! A forward pass hands out about 150 rounds of work, most of them under 30 microseconds, so waiting is by spinning.
//! It is also a guest on a machine with other tenants. So nobody spins for long: after [`SPIN`] a waiter sleeps, and an
//! idle team uses no CPU. And nobody waits for a thread that the system is not running: pieces that it has not begun are
//! done by the others, and a thread that comes when all is done does not enter. Nothing here allocates after
//! [`Team::new`].
//!
//! Where a team has a thread for every processor, each is tied to its own: beside a process that wants a whole processor
//! the system would put two of the team's on one, which costs more than the half that the neighbour takes. A team of
//! fewer threads is free to go where there is room.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::KernelFamily;
use crate::processors::Processors;

/// How long a thread spins before it sleeps: longer than any gap inside a forward pass, shorter than a neighbour
/// would notice.
const SPIN: Duration = Duration::from_micros(20);
/// Spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 32;

/// A line of the cache of its own, so that two counters do not slow each other down.
#[repr(align(128))]
struct OwnLine<T>(T);

/// The work of one round, as the workers see it: called with a thread and a piece. Valid for a worker from its entering
/// the round until it counts itself in `finished`.
type Work = *const (dyn Fn(usize, usize) + Sync);

/// A round: how many pieces, and what to do with each.
#[derive(Clone, Copy)]
struct Round {
    pieces: usize,
    work: Work,
}

/// Set in `gate` when the pieces of the round are all taken.
const CLOSED: u64 = 1 << 31;
/// One round, in `gate`.
const ROUND: u64 = 1 << 32;

struct Shared {
    /// The number of the round in the upper half; [`CLOSED`]; workers that knocked in the rest. Who knocked while it
    /// was open has entered.
    gate: OwnLine<AtomicU64>,
    /// Workers that entered and are done.
    finished: OwnLine<AtomicUsize>,
    /// For each thread the next piece of its own stretch; others help when theirs are done.
    stretches: Box<[OwnLine<AtomicUsize>]>,
    round: UnsafeCell<Option<Round>>,
    ending: AtomicBool,
    /// The first panic of a worker in this round.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    round_started: Bell,
    round_finished: Bell,
}

// SAFETY: `round` is written only by the owner of the team while the gate is closed and everybody who entered has
// finished, before the store that opens the gate; workers read it only after they have entered.
unsafe impl Sync for Shared {}
// SAFETY: as above; everything else in it is `Send`.
unsafe impl Send for Shared {}

/// Threads and the instructions they use. One owner hands out work; dropping it ends the threads.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    family: KernelFamily,
    /// When there is a thread for every processor: nobody else's place is taken, and no two threads share one.
    processors: Option<Processors>,
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
            gate: OwnLine(AtomicU64::new(CLOSED)),
            finished: OwnLine(AtomicUsize::new(0)),
            stretches: (0..threads.max(1)).map(|_| OwnLine(AtomicUsize::new(0))).collect(),
            round: UnsafeCell::new(None),
            ending: AtomicBool::new(false),
            panic: Mutex::new(None),
            round_started: Bell::default(),
            round_finished: Bell::default(),
        });
        let processors = Some(Processors::allowed()).filter(|processors| processors.count() == threads && threads > 1);
        let mut workers = Vec::new();
        for index in 1..threads {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("kernels-{index}"));
            let processors = processors.clone();
            let work = move || {
                if let Some(processors) = processors {
                    processors.tie(index);
                }
                shared.serve(index);
            };
            match thread.spawn(work) {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        Self { shared, workers, family, processors }
    }

    /// How many threads there are, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Ties the calling thread to a processor of its own, as the workers are, when there is one for each thread. Threads
    /// that it starts later inherit that: for threads that do nothing but hand out rounds.
    pub fn tie_caller(&self) {
        if let Some(processors) = &self.processors {
            processors.tie(0);
        }
    }

    /// The instructions that work of this team uses.
    #[must_use]
    pub fn family(&self) -> KernelFamily {
        self.family
    }

    /// Calls `work(thread, piece)` once for each piece below `pieces`, and returns when all have ended. At one moment a
    /// thread (below [`Team::threads`]) has one piece only.
    ///
    /// # Panics
    /// With the panic of `work`, after all that was begun has ended. Pieces that were not begun are left out then.
    pub fn run(&mut self, pieces: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        let shared = &*self.shared;
        if self.workers.is_empty() || pieces <= 1 {
            return (0..pieces).for_each(|piece| work(0, piece));
        }
        shared.finished.0.store(0, Ordering::Relaxed);
        for (thread, next) in shared.stretches.iter().enumerate() {
            next.0.store(shared.stretch(thread, pieces).start, Ordering::Relaxed);
        }
        // SAFETY: only the lifetime changes. Workers that entered this round use the pointer, and this function does
        // not return (nor unwind, see `catch_unwind`) before all of them have counted themselves finished.
        let work_erased = unsafe { std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), Work>(work) };
        // SAFETY: the gate is closed and all who entered have finished (the last call waited), so nobody reads it.
        unsafe { *shared.round.get() = Some(Round { pieces, work: work_erased }) };
        let number = shared.gate.0.load(Ordering::Relaxed) / ROUND + 1;
        // Numbers begin anew after 2^32 rounds: that only has to differ from the round before.
        shared.gate.0.store(number.wrapping_mul(ROUND), Ordering::SeqCst);
        shared.round_started.ring();

        let own = catch_unwind(AssertUnwindSafe(|| shared.take_pieces(0, pieces, work)));
        let entered = (shared.gate.0.fetch_or(CLOSED, Ordering::SeqCst) & (CLOSED - 1)) as usize;
        shared.round_finished.wait(|| shared.finished.0.load(Ordering::SeqCst) == entered);
        // Taken in any case, so that none is left for the next round.
        let theirs = lock(&shared.panic).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Divides `units` into ranges, a few for each thread, as even as possible, and calls `work` on each.
    pub(crate) fn split(&mut self, units: usize, work: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        let pieces = units.min(PIECES_PER_THREAD * self.threads());
        self.run(pieces, &|_, piece| work(units * piece / pieces..units * (piece + 1) / pieces));
    }
}

/// Pieces that [`Team::split`] makes for each thread: enough to even out a thread that is slowed down.
pub(crate) const PIECES_PER_THREAD: usize = 4;

impl Shared {
    /// The pieces that a thread begins with.
    fn stretch(&self, thread: usize, pieces: usize) -> std::ops::Range<usize> {
        let threads = self.stretches.len();
        pieces * thread / threads..pieces * (thread + 1) / threads
    }

    /// Does the pieces of its own stretch, then what is left of the others'.
    fn take_pieces(&self, thread: usize, pieces: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        let threads = self.stretches.len();
        for other in (thread..threads).chain(0..thread) {
            let end = self.stretch(other, pieces).end;
            loop {
                let piece = self.stretches[other].0.fetch_add(1, Ordering::Relaxed);
                if piece >= end {
                    break;
                }
                work(thread, piece);
            }
        }
    }

    /// A worker's life.
    fn serve(&self, thread: usize) {
        let mut seen = 0;
        loop {
            self.round_started.wait(|| self.gate.0.load(Ordering::SeqCst) / ROUND != seen);
            let gate = self.gate.0.fetch_add(1, Ordering::SeqCst);
            seen = gate / ROUND;
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            if gate & CLOSED != 0 {
                continue;
            }
            // SAFETY: this worker has entered, so the round was written before and is not written again until it has
            // counted itself finished.
            let round = unsafe { *self.round.get() };
            if let Some(Round { pieces, work }) = round {
                // SAFETY: `Team::run` keeps the closure alive until this worker has counted itself finished.
                let work = unsafe { &*work };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_pieces(thread, pieces, work))) {
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
        self.shared.gate.0.fetch_add(ROUND, Ordering::SeqCst);
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
    fn every_piece_is_done_once_a_round_whether_threads_spin_or_sleep() {
        for (threads, pieces) in [(0, 3), (1, 3), (2, 1), (2, 9), (5, 4), (5, 40), (3, 0)] {
            let mut team = Team::new(threads);
            let counts: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..2_000 {
                team.run(pieces, &|_, piece| {
                    counts[piece].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2_000));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn threads_are_tied_only_where_there_is_one_for_every_processor() {
        let all = Processors::allowed().count();
        for threads in [all, all + 1, 2 * all] {
            let is_tied = threads == all && threads > 1;
            let seen = std::thread::spawn(move || {
                let mut team = Team::new(threads);
                team.tie_caller();
                let seen: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                let barrier = std::sync::Barrier::new(threads);
                team.run(threads, &|thread, _| {
                    // Each thread has one piece: the next one waits for the others.
                    barrier.wait();
                    seen[thread].store(Processors::allowed().count(), Ordering::SeqCst);
                });
                seen.into_iter().map(AtomicUsize::into_inner).collect::<Vec<_>>()
            });
            assert_eq!(seen.join().unwrap(), vec![if is_tied { 1 } else { all }; threads]);
        }
    }

    #[test]
    fn a_thread_has_one_piece_at_a_time() {
        let mut team = Team::new(4);
        let busy: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
        for _ in 0..500 {
            team.run(32, &|thread, _| {
                assert!(!busy[thread].swap(true, Ordering::SeqCst));
                std::hint::spin_loop();
                busy[thread].store(false, Ordering::SeqCst);
            });
        }
    }

    #[test]
    fn a_team_that_fell_asleep_wakes_up() {
        let mut team = Team::new(3);
        for _ in 0..3 {
            // Until all workers sleep: no clock, only the state itself.
            while team.shared.round_started.sleepers.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            // Each piece waits for the other two: one thread alone would wait for ever.
            let arrived = AtomicUsize::new(0);
            team.run(3, &|_, _| {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < 3 {
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn pieces_of_a_thread_that_is_held_up_are_done_by_others() {
        let mut team = Team::new(2);
        // The worker is held up in the first round, by a piece of its own; the caller does all the others meanwhile.
        let (held, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        team.run(8, &|thread, _| {
            if thread == 1 {
                held.store(true, Ordering::SeqCst);
                while done.load(Ordering::SeqCst) < 7 {
                    std::thread::yield_now();
                }
            } else {
                while !held.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            }
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(done.into_inner(), 8);
    }

    #[test]
    fn a_panic_reaches_the_caller_after_the_round_and_the_team_goes_on() {
        let mut team = Team::new(2);
        for guilty in 0..2 {
            let both = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(2, &|thread, _| {
                    both.fetch_add(1, Ordering::SeqCst);
                    while both.load(Ordering::SeqCst) < 2 {
                        std::thread::yield_now();
                    }
                    assert!(thread != guilty, "planted");
                });
            }));
            assert!(caught.is_err());
        }
        let calm = AtomicUsize::new(0);
        team.run(2, &|_, _| {
            calm.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calm.into_inner(), 2);
    }

    #[test]
    fn of_two_panics_in_one_round_none_is_left_for_the_next() {
        let mut team = Team::new(2);
        let both = AtomicUsize::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            team.run(2, &|_, _| {
                both.fetch_add(1, Ordering::SeqCst);
                while both.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                panic!("planted");
            });
        }));
        assert!(caught.is_err());
        let calm = AtomicUsize::new(0);
        team.run(2, &|_, _| {
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
