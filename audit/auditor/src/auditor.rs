//! What an auditor reads and what it objects to.

use crate::engine_side::{Claim, EngineFault, EngineSide, Judged, Settled};
use crate::page_lives::{Owner, PageLives};
use crate::traces::Traces;
use audit_feed::FeedError;
use audit_provenance::{Body, Entry, Handover, Head, PageClass, SealReason, Sealing, TenantRef, Trace};
use audit_tlog::{Checkpoint, VerifierKey};
use audit_verify::{LogFollower, LogRefusal, ReceiptRefusal, SelfTests, check_trace};
use audit_witness::{Examine, Examined};
use policies_domain::RequestId;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What was audited so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Audited {
    /// Entries, each of which was decoded and put into its tenant's chain.
    pub entries: u64,
    /// Responses that were sealed.
    pub responses: u64,
    /// Of these, responses of which the engine's feed says the same. None where no feed is read.
    pub fed: u64,
    /// Responses of which the feed does not have all, though they are not older than it.
    pub unfed: u64,
    /// Responses that were over before the oldest part of the feed that is left.
    pub before_feed: u64,
    /// Requests for which the engine did something wrong, as its feed says, and of which the log says nothing yet.
    pub unclaimed: u64,
    /// Of these, responses whose trace is not there: dropped, too long to be kept, or lost in a crash. Their entries were checked.
    pub without_trace: u64,
    /// Responses whose trace was dropped for its age, as the log says. Their entries were checked.
    pub pruned: u64,
    /// Responses that were stopped because of an isolation fault, with an incident in the log.
    pub stopped: u64,
    /// How often the gateway tried its own detectors. Nothing is objected to for that: whoever reads it judges.
    pub self_tests: SelfTests,
}

/// How often, and at which distance, it is looked for what is not in the feed yet: a second in all. It is written at least five times
/// in one.
const FEED_LOOKS: usize = 50;
const FEED_LOOK: Duration = Duration::from_millis(20);

/// Of a hundred responses, so many may be without their trace, or without their part of the feed: crashes lose some.
pub const WITHOUT_TRACE_PERCENT: u64 = 1;

/// Why an auditor does not cosign. But for [`Objection::Storage`] and [`Objection::Traces`], it stays.
#[derive(Debug, thiserror::Error)]
pub enum Objection {
    /// The log's files could not be read.
    #[error("the log could not be read: {0}")]
    Storage(io::Error),
    /// An entry, a tile or a chain is not as it must be.
    #[error(transparent)]
    Log(LogRefusal),
    /// The tree of the entries is not the one that was signed.
    #[error("the entries have another root hash than the checkpoint of {size} entries")]
    Root {
        /// Its size.
        size: u64,
    },
    /// Whoever takes traces away takes away what their pages are checked with.
    #[error(
        "{without_trace} of {responses} responses have no trace, more than {percent} in 100: their pages cannot be checked"
    )]
    Traces {
        /// How many have none.
        without_trace: u64,
        /// Of how many.
        responses: u64,
        /// What was allowed.
        percent: u64,
    },
    /// A trace is not the one of its entry, or says other things than that.
    #[error("entry {index}: {source}")]
    Trace {
        /// The sealed entry.
        index: u64,
        /// What is wrong.
        source: ReceiptRefusal,
    },
    /// One life of a page was read by two owners as their own.
    #[error("entry {index}: page {page} was another's in its life {generation}, as an earlier response says")]
    Owner {
        /// The sealed entry.
        index: u64,
        /// The page.
        page: u32,
        /// Its life.
        generation: u32,
    },
    /// The engine did something else than the log says, or what it must not do.
    #[error("entry {index}: {fault}")]
    Engine {
        /// The sealed entry.
        index: u64,
        /// What is wrong.
        fault: EngineFault,
    },
    /// The engine did what it must not do, and the log says nothing of that request, or says that it ended without it.
    #[error("for request {request} {fault}, and no response of the log has that in it")]
    Unclaimed {
        /// The request.
        request: RequestId,
        /// What is wrong.
        fault: EngineFault,
    },
    /// The engine's feed is said to have begun after everything in the log: every response would be older than it.
    #[error("what is left of the engine's feed begins after the newest entry of the log")]
    FeedTime,
    /// Whoever takes the engine's feed away takes away what the responses are compared with.
    #[error("of {unfed} of {responses} responses the engine's feed does not have all, more than {percent} in 100")]
    Feed {
        /// How many.
        unfed: u64,
        /// Of how many.
        responses: u64,
        /// What was allowed.
        percent: u64,
    },
    /// What was sent comes from steps that the response did not make, or not in order.
    #[error("entry {index}: a chunk comes from steps that are not its response's")]
    Steps {
        /// The sealed entry.
        index: u64,
    },
}

