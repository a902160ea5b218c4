//! What the engine itself says of a response: whose pages it read, in which lives, in how many passes. Compared with what the log
//! says of it.

mod passes;
#[cfg(test)]
mod tests;

use audit_feed::{Feed, FeedError};
use audit_provenance::{PageClass, TenantRef, Trace};
use passes::{Account, Passes, minted_us};
use policies_domain::{Label, RequestId};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::Path;

/// Responses that wait for passes which are not in the feed yet.
const AWAITED_MAX: usize = 1024;
/// Ids and entries have their times from one clock, the former in milliseconds and some steps earlier.
const CLOCK_SLACK_US: u64 = 1_000_000;
/// A request has its end in the log after so much of the log's time, whatever became of it.
const UNCLAIMED_US: u64 = 3_600_000_000;

/// What is wrong with what the engine did for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EngineFault {
    /// It read a page whose life was over, or had not begun.
    #[error("the engine read page {page} in its life {generation}, which it was not in")]
    NoLife {
        /// The page.
        page: u32,
        /// The life.
        generation: u32,
    },
    /// It read a page of nobody, or pages of two tenants.
    #[error("the engine read page {page} (life {generation}), which is not the data of whom it read others of")]
    Foreign {
        /// The page.
        page: u32,
        /// The life.
        generation: u32,
    },
    /// It read on in what no pass before it read: a record was taken out.
    #[error("a pass of the engine is missing behind the first {made}")]
    Missing {
        /// Passes that are there before.
        made: u64,
    },
    /// The pages that it read are another tenant's, as other responses say.
    #[error("the engine read pages of another tenant than whose response it is")]
    Tenant,
    /// The log's trace names a page that the engine did not read, or as somebody else's.
    #[error("the trace names page {page} (life {generation}) otherwise than the engine read it")]
    Invented {
        /// The page.
        page: u32,
        /// The life.
        generation: u32,
    },
    /// The engine read a page that the log's trace does not name.
    #[error("the engine read page {page} (life {generation}), which the trace does not name")]
    Hidden {
        /// The page.
        page: u32,
        /// The life.
        generation: u32,
    },
    /// The response has steps that the engine did not make.
    #[error("the response has {claimed} steps, the engine made {made}")]
    Steps {
        /// Steps of the entry.
        claimed: u64,
        /// Passes of the engine.
        made: u64,
    },
}

/// What the log says of a response, to be compared.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Index of the sealed entry, and when it was written, in microseconds since 1970.
    pub(crate) index: u64,
    pub(crate) wall_us: u64,
    pub(crate) request: RequestId,
    pub(crate) tenant: TenantRef,
    pub(crate) steps: u64,
    pub(crate) trace: Trace,
}

/// What came of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// The engine says the same.
    Same,
    /// The feed does not have all of it.
    Unknown,
    /// It was over before what is left of the feed began.
    Before,
    /// It may come.
    Awaited,
}

/// A sealed entry's index, and what came of it.
pub(crate) type Settled = (u64, Result<Judged, EngineFault>);

/// The engine's feed, and what was read of it.
#[derive(Debug)]
pub(crate) struct EngineSide {
    feed: Feed,
    account: Account,
    /// In the run that is read.
    tenants: HashMap<Label, TenantRef>,
    labels: HashMap<TenantRef, Label>,
    /// With what was missing when they came.
    awaited: VecDeque<(Claim, u64)>,
}

impl EngineSide {
    /// Of the feeds in this folder.
    pub(crate) fn new(feeds: &Path) -> Self {
        let (tenants, labels, awaited) = Default::default();
        Self { feed: Feed::of(feeds), account: Account::new(), tenants, labels, awaited }
    }

    /// Compares a response, as far as its passes are there. One that waits for some is settled by [`EngineSide::settle`].
    ///
    /// # Errors
    /// A fault in the inner result; the outer one when files could not be read.
    pub(crate) fn judge(&mut self, claim: Claim) -> Result<Result<Judged, EngineFault>, FeedError> {
        if self.account.since_us.is_none() {
            self.read_on()?;
        }
        if self.account.since_us.is_some_and(|since_us| claim.wall_us < since_us) {
            return Ok(Ok(Judged::Before));
        }
        while self.awaits(&claim) && self.read_on()? {}
        let judged = self.compare(&claim);
        match judged {
            Ok(Judged::Awaited) if self.awaited.len() >= AWAITED_MAX => return Ok(Ok(Judged::Unknown)),
            Ok(Judged::Awaited) => self.awaited.push_back((claim, self.account.gaps)),
            _ => self.account.compared(claim.request),
        }
        Ok(judged)
    }

    /// What the engine did wrong for a request of whose response the log says too little to compare it.
    pub(crate) fn fault_of(&self, request: RequestId) -> Option<EngineFault> {
        self.account.of(request).and_then(|passes| passes.fault)
    }

    /// The log says that it was stopped for an isolation fault.
    pub(crate) fn stopped(&mut self, request: RequestId) {
        self.account.stopped(request);
    }

