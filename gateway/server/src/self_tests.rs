//! The gateway tries its own detectors while it serves, in the process that serves: each with a control that it must let through
//! and a fault that it must find, of the two canaries who are no tenants. What came of it is an entry of the log. While one of
//! them does not work nobody is answered: what it would find is not found then.
//!
//! Nothing of a request is touched, and no request waits for it. A detector that panics does not work.

mod detectors;
mod gate;
mod seal;

pub(crate) use detectors::{Detector, detectors};

use crate::metrics::SelfTestMetrics;
use crate::respond::RequestError;
use audit_log::{AuditLog, DetectorTrial, IncidentId, Recorded};
use policies_domain::Trial;
use serde_json::{Value, json};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// After a failure they are tried again so soon: nobody is answered meanwhile.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// The tests of one gateway. Dropping it ends them.
pub(crate) struct SelfTests {
    shared: Arc<Shared>,
    /// `None` where they are off.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    /// `None`: nothing is ever tried.
    period: Option<Duration>,
    detectors: Vec<Detector>,
    audit: AuditLog,
    metrics: SelfTestMetrics,
    /// Something does not work, or it could not be written down whether all do.
    failing: AtomicBool,
    last: Mutex<Option<Last>>,
    stopped: Mutex<bool>,
    stopping: Condvar,
}

/// The newest self-test that has an entry.
#[derive(Clone)]
struct Last {
    wall_us: u64,
    recorded: Recorded,
    incident: Option<IncidentId>,
    detectors: Vec<DetectorTrial>,
}

impl SelfTests {
    /// Tries all of them once, and has that written down, before it returns; then in each period. Blocks.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        period: Option<Duration>,
        detectors: Vec<Detector>,
        audit: AuditLog,
        metrics: SelfTestMetrics,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            period,
            detectors,
            audit,
            metrics,
            failing: AtomicBool::new(false),
            last: Mutex::default(),
            stopped: Mutex::new(false),
            stopping: Condvar::new(),
        });
        let thread = match period {
            None => {
                tracing::warn!("the detectors are never tried: `[audit] self_test_seconds` is 0");
                None
            }
            Some(_) => {
                shared.try_all();
                let shared = Arc::clone(&shared);
                Some(std::thread::Builder::new().name("self-tests".into()).spawn(move || shared.run())?)
            }
        };
        Ok(Self { shared, thread: Mutex::new(thread) })
    }

    /// Whether requests are answered.
    ///
    /// # Errors
    /// While a detector does not work.
    pub(crate) fn ask(&self) -> Result<(), RequestError> {
        if !self.is_failing() {
            return Ok(());
        }
        let again = self.shared.pause();
        Err(RequestError::DetectorFailed { retry_after_ms: u64::try_from(again.as_millis()).unwrap_or(u64::MAX) })
    }

    /// Whether a detector does not work.
    pub(crate) fn is_failing(&self) -> bool {
        self.shared.failing.load(Ordering::SeqCst)
    }

    /// What the newest one says, for whoever may see it: it holds nothing of any tenant.
    pub(crate) fn describe(&self) -> Value {
        let last = lock(&self.shared.last).clone().map(|last| {
            let tried = |DetectorTrial { detector, trial }: &DetectorTrial| {
                json!({"detector": detector, "control_passed": trial.control_passed, "fault_found": trial.fault_found})
            };
            json!({
                "at_us": last.wall_us, "entry": last.recorded.index, "leaf": last.recorded.leaf_hash.to_string(),
                "passed": last.incident.is_none(), "incident": last.incident.map(|incident| incident.to_string()),
                "detectors": last.detectors.iter().map(tried).collect::<Vec<_>>(),
            })
        });
        let period = self.shared.period.map(|period| period.as_secs());
        json!({"object": "self_test", "answering": !self.is_failing(), "period_seconds": period, "last": last})
    }

    /// No test begins from here on; one that is under way ends first. Before the log is closed.
    pub(crate) fn stop(&self) {
        *lock(&self.shared.stopped) = true;
        self.shared.stopping.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // Whatever ended it, it ends.
            let _ended = thread.join();
        }
    }
}

impl Drop for SelfTests {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let running = |stopped: &mut bool| !*stopped;
            let waited = self.stopping.wait_timeout_while(lock(&self.stopped), self.pause(), running);
            let (stopped, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if *stopped {
                return;
            }
            drop(stopped);
            self.try_all();
        }
    }

    /// Until the next one.
    fn pause(&self) -> Duration {
        let period = self.period.unwrap_or(Duration::MAX);
        if self.failing.load(Ordering::SeqCst) { period.min(AGAIN_AFTER_FAILURE) } else { period }
    }

    fn try_all(&self) {
        let detectors: Vec<DetectorTrial> = self.detectors.iter().map(Detector::tried).collect();
        let passed = detectors.iter().all(|tried| tried.trial.passed());
        if !passed {
            // INVARIANT: from here on nobody new is answered, whatever becomes of the entry.
            self.failing.store(true, Ordering::SeqCst);
        }
        match self.audit.record_self_test(detectors.clone()) {
            Ok((recorded, incident)) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let wall_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
                let worked = !self.failing.swap(!passed, Ordering::SeqCst);
                self.metrics.count(passed, now);
                say(&detectors, recorded, incident, worked);
                *lock(&self.last) = Some(Last { wall_us, recorded, incident, detectors });
            }
            // What nobody can look up did not happen.
            Err(error) => {
                self.failing.store(true, Ordering::SeqCst);
                tracing::error!(%error, "a self-test was not recorded, and nobody is answered before one is");
            }
        }
    }
}

fn say(detectors: &[DetectorTrial], recorded: Recorded, incident: Option<IncidentId>, worked: bool) {
    let entry = recorded.index;
    match incident {
        None if worked => tracing::debug!(entry, "the detectors work"),
        None => tracing::info!(entry, "the detectors work again, and requests are answered"),
        Some(incident) => {
            let failed = detectors.iter().filter(|tried| !tried.trial.passed());
            let failed = failed.map(|tried| tried.detector.as_str()).collect::<Vec<_>>().join(", ");
            tracing::error!(entry, %incident, failed, "detectors do not work, and nobody is answered");
        }
    }
}

impl Detector {
    fn tried(&self) -> DetectorTrial {
        let trial = catch_unwind(AssertUnwindSafe(|| (self.run)())).unwrap_or_else(|_| Trial::default());
        DetectorTrial { detector: self.name.to_owned(), trial }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks protect is valid at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