impl From<FeedError> for Objection {
    fn from(error: FeedError) -> Self {
        Self::Storage(io::Error::other(error))
    }
}

impl From<LogRefusal> for Objection {
    fn from(refusal: LogRefusal) -> Self {
        match refusal {
            LogRefusal::File { source, .. } => Self::Storage(source),
            refusal => Self::Log(refusal),
        }
    }
}

/// Reads one log, from its folder.
#[derive(Debug)]
pub struct Auditor {
    dir: PathBuf,
    feeds: Option<PathBuf>,
    key: VerifierKey,
    without_trace_percent: u64,
    reading: Mutex<Reading>,
}

#[derive(Debug)]
struct Reading {
    follower: LogFollower,
    rules: Rules,
    /// What was objected to, if it stays.
    objection: Option<String>,
}

impl Reading {
    fn new(dir: &Path, feeds: Option<&Path>, key: &VerifierKey) -> Self {
        let (lives, audited, newest_us, missing) = Default::default();
        let (traces, engine) = (Traces::new(dir), feeds.map(EngineSide::new));
        let rules = Rules { traces, engine, lives, audited, newest_us, missing };
        Self { follower: LogFollower::new(dir, key), rules, objection: None }
    }
}

impl Auditor {
    /// Of the log with this key, of whose responses so many in a hundred may be without their trace.
    #[must_use]
    pub fn new(dir: &Path, key: VerifierKey, without_trace_percent: u64) -> Self {
        let reading = Mutex::new(Reading::new(dir, None, &key));
        Self { dir: dir.to_owned(), feeds: None, key, without_trace_percent, reading }
    }

    /// Which reads the engine's feed beside it, in this folder of feeds, and compares.
    #[must_use]
    pub fn with_feeds(self, feeds: &Path) -> Self {
        let reading = Mutex::new(Reading::new(&self.dir, Some(feeds), &self.key));
        Self { feeds: Some(feeds.to_owned()), reading, ..self }
    }

    fn anew(&self) -> Reading {
        Reading::new(&self.dir, self.feeds.as_deref(), &self.key)
    }

    /// What was audited so far.
    #[must_use]
    pub fn audited(&self) -> Audited {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner).rules.audited
    }

    /// Reads on to this checkpoint, whose signature was verified, and applies the rules. `progress` is told how many entries are
    /// read.
    ///
    /// # Errors
    /// What the first entry is objected to for, in words; the same again for every later checkpoint. [`Examined::Unable`] when
    /// files could not be read.
    pub fn audit(&self, checkpoint: &Checkpoint, mut progress: impl FnMut(u64)) -> Result<Audited, Examined> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(objection) = &reading.objection {
            return Err(Examined::Refused(objection.clone()));
        }
        if reading.follower.size() > checkpoint.size {
            // It was read further than it is asked about: the tree of that size is gone.
            *reading = self.anew();
        }
        let read = reading.read_to(checkpoint, &mut progress).and_then(|audited| self.has_traces(audited));
        read.map_err(|objection| {
            let text = objection.to_string();
            match objection {
                Objection::Storage(_) => {
                    // Half of a bundle may have been taken in: begin anew with the next checkpoint.
                    *reading = self.anew();
                    return Examined::Unable(text);
                }
                Objection::Traces { .. } | Objection::Feed { .. } | Objection::FeedTime => {}
                _ => reading.objection = Some(text.clone()),
            }
            Examined::Refused(text)
        })
    }

    /// Whether the keys that the entries name have signed this note of the checkpoint that was audited last. It is no objection to
    /// the log that it is not: whoever has a former key of it can sign, and not add to it.
    ///
    /// # Errors
    /// [`Examined::Refused`]; [`Examined::Unable`] when something else was audited meanwhile.
    pub fn is_signed(&self, checkpoint: &Checkpoint, note: &[u8]) -> Result<(), Examined> {
        let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if reading.follower.size() != checkpoint.size {
            return Err(Examined::Unable("the log was read further meanwhile".to_owned()));
        }
        reading.follower.is_signed(note).map_err(|refusal| Examined::Refused(refusal.to_string()))
    }

    /// A crash may take one, however few responses there are.
    fn has_traces(&self, audited: Audited) -> Result<Audited, Objection> {
        let Audited { responses, without_trace, .. } = audited;
        let percent = self.without_trace_percent;
        if without_trace.saturating_mul(100) > responses.max(100).saturating_mul(percent) {
            return Err(Objection::Traces { without_trace, responses, percent });
        }
        let (unfed, responses) = (audited.unfed, audited.fed + audited.unfed);
        if unfed.saturating_mul(100) > responses.max(100).saturating_mul(percent) {
            return Err(Objection::Feed { unfed, responses, percent });
        }
        Ok(audited)
    }
}