    /// Responses that wait for passes which are not in the feed yet.
    pub(crate) fn awaited(&self) -> u64 {
        self.awaited.len() as u64
    }

    /// When what is left of the feed began, in microseconds since 1970.
    pub(crate) fn since_us(&self) -> Option<u64> {
        self.account.since_us
    }

    /// Requests for which the engine did something wrong and of which the log says nothing, and the oldest of them that it ought to
    /// say something of by now, at this time of the log's, in microseconds since 1970.
    pub(crate) fn unclaimed(&self, now_us: u64) -> (u64, Option<(RequestId, EngineFault)>) {
        let unclaimed = self.account.unclaimed();
        let oldest = unclaimed.first_key_value().map(|(request, fault)| (*request, *fault));
        let overdue = |(request, _): &_| minted_us(*request).saturating_add(UNCLAIMED_US) < now_us;
        (unclaimed.len() as u64, oldest.filter(overdue))
    }

    /// Reads on, and settles who waited.
    ///
    /// # Errors
    /// When files could not be read.
    pub(crate) fn settle(&mut self) -> Result<Vec<Settled>, FeedError> {
        let (mut settled, waiting) = (Vec::new(), std::mem::take(&mut self.awaited));
        for (claim, gaps) in waiting {
            while self.awaits(&claim) && self.read_on()? {}
            let judged = match self.compare(&claim) {
                // What it waited for went with what is missing.
                Ok(Judged::Awaited) if gaps != self.account.gaps => Ok(Judged::Unknown),
                judged => judged,
            };
            if judged == Ok(Judged::Awaited) {
                self.awaited.push_back((claim, gaps));
            } else {
                self.account.compared(claim.request);
                settled.push((claim.index, judged));
            }
        }
        Ok(settled)
    }

    /// `false`: there is no more at the moment.
    fn read_on(&mut self) -> Result<bool, FeedError> {
        let Some(record) = self.feed.read_next()? else { return Ok(false) };
        if self.account.take(record) {
            (self.tenants, self.labels) = (HashMap::new(), HashMap::new());
        }
        Ok(true)
    }

    /// Whether passes may come that it needs.
    fn awaits(&self, claim: &Claim) -> bool {
        let more = |passes: &Passes| !passes.partial && passes.fault.is_none() && passes.made < claim.steps;
        self.account.of(claim.request).is_none_or(more) && !self.has_all_of(claim)
    }

    /// Whether something is there that came after its end: then so is all that came before.
    fn has_all_of(&self, claim: &Claim) -> bool {
        self.account.newest_us > claim.wall_us.saturating_add(CLOCK_SLACK_US)
    }

    fn compare(&mut self, claim: &Claim) -> Result<Judged, EngineFault> {
        let (sure, has_all) = (self.account.is_sure_of(claim.request), self.has_all_of(claim));
        let short = |made| match (has_all, sure) {
            (true, true) => Err(EngineFault::Steps { claimed: claim.steps, made }),
            (true, false) => Ok(Judged::Unknown),
            (false, _) => Ok(Judged::Awaited),
        };
        let Some(passes) = self.account.of(claim.request) else { return short(0) };
        // Found while nothing of it was missing.
        if let Some(fault) = passes.fault {
            return Err(fault);
        }
        if passes.partial {
            return Ok(Judged::Unknown);
        }
        if passes.made < claim.steps {
            return short(passes.made);
        }
        if let Some(label) = passes.label {
            // A label is one tenant, and a tenant has one label, for as long as the engine runs.
            let tenant = *self.tenants.entry(label).or_insert(claim.tenant);
            let known = *self.labels.entry(claim.tenant).or_insert(label);
            if tenant != claim.tenant || known != label {
                return Err(EngineFault::Tenant);
            }
        }
        check_trace(passes, claim)?;
        Ok(Judged::Same)
    }
}

/// The trace names what the passes of the response's steps read, and nothing else. What was computed after them, for a client that had
/// left, is not in it.
fn check_trace(passes: &Passes, claim: &Claim) -> Result<(), EngineFault> {
    let mut named = BTreeSet::new();
    for run in &claim.trace.pages {
        let life = (run.page, run.generation);
        let read = passes.read.get(&life).filter(|(_, first)| *first < claim.steps);
        let fits = read.is_some_and(|(label, _)| match run.class {
            PageClass::Own => passes.label == Some(*label),
            PageClass::Public => *label == Label::PUBLIC,
            PageClass::Nobody | PageClass::Other => false,
        });
        if !fits {
            return Err(EngineFault::Invented { page: run.page.0, generation: run.generation.0 });
        }
        named.insert(life);
    }
    let mut read = passes.read.iter().filter(|(_, (_, first))| *first < claim.steps).map(|(life, _)| life);
    match read.find(|life| !named.contains(life)) {
        Some((page, generation)) => Err(EngineFault::Hidden { page: page.0, generation: generation.0 }),
        None => Ok(()),
    }
}
