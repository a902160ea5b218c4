//! Answers computed again, alone: which ones, when, and what comes of it.
//!
//! One thread of the lowest priority computes them one after the other, with pages of its own ([`Replayer`]). What waits is
//! bounded, by number, by tokens, and for each tenant; the tenant whose replays have taken least comes first. What was due
//! and has no place is written down as not done. Nobody but the operator decides which answers are due: a keyed hash of the
//! request's id, under a key that is drawn at the start.

mod line;

use crate::config::{Agreement, ReplayTerms};
use crate::metrics::ReplayMetrics;
use audit_log::{AuditLog, ReplayOutcome, ReplayTime, Replayed, Sealed};
use engine_runtime::{ReplayError, ReplayJob, ReplayVerdict, Replayer};
use line::{Line, Place};
use policies_domain::{Principal, RequestId, TenantId, TenantName};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// An answer is held back for its replay so long at most; then it counts as not done.
const HELD_MAX: Duration = Duration::from_secs(300);
/// The nice value of the thread that computes: whoever wants the processor gets it first.
const NICE: i32 = 19;

/// What is due of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The engine makes a digest of what the answer is sampled from.
    pub(crate) digest: bool,
    /// The answer is computed again.
    pub(crate) replay: Option<ReplayTime>,
}

/// What came of one replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) outcome: ReplayOutcome,
    tokens: u64,
    first_difference: Option<u64>,
    cpu_us: u64,
}

impl Finding {
    pub(crate) const NOT_DONE: Self =
        Self { outcome: ReplayOutcome::NotDone, tokens: 0, first_difference: None, cpu_us: 0 };

    fn of(verdict: Result<ReplayVerdict, ReplayError>, tokens: usize, cpu_us: u64) -> Self {
        let (outcome, first_difference) = match verdict {
            Ok(ReplayVerdict::Same) => (ReplayOutcome::Same, None),
            Ok(ReplayVerdict::Different { first_difference }) => (ReplayOutcome::Different, first_difference),
            Err(error) => {
                tracing::warn!(%error, "an answer was not computed again");
                return Self { cpu_us, ..Self::NOT_DONE };
            }
        };
        let first_difference = first_difference.map(|place| place as u64);
        Self { outcome, tokens: tokens as u64, first_difference, cpu_us }
    }

    fn replayed(self, when: ReplayTime) -> Replayed {
        let Self { outcome, tokens, first_difference, cpu_us } = self;
        Replayed { outcome, tokens, first_difference, when, cpu_us }
    }
}

/// Where a finding goes.
enum Whither {
    /// To the log: the answer has its sealed entry.
    Log(Sealed),
    /// To the request's task, which holds the answer back.
    Task(oneshot::Sender<Finding>),
}

struct Work {
    job: ReplayJob,
    name: TenantName,
    whither: Whither,
}

impl Work {
    fn place(self, tenant: TenantId) -> Place<Box<Self>> {
        let (tokens, is_awaited) = (self.job.tokens(), matches!(self.whither, Whither::Task(_)));
        Place { tenant, tokens, is_awaited, work: Box::new(self) }
    }
}

#[derive(Default)]
struct State {
    line: Line<Box<Work>>,
    stopped: bool,
}