impl Examine for Auditor {
    fn examine(&self, checkpoint: &Checkpoint, note: &[u8]) -> Result<(), Examined> {
        let audited = self.audit(checkpoint, |_| {})?;
        self.is_signed(checkpoint, note)?;
        tracing::debug!(?audited, "audited");
        Ok(())
    }
}

impl Reading {
    fn read_to(&mut self, checkpoint: &Checkpoint, progress: &mut dyn FnMut(u64)) -> Result<Audited, Objection> {
        self.rules.traces.look().map_err(Objection::Storage)?;
        while self.follower.size() < checkpoint.size {
            let rules = &mut self.rules;
            self.follower.advance(checkpoint.size, |taken| rules.apply(taken.index, taken.entry))?;
            progress(self.follower.size());
        }
        if self.follower.root() != checkpoint.root {
            return Err(Objection::Root { size: checkpoint.size });
        }
        if !self.follower.names_key() {
            return Err(LogRefusal::UnnamedKey.into());
        }
        self.rules.settle()?;
        let Rules { audited, engine, newest_us, .. } = &self.rules;
        let mut audited = *audited;
        if let Some(engine) = engine {
            // Those may come with the next checkpoint; until then they are missing.
            audited.unfed += engine.awaited();
            let (unclaimed, overdue) = engine.unclaimed(*newest_us);
            audited.unclaimed = unclaimed;
            if let Some((request, fault)) = overdue {
                return Err(Objection::Unclaimed { request, fault });
            }
            if engine.since_us().is_some_and(|since_us| since_us > *newest_us) {
                return Err(Objection::FeedTime);
            }
        }
        Ok(audited)
    }
}

/// The rules that take more than an entry's own words.
#[derive(Debug)]
struct Rules {
    traces: Traces,
    engine: Option<EngineSide>,
    lives: PageLives,
    audited: Audited,
    /// When the newest entry was written, in microseconds since 1970.
    newest_us: u64,
    /// Responses that no trace was found of, in order: the log may say later that those were dropped.
    missing: VecDeque<u64>,
}

impl Rules {
    fn apply(&mut self, index: u64, entry: &Entry) -> Result<(), Objection> {
        self.audited.entries = index + 1;
        self.newest_us = self.newest_us.max(entry.head.wall_us);
        if let Body::Prune(prune) = &entry.body {
            // What may be dropped, and what is held, the entry was compared with before.
            while self.missing.pop_front_if(|missing| *missing < prune.before).is_some() {
                self.audited.pruned += 1;
                self.audited.without_trace -= 1;
            }
        }
        if let Body::SelfTest(test) = &entry.body {
            self.audited.self_tests.take(entry.head.wall_us, test);
        }
        let (Body::Sealed(sealed), Some(link)) = (&entry.body, entry.head.tenant) else { return Ok(()) };
        self.audited.responses += 1;
        self.audited.stopped += u64::from(sealed.reason == SealReason::Isolation);
        if let Some(engine) = &mut self.engine
            && sealed.reason == SealReason::Isolation
        {
            // An incident says it already.
            engine.stopped(sealed.request);
        }
        if sealed.trace.is_none() {
            return self.no_fault_of(index, sealed.request);
        }
        match self.traces.of(index).map_err(Objection::Storage)? {
            Some(trace) => self.trace(index, &entry.head, link.tenant, sealed, &trace),
            None => {
                self.audited.without_trace += 1;
                self.missing.push_back(index);
                self.no_fault_of(index, sealed.request)
            }
        }
    }

    /// Of a response that is compared with nothing: what the engine did wrong for it, as far as that was read.
    fn no_fault_of(&self, index: u64, request: RequestId) -> Result<(), Objection> {
        match self.engine.as_ref().and_then(|engine| engine.fault_of(request)) {
            Some(fault) => Err(Objection::Engine { index, fault }),
            None => Ok(()),
        }
    }

    fn trace(
        &mut self,
        index: u64,
        head: &Head,
        tenant: TenantRef,
        sealed: &Sealing,
        trace: &[u8],
    ) -> Result<(), Objection> {
        let trace = match check_trace(trace, sealed) {
            Ok(trace) => trace,
            // After a crash another response's trace stands where one stood that was read ahead and never counted.
            Err(_) => {
                let again = self.traces.again(index).map_err(Objection::Storage)?.unwrap_or_default();
                check_trace(&again, sealed).map_err(|source| Objection::Trace { index, source })?
            }
        };
        for run in &trace.pages {
            let (page, generation) = (run.page.0, run.generation.0);
            let owner = match run.class {
                PageClass::Own => Owner::Tenant(tenant),
                PageClass::Public => Owner::Everybody,
                // Counted by the entry, as was compared; and an entry that counts one is of a response that was stopped.
                PageClass::Nobody | PageClass::Other => continue,
            };
            if !self.lives.read(head.boot, page, generation, owner) {
                return Err(Objection::Owner { index, page, generation });
            }
        }
        let mut before = 0;
        for run in &trace.chunks {
            let (first, last) = (u64::from(run.first_step), u64::from(run.chunks).saturating_sub(1));
            let end = last.saturating_mul(run.stride.into()).saturating_add(first).saturating_add(run.span.into());
            if first < before || end >= sealed.steps {
                return Err(Objection::Steps { index });
            }
            before = first;
        }
        if sealed.reason == SealReason::Isolation || sealed.coverage.handover == Handover::Staged {
            // An incident says it already; or another process has its pages.
            return Ok(());
        }
        self.compare(index, head.wall_us, tenant, sealed, trace)
    }

    /// With what the engine says itself.
    fn compare(
        &mut self,
        index: u64,
        wall_us: u64,
        tenant: TenantRef,
        sealed: &Sealing,
        trace: Trace,
    ) -> Result<(), Objection> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        if sealed.steps == 0 && trace.pages.is_empty() {
            // Its client left before anything came of it.
            return self.no_fault_of(index, sealed.request);
        }
        let (request, steps) = (sealed.request, sealed.steps);
        let judged = engine.judge(Claim { index, wall_us, request, tenant, steps, trace })?;
        self.audited.note((index, judged))
    }

    /// What was not in the feed yet is waited for, for a moment.
    fn settle(&mut self) -> Result<(), Objection> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        for _ in 0..FEED_LOOKS {
            if engine.awaited() == 0 {
                break;
            }
            for settled in engine.settle()? {
                self.audited.note(settled)?;
            }
            if engine.awaited() > 0 {
                std::thread::sleep(FEED_LOOK);
            }
        }
        Ok(())
    }
}

impl Audited {
    fn note(&mut self, (index, judged): Settled) -> Result<(), Objection> {
        match judged {
            Ok(Judged::Same) => self.fed += 1,
            Ok(Judged::Unknown) => self.unfed += 1,
            Ok(Judged::Before) => self.before_feed += 1,
            Ok(Judged::Awaited) => {}
            Err(fault) => return Err(Objection::Engine { index, fault }),
        }
        Ok(())
    }
}