/// What request tasks and the thread share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    audit: AuditLog,
    metrics: ReplayMetrics,
    /// The thread and full queues write entries with it.
    runtime: Handle,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `false`: it has no place.
    fn push(&self, place: Place<Box<Work>>) -> Result<(), Box<Work>> {
        let mut state = self.state();
        if state.stopped {
            return Err(place.work);
        }
        state.line.push(place).map_err(|place| place.work)?;
        self.changed.notify_all();
        Ok(())
    }

    /// The next one; `None` when there will be none.
    fn take(&self) -> Option<Place<Box<Work>>> {
        let nothing = |state: &mut State| state.line.is_empty() && !state.stopped;
        let mut state = self.changed.wait_while(self.state(), nothing).unwrap_or_else(PoisonError::into_inner);
        if state.stopped { None } else { state.line.pop() }
    }

    fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// One after the other, until it is stopped. What waits then is not done.
    fn run(&self, mut replayer: Replayer) {
        let _stops = StopOnUnwind(self);
        // Whoever may not be made less urgent computes as everybody does.
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::warn!(%error, "replays are computed with the priority of everything else");
        }
        while let Some(Place { tenant, work, .. }) = self.take() {
            let before = thread_cpu_us();
            let verdict = replayer.replay(&work.job, &mut || !self.state().stopped);
            let cpu_us = thread_cpu_us().saturating_sub(before);
            self.state().line.charge(tenant, cpu_us);
            let finding = Finding::of(verdict, work.job.answer.tokens(), cpu_us);
            self.runtime.block_on(self.tell(*work, finding));
        }
        let mut left = std::mem::take(&mut self.state().line);
        while let Some(place) = left.pop() {
            self.runtime.block_on(self.tell(*place.work, Finding::NOT_DONE));
        }
    }

    async fn tell(&self, work: Work, finding: Finding) {
        match work.whither {
            Whither::Log(sealed) => self.record(&work.name, &sealed, finding, ReplayTime::AfterRelease).await,
            // When nobody waits any more the client has left, and nothing leaves.
            Whither::Task(reply) => drop(reply.send(finding)),
        }
    }

    async fn record(&self, name: &TenantName, sealed: &Sealed, finding: Finding, when: ReplayTime) {
        self.metrics.count(name, finding.outcome, finding.cpu_us);
        match self.audit.record_replay(sealed, finding.replayed(when)).await {
            Ok(Some(incident)) => {
                self.metrics.incident();
                tracing::error!(%incident, tenant = %name, "isolation fault: an answer that has left differs when it is computed again");
            }
            Ok(None) => {}
            // The log has stopped, which is known by then, and answers nothing any more.
            Err(error) => tracing::error!(%error, "what came of a replay is not in the log"),
        }
    }
}

/// Nobody waits for a thread that has ended.
struct StopOnUnwind<'a>(&'a Shared);

impl Drop for StopOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.stop();
        let left = std::mem::take(&mut self.0.state().line);
        if !left.is_empty() {
            tracing::error!("the thread of the replays has ended: answers that were due are not computed again");
        }
    }
}

/// Processor time of the calling thread.
fn thread_cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000)
}

/// Which answers are computed again, and where they wait for it.
pub(crate) struct Replays {
    terms: HashMap<TenantId, ReplayTerms>,
    /// The digest is made of every answer.
    digests_all: bool,
    secret: [u8; 32],
    shared: Option<Arc<Shared>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Who decides what is due.
pub(crate) struct ReplaySettings {
    pub(crate) terms: HashMap<TenantId, ReplayTerms>,
    pub(crate) digests_all: bool,
    pub(crate) secret: [u8; 32],
}

impl ReplaySettings {
    /// Of the tenants who have a key.
    pub(crate) fn of<'a>(
        principals: &[Principal],
        agreement: impl Fn(&TenantName) -> Option<&'a Agreement>,
        digests_all: bool,
        secret: [u8; 32],
    ) -> Self {
        let terms = principals.iter().map(|principal| {
            let terms = agreement(principal.name()).map_or(ReplayTerms::default(), |agreement| agreement.replay);
            (principal.tenant(), terms)
        });
        Self { terms: terms.filter(|(_, terms)| terms.is_on()).collect(), digests_all, secret }
    }

    /// Somebody's answers are computed again.
    pub(crate) fn need_a_replayer(&self) -> bool {
        !self.terms.is_empty()
    }
}

impl Replays {
    /// `replayer`: when anybody's answers are due.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(crate) fn start(
        settings: ReplaySettings,
        replayer: Option<Replayer>,
        audit: AuditLog,
        metrics: ReplayMetrics,
        runtime: Handle,
    ) -> io::Result<Self> {
        let ReplaySettings { terms, digests_all, secret } = settings;
        let (mut shared, mut thread) = (None, None);
        if let Some(replayer) = replayer {
            let (state, changed) = (Mutex::default(), Condvar::new());
            let made = Arc::new(Shared { state, changed, audit, metrics, runtime });
            let of_thread = made.clone();
            let run = move || of_thread.run(replayer);
            thread = Some(std::thread::Builder::new().name("replay".to_owned()).spawn(run)?);
            shared = Some(made);
        }
        Ok(Self { terms, digests_all, secret, shared, thread: Mutex::new(thread) })
    }

    /// What is due of a request. Its id was drawn here, and the key is known to nobody.
    pub(crate) fn due(&self, tenant: TenantId, request: RequestId) -> Due {
        let terms = self.terms.get(&tenant).copied().unwrap_or_default();
        let replay = (self.shared.is_some() && terms.takes(drawn(&self.secret, request))).then_some(terms.when());
        Due { digest: self.digests_all || terms.is_on(), replay }
    }

    /// An answer that has its sealed entry is to be computed again. Never waits: what has no place is not done.
    pub(crate) fn after(&self, principal: &Principal, sealed: Sealed, job: ReplayJob) {
        let Some(shared) = &self.shared else { return };
        let (tenant, name) = (principal.tenant(), principal.name().clone());
        if let Err(work) = shared.push(Work { job, name, whither: Whither::Log(sealed) }.place(tenant)) {
            let of_task = shared.clone();
            shared.runtime.spawn(async move { of_task.tell(*work, Finding::NOT_DONE).await });
        }
    }

    /// Computes an answer again that is held back.
    ///
    /// # Cancel safety
    /// Nobody learns of the finding of a future that was dropped; the answer was held back then and has not left.
    pub(crate) async fn before(&self, principal: &Principal, job: ReplayJob) -> Finding {
        let Some(shared) = &self.shared else { return Finding::NOT_DONE };
        let (reply, finding) = oneshot::channel();
        let (tenant, name) = (principal.tenant(), principal.name().clone());
        if shared.push(Work { job, name, whither: Whither::Task(reply) }.place(tenant)).is_err() {
            return Finding::NOT_DONE;
        }
        let found = tokio::time::timeout(HELD_MAX, finding).await;
        found.ok().and_then(Result::ok).unwrap_or(Finding::NOT_DONE)
    }

    /// Writes down what came of an answer that was held back. Its sealed entry is there.
    pub(crate) async fn held_back(&self, principal: &Principal, sealed: &Sealed, finding: Finding) {
        if let Some(shared) = &self.shared {
            shared.record(principal.name(), sealed, finding, ReplayTime::BeforeRelease).await;
        }
    }

    /// Ends the thread, and writes down as not done what waits. Blocks for one pass of the model at most, and for the log.
    pub(crate) fn stop(&self) {
        if let Some(shared) = &self.shared {
            shared.stop();
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread has been reported by the hook.
            let _panicked = thread.join();
        }
    }
}

impl Drop for Replays {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.stop();
        }
    }
}

/// A number that is as good as drawn: the beginning of SHA-256 over the key and the request's id.
fn drawn(secret: &[u8; 32], request: RequestId) -> u64 {
    let mut hash = Sha256::new();
    hash.update(secret);
    hash.update(request.bytes());
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().map_or(u64::MAX, |first| u64::from_be_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_answers_are_due_follows_the_rate_and_the_secret() {
        let request = |number: u32| {
            let mut bytes = [7; 16];
            bytes[12..].copy_from_slice(&number.to_be_bytes());
            RequestId::from_bytes(bytes)
        };
        let terms = |part| ReplayTerms { per_million: ReplayTerms::rate(part).unwrap(), before_release: false };
        let taken = |part: f64, secret: [u8; 32]| -> Vec<u32> {
            (0..4_000).filter(|number| terms(part).takes(drawn(&secret, request(*number)))).collect()
        };
        assert_eq!(taken(0.0, [1; 32]).len(), 0);
        assert_eq!(taken(1.0, [1; 32]).len(), 4_000);
        assert!((900..1_100).contains(&taken(0.25, [1; 32]).len()));
        assert_eq!(taken(0.25, [1; 32]), taken(0.25, [1; 32]));
        assert_ne!(taken(0.25, [1; 32]), taken(0.25, [2; 32]), "without the secret nobody knows which");
        assert!(ReplayTerms { per_million: ReplayTerms::ALL, ..terms(0.0) }.takes(u64::MAX));
    }

    #[test]
    fn processor_time_of_a_thread_grows_with_its_work() {
        let before = thread_cpu_us();
        let mut sum = 0u64;
        while thread_cpu_us() < before + 1_000 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        assert!(thread_cpu_us() > before);
    }
}
